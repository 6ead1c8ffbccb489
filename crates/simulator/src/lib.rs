//! Simulated world that is determined by a seed: [`runtime::World`] for any number of members, with clocks and disks.
//! Scenarios inject crashes, pauses, clock jumps and disk faults, and every run can be replayed.
//!
//! Out of scope: stopping a task in the middle of a poll, real time and threads.
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//! use runtime::OpenMode;
//! use simulator::Simulation;
//!
//! let sim = Simulation::new(7);
//! sim.run_until(async {
//!     let a = sim.member("a");
//!     let disk = a.disk();
//!     let file = disk.open(Path::new("/log"), OpenMode::CreateNew).await?;
//!     disk.sync_dir(Path::new("/")).await?;
//!     file.write_at(0, b"kept").await?;
//!     file.sync_data().await?;
//!     file.write_at(4, b"maybe").await?;
//!     sim.crash("a");
//!
//!     let a = sim.restart("a");
//!     a.sleep(Duration::from_secs(3600)).await; // Takes no time.
//!     let file = a.disk().open(Path::new("/log"), OpenMode::Read).await?;
//!     let mut bytes = [0; 4];
//!     file.read_at(0, &mut bytes).await?;
//!     assert_eq!(&bytes, b"kept");
//!     std::io::Result::Ok(())
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! Invariant: two runs of one scenario with one seed have the same [`Handle::trace_hash`], unless the code under test
//! uses a source outside of its [`runtime::Runtime`] (a clock, a map with random order, a thread).
//!
//! docs/decisions/0020-use-a-custom-simulator.md gives the reasons for the design.

mod disk;
mod executor;
mod faults;
mod history;
mod member;
mod random;
mod runner;
mod simulation;
mod trace;

#[cfg(feature = "scenarios")]
pub mod cluster;
#[cfg(feature = "scenarios")]
pub mod single_node;
#[cfg(feature = "scenarios")]
mod user;

/// Returns the scenarios that must hold, for a command that runs many seeds.
#[cfg(feature = "scenarios")]
#[must_use]
pub fn suite() -> Suite {
    cluster::add_to(single_node::suite())
}

pub use executor::panic_message;
pub use faults::{Coverage, Faults, Incident, Incidents};
pub use history::{CallbackId, Expected, History, Verdict, Violation};
pub use member::EPOCH;
pub use random::Random;
pub use runner::{
    Caught, Failure, Order, SeedReport, Suite, SuiteError, assert_caught, run_seed, run_seeds, try_seeds,
};
pub use simulation::{Handle, Simulation, VolumeHandle};
pub use trace::{TAIL_LINES, Text};
