//! Tests of the journal's public API, on a real disk and on the simulated disk with all of its faults.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod crashes;
mod damage;
mod faults;
mod fuzz;
mod golden;
mod real_disk;
mod support;
