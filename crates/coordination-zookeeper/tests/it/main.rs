//! Tests against real ZooKeeper servers, which the crate `test-servers` starts.

#![expect(clippy::unwrap_used, reason = "a test fails at an unexpected error")]

mod at_rest;
mod bags;
mod conformance;
mod connections;
mod many;
mod mixed;
mod secure;
mod support;
