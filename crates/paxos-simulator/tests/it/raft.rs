//! raft-rs (TiKV's Raft, 0.7) in the simulation of paxos groups. raft-rs is known to be correct. If a run of raft-rs
//! breaks a rule, the simulation has a bug.
//!
//! For raft-rs, the simulation checks these rules: each slot has one value, slots have no gaps, and snapshots equal the
//! log. Acknowledged proposals are durable on a quorum. The pair of term and vote never decreases, even across
//! restarts. The index 1 of raft-rs represents the first members, so slot n is index n + 1.
//!
//! For raft-rs, the simulation does not check that at most one master serves at a time. raft-rs measures its leases in
//! ticks, and the bound on the drift of clocks does not apply to ticks. A follower that restarts or receives a higher
//! term may vote before the leader's lease is over. A leader therefore reports instant 0 as the end of its service.
//! Clients and operators still find the leader, but the program cannot break [`paxos_simulator::Rule::OneMaster`].

use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;

use bytes::Bytes;
use paxos::{Ballot, GroupId, Instant, NodeId, Slot};
use paxos_simulator::{Incident, Input, NodeConfig, Observation, OnDisk, Out, Program, Request, RunConfig, View};
use raft::eraftpb::{ConfChange, ConfChangeType, ConfState, Entry, EntryType, Message, MessageType, Snapshot};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};
use simulator::Random;

use crate::storage::{FOUNDED, LogStorage, Part, chain_of, decode, encode, parse, snapshot};

/// Behaviour of the code that drives raft-rs. Tests change it to introduce a bug.
pub(crate) trait Driver {
    /// Type of the messages that the driver sends too early, before the sync on which these messages depend.
    const SENDS_EARLY: Option<MessageType> = None;
    /// True if the driver does not restore the node's vote at a restart.
    const LOSES_VOTE: bool = false;
    /// True if the driver acknowledges its own proposal when any entry is decided at the index of the proposal, even if
    /// another leader proposed this entry.
    const TRUSTS_INDEX: bool = false;
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
    node: RawNode<LogStorage>,
    /// State of the application and list of members, after the base snapshot of the log and after each later applied
    /// index.
    history: Vec<(u64, ConfState)>,
    /// `Ready` states of raft-rs that wait for a sync, the oldest first.
    waiting: VecDeque<Waiting>,
    /// Ids of the undecided proposals that this node made as leader, by their index in the log.
    proposed: BTreeMap<u64, u64>,
    term: u64,
    /// Voters at the start of the last step.
    members_before: Vec<u64>,
    ticks: usize,
}

/// `Ready` state of raft-rs that is not durable yet.
struct Waiting {
    token: u64,
    number: u64,
    envelopes: Vec<Envelope>,
    snapshot: Snapshot,
}

#[derive(Clone)]
pub(crate) struct Envelope {
    group: GroupId,
    /// Node for which the sender has voted in the sender's present term.
    vote: u64,
    message: Message,
}

impl<D: Driver> Program for Raft<D> {
    type Message = Envelope;

    fn start(node_config: &NodeConfig<'_>, records: Vec<Bytes>, _: Instant, out: &mut Out<Envelope>) -> Self {
        let founders: Vec<_> = node_config.founders.iter().map(|node| u64::from(node.0)).collect();
        let mut storages: BTreeMap<_, _> =
            node_config.groups.iter().map(|group| (*group, LogStorage::new(&founders))).collect();
        for (group, parts) in records.into_iter().map(decode) {
            let storage = storages.get_mut(&group).expect("the node has the group");
            parts.into_iter().for_each(|part| storage.apply(part));
        }
        let mut replicas = BTreeMap::new();
        for (group, mut storage) in storages {
            if D::LOSES_VOTE {
                storage.hard_state.vote = 0;
            }
            let mut replica = Replica::new(group, node_config, storage);
            replica.report_installed(replica.node.store().base.get_metadata().index, out);
            replica.work::<D>(out);
            replicas.insert(group, replica);
        }
        Raft { replicas, has_failed: false, driver: PhantomData }
    }

    fn step(&mut self, _: Instant, input: Input<Envelope>, out: &mut Out<Envelope>) {
        if self.has_failed {
            return;
        }
        for replica in self.replicas.values_mut() {
            replica.members_before = voters(&replica.node);
        }
        match input {
            Input::Message(_, envelope) => {
                let replica = self.replicas.get_mut(&envelope.group).expect("every node has all groups");
                // An error means that raft-rs ignores the message, for example because its sender is not a member.
                drop(replica.node.step(envelope.message));
            }
            Input::Persisted(token) => {
                self.replicas.values_mut().for_each(|replica| replica.persisted(token, out));
            }
            Input::StorageFailed => self.has_failed = true,
            Input::Tick => self.replicas.values_mut().for_each(Replica::tick),
            Input::Propose(group, id) => {
                self.replicas.get_mut(&group).expect("every node has all groups").propose(id, out);
            }
            Input::Request(group, request) => {
                self.replicas.get_mut(&group).expect("every node has all groups").request(request, out);
            }
        }
        self.replicas.values_mut().for_each(|replica| replica.work::<D>(out));
    }

    fn view(&self, group: GroupId) -> View {
        self.replicas[&group].view()
    }

    fn promised_ballot(Envelope { group, vote, message }: &Envelope) -> Option<(GroupId, Ballot)> {
        let is_promise =
            matches!(message.msg_type, MessageType::MsgRequestVoteResponse | MessageType::MsgAppendResponse);
        (is_promise && !message.reject).then(|| (*group, Ballot { round: message.term, node: node_id(*vote) }))
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
                    entries.iter().for_each(|entry| shadow(group, OnDisk::Push { value: entry_hash(entry) }));
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

    fn describe(Envelope { group, vote, message }: &Envelope) -> String {
        let Message { msg_type, term, log_term, index, commit, reject, entries, .. } = message;
        let rejected = if *reject { ", rejected" } else { "" };
        let count = entries.len();
        format!(
            "{group} {msg_type:?} of {term}, {count} after {index} of {log_term}, {commit} decided, vote {vote}{rejected}"
        )
    }
}

impl Replica {
    fn new(id: GroupId, node_config: &NodeConfig<'_>, storage: LogStorage) -> Self {
        let base = storage.base.get_metadata();
        let history = vec![(chain_of(&storage.base), base.get_conf_state().clone())];
        let raft_config = raft_config(id, node_config, base.index);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&raft_config, storage, &logger).expect("the stored log is valid");
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

    /// Carries out all work that raft-rs requests.
    fn work<D: Driver>(&mut self, out: &mut Out<Envelope>) {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            if ready.ss().is_some_and(|state| state.raft_state == StateRole::Leader) {
                out.observations.push(Observation::Leads);
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
            let envelope = |message| Envelope { group: self.id, vote, message };
            send(ready.take_messages().into_iter().map(envelope), out);
            let mut envelopes: Vec<_> = ready.take_persisted_messages().into_iter().map(envelope).collect();
            send(envelopes.extract_if(.., |envelope| Some(envelope.message.msg_type) == D::SENDS_EARLY), out);
            // A `Ready` state that needs no sync waits until the `Ready` states before it are durable.
            let before = self.waiting.back().map(|waiting| waiting.token);
            let token = if ready.must_sync() { Some(out.token) } else { before };
            let number = ready.number();
            let committed = ready.take_committed_entries();
            self.node.advance_append_async(ready);
            let waiting = Waiting { token: token.unwrap_or_default(), number, envelopes, snapshot };
            match token {
                Some(_) => self.waiting.push_back(waiting),
                None => self.is_durable(waiting, out),
            }
            self.apply::<D>(committed, out);
        }
        let still_leads = self.node.raft.state == StateRole::Leader && self.node.raft.term == self.term;
        if !still_leads && !D::TRUSTS_INDEX {
            self.term = self.node.raft.term;
            out.observations
                .extend(std::mem::take(&mut self.proposed).into_values().map(|id| Observation::Unknown { id }));
        }
    }

    fn persisted(&mut self, token: u64, out: &mut Out<Envelope>) {
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.token <= token) {
            self.is_durable(waiting, out);
        }
    }

    fn is_durable(&mut self, waiting: Waiting, out: &mut Out<Envelope>) {
        self.node.on_persist_ready(waiting.number);
        send(waiting.envelopes, out);
        if !waiting.snapshot.is_empty() {
            let meta = waiting.snapshot.get_metadata();
            self.history = vec![(chain_of(&waiting.snapshot), meta.get_conf_state().clone())];
            self.node.advance_apply_to(meta.index);
            out.observations.push(Observation::Incident(Incident::SnapshotInstalled));
            self.report_installed(meta.index, out);
        }
    }

    fn apply<D: Driver>(&mut self, entries: Vec<Entry>, out: &mut Out<Envelope>) {
        for entry in entries {
            let value = entry_hash(&entry);
            let chain = mix(self.chain() ^ value);
            let leads = self.node.raft.state == StateRole::Leader && entry.term == self.node.raft.term;
            let mut members = self.history.last().expect("the history is never empty").1.clone();
            if entry.entry_type == EntryType::EntryConfChange {
                let change: ConfChange = parse(&entry.data);
                members =
                    self.node.apply_conf_change(&change).expect("the change was proposed as a change of one member");
                out.observations.push(Observation::Incident(Incident::MembersChanged));
                let raft = &mut self.node.raft;
                // In raft-rs a removed leader continues to lead, and panics when it appends its next entry. The driver
                // therefore makes it a follower.
                if raft.state == StateRole::Leader && !members.voters.contains(&raft.id) {
                    raft.become_follower(raft.term, 0);
                }
            }
            self.history.push((chain, members.clone()));
            self.node.mut_store().newest = snapshot(entry.index, entry.term, members, chain);
            self.node.advance_apply_to(entry.index);
            out.observations.push(Observation::Decided { group: self.id, slot: slot(entry.index), value, chain });
            if let Ok(id) = <[u8; 8]>::try_from(&entry.data[..]).map(u64::from_le_bytes) {
                out.observations.push(Observation::Contains { group: self.id, slot: slot(entry.index), id });
            }
            match self.proposed.remove(&entry.index) {
                Some(id) if leads || D::TRUSTS_INDEX => {
                    out.observations.push(Observation::Acknowledged { group: self.id, slot: slot(entry.index), id });
                }
                _ if leads && entry.data.is_empty() => out.observations.push(Observation::Serves),
                Some(_) | None => {}
            }
        }
    }

    /// Returns true if the node is writing a snapshot to disk. The log then begins after the applied index.
    fn awaits_snapshot(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.snapshot.is_empty())
    }

    fn tick(&mut self) {
        // While a snapshot is pending, the driver passes no ticks to raft-rs. TiKV does the same in
        // `on_raft_base_tick`. At a tick, a node may start a campaign. The candidate then searches the log for
        // membership changes that are not applied, and raft-rs panics if the snapshot has replaced these log entries.
        if self.awaits_snapshot() {
            return;
        }
        self.node.tick();
        self.ticks += 1;
        if self.node.raft.state != StateRole::Leader || !self.ticks.is_multiple_of(self.node.raft.election_timeout()) {
            return;
        }
        // raft-rs waits for a report on each sent snapshot. The simulation sends no such reports, so the driver reports
        // to raft-rs that the snapshot failed.
        let progress = self.node.raft.prs().iter();
        let unconfirmed = progress.filter(|(_, progress)| progress.state == ProgressState::Snapshot);
        let mut unconfirmed: Vec<_> = unconfirmed.map(|(id, _)| *id).collect();
        unconfirmed.sort_unstable();
        unconfirmed.into_iter().for_each(|id| self.node.report_snapshot(id, SnapshotStatus::Failure));
    }

    fn propose(&mut self, id: u64, out: &mut Out<Envelope>) {
        let leads = self.node.raft.state == StateRole::Leader;
        if leads && self.node.propose(Vec::new(), id.to_le_bytes().to_vec()).is_ok() {
            self.proposed.insert(self.node.raft.raft_log.last_index(), id);
        } else {
            out.observations.push(Observation::Rejected { id });
        }
    }

    fn request(&mut self, request: Request, out: &mut Out<Envelope>) {
        match request {
            Request::Take => self.node.transfer_leader(self.node.raft.id),
            // raft-rs cannot shorten a lease. Its closest operation is a transfer of leadership by the leader.
            Request::Shorten(to, _) if self.node.raft.state == StateRole::Leader => {
                self.node.transfer_leader(u64::from(to.0));
            }
            Request::Shorten(..) => {}
            Request::AddMember(node) => self.change(node, ConfChangeType::AddNode),
            Request::RemoveMember(node) => self.change(node, ConfChangeType::RemoveNode),
            Request::Snapshot(back) => self.trim(back, out),
            // raft-rs does not distribute leaders over the nodes, so this request has no effect.
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
        // raft-rs rejects a change of members while another change is pending. The requester repeats its request.
        drop(self.node.propose_conf_change(Vec::new(), change));
    }

    /// Replaces the beginning of the log by a snapshot. The snapshot ends `back` slots before the last applied slot.
    fn trim(&mut self, back: u64, out: &mut Out<Envelope>) {
        if self.awaits_snapshot() {
            return;
        }
        let Some(place) = (self.history.len() as u64).checked_sub(1 + back).filter(|place| *place > 0) else { return };
        let index = self.node.store().base.get_metadata().index + place;
        let mut later = self.history.split_off(usize::try_from(place).expect("logs are short"));
        std::mem::swap(&mut self.history, &mut later);
        let (chain, members) = self.history[0].clone();
        let term = self.node.store().entry(index).expect("an applied entry above the base is in the log").term;
        let trimmed = Part::Trimmed(snapshot(index, term, members, chain));
        out.records.push(encode(self.id, std::slice::from_ref(&trimmed)));
        self.node.mut_store().apply(trimmed);
    }

    fn report_installed(&self, index: u64, out: &mut Out<Envelope>) {
        if index > FOUNDED {
            out.observations.push(Observation::Installed {
                group: self.id,
                slot: slot(index),
                chain: Some(self.chain()),
            });
        }
    }

    fn chain(&self) -> u64 {
        self.history.last().expect("the history is never empty").0
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
        // A membership change takes effect when the node applies it. In the step that applies the change, raft-rs still
        // counts acknowledgements by the members before the change.
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

/// Returns the configuration of raft-rs. raft-rs draws its election timeout from a random source of the machine. This
/// configuration leaves raft-rs only one possible timeout, so that the seed determines the run.
fn raft_config(group: GroupId, node_config: &NodeConfig<'_>, applied: u64) -> Config {
    let RunConfig { delay, sync, tick, options, seed, .. } = node_config.run;
    let round = 2 * (delay.1 + sync.1);
    let election = 10 + 3 * round / tick;
    let timeout = election + (mix(*seed ^ u64::from(group.0)) + 3 * u64::from(node_config.me.0)) % election;
    let ticks = |count: u64| usize::try_from(count).expect("the number of ticks is small");
    Config {
        id: u64::from(node_config.me.0),
        election_tick: ticks(election),
        heartbeat_tick: ticks(election / 5),
        min_election_tick: ticks(timeout),
        max_election_tick: ticks(timeout + 1),
        applied,
        max_size_per_msg: options.batch_bytes as u64,
        max_inflight_msgs: options.window_slots,
        check_quorum: true,
        pre_vote: true,
        ..Config::default()
    }
}

fn send(envelopes: impl IntoIterator<Item = Envelope>, out: &mut Out<Envelope>) {
    out.sends.extend(envelopes.into_iter().map(|envelope| (node_id(envelope.message.to), envelope)));
}

fn voters(node: &RawNode<LogStorage>) -> Vec<u64> {
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

/// Returns a hash of the entry, including its term.
fn entry_hash(entry: &Entry) -> u64 {
    let kind = u64::from(entry.entry_type == EntryType::EntryConfChange);
    entry.data.iter().fold(mix(entry.term << 1 ^ kind), |hash, byte| mix(hash ^ u64::from(*byte)))
}

fn mix(number: u64) -> u64 {
    Random::new(number).bits()
}
