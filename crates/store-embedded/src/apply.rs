//! The state machine: one journal entry in, changed rows and an answer out.
//!
//! Deterministic: what an entry does depends on the rows as they were before it, and on nothing else, so that a replay
//! does what the first run did. Where the port lets several writes be seen half-done, they are written in the order
//! that it names, and readers look at the newest.
//!
//! A caller that breaks a rule of the port is refused here, not stopped by a panic: the entry is in the journal, and
//! would stop the next start, too.

mod change;
mod forget;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{DueKey, Incarnation, PollerId, Schedule, ScheduleId, Status, TenantId, Term, Timestamp};
use store::{Arrival, Inserted, Mark, Marked, Outdated, Placed, Positions, StoreError, WriteRefusal, Written};
use stored::schedule::{self, Head};
use stored::{Malformed, Put, Take};

use crate::codec::changed::Changed;
use crate::codec::entry::{HandOverItem, InsertItem, Kind, Reader, TenantItem};
use crate::codec::listed::Bucket;
use crate::codec::{key, tenant};
use crate::index::{Family, Index, IndexError, Sequence};
use crate::memory::Memory;
use crate::read::{Rows, damaged};

/// What an entry answers to the one who appended it.
#[derive(Debug)]
pub(crate) enum Answer {
    Inserted(Vec<Inserted>),
    Placed(Vec<Placed>),
    Marked(Vec<Marked>),
    Done,
    Terms(Vec<Term>),
    Written(Vec<Result<Written, WriteRefusal>>),
    HandedOver(Vec<Result<(), WriteRefusal>>),
    Changed(Vec<Result<(), Outdated>>),
    /// What of it went.
    Forgotten(Vec<bool>),
}

/// Schedules that one entry removes, by the listing that has them.
pub(crate) type Gone = BTreeMap<Bucket, BTreeSet<Incarnation>>;

pub(crate) struct Machine {
    pub(crate) rows: Rows,
    memory: Arc<Mutex<Memory>>,
    /// Every term minted here is above this.
    term_floor: Term,
}

impl Machine {
    pub(crate) fn new(rows: Rows, memory: Arc<Mutex<Memory>>, term_floor: Term) -> Self {
        Machine { rows, memory, term_floor }
    }

    /// # Errors
    /// [`StoreError::Damaged`] if a row that it needs is damaged, or the entry is not one; some of its items may have
    /// taken effect.
    pub(crate) fn apply(&self, entry_index: u64, entry: &[u8]) -> Result<Answer, StoreError> {
        let malformed = |error: Malformed| StoreError::Damaged(format!("journal entry {entry_index}: {error}"));
        let mut reader = Reader::new(entry).map_err(malformed)?;
        let count = reader.count as usize;
        let sequences = (0..reader.count).map(|item| Sequence::new(entry_index, item));
        let answer = match reader.kind {
            Kind::Insert => {
                let mut inserted = Vec::with_capacity(count);
                for at in sequences {
                    inserted.push(self.insert(at, &reader.insert().map_err(malformed)?)?);
                }
                Answer::Inserted(inserted)
            }
            Kind::Place => {
                let mut placed = Vec::with_capacity(count);
                for at in sequences {
                    let (poller, due) = reader.place().map_err(malformed)?;
                    placed.push(self.place(at, poller, due));
                }
                Answer::Placed(placed)
            }
            Kind::Mark => {
                let mut marked = Vec::with_capacity(count);
                for at in sequences {
                    marked.push(self.mark(at, &reader.mark().map_err(malformed)?)?);
                }
                Answer::Marked(marked)
            }
            Kind::PutTenant => {
                for at in sequences {
                    let (tenant, value) = reader.tenant().map_err(malformed)?;
                    self.index().put(Family::Points, &key::tenant(tenant.id), value, at);
                    self.memory().tenants.insert(tenant.id, tenant);
                }
                Answer::Done
            }
            Kind::ChangeTenant => {
                let mut changed = Vec::with_capacity(count);
                for at in sequences {
                    changed.push(self.change_tenant(at, &reader.change_tenant().map_err(malformed)?));
                }
                Answer::Changed(changed)
            }
            Kind::Forget => {
                let (mut forgotten, mut gone) = (Vec::with_capacity(count), Gone::new());
                for at in sequences {
                    forgotten.push(self.forget(at, &reader.forget().map_err(malformed)?, &mut gone)?);
                }
                self.unlist(Sequence::end_of(entry_index), &gone)?;
                Answer::Forgotten(forgotten)
            }
            Kind::Take => {
                let mut terms = Vec::with_capacity(count);
                for at in sequences {
                    terms.push(self.take(at, reader.take().map_err(malformed)?));
                }
                Answer::Terms(terms)
            }
            Kind::Write => {
                let mut written = Vec::with_capacity(count);
                for at in sequences {
                    written.push(self.write(at, &reader.write().map_err(malformed)?)?);
                }
                Answer::Written(written)
            }
            Kind::HandOver => {
                let mut answers = Vec::with_capacity(count);
                for at in sequences {
                    answers.push(self.hand_over(at, reader.hand_over().map_err(malformed)?));
                }
                Answer::HandedOver(answers)
            }
        };
        reader.end().map_err(malformed)?;
        if self.rows.fresh.is_full() {
            self.write_fresh(entry_index);
        }
        Ok(answer)
    }

    /// To be called before everything up to `last_entry` is made durable in the index.
    pub(crate) fn write_memory(&self, last_entry: u64) {
        self.memory().active.write(self.index(), last_entry);
        self.write_fresh(last_entry);
    }

    pub(crate) fn index(&self) -> &dyn Index {
        &*self.rows.index
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }

    fn insert(&self, at: Sequence, insert: &InsertItem<'_>) -> Result<Inserted, StoreError> {
        let head = &insert.head;
        if let Some(known) = self.in_the_way(at, head, insert.id)? {
            return Ok(Inserted::Exists(known));
        }
        let mut due = insert.due;
        due.position = self.settle(head.poller, due.position);
        self.write_new(at, insert)?;
        self.write_due(at, head.poller, &due);
        self.memory().arrivals.append(Arrival { poller: head.poller, key: due });
        Ok(Inserted::Placed(Placed { position: due.position, settled: true }))
    }

    /// The incarnation because of which a schedule cannot be inserted.
    fn in_the_way(&self, at: Sequence, head: &Head, id: &str) -> Result<Option<Incarnation>, StoreError> {
        let again = self.rows.is_number_used(head.incarnation, at)?;
        if !again && is_server_made(id, head.incarnation) {
            // Nothing else can have the id of an incarnation that there was not yet.
            return Ok(None);
        }
        let Some(known) = self.rows.find(head.tenant, id, at)? else { return Ok(None) };
        let taken = again || known.changed.state.status != Status::Cancelled;
        Ok(taken.then_some(known.incarnation))
    }

    /// The first row of a schedule, its id, and what it is listed by.
    fn write_new(&self, at: Sequence, insert: &InsertItem<'_>) -> Result<(), StoreError> {
        let Head { incarnation, tenant, state, .. } = insert.head;
        let labels = schedule::labels(insert.row).map_err(|error| self.rows.malformed(incarnation, error))?;
        self.index().put(Family::Rows, &key::row(incarnation), insert.row, at);
        if !is_server_made(insert.id, incarnation) {
            self.write_name(at, tenant, insert.id, incarnation);
        }
        self.memory().active.change(tenant, None, state.status);
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

    /// Nobody reads a row where its poller is done, so none is written there.
    fn write_due(&self, at: Sequence, poller: PollerId, due: &DueKey) {
        if due.position > self.memory().positions(poller).done {
            self.index().put(Family::Due, &key::due(poller, due), &[], at);
        }
    }

    fn retire(&self, poller: PollerId, done: Timestamp) {
        self.index().retire(key::poller(poller), &key::due_after(poller, done));
    }

    /// `position`, or the first instant that `poller` has not closed.
    fn settle(&self, poller: PollerId, position: Timestamp) -> Timestamp {
        position.max(self.memory().positions(poller).closed + Duration::from_millis(1))
    }

    fn place(&self, at: Sequence, poller: PollerId, mut due: DueKey) -> Placed {
        due.position = self.settle(poller, due.position);
        self.write_due(at, poller, &due);
        self.memory().arrivals.append(Arrival { poller, key: due });
        Placed { position: due.position, settled: true }
    }

    fn mark(&self, at: Sequence, mark: &Mark) -> Result<Marked, StoreError> {
        let Some(known) = self.rows.find(mark.tenant, mark.id.as_str(), at)? else {
            return Ok(Marked { before: None, applied: true });
        };
        let before: Schedule = self.rows.decode(&known)?;
        if before.status != Status::Cancelled {
            self.cancel(at, mark.tenant, known.incarnation, known.changed);
        }
        Ok(Marked { before: Some(Arc::new(before)), applied: true })
    }

    fn cancel(&self, at: Sequence, tenant: TenantId, incarnation: Incarnation, mut changed: Changed) {
        self.memory().active.change(tenant, Some(changed.state.status), Status::Cancelled);
        changed.state.status = Status::Cancelled;
        changed.state.revision.0 = changed.state.revision.0.saturating_add(1);
        changed.state.next = None;
        self.write_changed(at, incarnation, &changed);
    }

    fn take(&self, at: Sequence, shard: domain::ShardId) -> Term {
        let mut memory = self.memory();
        let term = memory.terms.get(&shard).copied().unwrap_or(Term(0)).max(self.term_floor);
        let term = Term(term.0 + 1);
        memory.terms.insert(shard, term);
        memory.arrivals.take(shard);
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

    fn hand_over(&self, at: Sequence, list: HandOverItem<'_>) -> Result<(), WriteRefusal> {
        let mut memory = self.memory();
        if memory.terms.get(&list.shard) != Some(&list.term) {
            return Err(WriteRefusal::Superseded);
        }
        memory.handed_over.insert(list.shard, list.attempts);
        drop(memory);
        self.index().put(Family::Points, &key::handed_over(list.shard), list.value, at);
        Ok(())
    }
}

/// Whether a schedule's id is the one that its server made from its incarnation: such an id needs no row.
pub(crate) fn is_server_made(id: &str, incarnation: Incarnation) -> bool {
    ScheduleId::new(id).ok().and_then(|id| id.to_incarnation()) == Some(incarnation)
}

/// Reads what is kept in memory whole, as it was before `before`, and tells the index what its due rows are worth.
pub(crate) fn load(rows: &Rows, before: Sequence, memory: &mut Memory) -> Result<(), StoreError> {
    let index = &*rows.index;
    let mut first_error = None;
    for kind in [key::POSITIONS, key::TERM, key::TENANT, key::HANDED_OVER, key::ACTIVE] {
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
    memory.active.complete(rows, before)?;
    for (poller, positions) in &memory.positions {
        index.retire(key::poller(*poller), &key::due_after(*poller, positions.done));
    }
    Ok(())
}

fn load_row(kind: u8, key: &[u8], value: &[u8], memory: &mut Memory) -> Result<(), Malformed> {
    let mut take = Take::new("a small row", value);
    match kind {
        key::POSITIONS => {
            take.version(1)?;
            let positions = Positions { closed: take.timestamp()?, done: take.timestamp()? };
            memory.positions.insert(key::parse_positions(key)?, positions);
        }
        key::TERM => {
            take.version(1)?;
            memory.terms.insert(key::parse_shard(kind, key)?, Term(take.u64()?));
        }
        key::HANDED_OVER => {
            memory.handed_over.insert(key::parse_shard(kind, key)?, stored::hand_over::decode(value)?);
        }
        key::ACTIVE => memory.active.take_row(key, value)?,
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
        range: "the rows kept in memory".to_owned(),
        reason: error.to_string(),
    })
}
