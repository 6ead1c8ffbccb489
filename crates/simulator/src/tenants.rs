//! Scenario with hostile tenants. They fill the service with attempts at slow targets while one tenant uses a small part
//! of the service.
//!
//! The other tenants have no quotas. Their targets respond after up to 40 s, and they have more due rows than the
//! service has slots. The scenario checks that each callback of the quiet tenant starts on time, and that none of its
//! occurrences is missed. In some seeds, the service has too few slots for the number of tenants. The callbacks of the
//! quiet tenant may then be late.
//!
//! Out of scope: failures of the member and of its store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{AttemptResult, RunState, Schedule, ScheduleId, SigningSecret, Spec, Tenant, TenantId, Timestamp, When};
use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Create, Deliver, Delivered, Delivery, Options, Registry, Scheduler};
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};

use crate::{Handle, Simulation, Suite, user};

/// Time during which the tenants have due rows.
const LOAD_TIME: Duration = Duration::from_secs(20);
/// Longest time from the due instant of the quiet tenant's occurrence to the start of its callback.
const LATENESS_MAX: Duration = Duration::from_millis(100);
const QUIET: TenantId = TenantId(1);
/// Number of the quiet tenant's recurring schedules.
const RECURRING: u64 = 3;
/// Number of the quiet tenant's one-shot schedules.
const ONE_SHOT: u64 = 30;
const RUNS_MAX: usize = 1_000;

pub(crate) fn add_to(suite: Suite) -> Suite {
    suite.with("tenants", run)
}

/// Runs one seed.
///
/// # Panics
/// Panics if a callback of the quiet tenant was late, or if an occurrence was missed or lost.
pub fn run(sim: &Simulation) {
    sim.set_time_limit(Duration::from_secs(600));
    let handle: Handle = (**sim).clone();
    sim.run_until(async move {
        let runtime = handle.member("a");
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        let hostile = handle.draw(|random| 1 + random.below(12));
        let has_enough_slots = handle.draw(|random| random.below(4) > 0);
        let slots = handle.draw(|random| if has_enough_slots { 60 + random.below(400) } else { 1 + random.below(8) });
        for id in 1..=1 + hostile {
            user::put_tenant(&store, tenant(id)).await.expect("the store without faults never fails");
        }
        let receiver = Arc::new(Receiver::new(&handle, &runtime));
        let slots = usize::try_from(slots).expect("a number below 1,000 fits into usize");
        let options = Options { in_flight_max: slots, in_flight_per_target: slots, ..Options::default() };
        let engine: Arc<dyn Store> = Arc::new(store);
        let scheduler = Scheduler::start(&runtime, engine, receiver.clone(), options, Registry::default()).await;
        let scheduler = scheduler.expect("a scheduler over a store without faults starts");

        let keys = 2 * slots as u64 / hostile + 1;
        for id in 2..=1 + hostile {
            create(&scheduler, hostile_requests(&handle, &runtime, id, keys)).await;
        }
        handle.outside().sleep(Duration::from_secs(3)).await;
        let created = create(&scheduler, quiet_requests(&handle, &runtime)).await;
        handle.outside().sleep(LOAD_TIME + Duration::from_secs(2)).await;
        check_missed(&scheduler, &created).await;
        if has_enough_slots {
            receiver.check_started(&created);
        }
        scheduler.stop().await;
    });
}

fn tenant(id: u64) -> Tenant {
    let id = u32::try_from(id).expect("a number below 100 fits into u32");
    Tenant::new(TenantId(id), &format!("tenant-{id}"), 2, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

async fn create(scheduler: &Scheduler, requests: Vec<Create>) -> Vec<Arc<Schedule>> {
    let responses = scheduler.create(requests).await.expect("the store without faults never fails");
    responses.into_iter().map(|response| response.expect("the schedule is new and has an occurrence")).collect()
}

fn request(owner: u64, id: String, when: When, spec: Spec) -> Create {
    let id = ScheduleId::new(&id).expect("letters, digits and `-` are valid");
    Create { tenant: Arc::new(tenant(owner)), id: Some(id), incarnation: None, spec: Spec { when, ..spec } }
}

/// Returns the requests of one hostile tenant: `count` schedules that are due soon, one in four recurring.
fn hostile_requests(sim: &Handle, runtime: &Runtime, owner: u64, count: u64) -> Vec<Create> {
    let now = runtime.now();
    let one = |number: u64| {
        let when = match number % 4 {
            0 => When::every(Duration::from_secs(1)),
            _ => When::At(now + Duration::from_millis(sim.draw(|random| random.below(3_000)))),
        };
        let spec = sim.draw(|random| user::spec(random, now));
        request(owner, format!("h{owner}-{number}"), when, spec)
    };
    (0..count).map(one).collect()
}

fn quiet_requests(sim: &Handle, runtime: &Runtime) -> Vec<Create> {
    let now = runtime.now();
    let load_millis = u64::try_from(LOAD_TIME.as_millis()).expect("20 s in milliseconds fit into `u64`");
    let one = |number: u64| {
        let when = match number {
            0..RECURRING => When::every(Duration::from_secs(1 + number)),
            _ => When::At(now + Duration::from_millis(2_000 + sim.draw(|random| random.below(load_millis - 2_000)))),
        };
        let spec = sim.draw(|random| user::spec(random, now));
        request(u64::from(QUIET.0), format!("q{number}"), when, spec)
    };
    (0..RECURRING + ONE_SHOT).map(one).collect()
}

/// Asserts that no occurrence of the quiet tenant was missed.
async fn check_missed(scheduler: &Scheduler, created: &[Arc<Schedule>]) {
    for schedule in created {
        let runs = scheduler.runs(QUIET, schedule.id.clone(), None, RUNS_MAX).await;
        let runs = runs.expect("the store without faults never fails").expect("the schedule exists");
        let missed = runs.iter().filter(|run| matches!(run.state, RunState::Missed { .. })).count();
        assert_eq!(missed, 0, "missed: {missed} runs of {}", schedule.id);
    }
}

/// Receiver that responds slowly to the hostile tenants, and records the first attempts of the quiet tenant.
struct Receiver {
    sim: Handle,
    runtime: Runtime,
    started: Mutex<BTreeMap<(ScheduleId, Timestamp), Timestamp>>,
}

impl Receiver {
    fn new(sim: &Handle, runtime: &Runtime) -> Self {
        Receiver { sim: sim.clone(), runtime: runtime.clone(), started: Mutex::default() }
    }

    /// Asserts that the quiet tenant got a timely callback for each occurrence of `created`.
    fn check_started(&self, created: &[Arc<Schedule>]) {
        let started = self.started.lock().expect("no holder of this lock panics").clone();
        let late = started.iter().filter(|((_, nominal), at)| at.since(*nominal) > LATENESS_MAX).count();
        assert_eq!(
            late,
            0,
            "starved: {late} of {} callbacks of the quiet tenant were late; all start times: {started:?}",
            started.len()
        );
        for schedule in created {
            let expected = match schedule.spec.when {
                When::Every { interval, .. } => LOAD_TIME.as_millis() / interval.as_millis(),
                When::At(_) | When::Cron(_) => 1,
            };
            let found = started.keys().filter(|(id, _)| *id == schedule.id).count();
            assert!(
                found as u128 >= expected,
                "lost: only {found} of {expected} occurrences of the schedule {} started",
                schedule.id
            );
        }
    }
}

impl Deliver for Receiver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let is_quiet = delivery.tenant.id == QUIET;
        if is_quiet {
            let key = (delivery.schedule.id.clone(), delivery.occurrence.nominal);
            let mut started = self.started.lock().expect("no holder of this lock panics");
            started.entry(key).or_insert(delivery.started_at);
        }
        let millis = self.sim.draw(|random| if is_quiet { random.below(60) } else { 1_000 + random.below(39_000) });
        let runtime = self.runtime.clone();
        Box::pin(async move {
            runtime.sleep(Duration::from_millis(millis)).await;
            Some(Delivered { result: AttemptResult::Answered(200), retry_after: None })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::run_seeds;

    #[test]
    fn hostile_tenants_do_not_delay_a_quiet_tenant() {
        run_seeds("tenants", 0..40, super::run);
    }
}
