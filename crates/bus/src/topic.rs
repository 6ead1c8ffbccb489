//! Topics, partitions and records.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use instants::Timestamp;

/// Name of a topic: 1 to 249 letters, digits, `.`, `_` and `-`, but neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Reason why a text is not a valid name of a topic.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid topic name {0:?}: it must have 1 to 249 letters, digits, `.`, `_` and `-`, and not be `.` or `..`")]
pub struct TopicNameError(String);

impl TopicName {
    /// Largest length of a name, in bytes.
    pub const LEN_MAX: usize = 249;

    /// Parses a name.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid name.
    pub fn new(text: &str) -> Result<Self, TopicNameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_valid = (1..=Self::LEN_MAX).contains(&text.len()) && text.bytes().all(is_allowed);
        if !is_valid || [".", ".."].contains(&text) {
            return Err(TopicNameError(text.chars().take(Self::LEN_MAX).collect()));
        }
        Ok(TopicName(text.into()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = TopicNameError;

    fn from_str(text: &str) -> Result<Self, TopicNameError> {
        TopicName::new(text)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Options with which a process creates a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicOptions {
    /// Number of partitions.
    pub partitions: u32,
    /// Number of servers that store each record; `None` for the default of the bus.
    pub replicas: Option<u16>,
    /// If true, the bus deletes a record some time after a later record with the same key.
    pub is_compacted: bool,
}

impl TopicOptions {
    /// Returns the options of a topic with this number of partitions and otherwise the defaults of the bus.
    #[must_use]
    pub fn with_partitions(partitions: u32) -> Self {
        TopicOptions { partitions, replicas: None, is_compacted: false }
    }
}

/// State of a topic at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicDescription {
    /// Number of servers that store each record.
    pub replicas: u16,
    /// For each partition, the offset of its first record and the offset after the last record that consumers receive.
    /// [`crate::Admin::stored_ends`] also counts the records of open transactions.
    pub offsets: Vec<(Offset, Offset)>,
}

/// One partition of a topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition {
    /// Topic that contains the partition.
    pub topic: TopicName,
    /// Number of the partition in its topic. The first partition has the number 0.
    pub index: u32,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.index)
    }
}

/// Position of a record in its partition. The bus numbers the records of a partition in ascending order. Some numbers
/// may be unused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Offset(pub u64);

impl Offset {
    /// Returns the offset after this offset.
    #[must_use]
    pub fn next(self) -> Self {
        Offset(self.0 + 1)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Partition and offset of a stored record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// Partition that contains the record.
    pub partition: Partition,
    /// Offset of the record in the partition.
    pub offset: Offset,
}

/// Reason why a text is not a position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid position {0:?}: it must have the form TOPIC/PARTITION/OFFSET, for example orders/0/17")]
pub struct PositionError(String);

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let parse = || {
            let mut parts = text.split('/');
            let topic = TopicName::new(parts.next()?).ok()?;
            let (index, offset) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let position = Position { partition: Partition { topic, index }, offset: Offset(offset) };
            parts.next().is_none().then_some(position)
        };
        parse().ok_or_else(|| PositionError(text.chars().take(TopicName::LEN_MAX).collect()))
    }
}

/// Writes the form `TOPIC/PARTITION/OFFSET`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.partition.topic, self.partition.index, self.offset)
    }
}

/// Header of a record. A record may have several headers with the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Name of the header.
    pub name: String,
    /// Value of the header. The bus distinguishes a missing value from an empty value.
    pub value: Option<Bytes>,
}

/// Record that a consumer has received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Offset of the record in its partition.
    pub offset: Offset,
    /// Time of the record. The producer sets this time, or otherwise the time at which the record was sent.
    pub timestamp: Timestamp,
    /// Key of the record. The bus distinguishes a missing key from an empty key.
    pub key: Option<Bytes>,
    /// Value of the record. The bus distinguishes a missing value from an empty value.
    pub value: Option<Bytes>,
    /// Headers of the record, in the order of the producer.
    pub headers: Vec<Header>,
}

impl Record {
    /// Returns the size of the record, in bytes: the sum of its key, its value, and the names and values of its
    /// headers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        content_bytes(self.key.as_ref(), self.value.as_ref(), &self.headers)
    }
}

pub(crate) fn content_bytes(key: Option<&Bytes>, value: Option<&Bytes>, headers: &[Header]) -> usize {
    let len = |bytes: Option<&Bytes>| bytes.map_or(0, Bytes::len);
    let headers = headers.iter().map(|header| header.name.len() + len(header.value.as_ref()));
    len(key) + len(value) + headers.sum::<usize>()
}
