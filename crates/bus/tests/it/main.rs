//! Runs the conformance suite on the engine in memory, tests that the suite detects deliberate bugs, and tests the
//! processor.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]

mod batches;
mod flow;
mod gather;
mod leader;
mod memory;
mod mutants;
mod operator;
mod pages;
mod processor;
mod retries;
mod shards;
