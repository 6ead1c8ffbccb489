//! Tests of callbacks over real sockets. Each test determines the bytes that its targets send.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bus;
mod connections;
mod egress;
mod excerpts;
mod names;
mod requests;
mod responses;
mod support;
mod tls;
