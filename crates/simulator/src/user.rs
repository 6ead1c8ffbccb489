//! What the users of every scenario ask for, and what follows from it.

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

/// Every incarnation that was ever told of.
#[derive(Default)]
pub(crate) struct Names(Mutex<BTreeSet<Incarnation>>);

impl Names {
    pub(crate) fn incarnations(&self) -> BTreeSet<Incarnation> {
        self.0.lock().expect("no holder of this lock panics").clone()
    }

    pub(crate) fn add(&self, incarnation: Incarnation) {
        self.0.lock().expect("no holder of this lock panics").insert(incarnation);
    }
}

/// With so many pollers.
pub(crate) fn tenant(pollers: u16) -> Tenant {
    Tenant::new(TenantId(1), "simulated", pollers, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

/// # Errors
/// If the store fails.
pub(crate) async fn put_tenant(store: &dyn Store, tenant: Tenant) -> Result<(), StoreError> {
    let entry = Audit::of(&tenant, Timestamp::MIN, "simulator", "tenant.create", "");
    store.put_tenant(tenant, entry).await.map(|put| put.expect("nobody else makes it"))
}

/// Something that is due soon, again and again, or already.
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
        0 => When::Every(Duration::from_millis(1_000 + random.below(3_000))),
        1 => When::At(now - Duration::from_millis(random.below(3_000))),
        2..=4 => When::At(now + Duration::from_millis(random.below(300))),
        _ => When::At(now + Duration::from_millis(random.below(6_000))),
    }
}

/// When `schedule` is to be called, beats up to `beats_until`.
pub(crate) fn expected(schedule: &Schedule, beats_until: Timestamp) -> Expected {
    match schedule.spec.when {
        When::At(at) => Expected::once(at),
        When::Every(interval) => {
            let beats = std::iter::successors(Some(schedule.updated_at + interval), |beat| Some(*beat + interval));
            Expected::series(beats.take_while(|beat| *beat <= beats_until), beats_until)
        }
        When::Cron(_) => unreachable!("no user here asks for a cron"),
    }
}

/// How long a receiver takes.
pub(crate) fn answer_time(random: &mut Random) -> Duration {
    Duration::from_millis(match random.below(20) {
        0 => 500 + random.below(2_500),
        _ => random.below(60),
    })
}

/// What it answers, `chance` out of 20: all above 2 is a success.
pub(crate) fn answer(chance: u64) -> AttemptResult {
    match chance {
        0 | 1 => AttemptResult::TimedOut,
        2 => AttemptResult::Answered(503),
        _ => AttemptResult::Answered(200),
    }
}
