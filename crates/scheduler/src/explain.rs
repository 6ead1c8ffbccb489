//! Explanation of one instant of a schedule. This module reads the facts, and [`domain::explain`] derives the causes.
//!
//! Every member can explain an instant, because the facts are in the store. A bounded number of reads collects them.
//! Only the owner knows the reason for which an occurrence waits now, and only if the occurrence waits does this module
//! ask it.
//!
//! docs/decisions/0241-explain-occurrences-from-past-timings.md gives the reasons for the design.

use std::time::Duration;

use domain::explain::{Explanation, Facts, explain};
use domain::occurrence::Run;
use domain::{
    Delay, DueKey, LATE_MIN, Revision, RunFilter, RunState, Schedule, ScheduleId, ShardId, Status, TenantId, Timestamp,
    When,
};
use store::{DueBound, DueRead, Order, RunRead, StoreError};
use tokio::sync::oneshot;

use crate::cluster::forwarding::Forwarding;
use crate::firing::messages::ToOwner;
use crate::requests::{OwnerError, Waiting};
use crate::shared::Shared;

/// Maximum number of past timings that an explanation reads, the newest ones.
const PAST_TIMINGS_MAX: u32 = 1_000;
/// Maximum number of runs that an explanation reads: the runs at the instant, and the newest runs before it.
const RUNS_MAX: usize = 20;
/// Maximum number of due rows among which an explanation looks for the row of a retry.
const DUE_ROWS_MAX: usize = 1_000;

/// Explains the instant `at` of the schedule that has the id now. Returns `None` if no schedule has the id.
///
/// # Errors
/// Returns an error if the store fails. A damaged row of the schedule is no error, because it is the explanation.
pub(crate) async fn explain_at(
    shared: &Shared,
    forwarding: &Forwarding,
    has_owner: impl Fn(ShardId) -> bool,
    tenant: TenantId,
    id: ScheduleId,
    at: Timestamp,
) -> Result<Option<Explanation>, StoreError> {
    let store = &shared.store;
    let schedule = match store.get(vec![(tenant, id)]).await {
        Ok(mut found) => found.pop().flatten(),
        Err(StoreError::Damaged(reason)) => return Ok(Some(Explanation::unreadable(&reason))),
        Err(error) => return Err(error),
    };
    let Some(schedule) = schedule else { return Ok(None) };
    let turn = shared.turns.take(tenant).await;
    let from = Revision(schedule.revision.0.saturating_sub(PAST_TIMINGS_MAX));
    let past = store.past_timings(schedule.incarnation, from, PAST_TIMINGS_MAX as usize).await?;
    let runs = runs_until(shared, &schedule, at).await?;
    let retrying = runs.iter().rfind(|run| run.occurrence.nominal == at && run.state == RunState::Retrying);
    let retry_at = match retrying {
        Some(run) => retry_of(shared, &schedule, run).await?,
        None => None,
    };
    drop(turn);
    let now = shared.clock.now();
    let (is_owner_reachable, delay) = match due_since(&schedule, &runs, at, retry_at).filter(|due| *due <= now) {
        Some(due) if now.since(due) >= LATE_MIN => {
            let Schedule { poller, incarnation, .. } = *schedule;
            let waiting = Waiting { poller, incarnation, target: schedule.spec.target.key(), due };
            match forwarding.delay_now(waiting).await {
                Ok(delay) => (true, delay),
                Err(_) => (false, None),
            }
        }
        _ => (has_owner(schedule.poller.shard()), None),
    };
    Ok(Some(explain(&Facts {
        at,
        now,
        schedule: &schedule,
        past: &past,
        runs: &runs,
        history_from: now - shared.options.history,
        retry_at,
        delay,
        is_owner_reachable,
    })))
}

/// Returns the instant since which the occurrence at `at` waits or will wait for its next attempt. Returns `None` if no
/// attempt of this occurrence is due or will be due.
fn due_since(schedule: &Schedule, runs: &[Run], at: Timestamp, retry_at: Option<Timestamp>) -> Option<Timestamp> {
    if runs.iter().any(|run| run.occurrence.nominal == at) {
        return retry_at;
    }
    let is_next = schedule.status == Status::Active && schedule.next == Some(at);
    let set_at = if matches!(schedule.spec.when, When::At(_)) { schedule.updated_at } else { at };
    is_next.then_some(at.max(set_at))
}

/// Returns the reason for which a key waits now, according to this member's owner.
///
/// # Errors
/// Returns an error if this member does not own the shard of the key.
pub(crate) async fn delay_now(shared: &Shared, waiting: Waiting) -> Result<Option<Delay>, OwnerError> {
    if !shared.owns(waiting.poller.shard()) {
        return Err(OwnerError::NotOwned);
    }
    if shared.in_flight.contains(waiting.incarnation) {
        return Ok(None); // The attempt has started.
    }
    let (sender, delay) = oneshot::channel();
    let sent = shared.send(ToOwner::Waiting(waiting, sender)).await;
    Ok(if sent { delay.await.ok().flatten() } else { None })
}

/// Returns the runs of the schedule at `at` and the newest runs before `at`, in the order of their occurrences.
async fn runs_until(shared: &Shared, schedule: &Schedule, at: Timestamp) -> Result<Vec<Run>, StoreError> {
    let read = RunRead {
        tenant: schedule.tenant,
        schedules: Some(vec![schedule.incarnation]),
        from: Timestamp::MIN,
        until: at + Duration::from_millis(1),
        filter: RunFilter::default(),
        order: Order::Newest,
        after: None,
        limit: RUNS_MAX,
    };
    let mut runs = shared.store.list_runs(read).await?.runs;
    runs.sort_by_key(|run| run.occurrence);
    Ok(runs)
}

/// Returns the position of the due row of the run's retry. Returns `None` if many other rows are due before it.
async fn retry_of(shared: &Shared, schedule: &Schedule, run: &Run) -> Result<Option<Timestamp>, StoreError> {
    let Some(last) = run.attempts.last() else { return Ok(None) };
    let (poller, after) = (schedule.poller, DueBound::Instant(last.started_at));
    let read = DueRead { poller, after, until: Timestamp::MAX, limit: DUE_ROWS_MAX };
    let page = shared.store.due(vec![read]).await?.pop().unwrap_or_default();
    let is_retry = |key: &&DueKey| key.occurrence == run.occurrence && key.attempt > last.number;
    Ok(page.keys.iter().find(is_retry).map(|key| key.position))
}
