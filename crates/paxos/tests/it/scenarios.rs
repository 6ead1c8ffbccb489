//! Tests with protocol scenarios in `testdata/*.txt`. A scenario contains the messages between members of a paxos group
//! as text. The format is similar to the format of etcd's Raft scenarios.
//!
//! Each line without indentation is a command, and the indented lines below a command are its output. `#` begins a
//! comment. With `UPDATE_EXPECT=1`, the test writes the actual output to the files, and a developer must review the
//! changes. A number denotes a node. The commands are:
//!
//! - `nodes 1 2 3` creates the paxos group with these members. `start 4` starts node 4, which is not a member. `set
//!   lease 1s` sets an option; it must precede `nodes`.
//! - `tick 1s` advances the time by one second and then sends a tick to each node, in order. `tick 2 1s` sends a tick
//!   only to node 2. `run 1s` sends a tick every 10 ms, delivers all messages, and prints only events. `lead 1` sends
//!   ticks to node 1 and delivers all messages until node 1 serves and all nodes know this. `quietly` before a command
//!   suppresses the output of the command.
//! - `deliver` delivers messages until no message is in flight. `deliver 1->2` delivers the messages that are in flight
//!   from node 1 to node 2, and `deliver 1->2 1` delivers only the first of these messages. `drop 1->2` drops the
//!   messages in flight from node 1 to node 2, and `duplicate 1->2` duplicates them. `hold 1->2` pauses the link from
//!   node 1 to node 2 until `release 1->2`. `cut 1` isolates node 1 until `heal`. `wire` prints the messages in flight.
//! - After `slow 1`, the disk of node 1 syncs only at `sync 1`. `crash 1` stops node 1, which loses its unsynced
//!   records. `restart 1` starts node 1 again. `fail 1` reports to node 1 that its storage has failed.
//! - `propose 1 a b`, `forward 2 a`, `take 2`, `shorten 1 2 500ms`, `snapshot 1`, `add 1 4` and `remove 1 3` pass
//!   inputs to the node that the first number denotes. `liveness 1 7 10s` sets the liveness epoch of node 1 to 7, with
//!   a lease of 10 s. `expired 2 1 7` reports to node 2 that liveness epoch 7 of node 1 is over.
//! - `show` prints the state of all nodes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use expect_test::expect_file;
use paxos::{Input, NodeId, ProposalId};

use crate::world::World;

#[test]
fn scenarios_match_their_recorded_output() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut scenarios: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    scenarios.sort();
    for path in scenarios {
        eprintln!("{}", path.display());
        let output = run_scenario(&fs::read_to_string(&path).unwrap());
        expect_file![path].assert_eq(&output);
    }
}

fn run_scenario(script: &str) -> String {
    let mut world = World::default();
    let mut output = String::new();
    for line in script.lines().filter(|line| !line.starts_with(' ')) {
        output += line;
        output += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            eprintln!("{line}");
            let words: Vec<_> = line.split_whitespace().collect();
            execute(&mut world, &words);
            output += &std::mem::take(&mut world.output);
        }
    }
    output
}

fn execute(world: &mut World, words: &[&str]) {
    match *words {
        ["quietly", ref rest @ ..] => {
            let output = world.output.len();
            execute(world, rest);
            world.output.truncate(output);
        }
        ["set", name, value] => world.set(name, value),
        ["nodes", ref nodes @ ..] => world.found(nodes.iter().map(|word| node(word)).collect()),
        ["start" | "restart", word] => world.start(node(word)),
        ["tick", time] => world.tick(duration(time), None),
        ["tick", word, time] => world.tick(duration(time), Some(node(word))),
        ["run", time] => world.run(duration(time)),
        ["lead", word] => world.lead(node(word)),
        ["deliver"] => world.deliver_all(),
        ["deliver", word] => world.deliver(link(word), usize::MAX),
        ["deliver", word, count] => world.deliver(link(word), count.parse().unwrap()),
        ["drop", word] => world.lose(link(word)),
        ["duplicate", word] => world.duplicate(link(word)),
        ["hold", word] => drop(world.held.insert(link(word))),
        ["release", word] => drop(world.held.remove(&link(word))),
        ["cut", word] => drop(world.cut.insert(node(word))),
        ["heal"] => world.cut.clear(),
        ["wire"] => world.show_wire(),
        ["slow", word] => world.slow(node(word)),
        ["sync", word] => world.sync(node(word)),
        ["crash", word] => world.crash(node(word)),
        ["fail", word] => world.step(node(word), Input::StorageFailed),
        ["propose", word, ref entries @ ..] => {
            for entry in entries {
                world.proposals.push((*entry).to_owned());
                let id = ProposalId(world.proposals.len() as u64 - 1);
                world.step(node(word), Input::Propose { id, entry: bytes(entry) });
            }
        }
        ["forward", word, entry] => world.step(node(word), Input::Forward { entry: bytes(entry) }),
        ["take", word] => world.step(node(word), Input::Take),
        ["shorten", master, to, time] => {
            world.step(node(master), Input::Shorten { to: node(to), remaining: duration(time) });
        }
        ["snapshot", word] => world.snapshot(node(word)),
        ["add", master, word] => world.step(node(master), Input::AddMember { node: node(word) }),
        ["remove", master, word] => world.step(node(master), Input::RemoveMember { node: node(word) }),
        ["liveness", word, liveness, time] => {
            let until = world.now + duration(time);
            world.step(node(word), Input::Liveness { liveness: liveness.parse().unwrap(), until });
        }
        ["expired", to, of, liveness] => {
            world.step(node(to), Input::Expired { node: node(of), liveness: liveness.parse().unwrap() });
        }
        ["show"] => world.show(),
        _ => panic!("not a command: {words:?}"),
    }
}

fn bytes(word: &str) -> Bytes {
    Bytes::copy_from_slice(word.as_bytes())
}

fn node(word: &str) -> NodeId {
    NodeId(word.parse().unwrap())
}

fn link(word: &str) -> (NodeId, NodeId) {
    let (from, to) = word.split_once("->").unwrap();
    (node(from), node(to))
}

pub(crate) fn duration(word: &str) -> Duration {
    match word.strip_suffix("ms") {
        Some(millis) => Duration::from_millis(millis.parse().unwrap()),
        None => Duration::from_secs(word.strip_suffix('s').unwrap().parse().unwrap()),
    }
}
