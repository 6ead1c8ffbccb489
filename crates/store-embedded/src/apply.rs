//! State machine of the embedded store. It applies one journal entry at a time, changes rows and returns a response.
//!
//! The state machine is deterministic: the effect of an entry depends only on the rows before the entry. A replay
//! therefore repeats the effects of the first application. The port allows a reader to observe some writes of one call
//! separately. The state machine makes these writes in the order that the port specifies, and readers read the newest
//! version of each row.
//!
//! If a caller breaks a rule of the port, the state machine rejects the entry and does not panic. The entry is already
//! in the journal, so every later start of the store would replay the entry and panic again.

mod change;
mod count;
mod forget;
mod list_runs;
mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{Author, DueKey, Incarnation, PollerId, Schedule, ScheduleId, Status, TenantId, Term, Timestamp};
use store::{
    Cancellation, CancellationResult, InsertLogEntry, Inserted, Outdated, Placed, StoreError, WriteRejection, Written,
};
use stored::schedule::{self, Head};
use stored::{Malformed, Put, Take, run};

pub(crate) use self::list_runs::IndexStep;
use crate::codec::changed::Changed;
use crate::codec::entry::{HandOverItem, InsertItem, Kind, Reader, TenantItem};
use crate::codec::listed::Bucket;
use crate::codec::positions::PollerState;
use crate::codec::{key, tenant};
use crate::index::{Family, Index, IndexError, Sequence};
use crate::memory::Memory;
use crate::read::{Rows, damaged};

/// Response to the caller that appended an entry.
#[derive(Debug)]
pub(crate) enum Response {
    Inserted(Vec<Inserted>),
    Placed(Vec<Placed>),
    CancellationResult(Vec<CancellationResult>),
    Done,
    Terms(Vec<Term>),
    Written(Vec<Result<Written, WriteRejection>>),
    HandedOver(Vec<Result<(), WriteRejection>>),
    Changed(Vec<Result<(), Outdated>>),
    /// One value for each item of the entry: true if the item deleted rows.
    Forgotten(Vec<bool>),
    /// One value for each item of the entry: true if the item wrote a due row.
    Rebuilt(Vec<bool>),
    IndexedRuns(IndexStep),
}

/// Approximate number of bytes that a row that lists a run adds to the index.
pub(crate) const LISTED_RUN_BYTES: u64 = 64;

impl Response {
    /// Returns the approximate number of bytes that the entry wrote to the index, in addition to its own bytes. An entry
    /// that indexes runs is small, but writes many rows.
    pub(crate) fn extra_bytes(&self) -> u64 {
        match self {
            Response::IndexedRuns(IndexStep::Incomplete { runs } | IndexStep::Complete { runs }) => {
                *runs as u64 * LISTED_RUN_BYTES
            }
            _ => 0,
        }
    }
}

/// Schedules that one entry deletes, grouped by the bucket of the listing that contains them.
pub(crate) type Deleted = BTreeMap<Bucket, BTreeSet<Incarnation>>;

pub(crate) struct Machine {
    pub(crate) rows: Rows,
    memory: Arc<Mutex<Memory>>,
    /// Exclusive lower bound of every term that this state machine assigns.
    term_floor: Term,
}

impl Machine {
    pub(crate) fn new(rows: Rows, memory: Arc<Mutex<Memory>>, term_floor: Term) -> Self {
        Machine { rows, memory, term_floor }
    }

    /// Applies one journal entry.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] if a required row is damaged or the entry is malformed. Some items of the entry
    /// may have taken effect.
    pub(crate) fn apply(&self, entry_index: u64, entry: &[u8]) -> Result<Response, StoreError> {
        let malformed = |error: Malformed| StoreError::Damaged(format!("journal entry {entry_index}: {error}"));
        let mut reader = Reader::new(entry).map_err(malformed)?;
        let count = reader.count as usize;
        let sequences = (0..reader.count).map(|item| Sequence::new(entry_index, item));
        let response = match reader.kind {
            Kind::Insert => {
                let mut inserted = Vec::with_capacity(count);
                for at in sequences {
                    inserted.push(self.insert(at, &reader.insert().map_err(malformed)?)?);
                }
                Response::Inserted(inserted)
            }
            Kind::Place => {
                let mut placed = Vec::with_capacity(count);
                for at in sequences {
                    let (poller, due) = reader.place().map_err(malformed)?;
                    placed.push(self.place(at, poller, due));
                }
                Response::Placed(placed)
            }
            Kind::Rebuild => {
                let mut rebuilt = Vec::with_capacity(count);
                for at in sequences {
                    let (poller, due) = reader.place().map_err(malformed)?;
                    rebuilt.push(self.rebuild(at, poller, due)?);
                }
                Response::Rebuilt(rebuilt)
            }
            Kind::IndexRuns => {
                let mut step = IndexStep::Incomplete { runs: 0 };
                for at in sequences {
                    step = self.index_runs(at, reader.index_runs().map_err(malformed)?)?;
                }
                Response::IndexedRuns(step)
            }
            Kind::Cancellation | Kind::AuthoredCancellation => {
                let mut marked = Vec::with_capacity(count);
                for at in sequences {
                    marked.push(self.apply_cancellation(at, &reader.cancellation().map_err(malformed)?)?);
                }
                Response::CancellationResult(marked)
            }
            Kind::PutTenant => {
                for at in sequences {
                    let (tenant, value) = reader.tenant().map_err(malformed)?;
                    self.index().put(Family::Points, &key::tenant(tenant.id), value, at);
                    self.memory().tenants.insert(tenant.id, tenant);
                }
                Response::Done
            }
            Kind::ChangeTenant => {
                let mut changed = Vec::with_capacity(count);
                for at in sequences {
                    changed.push(self.change_tenant(at, &reader.change_tenant().map_err(malformed)?));
                }
                Response::Changed(changed)
            }
            Kind::Forget => {
                let (mut deletions, mut deleted) = (Vec::with_capacity(count), Deleted::new());
                for at in sequences {
                    deletions.push(self.forget(at, &reader.forget().map_err(malformed)?, &mut deleted)?);
                }
                self.unlist(Sequence::end_of(entry_index), &deleted)?;
                Response::Forgotten(deletions)
            }
            Kind::Take => {
                let mut terms = Vec::with_capacity(count);
                for at in sequences {
                    terms.push(self.take(at, reader.take().map_err(malformed)?));
                }
                Response::Terms(terms)
            }
            Kind::Write => {
                let mut written = Vec::with_capacity(count);
                for at in sequences {
                    written.push(self.write(at, &reader.write().map_err(malformed)?)?);
                }
                Response::Written(written)
            }
            Kind::HandOver => {
                let mut responses = Vec::with_capacity(count);
                for at in sequences {
                    responses.push(self.hand_over(at, reader.hand_over().map_err(malformed)?));
                }
                Response::HandedOver(responses)
            }
        };
        reader.end().map_err(malformed)?;
        if self.rows.fresh.is_full() {
            self.write_fresh(entry_index);
        }
        Ok(response)
    }

    /// Writes the state in memory to the index. The caller must call this method before it flushes the index up to
    /// `last_entry`.
    pub(crate) fn write_memory(&self, last_entry: u64) {
        self.write_counted(Sequence::end_of(last_entry));
        self.memory().usages.write(self.index(), last_entry);
        self.write_fresh(last_entry);
    }

    fn write_counted(&self, at: Sequence) {
        self.memory().counted.write(self.index(), at);
    }

    pub(crate) fn index(&self) -> &dyn Index {
        &*self.rows.index
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }

    fn insert(&self, at: Sequence, insert: &InsertItem<'_>) -> Result<Inserted, StoreError> {
        let head = &insert.head;
        if let Some(known) = self.conflicting(at, head, insert.id)? {
            return Ok(Inserted::Exists(known));
        }
        let mut due = insert.due;
        due.position = self.open_position(head.poller, due.position);
        self.write_new(at, insert)?;
        self.write_due(at, head.poller, &due);
        self.memory().insert_log.append(InsertLogEntry { poller: head.poller, key: due });
        Ok(Inserted::Placed(Placed { position: due.position, settled: true }))
    }

    /// Returns the incarnation that has the schedule's id and therefore prevents the insert.
    fn conflicting(&self, at: Sequence, head: &Head, id: &str) -> Result<Option<Incarnation>, StoreError> {
        let is_repeated = self.rows.is_number_used(head.incarnation, at)?;
        if !is_repeated && is_server_made(id, head.incarnation) {
            // The server derived this id from a new incarnation, so no other schedule can have the same id.
            return Ok(None);
        }
        let Some(known) = self.rows.find(head.tenant, id, at)? else { return Ok(None) };
        let is_taken = is_repeated || known.changed.state.status != Status::Cancelled;
        Ok(is_taken.then_some(known.incarnation))
    }

    /// Writes the first row of a schedule, and the rows for its id and its listings.
    fn write_new(&self, at: Sequence, insert: &InsertItem<'_>) -> Result<(), StoreError> {
        let Head { incarnation, tenant, state, .. } = insert.head;
        let labels = schedule::labels(insert.row).map_err(|error| self.rows.malformed(incarnation, error))?;
        self.index().put(Family::Rows, &key::row(incarnation), insert.row, at);
        if !is_server_made(insert.id, incarnation) {
            self.write_name(at, tenant, insert.id, incarnation);
        }
        let mut memory = self.memory();
        memory.usages.count(tenant, None, Some(state.status));
        memory.usages.resize(tenant, None, Some(insert.row.len()));
        drop(memory);
        self.rows.fresh.add(tenant, incarnation);
        self.write_labels(at, tenant, incarnation, &labels, &[]);
        Ok(())
    }

    fn write_name(&self, at: Sequence, tenant: TenantId, id: &str, incarnation: Incarnation) {
        let mut value = vec![1];
        value.u128(incarnation.0);
        self.index().put(Family::Points, &key::id(tenant, id), &value, at);
    }

    fn write_changed(&self, at: Sequence, incarnation: Incarnation, changed: &Changed) {
        self.index().put(Family::Points, &key::state(incarnation), &changed.encode(), at);
        self.rows.states.change(incarnation, *changed);
    }

    /// Writes a due row, unless the row is at or before its poller's `done`. No owner would read such a row.
    fn write_due(&self, at: Sequence, poller: PollerId, due: &DueKey) {
        if due.position > self.memory().positions(poller).done {
            self.index().put(Family::Due, &key::due(poller, due), &[], at);
        }
    }

    fn retire(&self, poller: PollerId, done: Timestamp) {
        self.index().retire(key::poller(poller), &key::due_after(poller, done));
    }

    /// Returns the later of `position` and the first instant after the closed timestamp of `poller`.
    fn open_position(&self, poller: PollerId, position: Timestamp) -> Timestamp {
        position.max(self.memory().positions(poller).closed + Duration::from_millis(1))
    }

    fn place(&self, at: Sequence, poller: PollerId, mut due: DueKey) -> Placed {
        due.position = self.open_position(poller, due.position);
        self.write_due(at, poller, &due);
        self.memory().insert_log.append(InsertLogEntry { poller, key: due });
        Placed { position: due.position, settled: true }
    }

    /// Writes a due row that was damaged, unless its attempt has an outcome by now. Returns true if it wrote the row.
    fn rebuild(&self, at: Sequence, poller: PollerId, due: DueKey) -> Result<bool, StoreError> {
        if let Some(value) = self.rows.run_value(&key::run(&due.occurrence), at)? {
            let run = run::decode(&value).map_err(|error| self.rows.malformed_run(&due.occurrence, error))?;
            if run.state.is_final() || run.attempts.last().is_some_and(|attempt| attempt.number >= due.attempt) {
                return Ok(false);
            }
        }
        self.place(at, poller, due);
        Ok(true)
    }

    fn apply_cancellation(&self, at: Sequence, mark: &Cancellation) -> Result<CancellationResult, StoreError> {
        let Some(known) = self.rows.find(mark.tenant, mark.id.as_str(), at)? else {
            return Ok(CancellationResult { before: None, applied: true });
        };
        let before: Schedule = self.rows.decode(&known)?;
        if before.status != Status::Cancelled {
            self.cancel(at, mark.tenant, known.incarnation, known.changed, mark.author.clone())?;
        }
        Ok(CancellationResult { before: Some(Arc::new(before)), applied: true })
    }

    fn cancel(
        &self,
        at: Sequence,
        tenant: TenantId,
        incarnation: Incarnation,
        mut changed: Changed,
        author: Option<Author>,
    ) -> Result<(), StoreError> {
        self.write_cancelled_timing(at, tenant, incarnation, &changed, author)?;
        self.memory().usages.count(tenant, Some(changed.state.status), Some(Status::Cancelled));
        changed.state.status = Status::Cancelled;
        changed.state.revision.0 = changed.state.revision.0.saturating_add(1);
        changed.state.next = None;
        self.write_changed(at, incarnation, &changed);
        Ok(())
    }

    fn take(&self, at: Sequence, shard: domain::ShardId) -> Term {
        let mut memory = self.memory();
        let term = memory.terms.get(&shard).copied().unwrap_or(Term(0)).max(self.term_floor);
        let term = Term(term.0 + 1);
        memory.terms.insert(shard, term);
        memory.insert_log.take(shard);
        drop(memory);
        let mut value = vec![1];
        value.u64(term.0);
        self.index().put(Family::Points, &key::term(shard), &value, at);
        term
    }

    fn change_tenant(&self, at: Sequence, change: &TenantItem<'_>) -> Result<(), Outdated> {
        let TenantItem { tenant, value, entry } = change;
        let mut memory = self.memory();
        if memory.tenants.get(&tenant.id).is_some_and(|known| known.version + 1 != tenant.version) {
            return Err(Outdated);
        }
        memory.tenants.insert(tenant.id, tenant.clone());
        drop(memory);
        self.index().put(Family::Points, &key::tenant(tenant.id), value, at);
        self.index().put(Family::Points, &key::audit(tenant.id, tenant.version), entry, at);
        Ok(())
    }

    fn hand_over(&self, at: Sequence, list: HandOverItem<'_>) -> Result<(), WriteRejection> {
        let mut memory = self.memory();
        if memory.terms.get(&list.shard) != Some(&list.term) {
            return Err(WriteRejection::Superseded);
        }
        memory.handed_over.insert(list.shard, list.attempts);
        drop(memory);
        self.index().put(Family::Points, &key::handed_over(list.shard), list.value, at);
        Ok(())
    }
}

/// Returns whether the server derived the schedule's id from its incarnation. Such an id needs no row that maps it to
/// the incarnation.
pub(crate) fn is_server_made(id: &str, incarnation: Incarnation) -> bool {
    ScheduleId::new(id).ok().and_then(|id| id.to_incarnation()) == Some(incarnation)
}

/// Fills `memory` with the state that the store keeps in memory. Reads this state from the rows that have a sequence
/// before `before`. Also passes to the index the bounds below which the index may drop due rows.
pub(crate) fn load(rows: &Rows, before: Sequence, memory: &mut Memory) -> Result<(), StoreError> {
    let index = &*rows.index;
    let mut first_error = None;
    for kind in [key::POSITIONS, key::TERM, key::TENANT, key::HANDED_OVER, key::USAGE] {
        let scan = index.scan(Family::Points, &[kind], &[kind + 1], before, &mut |key, value| match load_row(
            kind, key, value, memory,
        ) {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => {
                first_error = Some(error);
                std::ops::ControlFlow::Break(())
            }
        });
        scan.map_err(damaged)?;
    }
    if let Some(error) = first_error {
        return Err(malformed(error));
    }
    memory.usages.complete(rows, before)?;
    for (poller, state) in &memory.pollers {
        index.retire(key::poller(*poller), &key::due_after(*poller, state.positions.done));
    }
    Ok(())
}

fn load_row(kind: u8, key: &[u8], value: &[u8], memory: &mut Memory) -> Result<(), Malformed> {
    let mut take = Take::new("a small row", value);
    match kind {
        key::POSITIONS => {
            memory.pollers.insert(key::parse_positions(key)?, PollerState::decode(value)?);
        }
        key::TERM => {
            take.version(1)?;
            memory.terms.insert(key::parse_shard(kind, key)?, Term(take.u64()?));
        }
        key::HANDED_OVER => {
            memory.handed_over.insert(key::parse_shard(kind, key)?, stored::hand_over::decode(value)?);
        }
        key::USAGE => memory.usages.take_row(key, value)?,
        _ => {
            let tenant = tenant::take_row(key, value)?;
            memory.tenants.insert(tenant.id, tenant);
        }
    }
    Ok(())
}

fn malformed(error: Malformed) -> StoreError {
    damaged(IndexError::Damaged {
        family: Family::Points.name(),
        range: "rows that the store loads into memory".to_owned(),
        reason: error.to_string(),
    })
}
