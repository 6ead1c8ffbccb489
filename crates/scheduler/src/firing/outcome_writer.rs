//! Outcome writer. It writes outcomes, next due rows and the pollers' positions `closed` and `done` to the store in
//! batches, in the order in which it receives these writes.
//!
//! One call of the store is in progress at a time. The next call takes all writes that arrived during the previous
//! call. The pollers' positions use the same queue as the owner's due rows, so the outcome writer also confirms the
//! placement of the owner's rows. If a row would lie at or before the last `closed` that the outcome writer has sent
//! for the row's poller, the outcome writer moves the row to a position after `closed`.
//!
//! Invariant: the outcome writer abandons no write. It repeats a failed call until the call succeeds or the process
//! ends. While calls fail, the number of attempts with pending writes rises to the limit of attempts in flight. At this
//! limit, the owner starts no further attempt.
//!
//! docs/decisions/0004-write-through-one-outcome-writer.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Occurrence, PollerId, Timestamp};
use runtime::Runtime;
use store::{Change, InsertLogEntry, OwnerWrite, Positions, Store, WriteRejection, Written};
use tokio::sync::mpsc;

use crate::firing::messages::{PendingWrite, ToOwner, ToWriter, WriteDone};
use crate::metrics::{Metrics, count_store_error};
use crate::requests::AttemptOutcome;

/// Largest number of writes in one call.
const BATCH_MAX: usize = 2_048;
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);

pub(crate) struct OutcomeWriter {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) messages: mpsc::Receiver<ToWriter>,
    pub(crate) to_owner: mpsc::Sender<ToOwner>,
    /// For each poller, the last `closed` that the outcome writer has received.
    pub(crate) closed: BTreeMap<PollerId, Timestamp>,
}

impl OutcomeWriter {
    /// Sends the queued writes to the store. Returns when all senders are dropped and all queued writes are durable or
    /// rejected, or when the owner has ended.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.messages.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut writes = Vec::with_capacity(batch.len());
            let mut done = Vec::with_capacity(batch.len());
            let mut flushed = Vec::new();
            let mut starts = Vec::new();
            for message in batch.drain(..) {
                let PendingWrite { mut write, then } = match message {
                    ToWriter::Write(pending_write) => pending_write,
                    ToWriter::WriteBeforeStart(pending_write, sender) => {
                        starts.push((done.len(), sender));
                        pending_write
                    }
                    ToWriter::Gained(pollers) => {
                        self.closed.extend(pollers);
                        continue;
                    }
                    ToWriter::Flush(sender) => {
                        flushed.push(sender);
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
                let responses = self.write(&writes).await;
                assert_eq!(responses.len(), done.len(), "the store returns one result per write");
                self.end_resolved(&writes, &responses).await;
                for ((done, response), write) in done.iter_mut().zip(responses).zip(writes) {
                    done.refusal = response.err();
                    done.row = done.row.filter(|_| done.refusal.is_none());
                    if done.refusal == Some(WriteRejection::Superseded)
                        && let Change::Run { run, then, ends, origin: _ } = write.change
                    {
                        done.outcome = Some(AttemptOutcome { poller: write.poller, run, then, ends });
                    }
                }
            }
            for sender in flushed {
                let _receiver_is_gone = sender.send(());
            }
            for (index, sender) in starts {
                let _receiver_is_gone = sender.send(done[index].refusal != Some(WriteRejection::Superseded));
            }
            if self.to_owner.send(ToOwner::Written(done)).await.is_err() {
                return; // The owner has ended. The next owner reads the results from the store.
            }
        }
    }

    /// Ends the schedules whose outcome the outcome writer wrote twice. A failed call may have written an outcome, but
    /// not the end of its schedule. The store then rejects the repeated write, because the occurrence is already
    /// resolved. This function therefore writes the end of the schedule.
    async fn end_resolved(&self, writes: &[OwnerWrite], responses: &[Result<Written, WriteRejection>]) {
        let is_resolved = |(write, response): (&OwnerWrite, &Result<Written, WriteRejection>)| match &write.change {
            Change::Run { run, ends: true, .. } if *response == Err(WriteRejection::Resolved) => {
                let Occurrence { incarnation, revision, .. } = run.occurrence;
                Some(OwnerWrite { change: Change::End { incarnation, revision }, ..*write })
            }
            _ => None,
        };
        let ends: Vec<OwnerWrite> = writes.iter().zip(responses).filter_map(is_resolved).collect();
        if !ends.is_empty() {
            // The store rejects this write only if the shard has a later owner. That owner ends the schedule when it
            // reads the schedule's due row.
            self.write(&ends).await;
        }
    }

    async fn write(&self, writes: &[OwnerWrite]) -> Vec<Result<Written, WriteRejection>> {
        let mut wait = RETRY_FIRST;
        loop {
            match self.store.write(writes.to_vec()).await {
                Ok(responses) => return responses,
                Err(error) => {
                    count_store_error(&self.metrics, "write", &error);
                    self.runtime.sleep(wait).await;
                    wait = (wait * 2).min(RETRY_LAST);
                }
            }
        }
    }
}

/// Returns the due row of a write, or `None` if the write has no due row. If the row lies at or before the recorded
/// `closed` of its poller, the function first moves the row to a position after `closed`. If the write contains a new
/// `closed`, the function records this `closed`.
fn after_closed(closed: &mut BTreeMap<PollerId, Timestamp>, write: &mut OwnerWrite) -> Option<InsertLogEntry> {
    let due: &mut DueKey = match &mut write.change {
        Change::Positions(positions) => {
            let sent = closed.entry(write.poller).or_default();
            *sent = positions.closed.max(*sent);
            return None;
        }
        Change::Run { then: Some(due), .. } => due,
        Change::Advance { due, .. } | Change::Defer(due) => due,
        Change::Run { then: None, .. } | Change::End { .. } => return None,
        Change::Put(_)
        | Change::PutIf { .. }
        | Change::Cancel(_)
        | Change::CancelIf(..)
        | Change::Redrive { .. }
        | Change::Reopen(_) => {
            unreachable!(
                "the modules `changes` and `ownership` write this change; the outcome writer receives no such change"
            )
        }
        Change::Reencrypt(_) => unreachable!("only a migration of the store encrypts stored headers again"),
    };
    if let Some(closed) = closed.get(&write.poller) {
        due.position = due.position.max(*closed + Duration::from_millis(1));
    }
    Some(InsertLogEntry { poller: write.poller, key: *due })
}
