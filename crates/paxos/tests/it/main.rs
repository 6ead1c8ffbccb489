//! Tests of the crate's public API. The tests pass inputs to the state machines and execute their effects, as a driver
//! does.

#![expect(clippy::unwrap_used, reason = "a test fails on unexpected errors")]

mod nodes;
mod scenarios;
mod words;
mod world;
