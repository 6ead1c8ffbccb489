//! Tasks that run the handlers. Each worker takes records of many lanes at once and runs their handlers concurrently.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::lanes::{Outcome, Work};
use super::{Delivery, HandlerError, Shared, WORKERS};

/// Largest number of lanes that a worker takes at once. The workers share the ready lanes.
const TAKEN_MAX: usize = 64;

impl Shared {
    /// Runs handlers until the processor stops.
    pub(super) async fn work(self: Arc<Self>, worker: usize, stop: &CancellationToken) {
        // The shares of all workers are together equal to the bound.
        let share = (self.options.concurrency + worker) / WORKERS;
        let mut running = FuturesUnordered::<BoxFuture<'static, (Work, Outcome)>>::new();
        let mut finished = Vec::new();
        loop {
            let mut ready = std::pin::pin!(self.ready.notified());
            ready.as_mut().enable();
            for (work, cancellation) in self.exchange(&mut finished, share.saturating_sub(running.len())) {
                let mut handling = self.clone().handle(work, cancellation).boxed();
                match futures_util::poll!(&mut handling) {
                    Poll::Ready(done) => finished.push(done),
                    Poll::Pending => running.push(handling),
                }
            }
            if finished.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    Some(done) = running.next(), if !running.is_empty() => finished.push(done),
                    () = ready => {}
                }
            }
            while let Some(Some(done)) = running.next().now_or_never() {
                finished.push(done);
            }
        }
    }

    /// Reports the finished works, and returns at most `count` new ones.
    fn exchange(&self, finished: &mut Vec<(Work, Outcome)>, count: usize) -> Vec<(Work, CancellationToken)> {
        let mut state = self.state();
        let has_finished = !finished.is_empty();
        finished.drain(..).for_each(|(work, outcome)| state.lanes.finish(work, outcome));
        let mut taken = Vec::new();
        while taken.len() < count.min(TAKEN_MAX)
            && let Some(work) = state.lanes.take(1)
        {
            let cancellation = state.cancellations[&work.assignment].clone();
            taken.push((work, cancellation));
        }
        drop(state);
        if has_finished {
            self.progressed.notify_one();
            self.drained.notify_waiters();
        }
        taken
    }

    /// Calls the handler for the first record of the work. If the record has failed finally, sends its copy.
    async fn handle(self: Arc<Self>, work: Work, cancellation: CancellationToken) -> (Work, Outcome) {
        let (partition, record) = (&work.partition, &work.records[0]);
        let handling = async {
            let mut origin = self.copies.origin(partition, record);
            let delivery = Delivery {
                partition: partition.clone(),
                record: record.clone(),
                origin: origin.position.clone(),
                call: origin.calls.saturating_add(work.calls).saturating_add(1),
            };
            let calls = delivery.call;
            let result = AssertUnwindSafe(async { self.handler.handle(delivery).await }).catch_unwind().await;
            let error = match result {
                Ok(Ok(())) => return Outcome::Finished,
                Ok(Err(error)) => error,
                Err(_) => HandlerError::retriable("the handler panicked"),
            };
            let has_calls = error.is_retriable && !self.copies.is_retry_topic(&partition.topic);
            let wait = self.options.retry.wait(work.calls + 1).filter(|_| has_calls);
            let (offset, reason) = (record.offset, &error.reason);
            if let Some(wait) = wait {
                tracing::debug!(%partition, %offset, reason, ?wait, "the handler failed; its key waits for the next call");
                return Outcome::RetryAt(0, self.runtime.monotonic() + wait);
            }
            origin.calls = calls;
            match self.copies.copy(self.runtime.now(), &partition.topic, record, &origin, &error) {
                Some(copy) => self.copies.send(&self.runtime, copy).await,
                None => {
                    let text = "the handler failed; the record is finished without success";
                    tracing::warn!(%partition, %offset, reason, "{text}");
                }
            }
            Outcome::Finished
        };
        let outcome = tokio::select! {
            biased;
            // The outcome has no effect, because the consumer has given up the partition. The handler may be ready at
            // the same time, and it must not continue.
            () = cancellation.cancelled() => Outcome::Finished,
            outcome = handling => outcome,
        };
        (work, outcome)
    }
}
