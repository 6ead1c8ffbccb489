//! Requests that simulated users send in all scenarios, and the instants at which the history expects callbacks for
//! these requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use cron_oracle::{CHANGING, Expression, FIXED, Zone};
use domain::retry::RetryPolicy;
use domain::{
    AttemptResult, Audit, Cron, HttpTarget, Incarnation, Schedule, SigningSecret, Spec, Target, Tenant, TenantId,
    Timestamp, When,
};
use scheduler::Scheduler;
use store::{Health, Store, StoreError};

use crate::{Expected, Handle, Random, topics};

/// Age of the oldest due row, in seconds, at which the alert for operators fires.
const WAITING_SECONDS_MAX: f64 = 5.0;
/// Time by which the clock of a member may be behind the true time although the member is well.
const CLOCK_BEHIND_MAX: Duration = Duration::from_secs(5);

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
    let secret = SigningSecret::first(vec![7; 32], Timestamp::MIN);
    Tenant { egress: topics::egress(), ..Tenant::new(TenantId(1), "simulated", pollers, secret) }
}

/// Lets three of four simulations start some seconds before a clock change of a time zone.
pub(crate) fn start_near_a_clock_change(sim: &Handle) {
    if sim.seed().is_multiple_of(4) {
        return;
    }
    let changes: Vec<i64> = CHANGING.iter().flat_map(Zone::changes).collect();
    let change = changes[sim.draw(|random| random.index(changes.len()))];
    let ahead = Duration::from_secs(2 + sim.draw(|random| random.below(12)));
    sim.start_at(Timestamp::from_millis(change * 1_000) - ahead);
}

/// Creates the tenant in the store.
///
/// # Errors
/// Returns an error if the store fails.
pub(crate) async fn put_tenant(store: &dyn Store, tenant: Tenant) -> Result<(), StoreError> {
    let entry = Audit::of(&tenant, Timestamp::MIN, "simulator", "tenant.create", "");
    store.put_tenant(tenant, entry).await.map(|put| put.expect("no other process creates the tenant"))
}

/// Returns a random spec for a schedule that is due soon, overdue or recurring. One of four schedules has a topic as
/// target.
pub(crate) fn spec(random: &mut Random, now: Timestamp) -> Spec {
    let spec = http_spec(random, now);
    let topic = (random.below(4) == 0).then(|| topics::target(random, !matches!(spec.when, When::At(_))));
    Spec { target: topic.unwrap_or(spec.target), ..spec }
}

/// Returns a random spec with an HTTP target, for a schedule that is due soon, overdue or recurring.
pub(crate) fn http_spec(random: &mut Random, now: Timestamp) -> Spec {
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
    match random.below(12) {
        0 => When::every(Duration::from_millis(1_000 + random.below(3_000))),
        1 | 2 => When::Cron(cron(random, now)),
        3 => When::At(now - Duration::from_millis(random.below(3_000))),
        4..=6 => When::At(now + Duration::from_millis(random.below(300))),
        _ => When::At(now + Duration::from_millis(random.below(6_000))),
    }
}

/// Returns a random cron expression that probably fires soon.
fn cron(random: &mut Random, now: Timestamp) -> Cron {
    const SPAN_SECS: i64 = 20;
    let zones: Vec<&Zone> = FIXED.iter().chain(&CHANGING).collect();
    let zone = zones[random.index(zones.len())];
    let expression = Expression::draw(zone, unix_secs(now), SPAN_SECS, |below| random.below(below)).to_string();
    Cron::parse(&expression, zone.name).expect("the expression is valid, and the zone exists")
}

fn unix_secs(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(1_000)
}

/// Returns the instants at which `schedule` must fire. For a recurring schedule, the instants end at `series_end`.
pub(crate) fn expected(schedule: &Schedule, series_end: Timestamp) -> Expected {
    match &schedule.spec.when {
        When::At(at) => Expected::once(*at),
        When::Every { interval, since } => {
            let anchor = since.unwrap_or(schedule.updated_at);
            let instants = std::iter::successors(Some(anchor + *interval), |at| Some(*at + *interval));
            Expected::series(instants.take_while(|at| *at <= series_end), series_end)
        }
        When::Cron(cron) => {
            let zone = Zone::named(cron.zone()).expect("the simulated users know the zone");
            let expression = Expression::parse(cron.expression()).expect("the simulated users drew the expression");
            let instants = expression.instants(zone, unix_secs(schedule.updated_at), unix_secs(series_end));
            let instants = instants.into_iter().map(|unix| Timestamp::from_millis(unix * 1_000));
            Expected::series(instants, series_end)
        }
    }
}

/// Returns true if the member reports to an operator that it is well: it answers, it is ready, its clock is not behind the
/// positions, and no due row waits for long. Also returns false if the member's clock is behind the true time, because
/// its callbacks are then late by this time.
pub(crate) fn reports_well(sim: &Handle, member: &str, scheduler: &Scheduler) -> bool {
    let now = sim.elapsed();
    let answers = !sim.interruptions(member).iter().any(|interruption| interruption.contains(&now));
    answers
        && sim.clock(member) + CLOCK_BEHIND_MAX >= sim.outside().now()
        && scheduler.health() == Health::Ready
        && !scheduler.clock_is_behind()
        && oldest_due_seconds(scheduler) < WAITING_SECONDS_MAX
}

fn oldest_due_seconds(scheduler: &Scheduler) -> f64 {
    let text = scheduler.metrics_text();
    let value = text.lines().find_map(|line| line.strip_prefix("reveille_oldest_due_seconds "));
    value.and_then(|value| value.parse().ok()).expect("the metrics contain the age of the oldest due row")
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
