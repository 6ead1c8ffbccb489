//! Tests of the promises of leader election (criteria A1 to A8), on a real ZooKeeper and a real PostgreSQL, while
//! processes, servers and networks fail.
//!
//! - A1: By the clock of the machine, two leaderships of a leader group never overlap. The target of a write rejects
//!   the write if its term is older than the latest term that the target has received.
//! - A2: Each leadership has a higher term than all earlier leaderships, even if processes delete nodes and create them
//!   again, or if servers restart.
//! - A3: A leader that gets no response from the engine detects by its own clock that it no longer leads, before
//!   another process may lead.
//! - A4: If a process gets no response to its request to create a node, this node blocks other processes at most for
//!   the session's timeout.
//! - A5: If a candidate leaves the queue of candidates, only one waiting candidate wakes up.
//! - A6: After a leader fails, another candidate leads within the session's timeout plus a short time, if the engine
//!   and at least one candidate are running.
//! - A7: A candidate that has lost its session joins the queue again by itself, at the end of the queue.
//! - A8: User code that runs during a leadership blocks neither the session nor the client.
//!
//! The suite `coordination_conformance::recipes` covers the promises that a test in a single process can check. It runs
//! on these two engines and on the engine in memory.
//!
//! `examples/candidate.rs` is the program that the tests kill, pause and cut off from the network. The tests must run
//! as root, because they create network namespaces.

#![expect(clippy::disallowed_methods, reason = "the tests use real clocks, threads and processes")]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]

/// Creates two tests of each case: one on ZooKeeper and one on PostgreSQL.
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

/// Longest time that a test waits for one step. A step usually takes milliseconds, and longer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of the sessions in tests that wait for the end of a session. A process on a busy machine keeps its session
/// if it pauses for at most half of this timeout.
const SESSION: Duration = Duration::from_secs(3);
/// Timeout of sessions that do not end during a test.
const LONG: Duration = Duration::from_secs(30);
/// Time that a new leader may need in addition to the session's timeout. ZooKeeper checks for expired sessions once per
/// tick of 100 ms, and the clients of PostgreSQL check four times per second. Then a watch wakes the next candidate,
/// which sends one or two requests. The larger part of this time is a margin for a busy machine.
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
