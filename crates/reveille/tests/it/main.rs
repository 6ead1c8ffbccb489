//! The black box: the real binary, its real disk, real clients and receivers, and the ways in which a machine is rude.

#![expect(clippy::disallowed_methods, reason = "the black box stands outside: clocks, threads and processes are real")]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod client;
mod cluster;
mod crash;
mod durability;
mod first_start;
mod full_disk;
mod process;
mod receiver;
mod server;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A machine with two cores and much to do is given this long for what takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// The wall clock, in milliseconds since 1970.
fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500,000,000")
}
