//! Errors of the bus.

use crate::topic::{TopicName, TopicNameError};

/// Failure of a request to the bus.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BusError {
    /// The topic does not exist.
    #[error("unknown topic {0}; create the topic first")]
    UnknownTopic(TopicName),
    /// A topic with this name already exists.
    #[error("the topic {0} already exists")]
    TopicExists(TopicName),
    /// The request is invalid. The text names the part that the caller must change.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The record is larger than the bus accepts.
    #[error("the record has {bytes} bytes, and the bus accepts at most {limit} bytes; send a smaller record")]
    RecordTooLarge {
        /// Size of the record, in bytes.
        bytes: usize,
        /// Largest size that the bus accepts, in bytes.
        limit: usize,
    },
    /// The metadata of the commit is larger than the bus accepts.
    #[error("the metadata of the commit has {bytes} bytes, and the bus accepts at most {limit} bytes")]
    MetadataTooLarge {
        /// Size of the metadata, in bytes.
        bytes: usize,
        /// Largest size that the bus accepts, in bytes.
        limit: usize,
    },
    /// The bus rejects the commit, because another consumer may own the partition. The bus has stored no part of it.
    #[error("the consumer no longer owns the partition; its next owner processes the records again")]
    Fenced,
    /// The bus rejects the user, or the user may not make this request.
    #[error("the bus rejects the user: {0}; check the user, its password and its permissions")]
    Unauthorized(String),
    /// The engine does not support this request.
    #[error("this bus does not support {0}")]
    Unsupported(&'static str),
    /// The process cannot reach the bus, or the connection ended before the response. The bus may have executed the
    /// request.
    #[error("the bus did not respond: {0}")]
    Disconnected(String),
    /// The caller has closed the producer or the consumer.
    #[error("the producer or consumer is closed")]
    Closed,
}

impl BusError {
    /// Returns true if the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, BusError::Disconnected(_))
    }
}

impl From<TopicNameError> for BusError {
    fn from(error: TopicNameError) -> Self {
        BusError::Invalid(error.to_string())
    }
}
