//! Run executor. It makes the attempts of the keys that the dispatch queue selects.
//!
//! One task takes several keys, reads their schedules in one call, and makes their attempts concurrently. Errors in a
//! tenant's data do not affect other tenants. A panic becomes a failed attempt, and the owner defers a row that the
//! store cannot read.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::decide::{CatchUp, Start, after_attempt, after_outcome, at_start, may_start_untraced};
use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, BUS_NOT_CONFIGURED, BUS_REJECTED, Delay, DueKey, EGRESS_REJECTED, Incarnation, LATE_MIN,
    NOT_DECRYPTED, Occurrence, PollerId, RunOrigin, RunState, Schedule, Status, Timestamp, When,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future::BoxFuture};
use runtime::Monotonic;
use store::{Change, OwnerWrite, StoreError};
use tokio::sync::oneshot;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::cluster::shards::ShardTerm;
use crate::deliver::{CONNECTION_WAIT_MAX, Delivered, Delivery};
use crate::firing::context::Context;
use crate::firing::dispatch::{Lane, TargetHealth, Wait};
use crate::firing::governor::measured;
use crate::firing::messages::{EndReason, Ended, PendingWrite, Then, ToOwner, ToWriter};
use crate::firing::window::EntryId;
use crate::metrics::{AttemptLabels, OutcomeLabels, Reason, count_store_error};

/// Longest time by which the clock of an earlier owner may be ahead of this member's clock. An earlier owner may have
/// fired each row that is due at most this time after the start of this member's term.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(10);
/// Time after an attempt's timeout within which the outcome of the attempt becomes durable. The next owner waits this
/// time for the outcome.
const OUTCOME_TIME: Duration = Duration::from_secs(2);

/// Key that the dispatch queue has selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starting {
    pub(crate) entry: EntryId,
    pub(crate) lane: Lane,
    pub(crate) key: DueKey,
    pub(crate) poller: PollerId,
    pub(crate) shard_term: ShardTerm,
    /// Deadline for the start of the attempt. The owner determines the deadline before the run executor loads the
    /// schedule.
    pub(crate) deadline: Monotonic,
    /// Durable `closed` of the poller before the run executor loaded the schedule.
    pub(crate) closed: Timestamp,
    /// Durable `closed` of the poller when this owner took the shard.
    pub(crate) closed_at_take: Timestamp,
    pub(crate) catch_up: CatchUp,
    /// Reason for which a first attempt starts late, and the end of its wait. `None` if the attempt is on time, if the
    /// owner knows no reason, or if the key is that of a retry or of a redriven dead letter.
    pub(crate) wait: Option<Wait>,
}

impl Starting {
    fn ended(&self, reason: EndReason) -> Ended {
        Ended { lane: self.lane, entry: self.entry, reason, health: None, cost: None }
    }

    /// Returns the reason for which the attempt starts late. The wait of an attempt begins when a user sets its timing.
    fn delay(&self, schedule: &Schedule, started_at: Timestamp) -> Option<Delay> {
        let due = self.key.occurrence.nominal.max(schedule.updated_at);
        let wait = self.wait.filter(|wait| wait.until > due)?;
        (started_at.since(due) >= LATE_MIN).then_some(wait.delay)
    }

    fn pending_write(&self, change: Change, then: Then) -> PendingWrite {
        PendingWrite { write: OwnerWrite { term: self.shard_term.term, poller: self.poller, change }, then }
    }
}

/// Makes the attempts of all keys in `batch`, and sends the results to the owner and the outcome writer. If
/// `is_measured` is true, measures the processor time of each attempt.
pub(crate) async fn start(context: Arc<Context>, batch: Vec<Starting>, is_measured: bool) {
    let schedules = load(&context, &batch).await;
    let runs = find_runs(&context, &batch, &schedules).await;
    let mut ended = Vec::new();
    let mut attempts: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
    for (starting, schedule) in batch.iter().zip(schedules) {
        let run = match runs.get(&starting.key.occurrence).map(Result::as_ref).transpose() {
            Ok(run) => run,
            Err(error) => {
                ended.push(starting.ended(read_failure(error)));
                continue;
            }
        };
        let schedule = match schedule {
            Ok(schedule) => schedule,
            Err(error) => {
                ended.push(starting.ended(read_failure(&error)));
                continue;
            }
        };
        let attempt = start_one(&context, *starting, schedule, run);
        attempts.push(if is_measured { Box::pin(with_cost(&context, attempt)) } else { Box::pin(attempt) });
    }
    loop {
        // One message contains all results that are ready.
        while let Some(Some(one)) = attempts.next().now_or_never() {
            ended.push(one);
        }
        if !ended.is_empty() && context.to_owner.send(ToOwner::Ended(std::mem::take(&mut ended))).await.is_err() {
            return; // The owner has ended. The next owner fires the rows that have no outcome.
        }
        match attempts.next().await {
            Some(one) => ended.push(one),
            None => return,
        }
    }
}

/// Returns the [`EndReason`] of a key whose schedule the store could not read. If the store is unavailable, the owner
/// tries the key again soon. If the row is damaged, the owner defers the key.
fn read_failure(error: &StoreError) -> EndReason {
    if error.is_retryable() { EndReason::Unavailable } else { EndReason::Unreadable }
}

type Loaded = Result<Option<Arc<Schedule>>, StoreError>;

/// Loads the schedules in one call. If the call fails, loads each schedule in its own call, so that one damaged row
/// does not delay the other schedules.
async fn load(context: &Context, batch: &[Starting]) -> Vec<Loaded> {
    let incarnations: Vec<Incarnation> = batch.iter().map(|starting| starting.key.occurrence.incarnation).collect();
    match load_some(context, incarnations.clone()).await {
        Ok(schedules) => schedules.into_iter().map(Ok).collect(),
        Err(_) => {
            let mut schedules = Vec::with_capacity(incarnations.len());
            for incarnation in incarnations {
                let one = load_some(context, vec![incarnation]).await;
                schedules.push(one.map(|mut one| one.pop().flatten()));
            }
            schedules
        }
    }
}

async fn load_some(
    context: &Context,
    incarnations: Vec<Incarnation>,
) -> Result<Vec<Option<Arc<Schedule>>>, StoreError> {
    let response = context.store.load(incarnations).await;
    if let Err(error) = &response {
        count_store_error(&context.metrics, "load", error);
    }
    response
}

/// Loads the records of the runs that may have a record. A run has no record before its first attempt. This function
/// therefore omits a run if its first attempt is due, no earlier owner can have made this attempt, and the run has no other
/// row. A creator that was late may have written a second row, at a position after the run's instant. If a record is
/// damaged, this function loads each record in its own call, so that the damaged one does not delay the other runs.
async fn find_runs(
    context: &Context,
    batch: &[Starting],
    schedules: &[Loaded],
) -> BTreeMap<Occurrence, Result<Run, StoreError>> {
    let may_have_record = |starting: &Starting, schedule: &Loaded| {
        let DueKey { position, occurrence, attempt, .. } = starting.key;
        let is_next = matches!(schedule, Ok(Some(schedule)) if schedule.next == Some(occurrence.nominal));
        let is_late = position <= starting.shard_term.since + CLOCK_AHEAD_MAX;
        attempt > 1 || occurrence.replay > 0 || !is_next || is_late || position > occurrence.nominal
    };
    let candidates: Vec<Occurrence> = (batch.iter().zip(schedules))
        .filter(|(starting, schedule)| may_have_record(starting, schedule))
        .map(|(starting, _)| starting.key.occurrence)
        .collect();
    if candidates.is_empty() {
        return BTreeMap::new();
    }
    match find_some(context, candidates.clone()).await {
        Ok(runs) => runs.into_iter().map(|run| (run.occurrence, Ok(run))).collect(),
        Err(error) if error.is_retryable() => candidates.into_iter().map(|of| (of, Err(error.clone()))).collect(),
        Err(_) => {
            let mut runs = BTreeMap::new();
            for of in candidates {
                match find_some(context, vec![of]).await {
                    Ok(run) => runs.extend(run.into_iter().map(|run| (of, Ok(run)))),
                    Err(error) => drop(runs.insert(of, Err(error))),
                }
            }
            runs
        }
    }
}

async fn find_some(context: &Context, occurrences: Vec<Occurrence>) -> Result<Vec<Run>, StoreError> {
    let response = context.store.find_runs(occurrences).await;
    if let Err(error) = &response {
        count_store_error(&context.metrics, "find_runs", error);
    }
    Ok(response?.into_iter().flatten().collect())
}

async fn with_cost(context: &Context, attempt: impl Future<Output = Ended>) -> Ended {
    let (ended, cost) = measured(&context.runtime, attempt).await;
    Ended { cost: Some(cost), ..ended }
}

async fn start_one(context: &Context, starting: Starting, schedule: Option<Arc<Schedule>>, run: Option<&Run>) -> Ended {
    // The function `start_loaded` uses a tenant's data. If it panics, the panic must not end the other attempts of the
    // batch.
    match AssertUnwindSafe(start_loaded(context, starting, schedule.clone(), run)).catch_unwind().await {
        Ok(ended) => ended,
        Err(_) => {
            context.metrics.panics.inc();
            let run_id = starting.key.occurrence.run_id();
            tracing::error!(run = %run_id, "start of an attempt panicked; the attempt counts as failed");
            let Some(schedule) = schedule else { return starting.ended(EndReason::Dropped) };
            let attempt = Attempt {
                number: starting.key.attempt,
                started_at: context.clock.now(),
                duration: Duration::ZERO,
                result: AttemptResult::Panicked,
                delay: None,
                excerpt: None,
            };
            write_attempt(context, starting, &schedule, run, attempt, None).await
        }
    }
}

async fn start_loaded(
    context: &Context,
    starting: Starting,
    schedule: Option<Arc<Schedule>>,
    run: Option<&Run>,
) -> Ended {
    let key = starting.key;
    let Some(schedule) = schedule.filter(|schedule| schedule.revision >= key.occurrence.revision) else {
        // A creator writes the due row before the schedule or its new revision, so the create or the replacement may be
        // in progress or may have failed. If `closed` has passed the row, an active creator writes the row again, and the
        // owner can drop this key. Otherwise, the creator may write the schedule soon, and the owner tries the key again.
        let is_closed = key.position <= starting.closed;
        return starting.ended(if is_closed { EndReason::Dropped } else { EndReason::NotCreated });
    };
    if let Some(run) = run
        && (run.state.is_final() || run.attempts.last().is_some_and(|attempt| attempt.number >= key.attempt))
    {
        return has_outcome(context, starting, &schedule, run).await;
    }
    let now = context.clock.now();
    if now < key.occurrence.nominal {
        return starting.ended(EndReason::NotDue);
    }
    let closed_at_take = starting.closed_at_take.max(starting.shard_term.reopened_from);
    match at_start(&schedule, &key, starting.catch_up, closed_at_take, now) {
        Start::Fire { advance } => {
            if let Some(due) = advance
                && !advance_before_start(context, starting, &schedule, due).await
            {
                return starting.ended(EndReason::Released);
            }
            let span = fire_span(&schedule, &key);
            fire(context, starting, schedule, run).instrument(span).await
        }
        Start::Skip { missed, latest } => {
            count_outcome(context, missed.state);
            let origin = Some(RunOrigin::of(&schedule));
            let change = Change::Run { run: missed, then: None, ends: false, origin };
            write(context, starting.pending_write(change, Then::Nothing)).await;
            advance_to(context, starting, &schedule, latest, Then::Resolve(starting.entry)).await;
            starting.ended(EndReason::Writing)
        }
        Start::Move { next } => {
            advance_to(context, starting, &schedule, next, Then::Resolve(starting.entry)).await;
            starting.ended(EndReason::Writing)
        }
        Start::Drop(_) => starting.ended(EndReason::Dropped),
        Start::Cancel => {
            let run = Run {
                tenant: schedule.tenant,
                occurrence: key.occurrence,
                state: RunState::Cancelled,
                attempts: run.map_or_else(Vec::new, |run| run.attempts.clone()),
            };
            count_outcome(context, run.state);
            let origin = Some(RunOrigin::of(&schedule));
            let change = Change::Run { run, then: None, ends: false, origin };
            write(context, starting.pending_write(change, Then::Resolve(starting.entry))).await;
            starting.ended(EndReason::Writing)
        }
        Start::Unreadable { error } => {
            tracing::error!(
                schedule = %schedule.id,
                %error,
                "cannot parse the stored schedule; the owner defers its due row"
            );
            starting.ended(EndReason::Unreadable)
        }
    }
}

/// Handles a key whose attempt already has an outcome. Either a creator wrote the row twice, or an earlier owner ended
/// after it wrote the outcome and before it wrote the schedule's next row.
async fn has_outcome(context: &Context, starting: Starting, schedule: &Schedule, run: &Run) -> Ended {
    let is_one_shot = matches!(schedule.spec.when, When::At(_));
    let Occurrence { incarnation, revision, replay, .. } = run.occurrence;
    if run.state.is_final() && is_one_shot && replay == 0 && schedule.status == Status::Active {
        write(context, starting.pending_write(Change::End { incarnation, revision }, Then::Nothing)).await;
    }
    let next = after_outcome(schedule, run, starting.key.target, context.clock.now());
    if let Some(due) = next.filter(|_| starting.key.attempt == 1) {
        advance_to(context, starting, schedule, due, Then::Resolve(starting.entry)).await;
        return starting.ended(EndReason::Writing);
    }
    starting.ended(EndReason::Dropped)
}

/// Writes the schedule's next due row before the start of an attempt. Waits until the row is durable, unless the
/// attempt may start untraced. Returns false if the attempt must not start, because this owner has ended or the shard
/// has a later owner.
async fn advance_before_start(context: &Context, starting: Starting, schedule: &Schedule, due: DueKey) -> bool {
    let is_durable = schedule.next == Some(due.occurrence.nominal);
    if is_durable || may_start_untraced(starting.key.occurrence.nominal, starting.closed) {
        advance_to(context, starting, schedule, due, Then::Nothing).await;
        return true;
    }
    let (sender, may_start) = oneshot::channel();
    let pending_write = starting.pending_write(advance(schedule, due), Then::Nothing);
    let sent = context.to_writer.send(ToWriter::WriteBeforeStart(pending_write, sender)).await;
    sent.is_ok() && may_start.await.unwrap_or(false)
}

async fn advance_to(context: &Context, starting: Starting, schedule: &Schedule, due: DueKey, then: Then) {
    write(context, starting.pending_write(advance(schedule, due), then)).await;
}

fn advance(schedule: &Schedule, due: DueKey) -> Change {
    Change::Advance { incarnation: schedule.incarnation, revision: schedule.revision, due }
}

/// Creates the tracing span of an attempt. The target of the span is `reveille::spans`, as for the spans of requests.
/// Exporters of traces depend on the names of the span's fields.
fn fire_span(schedule: &Schedule, key: &DueKey) -> Span {
    tracing::debug_span!(
        target: "reveille::spans",
        "fire",
        run = %key.occurrence.run_id(),
        schedule = schedule.id.as_str(),
        tenant = schedule.tenant.0,
        attempt = key.attempt,
        scheduled_at = %key.occurrence.nominal,
        result = Empty
    )
}

/// Returns the instant by which the outcome of an attempt that starts at `started_at` is durable.
pub(crate) fn ends_by(started_at: Timestamp, schedule: &Schedule) -> Timestamp {
    started_at + CONNECTION_WAIT_MAX + schedule.spec.target.timeout() + OUTCOME_TIME
}

async fn fire(context: &Context, starting: Starting, schedule: Arc<Schedule>, run: Option<&Run>) -> Ended {
    let key = starting.key;
    // The run executor reads the clock again, because the clock may have gone back while the outcome writer wrote the
    // next row.
    let started_at = context.clock.now();
    if started_at < key.occurrence.nominal {
        return starting.ended(EndReason::NotDue);
    }
    let began = context.runtime.monotonic();
    if key.attempt == 1 && key.occurrence.replay == 0 {
        let lateness = started_at.since(key.occurrence.nominal);
        context.metrics.start_lateness_seconds.observe(lateness.as_secs_f64());
    }
    let Some(tenant) = context.tenants.get(schedule.tenant) else {
        tracing::error!(tenant = schedule.tenant.0, "due row belongs to an unknown tenant; the owner defers the row");
        return starting.ended(EndReason::Unreadable);
    };
    let until = ends_by(started_at, &schedule);
    if began >= starting.deadline || !context.in_flight.begin(&key.occurrence, starting.shard_term.term, until) {
        return starting.ended(EndReason::Released);
    }
    let delivery = Delivery {
        tenant,
        schedule: schedule.clone(),
        occurrence: key.occurrence,
        attempt: key.attempt,
        term: starting.shard_term.term,
        started_at,
        deadline: starting.deadline,
    };
    let attempt = AssertUnwindSafe(async { context.deliver.deliver(delivery).await }).catch_unwind().await;
    let delivered = attempt.unwrap_or_else(|_| {
        context.metrics.panics.inc();
        tracing::error!(run = %key.occurrence.run_id(), "callback delivery panicked; the attempt counts as failed");
        Some(Delivered { result: AttemptResult::Panicked, retry_after: None, excerpt: None })
    });
    let Some(delivered) = delivered else { return starting.ended(EndReason::Released) };
    Span::current().record("result", AttemptLabels::of(schedule.spec.target.kind(), &delivered.result).result());
    let duration = context.runtime.monotonic().since(began);
    context.metrics.callback_duration_seconds.observe(duration.as_secs_f64());
    let delay = starting.delay(&schedule, started_at);
    let Delivered { result, retry_after, excerpt } = delivered;
    let attempt = Attempt { number: key.attempt, started_at, duration, result, delay, excerpt };
    write_attempt(context, starting, &schedule, run, attempt, retry_after).await
}

async fn write_attempt(
    context: &Context,
    starting: Starting,
    schedule: &Schedule,
    run: Option<&Run>,
    attempt: Attempt,
    retry_after: Option<Duration>,
) -> Ended {
    let key = starting.key;
    let runtime = &context.runtime;
    // While the steady clock does not follow a leap of the wall clock, the retry does not follow it either.
    let now = context.steady.now();
    let outcome = after_attempt(schedule, &key, &attempt.result, retry_after, now, runtime.random());
    let health = target_health(&attempt.result);
    let labels = AttemptLabels::of(schedule.spec.target.kind(), &attempt.result);
    context.metrics.callback_attempts.get_or_create(&labels).inc();
    count_outcome(context, outcome.state);
    if outcome.state == RunState::Failed {
        report_dead_letter(context, schedule, &key, labels.result());
    }
    let mut attempts = run.map_or_else(Vec::new, |run| run.attempts.clone());
    if attempts.len() == domain::limits::ATTEMPTS_KEPT {
        attempts.remove(0);
    }
    attempts.push(attempt);
    let run = Run { tenant: schedule.tenant, occurrence: key.occurrence, state: outcome.state, attempts };
    let origin = run.state.is_final().then(|| RunOrigin::of(schedule));
    let change = Change::Run { run, then: outcome.then, ends: outcome.ends, origin };
    write(context, starting.pending_write(change, Then::Resolve(starting.entry))).await;
    Ended { health: Some(health), ..starting.ended(EndReason::Writing) }
}

/// Returns the health of the target, according to the result of the attempt.
fn target_health(result: &AttemptResult) -> TargetHealth {
    match result {
        // The attempt ended before it reached the target.
        AttemptResult::Unreachable(reason)
            if [EGRESS_REJECTED, NOT_DECRYPTED, BUS_NOT_CONFIGURED].iter().any(|prefix| reason.starts_with(prefix)) =>
        {
            TargetHealth::Unknown
        }
        AttemptResult::Unreachable(reason) if reason.starts_with(BUS_REJECTED) => TargetHealth::Available,
        AttemptResult::Answered(429 | 502 | 503 | 504) | AttemptResult::Unreachable(_) | AttemptResult::TimedOut => {
            TargetHealth::Unavailable
        }
        AttemptResult::Answered(_) | AttemptResult::Stored { .. } => TargetHealth::Available,
        AttemptResult::Panicked => TargetHealth::Unknown,
    }
}

fn count_outcome(context: &Context, state: RunState) {
    let metrics = &context.metrics;
    let (outcome, count) = match state {
        RunState::Retrying => {
            metrics.retries.inc();
            return;
        }
        RunState::Succeeded => ("succeeded", 1),
        RunState::Failed => ("failed", 1),
        RunState::Missed { count, .. } => {
            metrics.missed.get_or_create(&Reason { reason: "overdue" }).inc_by(count);
            ("missed", count)
        }
        RunState::Cancelled => ("cancelled", 1),
    };
    metrics.occurrences.get_or_create(&OutcomeLabels { outcome }).inc_by(count);
}

/// Reports a run that failed in its last attempt. `reason` is the result of that attempt. The log line contains neither
/// the target's URL nor its response, because both may contain secrets.
fn report_dead_letter(context: &Context, schedule: &Schedule, key: &DueKey, reason: &'static str) {
    context.metrics.dead_letters.get_or_create(&Reason { reason }).inc();
    tracing::info!(
        run = %key.occurrence.run_id(),
        schedule = %schedule.id,
        tenant = schedule.tenant.0,
        attempts = key.attempt,
        reason,
        "run became a dead letter"
    );
}

async fn write(context: &Context, pending_write: PendingWrite) {
    // The outcome writer outlives every task of its owner, so this send fails only if the process ends.
    let _process_ends = context.to_writer.send(ToWriter::Write(pending_write)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_health_is_unknown_if_attempt_sent_no_request() {
        for reason in [EGRESS_REJECTED, NOT_DECRYPTED, BUS_NOT_CONFIGURED] {
            let result = AttemptResult::Unreachable(format!("{reason}: a local reason"));
            assert_eq!(target_health(&result), TargetHealth::Unknown);
        }
        assert_eq!(
            target_health(&AttemptResult::Unreachable("connection refused".to_owned())),
            TargetHealth::Unavailable
        );
    }
}
