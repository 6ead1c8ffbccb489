//! Producers of records.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use instants::Timestamp;

use crate::Answer;
use crate::error::BusError;
use crate::topic::{Header, Position, TopicName, content_bytes};

/// Options of a producer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerOptions {
    /// Longest time between a call of [`Producer::send`] and its outcome. Until then the producer repeats its requests.
    /// The default is 30 s.
    pub delivery_timeout: Duration,
    /// Compression of the records between the producer and the consumers. The default is [`Compression::None`]. An engine
    /// that sends no records over a network ignores it.
    pub compression: Compression,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        ProducerOptions { delivery_timeout: Duration::from_secs(30), compression: Compression::None }
    }
}

/// Compression of records. Consumers recognise it by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// DEFLATE in the gzip format.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// Record that a process sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRecord {
    /// Topic of the record.
    pub topic: TopicName,
    /// Number of the partition. If it is `None`, the key determines the partition ([`crate::partition_of`]), and the
    /// engine selects the partition of a record without a key.
    pub partition: Option<u32>,
    /// Time of the record; `None` for the time at which the record is sent.
    pub timestamp: Option<Timestamp>,
    /// Key of the record.
    pub key: Option<Bytes>,
    /// Value of the record.
    pub value: Option<Bytes>,
    /// Headers of the record.
    pub headers: Vec<Header>,
}

impl NewRecord {
    /// Returns a record with a key and a value, and without headers.
    #[must_use]
    pub fn new(topic: &TopicName, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        NewRecord {
            topic: topic.clone(),
            partition: None,
            timestamp: None,
            key: Some(key.into()),
            value: Some(value.into()),
            headers: Vec::new(),
        }
    }

    /// Returns the size of the record, in bytes: the sum of its key, its value, and the names and values of its
    /// headers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        content_bytes(self.key.as_ref(), self.value.as_ref(), &self.headers)
    }
}

/// Sender of records. Several tasks may use it at the same time.
pub trait Producer: Send + Sync + 'static {
    /// Sends a batch of records, and returns one outcome for each record: its position after the bus has stored it
    /// durably, or an error. The order of the calls determines the order of the records in a partition, even if the
    /// caller does not wait for the outcome of the first call before the second call. If the caller drops the future,
    /// the producer still sends the records.
    ///
    /// # Errors
    /// The outcome of a record is [`BusError::Disconnected`] if the bus did not acknowledge it in time. The bus may
    /// have stored the record. With another error, the bus has not stored the record.
    fn send(&self, records: Vec<NewRecord>) -> BoxFuture<'static, Vec<Result<Position, BusError>>>;

    /// Waits for the outcomes of all records, and closes the producer.
    fn close(&self) -> Answer<'_, ()>;
}
