//! Members that ask each other over real sockets, and strangers between them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod asks;
mod failures;
mod support;
mod trust;
