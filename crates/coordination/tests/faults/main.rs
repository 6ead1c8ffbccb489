//! What leaders promise (criteria A1 to A8), on a real ZooKeeper and a real PostgreSQL, while processes, servers and networks fail.
//!
//! - A1: of two leaders of a group, one is over by every clock of the machine before the other begins; and what is written with an older
//!   term is refused.
//! - A2: terms rise strictly, whatever is deleted, made anew or started again.
//! - A3: who is not answered any more knows, by its own clock alone, that it does not lead, before anybody else may.
//! - A4: what was made though nobody heard of it blocks nobody for longer than the session.
//! - A5: who goes wakes one, however many wait.
//! - A6: where one candidate and the engine live, somebody leads within the session's timeout and a little.
//! - A7: who lost its session stands again by itself, behind the others.
//! - A8: what a user's code does while it leads holds up neither the session nor the client.
//!
//! What one process can show, `coordination_conformance::recipes` asks of these engines, too, and of the one in memory.
//!
//! `examples/candidate.rs` is the process that is killed, stopped and cut off. Needs root, for network namespaces.

#![expect(clippy::disallowed_methods, reason = "the tests stand outside: clocks, threads and processes are real")]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

/// Each of these, on both engines, as a test of its own.
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

/// A machine with two cores and much to do is given this long for what takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of sessions whose end is waited for. A process of a busy machine may stand still for half of it and nobody minds.
const SESSION: Duration = Duration::from_secs(3);
/// Of sessions whose end nobody waits for.
const LONG: Duration = Duration::from_secs(30);
/// What a new leader may take beyond the session's timeout. ZooKeeper looks at sessions once in a tick (100 ms here), PostgreSQL's clients
/// look four times in a second; after that it is a watch and one or two requests. The rest is for a machine that is busy.
const BOUND: Duration = Duration::from_secs(4);

/// Asks again and again, as a real process tells nobody when it has come so far.
#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
