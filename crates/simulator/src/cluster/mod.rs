//! Cluster scenario. Several members run the real scheduler over one in-memory store and one in-memory coordination
//! engine, while members, links and clocks fail.
//!
//! Users send requests to any member. An application makes requests through the inbox of the store. Some schedules of
//! the users have cron expressions in time zones, and three of four simulations start some seconds before a clock change
//! of a time zone. Members crash, pause, stop, join and leave. The nemesis cuts links in one or both directions. Wall
//! clocks differ within the bound that the membership accepts, and sometimes by more. Then all faults end, and the
//! members must own equal shares of the shards again. One member joins and one member leaves. At the end, the
//! [`History`] and the `Record` of ownership check every promise.
//!
//! Some schedules send their callbacks to a topic of a message bus, which is away for some seconds (`topics`).
//!
//! Calls of the store and of the coordination engine fail or get lost. The scenario simulates no other failures of the
//! store or of the coordination engine.

mod application;
mod client;
mod mutant;
mod nemesis;
mod net;
mod record;
mod remote;
mod test_cluster;
mod went_back;

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{DueKey, PollerId, RunState, ShardId, Status, Timestamp};
use futures_util::future::{join_all, join4};
use store::{DueBound, DueRead, Store};

use crate::user::{self, Incarnations};
use crate::{Handle, Simulation, Suite, Verdict};

use application::Application;
use client::Client;
pub use mutant::Mutant;
use test_cluster::{TestCluster, tenant};
pub use went_back::run as run_went_back;

/// Time during which users send requests and the nemesis injects faults.
const FAULT_TIME: Duration = Duration::from_secs(12);
/// Time for which the scenario waits after all faults have ended. In this time, the last rows become due, and the
/// members complete the retries and repeat the attempts whose outcome got lost.
const RECOVERY_TIME: Duration = Duration::from_secs(35);
/// Longest time until every shard has an owner and all members own equal shares.
const BALANCING_TIME_MAX: Duration = Duration::from_secs(25);
/// Time between two checks that no shard has two owners.
const CHECK_PERIOD: Duration = Duration::from_millis(10);
const CLIENTS: usize = 4;
/// Largest offset of a member's clock at which the membership lets the member own shards.
const CLOCK_OFFSET_MAX: Duration = Duration::from_millis(500);
const ROWS_MAX: usize = 10_000;
const RUNS_MAX: usize = 10_000;
/// Length of the last part of the simulation. If a row is due in this part, its attempt may still be in progress when
/// the simulation ends.
const IN_TRANSIT: Duration = Duration::from_secs(5);

/// Kind of store that the members share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    /// In-memory store with delays, failures and the weakest guarantees that the port permits.
    Weak,
    /// In-memory store that applies each item of a call in one step.
    Atomic,
}

/// Returns the end of the period in which the history expects every occurrence of a recurring schedule.
fn series_end(sim: &Handle) -> Timestamp {
    sim.epoch() + FAULT_TIME + RECOVERY_TIME / 2
}

pub(crate) fn add_to(suite: Suite) -> Suite {
    suite
        .with("cluster-weak", |sim| drop(run(sim, StoreKind::Weak, None)))
        .with("cluster-atomic", |sim| drop(run(sim, StoreKind::Atomic, None)))
        .with("cluster-went-back-weak", |sim| drop(run_went_back(sim, StoreKind::Weak, None)))
        .with("cluster-went-back-atomic", |sim| drop(run_went_back(sim, StoreKind::Atomic, None)))
}

/// Runs one seed of one scenario, with or without a deliberate bug.
///
/// # Panics
/// Panics if the members broke a promise during the run. The message lists all violations.
pub fn run(sim: &Simulation, kind: StoreKind, mutant: Option<Mutant>) -> Verdict {
    sim.set_time_limit(Duration::from_secs(600));
    let sim_in: Handle = (**sim).clone();
    sim.run_until(async move {
        let sim = sim_in;
        user::start_near_a_clock_change(&sim);
        let cluster = TestCluster::new(&sim, kind, mutant).await;
        for _ in 0..sim.draw(|random| 3 + random.below(2)) {
            cluster.add();
        }
        cluster.start_members().await;
        cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
        let incarnations = Incarnations::default();
        let scenario = Box::pin(async {
            let clients =
                join_all((0..CLIENTS).map(|number| Client::new(&cluster, &incarnations, number).run(FAULT_TIME)));
            let application = Application::new(&cluster, &incarnations).run(FAULT_TIME);
            let outages = cluster.topics.disturb(FAULT_TIME);
            let busy = join4(clients, application, nemesis::run(&cluster), outages);
            let (mut clients, application, (), ()) = Box::pin(with_checks(&cluster, busy)).await;
            with_checks(&cluster, nemesis::stop(&cluster)).await;
            cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
            for client in &mut clients {
                client.finish().await;
            }
            application.finish().await;
            with_checks(&cluster, join_and_leave(&cluster)).await;
            sim.sleep(RECOVERY_TIME).await;
            application
        });
        let application = cluster.history.observe_health(|| cluster.reports_well(), scenario).await;
        application.check().await;
        verify(&cluster, &incarnations).await
    })
}

async fn with_checks<T>(cluster: &TestCluster, work: impl Future<Output = T>) -> T {
    let looking = async {
        loop {
            cluster.record.check_owners();
            cluster.sim.sleep(CHECK_PERIOD).await;
        }
    };
    let (work, looking) = (std::pin::pin!(work), std::pin::pin!(looking));
    match futures_util::future::select(work, looking).await {
        futures_util::future::Either::Left((done, _)) => done,
        futures_util::future::Either::Right(((), _)) => unreachable!("the loop that checks the owners never ends"),
    }
}

/// Lets one member join, and then lets one member leave. The join may move at most one member's share of the shards,
/// and the leave may move only the shards of the leaving member.
async fn join_and_leave(cluster: &TestCluster) {
    let before = cluster.owners();
    let count = cluster.serving().len();
    let sessions = cluster.record.sessions_opened();
    cluster.add();
    cluster.start_members().await;
    cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
    let moved = moved_shards(&before, &cluster.owners());
    let most = usize::from(domain::id::SHARDS).div_ceil(count + 1);
    let is_quiet = cluster.record.sessions_opened() == sessions + 1;
    assert!(
        !is_quiet || moved.len() <= most,
        "churn: {} shards moved when one member joined {count} members",
        moved.len()
    );
    let before = cluster.owners();
    let sessions = cluster.record.sessions_opened();
    let names = cluster.serving();
    let leaver = names[cluster.sim.draw(|random| random.index(names.len()))].clone();
    assert!(cluster.stop(&leaver).await, "{leaver} stops without faults");
    cluster.remove_member(&leaver);
    cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
    let unexpected: Vec<ShardId> =
        moved_shards(&before, &cluster.owners()).into_iter().filter(|shard| before[shard] != leaver).collect();
    let is_quiet = cluster.record.sessions_opened() == sessions;
    assert!(
        !is_quiet || unexpected.is_empty(),
        "churn: shards of other members moved when {leaver} left: {unexpected:?}"
    );
}

fn moved_shards(before: &BTreeMap<ShardId, String>, after: &BTreeMap<ShardId, String>) -> Vec<ShardId> {
    before.iter().filter(|(shard, owner)| after.get(shard) != Some(owner)).map(|(shard, _)| *shard).collect()
}

async fn verify(cluster: &TestCluster, incarnations: &Incarnations) -> Verdict {
    let ended_at = cluster.sim.outside().now();
    for name in cluster.serving() {
        assert!(cluster.stop(&name).await, "{name} stops without faults");
    }
    for incarnation in incarnations.all() {
        let runs = cluster
            .local_store()
            .runs(incarnation, None, RUNS_MAX)
            .await
            .expect("the store without faults never fails");
        runs.into_iter().for_each(|run| cluster.history.outcome(run.occurrence, run.state));
    }
    cluster.topics.collect().await;
    cluster.record.report_exemptions(&cluster.history);
    let verdict = cluster.history.verdict();
    cluster.record.check();
    assert!(verdict.violations.is_empty(), "{verdict}");
    cluster.topics.check();
    let panics = cluster.sim.panics();
    assert!(panics.is_empty(), "panics: {panics:?}");
    assert_no_row_left(cluster, ended_at - IN_TRANSIT).await;
    verdict
}

/// Asserts that no due row without an outcome lies at or before its poller's `closed`.
async fn assert_no_row_left(cluster: &TestCluster, until: Timestamp) {
    let store = cluster.local_store();
    let number_of = |number| PollerId { tenant: tenant().id, generation: 0, number };
    let pollers: Vec<PollerId> = (0..tenant().generations[0]).map(number_of).collect();
    let positions = store.positions(pollers.clone()).await.expect("the store without faults never fails");
    for (poller, positions) in pollers.into_iter().zip(positions) {
        let read = DueRead {
            poller,
            after: DueBound::Instant(positions.done),
            until: positions.closed.min(until),
            limit: ROWS_MAX,
        };
        let page = store.due(vec![read]).await.expect("the store without faults never fails").remove(0);
        for key in page.keys {
            assert!(
                !is_live(cluster, &key).await,
                "left behind: the due row {key:?} of {poller:?} has no outcome, but `closed` is already at {}",
                positions.closed
            );
        }
    }
}

async fn is_live(cluster: &TestCluster, key: &DueKey) -> bool {
    let store = cluster.local_store();
    let schedule =
        store.load(vec![key.occurrence.incarnation]).await.expect("the store without faults never fails").remove(0);
    let run = store.find_runs(vec![key.occurrence]).await.expect("the store without faults never fails").remove(0);
    let is_active = schedule.is_some_and(|it| it.status == Status::Active && it.revision == key.occurrence.revision);
    let is_open = run.is_none_or(|run| match run.state {
        RunState::Retrying => run.attempts.last().is_none_or(|attempt| attempt.number < key.attempt),
        RunState::Succeeded | RunState::Failed | RunState::Missed { .. } | RunState::Cancelled => false,
    });
    is_active && is_open
}

#[cfg(test)]
mod tests;
