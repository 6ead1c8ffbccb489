//! Functions of a bus for operators: lists of topics and groups.

use std::collections::BTreeMap;

use crate::consumer::Committed;
use crate::topic::{Partition, TopicName};
use crate::{Answer, Bus};

/// Functions of a bus for operators.
///
/// # Errors
/// Every method returns [`crate::BusError::Disconnected`] if the bus did not respond in time, and
/// [`crate::BusError::Unauthorized`] if the bus rejects the user.
pub trait Admin: Bus {
    /// Returns the names of all topics, in ascending order. Internal topics of the bus are absent.
    fn topics(&self) -> Answer<'_, Vec<TopicName>>;

    /// Returns the names of all groups that have members or committed offsets, in ascending order. The bus may also name
    /// groups that had members or committed offsets before.
    ///
    /// # Errors
    /// Returns [`crate::BusError::Disconnected`] if one of several servers did not respond, because the list would be
    /// incomplete.
    fn groups(&self) -> Answer<'_, Vec<String>>;

    /// Returns the members and the committed offsets of a group. The description is empty if the bus does not know the
    /// group.
    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription>;
}

/// State of a group at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupDescription {
    /// Members whose sessions have not ended.
    pub members: Vec<GroupMember>,
    /// Committed offsets of the group. They remain after the members have left.
    pub committed: BTreeMap<Partition, Committed>,
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
