//! How this member gains shards, hands them over, and loses them.
//!
//! A shard is *taken* ([`take`]): the store mints a term, the cancellation records that wait are applied, and the attempts
//! that the owner before has in flight are read. Only then is it *gained*, and fires. It is *handed over* ([`hand_over`])
//! in this order: nothing starts any more, what is written is durable, what is in flight is handed over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::occurrence::Run;
use domain::{PollerId, ShardId, Term, Timestamp};
use store::{Change, Cursor, HandOver, HandedOver, OwnerWrite, StoreError, WriteRefusal};
use tokio::sync::oneshot;

use crate::cluster::shards::{NotOwned, ShardTerm};
use crate::firing::messages::{Gained, ToOwner, ToWriter};
use crate::requests::{AttemptOutcome, Undone};
use crate::shared::Shared;

/// Takes these shards and obeys the marks that wait there: only then may anything of them fire.
///
/// # Errors
/// If the store fails; then they are not owned.
pub(crate) async fn take(shared: &Shared, shards: &[ShardId]) -> Result<Gained, StoreError> {
    let since = shared.runtime.now();
    let terms = shared.store.take(shards.to_vec()).await?;
    let shard_terms: BTreeMap<ShardId, ShardTerm> =
        shards.iter().copied().zip(terms.into_iter().map(|term| ShardTerm { term, since })).collect();
    apply_cancellations(shared, shards.into(), Cursor::default(), |shard| Ok(shard_terms[&shard])).await?;
    let held = handed_over(shared, shards).await?;
    let pollers =
        shared.tenants.pollers().into_iter().filter(|poller| shard_terms.contains_key(&poller.shard())).collect();
    let pollers = with_positions(shared, pollers, |shard| shard_terms[&shard]).await?;
    // A mark that came since may lie behind what was obeyed for the other shards.
    let mut obeyed = shared.cancellations.lock().await;
    shared.shards.gain(shard_terms);
    *obeyed = Cursor::default();
    Ok(Gained { shards: shards.to_vec(), pollers, held })
}

async fn with_positions(
    shared: &Shared,
    pollers: Vec<PollerId>,
    shard_term: impl Fn(ShardId) -> ShardTerm,
) -> Result<Vec<(PollerId, ShardTerm, store::Positions)>, StoreError> {
    let positions = shared.store.positions(pollers.clone()).await?;
    let with = |(poller, positions): (PollerId, _)| (poller, shard_term(poller.shard()), positions);
    Ok(pollers.into_iter().zip(positions).map(with).collect())
}

/// Of `pollers`, those that are owned here and not among `known`. The caller holds the lock under which shards move.
pub(crate) async fn new_pollers(
    shared: &Shared,
    pollers: impl IntoIterator<Item = PollerId>,
    known: &BTreeSet<PollerId>,
) -> Result<Vec<(PollerId, ShardTerm, store::Positions)>, StoreError> {
    let new = pollers.into_iter().filter(|poller| !known.contains(poller));
    let owned: Vec<PollerId> = new.filter(|poller| shared.shards.shard_term(poller.shard()).is_some()).collect();
    if owned.is_empty() {
        return Ok(Vec::new());
    }
    let shard_term = |shard| shared.shards.shard_term(shard).expect("shards move only under the lock that is held");
    with_positions(shared, owned, shard_term).await
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
    let _writer_is_gone = owner.to_writer.send(ToWriter::Gained(closed)).await;
    let _owner_is_gone = owner.to_owner.send(ToOwner::Gained(gained)).await;
}

/// Stops firing what is due in these shards, and hands over what is in flight. Once it returns, nothing of theirs
/// starts any more.
///
/// # Errors
/// If the store fails: the next owner is not told what is in flight, and may make those attempts again.
pub(crate) async fn hand_over(shared: &Shared, shards: &BTreeSet<ShardId>) -> Result<(), StoreError> {
    let _moving = shared.moving.lock().await;
    let terms = shared.shards.release(shards);
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
    let asked = owner.to_owner.send(ToOwner::Release(shards.clone(), tell)).await.is_ok();
    // An owner that panicked holds nothing; what it had in flight may be made again.
    let begun = if asked { begun.await.unwrap_or_default() } else { Vec::new() };
    let (tell, flushed) = oneshot::channel();
    if owner.to_writer.send(ToWriter::Flush(tell)).await.is_ok() {
        let _flushed_or_gone = flushed.await;
    }
    begun
}

/// As [`hand_over`], of shards that are lost: there is nobody to hand over to.
pub(crate) async fn lose(shared: &Shared, shards: &BTreeSet<ShardId>) {
    let _moving = shared.moving.lock().await;
    let lost = shared.shards.release(shards);
    if !lost.is_empty() {
        shared.moved("lost", lost.len());
        let (tell, _begun) = oneshot::channel();
        shared.send(ToOwner::Release(shards.clone(), tell)).await;
    }
}

/// As [`lose`], of a shard that another has taken since it was owned under `term`; without effect if it came back.
pub(crate) async fn lose_superseded(shared: &Shared, shard: ShardId, term: Term) {
    let _moving = shared.moving.lock().await;
    if shared.shards.term(shard) == Ok(term) {
        let lost = BTreeSet::from([shard]);
        shared.shards.release(&lost);
        shared.moved("lost", lost.len());
        let (tell, _begun) = oneshot::channel();
        shared.send(ToOwner::Release(lost, tell)).await;
    }
}

/// Cancels what marks name that the engine has not cancelled itself, and says where they end.
async fn apply_cancellations(
    shared: &Shared,
    shards: Arc<[ShardId]>,
    cursor: Cursor,
    shard_term: impl Fn(ShardId) -> Result<ShardTerm, NotOwned>,
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
            let term = shard_term(poller.shard())?.term;
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
pub(crate) async fn apply_all_cancellations(shared: &Shared) -> Result<(), StoreError> {
    let mut cursor = shared.cancellations.lock().await;
    let shards: Arc<[ShardId]> = shared.shards.owned().into();
    if shards.is_empty() {
        return Ok(());
    }
    let shard_term = |shard| shared.shards.shard_term(shard).ok_or(NotOwned(shard));
    *cursor = apply_cancellations(shared, shards, *cursor, shard_term).await?;
    Ok(())
}

/// Gives the owner an outcome of an attempt that an earlier owner had in flight.
///
/// # Errors
/// If its shard is not owned here.
pub(crate) async fn receive_outcome(shared: &Shared, outcome: AttemptOutcome) -> Result<(), Undone> {
    // A shard that is being gained is given to the owner first, with the attempts that it has to wait for.
    let _moving = shared.moving.lock().await;
    if shared.shards.shard_term(outcome.poller.shard()).is_none() {
        return Err(Undone::NotOwned);
    }
    let (tell, told) = oneshot::channel();
    shared.send(ToOwner::Outcome(outcome, tell)).await;
    let _owner_did_not_wait = told.await;
    Ok(())
}
