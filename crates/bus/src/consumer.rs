//! Consumers of records, which are members of groups.

use std::fmt;
use std::time::Duration;

use instants::Monotonic;
use tokio::sync::oneshot;

use crate::topic::{Offset, Partition, Record, TopicName};
use crate::{Answer, BusError};

/// Name of a consumer without a name of its own.
const NAME: &str = "reveille";

/// Options of a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerOptions {
    /// Name of the group.
    pub group: String,
    /// Name of this member for operators ([`crate::GroupMember::name`]), without NUL. The default is `reveille`.
    pub name: String,
    /// Topics that the consumer reads.
    pub topics: Vec<TopicName>,
    /// Position in a partition without a committed offset. The default is [`Start::Earliest`].
    pub start: Start,
    /// Time without contact to the bus after which the consumer loses its partitions. The default is 10 s.
    pub session_timeout: Duration,
    /// Longest time between [`Event::Revoked`] and the release of the partitions. The default is 30 s.
    pub revoke_timeout: Duration,
    /// Largest number of records in a [`RecordBatch`]. The default is 1,000.
    pub batch_records_max: usize,
}

impl ConsumerOptions {
    /// Returns options with defaults for a consumer of `topics` in the group `group`.
    #[must_use]
    pub fn new(group: &str, topics: Vec<TopicName>) -> Self {
        ConsumerOptions {
            group: group.to_owned(),
            name: NAME.to_owned(),
            topics,
            start: Start::Earliest,
            session_timeout: Duration::from_secs(10),
            revoke_timeout: Duration::from_secs(30),
            batch_records_max: 1_000,
        }
    }

    /// Checks the name. Engines call this function.
    ///
    /// # Errors
    /// Returns [`BusError::Invalid`] if the name contains a NUL.
    pub fn check_name(&self) -> Result<(), BusError> {
        if self.name.contains('\0') {
            let reason = format!("the name {:?} of the consumer contains a NUL; remove it", self.name);
            return Err(BusError::Invalid(reason));
        }
        Ok(())
    }
}

/// Position in a partition without a committed offset. The position also applies if the bus has deleted the record at
/// the committed offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// First record of the partition.
    Earliest,
    /// End of the partition. The consumer receives only records that are sent after the assignment.
    Latest,
}

/// Member of a group. A consumer that is dropped without [`Consumer::close`] may block its partitions until its session
/// ends.
///
/// A group has three steps for each partition: [`Event::Assigned`], records, and then [`Event::Revoked`] or
/// [`Event::Lost`].
pub trait Consumer: Send + Sync + 'static {
    /// Waits for the next event. Only one task may call this method at a time. A caller that drops the future loses no
    /// event. The consumer keeps its session even if the caller does not call this method.
    ///
    /// # Errors
    /// Returns an error that is not [retryable](BusError::is_retryable) if the consumer can receive no further
    /// event.
    fn next(&self) -> Answer<'_, Event>;

    /// Stores committed offsets and their metadata. An accepted commit renews the session.
    ///
    /// # Errors
    /// Returns [`BusError::Fenced`] if the consumer no longer owns one of the partitions, and
    /// [`BusError::MetadataTooLarge`] if the metadata is too large. In both cases the bus stores no part of the
    /// commit.
    fn commit(&self, commits: Vec<Commit>) -> Answer<'_, ()>;

    /// Sets the position of a partition to `offset`. Later events contain only records from this position. Does nothing
    /// if the consumer does not own the partition.
    fn seek(&self, partition: &Partition, offset: Offset);

    /// Pauses partitions. Later events contain no records of them until [`Consumer::resume`]. An assignment ends the
    /// pause.
    fn pause(&self, partitions: &[Partition]);

    /// Resumes paused partitions.
    fn resume(&self, partitions: &[Partition]);

    /// Leaves the group and releases all partitions. Afterwards [`Consumer::next`] returns
    /// [`BusError::Closed`].
    fn close(&self) -> Answer<'_, ()>;
}

/// Event of a consumer.
#[derive(Debug)]
pub enum Event {
    /// The consumer owns these further partitions. It receives none of their records before the next call of
    /// [`Consumer::next`], so the caller can first seek or pause.
    Assigned(Vec<Assigned>),
    /// The group needs partitions for another consumer. The consumer receives no further records of these partitions,
    /// but it can still commit.
    Revoked(Revocation),
    /// The consumer no longer owns these partitions. Another consumer may own them. The bus rejects commits.
    Lost(Vec<Partition>),
    /// Records of one partition.
    Records(RecordBatch),
}

/// Partition that the bus has assigned to the consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// Assigned partition.
    pub partition: Partition,
    /// Offset of the next record that the consumer receives.
    pub position: Offset,
    /// Committed offset of the group; `None` if the group has never committed an offset of this partition. An engine may
    /// commit the first position before it assigns a partition.
    pub committed: Option<Committed>,
}

/// Committed offset of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Offset of the first record that the group has not finished.
    pub offset: Offset,
    /// Text that the consumer stored together with the offset.
    pub metadata: String,
}

/// Offset that a consumer commits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Partition of the offset.
    pub partition: Partition,
    /// New committed offset and its metadata.
    pub committed: Committed,
}

/// Records of one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordBatch {
    /// Partition of the records.
    pub partition: Partition,
    /// Records in the order of their offsets. The list has at least one record.
    pub records: Vec<Record>,
    /// Offset after the last record of the partition, as far as the consumer knows.
    pub end: Offset,
}

/// Request to release partitions. The consumer releases them when the caller calls [`Revocation::release`] or drops
/// this object, but at the latest at the deadline.
#[must_use = "a drop of this object releases the partitions"]
pub struct Revocation {
    partitions: Vec<Partition>,
    deadline: Monotonic,
    released: Option<oneshot::Sender<()>>,
}

impl Revocation {
    /// Creates a request. The engine waits for the result of the receiver, or for its end, until `deadline`.
    pub fn new(partitions: Vec<Partition>, deadline: Monotonic) -> (Self, oneshot::Receiver<()>) {
        let (released, receiver) = oneshot::channel();
        (Revocation { partitions, deadline, released: Some(released) }, receiver)
    }

    /// Returns the partitions to release.
    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns the time at which the consumer releases the partitions by itself. From then on the caller must treat
    /// them as lost.
    #[must_use]
    pub fn deadline(&self) -> Monotonic {
        self.deadline
    }

    /// Releases the partitions. The caller must have finished its work on them.
    pub fn release(mut self) {
        if let Some(released) = self.released.take() {
            // If the receiver is gone, the consumer has already released or lost the partitions.
            _ = released.send(());
        }
    }
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation").field("partitions", &self.partitions).field("deadline", &self.deadline).finish()
    }
}
