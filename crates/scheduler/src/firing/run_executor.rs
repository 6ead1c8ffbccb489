//! From a key that has its turn to an attempt that is done.
//!
//! One task takes a handful of keys, reads their schedules in one call, and makes their attempts side by side. What a
//! tenant's data can do to it ends here: a panic is a failed attempt, a row that cannot be read is put off.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use domain::decide::{Start, after_attempt, after_outcome, at_start};
use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, DueKey, EGRESS_REFUSED, Incarnation, NOT_OPENED, Occurrence, PollerId, RunState, Schedule,
    Status, Target, When,
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::{FutureExt, future::BoxFuture};
use runtime::Monotonic;
use store::{Change, OwnerWrite, StoreError};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::cluster::shards::ShardTerm;
use crate::deliver::{Delivered, Delivery};
use crate::firing::context::Context;
use crate::firing::dispatch::{Lane, TargetSays};
use crate::firing::messages::{Ended, HowEnded, PendingWrite, Then, ToOwner, ToWriter};
use crate::firing::window::EntryId;
use crate::metrics::{AttemptLabels, OutcomeLabels, Reason, count_store_error};

/// How far ahead of this owner's clock an earlier owner's may have been: what is due so soon after the shards were taken
/// may have been fired before.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(10);
/// How long after its timeout an attempt's outcome may take to become durable: so long does the next owner wait for it.
const OUTCOME_TIME: Duration = Duration::from_secs(2);

/// A key that has its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Starting {
    pub(crate) entry: EntryId,
    pub(crate) lane: Lane,
    pub(crate) key: DueKey,
    pub(crate) poller: PollerId,
    pub(crate) shard_term: ShardTerm,
    /// When the right to start it ends, as it was before its schedule is looked for.
    pub(crate) deadline: Monotonic,
    /// The key's position was closed before its schedule is looked for.
    pub(crate) is_closed: bool,
}

impl Starting {
    fn ended(&self, how: HowEnded) -> Ended {
        Ended { lane: self.lane, entry: self.entry, how, says: None }
    }

    fn pending_write(&self, change: Change, then: Then) -> PendingWrite {
        PendingWrite { write: OwnerWrite { term: self.shard_term.term, poller: self.poller, change }, then }
    }
}

/// Starts all of `batch` and sees each to its pending_write.
pub(crate) async fn start(context: Arc<Context>, batch: Vec<Starting>) {
    let schedules = load(&context, &batch).await;
    let runs = find_runs(&context, &batch, &schedules).await;
    let mut ended = Vec::new();
    let mut attempts: FuturesUnordered<BoxFuture<'_, Ended>> = FuturesUnordered::new();
    for (starting, schedule) in batch.iter().zip(schedules) {
        let run = match &runs {
            Ok(runs) => runs.get(&starting.key.occurrence),
            Err(error) => {
                ended.push(starting.ended(unread(error)));
                continue;
            }
        };
        let schedule = match schedule {
            Ok(schedule) => schedule,
            Err(error) => {
                ended.push(starting.ended(unread(&error)));
                continue;
            }
        };
        attempts.push(Box::pin(start_one(&context, *starting, schedule, run)));
    }
    loop {
        // Whatever is ready goes in one message.
        while let Some(Some(one)) = attempts.next().now_or_never() {
            ended.push(one);
        }
        if !ended.is_empty() && context.to_owner.send(ToOwner::Ended(std::mem::take(&mut ended))).await.is_err() {
            return; // The owner is gone; its successor starts what has no outcome.
        }
        match attempts.next().await {
            Some(one) => ended.push(one),
            None => return,
        }
    }
}

/// What cannot be reached now is tried again soon; what is damaged does not get better by that.
fn unread(error: &StoreError) -> HowEnded {
    if error.is_retryable() { HowEnded::Unavailable } else { HowEnded::Unreadable }
}

type Loaded = Result<Option<Arc<Schedule>>, StoreError>;

/// All at once; if that fails, each alone, so that one damaged row holds up no other.
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
    let answer = context.store.load(incarnations).await;
    if let Err(error) = &answer {
        count_store_error(&context.metrics, "load", error);
    }
    answer
}

/// The records of those runs that may have one: a first attempt that nobody can have made before has none.
async fn find_runs(
    context: &Context,
    batch: &[Starting],
    schedules: &[Loaded],
) -> Result<BTreeMap<Occurrence, Run>, StoreError> {
    let may_have_record = |starting: &Starting, schedule: &Loaded| {
        let DueKey { position, occurrence, attempt, .. } = starting.key;
        let is_next = matches!(schedule, Ok(Some(schedule)) if schedule.next == Some(occurrence.nominal));
        attempt > 1 || occurrence.replay > 0 || !is_next || position <= starting.shard_term.since + CLOCK_AHEAD_MAX
    };
    let asked: Vec<Occurrence> = (batch.iter().zip(schedules))
        .filter(|(starting, schedule)| may_have_record(starting, schedule))
        .map(|(starting, _)| starting.key.occurrence)
        .collect();
    if asked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let answer = context.store.find_runs(asked).await;
    if let Err(error) = &answer {
        count_store_error(&context.metrics, "find_runs", error);
    }
    Ok(answer?.into_iter().flatten().map(|run| (run.occurrence, run)).collect())
}

async fn start_one(context: &Context, starting: Starting, schedule: Option<Arc<Schedule>>, run: Option<&Run>) -> Ended {
    // Deciding looks at a tenant's data: a panic there must not take the others along.
    match AssertUnwindSafe(start_known(context, starting, schedule.clone(), run)).catch_unwind().await {
        Ok(ended) => ended,
        Err(_) => {
            context.metrics.panics.inc();
            tracing::error!(run = %starting.key.occurrence.run_id(), "a panic at the start of a run; it counts as a failed attempt");
            let Some(schedule) = schedule else { return starting.ended(HowEnded::Dropped) };
            let attempt = Attempt {
                number: starting.key.attempt,
                started_at: context.runtime.now(),
                duration: Duration::ZERO,
                result: AttemptResult::Panicked,
            };
            write_attempt(context, starting, &schedule, run, attempt, None).await
        }
    }
}

async fn start_known(
    context: &Context,
    starting: Starting,
    schedule: Option<Arc<Schedule>>,
    run: Option<&Run>,
) -> Ended {
    let Some(schedule) = schedule else {
        // The schedule comes after its row. If the create is still under way, it will see what is closed and write the
        // row again, or the schedule will be there soon; if it has failed, this is what it left.
        return starting.ended(if starting.is_closed { HowEnded::Dropped } else { HowEnded::Unborn });
    };
    let key = starting.key;
    if let Some(run) = run
        && (run.state.is_final() || run.attempts.last().is_some_and(|attempt| attempt.number >= key.attempt))
    {
        return has_outcome(context, starting, &schedule, run).await;
    }
    let now = context.runtime.now();
    if now < key.occurrence.nominal {
        return starting.ended(HowEnded::NotYet);
    }
    match at_start(&schedule, &key, now) {
        Start::Fire { advance } => {
            if let Some(due) = advance {
                advance_to(context, starting, &schedule, due, Then::Nothing).await;
            }
            let span = fire_span(&schedule, &key);
            fire(context, starting, schedule, run).instrument(span).await
        }
        Start::Skip { missed, latest } => {
            count_outcome(context, missed.state);
            let change = Change::Run { run: missed, then: None, ends: false };
            write(context, starting.pending_write(change, Then::Nothing)).await;
            advance_to(context, starting, &schedule, latest, Then::Resolve(starting.entry)).await;
            starting.ended(HowEnded::Writing)
        }
        Start::Drop(_) => starting.ended(HowEnded::Dropped),
        Start::Cancel => {
            let run = Run {
                tenant: schedule.tenant,
                occurrence: key.occurrence,
                state: RunState::Cancelled,
                attempts: run.map_or_else(Vec::new, |run| run.attempts.clone()),
            };
            count_outcome(context, run.state);
            let change = Change::Run { run, then: None, ends: false };
            write(context, starting.pending_write(change, Then::Resolve(starting.entry))).await;
            starting.ended(HowEnded::Writing)
        }
        Start::Unreadable { error, defer: _ } => {
            tracing::error!(schedule = %schedule.id, %error, "a schedule's stored text is not understood; it is put off");
            starting.ended(HowEnded::Unreadable)
        }
    }
}

/// The row was written twice, or its owner ended between the outcome and what follows from it.
async fn has_outcome(context: &Context, starting: Starting, schedule: &Schedule, run: &Run) -> Ended {
    let is_one_shot = matches!(schedule.spec.when, When::At(_));
    let Occurrence { incarnation, revision, replay, .. } = run.occurrence;
    if run.state.is_final() && is_one_shot && replay == 0 && schedule.status == Status::Active {
        write(context, starting.pending_write(Change::End { incarnation, revision }, Then::Nothing)).await;
    }
    let next = after_outcome(schedule, run, starting.key.target, context.runtime.now());
    if let Some(due) = next.filter(|_| starting.key.attempt == 1) {
        advance_to(context, starting, schedule, due, Then::Resolve(starting.entry)).await;
        return starting.ended(HowEnded::Writing);
    }
    starting.ended(HowEnded::Dropped)
}

async fn advance_to(context: &Context, starting: Starting, schedule: &Schedule, due: DueKey, then: Then) {
    let Schedule { incarnation, revision, .. } = *schedule;
    write(context, starting.pending_write(Change::Advance { incarnation, revision, due }, then)).await;
}

/// Of a target of its own, as the spans of requests are; its fields' names are known to who exports spans.
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

async fn fire(context: &Context, starting: Starting, schedule: Arc<Schedule>, run: Option<&Run>) -> Ended {
    let key = starting.key;
    // Looked at again: the clock may have gone back while the next row was done.
    let started_at = context.runtime.now();
    if started_at < key.occurrence.nominal {
        return starting.ended(HowEnded::NotYet);
    }
    let began = context.runtime.monotonic();
    if key.attempt == 1 && key.occurrence.replay == 0 {
        let lateness = started_at.since(key.occurrence.nominal);
        context.metrics.start_lateness_seconds.observe(lateness.as_secs_f64());
    }
    let Some(tenant) = context.tenants.get(schedule.tenant) else {
        tracing::error!(tenant = schedule.tenant.0, "a due row of a tenant that does not exist");
        return starting.ended(HowEnded::Unreadable);
    };
    let Target::Http(target) = &schedule.spec.target;
    let until = started_at + target.timeout + OUTCOME_TIME;
    if began >= starting.deadline || !context.in_flight.begin(&key.occurrence, starting.shard_term.term, until) {
        return starting.ended(HowEnded::Released);
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
        tracing::error!(run = %key.occurrence.run_id(), "an attempt panicked; it counts as failed");
        Some(Delivered { result: AttemptResult::Panicked, retry_after: None })
    });
    let Some(delivered) = delivered else { return starting.ended(HowEnded::Released) };
    Span::current().record("result", AttemptLabels::of(&delivered.result).result());
    let duration = context.runtime.monotonic().since(began);
    context.metrics.callback_duration_seconds.observe(duration.as_secs_f64());
    let attempt = Attempt { number: key.attempt, started_at, duration, result: delivered.result };
    write_attempt(context, starting, &schedule, run, attempt, delivered.retry_after).await
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
    let outcome = after_attempt(schedule, &key, &attempt.result, retry_after, runtime.now(), runtime.random());
    let says = target_says(&attempt.result);
    context.metrics.callback_attempts.get_or_create(&AttemptLabels::of(&attempt.result)).inc();
    count_outcome(context, outcome.state);
    let mut attempts = run.map_or_else(Vec::new, |run| run.attempts.clone());
    if attempts.len() == domain::limits::ATTEMPTS_KEPT {
        attempts.remove(0);
    }
    attempts.push(attempt);
    let run = Run { tenant: schedule.tenant, occurrence: key.occurrence, state: outcome.state, attempts };
    let change = Change::Run { run, then: outcome.then, ends: outcome.ends };
    write(context, starting.pending_write(change, Then::Resolve(starting.entry))).await;
    Ended { says: Some(says), ..starting.ended(HowEnded::Writing) }
}

/// Whether the target is there, by what it answered.
fn target_says(result: &AttemptResult) -> TargetSays {
    match result {
        // The target was never asked.
        AttemptResult::Unreachable(reason) if reason.starts_with(EGRESS_REFUSED) || reason.starts_with(NOT_OPENED) => {
            TargetSays::Nothing
        }
        AttemptResult::Answered(429 | 502 | 503 | 504) | AttemptResult::Unreachable(_) | AttemptResult::TimedOut => {
            TargetSays::Away
        }
        AttemptResult::Answered(_) => TargetSays::Here,
        AttemptResult::Panicked => TargetSays::Nothing,
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
        RunState::Failed => {
            metrics.dead_letters.inc();
            ("failed", 1)
        }
        RunState::Missed { count, .. } => {
            metrics.missed.get_or_create(&Reason { reason: "overdue" }).inc_by(count);
            ("missed", count)
        }
        RunState::Cancelled => ("cancelled", 1),
    };
    metrics.occurrences.get_or_create(&OutcomeLabels { outcome }).inc_by(count);
}

async fn write(context: &Context, pending_write: PendingWrite) {
    // The outcome writer outlives every task of its owner, unless the process ends.
    let _process_ends = context.to_writer.send(ToWriter::Write(pending_write)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_was_not_asked_is_not_said_to_be_away() {
        for reason in [EGRESS_REFUSED, NOT_OPENED] {
            let result = AttemptResult::Unreachable(format!("{reason}: for a reason of ours"));
            assert_eq!(target_says(&result), TargetSays::Nothing);
        }
        assert_eq!(target_says(&AttemptResult::Unreachable("connection refused".to_owned())), TargetSays::Away);
    }
}
