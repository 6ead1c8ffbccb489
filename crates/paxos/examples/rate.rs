//! Measures how many entries per second the crate `paxos` processes without a real disk or network. Three members of
//! one paxos group run in one thread. Each entry has 1 KB and differs from all other entries. All three members apply
//! all entries in order.
//!
//! Run the example with `cargo run --profile dist -p paxos --example rate`. The example needs 2.4 GB of memory, because
//! all entries are in memory from the beginning to the end.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "the example measures and prints the rate")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paxos::{Effects, Event, Group, GroupId, Input, Instant, Message, NodeId, Options, ProposalId, Token, Value};

const ENTRIES: u64 = 2_000_000;
const SIZE: usize = 1_024;
/// Number of entries that the example proposes before it delivers messages.
const IN_ROUND: u64 = 64;
/// Maximum number of entries in a slot.
const IN_SLOT: usize = 64;

struct Member {
    group: Group,
    effects: Effects,
    applied: Vec<Bytes>,
}

struct World {
    now: Instant,
    members: Vec<Member>,
    messages: VecDeque<(NodeId, NodeId, Message)>,
    acknowledged: u64,
}

impl World {
    fn new() -> World {
        let nodes = [NodeId(1), NodeId(2), NodeId(3)];
        let options = Arc::new(Options { batch_entries: IN_SLOT, ..Options::default() });
        let start = |node: &NodeId| {
            let mut effects = Effects::default();
            let group = Group::start((*node, GroupId(1)), options.clone(), &nodes, [], Instant(0), &mut effects);
            Member { group, effects, applied: Vec::new() }
        };
        World {
            now: Instant(1),
            members: nodes.iter().map(start).collect(),
            messages: VecDeque::new(),
            acknowledged: 0,
        }
    }

    fn step(&mut self, index: usize, input: Input) {
        let member = &mut self.members[index];
        let from = NodeId(u32::try_from(index).expect("there are three members") + 1);
        member.group.step(self.now, input, &mut member.effects);
        while !member.effects.records.is_empty() {
            member.effects.records.clear();
            let token = member.effects.token;
            member.effects.token = Token(token.0 + 1);
            member.group.step(self.now, Input::Persisted(token), &mut member.effects);
        }
        self.messages.extend(member.effects.sends.drain(..).map(|(to, _, message)| (from, to, message)));
        for (_, event) in member.effects.events.drain(..) {
            match event {
                Event::Decided { entry, .. } => {
                    if let Value::Data(batch) = entry.value {
                        assert!(batch.len() <= IN_SLOT, "a slot has at most IN_SLOT entries");
                        member.applied.extend_from_slice(&batch);
                    }
                }
                Event::Acknowledged { .. } => self.acknowledged += 1,
                Event::Rejected { why, .. } => panic!("a proposal was rejected: {why}"),
                _ => {}
            }
        }
    }

    fn deliver(&mut self) {
        while let Some((from, to, message)) = self.messages.pop_front() {
            self.step(to.0 as usize - 1, Input::Message { from, message });
        }
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        for index in 0..3 {
            self.step(index, Input::Tick);
        }
        self.deliver();
    }
}

fn main() {
    let mut world = World::new();
    while world.members.iter().all(|member| member.group.serves(world.now).is_none()) {
        world.tick();
    }
    let master = world.members.iter().position(|member| member.group.serves(world.now).is_some());
    let master = master.expect("one member serves");
    let entries: Vec<Bytes> = (0..ENTRIES).map(entry).collect();

    let began = std::time::Instant::now();
    for (number, entry) in (0..).zip(&entries) {
        world.step(master, Input::Propose { id: ProposalId(number), entry: entry.clone() });
        if number % IN_ROUND == IN_ROUND - 1 {
            world.deliver();
        }
    }
    while world.acknowledged < ENTRIES || world.members.iter().any(|member| member.applied.len() < entries.len()) {
        world.tick();
    }
    let took = began.elapsed();

    for member in &world.members {
        assert_eq!(hash(&member.applied), hash(&entries), "all members applied the same entries in order");
    }
    println!("{:.0} entries/s", ENTRIES as f64 / took.as_secs_f64());
}

fn entry(number: u64) -> Bytes {
    let mut bytes = vec![0; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes.into()
}

/// Returns the hash of the entries by a variant of FNV-1a that processes 8 bytes at a time.
fn hash(entries: &[Bytes]) -> u64 {
    let words = entries.iter().flat_map(|entry| entry.chunks_exact(8));
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let word = u64::from_le_bytes(word.try_into().expect("a chunk has 8 bytes"));
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
