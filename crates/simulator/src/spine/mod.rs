//! The product's spine in one piece: the real scheduler over a real store, under load, while the machine fails.
//!
//! Clients create, replace, cancel and redrive; a receiver answers, fails, hangs and panics; the member is killed,
//! loses power, pauses, its clock jumps and its disk misbehaves. Then the world heals, and every promise is accounted
//! for in the [`Ledger`].

mod client;
mod engine;
pub(crate) mod mutant;
mod receiver;

use std::time::Duration;

use domain::Timestamp;
use futures_util::future::join_all;

use crate::{EPOCH, Faults, Handle, Ledger, Simulation, Suite, Verdict};

use crate::user::Names;
use client::Client;
use engine::Engine;
pub use engine::EngineKind;
pub use mutant::Mutant;

/// How long clients and faults go on.
const TROUBLE: Duration = Duration::from_secs(12);
/// How long the last due instant and its retries may take once all is well.
const HEALING: Duration = Duration::from_secs(60);
const CLIENTS: usize = 5;
/// The only member.
const MEMBER: &str = "a";
/// A clock jumps by no more than this, and is never further off than this.
const JUMP_MILLIS_MAX: u64 = 4_000;

/// Up to here, every beat of a repeating schedule is asked for.
fn beats_until() -> Timestamp {
    EPOCH + TROUBLE + HEALING / 2
}

/// The scenarios that hold, for a command that runs many seeds.
#[must_use]
pub fn suite() -> Suite {
    Suite::new()
        .with("spine-weak", |sim| drop(run(sim, EngineKind::Weak, None)))
        .with("spine-atomic", |sim| drop(run(sim, EngineKind::Atomic, None)))
        .with("spine-embedded", |sim| drop(run(sim, EngineKind::Embedded, None)))
}

/// One seed of one scenario, with a deliberate bug or without.
///
/// # Panics
/// With every promise that was broken.
pub fn run(sim: &Simulation, kind: EngineKind, mutant: Option<Mutant>) -> Verdict {
    sim.set_time_limit(TROUBLE + HEALING + Duration::from_secs(3_600));
    sim.tolerate_panics(); // The receiver's, on purpose; what follows from another is seen in the ledger.
    let sim_in: Handle = (**sim).clone();
    sim.run_until(async move {
        let sim = sim_in;
        // The slowest fsync takes 5 s, a full disk lasts 2 s, and a failed fsync is followed by a halt.
        let ledger = Ledger::new(&sim, Duration::from_secs(10));
        let engine = Engine::new(sim.clone(), kind, mutant, ledger.clone());
        engine.start().await;
        let names = Names::default();
        let clients = (0..CLIENTS).map(|number| Client::new(&sim, &engine, &ledger, &names, number).run(TROUBLE));
        futures_util::future::join(join_all(clients), trouble(&sim, &engine)).await;
        heal(&sim, &engine).await;
        sim.outside().sleep(HEALING).await;
        engine.stop().await;
        engine.tell_outcomes(&names.incarnations()).await;
        ledger.check()
    })
}

/// Lets the machine fail in every way, until [`TROUBLE`] is over.
async fn trouble(sim: &Handle, engine: &Engine) {
    let outside = sim.outside();
    let mut ahead_millis = 0;
    while sim.elapsed() < TROUBLE {
        outside.sleep(Duration::from_millis(sim.draw(|random| 50 + random.below(2_500)))).await;
        match sim.draw(|random| random.below(10)) {
            0 | 1 => sim.crash(MEMBER),
            2 => sim.kill(MEMBER),
            3 => sim.pause(MEMBER, Duration::from_millis(sim.draw(|random| random.below(3_000)))),
            4 | 5 => {
                let target = sim.draw(|random| random.below(2 * JUMP_MILLIS_MAX));
                let target = i64::try_from(target).unwrap_or(0) - i64::try_from(JUMP_MILLIS_MAX).unwrap_or(0);
                sim.jump_clock(MEMBER, target - ahead_millis);
                ahead_millis = target;
            }
            6 => sim.set_faults(Faults { sync_slow: 0.05, sync_fail: 0.02, write_fail: 0.01, ..Faults::default() }),
            7 => sim.set_faults(Faults {
                timer_late_max: Duration::from_millis(5),
                poll_time_max: Duration::from_micros(50),
                ..Faults::default()
            }),
            8 => {
                engine.fill_disk();
                outside.sleep(Duration::from_millis(sim.draw(|random| random.below(2_000)))).await;
                engine.empty_disk();
            }
            _ => {
                sim.set_faults(Faults::default());
                engine.empty_disk();
            }
        }
        engine.start().await;
    }
    sim.jump_clock(MEMBER, -ahead_millis);
}

async fn heal(sim: &Handle, engine: &Engine) {
    sim.set_faults(Faults::default());
    engine.empty_disk();
    sim.outside().sleep(Duration::from_secs(5)).await; // The last slow fsync, the last pause.
    engine.start().await;
}

#[cfg(test)]
mod tests;
