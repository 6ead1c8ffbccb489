//! `testdata/*.txt`: what members of a paxos group tell each other, as stories to read. The manner is etcd raft's.
//!
//! A line is a command, and the lines indented below it are what came of that; `#` begins a comment. `UPDATE_EXPECT=1` writes
//! down what comes of the commands as they are, for a person to judge. Commands, with nodes as their numbers:
//!
//! - `nodes 1 2 3` founds the paxos group, `start 4` starts a node that is no member, `set lease 1s` changes an option before;
//! - `tick 1s` lets time pass and then ticks all nodes, in order, and `tick 2 1s` only that one; `run 1s` does so each 10 ms,
//!   delivers all that is sent, and tells of events alone; `lead 1` goes on until that one serves and all know; `quietly` before
//!   a command tells of nothing;
//! - `deliver` delivers what is on its way until nothing is, `deliver 1->2` what is on this link now, and `deliver 1->2 1` the
//!   first of it; `drop 1->2` and `double 1->2` are for what is there now, `hold 1->2` until `release 1->2`, `cut 1` until
//!   `heal`; `wire` tells what is there;
//! - `slow 1` is a disk that syncs at `sync 1` alone, until `crash 1`, which forgets the rest; `restart 1`; `fail 1` breaks it;
//! - `propose 1 a b`, `forward 2 a`, `take 2`, `shorten 1 2 500ms`, `snapshot 1`, `admit 1 4`, `dismiss 1 3`,
//!   `liveness 1 7 10s` (its epoch, and for how long), `expired 2 1 7` (told to 2 of 1);
//! - `show` tells how all stand.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use expect_test::expect_file;
use paxos::{Input, NodeId, ProposalId};

use crate::world::World;

#[test]
fn stories_end_as_they_are_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut stories: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    stories.sort();
    for path in stories {
        eprintln!("{}", path.display());
        let told = tell(&fs::read_to_string(&path).unwrap());
        expect_file![path].assert_eq(&told);
    }
}

fn tell(story: &str) -> String {
    let mut world = World::default();
    let mut told = String::new();
    for line in story.lines().filter(|line| !line.starts_with(' ')) {
        told += line;
        told += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            eprintln!("{line}");
            let words: Vec<_> = line.split_whitespace().collect();
            obey(&mut world, &words);
            told += &std::mem::take(&mut world.told);
        }
    }
    told
}

fn obey(world: &mut World, words: &[&str]) {
    match *words {
        ["quietly", ref rest @ ..] => {
            let told = world.told.len();
            obey(world, rest);
            world.told.truncate(told);
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
        ["double", word] => world.double(link(word)),
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
        ["admit", master, word] => world.step(node(master), Input::Admit { node: node(word) }),
        ["dismiss", master, word] => world.step(node(master), Input::Dismiss { node: node(word) }),
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
