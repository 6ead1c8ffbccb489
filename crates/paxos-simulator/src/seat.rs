//! The core in the world: [`paxos::Node`], with an application whose state is a hash over all that it applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paxos::mover::Move;
use paxos::system::{Fence, Preparation, Scheme, Step, System};
use paxos::{
    Ballot, Claim, Effects, Event, GroupId, Instant, Mastership, Message, Node, NodeId, NodeInput, Obeyed, Process,
    ProposalId, Record, Shortened, Slot, Token, Value,
};

use crate::program::{Incident, Input, OnDisk, Ordered, Out, Program, Request, Seat, Told, View};

pub struct Core {
    me: NodeId,
    everyone: Vec<NodeId>,
    /// Between two times that it makes nodes known, and the last of them.
    pause: Duration,
    made_known: Instant,
    node: Node,
    effects: Effects,
    applications: BTreeMap<GroupId, Application>,
    /// What is prepared for, and told with the next tick.
    prepares: Option<(Fence, Preparation)>,
    /// What the node made of the system group's log, when that was looked at last.
    system: System,
    /// For each paxos group, the move by which it was told last to say when its mastership ends.
    leaves: BTreeMap<GroupId, Move>,
}

/// The hash after each slot from a snapshot on.
#[derive(Default)]
struct Application {
    base: u64,
    chain: Vec<u64>,
    /// Of the last slot, if somebody asked to be master there.
    wish: Option<Claim>,
    mastership: Option<Mastership>,
}

impl Application {
    fn last(&self) -> u64 {
        self.chain.last().copied().unwrap_or_default()
    }

    fn happened(&mut self, value: &Value) -> Option<Incident> {
        let is_void = self.wish.take().is_some();
        match value {
            Value::BeMaster(wish) => self.wish = Some(wish.claim),
            Value::Shorten(shorten) => {
                let shortened = Some(Shortened { to: shorten.to, remaining: shorten.remaining });
                if let Some(present) = self.mastership.as_mut().filter(|present| present.tenure == shorten.tenure) {
                    present.shortened = shortened;
                }
            }
            Value::Members(_) => return Some(Incident::MembersChanged),
            Value::Noop | Value::Data(_) => {}
        }
        is_void.then_some(Incident::VoidBeMaster)
    }
}

/// What became of the nodes and of the token.
fn happened_to_nodes(before: &System, after: &System) -> Vec<Told> {
    let mut told = Vec::new();
    for (id, node) in after.nodes() {
        let known = before.node(*id).and_then(|node| node.alive);
        match node.alive {
            Some(at) if known != Some(at) => told.push(Told::Renewed { node: *id, at }),
            None if known.is_some() => told.push(Told::Happened(Incident::LivenessExpired)),
            Some(_) | None => {}
        }
    }
    let Some(token) = after.token() else { return told };
    let known = before.token();
    let is_other = known.is_none_or(|known| known.fence != token.fence);
    let is_taken = known.is_some_and(|known| (known.holder, known.liveness) != (token.holder, token.liveness));
    if is_other {
        told.push(Told::Happened(if is_taken { Incident::MoveTakenOver } else { Incident::MoveBegun }));
    }
    let is_further = is_other || known.is_some_and(|known| known.step != token.step);
    if is_further && matches!(token.step, Step::Handover(_)) {
        told.push(Told::Happened(Incident::HandedOver));
    }
    told
}

/// Bytes of a snapshot, so that it takes several messages.
const PADDING: usize = 120;

impl Program for Core {
    type Message = (GroupId, Message);

    fn start(seat: &Seat<'_>, records: Vec<Bytes>, now: Instant, out: &mut Out<Self::Message>) -> Self {
        let records = records.into_iter().map(|bytes| Record::decode(bytes).expect("the disk has what was written"));
        let groups: Vec<_> = seat.groups.iter().map(|group| (*group, seat.founders.to_vec())).collect();
        let options = Arc::new(seat.knobs.options.clone());
        let mut effects = Effects { token: Token(out.token), ..Effects::default() };
        // Drawn anew for each process: tokens only rise.
        let process = Process { node: seat.me, incarnation: mix(out.token << 8 ^ u64::from(seat.me.0)) };
        let node = Node::start(process, &options, &groups, records, now, &mut effects);
        let applications = seat.groups.iter().map(|group| (*group, Application::default())).collect();
        let mut core = Core {
            me: seat.me,
            everyone: seat.everyone.to_vec(),
            pause: options.resend,
            made_known: Instant::default(),
            node,
            effects,
            applications,
            prepares: None,
            system: System::default(),
            leaves: BTreeMap::new(),
        };
        core.collect(out);
        // It has them from its own disk.
        out.told.retain(|told| *told != Told::Happened(Incident::SnapshotInstalled));
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
        if let Some(Obeyed { of, step: Step::Handover(Scheme::Shorten | Scheme::Wait), .. }) = self.node.orders(now)
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
        let obeyed = self.node.orders(now).map(|Obeyed { of, until, .. }| (of, until));
        let leaves = self.leaves.values().filter_map(|of| {
            let group = self.node.group(of.group)?;
            let is_told = group.tip().mastership.shortened.is_some();
            Some((*of, group.serves_until()?)).filter(|_| is_told && group.agreed().mastership.tenure.epoch == of.epoch)
        });
        let ordered = |(of, until): (Move, _)| Ordered { fence: of.fence.0, group: of.group, epoch: of.epoch.0, until };
        obeyed.into_iter().chain(leaves).map(ordered).collect()
    }

    fn moves(&self) -> Option<u64> {
        self.node.system().token().map(|token| token.fence.0)
    }

    /// Makes all nodes known to the system group; and what is to be prepared is done, but for now and then.
    fn attend(&mut self, now: Instant, out: &mut Out<Self::Message>) {
        if let Some((fence, what)) = self.prepares.take_if(|(fence, _)| !mix(fence.0).is_multiple_of(8)) {
            self.effects.token = Token(out.token);
            self.node.step(now, NodeInput::Prepared { fence, what }, &mut self.effects);
            self.collect(out);
        }
        let Some(group) = self.node.group(GroupId::SYSTEM) else { return };
        if group.serves(now).is_none() || now < self.made_known + self.pause {
            return;
        }
        self.made_known = now;
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
        let group = self.node.group(group).expect("the node has it");
        View {
            promised: group.promised(),
            decided: group.decided(),
            serves: group.serves_until().map(|until| (until, group.agreed().mastership.tenure.epoch.0)),
            members: group.tip().members.clone(),
            members_decided: group.agreed().members.clone(),
        }
    }

    fn vow((group, message): &Self::Message) -> Option<(GroupId, Ballot)> {
        match message {
            // Who leads by a ballot must not do so again, with another log, when it was started anew.
            Message::Promise { ballot, trial: false, .. }
            | Message::Accepted { ballot, .. }
            | Message::Accept { ballot, .. } => Some((*group, *ballot)),
            _ => None,
        }
    }

    fn note(record: &Bytes, shadow: &mut dyn FnMut(GroupId, OnDisk)) {
        let (group, record) = Record::decode(record.clone()).expect("the disk has what was written");
        match record {
            Record::Entries { after, entries } => {
                shadow(group, OnDisk::Truncate { after });
                entries.iter().for_each(|entry| shadow(group, OnDisk::Push { value: stands_for(entry) }));
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
            Request::Admit(node) => paxos::Input::Admit { node },
            Request::Dismiss(node) => paxos::Input::Dismiss { node },
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
            self.tell(group, event, out);
        }
        if let Some(slot) = applied {
            let state = hash_of(0, &self.node.system().snapshot());
            out.told.push(Told::Applied { group: GroupId::SYSTEM, slot, state });
            let fence = self.moves();
            out.told.push(Told::Token { fence, at: slot });
            out.told.extend(happened_to_nodes(&self.system, self.node.system()));
            self.system = self.node.system().clone();
        }
    }

    fn tell(&mut self, group: GroupId, event: Event, out: &mut Out<(GroupId, Message)>) {
        let application = self.applications.get_mut(&group).expect("the node has it");
        let told = match event {
            Event::Decided { slot, entry } => {
                let value = stands_for(&entry);
                // The node itself is the application of the system group, and makes its snapshots.
                let chain = if group == GroupId::SYSTEM { value } else { mix(application.last() ^ value) };
                application.chain.push(chain);
                out.told.extend(application.happened(&entry.value).map(Told::Happened));
                if let Value::Data(batch) = &entry.value
                    && group != GroupId::SYSTEM
                {
                    let ids =
                        batch.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().expect("it has 8 bytes")));
                    out.told.extend(ids.map(|id| Told::Holds { group, slot, id }));
                }
                Told::Decided { group, slot, value, chain }
            }
            Event::Installed(snapshot) if group == GroupId::SYSTEM => {
                out.told.push(Told::Happened(Incident::SnapshotInstalled));
                Told::Installed { group, slot: snapshot.position.slot, chain: None }
            }
            Event::Installed(snapshot) => {
                let word = |at: usize| {
                    u64::from_le_bytes(snapshot.application[at..at + 8].try_into().expect("it has 8 bytes"))
                };
                application.base = word(0) - 1;
                application.chain = vec![word(8)];
                application.mastership = Some(snapshot.agreed.mastership);
                out.told.push(Told::Happened(Incident::SnapshotInstalled));
                Told::Installed { group, slot: snapshot.position.slot, chain: Some(word(8)) }
            }
            Event::Acknowledged { id, slot } => Told::Acknowledged { group, slot, id: id.0 },
            Event::Refused { id, .. } => Told::Refused { id: id.0 },
            Event::Unknown { id } => Told::Unknown { id: id.0 },
            Event::Declined { .. } => Told::Happened(Incident::ConsentRefused),
            Event::MasterChanged(mastership) => {
                out.told.push(Told::Mastered { group, epoch: mastership.tenure.epoch.0 });
                let is_its_end = |token: &paxos::system::Token| {
                    let is_later = mastership.tenure.epoch > token.epoch;
                    is_later && (token.group, Some(token.to)) == (group, mastership.node)
                };
                if self.node.system().token().is_some_and(is_its_end) {
                    out.told.push(Told::Happened(Incident::Moved));
                }
                let before = application.mastership.replace(mastership).filter(|before| before.node.is_some());
                let Some((before, claim)) = before.zip(application.wish.take()) else { return };
                let was_named = before.shortened.is_some_and(|shortened| Some(shortened.to) == mastership.node);
                Told::Happened(match claim {
                    Claim::Waited { .. } if was_named => Incident::MovedByShortening,
                    Claim::Waited { .. } => Incident::LeaseExpired,
                    Claim::Own { .. } => Incident::OwnAgain,
                    Claim::Consent { .. } => Incident::MovedByConsent,
                })
            }
            Event::Prepare { of, what } => {
                self.prepares = Some((of.fence, what));
                return;
            }
            Event::Serves { .. } => Told::Serves,
            Event::Leads { .. } => Told::Leads,
        };
        out.told.push(told);
    }
}

/// Different for different entries, ballot included.
fn stands_for(entry: &paxos::Entry) -> u64 {
    let mut hash = mix(entry.ballot.round << 16 ^ u64::from(entry.ballot.node.0));
    match &entry.value {
        Value::Noop => hash ^= 1,
        Value::Data(batch) => {
            for bytes in batch.iter() {
                hash = hash_of(hash ^ 2, bytes);
            }
        }
        Value::BeMaster(wish) => hash ^= 3 ^ u64::from(wish.node.0) << 8 ^ wish.liveness << 40,
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

/// SplitMix64's last step.
pub(crate) fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
