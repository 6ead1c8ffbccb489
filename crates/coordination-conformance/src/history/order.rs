//! For each key, an order of its changes and synced reads that explains all answers: the search of Wing and Gong (1993), which tries what can
//! be next, with Lowe's memory (2017) of what was tried, the calls that were placed and what the node then is.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Answer, Call, History, Operation, Seen, Step, Told, Value};
use coordination::tree::{Expected, Zxid};

/// Of one key. Far more than a history of some hundred calls by a few sessions has, right or wrong.
const TRIED_MAX: usize = 200_000;

/// The node, worked on by one at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    node: Option<Held>,
    /// The last change whose number is known.
    last: Zxid,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Held {
    value: Value,
    version: i32,
    /// `None` if nobody was told.
    created: Option<Zxid>,
}

/// A beginning of an order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Prefix {
    /// By their places among the key's.
    placed: Vec<bool>,
    state: State,
}

/// What is to be placed.
struct Placed<'a> {
    at: Value,
    operation: &'a Operation,
    /// If it was not answered: nothing that was asked later than this comes before it.
    deadline: Option<Step>,
}

pub(super) fn check(history: &History, told: &Told<'_>) -> Result<(), String> {
    let keys: BTreeSet<&str> = history.operations().iter().map(|operation| operation.key.as_str()).collect();
    keys.into_iter().try_for_each(|key| check_key(history, told, key))
}

fn check_key(history: &History, told: &Told<'_>, key: &str) -> Result<(), String> {
    let all = of_key(history, key);
    let start = Prefix { placed: vec![false; all.len()], state: State { node: None, last: Zxid(i64::MIN) } };
    let (mut waiting, mut tried, mut longest) = (vec![start.clone()], HashSet::from([start.clone()]), start);
    while let Some(prefix) = waiting.pop() {
        let left = || all.iter().zip(&prefix.placed).filter(|(_, is_placed)| !**is_placed).map(|(call, _)| call);
        // What is answered first comes before all that is asked after that.
        let Some(first) = left().filter_map(|call| call.operation.answered()).min() else { return Ok(()) };
        if count(&prefix) > count(&longest) {
            longest = prefix.clone();
        }
        for (at, call) in all.iter().enumerate() {
            if prefix.placed[at] || call.operation.asked > first || is_too_late(&all, &prefix, call) {
                continue;
            }
            let Some(state) = prefix.state.after(call, told) else { continue };
            let mut placed = prefix.placed.clone();
            placed[at] = true;
            let next = Prefix { placed, state };
            if tried.insert(next.clone()) {
                waiting.push(next);
            }
        }
        if tried.len() > TRIED_MAX {
            return Err(format!("too many orders of {key} are to be tried:\n{}", report(history, &all, &longest)));
        }
    }
    Err(format!("no order explains the answers of {key}:\n{}", report(history, &all, &longest)))
}

/// Those answered first are the last, which are tried first; those not answered are tried when nothing else is left.
fn of_key<'a>(history: &'a History, key: &str) -> Vec<Placed<'a>> {
    let mut settled = BTreeMap::new();
    let mut all = Vec::new();
    for (at, operation) in history.operations().iter().enumerate().rev() {
        let deadline = match operation.answered() {
            Some(_) => None,
            None => settled.get(&operation.session).copied(),
        };
        if let (Some(answered), true) = (operation.answered(), operation.call != Call::Read) {
            settled.insert(operation.session, answered);
        }
        let tells = operation.answer.is_some() || operation.call != Call::SyncedRead;
        if operation.key == key && operation.call != Call::Read && tells {
            all.push(Placed { at: Value(at), operation, deadline });
        }
    }
    all.sort_by_key(|call| {
        let answered = call.operation.answered();
        std::cmp::Reverse((answered.is_none(), answered, call.operation.asked))
    });
    all
}

/// After a later change or sync of its session, what was not answered is not done any more.
fn is_too_late(all: &[Placed<'_>], prefix: &Prefix, call: &Placed<'_>) -> bool {
    let operation = call.operation;
    let shuts_out = |other: &Operation| {
        let is_of_session = other.session == operation.session && other.asked > operation.asked;
        is_of_session || call.deadline.is_some_and(|deadline| other.asked > deadline)
    };
    operation.answer.is_none()
        && all.iter().zip(&prefix.placed).any(|(other, is_placed)| *is_placed && shuts_out(other.operation))
}

impl State {
    /// `None` if the call cannot be next: it would be answered otherwise.
    fn after(&self, call: &Placed<'_>, told: &Told<'_>) -> Option<State> {
        let (operation, node) = (call.operation, self.node.as_ref());
        let answer = operation.answer.map(|(_, answer)| answer);
        let same_if = |is_so: bool| is_so.then(|| self.clone());
        match (operation.call, answer) {
            (Call::Create, Some(Answer::Node(_)) | None) => match node {
                None => self.holding(call.at, None, told),
                Some(_) => None,
            },
            (Call::Set(expected), Some(Answer::Node(_)) | None) => {
                let before = node.filter(|node| node.fits(expected))?;
                self.holding(call.at, Some(before), told)
            }
            (Call::Delete(expected), Some(Answer::Deleted) | None) => {
                let gone = State { node: None, last: self.last };
                node.filter(|node| node.fits(expected)).map(|_| gone)
            }
            (Call::Create, Some(Answer::NodeExists)) => same_if(node.is_some()),
            (Call::Set(_) | Call::Delete(_) | Call::SyncedRead, Some(Answer::NoNode)) => same_if(node.is_none()),
            (Call::Set(expected) | Call::Delete(expected), Some(Answer::BadVersion)) => {
                same_if(node.is_some_and(|node| !node.fits(expected)))
            }
            (Call::SyncedRead, Some(Answer::Node(seen))) => same_if(node.is_some_and(|node| node.shows(&seen))),
            // No other answer is one.
            (Call::Create | Call::Set(_) | Call::Delete(_) | Call::SyncedRead | Call::Read, _) => None,
        }
    }

    /// With what the call `value` writes.
    fn holding(&self, value: Value, before: Option<&Held>, told: &Told<'_>) -> Option<State> {
        let version = before.map_or(0, |before| before.version + 1);
        let created = before.and_then(|before| before.created);
        let Some(seen) = told.by_value.get(&value) else {
            return Some(State { node: Some(Held { value, version, created }), last: self.last });
        };
        let is_same = created.is_none_or(|created| created == seen.created);
        let is_next = seen.modified > self.last && seen.version == version && is_same;
        let node = Held { value, version, created: Some(seen.created) };
        is_next.then_some(State { node: Some(node), last: seen.modified })
    }
}

impl Held {
    fn fits(&self, expected: Expected) -> bool {
        match expected {
            Expected::Any => true,
            Expected::Version(version) => version == self.version,
        }
    }

    /// All else that is told of a value is the same everywhere.
    fn shows(&self, seen: &Seen) -> bool {
        seen.value == Some(self.value) && seen.version == self.version
    }
}

fn count(prefix: &Prefix) -> usize {
    prefix.placed.iter().filter(|is_placed| **is_placed).count()
}

fn report(history: &History, all: &[Placed<'_>], longest: &Prefix) -> String {
    let mut lines: Vec<(Step, String)> = all
        .iter()
        .zip(&longest.placed)
        .map(|(call, is_placed)| {
            let mark = if *is_placed { ' ' } else { '?' };
            (call.operation.asked, format!("{mark} {}", history.line(call.operation)))
        })
        .collect();
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    let held = match &longest.state.node {
        Some(Held { value: Value(value), version, .. }) => format!("{value}, version {version}"),
        None => "no node".to_owned(),
    };
    let told = "asked and answered at which step, by whom, what, and the answer; `?` where the longest order found has no place for it";
    format!("({told})\n{}\nafter that order it is: {held}", lines.join("\n"))
}
