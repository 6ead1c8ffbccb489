//! Handlers of records.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::context::Context;
use crate::topic::{Partition, Position, Record};

/// Record that the processor passes to a handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Partition of the record.
    pub partition: Partition,
    /// The record.
    pub record: Record,
    /// Position of the original record. It differs from the position of `record` if this is a copy in a retry topic.
    pub origin: Position,
    /// Number of this call for the record. The first call has the number 1. The count of the calls in one topic starts
    /// again after a rebalance or a restart.
    pub call: u32,
}

impl Delivery {
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

/// Handler of a processor.
pub(super) enum Calls {
    /// One record in each call.
    Single(Arc<dyn Handler>),
    /// At most this many records in each call.
    Batches(Arc<dyn BatchHandler>, usize),
}

impl Calls {
    /// Returns the largest number of records in a call.
    pub(super) fn records_max(&self) -> usize {
        match self {
            Calls::Single(_) => 1,
            Calls::Batches(_, records_max) => *records_max,
        }
    }

    /// Calls the handler. Returns one outcome for each delivery; `None` if a call for several records panicked.
    pub(super) async fn call(&self, mut deliveries: Vec<Delivery>) -> Option<Vec<Result<(), HandlerError>>> {
        let count = deliveries.len();
        if count == 0 {
            return Some(Vec::new());
        }
        let calling = async {
            match self {
                Calls::Single(handler) => match deliveries.pop() {
                    Some(delivery) => vec![handler.handle(delivery).await],
                    None => Vec::new(),
                },
                Calls::Batches(handler, _) => handler.handle(deliveries).await,
            }
        };
        match AssertUnwindSafe(calling).catch_unwind().await {
            Ok(mut outcomes) => {
                let missing = || Err(HandlerError::retriable("the handler returned no outcome for the record"));
                outcomes.resize_with(count, missing);
                Some(outcomes)
            }
            Err(_) => (count == 1).then(|| vec![Err(HandlerError::retriable("the handler panicked"))]),
        }
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
