//! Black-box tests of the real binary with a real disk, real clients and receivers, kills of the process, and a full
//! disk.

#![expect(clippy::disallowed_methods, reason = "these tests run outside the runtime, with real clocks and processes")]
#![expect(clippy::unwrap_used, reason = "a panic in a test helper fails the test")]

mod audit;
mod before_relayout;
mod bench;
#[cfg(feature = "kafka")]
mod bus;
#[cfg(feature = "kafka")]
mod bus_target;
mod cli;
mod client;
mod cluster;
mod compose;
mod configuration;
#[cfg(feature = "kafka")]
mod contacts;
mod crash;
mod damaged_disk;
mod deploy;
mod descriptors;
mod documents;
mod durability;
mod egress;
mod examples;
mod file_modes;
mod first_start;
mod folder_lock;
mod following;
mod full_disk;
mod inbox;
mod metrics;
mod priority;
mod process;
mod progress;
mod receiver;
mod receiving;
mod recipes;
mod redirected;
mod report;
mod secrets;
mod server;
mod spans;
mod tls;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time for which a test waits for a condition. The operations take milliseconds, but a test machine has two
/// cores and a high load.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls `holds` until it returns true, because a real process sends no notification. Panics with the text `condition`
/// after [`TIMEOUT`].
#[track_caller]
fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {condition}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Measurement of the stalls of this machine or its disk. A thread repeatedly sleeps for 20 ms and syncs a few bytes,
/// and adds up the delays of more than 20 ms.
struct Stalls {
    is_over: Arc<AtomicBool>,
    watching: thread::JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Self {
        const SLEEP: Duration = Duration::from_millis(20);
        let is_over = Arc::<AtomicBool>::default();
        let until = is_over.clone();
        let watching = thread::spawn(move || {
            let mut stalled = Duration::ZERO;
            let mut file = tempfile::tempfile().unwrap();
            while !until.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(SLEEP);
                file.write_all(b"moment").unwrap();
                file.sync_data().unwrap();
                let late = before.elapsed() - SLEEP;
                stalled += if late > SLEEP { late } else { Duration::ZERO };
            }
            stalled
        });
        Stalls { is_over, watching }
    }

    fn millis(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        u64::try_from(self.watching.join().unwrap().as_millis()).unwrap()
    }
}

/// Returns the time of the wall clock in milliseconds since 1970.
fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970");
    u64::try_from(since.as_millis()).expect("the clock is before the year 500,000,000")
}
