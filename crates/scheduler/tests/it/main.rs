//! The scheduler over the store in memory, in simulated time.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;
mod firing;
mod house;
mod survival;
mod town;
