//! What the cases play with: a store, and an easy way to make what they put into it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::retry::RetryPolicy;
use domain::schedule::HttpTarget;
use domain::{
    Attempt, AttemptResult, DueKey, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, ScheduleId, Seen,
    ShardId, Spec, Status, Target, TenantId, Term, Timestamp, When,
};

use crate::Subject;
use store::{
    Arrival, Change, Cursor, DueBound, DuePage, DueRead, Insert, Inserted, Mark, Marked, OwnerWrite, Placed, Positions,
    Store, WriteRefusal, Written,
};

pub(super) const TENANT: TenantId = TenantId(1);
pub(super) const OTHER_TENANT: TenantId = TenantId(2);

/// An instant that is after every default position; later numbers are later.
pub(super) fn minute(number: i64) -> Timestamp {
    Timestamp::from_millis(2_000_000_000_000 + number * 60_000)
}

pub(super) fn poller(tenant: TenantId, number: u16) -> PollerId {
    PollerId { tenant, generation: 0, number }
}

pub(super) fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).expect("the case chose a valid id")
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

/// Incarnations rise, as those of one creator do.
#[derive(Default)]
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    pub(super) fn incarnation(&self) -> Incarnation {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // Random bits that differ in their high part, too, so that nothing rests on neighbours.
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
    Insert { schedule: Arc::new(schedule), due: DueKey { position: at, occurrence, attempt: 1, target } }
}

/// A due row of the schedule as it is, for `nominal`.
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
    };
    Run { tenant, occurrence, state, attempts: vec![attempt] }
}

pub(super) struct Scene {
    pub(super) store: Arc<dyn Store>,
    pub(super) numbers: Numbers,
}

impl Scene {
    pub(super) async fn open(subject: &dyn Subject) -> Self {
        Scene { store: subject.open().await, numbers: Numbers::default() }
    }

    pub(super) async fn reopen(self, subject: &dyn Subject) -> Self {
        let Scene { store, numbers } = self;
        subject.close(store).await;
        Scene { store: subject.open().await, numbers }
    }

    /// A schedule with a chosen id, not yet inserted.
    pub(super) fn named(&self, name: &str, at: Timestamp) -> Insert {
        insert_of(TENANT, self.numbers.incarnation(), id(name), at)
    }

    /// A schedule whose id is made, not yet inserted.
    pub(super) fn unnamed(&self, at: Timestamp) -> Insert {
        let incarnation = self.numbers.incarnation();
        insert_of(TENANT, incarnation, ScheduleId::from_incarnation(incarnation), at)
    }

    /// As [`Scene::unnamed`], in the poller given.
    pub(super) fn unnamed_in(&self, poller: PollerId, at: Timestamp) -> Insert {
        let incarnation = self.numbers.incarnation();
        insert_in(poller, incarnation, ScheduleId::from_incarnation(incarnation), at)
    }

    pub(super) async fn insert(&self, insert: &Insert) -> Inserted {
        let answers = self.store.insert(vec![insert.clone()]).await.expect("the store takes inserts");
        only(answers)
    }

    /// Inserts what is not there yet.
    pub(super) async fn create(&self, insert: Insert) -> Arc<Schedule> {
        match self.insert(&insert).await {
            Inserted::Placed(placed) => assert_eq!(placed.position, insert.due.position, "nothing is closed here"),
            Inserted::Exists(other) => panic!("{} is new, and yet {other:?} has it", insert.schedule.id),
        }
        insert.schedule
    }

    pub(super) async fn get(&self, tenant: TenantId, id: &ScheduleId) -> Option<Arc<Schedule>> {
        only(self.store.get(vec![(tenant, id.clone())]).await.expect("the store is read"))
    }

    pub(super) async fn load(&self, incarnation: Incarnation) -> Option<Arc<Schedule>> {
        only(self.store.load(vec![incarnation]).await.expect("the store is read"))
    }

    /// The schedule, which is there, as it is now.
    pub(super) async fn now(&self, schedule: &Schedule) -> Arc<Schedule> {
        self.load(schedule.incarnation).await.expect("a schedule that was inserted is there")
    }

    pub(super) async fn place(&self, poller: PollerId, key: DueKey) -> Placed {
        only(self.store.place(vec![(poller, key)]).await.expect("the store takes rows"))
    }

    pub(super) async fn mark(&self, tenant: TenantId, id: &ScheduleId) -> Marked {
        let mark = Mark { tenant, id: id.clone() };
        only(self.store.mark(vec![mark]).await.expect("the store takes marks"))
    }

    pub(super) async fn take(&self, shard: ShardId) -> Term {
        only(self.store.take(vec![shard]).await.expect("the store mints terms"))
    }

    pub(super) async fn owner(&self, poller: PollerId) -> Owner<'_> {
        Owner { scene: self, poller, term: self.take(poller.shard()).await }
    }

    pub(super) async fn positions(&self, poller: PollerId) -> Positions {
        let positions = only(self.store.positions(vec![poller]).await.expect("the store is read"));
        let closed = only(self.store.closed(vec![poller]).await.expect("the store is read"));
        assert_eq!(positions.closed, closed, "`closed` and `positions` tell the same");
        positions
    }

    pub(super) async fn due(&self, read: DueRead) -> DuePage {
        only(self.store.due(vec![read]).await.expect("the store is read"))
    }

    /// All rows of `poller` after `done`.
    pub(super) async fn all_due(&self, poller: PollerId) -> Vec<DueKey> {
        let after = DueBound::Instant(self.positions(poller).await.done);
        let page = self.due(DueRead { poller, after, until: Timestamp::MAX, limit: usize::MAX }).await;
        assert_eq!(page.next, None, "a read of everything leaves nothing");
        page.keys
    }

    pub(super) async fn run(&self, occurrence: Occurrence) -> Option<Run> {
        only(self.store.find_runs(vec![occurrence]).await.expect("the store is read"))
    }

    pub(super) async fn dead_letters(&self, tenant: TenantId) -> Vec<Run> {
        self.store.dead_letters(tenant, None, usize::MAX).await.expect("the store is read")
    }

    /// All arrivals of `shards` from the beginning, read `limit` at a time.
    pub(super) async fn arrivals(&self, shards: &[ShardId], limit: usize) -> Vec<Arrival> {
        let mut cursor = Cursor::default();
        let mut told = Vec::new();
        loop {
            let read = self.store.arrivals(shards.into(), cursor, limit).await;
            let (arrivals, next) = read.expect("the store is read");
            if arrivals.is_empty() && next == cursor {
                return told;
            }
            cursor = next;
            told.extend(arrivals);
        }
    }

    pub(super) async fn marks(&self, shard: ShardId, cursor: Cursor) -> (Vec<Incarnation>, Cursor) {
        let (marks, cursor) = self.store.marks(Arc::new([shard]), cursor).await.expect("the store is read");
        assert!(marks.iter().all(|(of, _)| *of == shard), "only the shards asked for are told");
        (marks.into_iter().map(|(_, incarnation)| incarnation).collect(), cursor)
    }
}

/// The owner of `poller`'s shard.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) scene: &'a Scene,
    pub(super) poller: PollerId,
    pub(super) term: Term,
}

impl Owner<'_> {
    pub(super) fn asks(&self, change: Change) -> OwnerWrite {
        OwnerWrite { term: self.term, poller: self.poller, change }
    }

    pub(super) async fn try_write(&self, change: Change) -> Result<Written, WriteRefusal> {
        only(self.scene.store.write(vec![self.asks(change)]).await.expect("the store takes an owner's writes"))
    }

    /// A change that is answered [`Written::Done`].
    pub(super) async fn write(&self, change: Change) {
        assert_eq!(self.try_write(change).await, Ok(Written::Done));
    }

    pub(super) async fn close(&self, closed: Timestamp, done: Timestamp) {
        self.write(Change::Positions(Positions { closed, done })).await;
    }

    pub(super) async fn put(&self, insert: &Insert) -> (Arc<Schedule>, Timestamp, Option<Status>) {
        match self.try_write(Change::Put(insert.clone())).await {
            Ok(Written::Put { schedule, position, before }) => (schedule, position, before),
            other => panic!("a put is answered as one: {other:?}"),
        }
    }

    pub(super) async fn put_if(
        &self,
        insert: &Insert,
        seen: Option<Seen>,
    ) -> Result<(Arc<Schedule>, Timestamp, Option<Status>), WriteRefusal> {
        match self.try_write(Change::PutIf { insert: insert.clone(), seen }).await? {
            Written::Put { schedule, position, before } => Ok((schedule, position, before)),
            Written::Done => panic!("a put is answered as one"),
        }
    }

    /// Books a final outcome of the schedule's first occurrence, and ends the schedule.
    pub(super) async fn finish(&self, schedule: &Schedule, state: RunState) -> Run {
        let nominal = schedule.next.expect("the schedule has an occurrence");
        let run = run_of(schedule.tenant, due_of(schedule, nominal).occurrence, state);
        self.write(Change::Run { run: run.clone(), then: None, ends: true }).await;
        run
    }
}

pub(super) fn only<T>(answers: Vec<T>) -> T {
    let count = answers.len();
    let mut answers = answers.into_iter();
    match (answers.next(), answers.next()) {
        (Some(answer), None) => answer,
        _ => panic!("one question has one answer, not {count}"),
    }
}

/// Lets the other futures of this task come first, `times` over.
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
