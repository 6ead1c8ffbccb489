//! Tests of the history sweep. The sweep deletes old runs and schedules, and keeps all other rows.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Facet, Hour, Incarnation, LabelKey, Occurrence, PollerId, Quota, Revision, RunFilter, RunState,
    Schedule, ScheduleId, SigningSecret, Status, Tenant, TenantId, Term, Timestamp,
};
use runtime::Runtime;
use simulator::{Incident, Simulation, run_seeds};
use store::{
    Change, CountRead, DueBound, DueRead, Insert, ListBy, ListRead, Order, OwnerWrite, Positions, RunRead, Store, Usage,
};
use store_embedded::{IndexKind, Options};

use crate::support::{Home, POLLER, TENANT, one_shot, small};

const HISTORY: Duration = Duration::from_secs(100);
const PERIOD: Duration = Duration::from_secs(10);

fn options() -> Options {
    Options { history: HISTORY, history_period: PERIOD, ..small(IndexKind::Map) }
}

/// Store with one poller, and the term of the poller's owner.
struct Owned {
    runtime: Runtime,
    home: Home,
    term: Term,
}

impl Owned {
    async fn open(runtime: &Runtime) -> Self {
        Owned::open_with(runtime, options()).await
    }

    async fn open_with(runtime: &Runtime, options: Options) -> Self {
        let home = Home::open(runtime, "/data".as_ref(), options).await;
        let term = home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        Owned { runtime: runtime.clone(), home, term }
    }

    /// Closes the store and opens it again.
    async fn reopen(self) -> Self {
        let runtime = self.runtime.clone();
        self.home.close().await;
        Owned::open(&runtime).await
    }

    async fn write(&self, change: Change) {
        let write = OwnerWrite { term: self.term, poller: POLLER, change };
        self.home.store.write(vec![write]).await.unwrap().remove(0).unwrap();
    }

    async fn usage(&self) -> Usage {
        self.home.store.usage(vec![TENANT]).await.unwrap()[0]
    }

    /// Inserts a one-shot schedule that is due now.
    async fn insert(&self, number: u64, id: Option<&str>) -> Insert {
        let insert = one_shot(number, self.runtime.now(), id, b"x");
        self.home.store.insert(vec![insert.clone()]).await.unwrap();
        insert
    }

    async fn write_run(&self, insert: &Insert, state: RunState, ends: bool) {
        let run = Run { tenant: TENANT, occurrence: insert.due.occurrence, state, attempts: Vec::new() };
        self.write(Change::Run { run, then: None, ends, origin: None }).await;
    }

    /// Waits for the duration `time`. During this wait, the owner advances the poller's positions with the clock, so
    /// that every due row is at or before `done`.
    async fn pass(&self, time: Duration) {
        let step = PERIOD / 2;
        for _ in 0..time.as_millis() / step.as_millis() {
            let now = self.runtime.now();
            self.write(Change::Positions(Positions { closed: now, done: now })).await;
            self.runtime.sleep(step).await;
        }
    }

    async fn find(&self, of: &Insert) -> Option<Arc<Schedule>> {
        self.home.store.load(vec![of.schedule.incarnation]).await.unwrap().remove(0)
    }

    async fn named(&self, of: &Insert) -> Option<Arc<Schedule>> {
        self.home.store.get(vec![(TENANT, of.schedule.id.clone())]).await.unwrap().remove(0)
    }

    /// Returns the low 16 bits of the incarnation of each schedule that the store lists.
    async fn listed(&self, by: ListBy) -> Vec<u128> {
        let read = ListRead { tenant: TENANT, by, order: Order::Oldest, after: None, limit: 100 };
        let page = self.home.store.list(read).await.unwrap();
        page.incarnations.into_iter().map(|incarnation| incarnation.0 & 0xffff).collect()
    }

    async fn run(&self, of: Occurrence) -> Option<Run> {
        self.home.store.find_runs(vec![of]).await.unwrap().remove(0)
    }
}

impl Owned {
    /// Returns the occurrences of the due rows after `done`.
    async fn due(&self) -> Vec<Occurrence> {
        let done = self.home.store.positions(vec![POLLER]).await.unwrap()[0].done;
        let read = DueRead { poller: POLLER, after: DueBound::Instant(done), until: self.runtime.now(), limit: 10 };
        let page = self.home.store.due(vec![read]).await.unwrap().remove(0);
        page.keys.iter().map(|key| key.occurrence).collect()
    }
}

/// Runs the test `test` in two simulations with different seeds.
fn simulate(test: impl AsyncFn(Runtime)) {
    for seed in 0..2 {
        let sim = Simulation::new(seed);
        sim.run_until(async { test(sim.member("a")).await });
    }
}

#[test]
fn history_sweep_deletes_old_past_timings() {
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let insert = owned.insert(1, Some("a")).await;
        let revisions = async |owned: &Owned| {
            let read = owned.home.store.past_timings(insert.schedule.incarnation, Revision(0), 100).await.unwrap();
            read.iter().map(|past| past.edition.revision.0).collect::<Vec<_>>()
        };
        let put = async |owned: &Owned, number: u64| {
            owned.write(Change::Put(one_shot(number, runtime.now(), Some("a"), b"x"))).await;
        };
        put(&owned, 2).await;
        owned.pass(HISTORY / 2).await;
        put(&owned, 3).await;
        assert_eq!(revisions(&owned).await, [0, 1]);
        owned.pass(HISTORY / 2 + PERIOD * 2).await;
        assert_eq!(revisions(&owned).await, [1], "an active schedule loses its old past timings");
        owned.write(Change::Cancel(insert.schedule.incarnation)).await;
        let owned = owned.reopen().await;
        owned.pass(HISTORY / 2 + PERIOD * 2).await;
        assert_eq!(revisions(&owned).await, [2]);
        owned.pass(HISTORY).await;
        assert_eq!((revisions(&owned).await, owned.find(&insert).await), (vec![], None));
        assert_eq!(owned.usage().await, Usage::default());
        owned.home.close().await;
    });
}

#[test]
fn history_sweep_deletes_old_schedules_and_keeps_other_schedules() {
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let fired = owned.insert(1, Some("fired")).await;
        owned.write_run(&fired, RunState::Succeeded, true).await;
        let dead = owned.insert(2, Some("dead")).await;
        owned.write_run(&dead, RunState::Failed, true).await;
        let cancelled = owned.insert(3, None).await;
        owned.write(Change::Cancel(cancelled.schedule.incarnation)).await;
        let retrying = owned.insert(4, Some("retrying")).await;
        owned.write_run(&retrying, RunState::Retrying, false).await;
        let waiting = owned.insert(5, Some("waiting")).await;
        owned.pass(HISTORY - PERIOD).await;
        assert!(owned.named(&fired).await.is_some(), "the schedule ended less than HISTORY ago");
        let late = owned.insert(6, Some("late")).await;
        owned.write_run(&late, RunState::Succeeded, true).await;
        owned.pass(PERIOD * 3).await;

        // The second flush drops the rows that the index removed before the first one.
        let owned = owned.reopen().await.reopen().await;
        let usage = owned.usage().await;
        assert_eq!((usage.active, usage.ended, usage.cancelled), (2, 1, 0));
        for gone in [&fired, &dead, &cancelled] {
            assert_eq!((owned.find(gone).await, owned.named(gone).await), (None, None));
            assert_eq!(owned.run(gone.due.occurrence).await, None);
        }
        assert_eq!(owned.home.store.dead_letters(TENANT, None, 10).await.unwrap(), []);
        let read = RunRead {
            tenant: TENANT,
            schedules: None,
            from: Timestamp::MIN,
            until: Timestamp::MAX,
            filter: RunFilter::default(),
            order: Order::Oldest,
            after: None,
            limit: 10,
        };
        let runs = owned.home.store.list_runs(read).await.unwrap();
        assert_eq!((runs.runs.len(), runs.examined), (2, 2), "the sweep deletes the rows that list deleted runs");
        assert_eq!(owned.listed(ListBy::All).await, [4, 5, 6], "deleted schedules are not listed");
        assert_eq!(owned.listed(ListBy::Label(LabelKey::of("team", "a"))).await, [4, 5, 6]);
        for stays in [&retrying, &waiting, &late] {
            assert!(owned.find(stays).await.is_some() && owned.named(stays).await.is_some());
        }
        assert!(owned.run(retrying.due.occurrence).await.is_some() && owned.run(late.due.occurrence).await.is_some());
        let again = owned.insert(7, Some("fired")).await;
        assert_eq!(owned.named(&again).await.map(|found| found.incarnation), Some(again.schedule.incarnation));
        owned.home.close().await;
    });
}

/// Returns the hours for which the store has counts. They are the same for each facet.
async fn counted_hours(owned: &Owned) -> Vec<Hour> {
    let mut hours: Vec<Vec<Hour>> = Vec::new();
    for facet in Facet::ALL {
        let read = CountRead { tenant: TENANT, facet, from: Hour(0), until: Hour::of(Timestamp::MAX) };
        let page = owned.home.store.counts(read).await.unwrap();
        hours.push(page.hours.into_iter().map(|(hour, _)| hour).collect());
    }
    assert!(hours.iter().all(|of_facet| *of_facet == hours[0]), "{hours:?}");
    hours.remove(0)
}

/// The sweep needs several journal entries.
#[test]
fn history_sweep_deletes_counts_of_many_hours() {
    const HOURS: u16 = 300;
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let insert = owned.insert(1, None).await;
        let present = Hour::of(insert.due.occurrence.nominal);
        for number in 1..=i64::from(HOURS) {
            let nominal = Hour(present.0 - number).start();
            let occurrence = Occurrence { nominal, ..insert.due.occurrence };
            let run = Run { tenant: TENANT, occurrence, state: RunState::Succeeded, attempts: Vec::new() };
            owned.write(Change::Run { run, then: None, ends: false, origin: None }).await;
        }
        assert_eq!(counted_hours(&owned).await.len(), usize::from(HOURS), "the counts are in memory");
        let owned = owned.reopen().await;
        assert_eq!(counted_hours(&owned).await.len(), usize::from(HOURS), "the counts are in the index");
        owned.pass(HISTORY + PERIOD * 3).await;
        assert_eq!(counted_hours(&owned).await, []);
        let owned = owned.reopen().await;
        assert_eq!(counted_hours(&owned).await, []);
        owned.home.close().await;
    });
}

#[test]
fn history_sweep_deletes_old_counts() {
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let hours = counted_hours;
        let hour_of = |insert: &Insert| Hour::of(insert.due.occurrence.nominal);
        let first = owned.insert(1, None).await;
        owned.write_run(&first, RunState::Succeeded, true).await;
        let owned = owned.reopen().await;
        assert_eq!(hours(&owned).await, [hour_of(&first)]);
        owned.pass(HISTORY - PERIOD).await;
        assert_eq!(hours(&owned).await, [hour_of(&first)], "the hour ended less than HISTORY ago");
        owned.pass(Duration::from_secs(3_600)).await;
        let second = owned.insert(2, None).await;
        owned.write_run(&second, RunState::Succeeded, true).await;
        owned.pass(PERIOD * 3).await;
        assert_eq!(hours(&owned).await, [hour_of(&second)]);
        owned.pass(HISTORY + Duration::from_secs(3_600) + PERIOD * 5).await;
        let owned = owned.reopen().await;
        assert_eq!((hours(&owned).await, owned.usage().await), (Vec::new(), Usage::default()));
        owned.home.close().await;
    });
}

#[test]
fn history_sweep_keeps_a_new_schedule_that_reuses_an_old_id() {
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let first = owned.insert(1, Some("name")).await;
        for number in [2, 3] {
            let put = one_shot(number, owned.runtime.now(), Some("name"), b"other");
            owned.write(Change::Put(put)).await;
        }
        assert_eq!(owned.find(&first).await.map(|found| found.revision.0), Some(2));
        owned.write(Change::Cancel(first.schedule.incarnation)).await;
        owned.pass(PERIOD * 2).await;
        let before_second = owned.usage().await;
        assert_eq!((before_second.active, before_second.cancelled), (0, 1));
        let second = owned.insert(4, Some("name")).await;
        let bytes = owned.usage().await.bytes - before_second.bytes;
        owned.pass(HISTORY + PERIOD * 2).await;
        assert_eq!(owned.find(&first).await, None);
        assert_eq!(owned.named(&second).await.map(|found| found.incarnation), Some(second.schedule.incarnation));
        let rows = owned.home.store.verify().await.unwrap().rows;
        assert_eq!(rows[0], 1, "one schedule has one row: {rows:?}");
        assert_eq!(owned.usage().await, Usage { active: 1, bytes, ..Usage::default() });
        owned.home.close().await;
    });
}

#[test]
fn history_sweep_keeps_schedules_that_still_have_work() {
    simulate(async |runtime| {
        let owned = Owned::open(&runtime).await;
        let behind = owned.insert(1, Some("behind")).await;
        owned.write_run(&behind, RunState::Succeeded, true).await;
        let redriven = owned.insert(2, Some("redriven")).await;
        owned.write_run(&redriven, RunState::Failed, true).await;
        owned.runtime.sleep(HISTORY + PERIOD * 3).await;
        assert!(owned.named(&behind).await.is_some(), "the schedule's poller is not done with that time");
        assert!(
            owned.run(behind.due.occurrence).await.is_some(),
            "without the run, an owner that restarts would fire the row again"
        );

        let owned = owned.reopen().await;
        // The owner redrives a dead letter (a failed run) shortly before the sweep would delete it.
        let other = owned.insert(3, Some("other")).await;
        owned.write_run(&other, RunState::Failed, true).await;
        owned.pass(HISTORY - PERIOD * 2).await;
        let mut of = other.due.occurrence;
        of.replay = 1;
        let due = DueKey { position: owned.runtime.now() + PERIOD * 4, occurrence: of, ..other.due };
        owned.write(Change::Redrive { of: other.due.occurrence, due }).await;
        owned.pass(PERIOD * 4).await;
        assert!(owned.named(&behind).await.is_none(), "the schedule's poller is done now");
        assert_eq!(owned.named(&other).await.map(|found| found.status), Some(Status::Ended));
        owned.home.close().await;
    });
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const OTHER: PollerId = PollerId { tenant: TenantId(8), generation: 0, number: 3 };

/// Store whose tenants without a class retain their history for three days.
struct Classes {
    owned: Owned,
    other: Term,
}

impl Classes {
    async fn open(runtime: &Runtime) -> Self {
        Classes::open_with(runtime, HOUR).await
    }

    async fn open_with(runtime: &Runtime, history_period: Duration) -> Self {
        let options = Options { history: DAY * 3, history_period, free_bytes_period: HOUR, ..small(IndexKind::Map) };
        let owned = Owned::open_with(runtime, options).await;
        for number in [TENANT, OTHER.tenant] {
            let secret = SigningSecret::first(vec![1; 24], runtime.now());
            let tenant = Tenant::new(number, &format!("tenant-{}", number.0), 4, secret);
            let entry = Audit::of(&tenant, runtime.now(), "test", "tenant.create", "");
            owned.home.store.put_tenant(tenant, entry).await.unwrap().unwrap();
        }
        let other = owned.home.store.take(vec![OTHER.shard()]).await.unwrap()[0];
        Classes { owned, other }
    }

    /// Changes the class of [`TENANT`].
    async fn retain(&self, days: Option<u32>) {
        let tenants = self.owned.home.store.tenants().await.unwrap();
        let mut tenant = tenants.into_iter().find(|tenant| tenant.id == TENANT).unwrap();
        tenant.version += 1;
        tenant.quotas.set(Quota::RetentionDays, days);
        let entry = Audit::of(&tenant, self.owned.runtime.now(), "test", "quotas.update", "");
        self.owned.home.store.put_tenant(tenant, entry).await.unwrap().unwrap();
    }

    /// Inserts a schedule of [`TENANT`] that fires now and ends.
    async fn fire(&self, number: u64) -> Insert {
        let insert = self.owned.insert(number, None).await;
        self.owned.write_run(&insert, RunState::Succeeded, true).await;
        insert
    }

    /// Does the same as [`Classes::fire`]. The schedule's incarnation has the present time.
    async fn fire_created_now(&self, number: u64) -> Insert {
        let now = self.owned.runtime.now();
        let mut insert = one_shot(number, now, None, b"x");
        let incarnation = Incarnation::new(now, u128::from(number));
        let schedule = (*insert.schedule).clone();
        let id = ScheduleId::from_incarnation(incarnation);
        insert.schedule = Arc::new(Schedule { incarnation, id, ..schedule });
        insert.due.occurrence.incarnation = incarnation;
        self.owned.home.store.insert(vec![insert.clone()]).await.unwrap();
        self.owned.write_run(&insert, RunState::Succeeded, true).await;
        insert
    }

    /// Inserts a schedule of the tenant of [`OTHER`] that fires now and ends.
    async fn fire_other(&self, number: u64) -> Insert {
        let mut insert = one_shot(number, self.owned.runtime.now(), None, b"x");
        let schedule = (*insert.schedule).clone();
        insert.schedule = Arc::new(Schedule { tenant: OTHER.tenant, poller: OTHER, ..schedule });
        self.owned.home.store.insert(vec![insert.clone()]).await.unwrap();
        let occurrence = insert.due.occurrence;
        let run = Run { tenant: OTHER.tenant, occurrence, state: RunState::Succeeded, attempts: Vec::new() };
        let change = Change::Run { run, then: None, ends: true, origin: None };
        let write = OwnerWrite { term: self.other, poller: OTHER, change };
        self.owned.home.store.write(vec![write]).await.unwrap().remove(0).unwrap();
        insert
    }

    /// Waits for the duration `time`, while the owners advance the positions of `pollers`.
    async fn pass(&self, time: Duration, pollers: &[PollerId]) {
        let until = self.owned.runtime.now() + time;
        while self.owned.runtime.now() < until {
            let now = self.owned.runtime.now();
            for poller in pollers.iter().copied() {
                let term = if poller == OTHER { self.other } else { self.owned.term };
                let change = Change::Positions(Positions { closed: now, done: now });
                let write = OwnerWrite { term, poller, change };
                self.owned.home.store.write(vec![write]).await.unwrap().remove(0).unwrap();
            }
            self.owned.runtime.sleep(HOUR / 2).await;
        }
    }

    /// Returns true if both the run and the schedule exist, and false if neither exists.
    async fn has(&self, insert: &Insert) -> bool {
        let has_run = self.owned.run(insert.due.occurrence).await.is_some();
        assert_eq!(self.owned.find(insert).await.is_some(), has_run);
        has_run
    }
}

#[test]
fn history_sweep_deletes_runs_by_the_class_of_their_tenant() {
    let sim = Simulation::new(1);
    sim.set_time_limit(DAY * 30);
    sim.run_until(async {
        let classes = Classes::open(&sim.member("a")).await;
        classes.retain(Some(1)).await;
        let both = [POLLER, OTHER];
        let (first, other) = (classes.fire(1).await, classes.fire_other(2).await);
        let cancelled = classes.owned.insert(3, None).await;
        classes.owned.write(Change::Cancel(cancelled.schedule.incarnation)).await;
        classes.pass(DAY - HOUR, &both).await;
        assert!(classes.has(&first).await, "the run is less than a day old");
        let second = classes.fire_created_now(4).await;
        classes.pass(HOUR * 4, &both).await;
        assert!(!classes.has(&first).await, "the class of the tenant is one day");
        assert!(classes.has(&second).await && classes.has(&other).await);
        assert!(classes.owned.find(&cancelled).await.is_none(), "the class applies to cancelled schedules");
        classes.pass(DAY * 2, &both).await;
        assert!(!classes.has(&second).await, "the class also applies to a schedule that the sweep first skipped");
        assert!(!classes.has(&other).await, "the option of the store applies to a tenant without a class");
        classes.owned.home.close().await;
    });
}

#[test]
fn new_class_applies_to_stored_runs() {
    let sim = Simulation::new(2);
    sim.set_time_limit(DAY * 30);
    sim.run_until(async {
        let classes = Classes::open(&sim.member("a")).await;
        let both = [POLLER, OTHER];
        let run = classes.fire(1).await;
        classes.pass(DAY * 2, &both).await;
        classes.retain(Some(7)).await;
        classes.pass(DAY * 4, &both).await;
        assert!(classes.has(&run).await, "a longer class retains the run from now on");
        classes.retain(Some(1)).await;
        classes.pass(HOUR * 3, &both).await;
        assert!(!classes.has(&run).await, "a shorter class deletes the run in the next sweep");
        let run = classes.fire(2).await;
        classes.retain(Some(7)).await;
        classes.pass(DAY * 6 + HOUR * 22, &both).await;
        assert!(classes.has(&run).await);
        classes.pass(HOUR * 4, &both).await;
        assert!(!classes.has(&run).await, "the store keeps clock records that are older than its option");
        classes.owned.home.close().await;
    });
}

#[test]
fn longer_class_applies_to_a_sweep_in_progress() {
    const MINUTE: Duration = Duration::from_secs(60);
    const SCHEDULES: u64 = 1_500;
    let sim = Simulation::new(4);
    sim.set_time_limit(DAY * 30);
    sim.run_until(async {
        let classes = Classes::open_with(&sim.member("a"), MINUTE).await;
        let (owned, runtime) = (&classes.owned, &classes.owned.runtime);
        classes.retain(Some(1)).await;
        for number in 0..SCHEDULES {
            classes.fire(number).await;
        }
        runtime.sleep(DAY - MINUTE * 5).await;
        let now = runtime.now();
        owned.write(Change::Positions(Positions { closed: now, done: now })).await;
        assert_eq!(owned.usage().await.ended, SCHEDULES);
        while owned.usage().await.ended == SCHEDULES {
            runtime.sleep(Duration::from_millis(1)).await;
        }
        classes.retain(Some(90)).await;
        runtime.sleep(MINUTE * 5).await;
        let kept = owned.usage().await.ended;
        assert!((1..SCHEDULES).contains(&kept), "the sweep ends after the page in progress: {kept}");
        classes.retain(Some(1)).await;
        runtime.sleep(MINUTE * 5).await;
        assert_eq!(owned.usage().await.ended, 0);
        classes.owned.home.close().await;
    });
}

/// An owner that restarts reads the due rows after `done`. Without the run record, it would fire the occurrence again.
#[test]
fn class_of_a_day_keeps_the_runs_of_a_poller_that_lags() {
    let sim = Simulation::new(3);
    sim.set_time_limit(DAY * 30);
    sim.run_until(async {
        let classes = Classes::open(&sim.member("a")).await;
        classes.retain(Some(1)).await;
        let (lagging, other) = (classes.fire(1).await, classes.fire_other(2).await);
        classes.pass(DAY * 2, &[OTHER]).await;
        assert!(classes.has(&lagging).await, "`done` of the poller has not passed the run");
        let due = classes.owned.due().await;
        assert_eq!(due, [lagging.due.occurrence], "an owner that restarts reads the due row");
        classes.pass(HOUR * 3, &[POLLER, OTHER]).await;
        assert!(!classes.has(&lagging).await, "`done` of the poller has passed the run");
        assert!(classes.has(&other).await);
        classes.owned.home.close().await;
    });
}

/// Inserts twenty schedules. Every fourth schedule stays active. The others have fired and ended.
async fn fill(owned: &Owned) -> Vec<Insert> {
    let mut inserted = Vec::new();
    for number in 0..20 {
        let id = (number % 2 == 0).then(|| format!("name-{number}"));
        let insert = owned.insert(number, id.as_deref()).await;
        if number % 4 != 0 {
            owned.write_run(&insert, RunState::Succeeded, true).await;
        }
        inserted.push(insert);
    }
    inserted
}

/// Checks that a schedule and its id both exist or are both deleted, and that no run outlives its schedule. If
/// `has_all_time` is true, also checks that all ended schedules are deleted.
async fn check(owned: &Owned, inserted: &[Insert], has_all_time: bool) {
    let listed = owned.listed(ListBy::All).await;
    for (number, insert) in inserted.iter().enumerate() {
        let found = owned.find(insert).await.is_some();
        assert_eq!(owned.named(insert).await.is_some(), found, "{number}");
        let is_listed = listed.contains(&(insert.schedule.incarnation.0 & 0xffff));
        assert!(
            is_listed == found || is_listed && !has_all_time,
            "{number}: a listing contains all schedules, and in the end no others"
        );
        let is_active = number % 4 == 0;
        let run = owned.run(insert.due.occurrence).await.is_some();
        assert!(found || !run, "{number}: the run outlives its schedule");
        assert!(found || !is_active, "{number}: an active schedule was deleted");
        assert!(is_active || !has_all_time || !found, "{number}: an old schedule was not deleted");
    }
}

#[test]
fn power_loss_never_leaves_a_partly_deleted_schedule() {
    let coverage = run_seeds("store-embedded-history", 0..40, |sim| {
        sim.run_until(async {
            let checkpoint_bytes = [1_000, 4_000, 1 << 30][usize::try_from(sim.seed() % 3).unwrap()];
            let options = Options { memtable_bytes: 1_000, checkpoint_bytes, ..options() };
            let mut a = sim.member("a");
            let (runtime, with) = (a.clone(), options.clone());
            let filled = sim.call("a", async move {
                let owned = Owned::open_with(&runtime, with).await;
                let inserted = fill(&owned).await;
                owned.pass(HISTORY - PERIOD).await;
                owned.home.close().await;
                inserted
            });
            let inserted = filled.await.expect("no crash ends the first life");
            for _ in 0..4 {
                let (runtime, with, of) = (a.clone(), options.clone(), inserted.clone());
                let worked = sim.call("a", async move {
                    let owned = Owned::open_with(&runtime, with).await;
                    check(&owned, &of, false).await;
                    owned.pass(HISTORY).await;
                });
                // The second sweep is the first sweep that finds a clock record older than `HISTORY`. The crash happens
                // at a random time between the first sweep and shortly after the start of the second sweep.
                let wait = Duration::from_micros(10_000_000 + sim.draw(|random| random.below(10_050_000)));
                let _cut = sim.outside().timeout(wait, worked).await;
                if sim.is_up("a") {
                    sim.crash("a");
                }
                a = sim.restart("a");
            }
            let last = sim.call("a", async move {
                let owned = Owned::open_with(&a, options).await;
                check(&owned, &inserted, false).await;
                owned.pass(PERIOD * 3).await;
                check(&owned, &inserted, true).await;
                owned.home.close().await;
            });
            last.await.expect("no crash ends the last life");
        });
    });
    coverage.assert_happened(&[Incident::Crash]);
}
