//! A small world of its own for the core alone: messages lost, doubled and reordered, disks that lose what is not synced, nodes
//! that crash and clocks that are true. The simulator's is larger; this one finds what is simply wrong in a second.

mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Leading, Role};
use crate::{
    Ballot, BeMaster, Claim, Effects, Entry, Epoch, Event, Group, GroupId, Input, Instant, Message, NodeId, Options,
    ProposalId, Record, Slot, Tenure, Token, Value,
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
    tenures: Vec<(NodeId, Tenure)>,
    ticks: Ticks,
    /// Each node's liveness epoch, and until when it is alive; what the system group would say.
    alive: BTreeMap<NodeId, (u64, Instant)>,
    /// Those whose process is not the one that was alive.
    gone: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ticks {
    /// One each millisecond, whether it is due or not.
    Often,
    /// None but what is due.
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
            tenures: Vec::new(),
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
        assert!(!is_early || is_idle, "a tick that was not due did something at {node}: {:?}", member.effects);
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
                    assert_eq!(*known, entry, "slot {slot} at {node}");
                }
                Event::Acknowledged { .. } => self.acknowledged += 1,
                Event::Serves { tenure } => self.tenures.push((node, tenure)),
                _ => {}
            }
        }
        let now = self.now;
        let serving = self.members.values().filter(|member| member.group.serves(now).is_some()).count();
        assert!(serving <= 1, "{serving} serve");
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
                assert!(again < 4, "{node} is due however often it is ticked");
                self.step(node, Input::Tick);
            }
        }
    }

    /// The node says that it is alive, to the system group as it were.
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

    /// All learn of those that are no longer alive.
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
fn nothing_is_decided_twice_and_one_serves_at_a_time_whatever_happens() {
    live_through(Ticks::Often);
}

#[test]
fn ticks_that_are_due_suffice() {
    live_through(Ticks::WhenDue);
}

/// Two that know masterships of their own may both have stopped, and say so again and again: a candidate for each word would depose
/// itself, and whoever it could follow.
#[test]
fn of_masters_that_stopped_only_a_later_one_is_news() {
    let mut world = World::new(1, Ticks::WhenDue);
    let [master, taker, other] = NODES;
    let records = vec![Record::Entries { after: Slot(0), entries: vec![first_master(master, 1)] }];
    world.members.insert(taker, start(taker, &world.options, records, Instant(0)));
    let mut asks = |from: NodeId, epoch: u64, round: u64| {
        let tenure = Tenure { epoch: Epoch(epoch), ballot: Ballot { round, node: from } };
        world.step(taker, Input::Message { from, message: Message::Consent { tenure, taker } });
        !std::mem::take(&mut world.messages).is_empty()
    };
    assert!(asks(master, 1, 1), "it is the mastership that it knows");
    assert!(asks(other, 2, 2), "it is a later one");
    assert!(!asks(master, 1, 1), "it is over with the later one");
    assert!(!asks(other, 2, 2), "it is known");
    assert!(asks(master, 3, 4));
}

/// It is heard by too few to lead, and who leads may not be master while it lives: nobody would be, for as long as that lasts.
#[test]
fn a_master_that_another_keeps_from_leading_leaves() {
    let mut world = World::new(1, Ticks::WhenDue);
    let [master, leader, _] = NODES;
    // What who leads wrote is void, as there is a master that lives.
    let entries = vec![first_master(master, 1), first_master(leader, 2)];
    let records = vec![Record::Entries { after: Slot(0), entries }, Record::Decided(Slot(2))];
    for node in NODES {
        world.members.insert(node, start(node, &world.options, records.clone(), Instant(0)));
        world.collect(node);
    }
    let leading = Leading::new(Ballot { round: 2, node: leader }, Slot(3), Instant(0));
    world.members.get_mut(&leader).unwrap().group.role = Role::Leader(leading);
    world.alive.insert(master, (7, Instant(0)));
    while world.tenures.is_empty() && world.now < Instant(1_000_000) {
        world.tick();
        world.renew(master);
        NODES.iter().for_each(|node| world.sync(*node));
        for (from, to, message) in std::mem::take(&mut world.messages) {
            if from != master || matches!(message, Message::Consent { .. }) {
                world.step(to, Input::Message { from, message });
            }
        }
    }
    assert!(matches!(&world.tenures[..], [(node, _)] if *node == leader), "{:?}", world.tenures);
    assert!(world.now > Instant(0) + 16 * world.options.resend, "not before the master left: {:?}", world.now);
}

fn first_master(node: NodeId, round: u64) -> Entry {
    let claim = Claim::Waited { tenure: Tenure::NONE, lease_slot: Slot(0) };
    let be_master = BeMaster { node, liveness: 7, claim, members: NODES.into() };
    Entry { ballot: Ballot { round, node }, value: Value::BeMaster(be_master) }
}

fn live_through(ticks: Ticks) {
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
        // Left in peace, it goes on.
        let before = world.acknowledged;
        for number in 0..1_500 {
            world.tick();
            if number % 50 == 0 {
                NODES.iter().for_each(|node| world.renew(*node));
                world.expire();
            }
            for node in NODES {
                world.sync(node);
                world.step(node, Input::Propose { id: ProposalId(number), entry: Bytes::from_static(b"peace") });
            }
            for (from, to, message) in std::mem::take(&mut world.messages) {
                world.step(to, Input::Message { from, message });
            }
        }
        assert!(world.acknowledged > before + 500, "seed {seed}: {} and then {}", before, world.acknowledged);
        let last = *world.decided.keys().last().unwrap();
        let ends: Vec<_> = world.members.values().map(|member| member.group.decided()).collect();
        assert!(ends.iter().all(|end| end.0 + 20 > last.0), "seed {seed}: {ends:?} of {last}");
    }
}
