//! The journal as its consumers see it: on a real disk, and on the simulated one with everything that can go wrong.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod crashes;
mod damage;
mod faults;
mod fuzz;
mod golden;
mod real_disk;
mod support;
