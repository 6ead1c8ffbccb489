//! Tests of the crate's public API. The tests use the API like a driver.

#![expect(clippy::unwrap_used, reason = "a test fails on unexpected errors")]

mod nodes;
mod scenarios;
mod words;
mod world;
