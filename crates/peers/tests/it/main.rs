//! Tests of members that send each other requests over real sockets. In some tests, an unauthenticated process
//! intercepts the requests or imitates a member.

#![expect(clippy::unwrap_used, reason = "tests")]

mod failures;
mod requests;
mod support;
mod trust;
