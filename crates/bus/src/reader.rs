//! Readers of whole topics.

use crate::Answer;
use crate::consumer::RecordBatch;

/// Reader of all partitions of a topic, without a group. Each reader of a topic receives all its records.
///
/// A reader stores no position in the bus, and no other process can take partitions from it. It repeats its requests
/// while the bus is away.
pub trait Reader: Send + Sync + 'static {
    /// Waits for the next records of a partition, beginning with its first record. Only one task may call this method at a
    /// time. A caller that drops the future loses no records.
    ///
    /// # Errors
    /// Returns an error that is not [retryable](crate::BusError::is_retryable) if the reader can receive no further
    /// records.
    fn next(&self) -> Answer<'_, RecordBatch>;
}
