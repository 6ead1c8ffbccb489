//! Tests of callbacks over real sockets, to targets that each test scripts.

#![expect(clippy::unwrap_used, reason = "tests")]

mod connections;
mod egress;
mod names;
mod requests;
mod responses;
mod support;
mod tls;
