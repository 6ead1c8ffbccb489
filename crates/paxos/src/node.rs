//! All paxos groups of one node: one journal, one connection to each other node, one clock and one liveness for them all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use self::moves::Moves;
use crate::effects::{Effects, Event, Input, Record, Token};
use crate::entry::Value;
use crate::group::Group;
use crate::ids::{GroupId, Instant, NodeId, Slot};
use crate::liveness::{Liveness, News};
use crate::message::Message;
use crate::mover;
use crate::options::Options;
use crate::simulation::Mutant;
use crate::system::{self, Fence, Preparation, System};

mod moves;

pub use moves::Obeyed;

/// A node, which has a member of each of its paxos groups. If the system group is among them, it is the application of that
/// itself, renews the leases of all others by it, and moves their masters.
#[derive(Debug)]
pub struct Node {
    process: Process,
    options: Arc<Options>,
    groups: BTreeMap<GroupId, Group>,
    /// When the next tick of each is due.
    due: BTreeMap<GroupId, Instant>,
    /// Whose records went into the journal under which token.
    unsynced: VecDeque<(Token, GroupId)>,
    liveness: Liveness,
    /// What the paxos groups know of that.
    told: Option<News>,
    moves: Moves,
    has_stopped: bool,
    /// Of the system group: its last slot that is applied, and that is in a snapshot.
    applied: Slot,
    kept: Slot,
}

/// What a node is told.
#[derive(Clone, Debug)]
pub enum NodeInput {
    /// `from` is who sent it, as whoever connects nodes has made sure.
    Message { from: NodeId, group: GroupId, message: Message },
    /// All that was appended under this token and before is durable.
    Persisted(Token),
    /// What was appended may not be durable. The node does nothing any more but refuse proposals, and has to be started again.
    StorageFailed,
    /// Some time went by. Due when [`Node::next_tick`] says.
    Tick,
    /// What [`Event::Prepare`] asked for is done.
    Prepared { fence: Fence, what: Preparation },
    /// For one of its paxos groups.
    Group { group: GroupId, input: Input },
}

/// A process of a node that begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub node: NodeId,
    /// Drawn by chance: no other process of this node has it.
    pub incarnation: u64,
}

impl Node {
    /// A node with the records of its journal, in order. `groups` are those it is to be a member of, with their founders.
    ///
    /// # Panics
    /// As [`Group::start`], and if with these options a move's token could be taken over while its holder acts, or a master had no time
    /// to leave within its orders; and if the journal has what this build cannot read.
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
            told: None,
            moves: Moves::new(options),
            has_stopped: false,
            applied: Slot(0),
            kept: Slot(0),
        };
        node.due = node.groups.iter().filter_map(|(id, group)| Some((*id, group.next_tick(now)?))).collect();
        node.apply_system(begun, now, effects);
        node
    }

    /// # Panics
    /// As [`Group::step`]; and if what is proposed to the system group is no [`system::Record`], which would stop all nodes once
    /// it is decided; and if another member has it decide, or sends as its snapshot, what this build cannot read.
    pub fn step(&mut self, now: Instant, input: NodeInput, effects: &mut Effects) {
        let begun = effects.events.len();
        match input {
            NodeInput::Group { group, input } => {
                if let (GroupId::SYSTEM, Input::Propose { entry, .. } | Input::Forward { entry }) = (group, &input) {
                    system::Record::decode(entry).expect("only records are proposed to the system group");
                }
                self.step_group(group, now, input, effects);
            }
            _ if self.has_stopped => {}
            NodeInput::Message { from, group, message } => self.hear(from, group, message, now, effects),
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

    fn hear(&mut self, from: NodeId, group: GroupId, message: Message, now: Instant, effects: &mut Effects) {
        match message {
            Message::Report(report) => self.hear_report(from, report, now, effects),
            Message::Orders(orders) => self.hear_orders(&orders, now, effects),
            Message::Ask { tenure } => self.hear_ask(from, group, tenure, now, effects),
            // What is no record would stop all nodes once it is decided.
            Message::Forward { entry } if group == GroupId::SYSTEM => {
                if let Ok(record) = system::Record::decode(&entry)
                    && !self.is_on_its_way(&record)
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
        self.send_by_others(sent, effects);
    }

    /// Of what is sent from `at` on: consents go by way of the system group's members, too. This node may be alive by them,
    /// and so hold masterships, without being heard by those to whom it leaves them.
    fn send_by_others(&self, at: usize, effects: &mut Effects) {
        let Some(system) = self.groups.get(&GroupId::SYSTEM) else { return };
        for index in at..effects.sends.len() {
            let (taker, group, message @ Message::Consent { .. }) = &effects.sends[index] else { continue };
            let (taker, group, message) = (*taker, *group, message.clone());
            let others = system.agreed().members.iter().filter(|node| ![self.process.node, taker].contains(node));
            effects.sends.extend(others.map(|node| (*node, group, message.clone())));
        }
    }

    /// Proposes that this node is alive, and who is not.
    fn live(&mut self, now: Instant, effects: &mut Effects) {
        for record in self.liveness.tick(self.masters_system(now), now, &self.options) {
            self.propose(&record, now, effects);
        }
    }

    fn masters_system(&self, now: Instant) -> bool {
        self.groups.get(&GroupId::SYSTEM).is_some_and(|group| group.serves(now).is_some())
    }

    fn propose(&mut self, record: &system::Record, now: Instant, effects: &mut Effects) {
        if self.is_on_its_way(record) {
            return;
        }
        let entry = record.encode().into();
        self.step_group(GroupId::SYSTEM, now, Input::Forward { entry }, effects);
    }

    /// Whether this node leads the system group, and is about to decide what makes this stale. Nodes repeat what is not decided;
    /// where that takes long, what they repeat would be in the way of all else.
    fn is_on_its_way(&self, record: &system::Record) -> bool {
        let (Some(system), Some(rivals)) = (self.groups.get(&GroupId::SYSTEM), record.rivals()) else { return false };
        system.on_its_way().any(|entry| entry.starts_with(&rivals))
    }

    /// The events from `at` on: what the system group decided is applied, and told to all others. Of that more may follow, and
    /// more events.
    fn apply_system(&mut self, mut at: usize, now: Instant, effects: &mut Effects) {
        let token = |node: &Node| node.system().token().map(|token| (token.fence, token.step));
        let before = token(self);
        while at < effects.events.len() {
            if self.apply_events(&mut at, now, effects) {
                self.tell(now, effects);
                self.ask_mover(mover::Input::Tick, now, effects);
            }
            if self.applied.0 - self.kept.0 >= self.options.system_slots {
                self.kept = self.applied;
                let input = Input::Snapshot { slot: self.applied, application: self.liveness.snapshot() };
                self.step_group(GroupId::SYSTEM, now, input, effects);
            }
        }
        if token(self) != before {
            self.report_soon();
        }
        let decided = self.groups.get(&GroupId::SYSTEM).map_or(self.applied, Group::decided);
        assert_eq!(self.applied, decided, "all that the system group decided is applied");
    }

    /// All events from `at` on; whether they change what is to be told.
    fn apply_events(&mut self, at: &mut usize, now: Instant, effects: &Effects) -> bool {
        let mut is_news = false;
        while let Some((group, event)) = effects.events.get(*at) {
            *at += 1;
            match event {
                Event::Declined { tenure } => self.declined(*group, *tenure, now),
                _ if *group != GroupId::SYSTEM => {}
                Event::Decided { slot, entry } => {
                    self.applied = *slot;
                    if let Value::Data(batch) = &entry.value {
                        self.liveness.apply(batch, now, self.options.deviation);
                        is_news = true;
                    }
                }
                Event::Installed(snapshot) => {
                    (self.applied, self.kept) = (snapshot.position.slot, snapshot.position.slot);
                    let restored = self.liveness.restore(&snapshot.application, now);
                    restored
                        .unwrap_or_else(|error| panic!("this build cannot read the system group's snapshot: {error}"));
                    is_news = true;
                }
                _ => {}
            }
        }
        is_news
    }

    fn tell(&mut self, now: Instant, effects: &mut Effects) {
        let news = self.liveness.news(&self.options);
        let told = self.told.take();
        let others: Vec<GroupId> = self.groups.keys().copied().filter(|group| *group != GroupId::SYSTEM).collect();
        if told.as_ref().is_none_or(|told| told.lease != news.lease) {
            let (liveness, until) = news.lease;
            for group in &others {
                self.step_group(*group, now, Input::Liveness { liveness, until }, effects);
            }
        }
        for (node, liveness) in &news.expired {
            let (node, liveness) = (*node, *liveness);
            if liveness > 0 && told.as_ref().is_none_or(|told| !told.expired.contains(&(node, liveness))) {
                for group in &others {
                    self.step_group(*group, now, Input::Expired { node, liveness }, effects);
                }
            }
        }
        if told.is_none_or(|told| told.nodes != news.nodes) {
            self.step_group(GroupId::SYSTEM, now, Input::Learners(news.nodes.clone()), effects);
        }
        self.told = Some(news);
    }

    /// When the next [`NodeInput::Tick`] is due, which is `now` if it is already; `None` if only other inputs make a difference.
    /// One before does nothing. To be asked after each step, as that may change it.
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

    /// What the nodes agree on about each other, as far as this one knows.
    #[must_use]
    pub fn system(&self) -> &System {
        self.liveness.system()
    }
}
