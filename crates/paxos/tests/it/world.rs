//! Simulated members of one paxos group, with disks and links. The commands of scenarios control the disks and links.
//!
//! After each step, the simulation checks that at most one node serves, and that all nodes decide the same entries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use paxos::{
    Effects, Entry, Event, Group, GroupId, Input, Instant, Message, NodeId, Options, Record, Rejection, Slot, Token,
    Value,
};

use crate::scenarios::duration;
use crate::words;

const GROUP: GroupId = GroupId(1);

pub(crate) struct World {
    pub(crate) now: Instant,
    options: Options,
    founders: Vec<NodeId>,
    members: BTreeMap<NodeId, Member>,
    wire: VecDeque<(NodeId, NodeId, Message)>,
    pub(crate) held: BTreeSet<(NodeId, NodeId)>,
    pub(crate) cut: BTreeSet<NodeId>,
    pub(crate) proposals: Vec<String>,
    decided: BTreeMap<Slot, Entry>,
    pub(crate) output: String,
    /// True while the simulation prints only events, for example during the command `run`.
    is_quiet: bool,
}

#[derive(Default)]
struct Member {
    /// State machine of this member of the paxos group; `None` while the node is down.
    group: Option<Group>,
    effects: Effects,
    records: Vec<(Token, Record)>,
    synced: usize,
    is_slow: bool,
    /// State of a simple application: the decided entries in order.
    applied: String,
}

impl Default for World {
    fn default() -> Self {
        let options = Options {
            lease: Duration::from_secs(1),
            drift_ppm: 10_000,
            resend: Duration::from_millis(100),
            stagger: Duration::from_millis(20),
            consent: Duration::from_millis(200),
            ..Options::default()
        };
        World {
            now: Instant(0),
            options,
            founders: Vec::new(),
            members: BTreeMap::new(),
            wire: VecDeque::new(),
            held: BTreeSet::new(),
            cut: BTreeSet::new(),
            proposals: Vec::new(),
            decided: BTreeMap::new(),
            output: String::new(),
            is_quiet: false,
        }
    }
}

impl World {
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        match name {
            "lease" => self.options.lease = duration(value),
            "window_slots" => self.options.window_slots = value.parse().unwrap(),
            "batch_entries" => self.options.batch_entries = value.parse().unwrap(),
            "batch_bytes" => self.options.batch_bytes = value.parse().unwrap(),
            "chunk_bytes" => self.options.chunk_bytes = value.parse().unwrap(),
            "waiting_bytes" => self.options.waiting_bytes = value.parse().unwrap(),
            "window_bytes" => self.options.window_bytes = value.parse().unwrap(),
            _ => panic!("unknown option in a scenario: {name}"),
        }
    }

    pub(crate) fn found(&mut self, founders: Vec<NodeId>) {
        self.founders.clone_from(&founders);
        for node in founders {
            self.start(node);
        }
    }

    pub(crate) fn start(&mut self, node: NodeId) {
        let member = self.members.entry(node).or_default();
        let records: Vec<_> = member.records.iter().map(|(_, record)| record.clone()).collect();
        let (options, now) = (Arc::new(self.options.clone()), self.now);
        let group = Group::start((node, GROUP), options, &self.founders, records, now, &mut member.effects);
        (member.group, member.applied, member.is_slow) = (Some(group), String::new(), false);
        self.collect(node);
    }

    pub(crate) fn step(&mut self, node: NodeId, input: Input) {
        let member = self.members.get_mut(&node).unwrap();
        let Some(group) = &mut member.group else { return };
        group.step(self.now, input, &mut member.effects);
        self.collect(node);
    }

    fn collect(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).unwrap();
        let token = member.effects.token;
        let written: Vec<_> = member.effects.records.drain(..).map(|(_, record)| through_bytes(record)).collect();
        member.effects.token = Token(token.0 + u64::from(!written.is_empty()));
        let sends = std::mem::take(&mut member.effects.sends);
        self.wire.extend(sends.into_iter().map(|(to, _, message)| (node, to, message)));
        let events = std::mem::take(&mut member.effects.events);
        let is_slow = member.is_slow;
        member.records.extend(written.iter().map(|record| (token, record.clone())));
        for record in written.iter().filter(|_| is_slow) {
            self.print(&format!("  {node} writes {}, not yet durable", words::record(record)));
        }
        for (_, event) in events {
            self.record_event(node, event);
        }
        let serving: Vec<_> = self.members.iter().filter(|(_, member)| member.serves(self.now)).collect();
        assert!(serving.len() <= 1, "two masters: {:?}", serving.iter().map(|(node, _)| node).collect::<Vec<_>>());
        if !written.is_empty() && !is_slow {
            self.sync(node);
        }
    }

    fn record_event(&mut self, node: NodeId, event: Event) {
        let name = |id: paxos::ProposalId| self.proposals[usize::try_from(id.0).unwrap()].clone();
        let what = match event {
            Event::Decided { slot, entry } => {
                let known = self.decided.entry(slot).or_insert_with(|| entry.clone());
                assert_eq!(*known, entry, "{node} decided a different entry in slot {slot}");
                let applied = &mut self.members.get_mut(&node).unwrap().applied;
                if let Value::Data(batch) = &entry.value {
                    applied.extend(batch.iter().map(words::text));
                }
                format!("decides {slot}: {}", words::value(&entry.value))
            }
            Event::Installed(snapshot) => {
                let applied = &mut self.members.get_mut(&node).unwrap().applied;
                *applied = words::text(&snapshot.application);
                format!("installs the snapshot to {}: {applied}", snapshot.position.slot)
            }
            Event::Acknowledged { id, slot } => format!("acknowledges {} at {slot}", name(id)),
            Event::Rejected { id, why: Rejection::Overloaded } => format!("rejects {}: overloaded", name(id)),
            Event::Rejected { id, why: Rejection::NotMaster(Some(master)) } => {
                format!("rejects {}: {master} is master", name(id))
            }
            Event::Rejected { id, why: Rejection::NotMaster(None) } => {
                format!("rejects {}: it is not master", name(id))
            }
            Event::Unknown { id } => format!("does not know the outcome of {}", name(id)),
            Event::Serves { term } => {
                let until = self.members[&node].group.as_ref().unwrap().serves_until();
                format!("serves {term} until {}", until.map_or_else(|| "?".to_owned(), words::time))
            }
            Event::Leads { ballot, after } => format!("leads {ballot} after {}", after.slot),
            Event::Declined { term } => format!("gets no consent for {term}"),
            // The scenario prints no line about the new master, because the line about the decided entry already names
            // the master.
            Event::MasterChanged(_) => return,
            Event::Prepare { .. } => unreachable!("scenarios have members only, not whole nodes"),
        };
        writeln!(self.output, "      {node} {what}").unwrap();
    }

    fn print(&mut self, what: &str) {
        if !self.is_quiet {
            writeln!(self.output, "    {what}").unwrap();
        }
    }
}

/// Scenario commands that advance the time.
impl World {
    pub(crate) fn tick(&mut self, duration: Duration, only: Option<NodeId>) {
        self.now = self.now + duration;
        let all: Vec<_> = self.members.keys().copied().collect();
        for node in all.into_iter().filter(|node| only.is_none_or(|only| only == *node)) {
            self.step(node, Input::Tick);
        }
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let until = self.now + duration;
        self.is_quiet = true;
        while self.now < until {
            self.tick(Duration::from_millis(10), None);
            self.deliver_all();
        }
        self.is_quiet = false;
    }

    pub(crate) fn lead(&mut self, node: NodeId) {
        let output = self.output.len();
        for _ in 0..20 {
            if !self.members[&node].serves(self.now) {
                self.tick(Duration::from_millis(10), Some(node));
                self.deliver_all();
            }
        }
        assert!(self.members[&node].serves(self.now), "{node} does not serve: {}", self.output);
        self.tick(Duration::from_millis(5), Some(node));
        self.deliver_all();
        self.output.truncate(output);
        let group = self.members[&node].group.as_ref().unwrap();
        let (term, until) = (group.serves(self.now).unwrap(), group.serves_until().unwrap());
        writeln!(self.output, "      {node} serves {term} until {}", words::time(until)).unwrap();
    }
}

/// Scenario commands that control links.
impl World {
    pub(crate) fn deliver_all(&mut self) {
        while let Some(index) = self.wire.iter().position(|(from, to, _)| !self.held.contains(&(*from, *to))) {
            self.deliver_one(index);
        }
    }

    pub(crate) fn deliver(&mut self, link: (NodeId, NodeId), most: usize) {
        for _ in 0..self.on(link).len().min(most) {
            self.deliver_one(self.on(link)[0]);
        }
    }

    fn on(&self, link: (NodeId, NodeId)) -> Vec<usize> {
        let indices = self.wire.iter().enumerate();
        indices.filter(|(_, (from, to, _))| (*from, *to) == link).map(|(index, _)| index).collect()
    }

    fn deliver_one(&mut self, index: usize) {
        let (from, to, message) = self.wire.remove(index).unwrap();
        let is_up = self.members.get(&to).is_some_and(|member| member.group.is_some());
        let is_lost = !is_up || self.cut.contains(&from) || self.cut.contains(&to);
        let lost = if is_lost { " (lost)" } else { "" };
        self.print(&format!("{from} -> {to}: {}{lost}", words::message(&message)));
        if !is_lost {
            let mut bytes = Vec::new();
            message.encode(GROUP, &mut bytes);
            let (_, message) = Message::decode(bytes.into()).unwrap();
            self.step(to, Input::Message { from, message });
        }
    }

    pub(crate) fn lose(&mut self, link: (NodeId, NodeId)) {
        for index in self.on(link).into_iter().rev() {
            let (from, to, message) = self.wire.remove(index).unwrap();
            self.print(&format!("{from} -> {to}: {} (lost)", words::message(&message)));
        }
    }

    pub(crate) fn duplicate(&mut self, link: (NodeId, NodeId)) {
        let again: Vec<_> = self.on(link).into_iter().map(|index| self.wire[index].clone()).collect();
        self.wire.extend(again);
    }

    pub(crate) fn show_wire(&mut self) {
        for (from, to, message) in self.wire.clone() {
            self.print(&format!("{from} -> {to}: {}", words::message(&message)));
        }
    }
}

/// Scenario commands that control disks.
impl World {
    pub(crate) fn slow(&mut self, node: NodeId) {
        self.members.get_mut(&node).unwrap().is_slow = true;
    }

    pub(crate) fn sync(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).unwrap();
        member.synced = member.records.len();
        if let Some((token, _)) = member.records.last() {
            let input = Input::Persisted(*token);
            self.step(node, input);
        }
    }

    pub(crate) fn crash(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).unwrap();
        member.group = None;
        let lost = member.records.split_off(member.synced);
        for (_, record) in lost {
            self.print(&format!("  {node} has lost {}", words::record(&record)));
        }
    }

    pub(crate) fn snapshot(&mut self, node: NodeId) {
        let member = &self.members[&node];
        let (slot, application) = (member.group.as_ref().unwrap().decided(), member.applied.clone());
        self.step(node, Input::Snapshot { slot, application: application.into() });
    }
}

impl World {
    pub(crate) fn show(&mut self) {
        writeln!(self.output, "    at {}", words::time(self.now)).unwrap();
        for (node, member) in &self.members {
            writeln!(self.output, "    {node} {}", member.show(self.now)).unwrap();
        }
    }
}

impl Member {
    fn serves(&self, now: Instant) -> bool {
        self.group.as_ref().is_some_and(|group| group.serves(now).is_some())
    }

    fn show(&self, now: Instant) -> String {
        let Some(group) = &self.group else { return "is down".to_owned() };
        let role = match (group.is_leader(), group.serves(now)) {
            (_, Some(term)) => format!("serves {term}, "),
            (true, None) => "leads, ".to_owned(),
            (false, None) => String::new(),
        };
        let (promised, decided, members) = (group.promised(), group.decided(), &group.committed().members);
        let members = words::nodes(members);
        format!("{role}promised {promised}, decided {decided}, members {members}; log {}", self.log())
    }

    /// Returns, as text, the log that this member's records contain. Records that are not yet durable also count.
    fn log(&self) -> String {
        let (mut base, mut log): (Slot, Vec<Entry>) = (Slot(0), Vec::new());
        for (_, record) in &self.records {
            match record {
                Record::Entries { after, entries } => {
                    log.truncate(usize::try_from(after.0 - base.0).unwrap());
                    log.extend_from_slice(entries);
                }
                Record::Snapshot(snapshot) => {
                    let (slot, ballot) = (snapshot.position.slot, snapshot.position.ballot);
                    let trimmed = usize::try_from(slot.0 - base.0).unwrap();
                    let has_it = log.get(trimmed - 1).is_some_and(|entry| entry.ballot == ballot);
                    log = if has_it { log.split_off(trimmed) } else { Vec::new() };
                    base = slot;
                }
                Record::Promise(_) | Record::Decided(_) => {}
            }
        }
        if log.is_empty() { format!("after {base}") } else { format!("after {base}: {}", words::entries(&log)) }
    }
}

fn through_bytes(record: Record) -> Record {
    let mut bytes = Vec::new();
    record.encode(GROUP, &mut bytes);
    let (_, decoded) = Record::decode(bytes.into()).unwrap();
    assert_eq!(decoded, record);
    decoded
}
