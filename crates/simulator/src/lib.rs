//! Simulated world that a seed determines. It implements [`runtime::World`] for any number of members, with clocks and
//! disks. Scenarios inject crashes, pauses, clock jumps and disk faults. A developer can replay every run.
//!
//! The simulated world does not interrupt a task during a poll. It uses neither real time nor threads.
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
//!     a.sleep(Duration::from_secs(3600)).await; // This sleep takes no real time.
//!     let file = a.disk().open(Path::new("/log"), OpenMode::Read).await?;
//!     let mut bytes = [0; 4];
//!     file.read_at(0, &mut bytes).await?;
//!     assert_eq!(&bytes, b"kept");
//!     std::io::Result::Ok(())
//! })?;
//! # std::io::Result::Ok(())
//! ```
//!
//! Invariant: two runs of the same scenario with the same seed have the same [`Handle::trace_hash`]. The code under
//! test must therefore use no source of randomness outside of its [`runtime::Runtime`], such as a clock, a map with a
//! random order, or a thread.
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
pub mod bus;
#[cfg(feature = "scenarios")]
pub mod cluster;
#[cfg(feature = "scenarios")]
pub mod single_node;
#[cfg(feature = "scenarios")]
pub mod tenants;
#[cfg(feature = "scenarios")]
mod topics;
#[cfg(feature = "scenarios")]
mod user;

/// Returns the scenarios that must succeed with every seed, for a command that runs many seeds.
#[cfg(feature = "scenarios")]
#[must_use]
pub fn suite() -> Suite {
    bus::add_to(tenants::add_to(cluster::add_to(single_node::suite())))
}

pub use executor::EPOCH;
pub use executor::panic_message;
pub use faults::{Coverage, Faults, Incident, Incidents};
pub use history::{CallbackId, Expected, History, Verdict, Violation};
pub use random::Random;
pub use runner::{
    Caught, Failure, Order, SeedReport, Suite, SuiteError, assert_caught, run_seed, run_seeds, try_seeds,
};
pub use simulation::{Handle, Simulation, VolumeHandle};
pub use trace::{TAIL_LINES, Text};
