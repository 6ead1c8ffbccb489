//! Single-node scenario. The real scheduler runs over a real store, under load, while the machine fails.
//!
//! Clients create, replace, cancel and redrive schedules. Some schedules have cron expressions in time zones, and three
//! of four simulations start some seconds before a clock change of a time zone. A receiver accepts a callback, rejects
//! it, times out or panics. Some schedules send their callbacks to a topic of a message bus, which is away for some
//! seconds (`topics`). The scenario kills the member, cuts its power, pauses it, makes its clock jump, makes its disk
//! fail, and damages due rows of the embedded store. Then all faults end, and the [`History`] checks every promise.

mod client;
mod engine;
pub(crate) mod mutant;
mod receiver;

use std::time::Duration;

use domain::Timestamp;
use futures_util::future::{join_all, join3};

use crate::{Faults, Handle, History, Random, Simulation, Suite, Verdict};

use crate::user::{self, Incarnations};
use client::Client;
use engine::Engine;
pub use engine::EngineKind;
pub use mutant::Mutant;

/// Time during which clients send requests and the scenario injects faults.
const FAULT_TIME: Duration = Duration::from_secs(12);
/// Time that the scenario waits after the faults, so that the expected runs and their retries can end.
const RECOVERY_TIME: Duration = Duration::from_secs(60);
const CLIENTS: usize = 5;
/// Name of the only member.
const MEMBER: &str = "a";
/// Largest offset of the member's clock from true time after a small jump.
const JUMP_MAX: Duration = Duration::from_millis(JUMP_MILLIS_MAX);
const JUMP_MILLIS_MAX: u64 = 4_000;
/// Largest time by which the member's clock is ahead or behind after a large jump, in milliseconds. A hardware clock
/// that stores the local time can be wrong by such a time.
const FAR_JUMP_MILLIS_MAX: u64 = 3_600_000;

/// Returns the time up to which the history expects every instant of a recurring schedule.
fn series_end(sim: &Handle) -> Timestamp {
    sim.epoch() + FAULT_TIME + RECOVERY_TIME / 2
}

/// Returns the scenarios that must succeed with every seed, for a command that runs many seeds.
#[must_use]
pub fn suite() -> Suite {
    Suite::new()
        .with("spine-weak", |sim| drop(run(sim, EngineKind::Weak, None)))
        .with("spine-atomic", |sim| drop(run(sim, EngineKind::Atomic, None)))
        .with("spine-embedded", |sim| drop(run(sim, EngineKind::Embedded, None)))
}

/// Runs the scenario once over a store of the given kind, with or without a deliberate bug.
///
/// # Panics
/// Panics if the scheduler broke a promise. The message lists all violations.
pub fn run(sim: &Simulation, kind: EngineKind, mutant: Option<Mutant>) -> Verdict {
    sim.set_time_limit(FAULT_TIME + RECOVERY_TIME + Duration::from_secs(3_600));
    sim.tolerate_panics(); // The receiver panics deliberately. The history detects the effects of all other panics.
    let sim_in: Handle = (**sim).clone();
    sim.run_until(async move {
        let sim = sim_in;
        user::start_near_a_clock_change(&sim);
        // Longest time until an outcome is durable. The slowest fsync takes 5 s, the disk is full for at most 2 s, and
        // the member halts after a failed fsync.
        let history = History::new(&sim, Duration::from_secs(10));
        let engine = Engine::new(sim.clone(), kind, mutant, history.clone()).await;
        let clock_at_start = sim.draw(|random| if random.below(4) == 0 { far_millis(random) } else { 0 });
        sim.jump_clock(MEMBER, clock_at_start);
        engine.start().await;
        let incarnations = Incarnations::default();
        let client = |number| Client::new(&sim, &engine, &history, &incarnations, number).run(FAULT_TIME);
        let scenario = Box::pin(async {
            let clients = join_all((0..CLIENTS).map(client));
            join3(clients, inject_faults(&sim, &engine, clock_at_start), engine.topics().disturb(FAULT_TIME)).await;
            heal(&sim, &engine).await;
            sim.outside().sleep(RECOVERY_TIME).await;
            if engine::callbacks_wait_long(sim.seed()) {
                sim.outside().sleep(RECOVERY_TIME / 2).await;
            }
        });
        history.observe_health(|| engine.reports_well(), scenario).await;
        engine.stop().await;
        engine.report_outcomes(&incarnations.all()).await;
        engine.topics().collect().await;
        let verdict = history.check();
        engine.topics().check();
        verdict
    })
}

/// Returns a time by which a clock is far ahead or, if the time is negative, far behind, in milliseconds.
fn far_millis(random: &mut Random) -> i64 {
    let far = JUMP_MILLIS_MAX + random.below(FAR_JUMP_MILLIS_MAX - JUMP_MILLIS_MAX);
    let far = i64::try_from(far).unwrap_or(0);
    if far % 3 == 0 { -far } else { far }
}

/// Injects random faults of all kinds until [`FAULT_TIME`] has passed. `clock_at_start` is the time by which the
/// member's clock is ahead, in milliseconds.
async fn inject_faults(sim: &Handle, engine: &Engine, clock_at_start: i64) {
    let outside = sim.outside();
    let mut ahead_millis = clock_at_start;
    while sim.elapsed() < FAULT_TIME {
        outside.sleep(Duration::from_millis(sim.draw(|random| 50 + random.below(2_500)))).await;
        match sim.draw(|random| random.below(10)) {
            0 | 1 => {
                sim.crash(MEMBER);
                engine.damage_due_rows();
            }
            2 => sim.kill(MEMBER),
            3 => sim.pause(MEMBER, Duration::from_millis(sim.draw(|random| random.below(3_000)))),
            4 | 5 => {
                let target = sim.draw(|random| {
                    let small = random.below(2 * JUMP_MILLIS_MAX);
                    let small = i64::try_from(small).unwrap_or(0) - i64::try_from(JUMP_MILLIS_MAX).unwrap_or(0);
                    if random.below(4) > 0 { small } else { far_millis(random) }
                });
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
    sim.outside().sleep(Duration::from_secs(5)).await; // The last slow fsync and the last pause end within 5 s.
    engine.start().await;
}

#[cfg(test)]
mod tests;
