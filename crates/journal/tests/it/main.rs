//! The journal as its consumers see it: on a real disk, and on the simulated one with everything that can go wrong.

mod crashes;
mod damage;
mod faults;
mod fuzz;
mod golden;
mod real_disk;
mod support;
