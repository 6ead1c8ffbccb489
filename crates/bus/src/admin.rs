//! Functions of a bus for operators: lists of topics and groups.

use std::collections::BTreeMap;

use crate::consumer::Committed;
use crate::topic::{Offset, Partition, TopicName};
use crate::{Answer, Bus};

/// Functions of a bus for operators.
///
/// # Errors
/// Every method returns [`crate::BusError::Disconnected`] if the bus did not respond in time, and
/// [`crate::BusError::Unauthorized`] if the bus rejects the user.
pub trait Admin: Bus {
    /// Returns the names of all topics, in ascending order. Internal topics of the bus are absent.
    fn topics(&self) -> Answer<'_, Vec<TopicName>>;

    /// Returns the end of each partition of a topic: the offset after the last stored record. Unlike the ends of
    /// [`Bus::describe_topic`], these ends include records that consumers do not receive yet, because their transaction is
    /// open.
    ///
    /// # Errors
    /// Returns [`crate::BusError::UnknownTopic`] if the topic does not exist.
    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>>;

    /// Returns true if consumers of a topic receive a record at one of the offsets `from` or after it. `from` has an
    /// offset for each partition, beginning with the first. Partitions without an offset do not count. Records that the
    /// bus stores during the call may or may not count. The offsets after a record may all be unused, for example after
    /// a transaction.
    ///
    /// # Errors
    /// Returns [`crate::BusError::UnknownTopic`] if the topic does not exist.
    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool>;

    /// Returns the names of all groups that have members or committed offsets, in ascending order. The bus may also name
    /// groups that had members or committed offsets before. Groups that the user may not describe can be absent.
    ///
    /// # Errors
    /// Returns [`crate::BusError::Disconnected`] if one of several servers did not respond, because the list would be
    /// incomplete.
    fn groups(&self) -> Answer<'_, Vec<String>>;

    /// Returns the members and the committed offsets of a group. The description is empty if the bus does not know the
    /// group. It can be empty if the name contains a NUL.
    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription>;
}

/// State of a group at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupDescription {
    /// Members whose sessions have not ended.
    pub members: Vec<GroupMember>,
    /// Committed offsets of the group. They remain after the members have left.
    pub committed: BTreeMap<Partition, Committed>,
    /// True while the group assigns partitions. The lists of partitions of its members can then be empty or old.
    pub is_rebalancing: bool,
}

/// Member of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMember {
    /// Id of the member. Two members never have the same id.
    pub id: String,
    /// Name of the member ([`crate::ConsumerOptions::name`]). Several members can have the same name.
    pub name: String,
    /// Host of the member, as the bus sees it.
    pub host: String,
    /// Partitions of the member, in ascending order. The list can be empty or old while the group assigns partitions.
    pub partitions: Vec<Partition>,
}
