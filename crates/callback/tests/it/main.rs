//! Callbacks over real sockets, to targets that do as a test tells them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod answers;
mod connections;
mod egress;
mod requests;
mod support;
mod tls;
