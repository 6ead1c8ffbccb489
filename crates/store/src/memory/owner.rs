//! What the owner of a shard writes, step by step; each step looks at the term again.

use std::sync::Arc;

use domain::limits::ATTEMPTS_KEPT;
use domain::occurrence::Run;
use domain::{DueKey, Edition, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, Status, Term};

use super::MemoryStore;
use super::call::Call;
use super::model::{Model, Writer};
use crate::{Change, Insert, OwnerWrite, StoreError, WriteRefusal, Written};

/// Who writes.
#[derive(Clone, Copy)]
struct Owner {
    term: Term,
    poller: PollerId,
}

/// Why an item goes no further.
enum Stop {
    /// With the whole call.
    Call(StoreError),
    Item(WriteRefusal),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Call(error)
    }
}

impl From<WriteRefusal> for Stop {
    fn from(refusal: WriteRefusal) -> Self {
        Stop::Item(refusal)
    }
}

impl MemoryStore {
    pub(super) async fn write_one(
        &self,
        call: &mut Call<'_>,
        write: OwnerWrite,
    ) -> Result<Result<Written, WriteRefusal>, StoreError> {
        let OwnerWrite { term, poller, change } = write;
        let owner = Owner { term, poller };
        let written = match change {
            Change::Put(insert) => self.put(call, owner, insert, |_| true).await,
            Change::PutIf { insert, seen } => {
                self.put(call, owner, insert, |now| now.map(Schedule::seen) == seen).await
            }
            Change::Cancel(incarnation) => self.cancel(call, owner, incarnation).await,
            Change::CancelIf(edition) => self.cancel_if(call, owner, edition).await,
            Change::Run { run, then, ends } => self.book(call, owner, run, then, ends).await,
            Change::Advance { incarnation, revision, due } => {
                self.advance(call, owner, incarnation, revision, due).await
            }
            Change::End { incarnation, revision } => self.end_schedule(call, owner, incarnation, revision).await,
            Change::Defer(key) => self.step(call, owner, |model| model.write_owned_due(poller, key)).await,
            Change::Redrive { of, due } => self.redrive(call, owner, of, due).await,
            Change::Positions(to) => {
                assert!(to.done <= to.closed, "a poller is done only with what it closed: {to:?}");
                self.step(call, owner, |model| model.write_positions(poller, to)).await
            }
        };
        match written {
            Ok(written) => Ok(Ok(written)),
            Err(Stop::Item(refusal)) => Ok(Err(refusal)),
            Err(Stop::Call(error)) => Err(error),
        }
    }

    /// One step under the term, which answers [`Written::Done`].
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
        step: impl FnOnce(&mut Model) -> Result<T, WriteRefusal>,
    ) -> Result<T, Stop> {
        call.step().await?;
        let mut model = self.model();
        model.check_term(owner.poller.shard(), owner.term)?;
        Ok(step(&mut model)?)
    }

    /// `may`: whether what has the id may be replaced, or given away.
    async fn put(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        insert: Insert,
        may: impl Fn(Option<&Schedule>) -> bool,
    ) -> Result<Written, Stop> {
        let Insert { schedule, due } = insert;
        Model::check_new(&schedule, &due);
        loop {
            // The due row carries what the schedule is going to be.
            let (seen, planned, due) = self
                .try_step(call, owner, |model| {
                    model.check_incarnation(&schedule);
                    let seen = model.find(schedule.tenant, &schedule.id);
                    if !may(seen.as_deref()) {
                        return Err(WriteRefusal::Changed);
                    }
                    let planned = plan_put(seen.as_deref(), &schedule, model.is_used(schedule.incarnation))?;
                    assert_eq!(planned.poller, owner.poller, "the owner of a schedule's poller puts it");
                    let mut due = due;
                    due.occurrence.incarnation = planned.incarnation;
                    due.occurrence.revision = planned.revision;
                    if self.options.atomic {
                        due.position = model.settle(planned.poller, due.position);
                    }
                    model.write_owned_due(planned.poller, due);
                    Ok((seen, planned, due))
                })
                .await?;
            let written = self
                .try_step(call, owner, |model| {
                    // It may have been cancelled, ended or moved on since, or the id taken.
                    if model.find(schedule.tenant, &schedule.id) != seen {
                        return Ok(false);
                    }
                    model.write_schedule(schedule.incarnation, planned.clone());
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
            if model.cancel(incarnation) { Ok(Written::Done) } else { Err(WriteRefusal::NotFound) }
        })
        .await
    }

    async fn cancel_if(&self, call: &mut Call<'_>, owner: Owner, edition: Edition) -> Result<Written, Stop> {
        self.try_step(call, owner, |model| {
            let schedule = model.schedule(edition.incarnation).filter(|schedule| schedule.edition() == edition);
            let schedule = schedule.ok_or(WriteRefusal::Changed)?;
            assert_eq!(schedule.poller, owner.poller, "the owner of a schedule's poller changes it");
            if model.cancel(edition.incarnation) { Ok(Written::Done) } else { Err(WriteRefusal::Changed) }
        })
        .await
    }

    async fn book(
        &self,
        call: &mut Call<'_>,
        owner: Owner,
        run: Run,
        then: Option<DueKey>,
        ends: bool,
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
            model.write_run(run);
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
        assert_eq!((of, under), (incarnation, revision), "a schedule goes on with a row of its own");
        assert_eq!((replay, due.attempt), (0, 1), "a schedule goes on with a first attempt");
        let goes_on = self
            .try_step(call, owner, |model| {
                let schedule = model.check_owned(owner.poller, incarnation)?;
                let is_behind = schedule.next.is_some_and(|next| nominal < next);
                let goes_on = schedule.is_live_at(revision) && !is_behind;
                if goes_on {
                    model.advance_schedule(incarnation, revision, nominal);
                }
                Ok(goes_on)
            })
            .await?;
        if goes_on {
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

    async fn redrive(&self, call: &mut Call<'_>, owner: Owner, of: Occurrence, due: DueKey) -> Result<Written, Stop> {
        let again = Occurrence { replay: of.replay + 1, ..of };
        assert_eq!((due.occurrence, due.attempt), (again, 1), "a redrive is the next replay's first attempt");
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

/// What [`Change::Put`] makes of `asked`, with `seen` under its name; `is_used`: by a put or insert of that incarnation before.
fn plan_put(seen: Option<&Schedule>, asked: &Arc<Schedule>, is_used: bool) -> Result<Arc<Schedule>, WriteRefusal> {
    match seen {
        Some(live) if live.status != Status::Cancelled => {
            let mut planned = Schedule::clone(asked);
            planned.incarnation = live.incarnation;
            planned.poller = live.poller;
            planned.revision = Revision(live.revision.0 + 1);
            planned.created_at = live.created_at;
            Ok(Arc::new(planned))
        }
        Some(_) if is_used => Err(WriteRefusal::NotFound),
        Some(_) | None => Ok(asked.clone()),
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
        assert!(key.position >= key.occurrence.nominal, "a row is not due before its nominal instant: {key:?}");
        self.write_due(poller, key, Writer::Owner);
    }

    /// The schedule of `incarnation`, which belongs to the writer's poller.
    fn check_owned(&self, poller: PollerId, incarnation: Incarnation) -> Result<Arc<Schedule>, WriteRefusal> {
        let schedule = self.schedule(incarnation).ok_or(WriteRefusal::NotFound)?;
        assert_eq!(schedule.poller, poller, "the owner of a schedule's poller changes it");
        Ok(schedule)
    }

    /// The run's occurrence has no final outcome yet.
    fn check_open(&self, poller: PollerId, run: &Run) -> Result<(), WriteRefusal> {
        let schedule = self.check_owned(poller, run.occurrence.incarnation)?;
        assert_eq!(schedule.tenant, run.tenant, "a run is its schedule's tenant's");
        assert!(run.occurrence.revision <= schedule.revision, "a run is of a revision that there was");
        match self.run(&run.occurrence) {
            Some(known) if known.state.is_final() => Err(WriteRefusal::Resolved),
            Some(_) | None => Ok(()),
        }
    }

    fn check_dead(&self, poller: PollerId, of: &Occurrence) -> Result<(), WriteRefusal> {
        let run = self.run(of).filter(|run| self.is_dead_letter(run)).ok_or(WriteRefusal::NotFound)?;
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
