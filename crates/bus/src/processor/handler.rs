//! Handlers of records.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};

use futures_util::future::BoxFuture;
use smallvec::{SmallVec, smallvec};

use crate::context::Context;
use crate::topic::{Offset, Partition, Position, Record};

/// Record that the processor passes to a handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Partition of the record.
    pub partition: Partition,
    /// The record. If it is a copy in a retry topic, it has the time of the original record.
    pub record: Record,
    /// Number of this call for the record. The first call has the number 1. The count of the calls in one topic starts
    /// again after a rebalance or a restart.
    pub call: u32,
    /// Position of the original record, if this is a copy in a retry topic.
    pub(super) original: Option<Position>,
}

impl Delivery {
    /// Returns the position of the original record. It differs from the position of `record` if this is a copy in a retry
    /// topic.
    #[must_use]
    pub fn origin(&self) -> Position {
        let own = || Position { partition: self.partition.clone(), offset: self.record.offset };
        self.original.clone().unwrap_or_else(own)
    }

    /// Returns the context of the record, for records that the handler sends.
    #[must_use]
    pub fn context(&self) -> Context {
        Context::of(&self.record)
    }
}

/// Code that handles records.
pub trait Handler: Send + Sync + 'static {
    /// Handles a record. The processor may call the handler again for a record whose effect has already happened, so
    /// the effect must be idempotent. The processor drops the future when the consumer has lost the partition.
    ///
    /// # Errors
    /// An error makes the record fail.
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>>;
}

/// Code that handles several records in one call.
pub trait BatchHandler: Send + Sync + 'static {
    /// Handles records of one partition, which may have different keys. The records of a key are in their order. After the
    /// failure of a record, the method must not handle the later records of the same key: the processor ignores their
    /// outcomes and passes them to a later call. [`Handler::handle`] describes repeated calls and dropped futures.
    ///
    /// Returns one outcome for each delivery, in the order of the deliveries. A record without an outcome fails. If the
    /// method panics, the processor calls it again for the first record of each key alone, so that only a record fails that
    /// panics again.
    fn handle(&self, deliveries: Vec<Delivery>) -> BoxFuture<'_, Vec<Result<(), HandlerError>>>;
}

/// Handler of the records of a partition during one assignment. It builds a state in memory from the records of the
/// partition, and drops the state at the end of the assignment.
pub(crate) trait StatefulHandler: Handler + fmt::Debug {
    /// Adds a record to the state, without any other effect. An earlier owner of the partition has handled the record. The
    /// processor calls this method before it passes a later record of the same key to [`Handler::handle`]. The call must
    /// not block.
    fn replay(&self, record: &Record);

    /// Returns the offset of the oldest record on which the state depends. The next owner of the partition builds its state
    /// from this record and the records after it.
    fn oldest(&self) -> Option<Offset>;
}

/// Function that returns the handler of a new assignment.
pub(crate) type MakeHandler = Box<dyn Fn(&Partition) -> Arc<dyn StatefulHandler> + Send + Sync>;

/// Handler of a processor.
pub(super) enum Calls {
    /// One record in each call.
    Single(Arc<dyn Handler>),
    /// At most this many records in each call.
    Batches(Arc<dyn BatchHandler>, usize),
    /// One record in each call of the handler of its assignment.
    Stateful(MakeHandler),
}

impl Calls {
    /// Returns the handler of a new assignment, if the processor has stateful handlers.
    pub(super) fn assigned(&self, partition: &Partition) -> Option<Arc<dyn StatefulHandler>> {
        match self {
            Calls::Single(_) | Calls::Batches(..) => None,
            Calls::Stateful(make) => Some(make(partition)),
        }
    }

    /// Returns the largest number of records in a call.
    pub(super) fn records_max(&self) -> usize {
        match self {
            Calls::Single(_) | Calls::Stateful(_) => 1,
            Calls::Batches(_, records_max) => *records_max,
        }
    }

    /// Starts a call of the handler. `assigned` is the handler of the assignment, if the processor has stateful handlers.
    pub(super) fn call(&self, deliveries: Deliveries, assigned: Option<Arc<dyn StatefulHandler>>) -> Handling<'_> {
        let count = deliveries.len();
        let first = |mut deliveries: Deliveries| deliveries.pop().expect("the list is not empty");
        let started = panic::catch_unwind(AssertUnwindSafe(|| match (self, assigned) {
            _ if count == 0 => Running::Nothing,
            (Calls::Single(handler), _) => Running::Single(handler.handle(first(deliveries))),
            (Calls::Batches(handler, _), _) => Running::Batch(handler.handle(deliveries.into_vec())),
            (Calls::Stateful(_), handler) => {
                let handler = handler.expect("each assignment has a handler");
                let delivery = first(deliveries);
                Running::Single(Box::pin(async move { handler.handle(delivery).await }))
            }
        }));
        Handling { count, running: started.unwrap_or(Running::Panicked) }
    }
}

/// Records of one call.
pub(super) type Deliveries = SmallVec<[Delivery; 1]>;
/// Outcomes of the records of one call.
pub(super) type Results = SmallVec<[Result<(), HandlerError>; 1]>;

/// Running call of a handler. It returns one outcome for each delivery; `None` if a call for several records panicked.
pub(super) struct Handling<'a> {
    count: usize,
    running: Running<'a>,
}

enum Running<'a> {
    Nothing,
    Single(BoxFuture<'a, Result<(), HandlerError>>),
    Batch(BoxFuture<'a, Vec<Result<(), HandlerError>>>),
    Panicked,
}

impl Future for Handling<'_> {
    type Output = Option<Results>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            let outcomes = match &mut self.running {
                Running::Nothing => Some(Results::new()),
                Running::Single(handling) => Some(smallvec![ready!(handling.as_mut().poll(context))]),
                Running::Batch(handling) => Some(ready!(handling.as_mut().poll(context)).into()),
                Running::Panicked => None,
            };
            // The drop of the handler's future may panic, too.
            self.running = Running::Nothing;
            Poll::Ready(outcomes)
        }));
        let polled = polled.unwrap_or_else(|_| {
            drop(panic::catch_unwind(AssertUnwindSafe(|| self.running = Running::Panicked)));
            Poll::Ready(None)
        });
        let Poll::Ready(outcomes) = polled else { return Poll::Pending };
        let failed = |reason| move || Err(HandlerError::retriable(reason));
        Poll::Ready(match outcomes {
            Some(mut outcomes) => {
                outcomes.resize_with(self.count, failed("the handler returned no outcome for the record"));
                Some(outcomes)
            }
            None => (self.count == 1).then(|| smallvec![failed("the handler panicked")()]),
        })
    }
}

/// Failure of a handler.
#[derive(Debug)]
pub struct HandlerError {
    /// Description of the failure, for the log.
    pub reason: String,
    /// False if a further call of the handler cannot succeed.
    pub is_retriable: bool,
}

impl HandlerError {
    /// Returns a failure after which the processor may call the handler again.
    pub fn retriable(reason: impl fmt::Display) -> Self {
        HandlerError { reason: reason.to_string(), is_retriable: true }
    }

    /// Returns a failure after which the record is finished.
    pub fn not_retriable(reason: impl fmt::Display) -> Self {
        HandlerError { reason: reason.to_string(), is_retriable: false }
    }
}
