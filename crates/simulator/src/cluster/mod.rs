//! Several members with the real scheduler in each, over one store and one coordination engine in memory, while members,
//! the ways between them, and clocks fail.
//!
//! Users ask any member; members crash, stall, stop, join and leave; anything may be cut from anything; wall clocks differ
//! within the bound that the membership allows, and now and then by more. Then the world heals, the shards must be shared
//! out evenly again, one member joins and one leaves, and every promise is accounted for in the [`Ledger`] and in the
//! `Record` of who owned what.
//!
//! What it does not do: fail the store's or the engine's own server, beyond calls that fail or get lost.

mod client;
mod far;
mod mutant;
mod net;
mod record;
mod town;
mod trouble;

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DueKey, PollerId, RunState, ShardId, Status, Timestamp};
use futures_util::future::{join, join_all};
use store::{DueBound, DueRead, Store};

use crate::user::Names;
use crate::{EPOCH, Handle, Simulation, Suite, Verdict};

use client::Client;
pub use mutant::Mutant;
use town::{Town, tenant};

/// How long users and faults go on.
const TROUBLE: Duration = Duration::from_secs(12);
/// How long the last due instant, its retries, and attempts whose outcome was lost may take once all is well.
const HEALING: Duration = Duration::from_secs(35);
/// How long it may take until all shards have an owner again, and each member its share.
const SETTLING: Duration = Duration::from_secs(25);
/// How often it is looked whether a shard has two owners.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
const CLIENTS: usize = 4;
/// How far a member's clock may be off.
const CLOCK_OFFSET_MAX: Duration = Duration::from_millis(500);
const ROWS_MAX: usize = 10_000;
const RUNS_MAX: usize = 10_000;
/// What lies so shortly before the end may be on its way.
const LATELY: Duration = Duration::from_secs(5);

/// The store that the members share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// In memory, as the least that the port allows, with delays and failures.
    Weak,
    /// In memory, each item in one step.
    Atomic,
}

/// Up to here, every beat of a repeating schedule is asked for.
fn beats_until() -> Timestamp {
    EPOCH + TROUBLE + HEALING / 2
}

pub(crate) fn add_to(suite: Suite) -> Suite {
    suite
        .with("cluster-weak", |sim| drop(run(sim, StoreKind::Weak, None)))
        .with("cluster-atomic", |sim| drop(run(sim, StoreKind::Atomic, None)))
}

/// One seed of one scenario, with a deliberate bug or without.
///
/// # Panics
/// With every promise that was broken.
pub fn run(sim: &Simulation, kind: StoreKind, mutant: Option<Mutant>) -> Verdict {
    sim.set_time_limit(Duration::from_secs(600));
    let sim_in: Handle = (**sim).clone();
    sim.run_until(async move {
        let sim = sim_in;
        let town = Town::new(&sim, kind, mutant).await;
        for _ in 0..sim.draw(|random| 3 + random.below(2)) {
            town.add();
        }
        town.start_those_due().await;
        town.settle(SETTLING).await;
        let names = Names::default();
        let clients = join_all((0..CLIENTS).map(|number| Client::new(&town, &names, number).run(TROUBLE)));
        let busy = join(clients, trouble::make(&town));
        let (mut clients, ()) = while_looking(&town, busy).await;
        while_looking(&town, trouble::end(&town)).await;
        town.settle(SETTLING).await;
        for client in &mut clients {
            client.finish().await;
        }
        while_looking(&town, come_and_go(&town)).await;
        sim.sleep(HEALING).await;
        judge(&town, &names).await
    })
}

async fn while_looking<T>(town: &Town, work: impl Future<Output = T>) -> T {
    let looking = async {
        loop {
            town.record.look();
            town.sim.sleep(LOOK_PERIOD).await;
        }
    };
    let (work, looking) = (std::pin::pin!(work), std::pin::pin!(looking));
    match futures_util::future::select(work, looking).await {
        futures_util::future::Either::Left((done, _)) => done,
        futures_util::future::Either::Right(((), _)) => unreachable!("it looks for ever"),
    }
}

/// One member joins, and takes no more than its share; another leaves, and only its shards move.
async fn come_and_go(town: &Town) {
    let before = town.owners();
    let count = town.serving().len();
    let sessions = town.record.sessions_opened();
    town.add();
    town.start_those_due().await;
    town.settle(SETTLING).await;
    let moved = moved(&before, &town.owners());
    let most = usize::from(domain::id::SHARDS).div_ceil(count + 1);
    let is_quiet = town.record.sessions_opened() == sessions + 1;
    assert!(!is_quiet || moved.len() <= most, "churn: {} shards move as one joins {count}", moved.len());
    let before = town.owners();
    let sessions = town.record.sessions_opened();
    let names = town.serving();
    let leaver = names[town.sim.draw(|random| random.index(names.len()))].clone();
    assert!(town.stop(&leaver).await, "nothing is wrong with {leaver}");
    town.forget(&leaver);
    town.settle(SETTLING).await;
    let strange: Vec<ShardId> =
        self::moved(&before, &town.owners()).into_iter().filter(|shard| before[shard] != leaver).collect();
    let is_quiet = town.record.sessions_opened() == sessions;
    assert!(!is_quiet || strange.is_empty(), "churn: these move as another leaves: {strange:?}");
}

fn moved(before: &BTreeMap<ShardId, String>, after: &BTreeMap<ShardId, String>) -> Vec<ShardId> {
    before.iter().filter(|(shard, owner)| after.get(shard) != Some(owner)).map(|(shard, _)| *shard).collect()
}

async fn judge(town: &Town, names: &Names) -> Verdict {
    let ended_at = town.sim.outside().now();
    for name in town.serving() {
        assert!(town.stop(&name).await, "nothing is wrong with {name}");
    }
    for incarnation in names.incarnations() {
        let runs = town.near_store().runs(incarnation, None, RUNS_MAX).await.expect("it never fails");
        runs.into_iter().for_each(|run| town.ledger.outcome(run.occurrence, run.state));
    }
    town.record.tell_excuses(&town.ledger);
    let verdict = town.ledger.verdict();
    town.record.check();
    assert!(verdict.violations.is_empty(), "{verdict}");
    let panics = town.sim.panics();
    assert!(panics.is_empty(), "panics: {panics:?}");
    no_row_is_left(town, ended_at - LATELY).await;
    verdict
}

/// No row lies where its poller has closed and waits there for nothing.
async fn no_row_is_left(town: &Town, until: Timestamp) {
    let store = town.near_store();
    let number_of = |number| PollerId { tenant: tenant().id, generation: 0, number };
    let pollers: Vec<PollerId> = (0..tenant().generations[0]).map(number_of).collect();
    let positions = store.positions(pollers.clone()).await.expect("it never fails");
    for (poller, positions) in pollers.into_iter().zip(positions) {
        let read = DueRead {
            poller,
            after: DueBound::Instant(positions.done),
            until: positions.closed.min(until),
            limit: ROWS_MAX,
        };
        let page = store.due(vec![read]).await.expect("it never fails").remove(0);
        for key in page.keys {
            assert!(
                !is_live(town, &key).await,
                "left behind: {key:?} of {poller:?}, closed up to {}",
                positions.closed
            );
        }
    }
}

async fn is_live(town: &Town, key: &DueKey) -> bool {
    let store = town.near_store();
    let schedule = store.load(vec![key.occurrence.incarnation]).await.expect("it never fails").remove(0);
    let run = store.find_runs(vec![key.occurrence]).await.expect("it never fails").remove(0);
    let is_active = schedule.is_some_and(|it| it.status == Status::Active && it.revision == key.occurrence.revision);
    let is_open = run.is_none_or(|run| match run.state {
        RunState::Retrying => run.attempts.last().is_none_or(|attempt| attempt.number < key.attempt),
        RunState::Succeeded | RunState::Failed | RunState::Missed { .. } | RunState::Cancelled => false,
    });
    is_active && is_open
}

#[cfg(test)]
mod tests;
