//! All paxos groups of one node: one journal, one connection to each other node, one clock for them all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::effects::{Effects, Input, Record, Token};
use crate::group::Group;
use crate::ids::{GroupId, Instant, NodeId};
use crate::message::Message;
use crate::options::Options;

/// A node, which has a member of each of its paxos groups.
#[derive(Debug)]
pub struct Node {
    groups: BTreeMap<GroupId, Group>,
    /// Whose records went into the journal under which token.
    unsynced: VecDeque<(Token, GroupId)>,
}

#[derive(Clone, Debug)]
pub enum NodeInput {
    Message {
        from: NodeId,
        group: GroupId,
        message: Message,
    },
    /// All that was appended under this token and before is durable.
    Persisted(Token),
    /// What was appended may not be durable. The node does nothing any more, and has to be started again.
    StorageFailed,
    /// Some time went by.
    Tick,
    /// For one of its paxos groups.
    Group {
        group: GroupId,
        input: Input,
    },
}

impl Node {
    /// A node with the records of its journal, in order. `groups` are those it is to be a member of, with their founders.
    pub fn start(
        me: NodeId,
        options: &Arc<Options>,
        groups: &[(GroupId, Vec<NodeId>)],
        records: impl IntoIterator<Item = (GroupId, Record)>,
        now: Instant,
        effects: &mut Effects,
    ) -> Node {
        let mut of_groups: BTreeMap<GroupId, Vec<Record>> = BTreeMap::new();
        for (group, record) in records {
            of_groups.entry(group).or_default().push(record);
        }
        let start = |(group, founders): &(GroupId, Vec<NodeId>)| {
            let records = of_groups.remove(group).unwrap_or_default();
            (*group, Group::start((me, *group), options.clone(), founders, records, now, effects))
        };
        Node { groups: groups.iter().map(start).collect(), unsynced: VecDeque::new() }
    }

    /// # Panics
    /// As [`Group::step`].
    pub fn step(&mut self, now: Instant, input: NodeInput, effects: &mut Effects) {
        match input {
            NodeInput::Message { from, group, message } => {
                self.step_group(group, now, Input::Message { from, message }, effects);
            }
            NodeInput::Group { group, input } => self.step_group(group, now, input, effects),
            NodeInput::Persisted(token) => {
                while let Some((_, group)) = self.unsynced.pop_front_if(|(until, _)| *until <= token) {
                    self.step_group(group, now, Input::Persisted(token), effects);
                }
            }
            NodeInput::Tick => self.step_all(now, &Input::Tick, effects),
            NodeInput::StorageFailed => self.step_all(now, &Input::StorageFailed, effects),
        }
    }

    fn step_all(&mut self, now: Instant, input: &Input, effects: &mut Effects) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.step_group(group, now, input.clone(), effects);
        }
    }

    fn step_group(&mut self, id: GroupId, now: Instant, input: Input, effects: &mut Effects) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let before = effects.records.len();
        group.step(now, input, effects);
        let is_noted = self.unsynced.back() == Some(&(effects.token, id));
        if effects.records.len() > before && !is_noted {
            self.unsynced.push_back((effects.token, id));
        }
    }

    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }
}
