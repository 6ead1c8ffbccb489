//! Keeps an owner running: gives it shards and takes them away, and starts another if it panics.
//!
//! A shard is *taken* ([`take`]): the store mints a term, the cancel marks that wait are obeyed, and what the owner
//! before told is read. Only then is it *gained*, and fires. It is *let go of* ([`let_go`]) in the order of DESIGN's
//! hand-over: nothing starts any more, what is booked is durable, what is in flight is handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{PollerId, ShardId, Term, Timestamp};
use futures_util::FutureExt;
use store::{Change, Cursor, HandOver, HandedOver, OwnerWrite, StoreError, WriteRefusal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::bookkeeper::{Bookkeeper, ToBook, count_store_error};
use crate::owner::{Context, Event, Gained, Owner};
use crate::shards::NotOwned;
use crate::shared::{OwnerHandle, Shared};
use crate::tenants::Tenants;
use crate::window::Tenure;

/// Bounds of the queues between the owner and its tasks; what fills them is bounded by the attempts in flight.
const BOOKINGS_MAX: usize = 8_192;
const EVENTS_MAX: usize = 8_192;
/// How often the cancel marks are looked at that no call has obeyed.
const MARKS_PERIOD: Duration = Duration::from_secs(1);
const TENANTS_PERIOD: Duration = Duration::from_secs(2);
const RETRY_WAIT: Duration = Duration::from_millis(200);

/// Takes these shards and obeys the marks that wait there: only then may anything of them fire.
///
/// # Errors
/// If the store fails; then they are not owned.
pub(crate) async fn take(shared: &Shared, shards: &[ShardId]) -> Result<Gained, StoreError> {
    let since = shared.runtime.now();
    let terms = shared.store.take(shards.to_vec()).await?;
    let tenures: BTreeMap<ShardId, Tenure> =
        shards.iter().copied().zip(terms.into_iter().map(|term| Tenure { term, since })).collect();
    obey_marks(shared, shards.into(), Cursor::default(), |shard| Ok(tenures[&shard])).await?;
    let held = handed_over(shared, shards).await?;
    let pollers = shared.tenants.pollers().into_iter().filter(|poller| tenures.contains_key(&poller.shard())).collect();
    let pollers = with_positions(shared, pollers, |shard| tenures[&shard]).await?;
    // A mark that came since may lie behind what was obeyed for the other shards.
    let mut obeyed = shared.marks.lock().await;
    shared.shards.gain(tenures);
    *obeyed = Cursor::default();
    Ok(Gained { shards: shards.to_vec(), pollers, held })
}

async fn with_positions(
    shared: &Shared,
    pollers: Vec<PollerId>,
    tenure: impl Fn(ShardId) -> Tenure,
) -> Result<Vec<(PollerId, Tenure, store::Positions)>, StoreError> {
    let positions = shared.store.positions(pollers.clone()).await?;
    let with = |(poller, positions): (PollerId, _)| (poller, tenure(poller.shard()), positions);
    Ok(pollers.into_iter().zip(positions).map(with).collect())
}

/// Of `pollers`, those that are owned here and not among `known`. The caller holds the lock under which shards move.
pub(crate) async fn new_pollers(
    shared: &Shared,
    pollers: impl IntoIterator<Item = PollerId>,
    known: &BTreeSet<PollerId>,
) -> Result<Vec<(PollerId, Tenure, store::Positions)>, StoreError> {
    let new = pollers.into_iter().filter(|poller| !known.contains(poller));
    let owned: Vec<PollerId> = new.filter(|poller| shared.shards.tenure(poller.shard()).is_some()).collect();
    if owned.is_empty() {
        return Ok(Vec::new());
    }
    let tenure = |shard| shared.shards.tenure(shard).expect("shards move only under the lock that is held");
    with_positions(shared, owned, tenure).await
}

/// The attempts that the owners before have in flight still: those without an outcome.
async fn handed_over(shared: &Shared, shards: &[ShardId]) -> Result<Vec<HandedOver>, StoreError> {
    let now = shared.runtime.now();
    let lists = shared.store.handed_over(shards.to_vec()).await?;
    let open: Vec<HandedOver> = lists.into_iter().flatten().filter(|attempt| attempt.until > now).collect();
    if open.is_empty() {
        return Ok(open);
    }
    let runs = shared.store.find_runs(open.iter().map(|attempt| attempt.key.occurrence).collect()).await?;
    let is_open = |(attempt, run): (HandedOver, Option<Run>)| {
        let has_ended = |run: &Run| {
            let last = run.attempts.last().map_or(0, |attempt| attempt.number);
            run.state.is_final() || last >= attempt.key.attempt
        };
        (!run.as_ref().is_some_and(has_ended)).then_some(attempt)
    };
    Ok(open.into_iter().zip(runs).filter_map(is_open).collect())
}

/// Takes shards and begins to fire what is due there. False if what they were claimed under is over by now, and nothing was taken:
/// whoever has them then would lose them for a moment.
///
/// # Errors
/// If the store fails; then they are not owned.
pub(crate) async fn gain(shared: &Shared, shards: &[ShardId]) -> Result<bool, StoreError> {
    let _moving = shared.moving.lock().await;
    if !shared.lease.is_valid(shared.runtime.monotonic()) {
        return Ok(false);
    }
    let gained = take(shared, shards).await?;
    give(shared, gained).await;
    shared.moved("gained", shards.len());
    Ok(true)
}

/// To the owner that runs now; without one, the next one takes them.
pub(crate) async fn give(shared: &Shared, gained: Gained) {
    let Some(owner) = shared.owner() else { return };
    let closed: Vec<(PollerId, Timestamp)> =
        gained.pollers.iter().map(|(poller, _, positions)| (*poller, positions.closed)).collect();
    let _bookkeeper_is_gone = owner.bookings.send(ToBook::Gained(closed)).await;
    let _owner_is_gone = owner.events.send(Event::Gained(gained)).await;
}

/// Stops firing what is due in these shards, and hands over what is in flight. Once it returns, nothing of theirs
/// starts any more.
///
/// # Errors
/// If the store fails: the next owner is not told what is in flight, and may make those attempts again.
pub(crate) async fn let_go(shared: &Shared, shards: &BTreeSet<ShardId>) -> Result<(), StoreError> {
    let _moving = shared.moving.lock().await;
    let terms = shared.shards.let_go(shards);
    if terms.is_empty() {
        return Ok(());
    }
    shared.moved("let_go", terms.len());
    // First: whoever is answering a cancellation must still see here what is in flight.
    shared.shards.left(shards).await;
    let begun = stop_starting(shared, shards).await;
    let mut lists: BTreeMap<ShardId, Vec<HandedOver>> = BTreeMap::new();
    for attempt in begun {
        lists.entry(attempt.poller.shard()).or_default().push(attempt);
    }
    let hand_over = |(shard, term)| HandOver { shard, term, attempts: lists.remove(&shard).unwrap_or_default() };
    let answers = shared.store.hand_over(terms.into_iter().map(hand_over).collect()).await?;
    if answers.contains(&Err(WriteRefusal::Superseded)) {
        tracing::warn!("a shard that was to be handed over has another owner already");
    }
    Ok(())
}

/// Those attempts that have begun; the outcomes of all that ended before are durable.
async fn stop_starting(shared: &Shared, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
    let Some(owner) = shared.owner() else { return Vec::new() };
    let (tell, begun) = oneshot::channel();
    let asked = owner.events.send(Event::LetGo(shards.clone(), tell)).await.is_ok();
    // An owner that panicked holds nothing; what it had in flight may be made again.
    let begun = if asked { begun.await.unwrap_or_default() } else { Vec::new() };
    let (tell, flushed) = oneshot::channel();
    if owner.bookings.send(ToBook::Flush(tell)).await.is_ok() {
        let _flushed_or_gone = flushed.await;
    }
    begun
}

/// As [`let_go`], of shards that are lost: there is nobody to hand over to.
pub(crate) async fn lose(shared: &Shared, shards: &BTreeSet<ShardId>) {
    let _moving = shared.moving.lock().await;
    let lost = shared.shards.let_go(shards);
    if !lost.is_empty() {
        shared.moved("lost", lost.len());
        let (tell, _begun) = oneshot::channel();
        shared.send(Event::LetGo(shards.clone(), tell)).await;
    }
}

/// As [`lose`], of a shard that another has taken since it was owned under `term`; without effect if it came back.
pub(crate) async fn lose_superseded(shared: &Shared, shard: ShardId, term: Term) {
    let _moving = shared.moving.lock().await;
    if shared.shards.term(shard) == Ok(term) {
        let lost = BTreeSet::from([shard]);
        shared.shards.let_go(&lost);
        shared.moved("lost", lost.len());
        let (tell, _begun) = oneshot::channel();
        shared.send(Event::LetGo(lost, tell)).await;
    }
}

/// Cancels what marks name that the engine has not cancelled itself, and says where they end.
async fn obey_marks(
    shared: &Shared,
    shards: Arc<[ShardId]>,
    cursor: Cursor,
    tenure: impl Fn(ShardId) -> Result<Tenure, NotOwned>,
) -> Result<Cursor, StoreError> {
    let mut cursor = cursor;
    loop {
        let (marks, next) = shared.store.marks(shards.clone(), cursor).await?;
        if marks.is_empty() {
            return Ok(next);
        }
        let incarnations: Vec<_> = marks.iter().map(|(_, incarnation)| *incarnation).collect();
        let schedules = shared.store.load(incarnations).await?;
        let mut writes = Vec::with_capacity(schedules.len());
        for schedule in schedules.into_iter().flatten() {
            let poller = schedule.poller;
            let term = tenure(poller.shard())?.term;
            writes.push(OwnerWrite { term, poller, change: Change::Cancel(schedule.incarnation) });
        }
        // What is not found is cancelled already; a mark that another owner must obey is not passed over.
        let written: Vec<(ShardId, Term)> = writes.iter().map(|write| (write.poller.shard(), write.term)).collect();
        let answers = shared.store.write(writes).await?;
        for ((shard, term), answer) in written.into_iter().zip(&answers) {
            if *answer == Err(WriteRefusal::Superseded) {
                shared.superseded(shard, term);
            }
        }
        if answers.contains(&Err(WriteRefusal::Superseded)) {
            return Err(StoreError::Unavailable("the shard has a later owner".to_owned()));
        }
        cursor = next;
    }
}

/// Obeys every mark of the shards owned that is durable when this is called.
///
/// # Errors
/// If the store fails, or a shard is let go of meanwhile: some are not obeyed then.
pub(crate) async fn obey_all_marks(shared: &Shared) -> Result<(), StoreError> {
    let mut cursor = shared.marks.lock().await;
    let shards: Arc<[ShardId]> = shared.shards.owned().into();
    if shards.is_empty() {
        return Ok(());
    }
    let tenure = |shard| shared.shards.tenure(shard).ok_or(NotOwned(shard));
    *cursor = obey_marks(shared, shards, *cursor, tenure).await?;
    Ok(())
}

async fn watch_marks(shared: Arc<Shared>) {
    loop {
        shared.runtime.sleep(MARKS_PERIOD).await;
        if let Err(error) = obey_all_marks(&shared).await {
            count_store_error(&shared.metrics, "marks", &error);
        }
    }
}

/// Reads the tenants again from time to time: another member may have changed them.
async fn watch_tenants(shared: Arc<Shared>) {
    loop {
        shared.runtime.sleep(TENANTS_PERIOD).await;
        if let Err(error) = Tenants::new(shared.clone()).refresh().await {
            count_store_error(&shared.metrics, "tenants", &error);
        }
    }
}

/// Serves until `stop`, at first what was taken already. An owner that panics is followed by another, under new terms.
pub(crate) async fn supervise(shared: Arc<Shared>, taken: Gained, stop: CancellationToken) {
    let mut taken = Some(taken);
    loop {
        let serving = serve(shared.clone(), taken.take(), stop.clone());
        if AssertUnwindSafe(serving).catch_unwind().await.is_ok() {
            return;
        }
        shared.metrics.panics.inc();
        tracing::error!("the owner panicked; another takes its shards");
    }
}

/// Under new terms, all that is owned.
async fn regain(shared: &Shared) -> Gained {
    loop {
        let owned = shared.shards.owned();
        match take(shared, &owned).await {
            Ok(gained) => return gained,
            Err(error) => count_store_error(&shared.metrics, "take", &error),
        }
        shared.runtime.sleep(RETRY_WAIT).await;
    }
}

/// With the pollers of tenants that came to be known since this was taken, before there was an owner to be told.
async fn with_new_pollers(shared: &Shared, mut taken: Gained) -> Gained {
    let known = taken.pollers.iter().map(|(poller, _, _)| *poller).collect();
    loop {
        match new_pollers(shared, shared.tenants.pollers(), &known).await {
            Ok(pollers) => {
                taken.pollers.extend(pollers);
                return taken;
            }
            Err(error) => count_store_error(&shared.metrics, "positions", &error),
        }
        shared.runtime.sleep(RETRY_WAIT).await;
    }
}

async fn serve(shared: Arc<Shared>, taken: Option<Gained>, stop: CancellationToken) {
    let moving = shared.moving.lock().await;
    let (bookings, to_book) = mpsc::channel(BOOKINGS_MAX);
    let (events, to_owner) = mpsc::channel(EVENTS_MAX);
    let bookkeeper = Bookkeeper {
        runtime: shared.runtime.clone(),
        store: shared.store.clone(),
        metrics: shared.metrics.clone(),
        bookings: to_book,
        events: events.clone(),
        closed: BTreeMap::new(),
    };
    *shared.owner.lock().expect("no holder of this lock panics") =
        Some(OwnerHandle { events: events.clone(), bookings: bookings.clone() });
    // What the owner before had in flight may be made again.
    shared.in_flight.clear();
    let gained = match taken {
        Some(taken) => with_new_pollers(&shared, taken).await,
        None => regain(&shared).await,
    };
    give(&shared, gained).await;
    drop(moving);
    let context = Arc::new(Context {
        runtime: shared.runtime.clone(),
        store: shared.store.clone(),
        deliver: shared.deliver.clone(),
        metrics: shared.metrics.clone(),
        in_flight: shared.in_flight.clone(),
        tenants: shared.tenants.clone(),
        lease: shared.lease.clone(),
        bookings,
        events,
        news: shared.news.clone(),
    });
    let tasks = runtime::TaskSet::new(&shared.runtime);
    tasks.spawn("bookkeeper", bookkeeper.run());
    tasks.spawn("marks", watch_marks(shared.clone()));
    tasks.spawn("tenants", watch_tenants(shared.clone()));
    let options = shared.options.clone();
    Owner::new(context, options, to_owner, shared.nudge.clone()).run(stop).await;
}
