//! Whether what sessions were answered can be: a recorded history of a tree, checked against what the port promises.
//!
//! A [`History`] holds what was asked of some nodes (*keys*), each call with the steps at which it was asked and answered. Checked is
//! - that there is one order of all changes: whatever shows a change (an answer, a read) tells the same of it, and what was asked
//!   after another was answered has the later [`Zxid`];
//! - that changes, and reads after a sync, are linearizable: for each key there is an order of them, each between its asking and its answer, in
//!   which one node, worked on by one at a time, answers as was answered ([`order`]). Keys are apart (a history is linearizable if it is for each
//!   object, Herlihy and Wing 1990, theorem 1), which is what keeps the search short;
//! - that a session's view never goes back, over all keys, whether or not it synced ([`view`]).
//!
//! A call that was not answered was done at some time, or never, but not after a later change or sync of the same session that was
//! answered: that is what [`Tree::sync`](coordination::tree::Tree::sync) promises, and the order of a session's changes.
//!
//! Why ZooKeeper keeps this, which promises less of a read: a write is ordered by its leader and answered by the session's server when that has
//! applied it; a sync goes through the leader, behind all that it has committed, and back to the session's server, which answers it, and the
//! session's later reads, after that. A session that moves to another server is refused by one that knows less than the session has seen. No
//! quorum is asked by a sync (ZOOKEEPER-1675), so a leader that stood still, was deposed, and has not found out yet answers one from the past,
//! and still from none before what its session has seen (decision 0148). Here sessions are cut off, and leaders die; none stands still.
//!
//! Not looked at: watches, children, multis, and nodes that go with their session.

mod order;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use coordination::tree::{Expected, Zxid};

/// What a node holds: the place in the history of the call that wrote it, so that no two write the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Value(pub(super) usize);

/// A moment: the steps of a history are in the order in which they happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Step(pub(super) u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Create,
    Set(Expected),
    Delete(Expected),
    /// After a sync, which is part of the call.
    SyncedRead,
    Read,
}

/// Of a node that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// `None` where it is not told.
    pub(super) value: Option<Value>,
    pub(super) version: i32,
    pub(super) created: Zxid,
    pub(super) modified: Zxid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// What a create or a set has made of it, or what was read.
    Node(Seen),
    Deleted,
    NoNode,
    NodeExists,
    BadVersion,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Operation {
    pub(super) session: usize,
    pub(super) key: String,
    pub(super) call: Call,
    pub(super) asked: Step,
    /// `None`: it was done at some time after it was asked, or never.
    pub(super) answer: Option<(Step, Answer)>,
}

/// In the order of asking. A session asks for one thing at a time: the next after an answer, or when it gave up waiting.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    operations: Vec<Operation>,
    steps: u64,
}

impl History {
    /// Where it is in the history: a create or set is to write this.
    pub(super) fn ask(&mut self, session: usize, key: &str, call: Call) -> Value {
        let asked = self.step();
        self.operations.push(Operation { session, key: key.to_owned(), call, asked, answer: None });
        Value(self.operations.len() - 1)
    }

    pub(super) fn answer(&mut self, call: Value, answer: Answer) {
        let step = self.step();
        self.operations[call.0].answer = Some((step, answer));
    }

    fn step(&mut self) -> Step {
        self.steps += 1;
        Step(self.steps)
    }

    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// # Errors
    /// What cannot be, with what shows it, for a person to read.
    pub(super) fn check(&self) -> Result<(), String> {
        let told = Told::of(self)?;
        told.check_numbers(self)?;
        order::check(self, &told)?;
        view::check(self, &told)
    }

    fn get(&self, at: Value) -> Option<&Operation> {
        self.operations.get(at.0)
    }

    /// A line each.
    fn shown<'a>(&'a self, all: impl IntoIterator<Item = &'a Operation>) -> String {
        all.into_iter().map(|operation| format!("{}\n", self.line(operation))).collect()
    }

    fn line(&self, operation: &Operation) -> String {
        let at = self.operations.iter().position(|other| other.asked == operation.asked).unwrap_or_default();
        let (answered, answer) = match operation.answer {
            Some((step, answer)) => (step.0.to_string(), answer.to_string()),
            None => ("-".to_owned(), "not answered".to_owned()),
        };
        let Operation { session, key, call, asked, .. } = operation;
        let call = match call {
            Call::Create => format!("create {key} as {at}"),
            Call::Set(Expected::Any) => format!("set {key} to {at}"),
            Call::Set(Expected::Version(version)) => format!("set {key} to {at} from version {version}"),
            Call::Delete(Expected::Any) => format!("delete {key}"),
            Call::Delete(Expected::Version(version)) => format!("delete {key} of version {version}"),
            Call::SyncedRead => format!("sync and read {key}"),
            Call::Read => format!("read {key}"),
        };
        format!("{:>5} ..{answered:>5}  session {session:<3} {call:<34} {answer}", asked.0)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = match self {
            Answer::Node(seen) => seen,
            Answer::Deleted => return write!(f, "deleted"),
            Answer::NoNode => return write!(f, "no node"),
            Answer::NodeExists => return write!(f, "is there already"),
            Answer::BadVersion => return write!(f, "another version"),
        };
        if let Some(Value(value)) = seen.value {
            write!(f, "{value}, ")?;
        }
        write!(f, "version {}, made by {}, last change {}", seen.version, seen.created.0, seen.modified.0)
    }
}

impl Operation {
    fn answered(&self) -> Option<Step> {
        self.answer.map(|(step, _)| step)
    }

    fn seen(&self) -> Option<&Seen> {
        match &self.answer {
            Some((_, Answer::Node(seen))) => Some(seen),
            _ => None,
        }
    }

    fn writes(&self) -> bool {
        matches!(self.call, Call::Create | Call::Set(_))
    }
}

/// What anybody was told of the changes.
struct Told<'a> {
    /// By their numbers, creates and sets that somebody saw: of which key, and what.
    changes: BTreeMap<Zxid, (&'a str, Seen)>,
    by_value: BTreeMap<Value, Seen>,
    /// The greatest number that anybody knew of, from each of these steps on.
    known: Vec<(Step, Zxid)>,
}

impl<'a> Told<'a> {
    fn of(history: &'a History) -> Result<Self, String> {
        let mut told = Told { changes: BTreeMap::new(), by_value: BTreeMap::new(), known: Vec::new() };
        for operation in history.operations() {
            let (Some(seen), Some(answered)) = (operation.seen(), operation.answered()) else { continue };
            told.add(&operation.key, *seen).map_err(|()| {
                let of = |other: &&Operation| {
                    other.seen().is_some_and(|other| other.modified == seen.modified || other.value == seen.value)
                };
                let all = history.operations().iter().filter(of);
                format!("one change is told of in two ways:\n{}", history.shown(all))
            })?;
            told.known.push((answered, seen.modified));
        }
        told.known.sort_unstable();
        let mut most = Zxid(i64::MIN);
        for (_, zxid) in &mut told.known {
            most = most.max(*zxid);
            *zxid = most;
        }
        Ok(told)
    }

    fn add(&mut self, key: &'a str, seen: Seen) -> Result<(), ()> {
        let (known_key, known) = self.changes.entry(seen.modified).or_insert((key, seen));
        known.value = known.value.or(seen.value);
        let same = Seen { value: seen.value.or(known.value), ..seen };
        let is_first = seen.version == 0;
        if *known_key != key || *known != same || is_first != (seen.created == seen.modified) {
            return Err(());
        }
        match seen.value {
            Some(value) if *self.by_value.entry(value).or_insert(seen) != seen => Err(()),
            _ => Ok(()),
        }
    }

    /// The greatest number that anybody was told before `step`.
    fn before(&self, step: Step) -> Zxid {
        let count = self.known.partition_point(|(at, _)| *at < step);
        count.checked_sub(1).map_or(Zxid(i64::MIN), |last| self.known[last].1)
    }

    /// What was seen was written, there; and what was asked for after a number was known has a greater one, so nobody has seen it before.
    fn check_numbers(&self, history: &History) -> Result<(), String> {
        for (value, seen) in &self.by_value {
            let write = history.get(*value).filter(|write| write.writes());
            let write = write.ok_or_else(|| format!("nobody wrote what was read: {}", Answer::Node(*seen)))?;
            let is_of_it = |other: &&Operation| other.asked == write.asked || other.seen() == Some(seen);
            let shown = || history.shown(history.operations().iter().filter(is_of_it));
            let is_made = (write.call == Call::Create) == (seen.version == 0);
            if !is_made || self.changes[&seen.modified].0 != write.key {
                return Err(format!("this is not what was written:\n{}", shown()));
            }
            if seen.modified <= self.before(write.asked) {
                return Err(format!(
                    "a change was numbered before one that was known when it was asked for:\n{}",
                    shown()
                ));
            }
        }
        Ok(())
    }
}
