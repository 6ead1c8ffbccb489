//! Tests with messages that no member should send. The receiver drops the messages that it recognises as invalid, and
//! handles all other messages. Only a message that contradicts a decided slot stops the receiver.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::{GroupState, Mastership, MastershipEnd, Position, Shorten, Shortened, SnapshotHead};

/// Generator of messages. Most messages could come from a member with a small log. Some messages contain extreme
/// numbers.
struct MessageGenerator {
    seed: u64,
}

impl MessageGenerator {
    fn below(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % bound
    }

    fn number(&mut self) -> u64 {
        match self.below(20) {
            0 => u64::MAX - self.below(3),
            1 => (1 << 62) - 1 + self.below(2),
            _ => self.below(12),
        }
    }

    fn slot(&mut self) -> Slot {
        Slot(self.number())
    }

    fn node(&mut self) -> NodeId {
        NodeId(u32::try_from(self.below(5)).unwrap())
    }

    fn ballot(&mut self) -> Ballot {
        Ballot { round: self.number(), node: self.node() }
    }

    fn term(&mut self, group: &Group) -> Term {
        match self.below(3) {
            0 => Term { epoch: Epoch(self.number()), ballot: self.ballot() },
            1 => group.uncommitted.mastership.term,
            _ => group.committed.mastership.term,
        }
    }

    fn position(&mut self, group: &Group) -> Position {
        match self.below(4) {
            0 => Position { ballot: self.ballot(), slot: self.slot() },
            1 => group.last(),
            2 => group.log.position(group.decided).unwrap(),
            _ => Position::START,
        }
    }

    fn duration(&mut self) -> Duration {
        if self.below(4) == 0 { Duration::from_nanos(u64::MAX) } else { Duration::from_millis(self.below(500)) }
    }

    fn bytes(&mut self) -> Bytes {
        let len = usize::try_from(self.below(20)).unwrap();
        vec![7; len].into()
    }

    fn members(&mut self) -> Arc<[NodeId]> {
        (0..self.below(4)).map(|_| self.node()).collect()
    }

    fn entries(&mut self, group: &Group, ballot: Ballot) -> Vec<Entry> {
        let entry = |_| {
            let term = self.term(group);
            let value = match self.below(6) {
                0 => Value::Noop,
                1 => Value::Data(Arc::from([self.bytes()])),
                2 => {
                    let claim = match self.below(3) {
                        0 => Claim::Waited { term, lease_slot: self.slot() },
                        1 => Claim::Own { term },
                        _ => Claim::Consent { term },
                    };
                    let (node, liveness, members) = (self.node(), self.below(3), self.members());
                    Value::BeMaster(BeMaster { node, liveness, claim, members })
                }
                3 => Value::Shorten(Shorten { term, to: self.node(), remaining: self.duration() }),
                4 => Value::Members(self.members()),
                _ => Value::Members(Arc::from(NODES)),
            };
            Entry { ballot: if self.below(4) == 0 { self.ballot() } else { ballot }, value }
        };
        (0..3).map(entry).collect()
    }

    fn head(&mut self, group: &Group) -> SnapshotHead {
        let shortened = (self.below(2) == 0).then(|| Shortened { to: self.node(), remaining: self.duration() });
        let mastership = Mastership {
            term: self.term(group),
            node: Some(self.node()),
            liveness: self.below(3),
            lease_slot: self.slot(),
            shortened,
        };
        let members = if self.below(2) == 0 { self.members() } else { Arc::from(NODES) };
        SnapshotHead { position: self.position(group), state: GroupState { mastership, members }, len: self.number() }
    }

    fn message(&mut self, group: &Group, from: NodeId) -> Message {
        let ballot = match self.below(4) {
            0 => self.ballot(),
            1 => group.promised,
            2 => Ballot { round: group.promised.round + 1, node: from },
            _ => Ballot { round: group.promised.round, node: from },
        };
        let (slot, offset, term) = (self.slot(), self.number(), self.term(group));
        match self.below(14) {
            0 => {
                let over = match self.below(3) {
                    0 => MastershipEnd::Waited { term },
                    1 => MastershipEnd::Expired { term, node: self.node(), liveness: self.number() },
                    _ => MastershipEnd::Consent { term },
                };
                Message::Prepare { ballot, pre_vote: self.below(2) == 0, over }
            }
            1 => {
                let (last, idle) = (self.position(group), self.duration());
                Message::Promise { ballot, pre_vote: self.below(2) == 0, last, idle }
            }
            2 => Message::Reject { ballot, promised: self.ballot() },
            3 => Message::Pull { ballot, after: self.position(group), offset },
            4 => Message::Pulled { ballot, after: self.position(group), entries: self.entries(group, ballot) },
            5 => {
                let (after, entries) = (self.position(group), self.entries(group, ballot));
                Message::Accept { ballot, after, entries, decided: slot }
            }
            6 => Message::Accepted { ballot, slot, decided: slot },
            7 => Message::Gap { ballot, slot },
            8 => Message::Snapshot { ballot, head: self.head(group), offset, part: self.bytes() },
            9 => Message::Received { ballot, slot, offset },
            10 => Message::RequestConsent { term },
            11 => Message::Consent { term, taker: self.node() },
            12 => Message::Decline { term },
            _ => Message::Forward { entry: self.bytes() },
        }
    }
}

fn world_with_master() -> (World, NodeId, Term) {
    let mut world = World::new(1, Ticks::Often);
    loop {
        world.tick();
        NODES.iter().for_each(|node| world.sync(*node));
        for (from, to, message) in std::mem::take(&mut world.messages) {
            world.step(to, Input::Message { from, message });
        }
        let now = world.now;
        let serves = |(node, member): (&NodeId, &Member)| member.group.serves(now).map(|term| (*node, term));
        if let Some((master, term)) = world.members.iter().find_map(serves) {
            return (world, master, term);
        }
    }
}

#[test]
fn messages_of_a_non_member_never_stop_the_master() {
    let (mut world, master, term) = world_with_master();
    world.messages.clear();
    let stranger = NodeId(9);
    world.step(master, Input::Message { from: stranger, message: Message::RequestConsent { term } });
    assert_eq!(world.messages, [(master, stranger, Message::Decline { term })]);
    world.step(master, Input::Shorten { to: stranger, remaining: Duration::ZERO });
    assert_eq!(world.members[&master].group.serves(world.now), Some(term));
}

#[test]
fn leader_ignores_messages_that_name_it_as_the_sender() {
    let (mut world, master, term) = world_with_master();
    let group = &world.members[&master].group;
    let (ballot, after, decided) = (term.ballot, group.last(), group.decided());
    let message = Message::Accept { ballot, after, entries: Vec::new(), decided };
    world.step(master, Input::Message { from: master, message });
    assert_eq!(world.members[&master].group.serves(world.now), Some(term));
}

#[test]
fn receiver_does_not_combine_snapshot_parts_of_two_nodes() {
    let mut world = World::new(1, Ticks::Often);
    let head = |node: u32| {
        let position = Position { ballot: Ballot { round: 1, node: NodeId(2) }, slot: Slot(5) };
        let head = SnapshotHead { position, state: GroupState::new(&NODES), len: 4 };
        (Ballot { round: u64::from(node), node: NodeId(node) }, head)
    };
    let mut send_part = |node: u32, offset: u64, part: &'static [u8]| {
        let (ballot, head) = head(node);
        let message = Message::Snapshot { ballot, head, offset, part: Bytes::from_static(part) };
        world.step(NodeId(1), Input::Message { from: NodeId(node), message });
        world.members[&NodeId(1)].group.snapshot.clone().map(|snapshot| snapshot.application)
    };
    assert_eq!(send_part(2, 0, b"ab"), None);
    assert_eq!(send_part(3, 2, b"cd"), None, "the first part came from another node");
    assert_eq!(send_part(3, 0, b"dc"), None);
    assert_eq!(send_part(3, 2, b"ba"), Some(Bytes::from_static(b"dcba")));
}

#[test]
#[should_panic(expected = "the journal lacks slots 0 to 4")]
fn node_panics_at_its_start_if_slots_are_missing_from_its_journal() {
    let entries = vec![Entry { ballot: Ballot { round: 1, node: NodeId(1) }, value: Value::Noop }];
    let records = vec![Record::Entries { after: Slot(4), entries }];
    drop(start(NodeId(1), &Arc::new(Options::default()), records, Instant(0)));
}

#[test]
fn member_stops_only_if_a_message_contradicts_a_decision() {
    let mut stopped = 0;
    for seed in 1..=2_000 {
        let mut world = World::new(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15), Ticks::WhenDue);
        let mut generator = MessageGenerator { seed: world.seed };
        let me = NodeId(1);
        let mut now = Instant(0);
        let member = world.members.get_mut(&me).unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..300 {
                now = now + Duration::from_millis(generator.below(10));
                let from = generator.node();
                let input = match generator.below(8) {
                    0 => Input::Tick,
                    1 => Input::Propose { id: ProposalId(0), entry: generator.bytes() },
                    2 => Input::Persisted(Token(generator.below(member.effects.token.0 + 1))),
                    _ => Input::Message { from, message: generator.message(&member.group, from) },
                };
                member.group.step(now, input, &mut member.effects);
                if !member.effects.records.is_empty() {
                    member.effects.token = Token(member.effects.token.0 + 1);
                }
                member.effects.records.clear();
                let parts = member.group.incoming.as_ref().map_or(0, |incoming| incoming.bytes.len() as u64);
                assert!(member.group.incoming.as_ref().is_none_or(|incoming| parts < incoming.head.len));
            }
        }));
        if let Err(panic) = ended {
            let why = panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(ToString::to_string));
            let why = why.unwrap();
            assert!(why.contains("decided slots"), "seed {seed}: {why}");
            stopped += 1;
        }
    }
    assert!(stopped < 1_000, "{stopped} of 2,000 members stopped, but most messages must be tolerated");
}
