//! Rotates the certificate authority of the cluster while faults disturb its members.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::database::Database;
use super::faults::wait_until;
use super::member::MemberConfig;

/// Errors that no fault explains.
const INEXPLICABLE: [&str; 3] = ["cannot decrypt", "is damaged", "has no certificate authority"];

/// Results of the rotations during the faults.
#[derive(Default)]
pub(super) struct Rotations {
    pub(super) complete: usize,
    /// Errors that no fault explains.
    pub(super) failures: Vec<String>,
}

/// Rotates the authority repeatedly until `is_over`. A rotation may fail while faults disturb the members, and the next
/// one completes it.
pub(super) fn rotate_repeatedly(
    database: &Database,
    config: &MemberConfig,
    period: Duration,
    is_over: &AtomicBool,
) -> Rotations {
    let mut rotations = Rotations::default();
    while !wait_until(period, || is_over.load(Ordering::Relaxed)) {
        match rotate(database, config) {
            Ok(()) => rotations.complete += 1,
            Err(error) => {
                let error = format!("a rotation is incomplete: {error:#}");
                eprintln!("{error}");
                if INEXPLICABLE.iter().any(|text| error.contains(text)) {
                    rotations.failures.push(error);
                }
            }
        }
    }
    rotations
}

/// Rotates the authority after all faults have ended.
///
/// # Errors
/// Returns an error if the rotation fails, or if the cluster still trusts an old authority afterwards.
pub(super) fn rotate_at_the_end(database: &Database, config: &MemberConfig) -> anyhow::Result<()> {
    rotate(database, config)?;
    let left = database.sql("select count(*) from reveille.authority")?;
    ensure!(left.trim() == "1", "after the last rotation, the cluster has {} authorities", left.trim());
    Ok(())
}

fn rotate(database: &Database, config: &MemberConfig) -> anyhow::Result<()> {
    let mut command = Command::new(&config.binary);
    command.args(["cluster", "rotate", "--timeout", "60", "--store", &database.url(), "--store-key"]);
    command.arg(config.store_key()).args(config.coordination.iter().flat_map(|url| ["--coordination", url]));
    let output = command.env("NO_COLOR", "1").output().context("cannot start `reveille cluster rotate`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
