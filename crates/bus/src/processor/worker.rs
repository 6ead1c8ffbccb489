//! Tasks that run the handlers. Each worker takes records of many lanes at once and runs their handlers concurrently.

use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::control::{Blocked, Control};
use super::copies::{Copy, Origin};
use super::lanes::{Outcome, Work};
use super::{Delivery, HandlerError, Shared, WORKERS};
use crate::topic::{Partition, Position, Record};

/// Largest number of calls that a worker starts at once. The workers share the ready lanes.
const CALLS_MAX: usize = 64;

/// Works and their outcomes.
type Done = Vec<(Work, Outcome)>;
/// Running call of the handler, or copy on its way.
type Step = BoxFuture<'static, Stepped>;

/// Result of a call of the handler.
struct Stepped {
    done: Done,
    /// Works that need a further call, or wait until the bus has stored the copy of a record. The other works of the call
    /// do not wait for them.
    steps: Vec<Step>,
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
        // The shares of all workers are together equal to the bound.
        let share = (self.options.concurrency + worker) / WORKERS;
        let mut running = FuturesUnordered::<Step>::new();
        let mut finished = Vec::new();
        loop {
            let mut ready = std::pin::pin!(self.ready.notified());
            ready.as_mut().enable();
            for (works, cancellation) in self.exchange(&mut finished, share.saturating_sub(running.len())) {
                let mut handling = self.clone().handle(works, usize::MAX, cancellation);
                match futures_util::poll!(&mut handling) {
                    Poll::Ready(stepped) => stepped.add_to(&mut finished, &running),
                    Poll::Pending => running.push(handling),
                }
            }
            if finished.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    Some(stepped) = running.next(), if !running.is_empty() => stepped.add_to(&mut finished, &running),
                    () = ready => {}
                }
            }
            while let Some(Some(stepped)) = running.next().now_or_never() {
                stepped.add_to(&mut finished, &running);
            }
        }
    }

    /// Reports the finished works, and returns the works of at most `count` new calls.
    fn exchange(&self, finished: &mut Done, count: usize) -> Vec<(Vec<Work>, CancellationToken)> {
        let mut state = self.state();
        let has_finished = !finished.is_empty();
        finished.drain(..).for_each(|(work, outcome)| state.lanes.finish(work, outcome));
        let mut taken = Vec::new();
        while taken.len() < count.min(CALLS_MAX) {
            let works = state.lanes.take(self.calls.records_max());
            let Some(first) = works.first() else { break };
            let cancellation = state.cancellations[&first.assignment].clone();
            taken.push((works, cancellation));
        }
        drop(state);
        if has_finished {
            self.progressed.notify_one();
            self.drained.notify_waiters();
        }
        taken
    }

    /// Makes one call of the handler for at most `records_max` records of each work, and decides about the failed records.
    fn handle(self: Arc<Self>, works: Vec<Work>, records_max: usize, cancellation: CancellationToken) -> Step {
        Box::pin(async move {
            let mut stepped = Stepped { done: Vec::new(), steps: Vec::new() };
            let called = tokio::select! {
                biased;
                // The outcomes have no effect, because the consumer has given up the partition. The handler may be ready at
                // the same time, and it must not continue.
                () = cancellation.cancelled() => {
                    stepped.done = without_effect(works);
                    return stepped;
                }
                called = self.call(&works, records_max) => called,
            };
            let Some(called) = called else {
                // One of the records panics. The others can succeed in calls without it.
                let alone = |work| self.clone().handle(vec![work], 1, cancellation.clone());
                stepped.steps = works.into_iter().map(alone).collect();
                return stepped;
            };
            let mut called = called.into_iter();
            for mut work in works {
                let of_work: Vec<_> = called.by_ref().take(work.records.len().min(records_max)).collect();
                match self.settle(&work, of_work) {
                    Settled::Done(outcome) => stepped.done.push((work, outcome)),
                    Settled::Copying(finished, copy) => {
                        let outcome = Outcome { finished, retry_at: None };
                        stepped.done.push((work.split_first(finished), outcome));
                        let outcome = Outcome { finished: 1, retry_at: None };
                        let copying = self.clone().copy(work, copy, outcome, cancellation.clone());
                        stepped.steps.push(copying.boxed());
                    }
                }
            }
            stepped
        })
    }

    /// Calls the handler for the first records of each work. Returns the history and the outcome of each record; `None` if
    /// a call for several records panicked.
    async fn call(&self, works: &[Work], records_max: usize) -> Option<Vec<(Origin, Result<(), HandlerError>)>> {
        let mut origins = Vec::new();
        let mut deliveries = Vec::new();
        for work in works {
            for (at, record) in work.records.iter().take(records_max).enumerate() {
                let calls = work.calls_for(at);
                let mut origin = self.copies.origin(&work.partition, record);
                origin.calls = origin.calls.saturating_add(calls);
                let is_skipped = self.is_skipped(&work.partition, record, calls > 0);
                if !is_skipped {
                    origin.calls = origin.calls.saturating_add(1);
                    deliveries.push(Delivery {
                        partition: work.partition.clone(),
                        record: record.clone(),
                        origin: origin.position.clone(),
                        call: origin.calls,
                    });
                }
                origins.push((origin, is_skipped));
            }
        }
        let mut results = self.calls.call(deliveries).await?.into_iter();
        let mut result = || results.next().expect("the call returns one outcome for each delivery");
        let skipped = || Err(HandlerError::not_retriable("an operator has skipped the record"));
        let called = origins.into_iter();
        Some(called.map(|(origin, is_skipped)| (origin, if is_skipped { skipped() } else { result() })).collect())
    }

    /// Decides about the first records of a work after a call of the handler.
    fn settle(&self, work: &Work, called: Vec<(Origin, Result<(), HandlerError>)>) -> Settled {
        let finished = called.len();
        for (at, (record, (origin, result))) in work.records.iter().zip(called).enumerate() {
            match result {
                Ok(()) => _ = self.counters.succeeded.inc(),
                // The lane passes the later records to a new call, because the handler has not handled them.
                Err(error) => return self.fail(work, at, record, &origin, error),
            }
        }
        Settled::Done(Outcome { finished, retry_at: None })
    }

    /// Decides about a failed record, which is the record of the work at this index.
    fn fail(&self, work: &Work, at: usize, record: &Record, origin: &Origin, mut error: HandlerError) -> Settled {
        let (partition, offset, calls) = (&work.partition, record.offset, work.calls_for(at) + 1);
        let is_skipped = self.is_skipped(partition, record, true);
        error.is_retriable &= !is_skipped;
        let has_calls = error.is_retriable && !self.copies.is_retry_topic(&partition.topic);
        if let Some(wait) = self.options.retry.wait(calls).filter(|_| has_calls) {
            let reason = &error.reason;
            tracing::debug!(%partition, %offset, reason, ?wait, "the handler failed; its key waits for the next call");
            self.counters.blocked.inc();
            if let Some(control) = self.control.as_ref().filter(|_| calls.is_power_of_two()) {
                let (position, failed_at) = (position(partition, record), self.runtime.now());
                control.block(Blocked { position, key: record.key.clone(), calls, reason: error.reason, failed_at });
            }
            return Settled::Done(Outcome { finished: at, retry_at: Some(self.runtime.monotonic() + wait) });
        }
        let copy = self.copies.copy(self.runtime.now(), &partition.topic, record, origin, &error);
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
    async fn copy(
        self: Arc<Self>,
        work: Work,
        copy: Copy,
        outcome: Outcome,
        cancellation: CancellationToken,
    ) -> Stepped {
        let done = tokio::select! {
            biased;
            () = cancellation.cancelled() => without_effect(vec![work]),
            () = self.copies.send(&self.runtime, copy) => vec![(work, outcome)],
        };
        Stepped { done, steps: Vec::new() }
    }

    /// Returns true if an operator skips the record.
    fn is_skipped(&self, partition: &Partition, record: &Record, has_failed: bool) -> bool {
        let source = self.copies.source(&partition.topic);
        let is_skipped = |control: &Control| control.is_skipped(|| position(partition, record), source, has_failed);
        self.control.as_ref().is_some_and(is_skipped)
    }
}

impl Stepped {
    fn add_to(self, finished: &mut Done, running: &FuturesUnordered<Step>) {
        finished.extend(self.done);
        self.steps.into_iter().for_each(|step| running.push(step));
    }
}

impl Work {
    /// Returns the number of failed calls for the record at this index.
    fn calls_for(&self, at: usize) -> u32 {
        if at == 0 { self.calls } else { 0 }
    }
}

fn without_effect(works: Vec<Work>) -> Done {
    works.into_iter().map(|work| (work, Outcome { finished: 0, retry_at: None })).collect()
}

fn position(partition: &Partition, record: &Record) -> Position {
    Position { partition: partition.clone(), offset: record.offset }
}
