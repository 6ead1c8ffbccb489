//! Scenario of a cluster whose store returns to an earlier state, like a database that fails over to a standby that
//! lagged.
//!
//! The store returns to a copy of its state, under a new epoch. Before that, a member may crash or pause, so that the store
//! also loses terms. Every schedule that a client created before the copy or after the return must fire, without a restart
//! of a member. Callbacks of the lost period may be repeated. No term may be assigned twice.

use std::sync::Arc;
use std::time::Duration;

use scheduler::Create;
use store::Store;
use store::memory::TermsAfterLoss;

use super::test_cluster::{TestCluster, tenant};
use super::{BALANCING_TIME_MAX, Mutant, RECOVERY_TIME, StoreKind, series_end, verify};
use crate::user::{self, Incarnations};
use crate::{Handle, Simulation, Verdict};

/// Longest time until an owner notices that its term is void, in addition to one lease duration.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(4);

/// Runs one seed of one scenario, with or without a deliberate bug.
///
/// # Panics
/// Panics if the members broke a promise during the run. The message lists all violations.
pub fn run(sim: &Simulation, kind: StoreKind, mutant: Option<Mutant>) -> Verdict {
    sim.set_time_limit(Duration::from_secs(600));
    let sim_in: Handle = (**sim).clone();
    sim.run_until(async move {
        let sim = sim_in;
        let cluster = TestCluster::new(&sim, kind, mutant).await;
        for _ in 0..sim.draw(|random| 2 + random.below(2)) {
            cluster.add();
        }
        cluster.start_members().await;
        cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
        let incarnations = Incarnations::default();
        let scenario = Box::pin(async {
            create(&cluster, &incarnations, 40, true).await;
            sleep(&cluster, 0, 1_500).await;
            let copied_at = sim.elapsed();
            let copy = cluster.local_store().snapshot().await;
            disturb_a_member(&cluster).await;
            create(&cluster, &incarnations, 10, false).await;
            sleep(&cluster, 500, 5_000).await;
            let terms = match mutant {
                Some(Mutant::ReusesLostTerms) => TermsAfterLoss::Stored,
                Some(Mutant::KeepsOwnersAfterLoss) => TermsAfterLoss::Unchanged,
                _ => TermsAfterLoss::NewEpoch,
            };
            cluster.local_store().go_back(copy, terms).await;
            cluster.history.lost_outcomes(copied_at..=sim.elapsed() + NOTICE_TIME_MAX + cluster.lease());
            create(&cluster, &incarnations, 20, true).await;
            for name in cluster.names() {
                cluster.start_soon(&name);
            }
            cluster.start_members().await;
            cluster.wait_until_balanced(BALANCING_TIME_MAX).await;
            sim.sleep(RECOVERY_TIME).await;
        });
        cluster.history.observe_health(|| cluster.reports_well(), scenario).await;
        verify(&cluster, &incarnations).await
    })
}

/// Creates schedules at random members. If `is_expected` is false, the store will lose the schedules.
async fn create(cluster: &TestCluster, incarnations: &Incarnations, count: usize, is_expected: bool) {
    for _ in 0..count {
        sleep(cluster, 0, 50).await;
        let names = cluster.serving();
        if names.is_empty() {
            continue;
        }
        let name = &names[cluster.sim.draw(|random| random.index(names.len()))];
        let now = cluster.sim.outside().now();
        let spec = cluster.sim.draw(|random| user::spec(random, now));
        let request = Create { tenant: Arc::new(tenant()), id: None, incarnation: None, spec, by: None };
        let epoch = cluster.local_store().epoch();
        let created = cluster.call(name, async move |scheduler| scheduler.create(vec![request]).await).await;
        let schedule = created.and_then(Result::ok).and_then(|mut responses| responses.pop()).and_then(Result::ok);
        match schedule.filter(|_| is_expected && cluster.local_store().epoch() == epoch) {
            Some(schedule) => {
                incarnations.add(schedule.incarnation);
                cluster.history.created(schedule.incarnation, user::expected(&schedule, series_end(&cluster.sim)));
            }
            None => cluster.history.create_without_response(),
        }
    }
}

/// Crashes, kills or pauses a member in two of three runs.
async fn disturb_a_member(cluster: &TestCluster) {
    let names = cluster.up();
    let name = &names[cluster.sim.draw(|random| random.index(names.len()))];
    match cluster.sim.draw(|random| random.below(6)) {
        0 | 1 => {
            cluster.sim.kill(name);
            cluster.restart_after(name, Duration::ZERO);
            sleep(cluster, 0, 1_000).await;
            cluster.start_due_members().await;
        }
        2 | 3 => {
            let pause = Duration::from_millis(cluster.sim.draw(|random| random.below(6_000)));
            cluster.sim.pause(name, pause);
        }
        _ => {}
    }
}

async fn sleep(cluster: &TestCluster, least: u64, most: u64) {
    let wait = cluster.sim.draw(|random| least + random.below(most - least));
    cluster.sim.sleep(Duration::from_millis(wait)).await;
}
