//! Fixture of the conformance cases: a store, and helpers that create its data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::HttpTarget;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, DueKey, Incarnation, Occurrence, PollerId, Precondition, Revision, RunState, Schedule,
    ScheduleId, ShardId, Spec, Status, Target, TenantId, Term, Timestamp, When,
};

use crate::Subject;
use store::{
    Cancellation, CancellationResult, Change, Cursor, DueBound, DuePage, DueRead, Insert, InsertLogEntry, Inserted,
    OwnerWrite, Placed, Positions, Store, WriteRejection, Written,
};

pub(super) const TENANT: TenantId = TenantId(1);
pub(super) const OTHER_TENANT: TenantId = TenantId(2);

/// Returns an instant in the year 2033 or later. A higher `number` gives a later instant.
pub(super) const fn minute(number: i64) -> Timestamp {
    Timestamp::from_millis(2_000_000_000_000 + number * 60_000)
}

pub(super) fn poller(tenant: TenantId, number: u16) -> PollerId {
    PollerId { tenant, generation: 0, number }
}

pub(super) fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).expect("the conformance case uses a valid schedule id")
}

pub(super) fn spec(at: Timestamp) -> Spec {
    let http = HttpTarget {
        url: "https://example.com/hook".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
    };
    Spec {
        when: When::At(at),
        target: Target::Http(http),
        payload: Bytes::from_static(b"{}"),
        labels: BTreeMap::new(),
        retry: RetryPolicy { attempts_max: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) },
    }
}

/// Source of rising incarnations. It behaves like one creator.
#[derive(Default)]
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    pub(super) fn incarnation(&self) -> Incarnation {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // The high part of the random bits differs between incarnations, so that no case can rely on incarnations with
        // adjacent values.
        let random = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 16 | u128::from(number & 0xffff);
        Incarnation::new(Timestamp::from_millis(1_700_000_000_000 + i64::try_from(number).unwrap_or(0) / 4), random)
    }
}

pub(super) fn insert_of(tenant: TenantId, incarnation: Incarnation, id: ScheduleId, at: Timestamp) -> Insert {
    let poller = PollerId::of(tenant, 0, 4, &id);
    insert_in(poller, incarnation, id, at)
}

pub(super) fn insert_in(poller: PollerId, incarnation: Incarnation, id: ScheduleId, at: Timestamp) -> Insert {
    let spec = spec(at);
    let target = spec.target.key();
    let schedule = Schedule {
        tenant: poller.tenant,
        id,
        incarnation,
        poller,
        revision: Revision(0),
        status: Status::Active,
        created_at: Timestamp::from_millis(1_700_000_000_000),
        updated_at: Timestamp::from_millis(1_700_000_000_000),
        next: Some(at),
        spec,
    };
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

/// Returns the due row of the schedule's current revision at the instant `nominal`.
pub(super) fn due_of(schedule: &Schedule, nominal: Timestamp) -> DueKey {
    let Schedule { incarnation, revision, .. } = *schedule;
    let occurrence = Occurrence { incarnation, nominal, revision, replay: 0 };
    DueKey { position: nominal, occurrence, attempt: 1, target: schedule.spec.target.key() }
}

pub(super) fn run_of(tenant: TenantId, occurrence: Occurrence, state: RunState) -> Run {
    let attempt = Attempt {
        number: 1,
        started_at: occurrence.nominal,
        duration: Duration::from_millis(12),
        result: AttemptResult::Answered(503),
        delay: None,
        excerpt: None,
    };
    Run { tenant, occurrence, state, attempts: vec![attempt] }
}

pub(super) struct Fixture {
    pub(super) store: Arc<dyn Store>,
    pub(super) numbers: Numbers,
}

impl Fixture {
    pub(super) async fn open(subject: &dyn Subject) -> Self {
        Fixture { store: subject.open().await, numbers: Numbers::default() }
    }

    pub(super) async fn reopen(self, subject: &dyn Subject) -> Self {
        let Fixture { store, numbers } = self;
        subject.close(store).await;
        Fixture { store: subject.open().await, numbers }
    }

    /// Returns the insert of a schedule with a chosen id. The caller sends the insert.
    pub(super) fn named(&self, name: &str, at: Timestamp) -> Insert {
        insert_of(TENANT, self.numbers.incarnation(), id(name), at)
    }

    /// Returns the insert of a schedule with a server-made id. The caller sends the insert.
    pub(super) fn unnamed(&self, at: Timestamp) -> Insert {
        let incarnation = self.numbers.incarnation();
        insert_of(TENANT, incarnation, ScheduleId::from_incarnation(incarnation), at)
    }

    /// Returns the same insert as [`Fixture::unnamed`], but in the given poller.
    pub(super) fn unnamed_in(&self, poller: PollerId, at: Timestamp) -> Insert {
        let incarnation = self.numbers.incarnation();
        insert_in(poller, incarnation, ScheduleId::from_incarnation(incarnation), at)
    }

    pub(super) async fn insert(&self, insert: &Insert) -> Inserted {
        let responses = self.store.insert(vec![insert.clone()]).await.expect("the store accepts inserts");
        only(responses)
    }

    /// Inserts a schedule that does not exist yet.
    pub(super) async fn create(&self, insert: Insert) -> Arc<Schedule> {
        match self.insert(&insert).await {
            Inserted::Placed(placed) => {
                assert_eq!(
                    placed.position, insert.due.position,
                    "the due row keeps its requested position, because `closed` is not set"
                )
            }
            Inserted::Exists(other) => panic!("the id {} must be unused, but {other:?} has it", insert.schedule.id),
        }
        insert.schedule
    }

    pub(super) async fn get(&self, tenant: TenantId, id: &ScheduleId) -> Option<Arc<Schedule>> {
        only(self.store.get(vec![(tenant, id.clone())]).await.expect("the store accepts reads"))
    }

    pub(super) async fn load(&self, incarnation: Incarnation) -> Option<Arc<Schedule>> {
        only(self.store.load(vec![incarnation]).await.expect("the store accepts reads"))
    }

    /// Returns the current state of an existing schedule.
    pub(super) async fn now(&self, schedule: &Schedule) -> Arc<Schedule> {
        self.load(schedule.incarnation).await.expect("the store contains the inserted schedule")
    }

    pub(super) async fn place(&self, poller: PollerId, key: DueKey) -> Placed {
        only(self.store.place(vec![(poller, key)]).await.expect("the store accepts due rows"))
    }

    pub(super) async fn append_cancellations(&self, tenant: TenantId, id: &ScheduleId) -> CancellationResult {
        let mark = Cancellation { tenant, id: id.clone(), author: None };
        only(self.store.append_cancellations(vec![mark]).await.expect("the store accepts cancellation records"))
    }

    pub(super) async fn take(&self, shard: ShardId) -> Term {
        only(self.store.take(vec![shard]).await.expect("the store assigns a new term"))
    }

    pub(super) async fn owner(&self, poller: PollerId) -> Owner<'_> {
        Owner { fixture: self, poller, term: self.take(poller.shard()).await }
    }

    pub(super) async fn positions(&self, poller: PollerId) -> Positions {
        let positions = only(self.store.positions(vec![poller]).await.expect("the store accepts reads"));
        let closed = only(self.store.closed(vec![poller]).await.expect("the store accepts reads"));
        assert_eq!(positions.closed, closed.at, "`closed` and `positions` return the same closed timestamp");
        positions
    }

    pub(super) async fn due(&self, read: DueRead) -> DuePage {
        only(self.store.due(vec![read]).await.expect("the store accepts reads"))
    }

    /// Returns all due rows of `poller` after its watermark `done`.
    pub(super) async fn all_due(&self, poller: PollerId) -> Vec<DueKey> {
        let after = DueBound::Instant(self.positions(poller).await.done);
        let page = self.due(DueRead { poller, after, until: Timestamp::MAX, limit: usize::MAX }).await;
        assert_eq!(page.next, None, "a read without a limit returns every row");
        page.keys
    }

    pub(super) async fn run(&self, occurrence: Occurrence) -> Option<Run> {
        only(self.store.find_runs(vec![occurrence]).await.expect("the store accepts reads"))
    }

    pub(super) async fn dead_letters(&self, tenant: TenantId) -> Vec<Run> {
        self.store.dead_letters(tenant, None, usize::MAX).await.expect("the store accepts reads")
    }

    /// Reads the insert logs of `shards` from the beginning, `limit` entries at a time, and returns all entries.
    pub(super) async fn insert_log(&self, shards: &[ShardId], limit: usize) -> Vec<InsertLogEntry> {
        let mut cursor = Cursor::default();
        let mut entries = Vec::new();
        loop {
            let read = self.store.insert_log(shards.into(), cursor, limit).await;
            let (arrivals, next) = read.expect("the store accepts reads");
            if arrivals.is_empty() && next == cursor {
                return entries;
            }
            cursor = next;
            entries.extend(arrivals);
        }
    }

    pub(super) async fn cancellations(&self, shard: ShardId, cursor: Cursor) -> (Vec<Incarnation>, Cursor) {
        let (marks, cursor) =
            self.store.cancellations(Arc::new([shard]), cursor).await.expect("the store accepts reads");
        assert!(
            marks.iter().all(|(of, _)| *of == shard),
            "each returned cancellation record belongs to the requested shard"
        );
        (marks.into_iter().map(|(_, incarnation)| incarnation).collect(), cursor)
    }
}

/// Owner of the shard of `poller`, with the owner's term.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) fixture: &'a Fixture,
    pub(super) poller: PollerId,
    pub(super) term: Term,
}

impl Owner<'_> {
    pub(super) fn request(&self, change: Change) -> OwnerWrite {
        OwnerWrite { term: self.term, poller: self.poller, change }
    }

    pub(super) async fn try_write(&self, change: Change) -> Result<Written, WriteRejection> {
        only(self.fixture.store.write(vec![self.request(change)]).await.expect("the store accepts an owner's writes"))
    }

    /// Writes a change, and checks that the store returns [`Written::Done`].
    pub(super) async fn write(&self, change: Change) {
        assert_eq!(self.try_write(change).await, Ok(Written::Done));
    }

    pub(super) async fn close(&self, closed: Timestamp, done: Timestamp) {
        self.write(Change::Positions(Positions { closed, done })).await;
    }

    pub(super) async fn put(&self, insert: &Insert) -> (Arc<Schedule>, Timestamp, Option<Status>) {
        match self.try_write(Change::Put(insert.clone())).await {
            Ok(Written::Put { schedule, position, before }) => (schedule, position, before),
            other => panic!("a put did not return `Written::Put`: {other:?}"),
        }
    }

    pub(super) async fn put_if(
        &self,
        insert: &Insert,
        seen: Option<Precondition>,
    ) -> Result<(Arc<Schedule>, Timestamp, Option<Status>), WriteRejection> {
        match self.try_write(Change::PutIf { insert: insert.clone(), seen }).await? {
            Written::Put { schedule, position, before } => Ok((schedule, position, before)),
            Written::Done => panic!("a conditional put returned `Written::Done` instead of `Written::Put`"),
        }
    }

    /// Writes a final outcome of the schedule's next occurrence, and ends the schedule.
    pub(super) async fn finish(&self, schedule: &Schedule, state: RunState) -> Run {
        let nominal = schedule.next.expect("an active schedule has a next occurrence");
        let run = run_of(schedule.tenant, due_of(schedule, nominal).occurrence, state);
        self.write(Change::Run { run: run.clone(), then: None, ends: true, origin: None }).await;
        run
    }
}

pub(super) fn only<T>(responses: Vec<T>) -> T {
    let count = responses.len();
    let mut responses = responses.into_iter();
    match (responses.next(), responses.next()) {
        (Some(response), None) => response,
        _ => panic!("the store must return one result for one request, but returned {count} results"),
    }
}

/// Lets the other futures of this task run `times` times.
pub(super) async fn yield_times(times: usize) {
    for _ in 0..times {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return std::task::Poll::Ready(());
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }
}
