//! Writes what happened: outcomes, next rows and positions go to the store in batches, in the order in which they came.
//!
//! One call of the store is under way at a time, and takes everything that came while the one before it ran. Because
//! positions go the same way as the due rows that the owner writes, this is also where the owner, as a creator, looks
//! at `closed`: a row that would lie at or before what was already sent for its poller is moved after it.
//!
//! Always true here: nothing is given up. A call that fails is made again until it succeeds or the process ends; while
//! it fails, what waits here fills the limit of attempts in flight, and firing stands still by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Occurrence, PollerId, Timestamp};
use runtime::Runtime;
use store::{Arrival, Change, OwnerWrite, Positions, Store, WriteRefusal, Written};
use tokio::sync::mpsc;

use crate::firing::messages::{PendingWrite, ToOwner, ToWriter, WriteDone};
use crate::metrics::{Metrics, count_store_error};
use crate::requests::AttemptOutcome;

/// Writes that go in one call at most.
const BATCH_MAX: usize = 2_048;
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);

pub(crate) struct OutcomeWriter {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) messages: mpsc::Receiver<ToWriter>,
    pub(crate) to_owner: mpsc::Sender<ToOwner>,
    /// What was last sent for each poller that has positions.
    pub(crate) closed: BTreeMap<PollerId, Timestamp>,
}

impl OutcomeWriter {
    /// Ends when every sender is gone and all is written.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.messages.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut writes = Vec::with_capacity(batch.len());
            let mut done = Vec::with_capacity(batch.len());
            let mut flushed = Vec::new();
            for message in batch.drain(..) {
                let PendingWrite { mut write, then } = match message {
                    ToWriter::Write(pending_write) => pending_write,
                    ToWriter::Gained(pollers) => {
                        self.closed.extend(pollers);
                        continue;
                    }
                    ToWriter::Flush(tell) => {
                        flushed.push(tell);
                        continue;
                    }
                };
                let row = after_closed(&mut self.closed, &mut write);
                let positions = match write.change {
                    Change::Positions(positions) => positions,
                    _ => Positions::default(),
                };
                done.push(WriteDone {
                    poller: write.poller,
                    term: write.term,
                    then,
                    row,
                    positions,
                    refusal: None,
                    outcome: None,
                });
                writes.push(write);
            }
            if !writes.is_empty() {
                let answers = self.write(&writes).await;
                assert_eq!(answers.len(), done.len(), "a store answers every write");
                self.end_resolved(&writes, &answers).await;
                for ((done, answer), write) in done.iter_mut().zip(answers).zip(writes) {
                    done.refusal = answer.err();
                    done.row = done.row.filter(|_| done.refusal.is_none());
                    if done.refusal == Some(WriteRefusal::Superseded)
                        && let Change::Run { run, then, ends } = write.change
                    {
                        done.outcome = Some(AttemptOutcome { poller: write.poller, run, then, ends });
                    }
                }
            }
            for tell in flushed {
                let _nobody_waits = tell.send(());
            }
            if self.to_owner.send(ToOwner::Written(done)).await.is_err() {
                return; // The owner is gone; what is durable is durable.
            }
        }
    }

    /// A call that failed may have done an outcome and not what comes after it: whoever made it again is told that the
    /// occurrence is resolved. What is left is the end of its schedule.
    async fn end_resolved(&self, writes: &[OwnerWrite], answers: &[Result<Written, WriteRefusal>]) {
        let is_resolved = |(write, answer): (&OwnerWrite, &Result<Written, WriteRefusal>)| match &write.change {
            Change::Run { run, ends: true, .. } if *answer == Err(WriteRefusal::Resolved) => {
                let Occurrence { incarnation, revision, .. } = run.occurrence;
                Some(OwnerWrite { change: Change::End { incarnation, revision }, ..*write })
            }
            _ => None,
        };
        let ends: Vec<OwnerWrite> = writes.iter().zip(answers).filter_map(is_resolved).collect();
        if !ends.is_empty() {
            // Refused only if a later owner has the shard, and ends it when it comes across its row.
            self.write(&ends).await;
        }
    }

    async fn write(&self, writes: &[OwnerWrite]) -> Vec<Result<Written, WriteRefusal>> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.store.write(writes.to_vec()).await {
                Ok(answers) => return answers,
                Err(error) => {
                    count_store_error(&self.metrics, "write", &error);
                    self.runtime.sleep(wait).await;
                    wait = (wait * 2).min(RETRY_LAST);
                }
            }
        }
    }
}

/// Keeps the order of rows and positions; tells which row is written, and where.
fn after_closed(closed: &mut BTreeMap<PollerId, Timestamp>, write: &mut OwnerWrite) -> Option<Arrival> {
    let due: &mut DueKey = match &mut write.change {
        Change::Positions(positions) => {
            let sent = closed.entry(write.poller).or_default();
            *sent = positions.closed.max(*sent);
            return None;
        }
        Change::Run { then: Some(due), .. } => due,
        Change::Advance { due, .. } | Change::Defer(due) => due,
        Change::Run { then: None, .. } | Change::End { .. } => return None,
        Change::Put(_) | Change::PutIf { .. } | Change::Cancel(_) | Change::CancelIf(_) | Change::Redrive { .. } => {
            unreachable!("a user's change goes to the store from `service`")
        }
    };
    if let Some(closed) = closed.get(&write.poller) {
        due.position = due.position.max(*closed + Duration::from_millis(1));
    }
    Some(Arrival { poller: write.poller, key: *due })
}
