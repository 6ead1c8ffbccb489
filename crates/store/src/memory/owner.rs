//! Writes that a shard's owner makes to the in-memory engine, step by step. Each step checks the owner's term again.

use std::sync::Arc;

use domain::limits::ATTEMPTS_KEPT;
use domain::occurrence::Run;
use domain::{
    Author, DueKey, Incarnation, Occurrence, PollerId, Revision, RunOrigin, RunState, Schedule, ScheduleVersion,
    Status, Term,
};

use super::MemoryStore;
use super::call::Call;
use super::model::{Model, Writer};
use crate::{Change, Insert, OwnerWrite, StoreError, WriteRejection, Written};

/// Term and poller of the owner that makes a write.
#[derive(Clone, Copy)]
struct Owner {
    term: Term,
    poller: PollerId,
}

/// Reason why the engine does not complete an item of a write.
enum Stop {
    /// The whole call of the store fails.
    Call(StoreError),
    Item(WriteRejection),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Call(error)
    }
}

impl From<WriteRejection> for Stop {
    fn from(refusal: WriteRejection) -> Self {
        Stop::Item(refusal)
    }
}

impl MemoryStore {
    pub(super) async fn write_one(
        &self,
        call: &mut Call<'_>,
        write: OwnerWrite,
    ) -> Result<Result<Written, WriteRejection>, StoreError> {
        let OwnerWrite { term, poller, change } = write;
        let owner = Owner { term, poller };
        let written = match change {
            Change::Put(insert) => self.put(call, owner, insert, |_| true).await,
            Change::PutIf { insert, seen } => {
                self.put(call, owner, insert, |now| now.map(Schedule::seen) == seen).await
            }
            Change::Cancel(incarnation) => self.cancel(call, owner, incarnation).await,
            Change::CancelIf(edition, author) => self.cancel_if(call, owner, edition, author).await,
            Change::Run { run, then, ends, origin } => {
                self.write_outcome(call, owner, run, then, ends, origin.as_ref()).await
            }
            Change::Advance { incarnation, revision, due } => {
                self.advance(call, owner, incarnation, revision, due).await
            }
            Change::End { incarnation, revision } => self.end_schedule(call, owner, incarnation, revision).await,
            Change::Defer(key) => self.step(call, owner, |model| model.write_owned_due(poller, key)).await,
            Change::Redrive { of, due } => self.redrive(call, owner, of, due).await,
            Change::Reencrypt(schedule) => self.reencrypt(call, owner, &schedule).await,
            Change::Positions(to) => {
                assert!(to.done <= to.closed, "`done` does not exceed `closed`: {to:?}");
                self.step(call, owner, |model| model.write_positions(poller, to)).await
            }
            Change::Reopen(to) => {
                assert!(to.done <= to.closed, "`done` does not exceed `closed`: {to:?}");
                self.step(call, owner, |model| model.reopen(poller, to)).await
            }
        };
        match written {
            Ok(written) => Ok(Ok(written)),
            Err(Stop::Item(refusal)) => Ok(Err(refusal)),
            Err(Stop::Call(error)) => Err(error),
        }
    }

    /// Makes one step under the owner's term, and returns [`Written::Done`].
    async fn step(&self, call: &mut Call<'_>, owner: Owner, step: impl FnOnce(&mut Model)) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            step(model);
            Ok(Written::Done)
        })
        .await
    }

    async fn try_step<T>(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        step: impl FnOnce(&mut Model) -> Result<T, WriteRejection>,
    ) -> Result<T, Stop> {
        call.step().await?;
        let mut model = self.model();
        model.check_term(owner.poller.shard(), owner.term)?;
        Ok(step(&mut model)?)
    }

    /// Makes a put. `may` receives the schedule that has the requested id, if any, and returns whether the put is
    /// allowed.
    async fn put(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        insert: Insert,
        may: impl Fn(Option<&Schedule>) -> bool,
    ) -> Result<Written, Stop> {
        let Insert { schedule, due, by } = insert;
        Model::check_new(&schedule, &due);
        loop {
            // The due row contains the incarnation and revision that the schedule will have after the put.
            let (seen, planned, due) = self
                .try_step(call, owner, |model| {
                    model.check_incarnation(&schedule);
                    let seen = model.find(schedule.tenant, &schedule.id);
                    if !may(seen.as_deref()) {
                        return Err(WriteRejection::Changed);
                    }
                    let planned = plan_put(seen.as_deref(), &schedule, model.is_used(schedule.incarnation))?;
                    assert_eq!(
                        planned.poller, owner.poller,
                        "only the owner of a schedule's poller creates or replaces the schedule"
                    );
                    let mut due = due;
                    due.occurrence.incarnation = planned.incarnation;
                    due.occurrence.revision = planned.revision;
                    if self.options.atomic {
                        due.position = model.open_position(planned.poller, due.position);
                    }
                    model.write_owned_due(planned.poller, due);
                    Ok((seen, planned, due))
                })
                .await?;
            let written = self
                .try_step(call, owner, |model| {
                    // Another call may have changed the schedule, or taken its id, after the first step. The loop then
                    // tries the put again.
                    if model.find(schedule.tenant, &schedule.id) != seen {
                        return Ok(false);
                    }
                    model.write_schedule(schedule.incarnation, planned.clone(), by.clone());
                    Ok(true)
                })
                .await?;
            if written {
                let before = seen.map(|seen| seen.status);
                return Ok(Written::Put { schedule: planned, position: due.position, before });
            }
        }
    }

    async fn cancel(&self, call: &mut Call<'_>, owner: Owner, incarnation: Incarnation) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            model.check_owned(owner.poller, incarnation)?;
            let author = model.unapplied.remove(&incarnation).flatten();
            if model.cancel(incarnation, author) { Ok(Written::Done) } else { Err(WriteRejection::NotFound) }
        })
        .await
    }

    async fn cancel_if(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        edition: ScheduleVersion,
        author: Option<Author>,
    ) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            let schedule = model.schedule(edition.incarnation).filter(|schedule| schedule.edition() == edition);
            let schedule = schedule.ok_or(WriteRejection::Changed)?;
            assert_eq!(schedule.poller, owner.poller, "only the owner of a schedule's poller changes the schedule");
            if model.cancel(edition.incarnation, author) { Ok(Written::Done) } else { Err(WriteRejection::Changed) }
        })
        .await
    }

    async fn write_outcome(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        run: Run,
        then: Option<DueKey>,
        ends: bool,
        origin: Option<&RunOrigin>,
    ) -> Result<Written, Stop> {
        check_run(&run, then.as_ref());
        let Occurrence { incarnation, revision, .. } = run.occurrence;
        self.try_step(call, owner, |model| {
            model.check_open(owner.poller, &run)?;
            if let Some(due) = then {
                model.write_owned_due(owner.poller, due);
            }
            Ok(())
        })
        .await?;
        self.try_step(call, owner, |model| {
            model.check_open(owner.poller, &run)?;
            model.write_run(run, origin);
            Ok(())
        })
        .await?;
        if ends {
            self.step(call, owner, |model| model.end_schedule(incarnation, revision)).await?;
        }
        Ok(Written::Done)
    }

    async fn advance(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        incarnation: Incarnation,
        revision: Revision,
        due: DueKey,
    ) -> Result<Written, Stop> {
        let Occurrence { incarnation: of, revision: under, nominal, replay } = due.occurrence;
        assert_eq!(
            (of, under),
            (incarnation, revision),
            "the due row of an `Advance` has the incarnation and revision of the `Advance`"
        );
        assert_eq!((replay, due.attempt), (0, 1), "the due row of an `Advance` is for a first attempt");
        let advances = self
            .try_step(call, owner, |model| {
                let schedule = model.check_owned(owner.poller, incarnation)?;
                let is_behind = schedule.next.is_some_and(|next| nominal < next);
                let advances = schedule.is_live_at(revision) && !is_behind;
                if advances {
                    model.advance_schedule(incarnation, revision, nominal);
                }
                Ok(advances)
            })
            .await?;
        if advances {
            self.step(call, owner, |model| model.write_owned_due(owner.poller, due)).await?;
        }
        Ok(Written::Done)
    }

    async fn end_schedule(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        incarnation: Incarnation,
        revision: Revision,
    ) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            model.check_owned(owner.poller, incarnation)?;
            model.end_schedule(incarnation, revision);
            Ok(Written::Done)
        })
        .await
    }

    async fn reencrypt(&self, call: &mut Call<'_>, owner: Owner, schedule: &Schedule) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            let stored = model.check_owned(owner.poller, schedule.incarnation)?;
            if stored.revision == schedule.revision {
                model.change_schedule(stored.incarnation, |stored| stored.spec = schedule.spec.clone());
            }
            Ok(Written::Done)
        })
        .await
    }

    async fn redrive(&self, call: &mut Call<'_>, owner: Owner, of: Occurrence, due: DueKey) -> Result<Written, Stop> {
        let again = Occurrence { replay: of.replay + 1, ..of };
        assert_eq!(
            (due.occurrence, due.attempt),
            (again, 1),
            "the due row of a `Redrive` is for the first attempt of the next replay"
        );
        self.try_step(call, owner, |model| {
            model.check_dead(owner.poller, &of)?;
            model.write_owned_due(owner.poller, due);
            Ok(())
        })
        .await?;
        self.try_step(call, owner, |model| {
            model.check_dead(owner.poller, &of)?;
            model.write_redriven(of);
            Ok(Written::Done)
        })
        .await
    }
}

/// Returns the schedule that [`Change::Put`] writes for `requested`. `existing` is the schedule that has the id.
/// `is_used` is true if an earlier put or insert of the requested incarnation took effect.
fn plan_put(
    existing: Option<&Schedule>,
    requested: &Arc<Schedule>,
    is_used: bool,
) -> Result<Arc<Schedule>, WriteRejection> {
    match existing {
        Some(live) if live.status != Status::Cancelled => {
            let mut planned = Schedule::clone(requested);
            planned.incarnation = live.incarnation;
            planned.poller = live.poller;
            planned.revision = Revision(live.revision.0 + 1);
            planned.created_at = live.created_at;
            Ok(Arc::new(planned))
        }
        Some(_) if is_used => Err(WriteRejection::NotFound),
        Some(_) | None => Ok(requested.clone()),
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

trait LiveAt {
    fn is_live_at(&self, revision: Revision) -> bool;
}

impl LiveAt for Schedule {
    fn is_live_at(&self, revision: Revision) -> bool {
        self.status == Status::Active && self.revision == revision
    }
}

impl Model {
    fn write_owned_due(&mut self, poller: PollerId, key: DueKey) {
        assert!(
            key.position >= key.occurrence.nominal,
            "the position of a due row is at or after its nominal instant: {key:?}"
        );
        self.write_due(poller, key, Writer::Owner);
    }

    /// Returns the schedule of `incarnation`, and asserts that it belongs to `poller`.
    fn check_owned(&self, poller: PollerId, incarnation: Incarnation) -> Result<Arc<Schedule>, WriteRejection> {
        let schedule = self.schedule(incarnation).ok_or(WriteRejection::NotFound)?;
        assert_eq!(schedule.poller, poller, "only the owner of a schedule's poller changes the schedule");
        Ok(schedule)
    }

    /// Checks that the run's occurrence has no final outcome yet.
    fn check_open(&self, poller: PollerId, run: &Run) -> Result<(), WriteRejection> {
        let schedule = self.check_owned(poller, run.occurrence.incarnation)?;
        assert_eq!(schedule.tenant, run.tenant, "the tenant of a run equals the tenant of its schedule");
        assert!(
            run.occurrence.revision <= schedule.revision,
            "the revision of a run is at most the revision of its schedule"
        );
        match self.run(&run.occurrence) {
            Some(known) if known.state.is_final() => Err(WriteRejection::Resolved),
            Some(_) | None => Ok(()),
        }
    }

    fn check_dead(&self, poller: PollerId, of: &Occurrence) -> Result<(), WriteRejection> {
        let run = self.run(of).filter(|run| self.is_dead_letter(run)).ok_or(WriteRejection::NotFound)?;
        self.check_owned(poller, run.occurrence.incarnation)?;
        Ok(())
    }

    fn advance_schedule(&mut self, incarnation: Incarnation, revision: Revision, next: domain::Timestamp) {
        if self.schedule(incarnation).is_some_and(|schedule| schedule.is_live_at(revision)) {
            self.change_schedule(incarnation, |schedule| schedule.next = Some(next));
        }
    }

    fn end_schedule(&mut self, incarnation: Incarnation, revision: Revision) {
        if self.schedule(incarnation).is_some_and(|schedule| schedule.is_live_at(revision)) {
            self.change_schedule(incarnation, |schedule| {
                schedule.status = Status::Ended;
                schedule.next = None;
            });
        }
    }
}
