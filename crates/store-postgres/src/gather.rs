//! Batching of calls. While a transaction is under way, further calls wait in a queue. The next transaction takes all
//! waiting calls. A call never waits for a batch to become full, and batches grow with the load.
//!
//! docs/decisions/0097-batch-changes-and-cancellations.md gives the reasons for the design.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::error::closed;

/// Work that a waiting call requests, for example the schedules to insert.
pub(crate) trait Work {
    fn rows(&self) -> usize;
    /// Returns the number of payload bytes that the call contains.
    fn bytes(&self) -> usize;
}

/// A waiting call.
pub(crate) struct Job<W, A> {
    pub(crate) work: W,
    response: oneshot::Sender<Result<A, StoreError>>,
}

impl<W, A> Job<W, A> {
    pub(crate) fn respond(self, response: Result<A, StoreError>) {
        // The send of the response fails if the caller has dropped the receiver. This failure is harmless.
        drop(self.response.send(response));
    }
}

/// Sending end of a queue of calls.
pub(crate) struct Queue<W, A>(mpsc::Sender<Job<W, A>>);

/// Receiving end of a queue of calls. Several tasks share it.
pub(crate) struct Waiting<W, A>(Mutex<mpsc::Receiver<Job<W, A>>>);

/// Creates a queue for `calls` waiting calls. Further calls wait until the queue has a free slot.
pub(crate) fn queue<W, A>(calls: usize) -> (Queue<W, A>, Arc<Waiting<W, A>>) {
    let (sender, receiver) = mpsc::channel(calls.max(1));
    (Queue(sender), Arc::new(Waiting(Mutex::new(receiver))))
}

impl<W, A> Queue<W, A> {
    /// Submits a call and waits for the response. Waits at most `limit` for a free slot in the queue.
    ///
    /// # Panics
    /// Panics if the transaction of the call's batch panics.
    pub(crate) async fn submit(&self, runtime: &Runtime, limit: Duration, work: W) -> Result<A, StoreError> {
        let (response, receiver) = oneshot::channel();
        match runtime.timeout(limit, Box::pin(self.0.send(Job { work, response }))).await {
            Some(Ok(())) => {}
            Some(Err(_)) => return Err(closed()),
            None => {
                return Err(StoreError::Unavailable(format!(
                    "the store's queue of calls was full for {limit:?}; retry later"
                )));
            }
        }
        match receiver.await {
            Ok(response) => response,
            Err(_) if self.0.is_closed() => Err(closed()),
            Err(_) => panic!("a bug in the store caused a panic in the transaction of this call"),
        }
    }
}

impl<W: Work, A> Waiting<W, A> {
    /// Waits for a call, and returns a batch of waiting calls. The batch ends with the call that reaches the limit of
    /// `rows` rows or `bytes` bytes. Returns `None` if no caller can submit another call.
    pub(crate) async fn next(&self, rows: usize, bytes: usize) -> Option<Vec<Job<W, A>>> {
        let mut jobs = self.0.lock().await;
        let mut batch = vec![jobs.recv().await?];
        let (mut rows_taken, mut bytes_taken) = (batch[0].work.rows(), batch[0].work.bytes());
        while rows_taken < rows && bytes_taken < bytes {
            let Ok(job) = jobs.try_recv() else { break };
            rows_taken += job.work.rows();
            bytes_taken += job.work.bytes();
            batch.push(job);
        }
        Some(batch)
    }

    /// Passes batches of waiting calls to `work` until the store closes. A batch ends with the call that reaches the
    /// limit of `rows` rows or `bytes` bytes. If `work` panics, the callers of the batch panic too.
    pub(crate) async fn serve<'a>(
        &self,
        rows: usize,
        bytes: usize,
        stop: &CancellationToken,
        work: impl Fn(Vec<Job<W, A>>) -> BoxFuture<'a, ()>,
    ) {
        while let Some(Some(calls)) = stop.run_until_cancelled(self.next(rows, bytes)).await {
            if AssertUnwindSafe(work(calls)).catch_unwind().await.is_err() {
                tracing::error!("the transaction of a batch of calls panicked; the callers of these calls panic too");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as SyncMutex;

    use super::*;

    impl Work for Vec<u32> {
        fn rows(&self) -> usize {
            self.len()
        }

        fn bytes(&self) -> usize {
            0
        }
    }

    fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        tokio.block_on(async { test(Runtime::real()).await })
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn queue_ends_a_batch_with_the_call_that_reaches_the_row_limit() {
        on_real(async |runtime| {
            let (queue, waiting) = queue::<Vec<u32>, usize>(100);
            let calls = (0..6).map(|_| queue.submit(&runtime, TIMEOUT, vec![0; 3]));
            let (stop, batches) = (CancellationToken::new(), SyncMutex::new(Vec::new()));
            let serving = waiting.serve(7, usize::MAX, &stop, |calls| {
                batches.lock().expect("no holder of this lock panics").push(calls.len());
                calls.into_iter().for_each(|call| {
                    let rows = call.work.len();
                    call.respond(Ok(rows));
                });
                Box::pin(std::future::ready(()))
            });
            let calling = async {
                let responses = futures_util::future::join_all(calls).await;
                stop.cancel();
                responses
            };
            let ((), responses) = futures_util::future::join(serving, calling).await;
            assert_eq!(responses, vec![Ok(3); 6]);
            assert_eq!(
                batches.into_inner().expect("no holder of this lock panics"),
                [3, 3],
                "each batch ends with the call that exceeds seven rows"
            );
        });
    }

    #[test]
    fn only_the_callers_of_a_batch_panic_if_its_transaction_panics() {
        on_real(async |runtime| {
            let (queue, waiting) = queue::<Vec<u32>, u32>(100);
            let stop = CancellationToken::new();
            let serving = waiting.serve(1, usize::MAX, &stop, |calls| {
                Box::pin(async {
                    for call in calls {
                        let number = call.work[0];
                        assert!(number != 2, "a deliberate bug");
                        call.respond(Ok(number));
                    }
                })
            });
            let calling = async {
                let submit = |number| AssertUnwindSafe(queue.submit(&runtime, TIMEOUT, vec![number])).catch_unwind();
                let calls = (1..=3).map(submit);
                let responses = futures_util::future::join_all(calls).await;
                stop.cancel();
                responses
            };
            let ((), responses) = futures_util::future::join(serving, calling).await;
            let [Ok(Ok(1)), Err(_), Ok(Ok(3))] = &responses[..] else {
                panic!("only the second call fails: {responses:?}")
            };
            drop(waiting);
            assert_eq!(queue.submit(&runtime, TIMEOUT, vec![1]).await, Err(closed()));
        });
    }
}
