//! Tests of the crate's public API, as a driver uses it.

#![expect(clippy::unwrap_used, reason = "a test fails on unexpected errors")]

mod nodes;
mod scenarios;
mod words;
mod world;
