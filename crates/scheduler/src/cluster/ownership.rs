//! Gain, hand-over and loss of shards at this member.
//!
//! A member *takes* a shard ([`take`]) in these steps. The store creates a term. The member applies the waiting
//! cancellation records. It reads the list of attempts that the previous owner has in flight. It sets back the positions
//! that a fast clock has moved ahead, and records its own clock. Then the member *gains* the shard and starts to fire
//! its due rows. A member *hands over* a shard ([`hand_over`]) in this order: it stops
//! starting attempts, makes its pending writes durable, and writes the list of its attempts in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{DueKey, Occurrence, PollerId, RunOrigin, Schedule, ShardId, Term, Timestamp};
use futures_util::future::try_join_all;
use store::{
    Answer, Change, Cursor, DueBound, DueRead, HandOver, HandedOver, OwnerWrite, Positions, StoreError, WriteRejection,
};
use tokio::sync::oneshot;

use crate::ahead::is_ahead;
use crate::cluster::shards::{NotOwned, ShardTerm};
use crate::firing::messages::{Gained, ToOwner, ToWriter};
use crate::firing::run_executor::ends_by;
use crate::firing::window::{closable, instant_of};
use crate::metrics::count_store_error;
use crate::requests::{AttemptOutcome, OwnerError};
use crate::shared::Shared;

/// Longest time by which the scheduler moves a row to a position after the present time: the largest deferral, or the
/// delay of most retries.
const MOVED_MAX: Duration = Duration::from_secs(600);
/// Number of rows in one read of moved rows.
const MOVED_PER_READ: usize = 2_048;
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// Largest number of times that the function [`repeated`] makes a call.
const CALLS_MAX: u32 = 3;
/// Time after which the function [`repeated`] makes a failed call again.
const CALL_RETRY_WAIT: Duration = Duration::from_millis(20);
/// Time for which a forwarded outcome waits for its schedule. The sender waits longer for the response.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(1);

/// State of a member before it takes its shards again.
#[derive(Default)]
pub(crate) struct Before {
    /// Latest time that the member's clock showed before it went back.
    clock_was_at: Timestamp,
    in_flight: Vec<HandedOver>,
}

/// Takes these shards and applies their waiting cancellation records. No due row of the shards may fire before this
/// function returns. `before` is the default value, except in [`retake`].
///
/// # Errors
/// Returns an error if the store fails. This member then does not own the shards.
pub(crate) async fn take(shared: &Shared, shards: &[ShardId], before: &Before) -> Result<Gained, StoreError> {
    let since = shared.clock.now();
    let terms = repeated(shared, || shared.store.take(shards.to_vec())).await?;
    let shard_term = |term| ShardTerm { term, since, reopened_from: Timestamp::MIN };
    let shard_terms: BTreeMap<ShardId, ShardTerm> =
        shards.iter().copied().zip(terms.into_iter().map(shard_term)).collect();
    apply_cancellations(shared, shards.into(), Cursor::default(), |shard| Ok(shard_terms[&shard])).await?;
    let handed_over = open_handed_over(shared, shards, &before.in_flight).await?;
    let pollers =
        shared.tenants.pollers().into_iter().filter(|poller| shard_terms.contains_key(&poller.shard())).collect();
    let mut pollers = with_positions(shared, pollers, |shard| shard_terms[&shard]).await?;
    reopen(shared, &mut pollers).await?;
    let reopened_from = bring_forward(shared, &pollers, before.clock_was_at).await?;
    for (poller, shard_term, _) in &mut pollers {
        shard_term.reopened_from = reopened_from[&poller.shard()];
    }
    record_clock(shared, &pollers, since).await?;
    // This member may already have moved its cursor past cancellation records of these shards, because it read the
    // records only for its other shards. The function therefore resets the cursor.
    let mut applied_to = shared.cancellations.lock().await;
    shared.shards.gain(shard_terms);
    *applied_to = Cursor::default();
    Ok(Gained { shards: shards.to_vec(), pollers, handed_over, taken_at: since })
}

/// Sets the positions that are ahead of the present time back to the present. Without this step, the shards' rows would
/// fire only after that time. The owner reads the rows up to the old `closed` again, although many of them have an
/// outcome.
async fn reopen(shared: &Shared, pollers: &mut [(PollerId, ShardTerm, Positions)]) -> Result<(), StoreError> {
    let now = shared.clock.now();
    let mut reopened: Vec<_> = pollers.iter_mut().filter(|(_, _, positions)| is_ahead(positions.closed, now)).collect();
    let Some(ahead) = reopened.iter().map(|(_, _, positions)| positions.closed.since(now)).max() else {
        return Ok(());
    };
    let closed = closable(now);
    let to = |positions: &Positions| Positions { closed, done: positions.done.min(closed) };
    let write = |(poller, ShardTerm { term, .. }, positions): &&mut (PollerId, ShardTerm, Positions)| OwnerWrite {
        term: *term,
        poller: *poller,
        change: Change::Reopen(to(positions)),
    };
    write_each(shared, reopened.iter().map(write)).await?;
    for (_, shard_term, positions) in &mut reopened {
        // Earlier owners may have fired all rows up to the old `closed`.
        shard_term.since = shard_term.since.max(positions.closed);
        *positions = to(positions);
    }
    shared.metrics.reopened.inc_by(reopened.len() as u64);
    tracing::warn!(
        pollers = reopened.len(),
        ahead_seconds = ahead.as_secs(),
        "the clock of an earlier owner was ahead of this member's clock; this member has set the positions of the \
         pollers back. Check the clocks of all hosts. Occurrences that the earlier owner fired too early do not fire \
         again"
    );
    Ok(())
}

/// Writes the present time as the position `closed` of one poller of each shard. If this member's clock is ahead, a
/// later owner sees this from the position, even if this member stops before it has closed a range of time. `pollers`
/// keeps the earlier owner's position, from which this member computes the mark `attempt_possible` of missed runs.
async fn record_clock(
    shared: &Shared,
    pollers: &[(PollerId, ShardTerm, Positions)],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut firsts = BTreeMap::new();
    for (poller, shard_term, positions) in pollers {
        let recorded = Positions { closed: positions.closed.max(closable(now)), ..*positions };
        let change = Change::Positions(recorded);
        firsts.entry(poller.shard()).or_insert(OwnerWrite { term: shard_term.term, poller: *poller, change });
    }
    write_each(shared, firsts.into_values()).await
}

/// Writes the rows that a fast clock has moved into the future again, at positions that are not later than necessary.
///
/// While an earlier owner's clock was ahead, new rows and retries got positions shortly after that owner's `closed`. The
/// function finds them by their nominal instants, which are earlier than their positions. It reads all rows up to one
/// [`MOVED_MAX`] after the latest `closed` of the shard that an owner has set back. Every later owner does the same
/// until that time has come, because an owner may stop before it has written all rows. If `clock_was_at` is later than
/// this `closed`, the function reads the rows up to one [`MOVED_MAX`] after `clock_was_at`. Returns the later one of both
/// instants for each shard with pollers.
async fn bring_forward(
    shared: &Shared,
    pollers: &[(PollerId, ShardTerm, Positions)],
    clock_was_at: Timestamp,
) -> Result<BTreeMap<ShardId, Timestamp>, StoreError> {
    let ids: Vec<PollerId> = pollers.iter().map(|(poller, _, _)| *poller).collect();
    let all = repeated(shared, || shared.store.closed(ids.clone())).await?;
    let mut reopened_from = BTreeMap::new();
    for ((poller, _, _), closed) in pollers.iter().zip(all) {
        let latest: &mut Timestamp = reopened_from.entry(poller.shard()).or_insert(clock_was_at);
        *latest = closed.reopened_from.max(*latest);
    }
    for (poller, ShardTerm { term, .. }, positions) in pollers {
        let ahead = reopened_from[&poller.shard()];
        let until = ahead + MOVED_MAX;
        let mut after = DueBound::Instant(positions.closed);
        while instant_of(after) < until && ahead > shared.clock.now() {
            let read = DueRead { poller: *poller, after, until, limit: MOVED_PER_READ };
            let page = repeated(shared, || shared.store.due(vec![read])).await?.pop().unwrap_or_default();
            let first = positions.closed.max(shared.clock.now()) + Duration::from_millis(1);
            let moved = |key: &DueKey| {
                let position = key.occurrence.nominal.max(first);
                let change = Change::Defer(DueKey { position, ..*key });
                (position < key.position).then_some(OwnerWrite { term: *term, poller: *poller, change })
            };
            write_each(shared, page.keys.iter().filter_map(moved)).await?;
            match page.keys.last() {
                Some(last) if page.next.is_some_and(|next| next <= until) => after = DueBound::Key(*last),
                _ => break,
            }
        }
    }
    Ok(reopened_from)
}

/// Makes a call of the store, and repeats it if it fails. Otherwise, one failure would repeat all calls of [`take`].
///
/// # Errors
/// Returns an error if the last call fails, or if this member's lease ends between two calls. Another member may have
/// taken the shards since then, and this member must not supersede that member.
async fn repeated<'a, T>(shared: &Shared, call: impl Fn() -> Answer<'a, T>) -> Result<T, StoreError> {
    for _ in 1..CALLS_MAX {
        match call().await {
            Err(error) if error.is_retryable() => shared.runtime.sleep(CALL_RETRY_WAIT).await,
            result => return result,
        }
        if !shared.lease.is_valid(shared.runtime.monotonic()) {
            return Err(StoreError::Unavailable("this member's lease ended while it took shards".to_owned()));
        }
    }
    call().await
}

/// Writes each change by a call of its own, because an engine that writes in steps may fail in the middle of a long
/// call.
async fn write_each(shared: &Shared, writes: impl Iterator<Item = OwnerWrite>) -> Result<(), StoreError> {
    let write_one = async |write: OwnerWrite| {
        let responses = repeated(shared, || shared.store.write(vec![write.clone()])).await?;
        if responses.iter().all(Result::is_ok) { Ok(()) } else { Err(superseded()) }
    };
    try_join_all(writes.map(write_one)).await.map(drop)
}

fn superseded() -> StoreError {
    StoreError::Unavailable("cannot set positions back: another owner took the shard under a later term".to_owned())
}

async fn with_positions(
    shared: &Shared,
    pollers: Vec<PollerId>,
    shard_term: impl Fn(ShardId) -> ShardTerm,
) -> Result<Vec<(PollerId, ShardTerm, Positions)>, StoreError> {
    let positions = repeated(shared, || shared.store.positions(pollers.clone())).await?;
    let with = |(poller, positions): (PollerId, _)| (poller, shard_term(poller.shard()), positions);
    Ok(pollers.into_iter().zip(positions).map(with).collect())
}

/// Returns the elements of `pollers` that are not in `known` and whose shards this member owns. The caller must hold
/// the lock `moving`.
pub(crate) async fn new_pollers(
    shared: &Shared,
    pollers: impl IntoIterator<Item = PollerId>,
    known: &BTreeSet<PollerId>,
) -> Result<Vec<(PollerId, ShardTerm, Positions)>, StoreError> {
    let new = pollers.into_iter().filter(|poller| !known.contains(poller));
    let owned: Vec<PollerId> = new.filter(|poller| shared.shards.shard_term(poller.shard()).is_some()).collect();
    if owned.is_empty() {
        return Ok(Vec::new());
    }
    let shard_term =
        |shard| shared.shards.shard_term(shard).expect("ownership changes only under the lock that the caller holds");
    with_positions(shared, owned, shard_term).await
}

/// Returns the attempts that previous owners, or this member itself, still have in flight and that have no outcome.
async fn open_handed_over(
    shared: &Shared,
    shards: &[ShardId],
    in_flight: &[HandedOver],
) -> Result<Vec<HandedOver>, StoreError> {
    let now = shared.clock.now();
    let lists = repeated(shared, || shared.store.handed_over(shards.to_vec())).await?;
    let lists = lists.iter().flatten().filter(|attempt| attempt.until > now).chain(in_flight);
    let open: BTreeMap<Occurrence, HandedOver> = lists.map(|attempt| (attempt.key.occurrence, *attempt)).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let runs = shared.store.find_runs(open.keys().copied().collect()).await?;
    let schedules = shared.store.load(open.keys().map(|occurrence| occurrence.incarnation).collect()).await?;
    let is_open = |((attempt, run), schedule): ((HandedOver, Option<Run>), Option<Arc<Schedule>>)| {
        let has_ended = |run: &Run| {
            let last = run.attempts.last().map_or(0, |attempt| attempt.number);
            run.state.is_final() || last >= attempt.key.attempt
        };
        // If the clock was ahead at the start of the attempt, the attempt ends earlier than the list states.
        let latest = schedule.map_or(now, |schedule| ends_by(now, &schedule));
        (!run.as_ref().is_some_and(has_ended)).then_some(HandedOver { until: attempt.until.min(latest), ..attempt })
    };
    Ok(open.into_values().zip(runs).zip(schedules).filter_map(is_open).collect())
}

/// Takes shards and starts to fire their due rows. Returns `false`, and takes no shard, if the lease of the claims has
/// ended. After the end of the lease, another member may have claimed the shards, and this member must not supersede
/// that member.
///
/// # Errors
/// Returns an error if the store fails. This member then does not own the shards.
pub(crate) async fn gain(shared: &Shared, shards: &[ShardId]) -> Result<bool, StoreError> {
    let _moving = shared.moving.lock().await;
    if !shared.lease.is_valid(shared.runtime.monotonic()) {
        return Ok(false);
    }
    // [`retake`] may have taken some of the shards after the caller had looked for shards that this member does not own.
    let shards: Vec<ShardId> =
        shards.iter().copied().filter(|shard| shared.shards.shard_term(*shard).is_none()).collect();
    if shards.is_empty() {
        return Ok(true);
    }
    let gained = take(shared, &shards, &Before::default()).await?;
    send_gained(shared, gained).await;
    shared.count_shard_changes("gained", shards.len());
    Ok(true)
}

/// Takes those of these shards that this member owns again, under new terms, so that it can set their positions back
/// ([`reopen`]). The attempts in flight continue.
pub(crate) async fn retake(shared: &Shared, shards: &BTreeSet<ShardId>, clock_was_at: Timestamp) {
    let _moving = shared.moving.lock().await;
    let owned: BTreeSet<ShardId> = shared.shards.owned().into_iter().filter(|shard| shards.contains(shard)).collect();
    if owned.is_empty() {
        return;
    }
    // While this member does not own the shards, no cancellation can miss an attempt in flight.
    shared.shards.release(&owned);
    shared.shards.wait_until_left(&owned).await;
    let in_flight = stop_starting(shared, &owned).await;
    // The owner may have reported these shards again until it stopped.
    let clock_was_at = clock_was_at.max(shared.events.withdraw_ahead(&owned));
    let before = Before { clock_was_at, in_flight };
    let owned: Vec<ShardId> = owned.into_iter().collect();
    // If the lease ends, this member no longer owns the shards.
    while shared.lease.is_valid(shared.runtime.monotonic()) {
        match take(shared, &owned, &before).await {
            Ok(gained) => {
                send_gained(shared, gained).await;
                return;
            }
            Err(error) => count_store_error(&shared.metrics, "take", &error),
        }
        shared.runtime.sleep(RETRY_WAIT).await;
    }
}

/// Sends gained shards to this member's owner task. If no owner task runs, the next owner task takes the shards itself.
pub(crate) async fn send_gained(shared: &Shared, gained: Gained) {
    let Some(owner) = shared.owner() else { return };
    let closed: Vec<(PollerId, Timestamp)> =
        gained.pollers.iter().map(|(poller, _, positions)| (*poller, positions.closed)).collect();
    let _writer_is_gone = owner.to_writer.send(ToWriter::Gained(closed)).await;
    let _owner_is_gone = owner.to_owner.send(ToOwner::Gained(gained)).await;
}

/// Stops firing in these shards, and writes the list of their attempts in flight. After this function returns, this
/// member starts no attempt of the shards.
///
/// # Errors
/// Returns an error if the store fails. The next owner then does not know the attempts in flight and may repeat them.
pub(crate) async fn hand_over(shared: &Shared, shards: &BTreeSet<ShardId>) -> Result<(), StoreError> {
    let _moving = shared.moving.lock().await;
    let terms = shared.shards.release(shards);
    if terms.is_empty() {
        return Ok(());
    }
    shared.count_shard_changes("let_go", terms.len());
    // A cancellation in progress must still find this member's attempts in flight, so this function waits until the
    // cancellation has ended.
    shared.shards.wait_until_left(shards).await;
    let in_flight = stop_starting(shared, shards).await;
    let mut lists: BTreeMap<ShardId, Vec<HandedOver>> = BTreeMap::new();
    for attempt in in_flight {
        // If this member's clock is behind, its successor would otherwise regard the attempt as ended.
        let attempt = HandedOver { until: shared.clock.to_engine(attempt.until), ..attempt };
        lists.entry(attempt.poller.shard()).or_default().push(attempt);
    }
    let hand_over = |(shard, term)| HandOver { shard, term, attempts: lists.remove(&shard).unwrap_or_default() };
    let responses = shared.store.hand_over(terms.into_iter().map(hand_over).collect()).await?;
    if responses.contains(&Err(WriteRejection::Superseded)) {
        tracing::warn!("another member has already taken a shard that this member hands over");
    }
    Ok(())
}

/// Prevents the start of new attempts in these shards. Returns the attempts in flight. When this function returns, the
/// outcomes of all ended attempts are durable.
async fn stop_starting(shared: &Shared, shards: &BTreeSet<ShardId>) -> Vec<HandedOver> {
    let Some(owner) = shared.owner() else { return Vec::new() };
    let (sender, in_flight) = oneshot::channel();
    let sent = owner.to_owner.send(ToOwner::Release(shards.clone(), sender)).await.is_ok();
    // An owner that panicked returns no list, so the next owner may repeat its attempts in flight.
    let in_flight = if sent { in_flight.await.unwrap_or_default() } else { Vec::new() };
    let (sender, flushed) = oneshot::channel();
    if owner.to_writer.send(ToWriter::Flush(sender)).await.is_ok() {
        let _flushed_or_gone = flushed.await;
    }
    in_flight
}

/// Releases all shards after this member has lost its right to own them, those included that [`retake`] takes during
/// this call. Writes no list of attempts, because this member may no longer write to the shards.
pub(crate) async fn lose_all(shared: &Shared) {
    let _moving = shared.moving.lock().await;
    let shards: BTreeSet<ShardId> = shared.shards.owned().into_iter().collect();
    if !shards.is_empty() {
        shared.shards.release(&shards);
        shared.count_shard_changes("lost", shards.len());
        let (sender, _in_flight) = oneshot::channel();
        shared.send(ToOwner::Release(shards, sender)).await;
    }
}

/// Releases a shard as [`lose_all`] does, after another member has taken the shard. Has no effect if this member has
/// already released the shard, or has taken it again under a later term than `term`.
pub(crate) async fn lose_superseded(shared: &Shared, shard: ShardId, term: Term) {
    let _moving = shared.moving.lock().await;
    if shared.shards.term(shard) == Ok(term) {
        let lost = BTreeSet::from([shard]);
        shared.shards.release(&lost);
        shared.count_shard_changes("lost", lost.len());
        let (sender, _in_flight) = oneshot::channel();
        shared.send(ToOwner::Release(lost, sender)).await;
    }
}

/// Cancels the schedules of the cancellation records that the store has not applied itself. Returns the cursor after
/// the last record.
async fn apply_cancellations(
    shared: &Shared,
    shards: Arc<[ShardId]>,
    cursor: Cursor,
    shard_term: impl Fn(ShardId) -> Result<ShardTerm, NotOwned>,
) -> Result<Cursor, StoreError> {
    let mut cursor = cursor;
    loop {
        let (records, next) = shared.store.cancellations(shards.clone(), cursor).await?;
        if records.is_empty() {
            return Ok(next);
        }
        let incarnations: Vec<_> = records.iter().map(|(_, incarnation)| *incarnation).collect();
        let schedules = shared.store.load(incarnations).await?;
        let mut writes = Vec::with_capacity(schedules.len());
        for schedule in schedules.into_iter().flatten() {
            let poller = schedule.poller;
            let term = shard_term(poller.shard())?.term;
            writes.push(OwnerWrite { term, poller, change: Change::Cancel(schedule.incarnation) });
        }
        // If the store does not find a schedule, the schedule is already cancelled. If another member owns the shard of
        // a record, this function returns an error.
        let written: Vec<(ShardId, Term)> = writes.iter().map(|write| (write.poller.shard(), write.term)).collect();
        let responses = shared.store.write(writes).await?;
        for ((shard, term), response) in written.into_iter().zip(&responses) {
            if *response == Err(WriteRejection::Superseded) {
                shared.superseded(shard, term);
            }
        }
        if responses.contains(&Err(WriteRejection::Superseded)) {
            return Err(StoreError::Unavailable(
                "cannot apply cancellation records: another owner took the shard under a later term".to_owned(),
            ));
        }
        cursor = next;
    }
}

/// Applies the cancellation records of this member's shards, at least all records that are durable at the start of this
/// call.
///
/// # Errors
/// Returns an error if the store fails, or if this member releases one of the shards during this call. The function may
/// then have applied only some of the records.
pub(crate) async fn apply_all_cancellations(shared: &Shared) -> Result<(), StoreError> {
    let mut cursor = shared.cancellations.lock().await;
    let shards: Arc<[ShardId]> = shared.shards.owned().into();
    if shards.is_empty() {
        return Ok(());
    }
    let shard_term = |shard| shared.shards.shard_term(shard).ok_or(NotOwned(shard));
    let applied = apply_cancellations(shared, shards, *cursor, shard_term).await;
    report_new_epoch(shared);
    *cursor = applied?;
    Ok(())
}

/// Reports the shards whose terms are from an earlier epoch of the store. The store has returned to an earlier state since
/// this member took them. Their owner may not notice this in time, because it writes nothing while no row is due.
fn report_new_epoch(shared: &Shared) {
    let epoch = shared.store.epoch();
    let is_void = |shard: &ShardId| shared.shards.term(*shard).is_ok_and(|term| term.epoch() < epoch);
    let void: Vec<ShardId> = shared.shards.owned().into_iter().filter(is_void).collect();
    if !void.is_empty() {
        tracing::warn!(shards = void.len(), "a new epoch of the store has begun; this member takes its shards again");
    }
    for shard in void {
        if let Ok(term) = shared.shards.term(shard) {
            shared.superseded(shard, term);
        }
    }
    if shared.tenants.epoch() < epoch {
        shared.events.report_unknown_poller();
    }
}

/// Sends this member's owner task the outcome of an attempt that an earlier owner had in flight.
///
/// # Errors
/// Returns an error if this member does not own the shard.
pub(crate) async fn receive_outcome(shared: &Shared, outcome: AttemptOutcome) -> Result<(), OwnerError> {
    let origin = origin_of(shared, &outcome).await;
    // The lock ensures that the owner task receives a gained shard and its handed-over attempts before the outcomes of
    // these attempts.
    let _moving = shared.moving.lock().await;
    if shared.shards.shard_term(outcome.poller.shard()).is_none() {
        return Err(OwnerError::NotOwned);
    }
    let (sender, was_expected) = oneshot::channel();
    shared.send(ToOwner::Outcome(outcome, origin, sender)).await;
    let _owner_ignores_an_unexpected_outcome = was_expected.await;
    Ok(())
}

/// Loads the origin of a final run that another member forwarded. A forwarded outcome contains no origin, because
/// members of earlier builds exchange outcomes, too. If the store does not return the schedule in time, the run counts
/// without a host and without labels.
async fn origin_of(shared: &Shared, outcome: &AttemptOutcome) -> Option<RunOrigin> {
    if !outcome.run.state.is_final() || shared.shards.shard_term(outcome.poller.shard()).is_none() {
        return None;
    }
    let loading = shared.store.load(vec![outcome.run.occurrence.incarnation]);
    let loaded = shared.runtime.timeout(ORIGIN_TIMEOUT, loading).await?;
    let schedule = loaded.ok()?.pop().flatten()?;
    Some(RunOrigin::of(&schedule))
}
