//! Port (interface) of a message bus with Kafka's data model, and an engine in memory.
//!
//! A *topic* consists of partitions, and a partition is a sequence of records. Each record has an offset in its
//! partition. A process sends records through a [`Producer`] and reads them through a [`Consumer`]. Consumers with the
//! same group name form a *group*: the bus assigns each partition of the group's topics to one of the group's
//! consumers. The group stores a committed offset for each partition.
//!
//! Every engine promises:
//! - Records with the same key are in the same partition as long as the topic does not grow ([`partition_of`]). The
//!   bus stores the records of a partition in the order in which a producer sent them.
//! - An acknowledged record is durable, except in the engine in memory. The bus stores each record of a producer at
//!   most once, even if the producer repeats a request after a lost response.
//! - A consumer receives the records of an assigned partition in the order of their offsets, without gaps.
//! - A group never assigns a partition to two consumers at the same time. Before another consumer receives
//!   [`Event::Assigned`], the earlier consumer has released the partition, its `revoke_timeout` has passed, or its
//!   session has ended.
//! - A consumer without contact to the bus detects the end of its session by its own clock and receives
//!   [`Event::Lost`], before the bus assigns its partitions to another consumer.
//! - The bus rejects commits of a consumer whose session has ended.
//!
//! An engine does not promise that a record has only one consumer. If a consumer loses a partition, the next consumer
//! reads all records after the committed offset again.
//!
//! docs/decisions/0229-model-the-bus-port-on-kafka.md gives the reasons for the design.

#![warn(missing_docs)]

mod admin;
mod claim;
mod consumer;
mod context;
mod error;
pub mod gather;
pub mod leader;
pub mod memory;
mod murmur2;
pub mod ownership;
pub mod processor;
mod producer;
mod reader;
pub mod shards;
mod topic;

use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use admin::{Admin, GroupDescription, GroupMember};
pub use consumer::{Assigned, Commit, Committed, Consumer, ConsumerOptions, Event, RecordBatch, Revocation, Start};
pub use context::Context;
pub use error::BusError;
pub use murmur2::partition_of;
pub use producer::{Compression, NewRecord, Producer, ProducerOptions};
pub use reader::Reader;
pub use topic::{
    Header, Offset, Partition, Position, PositionError, Record, TopicDescription, TopicName, TopicNameError,
    TopicOptions,
};

/// Future of the outcome of a request to the bus.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, BusError>>;

/// Bus that a process has opened.
///
/// # Errors
/// Every method returns [`BusError::Disconnected`] if the bus did not respond in time. The bus may have executed the
/// request.
pub trait Bus: Send + Sync + 'static {
    /// Returns the limits and the optional features of this engine.
    fn capabilities(&self) -> Capabilities;

    /// Creates a topic.
    ///
    /// # Errors
    /// Returns [`BusError::TopicExists`] if the topic exists, and [`BusError::Invalid`] if the bus rejects the options.
    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()>;

    /// Returns the number of partitions of a topic, and the offsets of each partition.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist.
    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription>;

    /// Increases the number of partitions of a topic to `partitions`. The partition of a key may change.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist, and [`BusError::Invalid`] if it already has at
    /// least `partitions` partitions.
    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()>;

    /// Opens a producer.
    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>>;

    /// Joins a group. The consumer keeps its membership until the process calls [`Consumer::close`].
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if a topic of the group does not exist, and [`BusError::Invalid`] if the bus
    /// rejects the options.
    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>>;

    /// Opens a reader of all current partitions of a topic. It does not read partitions that the topic gets later.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist.
    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>>;
}

/// Limits and optional features of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Largest size of a record, in bytes: the sum of its key, its value, and the names and values of its headers.
    pub record_bytes_max: usize,
    /// Largest size of the metadata of a commit, in bytes.
    pub metadata_bytes_max: usize,
    /// True if a topic can be compacted ([`TopicOptions::is_compacted`]).
    pub compacts_topics: bool,
    /// True if a consumer that has not released a revoked partition still receives new records of its other partitions.
    /// Otherwise it receives only records that it has already fetched.
    pub delivers_during_revocation: bool,
}
