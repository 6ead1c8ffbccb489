//! Tests of the crate's public API. Like a driver, the tests pass inputs to the state machines and execute the effects
//! that the state machines return.

#![expect(clippy::unwrap_used, reason = "a test fails on unexpected errors")]

mod nodes;
mod scenarios;
mod words;
mod world;
