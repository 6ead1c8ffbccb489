//! Calls that gather: while a transaction is under way, calls wait in a queue, and whoever makes the next one takes all that
//! wait. So nothing lingers for company, and batches grow with the load.

use std::sync::Arc;
use std::time::Duration;

use runtime::Runtime;
use store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};

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
    pub(crate) async fn ask(&self, runtime: &Runtime, limit: Duration, work: W) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        match runtime.timeout(limit, Box::pin(self.0.send(Job { work, answer }))).await {
            Some(Ok(())) => {}
            Some(Err(_)) => return Err(closed()),
            None => return Err(StoreError::Unavailable(format!("too many calls are waiting since {limit:?}"))),
        }
        answered.await.unwrap_or_else(|_| Err(closed()))
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
}
