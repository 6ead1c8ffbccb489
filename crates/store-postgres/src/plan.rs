//! What an owner's batch, or creations that meet what is there, make of the rows that were read: pure, item by item.
//!
//! Each item sees what the items before it have changed. What comes of all of them is in [`Plan::changes`], each row once,
//! as it is in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::limits::ATTEMPTS_KEPT;
use domain::occurrence::Run;
use domain::{
    DueKey, Edition, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, ScheduleId, Seen, ShardId,
    Status, TenantId, Term,
};
use store::{Change, Insert, Inserted, OwnerWrite, Placed, Positions, WriteRefusal, Written};

use crate::rows::Head;

/// What has to be read for a batch.
#[derive(Default, Debug)]
pub(crate) struct Needs {
    pub(crate) shards: BTreeSet<ShardId>,
    pub(crate) names: BTreeSet<(TenantId, ScheduleId)>,
    /// Schedules, those included that are there only if a batch is tried again.
    pub(crate) incarnations: BTreeSet<Incarnation>,
    /// Those of [`Needs::incarnations`] that inserts and puts came with.
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) occurrences: BTreeSet<Occurrence>,
}

impl Needs {
    pub(crate) fn of_writes(writes: &[OwnerWrite]) -> Self {
        let mut needs = Needs::default();
        for OwnerWrite { poller, change, .. } in writes {
            needs.shards.insert(poller.shard());
            match change {
                Change::Put(insert) | Change::PutIf { insert, .. } => needs.of_insert(insert),
                Change::CancelIf(edition) => {
                    needs.incarnations.insert(edition.incarnation);
                }
                Change::Cancel(incarnation) | Change::Advance { incarnation, .. } | Change::End { incarnation, .. } => {
                    needs.incarnations.insert(*incarnation);
                }
                Change::Run { run, .. } => needs.of_occurrence(run.occurrence),
                Change::Redrive { of, .. } => needs.of_occurrence(*of),
                Change::Defer(_) | Change::Positions(_) => {}
            }
        }
        needs
    }

    pub(crate) fn of_inserts(inserts: &[Insert]) -> Self {
        let mut needs = Needs::default();
        inserts.iter().for_each(|insert| needs.of_insert(insert));
        needs
    }

    fn of_insert(&mut self, insert: &Insert) {
        let Schedule { tenant, id, incarnation, .. } = &*insert.schedule;
        self.names.insert((*tenant, id.clone()));
        self.incarnations.insert(*incarnation);
        self.asked.insert(*incarnation);
        // Whoever has an id by having been made with it.
        self.incarnations.extend(id.to_incarnation());
    }

    fn of_occurrence(&mut self, occurrence: Occurrence) {
        self.incarnations.insert(occurrence.incarnation);
        self.occurrences.insert(occurrence);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownRun {
    pub(crate) is_final: bool,
    /// Failed, and not redriven.
    pub(crate) is_dead: bool,
}

/// The rows as they were read, and then as the items change them.
#[derive(Default, Debug)]
pub(crate) struct Plan {
    pub(crate) terms: BTreeMap<ShardId, Term>,
    pub(crate) heads: BTreeMap<Incarnation, Head>,
    /// Who has each chosen id.
    pub(crate) names: BTreeMap<(TenantId, ScheduleId), Incarnation>,
    /// Incarnations that puts had no need of.
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) runs: BTreeMap<Occurrence, KnownRun>,
    pub(crate) changes: Changes,
}

/// What is to be written. A schedule's head is as [`Plan::heads`] has it.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    pub(crate) schedules: BTreeMap<Incarnation, ScheduleChange>,
    /// Schedules whose ids another has taken.
    pub(crate) freed: BTreeSet<Incarnation>,
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) due: Vec<(PollerId, DueKey)>,
    pub(crate) runs: BTreeMap<Occurrence, Run>,
    pub(crate) redriven: BTreeSet<Occurrence>,
    pub(crate) positions: BTreeMap<PollerId, Positions>,
    /// How many more, or fewer, of each tenant's schedules are active.
    pub(crate) active: BTreeMap<TenantId, i64>,
}

impl Changes {
    fn status(&mut self, tenant: TenantId, before: Option<Status>, after: Status) {
        let (before, after) = (before == Some(Status::Active), after == Status::Active);
        if before != after {
            *self.active.entry(tenant).or_default() += if after { 1 } else { -1 };
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum ScheduleChange {
    New(Arc<Schedule>),
    Replaced(Arc<Schedule>),
    Head,
}

impl Plan {
    pub(crate) fn insert(&mut self, insert: &Insert) -> Inserted {
        let Insert { schedule, due } = insert;
        if let Some(holder) = self.holder(schedule)
            && (self.is_used(schedule.incarnation) || holder.status != Status::Cancelled)
        {
            return Inserted::Exists(holder.incarnation);
        }
        self.make(schedule);
        self.changes.due.push((schedule.poller, *due));
        Inserted::Placed(Placed { position: due.position, settled: false })
    }

    /// # Panics
    /// If the caller breaks a rule of the port.
    pub(crate) fn write(&mut self, write: OwnerWrite) -> Result<Written, WriteRefusal> {
        let OwnerWrite { term, poller, change } = write;
        if self.terms.get(&poller.shard()) != Some(&term) {
            return Err(WriteRefusal::Superseded);
        }
        match change {
            Change::Put(insert) => return self.put(poller, insert),
            Change::PutIf { insert, seen } => return self.put_if(poller, insert, seen),
            Change::Cancel(incarnation) => self.cancel(poller, incarnation)?,
            Change::CancelIf(edition) => self.cancel_if(poller, edition)?,
            Change::Run { run, then, ends } => self.book(poller, run, then, ends)?,
            Change::Advance { incarnation, revision, due } => self.advance(poller, incarnation, revision, due)?,
            Change::End { incarnation, revision } => {
                self.owned(poller, incarnation)?;
                self.end(incarnation, revision);
            }
            Change::Defer(key) => self.changes.due.push((poller, key)),
            Change::Redrive { of, due } => self.redrive(poller, of, due)?,
            Change::Positions(to) => {
                assert!(to.done <= to.closed, "a poller is done only with what it closed: {to:?}");
                let positions = self.changes.positions.entry(poller).or_default();
                positions.closed = positions.closed.max(to.closed);
                positions.done = positions.done.max(to.done);
            }
        }
        Ok(Written::Done)
    }

    /// The schedule that has this one's id.
    fn holder(&self, schedule: &Schedule) -> Option<&Head> {
        let chosen = self.names.get(&(schedule.tenant, schedule.id.clone()));
        let made = || {
            let head = self.heads.get(&schedule.id.to_incarnation()?)?;
            (head.is_current && head.tenant == schedule.tenant && head.id == schedule.id).then_some(head)
        };
        chosen.and_then(|incarnation| self.heads.get(incarnation)).or_else(made)
    }

    /// Whether an insert or put came with this incarnation before.
    fn is_used(&self, incarnation: Incarnation) -> bool {
        self.heads.contains_key(&incarnation) || self.asked.contains(&incarnation)
    }

    /// Gives `schedule` its id.
    fn make(&mut self, schedule: &Arc<Schedule>) {
        let incarnation = schedule.incarnation;
        assert!(!self.heads.contains_key(&incarnation), "an incarnation is of one schedule: {incarnation:?}");
        if let Some(before) = self.holder(schedule).map(|before| before.incarnation) {
            self.head(before).is_current = false;
            self.changes.freed.insert(before);
        }
        self.heads.insert(incarnation, Head::new(schedule));
        self.names.insert((schedule.tenant, schedule.id.clone()), incarnation);
        self.changes.schedules.insert(incarnation, ScheduleChange::New(schedule.clone()));
        self.changes.status(schedule.tenant, None, schedule.status);
    }

    fn put(&mut self, poller: PollerId, insert: Insert) -> Result<Written, WriteRefusal> {
        let Insert { schedule: asked, mut due } = insert;
        let seen = self.holder(&asked).cloned();
        let before = seen.as_ref().map(|seen| seen.status);
        let planned = match seen {
            Some(live) if live.status != Status::Cancelled => self.replace(&asked, &live),
            Some(_) if self.is_used(asked.incarnation) => return Err(WriteRefusal::NotFound),
            Some(_) | None => {
                self.make(&asked);
                asked
            }
        };
        assert_eq!(planned.poller, poller, "the owner of a schedule's poller puts it");
        due.occurrence.incarnation = planned.incarnation;
        due.occurrence.revision = planned.revision;
        self.changes.due.push((planned.poller, due));
        Ok(Written::Put { schedule: planned, position: due.position, before })
    }

    fn put_if(&mut self, poller: PollerId, insert: Insert, seen: Option<Seen>) -> Result<Written, WriteRefusal> {
        match self.holder(&insert.schedule).map(Head::seen) == seen {
            true => self.put(poller, insert),
            false => Err(WriteRefusal::Changed),
        }
    }

    fn replace(&mut self, asked: &Schedule, live: &Head) -> Arc<Schedule> {
        let mut planned = asked.clone();
        planned.incarnation = live.incarnation;
        planned.poller = live.poller;
        planned.revision = Revision(live.revision.0 + 1);
        planned.created_at = live.created_at;
        let planned = Arc::new(planned);
        if asked.incarnation != live.incarnation && self.asked.insert(asked.incarnation) {
            self.changes.asked.insert(asked.incarnation);
        }
        self.heads.insert(live.incarnation, Head::new(&planned));
        self.changes.status(live.tenant, Some(live.status), planned.status);
        let change = self.changes.schedules.entry(live.incarnation).or_insert(ScheduleChange::Head);
        *change = match change {
            ScheduleChange::New(_) => ScheduleChange::New(planned.clone()),
            ScheduleChange::Replaced(_) | ScheduleChange::Head => ScheduleChange::Replaced(planned.clone()),
        };
        planned
    }

    fn cancel(&mut self, poller: PollerId, incarnation: Incarnation) -> Result<(), WriteRefusal> {
        if self.owned(poller, incarnation)?.status == Status::Cancelled {
            return Err(WriteRefusal::NotFound);
        }
        self.become_over(incarnation, Status::Cancelled).revision.0 += 1;
        Ok(())
    }

    fn cancel_if(&mut self, poller: PollerId, edition: Edition) -> Result<(), WriteRefusal> {
        match self.heads.get(&edition.incarnation) {
            Some(head) if head.revision == edition.revision && head.status != Status::Cancelled => {
                self.cancel(poller, edition.incarnation)
            }
            Some(_) | None => Err(WriteRefusal::Changed),
        }
    }

    fn book(&mut self, poller: PollerId, run: Run, then: Option<DueKey>, ends: bool) -> Result<(), WriteRefusal> {
        check_run(&run, then.as_ref());
        let occurrence = run.occurrence;
        let schedule = self.owned(poller, occurrence.incarnation)?;
        assert_eq!(schedule.tenant, run.tenant, "a run is its schedule's tenant's");
        assert!(occurrence.revision <= schedule.revision, "a run is of a revision that there was");
        if self.runs.get(&occurrence).is_some_and(|known| known.is_final) {
            return Err(WriteRefusal::Resolved);
        }
        self.changes.due.extend(then.map(|due| (poller, due)));
        let known = KnownRun { is_final: run.state.is_final(), is_dead: run.state == RunState::Failed };
        self.runs.insert(occurrence, known);
        self.changes.runs.insert(occurrence, run);
        if ends {
            self.end(occurrence.incarnation, occurrence.revision);
        }
        Ok(())
    }

    fn advance(
        &mut self,
        poller: PollerId,
        incarnation: Incarnation,
        revision: Revision,
        due: DueKey,
    ) -> Result<(), WriteRefusal> {
        let Occurrence { incarnation: of, revision: under, nominal, replay } = due.occurrence;
        assert_eq!((of, under), (incarnation, revision), "a schedule goes on with a row of its own");
        assert_eq!((replay, due.attempt), (0, 1), "a schedule goes on with a first attempt");
        let schedule = self.owned(poller, incarnation)?;
        let is_behind = schedule.next.is_some_and(|next| nominal < next);
        if schedule.is_live_at(revision) && !is_behind {
            if schedule.next != Some(nominal) {
                self.change(incarnation).next = Some(nominal);
            }
            self.changes.due.push((poller, due));
        }
        Ok(())
    }

    fn redrive(&mut self, poller: PollerId, of: Occurrence, due: DueKey) -> Result<(), WriteRefusal> {
        let again = Occurrence { replay: of.replay + 1, ..of };
        assert_eq!((due.occurrence, due.attempt), (again, 1), "a redrive is the next replay's first attempt");
        let dead = self.runs.get(&of).filter(|run| run.is_dead).copied().ok_or(WriteRefusal::NotFound)?;
        self.owned(poller, of.incarnation)?;
        self.runs.insert(of, KnownRun { is_dead: false, ..dead });
        self.changes.redriven.insert(of);
        self.changes.due.push((poller, due));
        Ok(())
    }

    fn end(&mut self, incarnation: Incarnation, revision: Revision) {
        if self.heads.get(&incarnation).is_some_and(|head| head.is_live_at(revision)) {
            self.become_over(incarnation, Status::Ended);
        }
    }

    fn become_over(&mut self, incarnation: Incarnation, status: Status) -> &mut Head {
        let head = self.head(incarnation);
        let (tenant, before) = (head.tenant, head.status);
        self.changes.status(tenant, Some(before), status);
        let head = self.change(incarnation);
        head.status = status;
        head.next = None;
        head
    }

    /// The schedule, which belongs to the writer's poller.
    fn owned(&self, poller: PollerId, incarnation: Incarnation) -> Result<&Head, WriteRefusal> {
        let head = self.heads.get(&incarnation).ok_or(WriteRefusal::NotFound)?;
        assert_eq!(head.poller, poller, "the owner of a schedule's poller changes it");
        Ok(head)
    }

    fn change(&mut self, incarnation: Incarnation) -> &mut Head {
        self.changes.schedules.entry(incarnation).or_insert(ScheduleChange::Head);
        self.head(incarnation)
    }

    fn head(&mut self, incarnation: Incarnation) -> &mut Head {
        self.heads.get_mut(&incarnation).expect("the caller has just read it")
    }
}

/// What a caller owes [`Change::Run`].
fn check_run(run: &Run, then: Option<&DueKey>) {
    let retrying = run.state == RunState::Retrying;
    assert_eq!(then.is_some(), retrying, "a run that is to be retried, and no other, has a further row: {run:?}");
    assert!(then.is_none_or(|due| due.occurrence == run.occurrence), "a retry is of the same occurrence");
    assert!(run.attempts.len() <= ATTEMPTS_KEPT, "a run's record is bounded");
    assert!(run.attempts.is_sorted_by_key(|attempt| attempt.number), "attempts are kept in order");
}
