//! Program that runs [`paxos::Node`] in the simulation, with an application whose state is a hash of all applied slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paxos::mover::Move;
use paxos::system::{Fence, Preparation, Scheme, Step, System};
use paxos::{
    ActiveOrders, Ballot, Claim, Effects, Event, GroupId, Instant, Mastership, Message, Node, NodeId, NodeInput,
    Process, ProposalId, Record, Shortened, Slot, Token, Value,
};

use crate::program::{Incident, Input, NodeConfig, Observation, OnDisk, Ordered, Out, Program, Request, View};

pub struct Core {
    me: NodeId,
    everyone: Vec<NodeId>,
    /// Minimum interval between two registrations of nodes in the system group. `registered` is the instant of the last
    /// registration.
    registration_interval: Duration,
    registered: Instant,
    node: Node,
    effects: Effects,
    applications: BTreeMap<GroupId, Application>,
    /// Preparation that the node requested from the application for a move. At a later tick, the application reports to
    /// the node that the preparation is finished.
    prepares: Option<(Fence, Preparation)>,
    /// State of the system group that this program last saw. The program reports the changes between this state and a
    /// newer state as observations.
    system: System,
    /// For each paxos group, the last move for which this node, as master, received the order to shorten its lease or
    /// to let its lease end.
    leaves: BTreeMap<GroupId, Move>,
}

/// Application of a paxos group. For each slot since the snapshot, `chain` contains a hash of all slots up to that
/// slot.
#[derive(Default)]
struct Application {
    base: u64,
    chain: Vec<u64>,
    /// Claim in the last slot, if this slot contains a `BeMaster` entry.
    pending_claim: Option<Claim>,
    mastership: Option<Mastership>,
}

impl Application {
    fn last(&self) -> u64 {
        self.chain.last().copied().unwrap_or_default()
    }

    fn observe_incident(&mut self, value: &Value) -> Option<Incident> {
        let is_void = self.pending_claim.take().is_some();
        match value {
            Value::BeMaster(be_master) => self.pending_claim = Some(be_master.claim),
            Value::Shorten(shorten) => {
                let shortened = Some(Shortened { to: shorten.to, remaining: shorten.remaining });
                if let Some(present) = self.mastership.as_mut().filter(|present| present.term == shorten.term) {
                    present.shortened = shortened;
                }
            }
            Value::Members(_) => return Some(Incident::MembersChanged),
            Value::Noop | Value::Data(_) => {}
        }
        is_void.then_some(Incident::VoidBeMaster)
    }
}

/// Returns observations of the changes between two states of the system group: changes of nodes and of the move token.
fn system_observations(before: &System, after: &System) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (id, node) in after.nodes() {
        let known = before.node(*id).and_then(|node| node.alive);
        match node.alive {
            Some(at) if known != Some(at) => observations.push(Observation::Renewed { node: *id, at }),
            None if known.is_some() => observations.push(Observation::Incident(Incident::LivenessExpired)),
            Some(_) | None => {}
        }
    }
    let Some(token) = after.token() else { return observations };
    let known = before.token();
    let is_other = known.is_none_or(|known| known.fence != token.fence);
    let is_taken = known.is_some_and(|known| (known.holder, known.liveness) != (token.holder, token.liveness));
    if is_other {
        observations.push(Observation::Incident(if is_taken { Incident::MoveTakenOver } else { Incident::MoveBegun }));
    }
    let is_further = is_other || known.is_some_and(|known| known.step != token.step);
    if is_further && matches!(token.step, Step::Handover(_)) {
        observations.push(Observation::Incident(Incident::HandedOver));
    }
    observations
}

/// Number of additional bytes in a snapshot, so that a node sends the snapshot in several messages.
const PADDING: usize = 120;

impl Program for Core {
    type Message = (GroupId, Message);

    fn start(node_config: &NodeConfig<'_>, records: Vec<Bytes>, now: Instant, out: &mut Out<Self::Message>) -> Self {
        let records =
            records.into_iter().map(|bytes| Record::decode(bytes).expect("the disk returns only valid records"));
        let groups: Vec<_> = node_config.groups.iter().map(|group| (*group, node_config.founders.to_vec())).collect();
        let options = Arc::new(node_config.run.options.clone());
        let mut effects = Effects { token: Token(out.token), ..Effects::default() };
        // The tokens of a node's records only increase, also across restarts. Each process of the node therefore starts
        // with another token, and derives another incarnation number from it.
        let process = Process { node: node_config.me, incarnation: mix(out.token << 8 ^ u64::from(node_config.me.0)) };
        let node = Node::start(process, &options, &groups, records, now, &mut effects);
        let applications = node_config.groups.iter().map(|group| (*group, Application::default())).collect();
        let mut core = Core {
            me: node_config.me,
            everyone: node_config.everyone.to_vec(),
            registration_interval: options.resend,
            registered: Instant::default(),
            node,
            effects,
            applications,
            prepares: None,
            system: System::default(),
            leaves: BTreeMap::new(),
        };
        core.collect(out);
        // At a start, the node installs snapshots from its own disk, so these installations do not count as incidents.
        out.observations.retain(|observation| *observation != Observation::Incident(Incident::SnapshotInstalled));
        core
    }

    fn step(&mut self, now: Instant, input: Input<Self::Message>, out: &mut Out<Self::Message>) {
        let of = |group, input| NodeInput::Group { group, input };
        let input = match input {
            Input::Message(from, (group, message)) => NodeInput::Message { from, group, message },
            Input::Persisted(token) => NodeInput::Persisted(Token(token)),
            Input::StorageFailed => NodeInput::StorageFailed,
            Input::Tick => NodeInput::Tick,
            Input::Propose(group, id) => {
                let entry = Bytes::copy_from_slice(&id.to_le_bytes());
                of(group, paxos::Input::Propose { id: ProposalId(id), entry })
            }
            Input::Request(group, request) => match self.request(group, request) {
                Some(input) => of(group, input),
                None => return,
            },
        };
        self.effects.token = Token(out.token);
        self.node.step(now, input, &mut self.effects);
        if let Some(ActiveOrders { of, step: Step::Handover(Scheme::Shorten | Scheme::Wait), .. }) =
            self.node.orders(now)
            && of.from == self.me
        {
            self.leaves.insert(of.group, of);
        }
        self.collect(out);
    }

    fn is_order((_, message): &Self::Message) -> bool {
        matches!(message, Message::Orders(_))
    }

    fn orders(&self, now: Instant) -> Vec<Ordered> {
        let obeyed = self.node.orders(now).map(|ActiveOrders { of, until, .. }| (of, until));
        let leaves = self.leaves.values().filter_map(|of| {
            let group = self.node.group(of.group)?;
            let is_shortened = group.uncommitted().mastership.shortened.is_some();
            Some((*of, group.serves_until()?))
                .filter(|_| is_shortened && group.committed().mastership.term.epoch == of.epoch)
        });
        let ordered = |(of, until): (Move, _)| Ordered { fence: of.fence.0, group: of.group, epoch: of.epoch.0, until };
        obeyed.into_iter().chain(leaves).map(ordered).collect()
    }

    fn moves(&self) -> Option<u64> {
        self.node.system().token().map(|token| token.fence.0)
    }

    /// Registers all nodes in the system group. For most moves, also reports to the node that the application has
    /// finished the preparation of the move.
    fn attend(&mut self, now: Instant, out: &mut Out<Self::Message>) {
        if let Some((fence, what)) = self.prepares.take_if(|(fence, _)| !mix(fence.0).is_multiple_of(8)) {
            self.effects.token = Token(out.token);
            self.node.step(now, NodeInput::Prepared { fence, what }, &mut self.effects);
            self.collect(out);
        }
        let Some(group) = self.node.group(GroupId::SYSTEM) else { return };
        if group.serves(now).is_none() || now < self.registered + self.registration_interval {
            return;
        }
        self.registered = now;
        self.effects.token = Token(out.token);
        let known = self.node.system().nodes();
        let unknown: Vec<NodeId> = self.everyone.iter().copied().filter(|node| !known.contains_key(node)).collect();
        for node in unknown {
            let entry = paxos::system::Record::Node { node, capacity: 1 }.encode().into();
            let input = NodeInput::Group { group: GroupId::SYSTEM, input: paxos::Input::Forward { entry } };
            self.node.step(now, input, &mut self.effects);
        }
        self.collect(out);
    }

    fn view(&self, group: GroupId) -> View {
        let group = self.node.group(group).expect("every node has all paxos groups");
        View {
            promised: group.promised(),
            decided: group.decided(),
            serves: group.serves_until().map(|until| (until, group.committed().mastership.term.epoch.0)),
            members: group.uncommitted().members.clone(),
            members_decided: group.committed().members.clone(),
        }
    }

    fn promised_ballot((group, message): &Self::Message) -> Option<(GroupId, Ballot)> {
        match message {
            // With an `Accept` message, a leader also promises the ballot of this message. After a restart, the leader
            // must not lead under the same ballot again, because its log may differ from the log before the restart.
            Message::Promise { ballot, pre_vote: false, .. }
            | Message::Accepted { ballot, .. }
            | Message::Accept { ballot, .. } => Some((*group, *ballot)),
            _ => None,
        }
    }

    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk)) {
        let (group, record) = Record::decode(record.clone()).expect("the disk returns only valid records");
        match record {
            Record::Entries { after, entries } => {
                shadow(group, OnDisk::Truncate { after });
                entries.iter().for_each(|entry| shadow(group, OnDisk::Push { value: entry_hash(entry) }));
            }
            Record::Snapshot(snapshot) => shadow(group, OnDisk::Base { slot: snapshot.position.slot }),
            Record::Promise(_) | Record::Decided(_) => {}
        }
    }

    fn describe((group, message): &Self::Message) -> String {
        format!("{group} {message:?}")
    }
}

impl Core {
    fn request(&self, group: GroupId, request: Request) -> Option<paxos::Input> {
        Some(match request {
            Request::Take => paxos::Input::Take,
            Request::Shorten(to, micros) => paxos::Input::Shorten { to, remaining: Duration::from_micros(micros) },
            Request::AddMember(node) => paxos::Input::AddMember { node },
            Request::RemoveMember(node) => paxos::Input::RemoveMember { node },
            Request::Drain(node, draining) => {
                let entry = paxos::system::Record::Drain { node, draining }.encode().into();
                paxos::Input::Forward { entry }
            }
            Request::Snapshot(_) if group == GroupId::SYSTEM => return None,
            Request::Snapshot(back) => {
                let application = &self.applications[&group];
                let index = (application.chain.len() as u64).checked_sub(1 + back)?;
                let slot = Slot(application.base + index + 1);
                let chain = application.chain[usize::try_from(index).ok()?];
                let mut bytes = vec![0; 16 + PADDING];
                bytes[..8].copy_from_slice(&slot.0.to_le_bytes());
                bytes[8..16].copy_from_slice(&chain.to_le_bytes());
                paxos::Input::Snapshot { slot, application: bytes.into() }
            }
        })
    }

    fn collect(&mut self, out: &mut Out<(GroupId, Message)>) {
        for (group, record) in self.effects.records.drain(..) {
            let mut bytes = Vec::new();
            record.encode(group, &mut bytes);
            out.records.push(bytes);
        }
        out.sends.extend(self.effects.sends.drain(..).map(|(to, group, message)| (to, (group, message))));
        let mut applied = None;
        for (group, event) in std::mem::take(&mut self.effects.events) {
            if group == GroupId::SYSTEM {
                applied = match &event {
                    Event::Decided { slot, .. } => Some(*slot),
                    Event::Installed(snapshot) => Some(snapshot.position.slot),
                    _ => applied,
                };
            }
            self.observe(group, event, out);
        }
        if let Some(slot) = applied {
            let state = hash_of(0, &self.node.system().snapshot());
            out.observations.push(Observation::Applied { group: GroupId::SYSTEM, slot, state });
            let fence = self.moves();
            out.observations.push(Observation::Token { fence, at: slot });
            out.observations.extend(system_observations(&self.system, self.node.system()));
            self.system = self.node.system().clone();
        }
    }

    fn observe(&mut self, group: GroupId, event: Event, out: &mut Out<(GroupId, Message)>) {
        let application = self.applications.get_mut(&group).expect("every node has all paxos groups");
        let observation = match event {
            Event::Decided { slot, entry } => {
                let value = entry_hash(&entry);
                // The node itself, and not the application, applies the slots of the system group and creates its
                // snapshots.
                let chain = if group == GroupId::SYSTEM { value } else { mix(application.last() ^ value) };
                application.chain.push(chain);
                out.observations.extend(application.observe_incident(&entry.value).map(Observation::Incident));
                if let Value::Data(batch) = &entry.value
                    && group != GroupId::SYSTEM
                {
                    let ids = batch
                        .iter()
                        .map(|bytes| u64::from_le_bytes(bytes[..].try_into().expect("a proposal id has 8 bytes")));
                    out.observations.extend(ids.map(|id| Observation::Contains { group, slot, id }));
                }
                Observation::Decided { group, slot, value, chain }
            }
            Event::Installed(snapshot) if group == GroupId::SYSTEM => {
                out.observations.push(Observation::Incident(Incident::SnapshotInstalled));
                Observation::Installed { group, slot: snapshot.position.slot, chain: None }
            }
            Event::Installed(snapshot) => {
                let word = |at: usize| {
                    u64::from_le_bytes(snapshot.application[at..at + 8].try_into().expect("the slice has 8 bytes"))
                };
                application.base = word(0) - 1;
                application.chain = vec![word(8)];
                application.mastership = Some(snapshot.state.mastership);
                out.observations.push(Observation::Incident(Incident::SnapshotInstalled));
                Observation::Installed { group, slot: snapshot.position.slot, chain: Some(word(8)) }
            }
            Event::Acknowledged { id, slot } => Observation::Acknowledged { group, slot, id: id.0 },
            Event::Rejected { id, .. } => Observation::Rejected { id: id.0 },
            Event::Unknown { id } => Observation::Unknown { id: id.0 },
            Event::Declined { .. } => Observation::Incident(Incident::ConsentDeclined),
            Event::MasterChanged(mastership) => {
                out.observations.push(Observation::Mastered { group, epoch: mastership.term.epoch.0 });
                let is_its_end = |token: &paxos::system::Token| {
                    let is_later = mastership.term.epoch > token.epoch;
                    is_later && (token.group, Some(token.to)) == (group, mastership.node)
                };
                if self.node.system().token().is_some_and(is_its_end) {
                    out.observations.push(Observation::Incident(Incident::Moved));
                }
                let before = application.mastership.replace(mastership).filter(|before| before.node.is_some());
                let Some((before, claim)) = before.zip(application.pending_claim.take()) else { return };
                let was_named = before.shortened.is_some_and(|shortened| Some(shortened.to) == mastership.node);
                Observation::Incident(match claim {
                    Claim::Waited { .. } if was_named => Incident::MovedByShortening,
                    Claim::Waited { .. } => Incident::LeaseExpired,
                    Claim::Own { .. } => Incident::MastershipRenewed,
                    Claim::Consent { .. } => Incident::MovedByConsent,
                })
            }
            Event::Prepare { of, what } => {
                self.prepares = Some((of.fence, what));
                return;
            }
            Event::Serves { .. } => Observation::Serves,
            Event::Leads { .. } => Observation::Leads,
        };
        out.observations.push(observation);
    }
}

/// Returns a hash of the entry, including its ballot.
fn entry_hash(entry: &paxos::Entry) -> u64 {
    let mut hash = mix(entry.ballot.round << 16 ^ u64::from(entry.ballot.node.0));
    match &entry.value {
        Value::Noop => hash ^= 1,
        Value::Data(batch) => {
            for bytes in batch.iter() {
                hash = hash_of(hash ^ 2, bytes);
            }
        }
        Value::BeMaster(be_master) => hash ^= 3 ^ u64::from(be_master.node.0) << 8 ^ be_master.liveness << 40,
        Value::Shorten(shorten) => hash ^= 4 ^ u64::from(shorten.to.0) << 8,
        Value::Members(members) => hash = members.iter().fold(hash ^ 5, |hash, node| mix(hash ^ u64::from(node.0))),
    }
    mix(hash)
}

pub(crate) fn hash_of(start: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(start, |hash, chunk| {
        let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        mix(hash ^ word)
    })
}

/// Returns a hash of a number, computed by one step of the generator SplitMix64.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
