//! Promises of leader election (criteria A1 to A8), on a real ZooKeeper and a real PostgreSQL, while processes, servers
//! and networks fail.
//!
//! - A1: Two leaderships of a leader group never overlap by any clock of the machine. Writes with an older term are
//!   rejected.
//! - A2: Terms rise strictly, even if nodes are deleted and created again or servers are restarted.
//! - A3: A leader that gets no response knows by its own clock that it does not lead any more before another process
//!   may lead.
//! - A4: A node whose creation got no response blocks other processes for at most the session's timeout.
//! - A5: A departure wakes one candidate, however many wait.
//! - A6: If one candidate and the engine are alive, there is a leader within the session's timeout plus a short time.
//! - A7: A candidate that lost its session joins again by itself, at the end of the line.
//! - A8: User code that runs during a leadership blocks neither the session nor the client.
//!
//! The suite `coordination_conformance::recipes` covers the promises that a single process can show. It runs on these
//! engines, too, and on the engine in memory.
//!
//! `examples/candidate.rs` is the program that the tests kill, pause and cut off. The tests need root for network
//! namespaces.

#![expect(clippy::disallowed_methods, reason = "the tests use real clocks, threads and processes")]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]

/// Creates a test of each case for both engines.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod zookeeper {
            $(#[test] fn $case() { super::$case(&$crate::engine::Engine::zookeeper()); })*
        }
        mod postgres {
            $(#[test] fn $case() { super::$case(&$crate::engine::Engine::postgres()); })*
        }
    };
}

mod answers;
mod candidate;
mod engine;
mod exclusion;
mod guard;
mod handover;
mod history;
mod restart;
mod sink;
mod users;

use std::time::{Duration, Instant};

/// Longest wait for a step that usually takes milliseconds, on a busy machine with two cores.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of sessions whose end a test waits for. It tolerates pauses of half of it in processes of a busy machine.
const SESSION: Duration = Duration::from_secs(3);
/// Timeout of sessions whose end no test waits for.
const LONG: Duration = Duration::from_secs(30);
/// Time that a new leader may take beyond the session's timeout. ZooKeeper checks sessions once in a tick (100 ms
/// here), and PostgreSQL's clients check four times per second. A watch and one or two requests follow. The rest allows
/// for a busy machine.
const BOUND: Duration = Duration::from_secs(4);

/// Polls until `look` returns a value, because a real process does not notify the test of its progress.
#[track_caller]
fn until<T>(event: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {event}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
