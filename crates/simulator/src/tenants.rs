//! Scenario with hostile tenants. They attack the service while one quiet tenant uses a small part of it.
//!
//! The hostile tenants have no quotas, and they have more due rows than the service has slots. Each of them attacks in
//! one way ([`Attack`]). With some seeds, one of them also fills the disk of the embedded store. The scenario checks
//! that each callback of the quiet tenant starts on time, that none of its occurrences is missed, and that a
//! cancellation succeeds even if the disk is full. With some seeds, the service has too few slots for the number of
//! tenants, so the callbacks of the quiet tenant may be late.
//!
//! Out of scope: failures of the member and of its store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{
    AttemptResult, RunState, Schedule, ScheduleId, SigningSecret, Spec, Target, Tenant, TenantId, Timestamp, When,
};
use futures_util::future::BoxFuture;
use runtime::{Runtime, TaskSet};
use scheduler::{
    CONNECTION_WAIT_MAX, CancelResponse, Create, Deliver, Delivered, Delivery, Options, Registry, Scheduler,
};
use store::memory::{MemoryOptions, MemoryStore};
use store::{Store, StoreError};
use store_embedded::{EmbeddedStore, IndexKind};
use tokio::sync::Semaphore;

use crate::{Handle, Simulation, Suite, user};

/// Length of the time in which the schedules of all tenants become due.
const LOAD_TIME: Duration = Duration::from_secs(20);
/// Longest permitted time from the due instant of an occurrence of the quiet tenant to the start of its callback.
const LATENESS_MAX: Duration = Duration::from_millis(100);
const QUIET: TenantId = TenantId(1);
/// URLs of one target, in several spellings. The quiet tenant uses the first URL, and the hostile tenants with
/// [`Attack::SharedTarget`] use all URLs.
const SHARED_URLS: [&str; 4] =
    ["http://shared.test/", "HTTP://shared.test:80/a", "http://SHARED.test:0080", "http://shared.test./?b"];
/// Size of the payload of each schedule that fills the disk.
const FILLING_PAYLOAD: usize = 16 << 10;
/// Capacity of the disk that a hostile tenant fills.
const DISK_BYTES: u64 = 24 << 20;
/// Number of free bytes below which the store rejects new schedules. The simulated index writes all its rows at each
/// flush, so this number must be larger than the rest of [`DISK_BYTES`].
const FREE_BYTES_FLOOR: u64 = 16 << 20;
/// Number of slots for each tenant with which a tenant with few slots gets a slot at once. docs/limits.md states the same
/// ratio: 4,096 slots for 500 tenants.
const SLOTS_PER_TENANT: u64 = 8;
/// Number of the quiet tenant's recurring schedules.
const RECURRING: u64 = 3;
/// Number of the quiet tenant's one-shot schedules.
const ONE_SHOT: u64 = 30;
const RUNS_MAX: usize = 1_000;

/// Attack of one hostile tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attack {
    /// The targets respond after up to 40 s, so the attempts occupy slots.
    Slots,
    /// The targets permit few streams, so the attempts wait for connections.
    Streams,
    /// The tenant calls the target of the quiet tenant with several spellings of the URL, and each attempt fails.
    SharedTarget,
}

pub(crate) fn add_to(suite: Suite) -> Suite {
    suite.with("tenants", run)
}

/// Runs the scenario once, with the seed of `sim`.
///
/// # Panics
/// Panics if a callback of the quiet tenant was late, if an occurrence was missed or lost, or if the store rejected a
/// cancellation.
pub fn run(sim: &Simulation) {
    sim.set_time_limit(Duration::from_secs(600));
    let handle: Handle = (**sim).clone();
    sim.run_until(async move {
        let runtime = handle.member("a");
        let fills_disk = handle.draw(|random| random.below(3) == 0);
        let tasks = TaskSet::new(&runtime);
        if fills_disk {
            handle.volume("a").set_capacity(DISK_BYTES);
        }
        let store = open(&runtime, &tasks, fills_disk).await;
        let hostile = handle.draw(|random| 1 + random.below(12));
        let has_enough_slots = handle.draw(|random| random.below(4) > 0);
        let enough = (SLOTS_PER_TENANT * (1 + hostile)).max(60);
        let slots =
            handle.draw(|random| if has_enough_slots { enough + random.below(400) } else { 1 + random.below(8) });
        for id in 1..=1 + hostile {
            user::put_tenant(&*store, tenant(id)).await.expect("the store without faults never fails");
        }
        let receiver = Arc::new(Receiver::new(&handle, &runtime, hostile));
        let slots = usize::try_from(slots).expect("a number below 1,000 fits into usize");
        let options = Options { in_flight_max: slots, in_flight_per_target: slots, ..Options::default() };
        let scheduler = Scheduler::start(&runtime, store.clone(), receiver.clone(), options, Registry::default()).await;
        let scheduler = scheduler.expect("a scheduler over a store without faults starts");

        let keys = 2 * slots as u64 / hostile + 1;
        for id in 2..=1 + hostile {
            let attack = receiver.attack(id);
            create(&scheduler, hostile_requests(&handle, &runtime, id, attack, keys)).await;
        }
        handle.outside().sleep(Duration::from_secs(3)).await;
        let created = create(&scheduler, quiet_requests(&handle, &runtime)).await;
        if fills_disk {
            fill_disk(&handle, &runtime, &scheduler).await;
        } else {
            handle.outside().sleep(LOAD_TIME).await;
        }
        handle.outside().sleep(Duration::from_secs(2)).await;
        check_missed(&scheduler, &created).await;
        if has_enough_slots {
            receiver.check_started(&created);
        }
        // The attempt of the latest occurrence may be in flight. Then the cancellation is too late for this occurrence.
        let cancelled = scheduler.cancel(QUIET, created[0].id.clone(), None).await;
        assert!(
            matches!(cancelled, Ok(CancelResponse::Cancelled | CancelResponse::TooLate)),
            "the store rejected a cancellation: {cancelled:?}"
        );
        scheduler.stop().await;
        drop(store);
    });
}

/// Returns a store in memory, or the embedded store on a small disk.
async fn open(runtime: &Runtime, tasks: &TaskSet, is_on_disk: bool) -> Arc<dyn Store> {
    if !is_on_disk {
        return Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
    }
    let options = store_embedded::Options {
        index: IndexKind::Map,
        journal: store_embedded::journal::Options {
            segment_bytes: 512 << 10,
            entry_bytes_max: 128 << 10,
            batch_bytes_max: 128 << 10,
            ..store_embedded::journal::Options::default()
        },
        entry_bytes: 64 << 10,
        free_bytes_floor: FREE_BYTES_FLOOR,
        checkpoint_bytes: 1 << 20,
        ..store_embedded::Options::default()
    };
    let store = EmbeddedStore::open(runtime, tasks, Path::new("/data"), options).await;
    Arc::new(store.expect("a store opens on an empty disk without faults"))
}

/// Creates large schedules of one hostile tenant for the duration `LOAD_TIME`, so that the disk becomes full.
async fn fill_disk(sim: &Handle, runtime: &Runtime, scheduler: &Scheduler) {
    let spec = sim.draw(|random| user::http_spec(random, runtime.now()));
    let spec = Spec { payload: vec![b'1'; FILLING_PAYLOAD].into(), ..spec };
    let far = When::At(runtime.now() + Duration::from_secs(86_400));
    let (until, mut rejected) = (sim.elapsed() + LOAD_TIME, 0);
    for number in 0_u64.. {
        if sim.elapsed() >= until {
            break;
        }
        match scheduler.create(vec![request(2, format!("filling-{number}"), far.clone(), spec.clone())]).await {
            Ok(_) => {}
            Err(StoreError::Full(_)) => {
                rejected += 1;
                sim.outside().sleep(Duration::from_millis(sim.draw(|random| 1 + random.below(500)))).await;
            }
            Err(error) => panic!("a store without faults rejects a create only if the disk is full: {error}"),
        }
    }
    assert!(rejected > 0, "the schedules of the hostile tenant fill the disk, so the store rejects a create request");
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
    let id = ScheduleId::new(&id).expect("a schedule id may contain letters, digits and `-`");
    Create { tenant: Arc::new(tenant(owner)), id: Some(id), incarnation: None, spec: Spec { when, ..spec }, by: None }
}

/// Returns `count` create requests of one hostile tenant. The schedules are due soon, and one in four is recurring.
fn hostile_requests(sim: &Handle, runtime: &Runtime, owner: u64, attack: Attack, count: u64) -> Vec<Create> {
    let now = runtime.now();
    let one = |number: u64| {
        let when = match number % 4 {
            0 => When::every(Duration::from_secs(1)),
            _ => When::At(now + Duration::from_millis(sim.draw(|random| random.below(3_000)))),
        };
        let mut spec = sim.draw(|random| user::http_spec(random, now));
        if attack == Attack::SharedTarget {
            let Target::Http(http) = &mut spec.target else { panic!("the target is an HTTP target") };
            http.url = SHARED_URLS[sim.draw(|random| random.index(SHARED_URLS.len()))].to_owned();
        }
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
        let mut spec = sim.draw(|random| user::http_spec(random, now));
        let Target::Http(http) = &mut spec.target else { panic!("the target is an HTTP target") };
        SHARED_URLS[0].clone_into(&mut http.url);
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

/// Receiver that responds to the hostile tenants according to their attacks, and records the first attempts of the quiet
/// tenant.
struct Receiver {
    sim: Handle,
    runtime: Runtime,
    /// Attack of each hostile tenant, and the streams that its target permits.
    attacks: BTreeMap<TenantId, (Attack, Arc<Semaphore>)>,
    started: Mutex<BTreeMap<(ScheduleId, Timestamp), Timestamp>>,
}

impl Receiver {
    fn new(sim: &Handle, runtime: &Runtime, hostile: u64) -> Self {
        let attack_of = |id: u64| {
            let attack = [Attack::Slots, Attack::Streams, Attack::SharedTarget][sim.draw(|random| random.index(3))];
            (tenant(id).id, (attack, Arc::new(Semaphore::new(1 + sim.draw(|random| random.index(10))))))
        };
        let attacks = (2..=1 + hostile).map(attack_of).collect();
        Receiver { sim: sim.clone(), runtime: runtime.clone(), attacks, started: Mutex::default() }
    }

    fn attack(&self, id: u64) -> Attack {
        self.attacks[&tenant(id).id].0
    }

    /// Asserts that the callbacks of the schedules in `created` started on time, and that none of them is missing.
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
        let hostile = self.attacks.get(&delivery.tenant.id).cloned();
        if hostile.is_none() {
            let key = (delivery.schedule.id.clone(), delivery.occurrence.nominal);
            let mut started = self.started.lock().expect("no holder of this lock panics");
            started.entry(key).or_insert(delivery.started_at);
        }
        let millis = self.sim.draw(|random| match &hostile {
            None => random.below(60),
            Some((Attack::SharedTarget, _)) => random.below(500),
            Some((Attack::Slots | Attack::Streams, _)) => 1_000 + random.below(39_000),
        });
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let mut _stream = None;
            if let Some((Attack::Streams, streams)) = &hostile {
                let wait = runtime.timeout(CONNECTION_WAIT_MAX, streams.acquire()).await;
                let Some(stream) = wait else {
                    return Some(Delivered { result: AttemptResult::TimedOut, retry_after: None, excerpt: None });
                };
                _stream = Some(stream.expect("no code closes the semaphore"));
            }
            runtime.sleep(Duration::from_millis(millis)).await;
            let status = if matches!(hostile, Some((Attack::SharedTarget, _))) { 503 } else { 200 };
            Some(Delivered { result: AttemptResult::Answered(status), retry_after: None, excerpt: None })
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
