//! Tests against real Kafka brokers, which the crate `test-servers` starts.

#![expect(clippy::unwrap_used, reason = "a test fails at an unexpected error")]

mod admin;
mod buffer;
mod conformance;
mod gather;
mod groups;
mod java;
mod leader;
mod operator;
mod processor;
mod retries;
mod secure;
mod transactions;
