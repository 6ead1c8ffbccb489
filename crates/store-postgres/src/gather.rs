//! Calls that gather: while a transaction is under way, calls wait in a queue, and whoever makes the next one takes all that
//! wait. So nothing lingers for company, and batches grow with the load.

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

/// What a call asks for.
pub(crate) trait Work {
    fn rows(&self) -> usize;
    /// Of payload.
    fn bytes(&self) -> usize;
}

/// A call that waits.
pub(crate) struct Job<W, A> {
    pub(crate) work: W,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

impl<W, A> Job<W, A> {
    pub(crate) fn answer(self, answer: Result<A, StoreError>) {
        // Nobody may be waiting any more.
        drop(self.answer.send(answer));
    }
}

/// Where calls are put.
pub(crate) struct Queue<W, A>(mpsc::Sender<Job<W, A>>);

/// Where they are taken from, by several tasks in turn.
pub(crate) struct Waiting<W, A>(Mutex<mpsc::Receiver<Job<W, A>>>);

/// `calls`: how many wait before further ones wait at the door.
pub(crate) fn queue<W, A>(calls: usize) -> (Queue<W, A>, Arc<Waiting<W, A>>) {
    let (sender, receiver) = mpsc::channel(calls.max(1));
    (Queue(sender), Arc::new(Waiting(Mutex::new(receiver))))
}

impl<W, A> Queue<W, A> {
    /// Waits at the door for at most `limit`.
    ///
    /// # Panics
    /// If the batch that the call is in does.
    pub(crate) async fn ask(&self, runtime: &Runtime, limit: Duration, work: W) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        match runtime.timeout(limit, Box::pin(self.0.send(Job { work, answer }))).await {
            Some(Ok(())) => {}
            Some(Err(_)) => return Err(closed()),
            None => return Err(StoreError::Unavailable(format!("too many calls are waiting since {limit:?}"))),
        }
        match answered.await {
            Ok(answer) => answer,
            Err(_) if self.0.is_closed() => Err(closed()),
            Err(_) => panic!("a bug met this call, or one that shared its transaction"),
        }
    }
}

impl<W: Work, A> Waiting<W, A> {
    /// What waits, once there is something, up to a call that goes beyond `rows` or `bytes`; `None` if nobody can ask any
    /// more.
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

    /// Hands what waits to `work` until the store closes, up to a call that goes beyond `rows` or `bytes`. A panic is
    /// passed on to the calls that it met.
    pub(crate) async fn serve<'a>(
        &self,
        rows: usize,
        bytes: usize,
        stop: &CancellationToken,
        work: impl Fn(Vec<Job<W, A>>) -> BoxFuture<'a, ()>,
    ) {
        while let Some(Some(calls)) = stop.run_until_cancelled(self.next(rows, bytes)).await {
            if AssertUnwindSafe(work(calls)).catch_unwind().await.is_err() {
                tracing::error!("a panic in a batch of calls, which is passed on to each of them");
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
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("threads can be made");
        tokio.block_on(async { test(Runtime::real()).await })
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn what_waits_goes_in_one_batch_up_to_its_limit() {
        on_real(async |runtime| {
            let (queue, waiting) = queue::<Vec<u32>, usize>(100);
            let asks = (0..6).map(|_| queue.ask(&runtime, PATIENCE, vec![0; 3]));
            let (stop, batches) = (CancellationToken::new(), SyncMutex::new(Vec::new()));
            let serving = waiting.serve(7, usize::MAX, &stop, |calls| {
                batches.lock().expect("nobody panics").push(calls.len());
                calls.into_iter().for_each(|call| {
                    let rows = call.work.len();
                    call.answer(Ok(rows));
                });
                Box::pin(std::future::ready(()))
            });
            let asking = async {
                let answers = futures_util::future::join_all(asks).await;
                stop.cancel();
                answers
            };
            let ((), answers) = futures_util::future::join(serving, asking).await;
            assert_eq!(answers, vec![Ok(3); 6]);
            assert_eq!(batches.into_inner().expect("nobody panics"), [3, 3], "each goes beyond seven rows");
        });
    }

    #[test]
    fn a_panic_meets_the_callers_of_its_batch_and_no_other() {
        on_real(async |runtime| {
            let (queue, waiting) = queue::<Vec<u32>, u32>(100);
            let stop = CancellationToken::new();
            let serving = waiting.serve(1, usize::MAX, &stop, |calls| {
                Box::pin(async {
                    for call in calls {
                        let number = call.work[0];
                        assert!(number != 2, "a bug, on purpose");
                        call.answer(Ok(number));
                    }
                })
            });
            let asking = async {
                let ask = |number| AssertUnwindSafe(queue.ask(&runtime, PATIENCE, vec![number])).catch_unwind();
                let asks = (1..=3).map(ask);
                let answers = futures_util::future::join_all(asks).await;
                stop.cancel();
                answers
            };
            let ((), answers) = futures_util::future::join(serving, asking).await;
            let [Ok(Ok(1)), Err(_), Ok(Ok(3))] = &answers[..] else {
                panic!("the second call alone fails: {answers:?}")
            };
            drop(waiting);
            assert_eq!(queue.ask(&runtime, PATIENCE, vec![1]).await, Err(closed()));
        });
    }
}
