//! Requests that simulated users send in all scenarios, and the instants at which the history expects callbacks for
//! these requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use domain::retry::RetryPolicy;
use domain::{
    AttemptResult, Audit, HttpTarget, Incarnation, Schedule, SigningSecret, Spec, Target, Tenant, TenantId, Timestamp,
    When,
};
use store::{Store, StoreError};

use crate::{Expected, Random};

/// Set of all incarnations that a member returned to a client.
#[derive(Default)]
pub(crate) struct Incarnations(Mutex<BTreeSet<Incarnation>>);

impl Incarnations {
    pub(crate) fn all(&self) -> BTreeSet<Incarnation> {
        self.0.lock().expect("no holder of this lock panics").clone()
    }

    pub(crate) fn add(&self, incarnation: Incarnation) {
        self.0.lock().expect("no holder of this lock panics").insert(incarnation);
    }
}

/// Returns the tenant that the cluster and single-node scenarios use, with `pollers` pollers.
pub(crate) fn tenant(pollers: u16) -> Tenant {
    Tenant::new(TenantId(1), "simulated", pollers, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

/// Creates the tenant in the store.
///
/// # Errors
/// Returns an error if the store fails.
pub(crate) async fn put_tenant(store: &dyn Store, tenant: Tenant) -> Result<(), StoreError> {
    let entry = Audit::of(&tenant, Timestamp::MIN, "simulator", "tenant.create", "");
    store.put_tenant(tenant, entry).await.map(|put| put.expect("no other process creates the tenant"))
}

/// Returns a random spec for a schedule that is due soon, overdue or recurring.
pub(crate) fn spec(random: &mut Random, now: Timestamp) -> Spec {
    let target = random.below(3);
    Spec {
        when: when(random, now),
        target: Target::Http(HttpTarget {
            url: format!("http://receiver-{target}.test/"),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        }),
        payload: Bytes::from_static(b"{}"),
        labels: BTreeMap::new(),
        retry: RetryPolicy {
            attempts_max: 4,
            backoff: Duration::from_millis(500),
            backoff_max: Duration::from_secs(2),
        },
    }
}

fn when(random: &mut Random, now: Timestamp) -> When {
    match random.below(10) {
        0 => When::every(Duration::from_millis(1_000 + random.below(3_000))),
        1 => When::At(now - Duration::from_millis(random.below(3_000))),
        2..=4 => When::At(now + Duration::from_millis(random.below(300))),
        _ => When::At(now + Duration::from_millis(random.below(6_000))),
    }
}

/// Returns the instants at which `schedule` must fire. For a recurring schedule, the instants end at `series_end`.
pub(crate) fn expected(schedule: &Schedule, series_end: Timestamp) -> Expected {
    match schedule.spec.when {
        When::At(at) => Expected::once(at),
        When::Every { interval, since } => {
            let anchor = since.unwrap_or(schedule.updated_at);
            let instants = std::iter::successors(Some(anchor + interval), |at| Some(*at + interval));
            Expected::series(instants.take_while(|at| *at <= series_end), series_end)
        }
        When::Cron(_) => unreachable!("the simulated clients create no cron schedules"),
    }
}

/// Returns a random response time of a receiver.
pub(crate) fn response_time(random: &mut Random) -> Duration {
    Duration::from_millis(match random.below(20) {
        0 => 500 + random.below(2_500),
        _ => random.below(60),
    })
}

/// Returns the result of an attempt for the random number `draw`, which is below 20. If `draw` is above 2, the attempt
/// succeeds.
pub(crate) fn result_of(draw: u64) -> AttemptResult {
    match draw {
        0 | 1 => AttemptResult::TimedOut,
        2 => AttemptResult::Answered(503),
        _ => AttemptResult::Answered(200),
    }
}
