//! The product's spine in one piece: the real scheduler over a real store, under load, while the machine fails.
//!
//! Clients create, replace and cancel; a receiver answers, fails, hangs and panics; the member is killed, loses power,
//! pauses, and its clock jumps. Afterwards the world heals, and everything that was acknowledged is accounted for.

mod account;
mod engine;
mod mutant;
mod receiver;
mod visit;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Incarnation, Schedule, Timestamp};

use crate::{Handle, Simulation, Suite};

use account::Account;
use engine::Engine;
pub use engine::EngineKind;
pub use mutant::Mutant;
use visit::Visit;

/// How long clients and faults go on, in simulated time.
const TROUBLE: Duration = Duration::from_secs(12);
/// How long the last due instant and its retries may take once all is well.
const HEALING: Duration = Duration::from_secs(40);
/// Beats so close before the end are not asked for.
const SLACK: Duration = Duration::from_secs(15);

/// The scenarios that hold, for a command that runs many seeds.
#[must_use]
pub fn suite() -> Suite {
    Suite::new()
        .with("spine-weak", |sim| run(sim, EngineKind::Weak, None))
        .with("spine-atomic", |sim| run(sim, EngineKind::Atomic, None))
        .with("spine-embedded", |sim| run(sim, EngineKind::Embedded, None))
}

/// One seed of one scenario, with a deliberate bug or without.
///
/// # Panics
/// With everything that must not be, a line each.
pub fn run(sim: &Simulation, kind: EngineKind, mutant: Option<Mutant>) {
    let account = Arc::new(Mutex::new(Account::default()));
    sim.set_time_limit(TROUBLE + HEALING + Duration::from_secs(600));
    sim.tolerate_panics(); // The receiver's, on purpose; what follows from others is seen in the account.
    let handle: Handle = (**sim).clone();
    let faults = sim.run_until(async move {
        let mut engine = Engine::new(handle.clone(), kind, mutant, account.clone());
        engine.start().await;
        visit::trouble(&mut engine, &account, TROUBLE).await;
        engine.heal().await;
        handle.outside().sleep(HEALING).await;
        let until = handle.clock(engine::MEMBER) - SLACK;
        let seen = look(&mut engine, &account).await;
        let account = account.lock().expect("no holder of this lock panics");
        handle.note(&format!("{} calls", account.calls()));
        account.judge(&seen, until)
    });
    assert!(faults.is_empty(), "{faults}");
}

type Seen = BTreeMap<Incarnation, (Schedule, Vec<domain::occurrence::Run>)>;

async fn look(engine: &mut Engine, account: &Mutex<Account>) -> Seen {
    let asked: Vec<Schedule> =
        account.lock().expect("no holder of this lock panics").live().cloned().collect();
    let mut seen = Seen::new();
    for schedule in asked {
        let visit = Visit::look(schedule.id.clone());
        if let Some((now, runs)) = engine.look(visit).await
            && now.incarnation == schedule.incarnation
        {
            seen.insert(schedule.incarnation, (now, runs));
        }
    }
    seen
}

fn later(now: Timestamp, millis: u64) -> Timestamp {
    now + Duration::from_millis(millis)
}
