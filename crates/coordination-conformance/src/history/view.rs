//! What one session sees never goes back: each thing that it sees or does stands at a moment in the order of all changes, of whatever key, and
//! the next one at no earlier moment.
//!
//! Moments are told by numbers. A deletion's number is told to nobody; it is above all that was known when it was asked for, and below that of what
//! was asked for after its answer.

use std::collections::BTreeMap;

use super::{Answer, Call, History, Operation, Seen, Step, Told};
use coordination::tree::Zxid;

/// What a session has seen or done.
struct View {
    /// Its present is at this change or after it.
    floor: Zxid,
    /// Who showed that.
    by: Step,
    /// Keys that it has seen absent, or deleted, at this or later: what it sees there next was made after it.
    gone: BTreeMap<String, Zxid>,
}

/// A deletion that may have been done.
struct Deletion<'a> {
    key: &'a str,
    asked: Step,
    /// Of its number, both exclusive; if it was not answered, all may be below.
    above: Zxid,
    below: Zxid,
}

pub(super) fn check(history: &History, told: &Told<'_>) -> Result<(), String> {
    let deletions: Vec<Deletion<'_>> =
        history.operations().iter().filter_map(|operation| Deletion::of(operation, history, told)).collect();
    let mut views: BTreeMap<usize, View> = BTreeMap::new();
    for operation in history.operations() {
        let new = || View { floor: Zxid(i64::MIN), by: operation.asked, gone: BTreeMap::new() };
        let view = views.entry(operation.session).or_insert_with(new);
        if let Err((what, other)) = view.take(operation, told, &deletions) {
            let why = [Some(view.by), other];
            let shows = |other: &&Operation| {
                other.asked == operation.asked
                    || why.contains(&Some(other.asked))
                    || (other.key == operation.key && other.session == operation.session)
            };
            let shown = history.shown(history.operations().iter().filter(shows));
            return Err(format!(
                "a session's view went back: {what}, in\n{}\nwhile it had seen {} and later\n\
                 (what it asked of {}, and what shows that:)\n{shown}",
                history.line(operation),
                view.floor.0,
                operation.key,
            ));
        }
    }
    Ok(())
}

impl<'a> Deletion<'a> {
    fn of(operation: &'a Operation, history: &History, told: &Told<'_>) -> Option<Self> {
        if !matches!((operation.call, operation.answer), (Call::Delete(_), Some((_, Answer::Deleted)) | None)) {
            return None;
        }
        let is_later = |step: Step| operation.answered().is_some_and(|answered| answered < step);
        let later =
            told.by_value.iter().filter(|(value, _)| history.get(**value).is_some_and(|write| is_later(write.asked)));
        let below = later.map(|(_, seen)| seen.modified).min().unwrap_or(Zxid(i64::MAX));
        Some(Deletion { key: &operation.key, asked: operation.asked, above: told.before(operation.asked), below })
    }
}

impl View {
    /// With an error, what is wrong, and which other call shows it.
    fn take(
        &mut self,
        operation: &Operation,
        told: &Told<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let Some((_, answer)) = operation.answer else { return Ok(()) };
        if operation.call != Call::Read {
            // Its moment is after all that was known when it was asked for.
            self.raise(told.before(operation.asked), operation.asked);
        }
        match answer {
            Answer::Node(seen) => self.see(operation, &seen, told, deletions),
            Answer::NoNode if operation.call == Call::Read => self.miss(operation, told, deletions),
            Answer::NoNode | Answer::Deleted => {
                self.gone.insert(operation.key.clone(), self.floor);
                Ok(())
            }
            Answer::NodeExists | Answer::BadVersion => Ok(()),
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
        seen: &Seen,
        told: &Told<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let key = operation.key.as_str();
        // It was overwritten by what the session is past.
        let mut later = told.changes.range(seen.modified..).skip(1).take_while(|(zxid, _)| **zxid <= self.floor);
        if later.any(|(_, (of, _))| *of == key) {
            return Err(("what it reads was overwritten before", None));
        }
        if self.gone.get(key).is_some_and(|gone| seen.created <= *gone) {
            return Err(("what it reads was gone before", None));
        }
        let ended = |deletion: &&Deletion<'_>| {
            deletion.key == key && deletion.below <= self.floor && seen.created <= deletion.above
        };
        if let Some(deletion) = deletions.iter().find(ended) {
            return Err(("what it reads was deleted before", Some(deletion.asked)));
        }
        self.raise(seen.modified, operation.asked);
        Ok(())
    }

    /// There was no such node at a moment from its present on.
    fn miss(
        &mut self,
        operation: &Operation,
        told: &Told<'_>,
        deletions: &[Deletion<'_>],
    ) -> Result<(), (&'static str, Option<Step>)> {
        let key = operation.key.as_str();
        let of_key = || told.changes.iter().filter(|(_, (of, _))| *of == key).map(|(_, (_, seen))| seen);
        let made = of_key().map(|seen| seen.created).filter(|created| *created <= self.floor).max();
        let Some(made) = made else {
            self.gone.insert(key.to_owned(), self.floor);
            return Ok(());
        };
        let modified = of_key().filter(|seen| seen.created == made).map(|seen| seen.modified).max().unwrap_or(made);
        let may_end = |deletion: &Deletion<'_>| {
            deletion.key == key && deletion.below > modified && Some(deletion.asked) < operation.answered()
        };
        if !deletions.iter().any(may_end) {
            return Err(("a node is missing that nobody deleted", None));
        }
        self.raise(modified, operation.asked);
        self.gone.insert(key.to_owned(), self.floor);
        Ok(())
    }
}
