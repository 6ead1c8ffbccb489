//! Keeps an owner running: takes the shards, starts it from what is durable, and starts another if it panics.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use domain::id::SHARDS;
use domain::{PollerId, ShardId, TenantId, Term};
use futures_util::FutureExt;
use runtime::Runtime;
use store::{Change, Cursor, OwnerWrite, Positions, Store, StoreError, Tenant, WriteRefusal};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::bookkeeper::{Bookkeeper, count_store_error};
use crate::deliver::Deliver;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::owner::{Context, Event, Owner};

/// Bounds of the queues between the owner and its tasks; what fills them is bounded by the attempts in flight.
const BOOKINGS_MAX: usize = 8_192;
const EVENTS_MAX: usize = 8_192;
/// How often the cancel marks are looked at that no call has obeyed.
const MARKS_PERIOD: Duration = Duration::from_secs(1);
const RETRY_WAIT: Duration = Duration::from_millis(200);

/// What outlives an owner.
pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) tenants: BTreeMap<TenantId, Arc<Tenant>>,
    pub(crate) nudge: Arc<Notify>,
    /// By shard.
    pub(crate) terms: RwLock<Vec<Term>>,
    /// Of the present owner.
    pub(crate) events: Mutex<Option<mpsc::Sender<Event>>>,
}

impl Shared {
    pub(crate) fn term(&self, poller: PollerId) -> Term {
        self.terms.read().expect("no holder of this lock panics")[usize::from(poller.shard().0)]
    }
}

/// The shards, taken, and where their pollers stand.
pub(crate) struct Taken {
    pollers: Vec<(PollerId, Term, Positions)>,
    marks: Cursor,
}

/// Takes every shard and obeys the marks that wait there: only then may anything fire.
pub(crate) async fn take(shared: &Shared) -> Result<Taken, StoreError> {
    let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
    let terms = shared.store.take(shards).await?;
    *shared.terms.write().expect("no holder of this lock panics") = terms;
    let marks = obey_marks(shared, Cursor::default()).await?;
    let ids: Vec<PollerId> = shared.tenants.values().flat_map(|tenant| pollers_of(tenant)).collect();
    let positions = shared.store.positions(ids.clone()).await?;
    let pollers = ids.into_iter().zip(positions).map(|(id, positions)| (id, shared.term(id), positions)).collect();
    Ok(Taken { pollers, marks })
}

fn pollers_of(tenant: &Tenant) -> impl Iterator<Item = PollerId> + '_ {
    let id = tenant.id;
    (0..).zip(&tenant.generations).flat_map(move |(generation, pollers)| {
        (0..*pollers).map(move |number| PollerId { tenant: id, generation, number })
    })
}

fn all_shards() -> Arc<[ShardId]> {
    (0..SHARDS).map(ShardId).collect()
}

/// Cancels what marks name that the engine has not cancelled itself, and says where they end.
async fn obey_marks(shared: &Shared, cursor: Cursor) -> Result<Cursor, StoreError> {
    let mut cursor = cursor;
    loop {
        let (marks, next) = shared.store.marks(all_shards(), cursor).await?;
        if marks.is_empty() {
            return Ok(next);
        }
        let incarnations: Vec<_> = marks.iter().map(|(_, incarnation)| *incarnation).collect();
        let schedules = shared.store.load(incarnations).await?;
        let writes = schedules.into_iter().flatten().map(|schedule| OwnerWrite {
            term: shared.term(schedule.poller),
            poller: schedule.poller,
            change: Change::Cancel(schedule.incarnation),
        });
        // What is not found is cancelled already; a mark that another owner must obey is not passed over.
        let answers = shared.store.write(writes.collect()).await?;
        if answers.contains(&Err(WriteRefusal::Superseded)) {
            return Err(StoreError::Unavailable("the shard has a later owner".to_owned()));
        }
        cursor = next;
    }
}

async fn watch_marks(shared: Arc<Shared>, cursor: Cursor) {
    let mut cursor = cursor;
    loop {
        shared.runtime.sleep(MARKS_PERIOD).await;
        match obey_marks(&shared, cursor).await {
            Ok(next) => cursor = next,
            Err(error) => count_store_error(&shared.metrics, "marks", &error),
        }
    }
}

/// Serves until `stop`. An owner that panics is followed by another, under new terms.
pub(crate) async fn supervise(shared: Arc<Shared>, taken: Taken, stop: CancellationToken) {
    let mut taken = taken;
    loop {
        let serving = serve(shared.clone(), taken, stop.clone());
        if AssertUnwindSafe(serving).catch_unwind().await.is_ok() {
            return;
        }
        shared.metrics.panics.inc();
        tracing::error!("the owner panicked; another takes its shards");
        shared.in_flight.clear();
        taken = loop {
            match take(&shared).await {
                Ok(taken) => break taken,
                Err(error) => count_store_error(&shared.metrics, "take", &error),
            }
            shared.runtime.sleep(RETRY_WAIT).await;
        };
    }
}

async fn serve(shared: Arc<Shared>, taken: Taken, stop: CancellationToken) {
    let (bookings, to_book) = mpsc::channel(BOOKINGS_MAX);
    let (events, to_owner) = mpsc::channel(EVENTS_MAX);
    let bookkeeper = Bookkeeper {
        runtime: shared.runtime.clone(),
        store: shared.store.clone(),
        metrics: shared.metrics.clone(),
        bookings: to_book,
        events: events.clone(),
        closed: taken.pollers.iter().map(|(id, _, positions)| (*id, positions.closed)).collect(),
    };
    *shared.events.lock().expect("no holder of this lock panics") = Some(events.clone());
    let context = Arc::new(Context {
        runtime: shared.runtime.clone(),
        store: shared.store.clone(),
        deliver: shared.deliver.clone(),
        metrics: shared.metrics.clone(),
        in_flight: shared.in_flight.clone(),
        tenants: shared.tenants.clone(),
        taken_at: shared.runtime.now(),
        bookings,
        events,
    });
    let tasks = runtime::TaskSet::new(&shared.runtime);
    tasks.spawn("bookkeeper", bookkeeper.run());
    tasks.spawn("marks", watch_marks(shared.clone(), taken.marks));
    let options = shared.options.clone();
    Owner::new(context, options, to_owner, shared.nudge.clone(), all_shards(), taken.pollers).run(stop).await;
}
