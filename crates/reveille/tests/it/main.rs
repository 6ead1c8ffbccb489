//! The black box: the real binary, its real disk, real clients and receivers, and the ways in which a machine is rude.

#![expect(clippy::disallowed_methods, reason = "the black box stands outside: clocks, threads and processes are real")]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod before_relayout;
mod bench;
mod cli;
mod client;
mod cluster;
mod configuration;
mod crash;
mod deploy;
mod documents;
mod durability;
mod egress;
mod examples;
mod first_start;
mod full_disk;
mod metrics;
mod process;
mod progress;
mod receiver;
mod receiving;
mod recipes;
mod secrets;
mod server;
mod spans;
mod tls;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A machine with two cores and much to do is given this long for what takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again, as a real process tells nobody when it has come so far.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How long this machine or its disk stood still, as a thread sees it that sleeps for moments and syncs a few bytes after each.
struct Stalls {
    is_over: Arc<AtomicBool>,
    watching: thread::JoinHandle<Duration>,
}

impl Stalls {
    fn watch() -> Self {
        const MOMENT: Duration = Duration::from_millis(20);
        let is_over = Arc::<AtomicBool>::default();
        let until = is_over.clone();
        let watching = thread::spawn(move || {
            let mut stood = Duration::ZERO;
            let mut file = tempfile::tempfile().unwrap();
            while !until.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(MOMENT);
                file.write_all(b"moment").unwrap();
                file.sync_data().unwrap();
                let late = before.elapsed() - MOMENT;
                stood += if late > MOMENT { late } else { Duration::ZERO };
            }
            stood
        });
        Stalls { is_over, watching }
    }

    fn millis(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        u64::try_from(self.watching.join().unwrap().as_millis()).unwrap()
    }
}

/// The wall clock, in milliseconds since 1970.
fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_millis()).expect("it is before the year 500,000,000")
}
