//! Small simulation of [`Group`] alone. The network loses, duplicates and reorders messages, disks lose unsynced
//! records, and nodes crash, but clocks are exact. The crate `paxos-simulator` simulates more faults; this test finds
//! simple mistakes within a second.

mod invalid_messages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Leading, Role};
use crate::{
    Ballot, BeMaster, Claim, Effects, Entry, Epoch, Event, Group, GroupId, Input, Instant, Message, NodeId, Options,
    ProposalId, Record, Slot, Term, Token, Value,
};

struct Member {
    group: Group,
    effects: Effects,
    records: Vec<(Token, Record)>,
    synced: usize,
}

struct World {
    seed: u64,
    now: Instant,
    options: Arc<Options>,
    members: BTreeMap<NodeId, Member>,
    messages: Vec<(NodeId, NodeId, Message)>,
    decided: BTreeMap<Slot, Entry>,
    acknowledged: u64,
    terms: Vec<(NodeId, Term)>,
    ticks: Ticks,
    /// Liveness epoch of each node and the end of the epoch's lease. Outside this test, the system group records these
    /// values.
    alive: BTreeMap<NodeId, (u64, Instant)>,
    /// Nodes that have restarted since their liveness epoch began. No process renews the epochs of these nodes.
    gone: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ticks {
    /// The test sends one tick per millisecond, even if the tick is not due.
    Often,
    /// The test sends only ticks that are due.
    WhenDue,
}

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

impl World {
    fn new(seed: u64, ticks: Ticks) -> Self {
        let options = Arc::new(Options {
            lease: Duration::from_millis(200),
            resend: Duration::from_millis(20),
            stagger: Duration::from_millis(20),
            consent: Duration::from_millis(50),
            window_slots: 4,
            batch_entries: 2,
            chunk_bytes: 100,
            ..Options::default()
        });
        let members = NODES.map(|node| (node, start(node, &options, Vec::new(), Instant(0))));
        World {
            seed,
            now: Instant(0),
            options,
            members: members.into(),
            messages: Vec::new(),
            decided: BTreeMap::new(),
            acknowledged: 0,
            terms: Vec::new(),
            ticks,
            alive: NODES.map(|node| (node, (1, Instant(0)))).into(),
            gone: BTreeSet::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed % bound as u64).unwrap()
    }

    fn any(&mut self) -> NodeId {
        NODES[self.below(3)]
    }

    fn step(&mut self, node: NodeId, input: Input) {
        let member = self.members.get_mut(&node).unwrap();
        let is_early = matches!(input, Input::Tick) && !member.is_due(self.now);
        member.group.step(self.now, input, &mut member.effects);
        let Effects { records, sends, events, .. } = &member.effects;
        let is_idle = records.is_empty() && sends.is_empty() && events.is_empty();
        assert!(!is_early || is_idle, "a tick that was not due had effects on {node}: {:?}", member.effects);
        self.collect(node);
    }

    fn collect(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).unwrap();
        let effects = &mut member.effects;
        if !effects.records.is_empty() {
            let token = effects.token;
            member.records.extend(effects.records.drain(..).map(|(_, record)| (token, record)));
            effects.token = Token(token.0 + 1);
        }
        self.messages.extend(effects.sends.drain(..).map(|(to, _, message)| (node, to, message)));
        for (_, event) in effects.events.drain(..) {
            match event {
                Event::Decided { slot, entry } => {
                    let known = self.decided.entry(slot).or_insert_with(|| entry.clone());
                    assert_eq!(*known, entry, "{node} decided a different entry in slot {slot}");
                }
                Event::Acknowledged { .. } => self.acknowledged += 1,
                Event::Serves { term } => self.terms.push((node, term)),
                _ => {}
            }
        }
        let now = self.now;
        let serving = self.members.values().filter(|member| member.group.serves(now).is_some()).count();
        assert!(serving <= 1, "{serving} nodes serve at the same time");
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        for node in NODES {
            if self.ticks == Ticks::Often {
                self.step(node, Input::Tick);
                continue;
            }
            for again in 0.. {
                if !self.members[&node].is_due(self.now) {
                    break;
                }
                assert!(again < 4, "{node} is still due after several ticks");
                self.step(node, Input::Tick);
            }
        }
    }

    /// Renews the liveness epoch of the node, because this test has no system group.
    fn renew(&mut self, node: NodeId) {
        if self.gone.contains(&node) {
            return;
        }
        let until = self.now + self.options.lease;
        let alive = self.alive.get_mut(&node).unwrap();
        alive.1 = until;
        let liveness = alive.0;
        self.step(node, Input::Liveness { liveness, until });
    }

    /// Ends the liveness epochs whose leases are over, and reports all ended epochs to all nodes.
    fn expire(&mut self) {
        for node in NODES {
            let (liveness, until) = self.alive[&node];
            if until < self.now {
                self.alive.insert(node, (liveness + 1, Instant(0)));
                self.gone.remove(&node);
            }
            let liveness = self.alive[&node].0 - 1;
            for other in NODES {
                self.step(other, Input::Expired { node, liveness });
            }
        }
    }

    fn sync(&mut self, node: NodeId) {
        let member = self.members.get_mut(&node).unwrap();
        member.synced = member.records.len();
        if let Some((token, _)) = member.records.last() {
            let token = *token;
            self.step(node, Input::Persisted(token));
        }
    }

    fn crash(&mut self, node: NodeId) {
        let mut member = self.members.remove(&node).unwrap();
        let kept = member.synced + self.below(member.records.len() - member.synced + 1);
        member.records.truncate(kept);
        let records = member.records.into_iter().map(|(_, record)| record).collect();
        self.gone.insert(node);
        self.members.insert(node, start(node, &self.options, records, self.now));
        self.collect(node);
    }

    fn deliver(&mut self, index: usize, stays: bool) {
        let (from, to, message) = if stays { self.messages[index].clone() } else { self.messages.swap_remove(index) };
        self.step(to, Input::Message { from, message });
    }
}

impl Member {
    fn is_due(&self, now: Instant) -> bool {
        self.group.next_tick(now).is_some_and(|due| due <= now)
    }
}

fn start(node: NodeId, options: &Arc<Options>, records: Vec<Record>, now: Instant) -> Member {
    let mut effects = Effects::default();
    let kept: Vec<_> = records.iter().map(|record| (Token(0), record.clone())).collect();
    let group = Group::start((node, GroupId(1)), options.clone(), &NODES, records, now, &mut effects);
    effects.token = Token(1);
    Member { group, effects, synced: kept.len(), records: kept }
}

#[test]
fn nodes_agree_on_values_and_masters_despite_faults() {
    run_seeds(Ticks::Often);
}

#[test]
fn nodes_make_progress_if_they_receive_only_due_ticks() {
    run_seeds(Ticks::WhenDue);
}

/// Two nodes that each abandoned a mastership may both repeat their consents. If each consent started a candidacy, the
/// node that receives the consents would repeatedly depose itself and every other leader.
#[test]
fn repeated_or_outdated_consent_does_not_start_another_takeover() {
    let mut world = World::new(1, Ticks::WhenDue);
    let [master, taker, other] = NODES;
    let records = vec![Record::Entries { after: Slot(0), entries: vec![first_master(master, 1)] }];
    world.members.insert(taker, start(taker, &world.options, records, Instant(0)));
    let mut campaigns = |from: NodeId, epoch: u64, round: u64| {
        let term = Term { epoch: Epoch(epoch), ballot: Ballot { round, node: from } };
        world.step(taker, Input::Message { from, message: Message::Consent { term, taker } });
        !std::mem::take(&mut world.messages).is_empty()
    };
    assert!(campaigns(master, 1, 1), "the taker knows this mastership");
    assert!(campaigns(other, 2, 2), "a later mastership counts");
    assert!(!campaigns(master, 1, 1), "the later mastership ended the earlier one");
    assert!(!campaigns(other, 2, 2), "a repeated consent has no effect");
    assert!(campaigns(master, 3, 4));
}

/// Messages of the master reach too few members, so the master cannot lead, and another node leads. This leader cannot
/// become master while the master's node is alive. If the master did not abandon its mastership, no node would ever
/// serve.
#[test]
fn master_abandons_its_mastership_if_another_node_leads() {
    let mut world = World::new(1, Ticks::WhenDue);
    let [master, leader, _] = NODES;
    // The `BeMaster` entry of the leader is void, because its claim does not name the mastership of the present master.
    let entries = vec![first_master(master, 1), first_master(leader, 2)];
    let records = vec![Record::Entries { after: Slot(0), entries }, Record::Decided(Slot(2))];
    for node in NODES {
        world.members.insert(node, start(node, &world.options, records.clone(), Instant(0)));
        world.collect(node);
    }
    let leading = Leading::new(Ballot { round: 2, node: leader }, Slot(3), Instant(0));
    world.members.get_mut(&leader).unwrap().group.role = Role::Leader(leading);
    world.alive.insert(master, (7, Instant(0)));
    while world.terms.is_empty() && world.now < Instant(1_000_000) {
        world.tick();
        world.renew(master);
        NODES.iter().for_each(|node| world.sync(*node));
        for (from, to, message) in std::mem::take(&mut world.messages) {
            if from != master || matches!(message, Message::Consent { .. }) {
                world.step(to, Input::Message { from, message });
            }
        }
    }
    assert!(matches!(&world.terms[..], [(node, _)] if *node == leader), "{:?}", world.terms);
    assert!(
        world.now > Instant(0) + 16 * world.options.resend,
        "the leader served before the master abandoned its mastership: {:?}",
        world.now
    );
}

fn first_master(node: NodeId, round: u64) -> Entry {
    let claim = Claim::Waited { term: Term::NONE, lease_slot: Slot(0) };
    let be_master = BeMaster { node, liveness: 7, claim, members: NODES.into() };
    Entry { ballot: Ballot { round, node }, value: Value::BeMaster(be_master) }
}

fn run_seeds(ticks: Ticks) {
    for seed in 1..=40 {
        let mut world = World::new(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15), ticks);
        for number in 0..3_000 {
            match world.below(100) {
                0..20 => world.tick(),
                20..40 => {
                    let node = world.any();
                    world.step(node, Input::Propose { id: ProposalId(number), entry: Bytes::from(number.to_string()) });
                }
                40..60 => {
                    let node = world.any();
                    world.sync(node);
                }
                60 if world.below(10) == 0 => {
                    let node = world.any();
                    world.crash(node);
                }
                61 => {
                    let node = world.any();
                    world.step(node, Input::Take);
                }
                62 => {
                    let (node, to, remaining) = (world.any(), world.any(), Duration::from_millis(20));
                    world.step(node, Input::Shorten { to, remaining });
                }
                63..65 => {
                    let node = world.any();
                    let slot = world.members[&node].group.decided();
                    world.step(node, Input::Snapshot { slot, application: Bytes::from(vec![7; 250]) });
                }
                65 => {
                    let node = world.any();
                    world.renew(node);
                }
                66 => world.expire(),
                67..69 if !world.messages.is_empty() => {
                    let index = world.below(world.messages.len());
                    world.messages.swap_remove(index);
                }
                69..71 if !world.messages.is_empty() => {
                    let index = world.below(world.messages.len());
                    world.deliver(index, true);
                }
                _ if !world.messages.is_empty() => {
                    let index = world.below(world.messages.len());
                    world.deliver(index, false);
                }
                _ => {}
            }
        }
        // The second phase of the test has no faults, so the paxos group must make progress in this phase.
        let before = world.acknowledged;
        for number in 0..1_500 {
            world.tick();
            if number % 50 == 0 {
                NODES.iter().for_each(|node| world.renew(*node));
                world.expire();
            }
            for node in NODES {
                world.sync(node);
                world.step(node, Input::Propose { id: ProposalId(number), entry: Bytes::from_static(b"quiet") });
            }
            for (from, to, message) in std::mem::take(&mut world.messages) {
                world.step(to, Input::Message { from, message });
            }
        }
        assert!(
            world.acknowledged > before + 500,
            "seed {seed}: {} acknowledgements before the quiet phase, {} after it",
            before,
            world.acknowledged
        );
        let last = *world.decided.keys().last().unwrap();
        let ends: Vec<_> = world.members.values().map(|member| member.group.decided()).collect();
        assert!(
            ends.iter().all(|end| end.0 + 20 > last.0),
            "seed {seed}: members decided {ends:?}, and the last slot is {last}"
        );
    }
}
