//! Every creator looks at `closed` once its row is durable. Those who ask at the same time share one statement, which is
//! sent after all of them have asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::{PollerId, Timestamp};
use store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::engine::Inner;
use crate::error::closed;

/// Calls that share a statement, at most.
const CALLS_MAX: usize = 1_000;

/// A call.
pub(crate) struct Ask {
    pollers: Vec<PollerId>,
    answer: oneshot::Sender<Result<Vec<Timestamp>, StoreError>>,
}

impl Inner {
    pub(crate) async fn closed(&self, pollers: Vec<PollerId>) -> Result<Vec<Timestamp>, StoreError> {
        let (answer, answered) = oneshot::channel();
        match self.closed_asks.try_send(Ask { pollers, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(closed())),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(closed()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(StoreError::Unavailable("too many calls are waiting for the database".to_owned()))
            }
        }
    }
}

/// Answers calls, until the store closes. One of several, so that a statement is under way while the next calls gather.
pub(crate) async fn lane(inner: Arc<Inner>, asks: Arc<Mutex<mpsc::Receiver<Ask>>>, stop: CancellationToken) {
    loop {
        let mut calls = Vec::new();
        let gather = async { asks.lock().await.recv_many(&mut calls, CALLS_MAX).await };
        match stop.run_until_cancelled(gather).await {
            // It closes, or nobody can ask any more.
            None | Some(0) => return,
            Some(_) => {}
        }
        let wanted: BTreeSet<PollerId> = calls.iter().flat_map(|ask| ask.pollers.iter().copied()).collect();
        let wanted: Vec<PollerId> = wanted.into_iter().collect();
        let found = inner.positions(&wanted).await;
        let found = found.map(|positions| {
            wanted.into_iter().zip(positions.into_iter().map(|it| it.closed)).collect::<HashMap<_, _>>()
        });
        for Ask { pollers, answer } in calls {
            let closed = match &found {
                Ok(found) => Ok(pollers.iter().map(|poller| found[poller]).collect()),
                Err(error) => Err(error.clone()),
            };
            // Nobody may be waiting any more.
            drop(answer.send(closed));
        }
    }
}
