//! Helpers for tests: the in-memory engine as a subject of the conformance suite, and schedules for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::retry::RetryPolicy;
use domain::{
    DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, Schedule, ScheduleId, Spec, Status, Target,
    TenantId, Timestamp, When,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use store::memory::{MemoryOptions, MemoryStore};
use store::{DueBound, DueRead, Insert, Store};
use store_conformance::Subject;

/// Subject of the conformance suite. The data of its store survives a close and an open.
pub(crate) struct Memory {
    runtime: Runtime,
    data: MemoryStore,
    wrap: Box<dyn Fn(MemoryStore) -> Arc<dyn Store> + Send + Sync>,
    open: Mutex<bool>,
}

impl Memory {
    pub(crate) fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let data = MemoryStore::new(runtime.clone(), options);
        Memory { runtime, data, wrap: Box::new(|store| Arc::new(store)), open: Mutex::new(false) }
    }

    /// Sets the function `wrap`, which wraps every store that this subject opens. A test uses the function to add a bug
    /// or a layer.
    pub(crate) fn broken(self, wrap: impl Fn(MemoryStore) -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        Memory { wrap: Box::new(wrap), ..self }
    }
}

impl Subject for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let already = std::mem::replace(&mut *self.open.lock().expect("no holder of this lock panics"), true);
            assert!(!already, "a subject is open at most once at a time");
            (self.wrap)(self.data.reopen(self.runtime.clone()))
        }
        .boxed()
    }

    fn close(&self, store: Arc<dyn Store>) -> BoxFuture<'_, ()> {
        async move {
            assert_eq!(Arc::strong_count(&store), 1, "the caller of close has the last handle of the store");
            *self.open.lock().expect("no holder of this lock panics") = false;
        }
        .boxed()
    }
}

pub(crate) fn weak_and_slow() -> MemoryOptions {
    MemoryOptions { latency: Some(Duration::ZERO..=Duration::from_millis(20)), ..MemoryOptions::weak() }
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_current_thread().build().expect("the runtime starts");
    tokio.block_on(async { test(Runtime::real()).await })
}

pub(crate) const TENANT: TenantId = TenantId(1);
pub(crate) const POLLER: PollerId = PollerId { tenant: TENANT, generation: 0, number: 0 };

pub(crate) fn minute(number: i64) -> Timestamp {
    Timestamp::from_millis(2_000_000_000_000 + number * 60_000)
}

/// Returns the insert of a one-shot schedule of [`POLLER`] that is due at `minute(1)`.
pub(crate) fn insert(number: u128, name: Option<&str>) -> Insert {
    let incarnation = Incarnation::new(minute(0), number);
    let id = name.map_or_else(
        || ScheduleId::from_incarnation(incarnation),
        |name| ScheduleId::new(name).expect("the id is valid"),
    );
    let http = HttpTarget {
        url: "http://localhost/".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: Duration::from_secs(1),
    };
    let at = minute(1);
    let target = Target::Http(http);
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: target.key() };
    let retry = RetryPolicy { attempts_max: 1, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(1) };
    let spec = Spec { when: When::At(at), target, payload: Default::default(), labels: Default::default(), retry };
    let schedule = Schedule {
        tenant: TENANT,
        id,
        incarnation,
        poller: POLLER,
        revision: Revision(0),
        status: Status::Active,
        created_at: minute(0),
        updated_at: minute(0),
        next: Some(at),
        spec,
    };
    Insert { schedule: Arc::new(schedule), due, by: None }
}

pub(crate) async fn has_schedule(store: &dyn Store, insert: &Insert) -> bool {
    let loaded = store.load(vec![insert.schedule.incarnation]).await.expect("the store accepts reads");
    loaded[0].is_some()
}

pub(crate) async fn has_row(store: &dyn Store, insert: &Insert) -> bool {
    let after = DueBound::Instant(Timestamp::MIN);
    let read = DueRead { poller: insert.schedule.poller, after, until: Timestamp::MAX, limit: usize::MAX };
    store.due(vec![read]).await.expect("the store accepts reads")[0].keys.contains(&insert.due)
}
