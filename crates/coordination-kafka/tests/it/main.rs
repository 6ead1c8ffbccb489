//! Tests of electors on topics: on a real broker of Kafka, and on the bus in memory in simulations.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]

mod broker;
mod conformance;
mod exclusion;
mod invalid;
