//! Cases of the audit. One plants 1,000 faults in a store with healthy schedules, and expects exactly these
//! differences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, Author, Difference, DifferenceKind, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision,
    RunState, Schedule, ScheduleId, ShardId, SigningSecret, Tenant, TenantId, Term, Timestamp, When,
};
use store::audit::Pace;
use store::{
    Answer, Cancellation, CancellationResult, Change, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated,
    OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage, WriteRejection, Written,
};

use crate::Subject;
use crate::fixture::{Fixture, TENANT, due_of, insert_in, minute, poller, run_of};
use crate::past_timings::put_of;

/// Number of faults of each kind. There are five kinds.
const FAULTS: usize = 200;
/// Number of healthy schedules with each history. There are ten histories.
const HEALTHY: usize = 20;
const HALF: Duration = Duration::from_secs(30);
/// Position `done` of the pollers without a fault.
const DONE: Timestamp = minute(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    /// Healthy schedule with the history of this number.
    Healthy(usize),
    RemovedOutcome,
    RemovedDueRow,
    OutcomeThatNeverWas,
    Duplicate,
    /// `done` of the poller is at the position of a due row without an outcome.
    AdvancedDone,
}

/// Store without the due rows of some schedules, which cannot read some schedules.
struct Faulty {
    store: Arc<dyn Store>,
    removed: BTreeSet<Incarnation>,
    damaged: BTreeSet<Incarnation>,
}

macro_rules! delegated {
    ($($name:ident($($argument:ident: $type:ty),*) -> $response:ty;)*) => {$(
        fn $name(&self, $($argument: $type),*) -> Answer<'_, $response> {
            self.store.$name($($argument),*)
        }
    )*};
}

impl Store for Faulty {
    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(async move {
            let mut pages = self.store.due(reads).await?;
            for page in &mut pages {
                page.keys.retain(|key| !self.removed.contains(&key.occurrence.incarnation));
            }
            Ok(pages)
        })
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        match incarnations.iter().any(|incarnation| self.damaged.contains(incarnation)) {
            true => Box::pin(async { Err(StoreError::Damaged("the block of a schedule".to_owned())) }),
            false => self.store.load(incarnations),
        }
    }

    fn health(&self) -> Health {
        self.store.health()
    }

    delegated! {
        insert(inserts: Vec<Insert>) -> Vec<Inserted>;
        closed(pollers: Vec<PollerId>) -> Vec<Closed>;
        place(rows: Vec<(PollerId, DueKey)>) -> Vec<Placed>;
        append_cancellations(marks: Vec<Cancellation>) -> Vec<CancellationResult>;
        get(names: Vec<(TenantId, ScheduleId)>) -> Vec<Option<Arc<Schedule>>>;
        list(read: ListRead) -> ListPage;
        list_chosen_ids(read: ChosenIdRead) -> ChosenIdPage;
        find_runs(occurrences: Vec<Occurrence>) -> Vec<Option<Run>>;
        runs(incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Vec<Run>;
        past_timings(incarnation: Incarnation, from: Revision, limit: usize) -> Vec<PastTiming>;
        list_runs(read: RunRead) -> RunList;
        counts(read: CountRead) -> CountPage;
        dead_letters(tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Vec<Run>;
        usage(tenants: Vec<TenantId>) -> Vec<Usage>;
        tenants() -> Vec<Tenant>;
        put_tenant(tenant: Tenant, entry: Audit) -> Result<(), Outdated>;
        audit(tenant: TenantId, after: u64, limit: usize) -> Vec<Audit>;
        take(shards: Vec<ShardId>) -> Vec<Term>;
        positions(pollers: Vec<PollerId>) -> Vec<Positions>;
        insert_log(shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> (Vec<InsertLogEntry>, Cursor);
        cancellations(shards: Arc<[ShardId]>, cursor: Cursor) -> (Vec<(ShardId, Incarnation)>, Cursor);
        write(writes: Vec<OwnerWrite>) -> Vec<Result<Written, WriteRejection>>;
        hand_over(lists: Vec<HandOver>) -> Vec<Result<(), WriteRejection>>;
        handed_over(shards: Vec<ShardId>) -> Vec<Vec<HandedOver>>;
    }
}

/// Pace without rests, of an audit whose stretch starts at this instant.
struct Free(Timestamp);

impl Pace for Free {
    type Turn = ();

    async fn turn(&self, _tenant: TenantId) {}

    async fn pause(&self) {}

    fn now(&self) -> Timestamp {
        minute(8)
    }

    fn start(&self) -> Timestamp {
        self.0
    }
}

/// Schedules of the case, with the writes of their owner.
struct Fleet<'a> {
    fixture: &'a Fixture,
    terms: BTreeMap<ShardId, Term>,
    inserts: Vec<Insert>,
    writes: Vec<OwnerWrite>,
    removed: BTreeSet<Incarnation>,
    expected: BTreeSet<Difference>,
}

impl<'a> Fleet<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        Fleet {
            fixture,
            terms: BTreeMap::new(),
            inserts: Vec::new(),
            writes: Vec::new(),
            removed: BTreeSet::new(),
            expected: BTreeSet::new(),
        }
    }

    async fn write(&mut self, poller: PollerId, change: Change) {
        if !self.terms.contains_key(&poller.shard()) {
            let term = self.fixture.take(poller.shard()).await;
            self.terms.insert(poller.shard(), term);
        }
        self.writes.push(OwnerWrite { term: self.terms[&poller.shard()], poller, change });
    }

    async fn add(&mut self, number: u16, story: Story) {
        let poller = poller(TENANT, if story == Story::AdvancedDone { 3 } else { number % 3 });
        let first = match story {
            Story::Healthy(7) => minute(1_000),
            Story::Healthy(9) => minute(6),
            _ => minute(1),
        };
        let incarnation = self.fixture.numbers.incarnation();
        let mut insert = insert_in(poller, incarnation, ScheduleId::from_incarnation(incarnation), first);
        let schedule = Arc::make_mut(&mut insert.schedule);
        match story {
            Story::Healthy(6..=8) => {}
            Story::Healthy(9) => {
                schedule.spec.when = When::every(2 * HALF);
                (schedule.created_at, schedule.updated_at) = (minute(5), minute(5));
            }
            _ => schedule.spec.when = When::Every { interval: 2 * HALF, since: Some(minute(0)) },
        }
        let schedule = insert.schedule.clone();
        self.inserts.push(insert);
        match story {
            Story::Healthy(history) => self.healthy(&schedule, history).await,
            _ => self.faulty(&schedule, story).await,
        }
    }

    async fn faulty(&mut self, schedule: &Schedule, story: Story) {
        let mut expect = |at: Timestamp, kind| {
            self.expected.insert(Difference { occurrence: due_of(schedule, at).occurrence, kind });
        };
        match story {
            Story::RemovedOutcome => {
                expect(minute(3), DifferenceKind::MissingOutcome);
                self.fire(schedule, [1, 2]).await;
                self.advance(schedule, 4).await;
                self.fire(schedule, [4, 5]).await;
            }
            Story::RemovedDueRow => {
                expect(minute(6), DifferenceKind::MissingDueRow);
                self.removed.insert(schedule.incarnation);
                self.fire(schedule, 1..=5).await;
            }
            Story::OutcomeThatNeverWas => {
                expect(minute(3) + HALF, DifferenceKind::NoSuchOccurrence);
                self.fire(schedule, 1..=5).await;
                self.run(schedule, minute(3) + HALF, RunState::Succeeded).await;
            }
            Story::Duplicate => {
                expect(minute(3), DifferenceKind::Duplicate);
                self.fire(schedule, [1]).await;
                self.miss_until_four(schedule).await;
                self.run(schedule, minute(3), RunState::Succeeded).await;
                self.fire(schedule, [5]).await;
            }
            Story::AdvancedDone => {
                expect(minute(6), DifferenceKind::MissingDueRow);
                self.fire(schedule, 1..=5).await;
            }
            Story::Healthy(_) => unreachable!("the caller handles healthy schedules"),
        }
    }

    async fn healthy(&mut self, schedule: &Schedule, history: usize) {
        let poller = schedule.poller;
        let fifth = due_of(schedule, minute(5));
        match history {
            0 => self.fire(schedule, 1..=5).await,
            1 => {
                self.fire(schedule, [1]).await;
                self.miss_until_four(schedule).await;
                self.fire(schedule, [5]).await;
            }
            2 => {
                self.fire(schedule, 1..=4).await;
                self.advance(schedule, 6).await;
                self.write(poller, Change::Defer(DueKey { position: minute(7), ..fifth })).await;
            }
            3 => {
                self.fire(schedule, 1..=4).await;
                self.advance(schedule, 6).await;
                let run = run_of(TENANT, fifth.occurrence, RunState::Retrying);
                let then = Some(DueKey { position: minute(7), attempt: 2, ..fifth });
                self.write(poller, Change::Run { run, then, ends: false, origin: None }).await;
            }
            4 => {
                self.fire(schedule, 1..=3).await;
                let put = put_of(self.fixture, schedule, When::At(minute(9)), minute(3) + HALF);
                self.write(poller, Change::Put(put)).await;
            }
            5 => {
                self.fire(schedule, 1..=2).await;
                let author = Author { at: minute(2) + HALF, key: None };
                self.write(poller, Change::CancelIf(schedule.edition(), Some(author))).await;
            }
            6 => self.finish(schedule, RunState::Succeeded).await,
            7 | 9 => {}
            _ => {
                self.finish(schedule, RunState::Failed).await;
                let of = due_of(schedule, minute(1)).occurrence;
                let occurrence = Occurrence { replay: 1, ..of };
                let due = DueKey { position: minute(2), occurrence, ..due_of(schedule, minute(1)) };
                self.write(poller, Change::Redrive { of, due }).await;
                let run = run_of(TENANT, occurrence, RunState::Succeeded);
                self.write(poller, Change::Run { run, then: None, ends: false, origin: None }).await;
            }
        }
    }

    /// Starts and completes the occurrences at these minutes.
    async fn fire(&mut self, schedule: &Schedule, minutes: impl IntoIterator<Item = i64>) {
        for number in minutes {
            self.advance(schedule, number + 1).await;
            self.run(schedule, minute(number), RunState::Succeeded).await;
        }
    }

    async fn miss_until_four(&mut self, schedule: &Schedule) {
        let state = RunState::Missed { last: minute(4), count: 3, attempt_possible: false };
        self.run(schedule, minute(2), state).await;
        self.advance(schedule, 5).await;
    }

    async fn advance(&mut self, schedule: &Schedule, to: i64) {
        let Schedule { incarnation, revision, poller, .. } = *schedule;
        let due = due_of(schedule, minute(to));
        self.write(poller, Change::Advance { incarnation, revision, due }).await;
    }

    async fn run(&mut self, schedule: &Schedule, at: Timestamp, state: RunState) {
        let run = run_of(TENANT, due_of(schedule, at).occurrence, state);
        self.write(schedule.poller, Change::Run { run, then: None, ends: false, origin: None }).await;
    }

    /// Writes the final outcome of a one-shot schedule.
    async fn finish(&mut self, schedule: &Schedule, state: RunState) {
        let run = run_of(TENANT, due_of(schedule, minute(1)).occurrence, state);
        self.write(schedule.poller, Change::Run { run, then: None, ends: true, origin: None }).await;
    }

    /// Writes everything to the store. `done` has the positions of the pollers.
    async fn store(&mut self, done: [Timestamp; 4]) {
        for inserts in self.inserts.chunks(500) {
            let inserted = self.fixture.store.insert(inserts.to_vec()).await.expect("the store accepts inserts");
            assert!(inserted.iter().all(|inserted| matches!(inserted, Inserted::Placed(_))));
        }
        for (number, done) in (0..).zip(done) {
            self.write(poller(TENANT, number), Change::Positions(Positions { closed: done, done })).await;
        }
        for writes in self.writes.chunks(1_000) {
            let written = self.fixture.store.write(writes.to_vec()).await.expect("the store accepts an owner's writes");
            let rejected = written.iter().zip(writes).find(|(written, _)| written.is_err());
            assert!(rejected.is_none(), "the store accepts the write: {rejected:?}");
        }
    }
}

/// Audits the store. Returns the differences, and true if the audit skipped schedules.
async fn audit(store: &dyn Store, tenant: &Tenant, from: Timestamp) -> (BTreeSet<Difference>, bool) {
    let audit = store::audit::audit(store, &Free(from), tenant).await.expect("the store accepts reads");
    assert!(!audit.is_truncated);
    (audit.found.into_iter().map(|named| named.difference).collect(), audit.is_incomplete)
}

#[track_caller]
fn assert_named(named: &BTreeSet<Difference>, expected: &BTreeSet<Difference>, from: Timestamp) {
    let missing: Vec<_> = expected.difference(named).collect();
    let invented: Vec<_> = named.difference(expected).collect();
    assert_eq!((missing, invented), (Vec::new(), Vec::new()), "from {from}");
}

async fn put_tenant(fixture: &Fixture) -> Tenant {
    let tenant = Tenant::new(TENANT, "default", 4, SigningSecret::first(vec![7; 24], minute(0)));
    let entry = Audit::of(&tenant, minute(0), "k1", "tenant.create", "default");
    assert_eq!(fixture.store.put_tenant(tenant.clone(), entry).await, Ok(Ok(())));
    tenant
}

pub(super) async fn audit_names_1000_planted_faults_and_no_other(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let tenant = put_tenant(&fixture).await;
    let mut fleet = Fleet::new(&fixture);
    let faults = [
        Story::RemovedOutcome,
        Story::RemovedDueRow,
        Story::OutcomeThatNeverWas,
        Story::Duplicate,
        Story::AdvancedDone,
    ];
    let healthy = (0..10 * HEALTHY).map(|number| Story::Healthy(number / HEALTHY));
    let planted = faults.into_iter().flat_map(|fault| std::iter::repeat_n(fault, FAULTS));
    for (number, story) in (0..).zip(healthy.chain(planted)) {
        fleet.add(number, story).await;
    }
    fleet.store([DONE + HALF, DONE + HALF, DONE + HALF, minute(6)]).await;
    let Fleet { removed, expected, .. } = fleet;
    assert_eq!(expected.len(), 5 * FAULTS);
    let mut store = Faulty { store: fixture.store.clone(), removed, damaged: BTreeSet::new() };
    // All faults are at minute 3 or later. Records of missed runs before minute 3 cover later instants.
    for from in [minute(0), minute(2)] {
        let (named, is_incomplete) = audit(&store, &tenant, from).await;
        assert_named(&named, &expected, from);
        assert!(!is_incomplete);
    }
    // An audit may miss a duplicate if the record of missed runs began before the stretch.
    let (named, _) = audit(&store, &tenant, minute(3)).await;
    let is_duplicate = |difference: &&Difference| difference.kind == DifferenceKind::Duplicate;
    let named_duplicates: BTreeSet<Difference> = named.iter().filter(is_duplicate).copied().collect();
    assert!(named_duplicates.is_subset(&expected));
    let others = |all: &BTreeSet<Difference>| -> BTreeSet<Difference> {
        all.iter().filter(|it| !is_duplicate(it)).copied().collect()
    };
    assert_named(&others(&named), &others(&expected), minute(3));
    // A damaged schedule hides only its own differences.
    store.damaged.extend(expected.iter().map(|difference| difference.occurrence.incarnation).step_by(100));
    let readable = expected.iter().filter(|it| !store.damaged.contains(&it.occurrence.incarnation));
    let readable: BTreeSet<Difference> = readable.copied().collect();
    let (named, is_incomplete) = audit(&store, &tenant, minute(0)).await;
    assert_named(&named, &readable, minute(0));
    assert!(is_incomplete && readable.len() < expected.len());
}

pub(super) async fn audit_compares_runs_of_several_pages(subject: &dyn Subject) {
    const SECOND: Duration = Duration::from_secs(1);
    let fixture = Fixture::open(subject).await;
    let tenant = put_tenant(&fixture).await;
    let mut fleet = Fleet::new(&fixture);
    let poller = poller(TENANT, 0);
    let at = |second: u32| minute(0) + SECOND * second;
    // The first page of 1,000 runs from second 500 ends about at second 1,500, within the missed runs of the second
    // schedule.
    for (missed, removed) in [(None, 1_600), (Some((101, 1_550)), 1_700)] {
        let incarnation = fixture.numbers.incarnation();
        let mut insert = insert_in(poller, incarnation, ScheduleId::from_incarnation(incarnation), at(1));
        Arc::make_mut(&mut insert.schedule).spec.when = When::Every { interval: SECOND, since: Some(minute(0)) };
        let schedule = insert.schedule.clone();
        fleet.inserts.push(insert);
        let due = due_of(&schedule, at(1_801));
        fleet.write(poller, Change::Advance { incarnation, revision: schedule.revision, due }).await;
        for second in 1..=1_800 {
            match missed {
                Some((first, last)) if second == first => {
                    let count = u64::from(last - first + 1);
                    let state = RunState::Missed { last: at(last), count, attempt_possible: false };
                    fleet.run(&schedule, at(second), state).await;
                }
                Some((first, last)) if first < second && second <= last => {}
                _ if second == removed => {}
                _ => fleet.run(&schedule, at(second), RunState::Succeeded).await,
            }
        }
        let occurrence = due_of(&schedule, at(removed)).occurrence;
        fleet.expected.insert(Difference { occurrence, kind: DifferenceKind::MissingOutcome });
    }
    let done = at(1_800) + HALF / 60;
    fleet.store([done; 4]).await;
    for from in [minute(0), at(500)] {
        let (named, is_incomplete) = audit(&*fixture.store, &tenant, from).await;
        assert_named(&named, &fleet.expected, from);
        assert!(!is_incomplete);
    }
}
