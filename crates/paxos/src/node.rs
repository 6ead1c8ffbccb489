//! All paxos groups of one node. The paxos groups share one journal, one connection to each other node, one clock and
//! one liveness epoch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use self::moves::Moves;
use crate::effects::{Effects, Event, Input, Record, Token};
use crate::entry::Value;
use crate::group::Group;
use crate::ids::{GroupId, Instant, NodeId, Slot};
use crate::liveness::{Liveness, LivenessUpdate};
use crate::message::Message;
use crate::mover;
use crate::options::Options;
use crate::simulation::Mutant;
use crate::system::{self, Fence, Preparation, System};

mod moves;

pub use moves::ActiveOrders;

/// Node, which contains one member of each of its paxos groups. If the system group is one of these paxos groups, the
/// node itself applies the decisions of the system group. Through the system group, the node renews the leases of its
/// other paxos groups, and moves their masters.
#[derive(Debug)]
pub struct Node {
    process: Process,
    options: Arc<Options>,
    groups: BTreeMap<GroupId, Group>,
    /// Instant of the next tick of each paxos group.
    due: BTreeMap<GroupId, Instant>,
    /// Paxos groups with records that are not yet durable, with the tokens of these records.
    unsynced: VecDeque<(Token, GroupId)>,
    liveness: Liveness,
    /// Last liveness update that the node has passed to its paxos groups.
    published: Option<LivenessUpdate>,
    moves: Moves,
    has_stopped: bool,
    /// Last slot of the system group that the node has applied. `snapshot_slot` is the last slot in the snapshot of the
    /// system group.
    applied: Slot,
    snapshot_slot: Slot,
}

/// Input of a node.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// Delivers a message. The driver has verified that `from` is the sender.
    Message { from: NodeId, group: GroupId, message: Message },
    /// Reports that all records with this token or an earlier token are durable.
    Persisted(Token),
    /// Reports that appended records might not be durable. From then on, the node only rejects proposals, and the
    /// driver must restart the node.
    StorageFailed,
    /// Reports that time has passed. [`Node::next_tick`] returns the instant at which the next tick is due.
    Tick,
    /// Reports that the application has finished the preparation that [`Event::Prepare`] requested.
    Prepared { fence: Fence, what: Preparation },
    /// Passes an input to one of the node's paxos groups.
    Group { group: GroupId, input: Input },
}

/// Process of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub node: NodeId,
    /// Random number of the process. Other processes of the node have other numbers.
    pub incarnation: u64,
}

impl Node {
    /// Starts a node from the records of its journal, in the order of the journal. `groups` are the paxos groups of the
    /// node, each with its first members.
    ///
    /// # Panics
    /// Panics in the cases in which [`Group::start`] panics. Also panics if the options allow a process to take over a
    /// move's token while the holder still acts. Also panics if the options do not leave a master time to hand over
    /// before the end of its orders. Also panics if the journal contains records that this build cannot read.
    pub fn start(
        process: Process,
        options: &Arc<Options>,
        groups: &[(GroupId, Vec<NodeId>)],
        records: impl IntoIterator<Item = (GroupId, Record)>,
        now: Instant,
        effects: &mut Effects,
    ) -> Node {
        let me = process.node;
        let mut of_groups: BTreeMap<GroupId, Vec<Record>> = BTreeMap::new();
        for (group, record) in records {
            of_groups.entry(group).or_default().push(record);
        }
        let begun = effects.events.len();
        let start = |(group, founders): &(GroupId, Vec<NodeId>)| {
            let records = of_groups.remove(group).unwrap_or_default();
            (*group, Group::start((me, *group), options.clone(), founders, records, now, effects))
        };
        let mut node = Node {
            process,
            options: options.clone(),
            groups: groups.iter().map(start).collect(),
            due: BTreeMap::new(),
            unsynced: VecDeque::new(),
            liveness: Liveness::new(me, process.incarnation),
            published: None,
            moves: Moves::new(options),
            has_stopped: false,
            applied: Slot(0),
            snapshot_slot: Slot(0),
        };
        node.due = node.groups.iter().filter_map(|(id, group)| Some((*id, group.next_tick(now)?))).collect();
        node.apply_system(begun, now, effects);
        node
    }

    /// # Panics
    /// Panics in the cases in which [`Group::step`] panics. Also panics if the caller proposes to the system group an
    /// entry that is not a [`system::Record`], because the entry would stop all nodes once it is decided. Also panics
    /// if this build cannot read an entry that the system group decides, or a snapshot of the system group that another
    /// member sends.
    pub fn step(&mut self, now: Instant, input: NodeInput, effects: &mut Effects) {
        let begun = effects.events.len();
        match input {
            NodeInput::Group { group, input } => {
                if let (GroupId::SYSTEM, Input::Propose { entry, .. } | Input::Forward { entry }) = (group, &input) {
                    system::Record::decode(entry)
                        .expect("the caller proposes only valid system records to the system group");
                }
                self.step_group(group, now, input, effects);
            }
            _ if self.has_stopped => {}
            NodeInput::Message { from, group, message } => self.handle_message(from, group, message, now, effects),
            NodeInput::Persisted(token) => {
                while let Some((_, group)) = self.unsynced.pop_front_if(|(until, _)| *until <= token) {
                    self.step_group(group, now, Input::Persisted(token), effects);
                }
            }
            NodeInput::Tick => {
                let due: Vec<GroupId> = self.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
                for group in due {
                    self.step_group(group, now, Input::Tick, effects);
                }
                self.live(now, effects);
                self.tend_moves(now, effects);
            }
            NodeInput::Prepared { fence, what } => self.prepared(fence, what),
            NodeInput::StorageFailed if self.options.deviation.is(Mutant::OutlivesFailedSync) => {}
            NodeInput::StorageFailed => {
                self.has_stopped = true;
                let all: Vec<GroupId> = self.groups.keys().copied().collect();
                for group in all {
                    self.step_group(group, now, Input::StorageFailed, effects);
                }
            }
        }
        self.apply_system(begun, now, effects);
    }

    fn handle_message(&mut self, from: NodeId, group: GroupId, message: Message, now: Instant, effects: &mut Effects) {
        match message {
            Message::Report(report) => self.handle_report(from, report, now, effects),
            Message::Orders(orders) => self.handle_orders(&orders, now, effects),
            Message::RequestConsent { term } => self.handle_consent_request(from, group, term, now, effects),
            // The node drops a forwarded entry that is not a record of the system group, because the entry would stop
            // all nodes once it is decided.
            Message::Forward { entry } if group == GroupId::SYSTEM => {
                if let Ok(record) = system::Record::decode(&entry)
                    && !self.is_pending(&record)
                {
                    let message = Message::Forward { entry };
                    self.step_group(group, now, Input::Message { from, message }, effects);
                }
            }
            Message::Consent { taker, .. } if taker != self.process.node => {
                if self.system().node(taker).is_some() {
                    effects.sends.push((taker, group, message));
                }
            }
            message => self.step_group(group, now, Input::Message { from, message }, effects),
        }
    }

    fn step_group(&mut self, id: GroupId, now: Instant, input: Input, effects: &mut Effects) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (before, sent) = (effects.records.len(), effects.sends.len());
        group.step(now, input, effects);
        match group.next_tick(now) {
            Some(at) => self.due.insert(id, at),
            None => self.due.remove(&id),
        };
        let is_noted = self.unsynced.back() == Some(&(effects.token, id));
        if effects.records.len() > before && !is_noted {
            self.unsynced.push_back((effects.token, id));
        }
        self.relay_consents(sent, effects);
    }

    /// Also sends each consent to the members of the system group, which forward the consent to the next master.
    /// Searches for consents in the messages from index `at` on. The members of the system group may receive this
    /// node's messages although the next master does not. This node then stays alive, and the next master could not
    /// take over without the forwarded consent.
    fn relay_consents(&self, at: usize, effects: &mut Effects) {
        let Some(system) = self.groups.get(&GroupId::SYSTEM) else { return };
        for index in at..effects.sends.len() {
            let (taker, group, message @ Message::Consent { .. }) = &effects.sends[index] else { continue };
            let (taker, group, message) = (*taker, *group, message.clone());
            let others = system.committed().members.iter().filter(|node| ![self.process.node, taker].contains(node));
            effects.sends.extend(others.map(|node| (*node, group, message.clone())));
        }
    }

    /// Proposes the records of the system group that are due. They state that this node is alive, or that other nodes
    /// are dead.
    fn live(&mut self, now: Instant, effects: &mut Effects) {
        for record in self.liveness.tick(self.masters_system(now), now, &self.options) {
            self.propose(&record, now, effects);
        }
    }

    fn masters_system(&self, now: Instant) -> bool {
        self.groups.get(&GroupId::SYSTEM).is_some_and(|group| group.serves(now).is_some())
    }

    fn propose(&mut self, record: &system::Record, now: Instant, effects: &mut Effects) {
        if self.is_pending(record) {
            return;
        }
        let entry = record.encode().into();
        self.step_group(GroupId::SYSTEM, now, Input::Forward { entry }, effects);
    }

    /// Returns true if this node leads the system group and has an undecided entry that will make the record stale. In
    /// this case, the caller drops the record. Nodes repeat undecided records. If decisions took long, these
    /// repetitions would delay all other records.
    fn is_pending(&self, record: &system::Record) -> bool {
        let (Some(system), Some(rivals)) = (self.groups.get(&GroupId::SYSTEM), record.rivals()) else { return false };
        system.undecided_entries().any(|entry| entry.starts_with(&rivals))
    }

    /// Applies the decisions of the system group among the events from index `at` on, and passes the results to the
    /// other paxos groups. These results may cause further decisions and events, which the function also applies.
    fn apply_system(&mut self, mut at: usize, now: Instant, effects: &mut Effects) {
        let token = |node: &Node| node.system().token().map(|token| (token.fence, token.step));
        let before = token(self);
        while at < effects.events.len() {
            if self.apply_events(&mut at, now, effects) {
                self.publish(now, effects);
                self.step_mover(mover::Input::Tick, now, effects);
            }
            if self.applied.0 - self.snapshot_slot.0 >= self.options.system_slots {
                self.snapshot_slot = self.applied;
                let input = Input::Snapshot { slot: self.applied, application: self.liveness.snapshot() };
                self.step_group(GroupId::SYSTEM, now, input, effects);
            }
        }
        if token(self) != before {
            self.report_soon();
        }
        let decided = self.groups.get(&GroupId::SYSTEM).map_or(self.applied, Group::decided);
        assert_eq!(self.applied, decided, "the node has applied every decided slot of the system group");
    }

    /// Applies all events from index `at` on. Returns true if the state of the system group changed, so that the paxos
    /// groups need an update.
    fn apply_events(&mut self, at: &mut usize, now: Instant, effects: &Effects) -> bool {
        let mut has_update = false;
        while let Some((group, event)) = effects.events.get(*at) {
            *at += 1;
            match event {
                Event::Declined { term } => self.declined(*group, *term, now),
                _ if *group != GroupId::SYSTEM => {}
                Event::Decided { slot, entry } => {
                    self.applied = *slot;
                    if let Value::Data(batch) = &entry.value {
                        self.liveness.apply(batch, now, self.options.deviation);
                        has_update = true;
                    }
                }
                Event::Installed(snapshot) => {
                    (self.applied, self.snapshot_slot) = (snapshot.position.slot, snapshot.position.slot);
                    let restored = self.liveness.restore(&snapshot.application, now);
                    restored
                        .unwrap_or_else(|error| panic!("this build cannot read the system group's snapshot: {error}"));
                    has_update = true;
                }
                _ => {}
            }
        }
        has_update
    }

    fn publish(&mut self, now: Instant, effects: &mut Effects) {
        let update = self.liveness.update(&self.options);
        let published = self.published.take();
        let others: Vec<GroupId> = self.groups.keys().copied().filter(|group| *group != GroupId::SYSTEM).collect();
        if published.as_ref().is_none_or(|published| published.lease != update.lease) {
            let (liveness, until) = update.lease;
            for group in &others {
                self.step_group(*group, now, Input::Liveness { liveness, until }, effects);
            }
        }
        for (node, liveness) in &update.expired {
            let (node, liveness) = (*node, *liveness);
            if liveness > 0 && published.as_ref().is_none_or(|published| !published.expired.contains(&(node, liveness)))
            {
                for group in &others {
                    self.step_group(*group, now, Input::Expired { node, liveness }, effects);
                }
            }
        }
        if published.is_none_or(|published| published.nodes != update.nodes) {
            self.step_group(GroupId::SYSTEM, now, Input::Learners(update.nodes.clone()), effects);
        }
        self.published = Some(update);
    }

    /// Returns the instant at which the next [`NodeInput::Tick`] is due. Returns `now` if the tick is overdue, and
    /// `None` if only other inputs cause a change. An earlier tick has no effect. The caller must call this function
    /// again after each step, because a step may change the result.
    #[must_use]
    pub fn next_tick(&self, now: Instant) -> Option<Instant> {
        if self.has_stopped {
            return None;
        }
        let of_groups = self.due.values().copied().min();
        let of_node = self.liveness.next_tick(self.masters_system(now), &self.options);
        [of_groups, of_node, self.moves_tick(now)].into_iter().flatten().min().map(|at| at.max(now))
    }

    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    /// Returns the state of the system group after the last slot that this node has applied.
    #[must_use]
    pub fn system(&self) -> &System {
        self.liveness.system()
    }
}
