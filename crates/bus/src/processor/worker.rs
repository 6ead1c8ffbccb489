//! Tasks that run the handlers. Each worker takes records of many lanes at once and runs their handlers concurrently.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use smallvec::{SmallVec, smallvec};
use tokio_util::sync::CancellationToken;

use super::control::{Blocked, Control};
use super::copies::{Copy, Origin};
use super::handler::{Deliveries, Handling, Results};
use super::lanes::{Outcome, Work, Works};
use super::{Delivery, HandlerError, Shared, WORKERS};
use crate::topic::{Partition, Position, Record};

/// Largest number of calls that a worker starts at once. The workers share the ready lanes.
const CALLS_MAX: usize = 64;
/// Wait from which a member updates the entry of a blocked record after each failed call. Operators then see the time of the
/// next call, and this rule causes at most one write of a key in this time.
const LISTED_WAIT: Duration = Duration::from_secs(10);

/// Running call of the handler, or copy on its way.
type Step<'a> = BoxFuture<'a, Stepped<'a>>;

/// Results of calls of the handler.
#[derive(Default)]
struct Stepped<'a> {
    done: Vec<(Work, Outcome)>,
    /// Works that need a further call, or wait until the bus has stored the copy of a record. The other works of the call
    /// do not wait for them.
    steps: Vec<Step<'a>>,
}

/// Call of the handler for at most `records_max` records of each work.
struct Call<'a> {
    works: Works,
    records_max: usize,
    /// History of each record, and true if an operator skips it. The handler receives no skipped record.
    histories: SmallVec<[(Origin, bool); 1]>,
    handling: Handling<'a>,
}

/// Decision about a work after a call of the handler.
enum Settled {
    Done(Outcome),
    /// The record after this many finished records is finished when the bus has stored its copy.
    Copying(usize, Copy),
}

impl Shared {
    /// Runs handlers until the processor stops.
    pub(super) async fn work(self: Arc<Self>, worker: usize, stop: &CancellationToken) {
        let shared = &*self;
        // The shares of all workers are together equal to the bound.
        let share = (shared.options.concurrency + worker) / WORKERS;
        let mut running = FuturesUnordered::<Step<'_>>::new();
        let (mut stepped, mut taken) = (Stepped::default(), Vec::new());
        loop {
            let mut ready = std::pin::pin!(shared.ready.notified());
            ready.as_mut().enable();
            shared.exchange(&mut stepped, &mut taken, share.saturating_sub(running.len()));
            // Handlers that always end at once must not keep the thread from other tasks.
            tokio::task::coop::consume_budget().await;
            for works in taken.drain(..) {
                let Some(mut call) = shared.call(works, usize::MAX, &mut stepped) else { continue };
                // Many calls end at once. They need no allocation and do not wait for the cancellation.
                match futures_util::poll!(&mut call.handling) {
                    Poll::Ready(results) => shared.settle_call(call, results, &mut stepped),
                    Poll::Pending => running.push(shared.wait(call).boxed()),
                }
            }
            running.extend(stepped.steps.drain(..));
            if stepped.done.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    Some(next) = running.next(), if !running.is_empty() => stepped.add(next, &running),
                    () = ready => {}
                }
            }
            while let Some(Some(next)) = running.next().now_or_never() {
                stepped.add(next, &running);
            }
        }
    }

    /// Reports the finished works, and adds the works of at most `count` new calls to `taken`.
    fn exchange(&self, stepped: &mut Stepped<'_>, taken: &mut Vec<Works>, count: usize) {
        let mut lanes = self.lanes();
        stepped.done.iter_mut().for_each(|(work, outcome)| lanes.finish(work, *outcome));
        while taken.len() < count.min(CALLS_MAX) {
            let works = lanes.take(self.calls.records_max());
            if works.is_empty() {
                break;
            }
            taken.push(works);
        }
        drop(lanes);
        if !stepped.done.is_empty() {
            stepped.done.clear();
            self.progressed.notify_one();
            self.drained.notify_waiters();
        }
    }

    /// Starts a call of the handler. Returns `None` if the consumer has given up the partition.
    fn call(&self, works: Works, records_max: usize, stepped: &mut Stepped<'_>) -> Option<Call<'_>> {
        if works[0].assigned.cancellation.is_cancelled() {
            stepped.add_without_effect(works);
            return None;
        }
        let mut histories = SmallVec::new();
        let mut deliveries = Deliveries::new();
        for work in &works {
            for (at, record) in work.records.iter().take(records_max).enumerate() {
                let calls = work.calls_for(at);
                let mut origin = self.copies.origin(work.partition(), record);
                origin.calls = origin.calls.saturating_add(calls);
                let is_skipped = self.is_skipped(work.partition(), record, calls > 0);
                if !is_skipped {
                    origin.calls = origin.calls.saturating_add(1);
                    deliveries.push(Delivery {
                        partition: work.partition().clone(),
                        record: Record { timestamp: origin.time, ..record.clone() },
                        call: origin.calls,
                        original: origin.position.clone(),
                    });
                }
                histories.push((origin, is_skipped));
            }
        }
        let handling = self.calls.call(deliveries, works[0].assigned.handler.clone());
        Some(Call { works, records_max, histories, handling })
    }

    /// Waits for the end of a call.
    async fn wait<'a>(&'a self, mut call: Call<'a>) -> Stepped<'a> {
        let mut stepped = Stepped::default();
        let assigned = call.works[0].assigned.clone();
        tokio::select! {
            biased;
            // The outcomes have no effect, because the consumer has given up the partition. The handler may be ready at the
            // same time, and it must not continue.
            () = assigned.cancellation.cancelled() => stepped.add_without_effect(call.works),
            results = &mut call.handling => self.settle_call(call, results, &mut stepped),
        }
        stepped
    }

    /// Makes a call for the first record of a work alone.
    async fn call_alone(&self, work: Work) -> Stepped<'_> {
        let mut stepped = Stepped::default();
        match self.call(smallvec![work], 1, &mut stepped) {
            Some(call) => self.wait(call).await,
            None => stepped,
        }
    }

    /// Decides about the records of a call that has ended. `results` is `None` if a call for several records panicked.
    fn settle_call<'a>(&'a self, call: Call<'a>, results: Option<Results>, stepped: &mut Stepped<'a>) {
        let Call { works, records_max, histories, handling: _ } = call;
        let Some(results) = results else {
            // One of the records panics. The others can succeed in calls without it.
            stepped.steps.extend(works.into_iter().map(|work| self.call_alone(work).boxed()));
            return;
        };
        let mut results = results.into_iter();
        let mut called = histories.into_iter().map(|(origin, is_skipped)| {
            let skipped = || Err(HandlerError::not_retriable("an operator has skipped the record"));
            let mut result = || results.next().expect("the call returns one outcome for each delivery");
            (origin, if is_skipped { skipped() } else { result() })
        });
        for mut work in works {
            let count = work.records.len().min(records_max);
            match self.settle(&work, called.by_ref().take(count)) {
                Settled::Done(outcome) => stepped.done.push((work, outcome)),
                Settled::Copying(finished, copy) => {
                    let outcome = Outcome { finished, retry_at: None };
                    stepped.done.push((work.split_first(finished), outcome));
                    let outcome = Outcome { finished: 1, retry_at: None };
                    stepped.steps.push(self.copy(work, copy, outcome).boxed());
                }
            }
        }
    }

    /// Decides about the first records of a work after a call of the handler.
    fn settle(&self, work: &Work, called: impl Iterator<Item = (Origin, Result<(), HandlerError>)>) -> Settled {
        let mut finished = 0;
        let mut settled = None;
        for (record, (origin, result)) in work.records.iter().zip(called) {
            match result {
                _ if settled.is_some() => {}
                Ok(()) => finished += 1,
                // The lane passes the later records to a new call, because the handler has not handled them.
                Err(error) => settled = Some(self.fail(work, finished, record, &origin, error)),
            }
        }
        self.counters.succeeded.inc_by(finished as u64);
        settled.unwrap_or(Settled::Done(Outcome { finished, retry_at: None }))
    }

    /// Decides about a failed record, which is the record of the work at this index.
    fn fail(&self, work: &Work, at: usize, record: &Record, origin: &Origin, mut error: HandlerError) -> Settled {
        let (partition, offset, calls) = (work.partition(), record.offset, work.calls_for(at) + 1);
        let is_skipped = self.is_skipped(partition, record, true);
        error.is_retriable &= !is_skipped;
        let has_calls = error.is_retriable && !self.copies.is_retry_topic(&partition.topic);
        if let Some(wait) = self.options.retry.wait(calls).filter(|_| has_calls) {
            let reason = &error.reason;
            tracing::debug!(%partition, %offset, reason, ?wait, "the handler failed; its key waits for the next call");
            self.counters.blocked.inc();
            let is_listed = calls.is_power_of_two() || wait >= LISTED_WAIT;
            if let Some(control) = self.control.as_ref().filter(|_| is_listed) {
                let now = self.runtime.now();
                control.block(Blocked {
                    position: position(partition, record),
                    key: record.key.clone(),
                    calls,
                    reason: error.reason,
                    blocked_since: now,
                    failed_at: now,
                    next_call_at: Some(now + wait),
                });
            }
            return Settled::Done(Outcome { finished: at, retry_at: Some(self.runtime.monotonic() + wait) });
        }
        let copy = self.copies.copy(self.runtime.now(), partition, record, origin, &error);
        let counter = match &copy {
            _ if is_skipped => &self.counters.skipped,
            Some(copy) if copy.is_dead_letter => &self.counters.dead,
            Some(_) => &self.counters.delayed,
            None => &self.counters.dropped,
        };
        counter.inc();
        if let Some(copy) = copy {
            return Settled::Copying(at, copy);
        }
        let text = "the handler failed; the record is finished without success";
        tracing::warn!(%partition, %offset, reason = error.reason, "{text}");
        Settled::Done(Outcome { finished: at + 1, retry_at: None })
    }

    /// Waits until the bus has stored a copy.
    async fn copy(&self, work: Work, copy: Copy, outcome: Outcome) -> Stepped<'_> {
        let mut stepped = Stepped::default();
        let assigned = work.assigned.clone();
        tokio::select! {
            biased;
            () = assigned.cancellation.cancelled() => stepped.add_without_effect(smallvec![work]),
            () = self.copies.send(&self.runtime, copy) => stepped.done.push((work, outcome)),
        }
        stepped
    }

    /// Returns true if an operator skips the record.
    fn is_skipped(&self, partition: &Partition, record: &Record, has_failed: bool) -> bool {
        let source = self.copies.source(&partition.topic);
        let is_skipped = |control: &Control| control.is_skipped(|| position(partition, record), source, has_failed);
        self.control.as_ref().is_some_and(is_skipped)
    }
}

impl<'a> Stepped<'a> {
    /// Adds the results of a step. Its further steps run at once.
    fn add(&mut self, other: Self, running: &FuturesUnordered<Step<'a>>) {
        self.done.extend(other.done);
        other.steps.into_iter().for_each(|step| running.push(step));
    }

    /// Adds works whose outcomes have no effect, because the consumer has given up the partition.
    fn add_without_effect(&mut self, works: Works) {
        self.done.extend(works.into_iter().map(|work| (work, Outcome { finished: 0, retry_at: None })));
    }
}

impl Work {
    /// Returns the number of failed calls for the record at this index.
    fn calls_for(&self, at: usize) -> u32 {
        if at == 0 { self.calls } else { 0 }
    }
}

fn position(partition: &Partition, record: &Record) -> Position {
    Position { partition: partition.clone(), offset: record.offset }
}
