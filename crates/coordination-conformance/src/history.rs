//! Checks whether the promises of the port allow the responses that sessions received. The check compares a recorded
//! history of a tree with these promises.
//!
//! A [`History`] contains calls on some nodes (*keys*). Each call has the points in time (*steps*) of its request and
//! its response. The check verifies three properties:
//! - All changes have one order. All responses that show a change report the same data about it. If a session
//!   requests a change after the response to another change, the later change has the greater [`Zxid`].
//! - Changes, and reads after a sync, are linearizable. For each key, the calls have an order in which a single node
//!   gives the same responses ([`order`]). In this order, every call takes effect between its request and its response.
//!   The check searches for the order of each key separately, so each search is short. Separate searches are enough
//!   because a history is linearizable if it is linearizable for each object (Herlihy and Wing 1990, theorem 1).
//! - A session never observes an older state of the tree than before, on any key, with or without a sync ([`view`]).
//!
//! A call without a response took effect at some time after its request, or never. If the same session later received
//! the response to a change or a sync, the call did not take effect after this change or sync. The promise of
//! [`Tree::sync`](coordination::tree::Tree::sync) and the order of a session's changes exclude such a late effect.
//!
//! ZooKeeper promises less for reads, but it has the three properties for the following reasons. The leader orders the
//! writes, and the session's server responds to a write after it has applied the write. The session's server sends a
//! sync to the leader. The leader returns the sync after all changes that it has committed. Only then does the
//! session's server respond to the sync and to the session's later reads. If the session has observed a change that a
//! server does not know yet, this server rejects the session. The leader does not ask a quorum about a sync
//! (ZOOKEEPER-1675). A paused leader that another leader has replaced may therefore respond to a sync from an old
//! state. This state is never older than the session's own view (decision 0148). The tests that use the check cut
//! sessions off and kill leaders, but they pause no leader.
//!
//! The check does not cover watches, children, multis, or ephemeral nodes.

mod order;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use coordination::tree::{Expected, Zxid};

/// Content of a node: the index of the call that wrote the content. Two calls therefore never write the same value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Value(pub(super) usize);

/// Point in time of a request or a response. The history numbers all requests and responses in the order in which they
/// happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Step(pub(super) u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Create,
    Set(Expected),
    Delete(Expected),
    /// Read after a sync. The sync is part of the call.
    SyncedRead,
    Read,
}

/// Data that a response contained about an existing node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Observation {
    /// Value of the node; `None` if the response does not contain the value.
    pub(super) value: Option<Value>,
    pub(super) version: i32,
    pub(super) created: Zxid,
    pub(super) modified: Zxid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Response {
    /// Success of a create, set or read, with the state of the node after the call.
    Node(Observation),
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
    pub(super) requested: Step,
    /// Response and its step; `None` if no response arrived. A call without a response took effect at some time after
    /// its request, or never.
    pub(super) response: Option<(Step, Response)>,
}

/// The calls of all sessions, in the order of their requests. A session makes its next call after the response to its
/// previous call, or after the timeout of that call.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    operations: Vec<Operation>,
    steps: u64,
}

impl History {
    /// Records a request. Returns its index, which a create or set writes to the node as the value.
    pub(super) fn request(&mut self, session: usize, key: &str, call: Call) -> Value {
        let requested = self.step();
        self.operations.push(Operation { session, key: key.to_owned(), call, requested, response: None });
        Value(self.operations.len() - 1)
    }

    pub(super) fn respond(&mut self, call: Value, response: Response) {
        let step = self.step();
        self.operations[call.0].response = Some((step, response));
    }

    fn step(&mut self) -> Step {
        self.steps += 1;
        Step(self.steps)
    }

    pub(super) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Checks the whole history.
    ///
    /// # Errors
    /// Returns an error if the history violates a promise of the port. The error describes the violation and lists the
    /// calls that show it.
    pub(super) fn check(&self) -> Result<(), String> {
        let known = Knowledge::of(self)?;
        known.check_numbers(self)?;
        order::check(self, &known)?;
        view::check(self, &known)
    }

    fn get(&self, at: Value) -> Option<&Operation> {
        self.operations.get(at.0)
    }

    /// Returns a text with one line for each call. The line describes the call.
    fn shown<'a>(&'a self, all: impl IntoIterator<Item = &'a Operation>) -> String {
        all.into_iter().map(|operation| format!("{}\n", self.line(operation))).collect()
    }

    fn line(&self, operation: &Operation) -> String {
        let at = self.operations.iter().position(|other| other.requested == operation.requested).unwrap_or_default();
        let (responded, response) = match operation.response {
            Some((step, response)) => (step.0.to_string(), response.to_string()),
            None => ("-".to_owned(), "no response".to_owned()),
        };
        let Operation { session, key, call, requested, .. } = operation;
        let call = match call {
            Call::Create => format!("create {key} as {at}"),
            Call::Set(Expected::Any) => format!("set {key} to {at}"),
            Call::Set(Expected::Version(version)) => format!("set {key} to {at} from version {version}"),
            Call::Delete(Expected::Any) => format!("delete {key}"),
            Call::Delete(Expected::Version(version)) => format!("delete {key} of version {version}"),
            Call::SyncedRead => format!("sync and read {key}"),
            Call::Read => format!("read {key}"),
        };
        format!("{:>5} ..{responded:>5}  session {session:<3} {call:<34} {response}", requested.0)
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observed = match self {
            Response::Node(observed) => observed,
            Response::Deleted => return write!(f, "deleted"),
            Response::NoNode => return write!(f, "no node"),
            Response::NodeExists => return write!(f, "node exists"),
            Response::BadVersion => return write!(f, "another version"),
        };
        if let Some(Value(value)) = observed.value {
            write!(f, "{value}, ")?;
        }
        write!(
            f,
            "version {}, created by {}, last change {}",
            observed.version, observed.created.0, observed.modified.0
        )
    }
}

impl Operation {
    fn responded(&self) -> Option<Step> {
        self.response.map(|(step, _)| step)
    }

    fn observed(&self) -> Option<&Observation> {
        match &self.response {
            Some((_, Response::Node(observed))) => Some(observed),
            _ => None,
        }
    }

    fn writes(&self) -> bool {
        matches!(self.call, Call::Create | Call::Set(_))
    }
}

/// Changes that the responses to the sessions show.
struct Knowledge<'a> {
    /// Create and set calls whose effect a response shows, by change number. Each entry contains the key of the node,
    /// and the data that the responses contained about the node.
    changes: BTreeMap<Zxid, (&'a str, Observation)>,
    by_value: BTreeMap<Value, Observation>,
    /// Steps at which a session received a change number. Each entry contains the greatest change number that any
    /// session knew after that step.
    latest: Vec<(Step, Zxid)>,
}

impl<'a> Knowledge<'a> {
    fn of(history: &'a History) -> Result<Self, String> {
        let mut known = Knowledge { changes: BTreeMap::new(), by_value: BTreeMap::new(), latest: Vec::new() };
        for operation in history.operations() {
            let (Some(observed), Some(responded)) = (operation.observed(), operation.responded()) else { continue };
            known.add(&operation.key, *observed).map_err(|()| {
                let of = |other: &&Operation| {
                    other
                        .observed()
                        .is_some_and(|other| other.modified == observed.modified || other.value == observed.value)
                };
                let all = history.operations().iter().filter(of);
                format!("one change is reported in two ways:\n{}", history.shown(all))
            })?;
            known.latest.push((responded, observed.modified));
        }
        known.latest.sort_unstable();
        let mut most = Zxid(i64::MIN);
        for (_, zxid) in &mut known.latest {
            most = most.max(*zxid);
            *zxid = most;
        }
        Ok(known)
    }

    fn add(&mut self, key: &'a str, observed: Observation) -> Result<(), ()> {
        let (known_key, known) = self.changes.entry(observed.modified).or_insert((key, observed));
        known.value = known.value.or(observed.value);
        let same = Observation { value: observed.value.or(known.value), ..observed };
        let is_first = observed.version == 0;
        if *known_key != key || *known != same || is_first != (observed.created == observed.modified) {
            return Err(());
        }
        match observed.value {
            Some(value) if *self.by_value.entry(value).or_insert(observed) != observed => Err(()),
            _ => Ok(()),
        }
    }

    /// Returns the greatest change number that any session knew before `step`.
    fn before(&self, step: Step) -> Zxid {
        let count = self.latest.partition_point(|(at, _)| *at < step);
        count.checked_sub(1).map_or(Zxid(i64::MIN), |last| self.latest[last].1)
    }

    /// Checks for each value in a response that a call has written this value to the same key. Also checks that the
    /// number of each change is greater than all change numbers that any session knew before the request for this
    /// change.
    fn check_numbers(&self, history: &History) -> Result<(), String> {
        for (value, observed) in &self.by_value {
            let write = history.get(*value).filter(|write| write.writes());
            let write =
                write.ok_or_else(|| format!("no call wrote the value that was read: {}", Response::Node(*observed)))?;
            let is_of_it =
                |other: &&Operation| other.requested == write.requested || other.observed() == Some(observed);
            let shown = || history.shown(history.operations().iter().filter(is_of_it));
            let is_created = (write.call == Call::Create) == (observed.version == 0);
            if !is_created || self.changes[&observed.modified].0 != write.key {
                return Err(format!("a read differs from its write:\n{}", shown()));
            }
            if observed.modified <= self.before(write.requested) {
                return Err(format!("a change was numbered before a known change:\n{}", shown()));
            }
        }
        Ok(())
    }
}
