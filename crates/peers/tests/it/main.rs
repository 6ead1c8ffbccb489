//! Tests of members that send each other requests over real sockets, and of unauthenticated processes between
//! them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod failures;
mod requests;
mod support;
mod trust;
