//! Application of the changes that the owner of a shard writes.

use domain::{
    DueKey, Hour, Incarnation, Occurrence, PollerId, Revision, RunOrigin, RunSample, RunState, Status, Timestamp,
};
use std::sync::Arc;
use store::{Positions, StoreError, WriteRejection, Written};
use stored::run;
use stored::schedule::{self, Head};

use super::Machine;
use crate::codec::changed::Changed;
use crate::codec::entry::{ChangeItem, InsertItem, RunItem, WriteItem};
use crate::codec::key;
use crate::codec::positions::PollerState;
use crate::index::{Family, Sequence};
use crate::read::Known;

type WriteResult = Result<Result<Written, WriteRejection>, StoreError>;

const DONE: WriteResult = Ok(Ok(Written::Done));

fn rejected(refusal: WriteRejection) -> WriteResult {
    Ok(Err(refusal))
}

impl Machine {
    pub(super) fn write(&self, at: Sequence, write: &WriteItem<'_>) -> WriteResult {
        let poller = write.poller;
        if self.memory().terms.get(&poller.shard()) != Some(&write.term) {
            return rejected(WriteRejection::Superseded);
        }
        match &write.change {
            ChangeItem::Put(insert) => self.put(at, poller, insert, |_| true),
            ChangeItem::PutIf { insert, seen } => self.put(at, poller, insert, |known| known.map(Known::seen) == *seen),
            ChangeItem::CancelIf(edition, author) => match self.rows.changed(edition.incarnation, at)? {
                Some(changed)
                    if changed.state.revision == edition.revision && changed.state.status != Status::Cancelled =>
                {
                    self.cancel(at, poller.tenant, edition.incarnation, changed, author.clone())?;
                    DONE
                }
                Some(_) | None => rejected(WriteRejection::Changed),
            },
            ChangeItem::Cancel(incarnation) => match self.rows.changed(*incarnation, at)? {
                Some(changed) if changed.state.status != Status::Cancelled => {
                    self.cancel(at, poller.tenant, *incarnation, changed, None)?;
                    DONE
                }
                Some(_) | None => rejected(WriteRejection::NotFound),
            },
            ChangeItem::Run { run, then, ends, origin } => {
                self.write_outcome(at, poller, run, then.as_ref(), *ends, origin.as_ref())
            }
            ChangeItem::Advance { incarnation, revision, due } => {
                self.advance(at, poller, *incarnation, *revision, due)
            }
            ChangeItem::End { incarnation, revision } => match self.rows.changed(*incarnation, at)? {
                Some(changed) => {
                    self.end(at, poller, *incarnation, changed, *revision);
                    DONE
                }
                None => rejected(WriteRejection::NotFound),
            },
            ChangeItem::Defer(due) => {
                self.write_due(at, poller, due);
                DONE
            }
            ChangeItem::Redrive { of, due } => self.redrive(at, poller, of, due),
            ChangeItem::Reencrypt { head, row } => self.reencrypt(at, head, row),
            ChangeItem::Positions(to) => {
                self.raise_positions(at, poller, *to);
                DONE
            }
            ChangeItem::Reopen(to) => {
                self.reopen(at, poller, *to);
                DONE
            }
        }
    }

    /// Applies a put. The function `may` receives the schedule that has the put's id, if any. It returns whether the
    /// put may replace this schedule or take the id from it.
    fn put(
        &self,
        at: Sequence,
        poller: PollerId,
        insert: &InsertItem<'_>,
        may: impl Fn(Option<&Known>) -> bool,
    ) -> WriteResult {
        let requested = insert.head;
        let known = self.rows.find(requested.tenant, insert.id, at)?;
        if !may(known.as_ref()) {
            return rejected(WriteRejection::Changed);
        }
        let mut due = insert.due;
        due.position = self.open_position(poller, due.position);
        let (before, row) = match known {
            Some(known) if known.changed.state.status != Status::Cancelled => {
                let before = known.changed.state.status;
                (Some(before), self.replace(at, &known, insert)?)
            }
            Some(_) if self.rows.is_number_used(requested.incarnation, at)? => {
                return rejected(WriteRejection::NotFound);
            }
            cancelled => {
                self.write_new(at, insert)?;
                (cancelled.map(|_| Status::Cancelled), insert.row.to_vec())
            }
        };
        let schedule = Arc::new(self.rows.decode_row(row.into())?);
        due.occurrence.incarnation = schedule.incarnation;
        due.occurrence.revision = schedule.revision;
        self.write_due(at, poller, &due);
        Ok(Ok(Written::Put { schedule, position: due.position, before }))
    }

    /// Writes the next revision of a schedule in a new row. The key of the row is the incarnation that the put
    /// contains. The schedule keeps its own incarnation. A new incarnation is higher than older incarnations, so a new
    /// row is at the end of its family of rows.
    fn replace(&self, at: Sequence, known: &Known, insert: &InsertItem<'_>) -> Result<Vec<u8>, StoreError> {
        let before = schedule::head(&known.row).map_err(|error| self.rows.malformed(known.changed.row, error))?;
        let mut state = insert.head.state;
        state.revision = Revision(known.changed.state.revision.0.saturating_add(1));
        let head = Head {
            tenant: before.tenant,
            incarnation: known.incarnation,
            poller: before.poller,
            created_at: before.created_at,
            state,
        };
        let row = schedule::patch(insert.row, &head);
        let number = insert.head.incarnation;
        // This method reads the labels before it writes, so a damaged row leads to an error without any change.
        let labels = |row: &[u8]| schedule::labels(row).map_err(|error| self.rows.malformed(number, error));
        let (labels, labels_before) = (labels(&row)?, labels(&known.row)?);
        let overwritten = self.rows.row(number, at)?.map(|row| row.len());
        self.write_replaced_timing(at, before.tenant, known, state.updated_at, insert.by)?;
        self.index().put(Family::Rows, &key::row(number), &row, at);
        self.write_changed(at, known.incarnation, &Changed { state, row: number });
        // The index keeps the first row of a schedule, because the state machine recognises a repeated create by this
        // row.
        let mut memory = self.memory();
        if known.changed.row != known.incarnation && known.changed.row != number {
            self.index().remove(Family::Rows, &key::row(known.changed.row), at);
            memory.usages.resize(before.tenant, Some(known.row.len()), None);
        }
        memory.usages.resize(before.tenant, overwritten, Some(row.len()));
        memory.usages.count(before.tenant, Some(known.changed.state.status), Some(state.status));
        drop(memory);
        self.write_labels(at, head.tenant, known.incarnation, &labels, &labels_before);
        Ok(row)
    }

    fn write_outcome(
        &self,
        at: Sequence,
        poller: PollerId,
        run: &RunItem<'_>,
        then: Option<&DueKey>,
        ends: bool,
        origin: Option<&RunOrigin>,
    ) -> WriteResult {
        let of = &run.occurrence;
        let Some(changed) = self.rows.changed(of.incarnation, at)? else {
            return rejected(WriteRejection::NotFound);
        };
        let run_key = key::run(of);
        let (outline, duration) =
            run::outline_with_duration(run.value).map_err(|error| self.rows.malformed_run(of, error))?;
        let before = self.rows.run_state(&run_key, at)?;
        if before.is_some_and(|(state, _)| state.is_final()) {
            return rejected(WriteRejection::Resolved);
        }
        if let Some(sample) = RunSample::new(&outline, duration) {
            self.count_run(at, run.tenant, Hour::of(of.nominal), origin, &sample)?;
        }
        if let Some(due) = then {
            self.write_due(at, poller, due);
        }
        self.index().put(Family::Points, &run_key, run.value, at);
        self.list_run(at, run.tenant, of, &outline, before.is_some());
        self.memory().usages.resize(run.tenant, before.map(|(_, len)| len), Some(run.value.len()));
        if run.state == RunState::Failed {
            self.index().put(Family::Points, &key::dead_letter(run.tenant, of), &[], at);
        }
        if ends {
            self.end(at, poller, of.incarnation, changed, of.revision);
        }
        DONE
    }

    fn end(&self, at: Sequence, poller: PollerId, incarnation: Incarnation, mut changed: Changed, revision: Revision) {
        if is_live_at(&changed, revision) {
            self.memory().usages.count(poller.tenant, Some(Status::Active), Some(Status::Ended));
            changed.state.status = Status::Ended;
            changed.state.next = None;
            self.write_changed(at, incarnation, &changed);
        }
    }

    fn advance(
        &self,
        at: Sequence,
        poller: PollerId,
        incarnation: Incarnation,
        revision: Revision,
        due: &DueKey,
    ) -> WriteResult {
        let Some(mut changed) = self.rows.changed(incarnation, at)? else {
            return rejected(WriteRejection::NotFound);
        };
        let is_behind = changed.state.next.is_some_and(|next| due.occurrence.nominal < next);
        if is_live_at(&changed, revision) && !is_behind {
            self.write_due(at, poller, due);
            changed.state.next = Some(due.occurrence.nominal);
            self.write_changed(at, incarnation, &changed);
        }
        DONE
    }

    fn redrive(&self, at: Sequence, poller: PollerId, of: &Occurrence, due: &DueKey) -> WriteResult {
        let Some(run) = self.rows.run_value(&key::run(of), at)? else { return rejected(WriteRejection::NotFound) };
        let (tenant, ..) = run::summary(&run).map_err(|error| self.rows.malformed_run(of, error))?;
        let dead_letter = key::dead_letter(tenant, of);
        if !self.rows.has_point(&dead_letter, at)? {
            return rejected(WriteRejection::NotFound);
        }
        self.write_due(at, poller, due);
        self.index().remove(Family::Points, &dead_letter, at);
        // The redriven run needs its schedule. This method writes the schedule's state again, because the history sweep
        // deletes no schedule with a recent write.
        if let Some(changed) = self.rows.changed(of.incarnation, at)? {
            self.write_changed(at, of.incarnation, &changed);
        }
        DONE
    }

    /// Replaces the row that contains the spec of a schedule. The new row has the key of the old row.
    fn reencrypt(&self, at: Sequence, head: &Head, row: &[u8]) -> WriteResult {
        let Some(known) = self.rows.known(head.incarnation, at)? else {
            return rejected(WriteRejection::NotFound);
        };
        if known.changed.state.revision != head.state.revision {
            return DONE;
        }
        let number = known.changed.row;
        let before = schedule::head(&known.row).map_err(|error| self.rows.malformed(number, error))?;
        let row = schedule::patch(row, &before);
        self.index().put(Family::Rows, &key::row(number), &row, at);
        self.memory().usages.resize(before.tenant, Some(known.row.len()), Some(row.len()));
        // A reader may have to read the row as of the sequence of the state (`Rows::known`), so this method writes the
        // state again, after the row.
        self.write_changed(at, head.incarnation, &known.changed);
        DONE
    }

    fn raise_positions(&self, at: Sequence, poller: PollerId, to: Positions) {
        let known = self.memory().poller(poller);
        let Positions { closed, done } = known.positions;
        let positions = Positions { closed: closed.max(to.closed), done: done.max(to.done) };
        if positions != known.positions {
            self.write_positions(at, poller, PollerState { positions, ..known });
        }
    }

    fn reopen(&self, at: Sequence, poller: PollerId, positions: Positions) {
        let known = self.memory().poller(poller);
        let reopened_from = known.reopened_from.max(known.positions.closed);
        let reopened = known.reopened.saturating_add(1);
        self.write_positions(at, poller, PollerState { positions, reopened, reopened_from });
    }

    fn write_positions(&self, at: Sequence, poller: PollerId, mut to: PollerState) {
        // `closed` stays below `Timestamp::MAX`. Otherwise the poller could not accept another row.
        to.positions.closed = to.positions.closed.min(Timestamp::from_millis(Timestamp::MAX.as_millis() - 1));
        to.positions.done = to.positions.done.min(to.positions.closed);
        let known = self.memory().pollers.insert(poller, to).unwrap_or_default();
        self.index().put(Family::Points, &key::positions(poller), &to.encode(), at);
        if to.positions.done != known.positions.done {
            self.retire(poller, to.positions.done);
        }
    }
}

fn is_live_at(changed: &Changed, revision: Revision) -> bool {
    changed.state.status == Status::Active && changed.state.revision == revision
}
