//! Tests of the simulator's public API.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod disk;
mod runner;
mod world;

use std::path::Path;
use std::sync::Arc;

use runtime::{DiskFile, OpenMode, Runtime};
use simulator::Simulation;

/// Creates a file, and makes its name durable.
async fn durable_file(member: &Runtime, path: &str) -> Arc<dyn DiskFile> {
    let disk = member.disk();
    let file = disk.open(Path::new(path), OpenMode::CreateNew).await.unwrap();
    disk.sync_dir(Path::new(path).parent().unwrap()).await.unwrap();
    file
}

/// Returns the number of seeds below `seeds` for which `property` is true.
fn seeds_where(seeds: u64, property: impl Fn(&Simulation) -> bool) -> u64 {
    (0..seeds).filter(|seed| property(&Simulation::new(*seed))).count() as u64
}
