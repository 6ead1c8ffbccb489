//! Searches, for each key, for an order of the key's changes and synced reads that explains all responses. The search
//! tries every call that can be next (Wing and Gong 1993). It records each set of calls that it has placed in the
//! order, together with the resulting state of the node. It tries no combination of a set and a state twice (Lowe
//! 2017).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Call, History, Knowledge, Observation, Operation, Response, Step, Value};
use coordination::tree::{Expected, Zxid};

/// Maximum number of prefixes of an order that the search tries for one key. For some hundred calls of a few sessions,
/// the search tries far fewer prefixes, even if the history is invalid.
const TRIED_MAX: usize = 200_000;

/// The state of the node after a prefix of the order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    node: Option<Content>,
    /// Greatest known change number of the calls in the prefix.
    last: Zxid,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Content {
    value: Value,
    version: i32,
    /// Number of the change that created the node; `None` if no response shows it.
    created: Option<Zxid>,
}

/// Calls at the start of a possible order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Prefix {
    /// One flag for each call on the key; true if the prefix contains the call.
    placed: Vec<bool>,
    state: State,
}

/// A call that the search places in the order.
struct Placed<'a> {
    at: Value,
    operation: &'a Operation,
    /// Latest step at which a call without a response can take effect. In the order, this call precedes every call that
    /// a session requested after this step.
    deadline: Option<Step>,
}

pub(super) fn check(history: &History, known: &Knowledge<'_>) -> Result<(), String> {
    let keys: BTreeSet<&str> = history.operations().iter().map(|operation| operation.key.as_str()).collect();
    keys.into_iter().try_for_each(|key| check_key(history, known, key))
}

fn check_key(history: &History, known: &Knowledge<'_>, key: &str) -> Result<(), String> {
    let all = of_key(history, key);
    let start = Prefix { placed: vec![false; all.len()], state: State { node: None, last: Zxid(i64::MIN) } };
    let (mut waiting, mut tried, mut longest) = (vec![start.clone()], HashSet::from([start.clone()]), start);
    while let Some(prefix) = waiting.pop() {
        let left = || all.iter().zip(&prefix.placed).filter(|(_, is_placed)| !**is_placed).map(|(call, _)| call);
        // Of the calls outside the prefix, the call with the earliest response must precede every call that a session
        // requested after that response.
        let Some(first) = left().filter_map(|call| call.operation.responded()).min() else { return Ok(()) };
        if count(&prefix) > count(&longest) {
            longest = prefix.clone();
        }
        for (at, call) in all.iter().enumerate() {
            if prefix.placed[at] || call.operation.requested > first || is_too_late(&all, &prefix, call) {
                continue;
            }
            let Some(state) = prefix.state.after(call, known) else { continue };
            let mut placed = prefix.placed.clone();
            placed[at] = true;
            let next = Prefix { placed, state };
            if tried.insert(next.clone()) {
                waiting.push(next);
            }
        }
        if tried.len() > TRIED_MAX {
            return Err(format!(
                "the check ended without a result after {TRIED_MAX} partial orders of the calls on {key}:\n{}",
                report(history, &all, &longest)
            ));
        }
    }
    Err(format!("no order of the calls on {key} explains their responses:\n{}", report(history, &all, &longest)))
}

/// Returns the key's calls. The search tries the last calls of this list first. Calls with early responses are
/// therefore at the end of the list, and calls without a response are at its start.
fn of_key<'a>(history: &'a History, key: &str) -> Vec<Placed<'a>> {
    let mut last_response = BTreeMap::new();
    let mut all = Vec::new();
    for (at, operation) in history.operations().iter().enumerate().rev() {
        let deadline = match operation.responded() {
            Some(_) => None,
            None => last_response.get(&operation.session).copied(),
        };
        if let (Some(responded), true) = (operation.responded(), operation.call != Call::Read) {
            last_response.insert(operation.session, responded);
        }
        let constrains = operation.response.is_some() || operation.call != Call::SyncedRead;
        if operation.key == key && operation.call != Call::Read && constrains {
            all.push(Placed { at: Value(at), operation, deadline });
        }
    }
    all.sort_by_key(|call| {
        let responded = call.operation.responded();
        std::cmp::Reverse((responded.is_none(), responded, call.operation.requested))
    });
    all
}

/// Returns whether a call without a response can no longer take effect. This is the case if the prefix contains a later
/// call of the same session, or a call that a session requested after the `deadline` of the call without a response.
fn is_too_late(all: &[Placed<'_>], prefix: &Prefix, call: &Placed<'_>) -> bool {
    let operation = call.operation;
    let excludes = |other: &Operation| {
        let is_of_session = other.session == operation.session && other.requested > operation.requested;
        is_of_session || call.deadline.is_some_and(|deadline| other.requested > deadline)
    };
    operation.response.is_none()
        && all.iter().zip(&prefix.placed).any(|(other, is_placed)| *is_placed && excludes(other.operation))
}

impl State {
    /// Returns the state after the call, or `None` if the call cannot be next because its response contradicts the
    /// present state.
    fn after(&self, call: &Placed<'_>, known: &Knowledge<'_>) -> Option<State> {
        let (operation, node) = (call.operation, self.node.as_ref());
        let response = operation.response.map(|(_, response)| response);
        let same_if = |is_so: bool| is_so.then(|| self.clone());
        match (operation.call, response) {
            (Call::Create, Some(Response::Node(_)) | None) => match node {
                None => self.with_value(call.at, None, known),
                Some(_) => None,
            },
            (Call::Set(expected), Some(Response::Node(_)) | None) => {
                let before = node.filter(|node| node.fits(expected))?;
                self.with_value(call.at, Some(before), known)
            }
            (Call::Delete(expected), Some(Response::Deleted) | None) => {
                let gone = State { node: None, last: self.last };
                node.filter(|node| node.fits(expected)).map(|_| gone)
            }
            (Call::Create, Some(Response::NodeExists)) => same_if(node.is_some()),
            (Call::Set(_) | Call::Delete(_) | Call::SyncedRead, Some(Response::NoNode)) => same_if(node.is_none()),
            (Call::Set(expected) | Call::Delete(expected), Some(Response::BadVersion)) => {
                same_if(node.is_some_and(|node| !node.fits(expected)))
            }
            (Call::SyncedRead, Some(Response::Node(observed))) => {
                same_if(node.is_some_and(|node| node.shows(&observed)))
            }
            // Other combinations of call and response are impossible.
            (Call::Create | Call::Set(_) | Call::Delete(_) | Call::SyncedRead | Call::Read, _) => None,
        }
    }

    /// Returns the state after the call with the index `value` has written the node. Returns `None` if a response shows
    /// the value of this write but contradicts that state.
    fn with_value(&self, value: Value, before: Option<&Content>, known: &Knowledge<'_>) -> Option<State> {
        let version = before.map_or(0, |before| before.version + 1);
        let created = before.and_then(|before| before.created);
        let Some(observed) = known.by_value.get(&value) else {
            return Some(State { node: Some(Content { value, version, created }), last: self.last });
        };
        let is_same = created.is_none_or(|created| created == observed.created);
        let is_next = observed.modified > self.last && observed.version == version && is_same;
        let node = Content { value, version, created: Some(observed.created) };
        is_next.then_some(State { node: Some(node), last: observed.modified })
    }
}

impl Content {
    fn fits(&self, expected: Expected) -> bool {
        match expected {
            Expected::Any => true,
            Expected::Version(version) => version == self.version,
        }
    }

    /// Returns whether the observation shows this content. The function compares only the value and the version,
    /// because all responses with the same value also agree on the other data.
    fn shows(&self, observed: &Observation) -> bool {
        observed.value == Some(self.value) && observed.version == self.version
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
            (call.operation.requested, format!("{mark} {}", history.line(call.operation)))
        })
        .collect();
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    let content = match &longest.state.node {
        Some(Content { value: Value(value), version, .. }) => format!("value {value}, version {version}"),
        None => "no node".to_owned(),
    };
    let legend = "columns: request step, response step, session, call, response; \
                  `?` marks a call outside the longest valid order";
    format!("({legend})\n{}\ncontent of the node after the calls in this order: {content}", lines.join("\n"))
}
