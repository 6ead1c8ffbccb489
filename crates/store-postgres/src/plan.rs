//! Decisions about a batch of owners' writes, or about a batch of inserts in which some schedules may exist already.
//! The plan decides about these writes or inserts (items) one after another. Its decisions depend only on the rows that
//! the transaction has read.
//!
//! Each decision takes the changes of the earlier items into account. [`Plan::changes`] contains the changes of all
//! items. It contains each changed row once, in its final state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::limits::ATTEMPTS_KEPT;
use domain::occurrence::Run;
use domain::{
    Author, DueKey, Hour, Incarnation, Occurrence, PastTiming, PollerId, Precondition, Revision, RunOrigin, RunSample,
    RunState, Schedule, ScheduleId, ScheduleVersion, ShardId, Status, TenantId, Term, Timestamp, TimingEnd, When,
};
use store::{Change, Insert, Inserted, OwnerWrite, Placed, Positions, WriteRejection, Written};

use crate::rows::Head;
use crate::run_counts::OwnCounts;

/// Rows that the transaction must read for a batch.
#[derive(Default, Debug)]
pub(crate) struct Needs {
    pub(crate) shards: BTreeSet<ShardId>,
    pub(crate) names: BTreeSet<(TenantId, ScheduleId)>,
    /// Schedules to read. Some of them exist only if the batch repeats an earlier batch.
    pub(crate) incarnations: BTreeSet<Incarnation>,
    /// Incarnations that inserts and puts request. [`Needs::incarnations`] also contains them.
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) occurrences: BTreeSet<Occurrence>,
    /// Tenants and hours of the final runs of the batch.
    pub(crate) hours: BTreeSet<(TenantId, Hour)>,
    /// True if the plan needs the timings of the schedules, because the batch may end revisions.
    pub(crate) timings: bool,
}

impl Needs {
    pub(crate) fn of_writes(writes: &[OwnerWrite]) -> Self {
        let mut needs = Needs::default();
        for OwnerWrite { poller, change, .. } in writes {
            needs.shards.insert(poller.shard());
            match change {
                Change::Put(insert) | Change::PutIf { insert, .. } => needs.of_insert(insert),
                Change::CancelIf(edition, _) => {
                    needs.timings = true;
                    needs.incarnations.insert(edition.incarnation);
                }
                Change::Cancel(incarnation) => {
                    needs.timings = true;
                    needs.incarnations.insert(*incarnation);
                }
                Change::Advance { incarnation, .. } | Change::End { incarnation, .. } => {
                    needs.incarnations.insert(*incarnation);
                }
                Change::Run { run, .. } => {
                    needs.of_occurrence(run.occurrence);
                    if run.state.is_final() {
                        needs.hours.insert((run.tenant, Hour::of(run.occurrence.nominal)));
                    }
                }
                Change::Redrive { of, .. } => needs.of_occurrence(*of),
                Change::Reencrypt(schedule) => {
                    needs.incarnations.insert(schedule.incarnation);
                }
                Change::Defer(_) | Change::Positions(_) | Change::Reopen(_) => {}
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
        self.timings = true;
        self.names.insert((*tenant, id.clone()));
        self.incarnations.insert(*incarnation);
        self.asked.insert(*incarnation);
        // A chosen id may be the server-made id of another schedule, so the plan needs that schedule too.
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
    /// True for a failed run that no caller has redriven.
    pub(crate) is_dead: bool,
}

/// Rows that the transaction has read. The plan changes these rows when it decides about an item, so they contain the
/// changes of all earlier items.
#[derive(Default, Debug)]
pub(crate) struct Plan {
    pub(crate) terms: BTreeMap<ShardId, Term>,
    pub(crate) heads: BTreeMap<Incarnation, Head>,
    /// Map from each chosen id to the incarnation of the schedule with this id.
    pub(crate) names: BTreeMap<(TenantId, ScheduleId), Incarnation>,
    /// Incarnations that puts requested but did not use, because a schedule with the same id existed already.
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) runs: BTreeMap<Occurrence, KnownRun>,
    /// Counts of the server process for the hours in [`Needs::hours`].
    pub(crate) counts: OwnCounts,
    /// Timing of each schedule in [`Plan::heads`] whose spec is readable, and the `updated_at` of the schedule. The map
    /// is empty if the batch ends no revision.
    pub(crate) timings: BTreeMap<Incarnation, (When, Timestamp)>,
    pub(crate) changes: Changes,
}

/// New positions of a poller.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moved {
    pub(crate) to: Positions,
    /// Number of changes [`Change::Reopen`] in the transaction. If the number is 0, the positions only increase.
    pub(crate) reopened: i64,
}

/// Rows that the transaction must write. [`Plan::heads`] contains the heads (the fields without the spec) of the
/// changed schedules.
#[derive(Default, Debug)]
pub(crate) struct Changes {
    pub(crate) schedules: BTreeMap<Incarnation, ScheduleChange>,
    /// Schedules whose ids other schedules have taken.
    pub(crate) freed: BTreeSet<Incarnation>,
    pub(crate) asked: BTreeSet<Incarnation>,
    pub(crate) due: Vec<(PollerId, DueKey)>,
    pub(crate) runs: BTreeMap<Occurrence, Run>,
    pub(crate) past_timings: Vec<(TenantId, PastTiming)>,
    pub(crate) redriven: BTreeSet<Occurrence>,
    pub(crate) positions: BTreeMap<PollerId, Moved>,
}

#[derive(Clone, Debug)]
pub(crate) enum ScheduleChange {
    New(Arc<Schedule>),
    Replaced(Arc<Schedule>),
    Head,
}

impl Plan {
    pub(crate) fn insert(&mut self, insert: &Insert) -> Inserted {
        let Insert { schedule, due, by: _ } = insert;
        if let Some(holder) = self.holder(schedule)
            && (self.is_used(schedule.incarnation) || holder.status != Status::Cancelled)
        {
            return Inserted::Exists(holder.incarnation);
        }
        self.create(schedule);
        self.changes.due.push((schedule.poller, *due));
        Inserted::Placed(Placed { position: due.position, settled: false })
    }

    /// # Panics
    /// Panics if the caller violates a precondition of the store port.
    pub(crate) fn write(&mut self, write: OwnerWrite) -> Result<Written, WriteRejection> {
        let OwnerWrite { term, poller, change } = write;
        if self.terms.get(&poller.shard()) != Some(&term) {
            return Err(WriteRejection::Superseded);
        }
        match change {
            Change::Put(insert) => return self.put(poller, insert),
            Change::PutIf { insert, seen } => return self.put_if(poller, insert, seen),
            Change::Cancel(incarnation) => self.cancel(poller, incarnation, None)?,
            Change::CancelIf(edition, author) => self.cancel_if(poller, edition, author)?,
            Change::Run { run, then, ends, origin } => self.write_outcome(poller, run, then, ends, origin.as_ref())?,
            Change::Advance { incarnation, revision, due } => self.advance(poller, incarnation, revision, due)?,
            Change::End { incarnation, revision } => {
                self.owned(poller, incarnation)?;
                self.end(incarnation, revision);
            }
            Change::Defer(key) => self.changes.due.push((poller, key)),
            Change::Redrive { of, due } => self.redrive(poller, of, due)?,
            Change::Reencrypt(schedule) => self.reencrypt(poller, schedule)?,
            Change::Positions(to) => {
                assert!(to.done <= to.closed, "`done` does not exceed `closed`: {to:?}");
                let Moved { to: positions, .. } = self.changes.positions.entry(poller).or_default();
                positions.closed = positions.closed.max(to.closed);
                positions.done = positions.done.max(to.done);
            }
            Change::Reopen(to) => {
                assert!(to.done <= to.closed, "`done` does not exceed `closed`: {to:?}");
                let moved = self.changes.positions.entry(poller).or_default();
                *moved = Moved { to, reopened: moved.reopened + 1 };
            }
        }
        Ok(Written::Done)
    }

    /// Returns the existing schedule that has the same id as `schedule`.
    fn holder(&self, schedule: &Schedule) -> Option<&Head> {
        let chosen = self.names.get(&(schedule.tenant, schedule.id.clone()));
        let server_made = || {
            let head = self.heads.get(&schedule.id.to_incarnation()?)?;
            (head.is_current && head.tenant == schedule.tenant && head.id == schedule.id).then_some(head)
        };
        chosen.and_then(|incarnation| self.heads.get(incarnation)).or_else(server_made)
    }

    /// Returns whether an earlier insert or put has requested this incarnation.
    fn is_used(&self, incarnation: Incarnation) -> bool {
        self.heads.contains_key(&incarnation) || self.asked.contains(&incarnation)
    }

    /// Adds a new schedule. If another schedule has the same id, the new schedule takes the id.
    fn create(&mut self, schedule: &Arc<Schedule>) {
        let incarnation = schedule.incarnation;
        assert!(
            !self.heads.contains_key(&incarnation),
            "the incarnation of a new schedule belongs to no other schedule: {incarnation:?}"
        );
        if let Some(before) = self.holder(schedule).map(|before| before.incarnation) {
            self.head(before).is_current = false;
            self.changes.freed.insert(before);
        }
        self.heads.insert(incarnation, Head::new(schedule));
        self.timings.insert(incarnation, (schedule.spec.when.clone(), schedule.updated_at));
        self.names.insert((schedule.tenant, schedule.id.clone()), incarnation);
        self.changes.schedules.insert(incarnation, ScheduleChange::New(schedule.clone()));
    }

    fn put(&mut self, poller: PollerId, insert: Insert) -> Result<Written, WriteRejection> {
        let Insert { schedule: requested, mut due, by } = insert;
        let existing = self.holder(&requested).cloned();
        let before = existing.as_ref().map(|existing| existing.status);
        let planned = match existing {
            Some(live) if live.status != Status::Cancelled => self.replace(&requested, &live, by),
            Some(_) if self.is_used(requested.incarnation) => return Err(WriteRejection::NotFound),
            Some(_) | None => {
                self.create(&requested);
                requested
            }
        };
        assert_eq!(planned.poller, poller, "only the owner of a schedule's poller creates or replaces the schedule");
        due.occurrence.incarnation = planned.incarnation;
        due.occurrence.revision = planned.revision;
        self.changes.due.push((planned.poller, due));
        Ok(Written::Put { schedule: planned, position: due.position, before })
    }

    fn put_if(
        &mut self,
        poller: PollerId,
        insert: Insert,
        seen: Option<Precondition>,
    ) -> Result<Written, WriteRejection> {
        match self.holder(&insert.schedule).map(Head::seen) == seen {
            true => self.put(poller, insert),
            false => Err(WriteRejection::Changed),
        }
    }

    fn replace(&mut self, requested: &Schedule, live: &Head, by: Option<String>) -> Arc<Schedule> {
        let mut planned = requested.clone();
        planned.incarnation = live.incarnation;
        planned.poller = live.poller;
        planned.revision = Revision(live.revision.0 + 1);
        planned.created_at = live.created_at;
        let planned = Arc::new(planned);
        if requested.incarnation != live.incarnation && self.asked.insert(requested.incarnation) {
            self.changes.asked.insert(requested.incarnation);
        }
        self.end_revision(live, Some(planned.updated_at), TimingEnd::Replaced, by);
        self.timings.insert(live.incarnation, (planned.spec.when.clone(), planned.updated_at));
        self.heads.insert(live.incarnation, Head::new(&planned));
        self.set_spec(live.incarnation, planned.clone());
        planned
    }

    /// Adds the past timing of the current revision of a schedule, which the batch ends. A damaged schedule has no
    /// timing, and leaves no past timing.
    fn end_revision(&mut self, head: &Head, until: Option<Timestamp>, end: TimingEnd, by: Option<String>) {
        let edition = ScheduleVersion { incarnation: head.incarnation, revision: head.revision };
        let Some((when, from)) = self.timings.get(&head.incarnation).cloned() else { return };
        self.changes.past_timings.push((head.tenant, PastTiming { edition, when, from, until, end, by }));
    }

    fn cancel(
        &mut self,
        poller: PollerId,
        incarnation: Incarnation,
        author: Option<Author>,
    ) -> Result<(), WriteRejection> {
        let head = self.owned(poller, incarnation)?.clone();
        if head.status == Status::Cancelled {
            return Err(WriteRejection::NotFound);
        }
        let until = author.as_ref().map(|author| author.at);
        self.end_revision(&head, until, TimingEnd::Cancelled, author.and_then(|author| author.key));
        self.finish(incarnation, Status::Cancelled).revision.0 += 1;
        Ok(())
    }

    fn cancel_if(
        &mut self,
        poller: PollerId,
        edition: ScheduleVersion,
        author: Option<Author>,
    ) -> Result<(), WriteRejection> {
        match self.heads.get(&edition.incarnation) {
            Some(head) if head.revision == edition.revision && head.status != Status::Cancelled => {
                self.cancel(poller, edition.incarnation, author)
            }
            Some(_) | None => Err(WriteRejection::Changed),
        }
    }

    fn write_outcome(
        &mut self,
        poller: PollerId,
        run: Run,
        then: Option<DueKey>,
        ends: bool,
        origin: Option<&RunOrigin>,
    ) -> Result<(), WriteRejection> {
        check_run(&run, then.as_ref());
        let occurrence = run.occurrence;
        let schedule = self.owned(poller, occurrence.incarnation)?;
        assert_eq!(schedule.tenant, run.tenant, "the tenant of a run equals the tenant of its schedule");
        assert!(
            occurrence.revision <= schedule.revision,
            "the revision of a run is at most the revision of its schedule"
        );
        if self.runs.get(&occurrence).is_some_and(|known| known.is_final) {
            return Err(WriteRejection::Resolved);
        }
        self.changes.due.extend(then.map(|due| (poller, due)));
        let known = KnownRun { is_final: run.state.is_final(), is_dead: run.state == RunState::Failed };
        self.runs.insert(occurrence, known);
        if let Some(sample) = RunSample::of(&run) {
            self.counts.record(run.tenant, Hour::of(occurrence.nominal), origin, &sample);
        }
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
    ) -> Result<(), WriteRejection> {
        let Occurrence { incarnation: of, revision: under, nominal, replay } = due.occurrence;
        assert_eq!(
            (of, under),
            (incarnation, revision),
            "the due row of an `Advance` has the incarnation and revision of the `Advance`"
        );
        assert_eq!((replay, due.attempt), (0, 1), "the due row of an `Advance` is for a first attempt");
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

    fn redrive(&mut self, poller: PollerId, of: Occurrence, due: DueKey) -> Result<(), WriteRejection> {
        let again = Occurrence { replay: of.replay + 1, ..of };
        assert_eq!(
            (due.occurrence, due.attempt),
            (again, 1),
            "the due row of a `Redrive` is for the first attempt of the next replay"
        );
        let dead = self.runs.get(&of).filter(|run| run.is_dead).copied().ok_or(WriteRejection::NotFound)?;
        self.owned(poller, of.incarnation)?;
        self.runs.insert(of, KnownRun { is_dead: false, ..dead });
        self.changes.redriven.insert(of);
        self.changes.due.push((poller, due));
        Ok(())
    }

    fn reencrypt(&mut self, poller: PollerId, schedule: Arc<Schedule>) -> Result<(), WriteRejection> {
        let incarnation = schedule.incarnation;
        if self.owned(poller, incarnation)?.revision == schedule.revision {
            self.set_spec(incarnation, schedule);
        }
        Ok(())
    }

    /// Records that the transaction must write the spec of `schedule`.
    fn set_spec(&mut self, incarnation: Incarnation, schedule: Arc<Schedule>) {
        let change = self.changes.schedules.entry(incarnation).or_insert(ScheduleChange::Head);
        *change = match change {
            ScheduleChange::New(_) => ScheduleChange::New(schedule),
            ScheduleChange::Replaced(_) | ScheduleChange::Head => ScheduleChange::Replaced(schedule),
        };
    }

    fn end(&mut self, incarnation: Incarnation, revision: Revision) {
        if self.heads.get(&incarnation).is_some_and(|head| head.is_live_at(revision)) {
            self.finish(incarnation, Status::Ended);
        }
    }

    fn finish(&mut self, incarnation: Incarnation, status: Status) -> &mut Head {
        let head = self.change(incarnation);
        head.status = status;
        head.next = None;
        head
    }

    /// Returns the schedule, and asserts that it belongs to `poller`.
    fn owned(&self, poller: PollerId, incarnation: Incarnation) -> Result<&Head, WriteRejection> {
        let head = self.heads.get(&incarnation).ok_or(WriteRejection::NotFound)?;
        assert_eq!(head.poller, poller, "only the owner of a schedule's poller changes the schedule");
        Ok(head)
    }

    fn change(&mut self, incarnation: Incarnation) -> &mut Head {
        self.changes.schedules.entry(incarnation).or_insert(ScheduleChange::Head);
        self.head(incarnation)
    }

    fn head(&mut self, incarnation: Incarnation) -> &mut Head {
        self.heads.get_mut(&incarnation).expect("the plan contains the schedule that the caller has just looked up")
    }
}

/// Asserts the preconditions of [`Change::Run`].
fn check_run(run: &Run, then: Option<&DueKey>) {
    let retrying = run.state == RunState::Retrying;
    assert_eq!(then.is_some(), retrying, "a run has a retry row if and only if it is retrying: {run:?}");
    assert!(
        then.is_none_or(|due| due.occurrence == run.occurrence),
        "a retry row belongs to the same occurrence as its run"
    );
    assert!(run.attempts.len() <= ATTEMPTS_KEPT, "the record of a run contains at most `ATTEMPTS_KEPT` attempts");
    assert!(
        run.attempts.is_sorted_by_key(|attempt| attempt.number),
        "the attempts of a run are in the order of their numbers"
    );
}
