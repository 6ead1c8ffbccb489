//! Explanation of one instant of a schedule. This module reads the facts, and [`domain::explain`] derives the causes.
//!
//! Every member can explain an instant, because the facts are in the store. A bounded number of reads collects them.
//! Only the owner knows whether an attempt is in flight, and why an occurrence waits now. This module asks the owner only
//! about an occurrence that is due, or that a recent change made void.
//!
//! docs/decisions/0241-explain-occurrences-from-past-timings.md gives the reasons for the design.

use std::time::Duration;

use domain::explain::{Explanation, Facts, explain};
use domain::occurrence::Run;
use domain::{
    DueKey, LATE_MIN, PastTiming, Revision, RunFilter, RunState, Schedule, ScheduleId, ShardId, Status, TenantId,
    Timestamp, When,
};
use store::{DueBound, DueRead, Order, RunRead, StoreError};

use crate::cluster::forwarding::Forwarding;
use crate::requests::{Progress, Waiting};
use crate::shared::Shared;

/// Maximum number of past timings that an explanation reads, the newest ones.
const PAST_TIMINGS_MAX: u32 = 1_000;
/// Maximum number of runs that an explanation reads: the runs at the instant, and the newest runs before it.
const RUNS_MAX: usize = 20;
/// Maximum number of reads for these runs. An engine may return an empty page for the runs of several days.
const READS_MAX: usize = 32;
/// Maximum number of due rows among which an explanation looks for the row of a retry.
const DUE_ROWS_MAX: usize = 1_000;
/// Time after a change in which an explanation asks the owner for an attempt of the old revision.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(3_600);
/// Reason for which the store cannot read a schedule. The log contains the details, which are not for users.
const DAMAGED: &str = "its data is damaged; ask an operator to find its location in the server's log";

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
        Err(error @ StoreError::Damaged(_)) => {
            tracing::error!(%error, "cannot read the schedule to explain");
            return Ok(Some(Explanation::unreadable(DAMAGED)));
        }
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
    let due = due_since(&schedule, &runs, at, retry_at).filter(|due| *due <= now && now.since(*due) >= LATE_MIN);
    let (is_owner_reachable, progress) = match due.or_else(|| replaced_since(&past, &runs, at, now)) {
        Some(due) => {
            let Schedule { poller, incarnation, .. } = *schedule;
            let waiting = Waiting { poller, incarnation, nominal: at, target: schedule.spec.target.key(), due };
            match forwarding.progress(waiting).await {
                Ok(progress) => (true, progress),
                Err(_) => (false, Progress::default()),
            }
        }
        None => (has_owner(schedule.poller.shard()), Progress::default()),
    };
    // A tenant that is not known yet has no class.
    let default = now - shared.options.history;
    let history_from = shared.tenants.get(tenant).map_or(default, |tenant| tenant.history_from(now, default));
    Ok(Some(explain(&Facts {
        at,
        now,
        schedule: &schedule,
        past: &past,
        runs: &runs,
        history_from,
        retry_at,
        delay: progress.delay,
        is_in_flight: progress.is_in_flight,
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

/// Returns `at` if a change has ended the timing of this instant so recently that an attempt of the occurrence can still
/// be in flight.
fn replaced_since(past: &[PastTiming], runs: &[Run], at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let is_open = |run: &Run| run.occurrence.nominal != at || run.state == RunState::Retrying;
    let is_recent = |past: &PastTiming| past.until.is_some_and(|until| at < until && now.since(until) < IN_FLIGHT_MAX);
    (at <= now && runs.iter().all(is_open) && past.iter().any(is_recent)).then_some(at)
}

/// Returns the runs of the schedule at `at` and the newest runs before `at`, in the order of their occurrences.
async fn runs_until(shared: &Shared, schedule: &Schedule, at: Timestamp) -> Result<Vec<Run>, StoreError> {
    let mut read = RunRead {
        tenant: schedule.tenant,
        schedules: Some(vec![schedule.incarnation]),
        from: Timestamp::MIN,
        until: at + Duration::from_millis(1),
        filter: RunFilter::default(),
        order: Order::Newest,
        after: None,
        limit: RUNS_MAX,
    };
    let mut runs = Vec::new();
    for _ in 0..READS_MAX {
        let page = shared.store.list_runs(read.clone()).await?;
        runs.extend(page.runs);
        (read.after, read.limit) = (page.next, RUNS_MAX.saturating_sub(runs.len()));
        if read.after.is_none() || read.limit == 0 {
            break;
        }
    }
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
