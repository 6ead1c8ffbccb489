//! raft-rs (TiKV's Raft, 0.7) in the world of paxos groups: an oracle that is known to be sound, so that what the world
//! calls broken is broken.
//!
//! Checked of it: one value for each slot, no gap, snapshots that are the log's, acknowledged only what is durable at a
//! quorum and is what was proposed, and terms and votes that a node never goes back behind, over restarts too. Its index 1 stands for the
//! founders, so slot n is index n + 1.
//!
//! Not checked: that one is master at a time. Its leases count ticks, which a bound on clocks says nothing about, and a
//! follower that restarts, or hears of a higher term, votes before they are over. So a leader says that it served until
//! the beginning of time: clients and operators find it, and [`paxos_simulator::Rule::OneMaster`] has nothing to see.

use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;

use bytes::Bytes;
use paxos::{Ballot, GroupId, Instant, NodeId, Slot};
use paxos_simulator::{Incident, Input, Knobs, OnDisk, Out, Program, Request, Seat, Told, View};
use raft::eraftpb::{ConfChange, ConfChangeType, ConfState, Entry, EntryType, Message, MessageType, Snapshot};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
use simulator::Random;

use crate::shelf::{FOUNDED, Part, Shelf, chain_of, decode, encode, parse, snapshot};

/// How whoever drives raft-rs does it.
pub(crate) trait Driver {
    /// These it does not hold back until their sync is over.
    const HURRIES: Option<MessageType> = None;
    /// After a restart it does not know whom it voted for.
    const IS_FORGETFUL: bool = false;
    /// Goes by the place of a proposal, and does not look whether it is what was decided there.
    const GOES_BY_PLACE: bool = false;
}

pub(crate) struct Careful;

impl Driver for Careful {}

pub(crate) struct Raft<D> {
    replicas: BTreeMap<GroupId, Replica>,
    has_failed: bool,
    driver: PhantomData<D>,
}

struct Replica {
    id: GroupId,
    node: RawNode<Shelf>,
    /// The state after each index from the log's base on, and the members there.
    history: Vec<(u64, ConfState)>,
    /// What waits for a sync, in order.
    waiting: VecDeque<Waiting>,
    /// By their index: proposals of this leadership that are not decided.
    proposed: BTreeMap<u64, u64>,
    term: u64,
    /// Those that counted when the last step began.
    members_before: Vec<u64>,
    ticks: usize,
}

/// A `Ready` that is not durable yet.
struct Waiting {
    token: u64,
    number: u64,
    letters: Vec<Letter>,
    snapshot: Snapshot,
}

#[derive(Clone)]
pub(crate) struct Letter {
    group: GroupId,
    /// Whom the sender voted for in its term.
    vote: u64,
    message: Message,
}

impl<D: Driver> Program for Raft<D> {
    type Message = Letter;

    fn start(seat: &Seat<'_>, records: Vec<Bytes>, _: Instant, out: &mut Out<Letter>) -> Self {
        let founders: Vec<_> = seat.founders.iter().map(|node| u64::from(node.0)).collect();
        let mut shelves: BTreeMap<_, _> = seat.groups.iter().map(|group| (*group, Shelf::new(&founders))).collect();
        for (group, parts) in records.into_iter().map(decode) {
            let shelf = shelves.get_mut(&group).expect("the node has it");
            parts.into_iter().for_each(|part| shelf.apply(part));
        }
        let mut replicas = BTreeMap::new();
        for (group, mut shelf) in shelves {
            if D::IS_FORGETFUL {
                shelf.hard_state.vote = 0;
            }
            let mut replica = Replica::new(group, seat, shelf);
            replica.tell_installed(replica.node.store().base.get_metadata().index, out);
            replica.work::<D>(out);
            replicas.insert(group, replica);
        }
        Raft { replicas, has_failed: false, driver: PhantomData }
    }

    fn step(&mut self, _: Instant, input: Input<Letter>, out: &mut Out<Letter>) {
        if self.has_failed {
            return;
        }
        for replica in self.replicas.values_mut() {
            replica.members_before = voters(&replica.node);
        }
        match input {
            Input::Message(_, letter) => {
                let replica = self.replicas.get_mut(&letter.group).expect("all have all groups");
                // An error says that the message is nothing to it: of somebody who is no member, for example.
                drop(replica.node.step(letter.message));
            }
            Input::Persisted(token) => {
                self.replicas.values_mut().for_each(|replica| replica.persisted(token, out));
            }
            Input::StorageFailed => self.has_failed = true,
            Input::Tick => self.replicas.values_mut().for_each(Replica::tick),
            Input::Propose(group, id) => {
                self.replicas.get_mut(&group).expect("all have all groups").propose(id, out);
            }
            Input::Request(group, request) => {
                self.replicas.get_mut(&group).expect("all have all groups").request(request, out);
            }
        }
        self.replicas.values_mut().for_each(|replica| replica.work::<D>(out));
    }

    fn view(&self, group: GroupId) -> View {
        self.replicas[&group].view()
    }

    fn vow(Letter { group, vote, message }: &Letter) -> Option<(GroupId, Ballot)> {
        let is_vow = matches!(message.msg_type, MessageType::MsgRequestVoteResponse | MessageType::MsgAppendResponse);
        (is_vow && !message.reject).then(|| (*group, Ballot { round: message.term, node: node_id(*vote) }))
    }

    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk)) {
        let (group, parts) = decode(record.clone());
        for part in parts {
            match part {
                Part::HardState(_) => {}
                Part::Entries(entries) => {
                    entries.iter().take(1).for_each(|first| {
                        shadow(group, OnDisk::Truncate { after: slot(first.index - 1) });
                    });
                    entries.iter().for_each(|entry| shadow(group, OnDisk::Push { value: stands_for(entry) }));
                }
                Part::Installed(snapshot) => {
                    let slot = slot(snapshot.get_metadata().index);
                    shadow(group, OnDisk::Truncate { after: slot });
                    shadow(group, OnDisk::Base { slot });
                }
                Part::Trimmed(snapshot) => {
                    shadow(group, OnDisk::Base { slot: slot(snapshot.get_metadata().index) });
                }
            }
        }
    }

    fn describe(Letter { group, vote, message }: &Letter) -> String {
        let Message { msg_type, term, log_term, index, commit, reject, entries, .. } = message;
        let refused = if *reject { ", refused" } else { "" };
        let count = entries.len();
        format!(
            "{group} {msg_type:?} of {term}, {count} after {index} of {log_term}, {commit} decided, vote {vote}{refused}"
        )
    }
}

impl Replica {
    fn new(id: GroupId, seat: &Seat<'_>, shelf: Shelf) -> Self {
        let base = shelf.base.get_metadata();
        let history = vec![(chain_of(&shelf.base), base.get_conf_state().clone())];
        let config = config(id, seat, base.index);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, shelf, &logger).expect("the disk has what was written");
        Replica {
            id,
            members_before: voters(&node),
            node,
            history,
            waiting: VecDeque::new(),
            proposed: BTreeMap::new(),
            term: 0,
            ticks: 0,
        }
    }

    /// All that raft-rs wants done.
    fn work<D: Driver>(&mut self, out: &mut Out<Letter>) {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            if ready.ss().is_some_and(|state| state.raft_state == StateRole::Leader) {
                out.told.push(Told::Leads);
            }
            let mut parts = Vec::new();
            let snapshot = ready.snapshot().clone();
            if !snapshot.is_empty() {
                parts.push(Part::Installed(snapshot.clone()));
            }
            if !ready.entries().is_empty() {
                parts.push(Part::Entries(ready.take_entries()));
            }
            parts.extend(ready.hs().cloned().map(Part::HardState));
            if !parts.is_empty() {
                out.records.push(encode(self.id, &parts));
            }
            parts.into_iter().for_each(|part| self.node.mut_store().apply(part));

            let vote = self.node.raft.vote;
            let letter = |message| Letter { group: self.id, vote, message };
            send(ready.take_messages().into_iter().map(letter), out);
            let mut letters: Vec<_> = ready.take_persisted_messages().into_iter().map(letter).collect();
            send(letters.extract_if(.., |letter| Some(letter.message.msg_type) == D::HURRIES), out);
            // What comes after something that is not durable waits for it.
            let before = self.waiting.back().map(|waiting| waiting.token);
            let token = if ready.must_sync() { Some(out.token) } else { before };
            let number = ready.number();
            let committed = ready.take_committed_entries();
            self.node.advance_append_async(ready);
            let waiting = Waiting { token: token.unwrap_or_default(), number, letters, snapshot };
            match token {
                Some(_) => self.waiting.push_back(waiting),
                None => self.is_durable(waiting, out),
            }
            self.apply::<D>(committed, out);
        }
        let leads_on = self.node.raft.state == StateRole::Leader && self.node.raft.term == self.term;
        if !leads_on && !D::GOES_BY_PLACE {
            self.term = self.node.raft.term;
            out.told.extend(std::mem::take(&mut self.proposed).into_values().map(|id| Told::Unknown { id }));
        }
    }

    fn persisted(&mut self, token: u64, out: &mut Out<Letter>) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.token <= token) {
            self.is_durable(waiting, out);
        }
    }

    fn is_durable(&mut self, waiting: Waiting, out: &mut Out<Letter>) {
        self.node.on_persist_ready(waiting.number);
        send(waiting.letters, out);
        if !waiting.snapshot.is_empty() {
            let meta = waiting.snapshot.get_metadata();
            self.history = vec![(chain_of(&waiting.snapshot), meta.get_conf_state().clone())];
            self.node.advance_apply_to(meta.index);
            out.told.push(Told::Happened(Incident::SnapshotInstalled));
            self.tell_installed(meta.index, out);
        }
    }

    fn apply<D: Driver>(&mut self, entries: Vec<Entry>, out: &mut Out<Letter>) {
        for entry in entries {
            let value = stands_for(&entry);
            let chain = mix(self.chain() ^ value);
            let leads = self.node.raft.state == StateRole::Leader && entry.term == self.node.raft.term;
            let mut members = self.history.last().expect("it begins somewhere").1.clone();
            if entry.entry_type == EntryType::EntryConfChange {
                let change: ConfChange = parse(&entry.data);
                members = self.node.apply_conf_change(&change).expect("it was proposed as a change of one");
                out.told.push(Told::Happened(Incident::MembersChanged));
                let raft = &mut self.node.raft;
                // raft-rs lets one who is no member lead on, and panics at its next entry.
                if raft.state == StateRole::Leader && !members.voters.contains(&raft.id) {
                    raft.become_follower(raft.term, 0);
                }
            }
            self.history.push((chain, members.clone()));
            self.node.mut_store().newest = snapshot(entry.index, entry.term, members, chain);
            self.node.advance_apply_to(entry.index);
            out.told.push(Told::Decided { group: self.id, slot: slot(entry.index), value, chain });
            if let Ok(id) = <[u8; 8]>::try_from(&entry.data[..]).map(u64::from_le_bytes) {
                out.told.push(Told::Holds { group: self.id, slot: slot(entry.index), id });
            }
            match self.proposed.remove(&entry.index) {
                Some(id) if leads || D::GOES_BY_PLACE => {
                    out.told.push(Told::Acknowledged { group: self.id, slot: slot(entry.index), id });
                }
                _ if leads && entry.data.is_empty() => out.told.push(Told::Serves),
                Some(_) | None => {}
            }
        }
    }

    /// Whether a snapshot is on its way to the disk: the log begins above what is applied.
    fn awaits_snapshot(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.snapshot.is_empty())
    }

    fn tick(&mut self) {
        // Who campaigns looks for changes of members that are not applied, and raft-rs panics where they are in a
        // snapshot. TiKV does not tick either while one is pending (`on_raft_base_tick`).
        if self.awaits_snapshot() {
            return;
        }
        self.node.tick();
        self.ticks += 1;
        if self.node.raft.state != StateRole::Leader || !self.ticks.is_multiple_of(self.node.raft.election_timeout()) {
            return;
        }
        // Nobody says whether a snapshot arrived, and raft-rs waits for word of it for good.
        let progress = self.node.raft.prs().iter();
        let unsure = progress.filter(|(_, progress)| progress.state == ProgressState::Snapshot);
        let mut unsure: Vec<_> = unsure.map(|(id, _)| *id).collect();
        unsure.sort_unstable();
        unsure.into_iter().for_each(|id| self.node.report_snapshot(id, SnapshotStatus::Failure));
    }

    fn propose(&mut self, id: u64, out: &mut Out<Letter>) {
        let leads = self.node.raft.state == StateRole::Leader;
        if leads && self.node.propose(Vec::new(), id.to_le_bytes().to_vec()).is_ok() {
            self.proposed.insert(self.node.raft.raft_log.last_index(), id);
        } else {
            out.told.push(Told::Refused { id });
        }
    }

    fn request(&mut self, request: Request, out: &mut Out<Letter>) {
        match request {
            Request::Take => self.node.transfer_leader(self.node.raft.id),
            // The nearest that it has: the one who leads gives it away.
            Request::Shorten(to, _) if self.node.raft.state == StateRole::Leader => {
                self.node.transfer_leader(u64::from(to.0));
            }
            Request::Shorten(..) => {}
            Request::Admit(node) => self.change(node, ConfChangeType::AddNode),
            Request::Dismiss(node) => self.change(node, ConfChangeType::RemoveNode),
            Request::Snapshot(back) => self.trim(back, out),
            // It balances nothing.
            Request::Drain(..) => {}
        }
    }

    fn change(&mut self, node: NodeId, kind: ConfChangeType) {
        let id = u64::from(node.0);
        let is_member = voters(&self.node).contains(&id);
        if self.node.raft.state != StateRole::Leader || is_member == (kind == ConfChangeType::AddNode) {
            return;
        }
        let mut change = ConfChange::default();
        (change.change_type, change.node_id) = (kind, id);
        // It refuses if another is under way; who gives orders will repeat it.
        drop(self.node.propose_conf_change(Vec::new(), change));
    }

    /// The log up to so many slots back becomes a snapshot.
    fn trim(&mut self, back: u64, out: &mut Out<Letter>) {
        if self.awaits_snapshot() {
            return;
        }
        let Some(place) = (self.history.len() as u64).checked_sub(1 + back).filter(|place| *place > 0) else { return };
        let index = self.node.store().base.get_metadata().index + place;
        let mut later = self.history.split_off(usize::try_from(place).expect("logs are short"));
        std::mem::swap(&mut self.history, &mut later);
        let (chain, members) = self.history[0].clone();
        let term = self.node.store().entry(index).expect("it was applied and is above the base").term;
        let trimmed = Part::Trimmed(snapshot(index, term, members, chain));
        out.records.push(encode(self.id, std::slice::from_ref(&trimmed)));
        self.node.mut_store().apply(trimmed);
    }

    fn tell_installed(&self, index: u64, out: &mut Out<Letter>) {
        if index > FOUNDED {
            out.told.push(Told::Installed { group: self.id, slot: slot(index), chain: Some(self.chain()) });
        }
    }

    fn chain(&self) -> u64 {
        self.history.last().expect("it begins somewhere").0
    }

    fn view(&self) -> View {
        let raft = &self.node.raft;
        let decided = voters(&self.node);
        let mut members = decided.clone();
        for entry in self.node.store().entries_after(raft.raft_log.applied()) {
            if entry.entry_type == EntryType::EntryConfChange {
                let change: ConfChange = parse(&entry.data);
                members.retain(|member| *member != change.node_id);
                members.extend((change.change_type == ConfChangeType::AddNode).then_some(change.node_id));
            }
        }
        // A change holds from where it is applied, and what that very step acknowledged was counted without it.
        if decided != self.members_before {
            members.clone_from(&self.members_before);
        }
        View {
            promised: Ballot { round: raft.term, node: node_id(raft.vote) },
            decided: slot(raft.raft_log.applied()),
            serves: (raft.state == StateRole::Leader).then_some((Instant(0), raft.term)),
            members: members.into_iter().map(node_id).collect(),
            members_decided: decided.into_iter().map(node_id).collect(),
        }
    }
}

/// raft-rs draws how long it waits for a leader from the machine's chance: from one number here, so that a seed is a run.
fn config(group: GroupId, seat: &Seat<'_>, applied: u64) -> Config {
    let Knobs { delay, sync, tick, options, seed, .. } = seat.knobs;
    let round = 2 * (delay.1 + sync.1);
    let election = 10 + 3 * round / tick;
    let patience = election + (mix(*seed ^ u64::from(group.0)) + 3 * u64::from(seat.me.0)) % election;
    let ticks = |count: u64| usize::try_from(count).expect("they are few");
    Config {
        id: u64::from(seat.me.0),
        election_tick: ticks(election),
        heartbeat_tick: ticks(election / 5),
        min_election_tick: ticks(patience),
        max_election_tick: ticks(patience + 1),
        applied,
        max_size_per_msg: options.batch_bytes as u64,
        max_inflight_msgs: options.window_slots,
        check_quorum: true,
        pre_vote: true,
        ..Config::default()
    }
}

fn send(letters: impl IntoIterator<Item = Letter>, out: &mut Out<Letter>) {
    out.sends.extend(letters.into_iter().map(|letter| (node_id(letter.message.to), letter)));
}

fn voters(node: &RawNode<Shelf>) -> Vec<u64> {
    let mut voters: Vec<_> = node.raft.prs().conf().voters().ids().iter().collect();
    voters.sort_unstable();
    voters
}

fn node_id(id: u64) -> NodeId {
    NodeId(u32::try_from(id).expect("there are few nodes"))
}

fn slot(index: u64) -> Slot {
    Slot(index.saturating_sub(FOUNDED))
}

/// Different for different entries, term included.
fn stands_for(entry: &Entry) -> u64 {
    let kind = u64::from(entry.entry_type == EntryType::EntryConfChange);
    entry.data.iter().fold(mix(entry.term << 1 ^ kind), |hash, byte| mix(hash ^ u64::from(*byte)))
}

fn mix(number: u64) -> u64 {
    Random::new(number).bits()
}
