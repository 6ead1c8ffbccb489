//! Producer of the engine in memory. One task sends the batches in the order of the calls.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use instants::Monotonic;
use runtime::TaskSet;
use tokio::sync::{mpsc, oneshot};

use super::broker::{Outcomes, ProducerId};
use super::{Connection, RETRY_WAIT};
use crate::{Answer, BusError, NewRecord, Producer, ProducerOptions};

pub(super) struct MemoryProducer {
    /// Queue of the task. It is `None` after the caller has closed the producer.
    batches: Mutex<Option<mpsc::UnboundedSender<Batch>>>,
    /// Receives no value. The channel ends with the task.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
    connection: Connection,
    delivery_timeout: Duration,
    _task: TaskSet,
}

struct Batch {
    records: Vec<NewRecord>,
    /// Instant at which the producer gives up. An earlier batch may delay the first request of this batch.
    deadline: Monotonic,
    outcomes: oneshot::Sender<Outcomes>,
}

impl MemoryProducer {
    pub(super) fn new(connection: Connection, id: ProducerId, options: ProducerOptions) -> Self {
        let tasks = TaskSet::new(connection.runtime());
        let (batches, mut queue) = mpsc::unbounded_channel::<Batch>();
        let (ends, ended) = oneshot::channel::<()>();
        let (sender, delivery_timeout) = (connection.clone(), options.delivery_timeout);
        tasks.spawn("memory producer", async move {
            let mut number = 0;
            while let Some(Batch { records, deadline, outcomes }) = queue.recv().await {
                number += 1;
                let remaining = deadline.since(sender.runtime().monotonic());
                let sent = match remaining {
                    Duration::ZERO => None,
                    _ => sender.runtime().timeout(remaining, send(&sender, id, number, &records)).await,
                };
                let sent = sent.unwrap_or_else(|| records.iter().map(|_| Err(late(delivery_timeout))).collect());
                // The caller may have dropped the future of the outcomes.
                drop(outcomes.send(sent));
            }
            drop(ends);
        });
        let (batches, ended) = (Mutex::new(Some(batches)), Mutex::new(Some(ended)));
        MemoryProducer { batches, ended, connection, delivery_timeout, _task: tasks }
    }
}

/// Sends a batch until the engine responds.
async fn send(connection: &Connection, id: ProducerId, number: u64, records: &[NewRecord]) -> Outcomes {
    loop {
        let response = connection.call(|broker, now| Ok(broker.produce(id, number, records, now.wall))).await;
        if let Ok(outcomes) = response {
            connection.engine.appended.notify_waiters();
            return outcomes;
        }
        connection.runtime().sleep(RETRY_WAIT).await;
    }
}

fn late(limit: Duration) -> BusError {
    BusError::Disconnected(format!("no acknowledgement within {limit:?}"))
}

impl Producer for MemoryProducer {
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Outcomes> {
        let count = records.len();
        let (outcomes, received) = oneshot::channel();
        let deadline = self.connection.runtime().monotonic() + self.delivery_timeout;
        let batches = self.batches.lock().expect("no code panics while it holds this mutex");
        let batch = Batch { records, deadline, outcomes };
        let is_sent = batches.as_ref().is_some_and(|batches| batches.send(batch).is_ok());
        async move {
            let closed = || vec![Err(BusError::Closed); count];
            if is_sent { received.await.unwrap_or_else(|_| closed()) } else { closed() }
        }
        .boxed()
    }

    fn close(&self) -> Answer<'_, ()> {
        let (batches, ended) = (&self.batches, &self.ended);
        drop(batches.lock().expect("no code panics while it holds this mutex").take());
        let ended = ended.lock().expect("no code panics while it holds this mutex").take();
        async move {
            if let Some(ended) = ended {
                // The channel ends without a value after the task has sent the last batch.
                drop(ended.await);
            }
            Ok(())
        }
        .boxed()
    }
}
