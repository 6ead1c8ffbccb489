//! Members that ask each other over real sockets, and strangers between them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod failures;
mod requests;
mod support;
mod trust;
