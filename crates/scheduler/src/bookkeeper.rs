//! Books what happened: outcomes, next rows and positions go to the store in batches, in the order in which they came.
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

use domain::{DueKey, Occurrence, PollerId, Term, Timestamp};
use runtime::Runtime;
use store::{Arrival, Change, OwnerWrite, Positions, Store, StoreError, WriteRefusal, Written};
use tokio::sync::{mpsc, oneshot};

use crate::metrics::{Call, Metrics};
use crate::owner::Event;
use crate::peers::Outcome;
use crate::window::{EntryId, PollerIndex};

/// Writes that go in one call at most.
const BATCH_MAX: usize = 2_048;
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);

/// A write, and what the owner's window is to be told once it is durable.
#[derive(Debug)]
pub(crate) struct Booking {
    pub(crate) write: OwnerWrite,
    pub(crate) then: Then,
}

#[derive(Debug)]
pub(crate) enum ToBook {
    Booking(Booking),
    /// Pollers are served from here on, and closed so far.
    Gained(Vec<(PollerId, Timestamp)>),
    /// To be told when all that came before is durable, or refused.
    Flush(oneshot::Sender<()>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    Nothing,
    Resolve(EntryId),
    Deferred(EntryId),
    Positions(PollerIndex),
}

/// What became of one booking.
#[derive(Clone, Debug)]
pub(crate) struct Booked {
    pub(crate) poller: PollerId,
    /// Under which it was booked.
    pub(crate) term: Term,
    pub(crate) then: Then,
    /// The due row that the booking wrote, if it wrote one.
    pub(crate) row: Option<Arrival>,
    pub(crate) positions: Positions,
    pub(crate) refusal: Option<WriteRefusal>,
    /// An outcome that was refused because the shard has a later owner, who is to be told.
    pub(crate) outcome: Option<Outcome>,
}

pub(crate) struct Bookkeeper {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) bookings: mpsc::Receiver<ToBook>,
    pub(crate) events: mpsc::Sender<Event>,
    /// What was last sent for each poller that has positions.
    pub(crate) closed: BTreeMap<PollerId, Timestamp>,
}

impl Bookkeeper {
    /// Ends when every sender of bookings is gone and all is written.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.bookings.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let mut writes = Vec::with_capacity(batch.len());
            let mut booked = Vec::with_capacity(batch.len());
            let mut flushed = Vec::new();
            for to_book in batch.drain(..) {
                let Booking { mut write, then } = match to_book {
                    ToBook::Booking(booking) => booking,
                    ToBook::Gained(pollers) => {
                        self.closed.extend(pollers);
                        continue;
                    }
                    ToBook::Flush(tell) => {
                        flushed.push(tell);
                        continue;
                    }
                };
                let row = after_closed(&mut self.closed, &mut write);
                let positions = match write.change {
                    Change::Positions(positions) => positions,
                    _ => Positions::default(),
                };
                booked.push(Booked {
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
                assert_eq!(answers.len(), booked.len(), "a store answers every write");
                self.end_resolved(&writes, &answers).await;
                for ((booked, answer), write) in booked.iter_mut().zip(answers).zip(writes) {
                    booked.refusal = answer.err();
                    booked.row = booked.row.filter(|_| booked.refusal.is_none());
                    if booked.refusal == Some(WriteRefusal::Superseded)
                        && let Change::Run { run, then, ends } = write.change
                    {
                        booked.outcome = Some(Outcome { poller: write.poller, run, then, ends });
                    }
                }
            }
            for tell in flushed {
                let _nobody_waits = tell.send(());
            }
            if self.events.send(Event::Booked(booked)).await.is_err() {
                return; // The owner is gone; what is durable is durable.
            }
        }
    }

    /// A call that failed may have booked an outcome and not what comes after it: whoever made it again is told that the
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

pub(crate) fn count_store_error(metrics: &Metrics, call: &'static str, error: &StoreError) {
    metrics.store_errors.get_or_create(&Call { call }).inc();
    match metrics.store_errors_told.tell(call) {
        Some(untold) => tracing::warn!(call, %error, untold, "the store failed; the call will be made again"),
        None => tracing::debug!(call, %error, "the store failed; the call will be made again"),
    }
}
