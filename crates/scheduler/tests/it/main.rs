//! Tests of the scheduler over the in-memory store, in simulated time.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod audit;
mod cluster;
mod conditions;
mod firing;
mod harness;
mod inbox;
mod lateness;
mod missed;
mod quotas;
mod requests;
mod survival;
mod test_cluster;
