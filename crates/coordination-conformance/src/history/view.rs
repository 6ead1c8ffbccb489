//! Checks that the view of a session never returns to an older state. Each call of the session belongs to a moment in
//! the order of all changes of all keys. The session's next call belongs to the same moment or to a later moment.
//!
//! Change numbers identify the moments. No response contains the number of a deletion. The number of a deletion is
//! greater than all numbers that any session knew at the request of the deletion. It is less than the numbers of all
//! changes that a session requested after the response to the deletion.

use std::collections::BTreeMap;

use super::{Call, History, Knowledge, Observation, Operation, Response, Step};
use coordination::tree::Zxid;

/// Facts about a session's view that follow from the responses to its calls so far.
struct View {
    /// Number of the latest change that the session's view certainly includes.
    floor: Zxid,
    /// Step at which the session requested the call that last raised the value of `floor`.
    by: Step,
    /// Keys at which the session found no node, each with the value of `floor` at that time. If the session later sees
    /// a node at the key, the number of the node's creation must be greater than this value.
    gone: BTreeMap<String, Zxid>,
}

/// A deletion that may have taken effect.
struct Deletion<'a> {
    key: &'a str,
    requested: Step,
    /// Exclusive bounds of the deletion's number. A deletion without a response has no known upper bound.
    above: Zxid,
    below: Zxid,
}

pub(super) fn check(history: &History, known: &Knowledge<'_>) -> Result<(), String> {
    let deletions: Vec<Deletion<'_>> =
        history.operations().iter().filter_map(|operation| Deletion::of(operation, history, known)).collect();
    let mut views: BTreeMap<usize, View> = BTreeMap::new();
    for operation in history.operations() {
        let new = || View { floor: Zxid(i64::MIN), by: operation.requested, gone: BTreeMap::new() };
        let view = views.entry(operation.session).or_insert_with(new);
        if let Err((what, other)) = view.take(operation, known, &deletions) {
            let why = [Some(view.by), other];
            let shows = |other: &&Operation| {
                other.requested == operation.requested
                    || why.contains(&Some(other.requested))
                    || (other.key == operation.key && other.session == operation.session)
            };
            let shown = history.shown(history.operations().iter().filter(shows));
            return Err(format!(
                "a session observed an older state than before: {what}\ncall that shows the older state:\n{}\n\
                 number of a change that the session already knew: {}\n\
                 calls of the session on {}, and other calls that show the violation:\n{shown}",
                history.line(operation),
                view.floor.0,
                operation.key,
            ));
        }
    }
    Ok(())
}

impl<'a> Deletion<'a> {
    fn of(operation: &'a Operation, history: &History, known: &Knowledge<'_>) -> Option<Self> {
        if !matches!((operation.call, operation.response), (Call::Delete(_), Some((_, Response::Deleted)) | None)) {
            return None;
        }
        let is_later = |step: Step| operation.responded().is_some_and(|responded| responded < step);
        let later = known
            .by_value
            .iter()
            .filter(|(value, _)| history.get(**value).is_some_and(|write| is_later(write.requested)));
        let below = later.map(|(_, observed)| observed.modified).min().unwrap_or(Zxid(i64::MAX));
        Some(Deletion {
            key: &operation.key,
            requested: operation.requested,
            above: known.before(operation.requested),
            below,
        })
    }
}

impl View {
    /// Applies a call to the view. An error describes the violation, and may contain the step of another call that
    /// proves the violation.
    fn take(
        &mut self,
        operation: &Operation,
        known: &Knowledge<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let Some((_, response)) = operation.response else { return Ok(()) };
        if operation.call != Call::Read {
            // The call takes effect after all changes that any session knew when this session requested the call.
            self.raise(known.before(operation.requested), operation.requested);
        }
        match response {
            Response::Node(observed) => self.see(operation, &observed, known, deletions),
            Response::NoNode if operation.call == Call::Read => self.miss(operation, known, deletions),
            Response::NoNode | Response::Deleted => {
                self.gone.insert(operation.key.clone(), self.floor);
                Ok(())
            }
            Response::NodeExists | Response::BadVersion => Ok(()),
        }
    }

    fn raise(&mut self, floor: Zxid, by: Step) {
        if floor > self.floor {
            (self.floor, self.by) = (floor, by);
        }
    }

    fn see(
        &mut self,
        operation: &Operation,
        observed: &Observation,
        known: &Knowledge<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let key = operation.key.as_str();
        // A change that the session's view already includes may have overwritten the value that the call read.
        let mut later = known.changes.range(observed.modified..).skip(1).take_while(|(zxid, _)| **zxid <= self.floor);
        if later.any(|(_, (of, _))| *of == key) {
            return Err(("the session reads a value that was already overwritten", None));
        }
        if self.gone.get(key).is_some_and(|gone| observed.created <= *gone) {
            return Err(("the session reads a node after it found that the node was deleted", None));
        }
        let ended = |deletion: &&Deletion<'_>| {
            deletion.key == key && deletion.below <= self.floor && observed.created <= deletion.above
        };
        if let Some(deletion) = deletions.iter().find(ended) {
            return Err(("the session reads a node that was already deleted", Some(deletion.requested)));
        }
        self.raise(observed.modified, operation.requested);
        Ok(())
    }

    /// Applies a read that found no node. The node was absent at the moment of the session's view or at a later moment.
    fn miss(
        &mut self,
        operation: &Operation,
        known: &Knowledge<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let key = operation.key.as_str();
        let of_key = || known.changes.iter().filter(|(_, (of, _))| *of == key).map(|(_, (_, observed))| observed);
        let made = of_key().map(|observed| observed.created).filter(|created| *created <= self.floor).max();
        let Some(made) = made else {
            self.gone.insert(key.to_owned(), self.floor);
            return Ok(());
        };
        let modified = of_key()
            .filter(|observed| observed.created == made)
            .map(|observed| observed.modified)
            .max()
            .unwrap_or(made);
        let may_end = |deletion: &Deletion<'_>| {
            deletion.key == key && deletion.below > modified && Some(deletion.requested) < operation.responded()
        };
        if !deletions.iter().any(may_end) {
            return Err(("a node is missing although no call deleted it", None));
        }
        self.raise(modified, operation.requested);
        self.gone.insert(key.to_owned(), self.floor);
        Ok(())
    }
}
