//! The scheduler over the store in memory, in simulated time.

mod firing;
mod house;
mod survival;
