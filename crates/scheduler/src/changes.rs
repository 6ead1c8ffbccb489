//! Making and changing schedules: inserting, which any member may do, and what only the owner of a shard may.
//!
//! Two requests for one chosen id meet here, as both come to the owner of the id's home shard, which does not hand the
//! shard over while one of them is under way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    DueKey, Edition, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, ScheduleId, Seen, ShardId,
    Status, TenantId, Timestamp, decide,
};
use store::{Arrival, Change, Health, Insert, Inserted, OwnerWrite, Placed, StoreError, WriteRefusal, Written};
use tokio::sync::{MutexGuard, RwLockReadGuard};

use crate::cluster::shards::NotOwned;
use crate::creator::{confirm_placement, unconfirmed};
use crate::firing::messages::ToOwner;
use crate::requests::{CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing, Undone};
use crate::shared::Shared;

/// Two requests for one chosen id meet at one of these locks.
const NAME_LOCKS: usize = 1_024;

pub(crate) struct Changes {
    shared: Arc<Shared>,
    names: Vec<tokio::sync::Mutex<()>>,
}

impl Changes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Changes { shared, names: (0..NAME_LOCKS).map(|_| tokio::sync::Mutex::new(())).collect() }
    }

    /// One answer per request, in order; several requests of one call share its commits. Chosen ids are of shards that
    /// are owned here.
    pub(crate) async fn create(
        &self,
        requests: Vec<Create>,
    ) -> Result<Vec<Result<Arc<Schedule>, CreateRefusal>>, Undone> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.shared.runtime.now();
        let _names = self.lock_names(&requests).await;
        let named = requests.iter().filter_map(|request| Some(home(request, request.id.as_ref()?)));
        let _shards = self.enter(named.map(PollerId::shard).collect()).await?;
        let mut answers = Vec::with_capacity(requests.len());
        let mut inserts = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(match self.plan(request, now) {
                Some(insert) => {
                    let schedule = insert.schedule.clone();
                    inserts.push(insert);
                    Ok(schedule)
                }
                None => Err(CreateRefusal::NeverFires),
            });
        }
        let rows: Vec<(PollerId, DueKey)> = inserts.iter().map(|insert| (insert.schedule.poller, insert.due)).collect();
        let mut inserted = self.shared.store.insert(inserts).await?.into_iter();
        let mut placed = Vec::with_capacity(rows.len());
        let mut placed_rows = Vec::with_capacity(rows.len());
        let mut existing = Vec::new();
        let mut rows = rows.into_iter();
        for answer in &mut answers {
            if answer.is_err() {
                continue;
            }
            let row = rows.next().expect("a row for each insert");
            match inserted.next().expect("the store answers every insert") {
                Inserted::Placed(place) => {
                    placed.push(place);
                    placed_rows.push(row);
                }
                Inserted::Exists(incarnation) => {
                    existing.push(incarnation);
                    *answer = Err(CreateRefusal::Exists);
                }
            }
        }
        self.shared.metrics.created.inc_by(placed.len() as u64);
        self.nudge(&placed_rows, &placed, now);
        confirm_placement(&*self.shared.store, unconfirmed(placed_rows, &placed)).await?;
        self.repair(existing).await?;
        Ok(answers)
    }

    /// Tells the owners of rows that are due soon to look at their arrivals now rather than at their next period.
    fn nudge(&self, rows: &[(PollerId, DueKey)], placed: &[Placed], now: Timestamp) {
        let near = rows.iter().zip(placed).filter(|(_, placed)| self.is_near(placed.position, now));
        let shards: BTreeSet<ShardId> = near.map(|((poller, _), _)| poller.shard()).collect();
        if !shards.is_empty() {
            self.shared.nudge(shards);
        }
    }

    /// Makes the schedule, or replaces the one of its id.
    pub(crate) async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, Undone> {
        let now = self.shared.runtime.now();
        let id = request.id.clone().expect("a schedule is put under a name");
        let tenant = request.tenant.id;
        let _names = self.lock_names(std::slice::from_ref(&request)).await;
        let Some(mut insert) = self.plan(request, now) else { return Ok(Err(CreateRefusal::NeverFires)) };
        let existing = self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten();
        if let Some(existing) = existing.filter(|existing| existing.status != Status::Cancelled) {
            Arc::make_mut(&mut insert.schedule).poller = existing.poller;
        }
        let answer = self.write_put(insert, now, Change::Put).await?;
        Ok(answer.expect("a put without a precondition finds what it requires"))
    }

    /// As [`Changes::put`], if what has the id is as it was `seen`; `None` if it is not.
    pub(crate) async fn put_if(
        &self,
        request: Create,
        seen: Option<Seen>,
        timing: Timing,
    ) -> Result<Option<Result<PutAnswer, CreateRefusal>>, Undone> {
        let now = self.shared.runtime.now();
        let name = (request.tenant.id, request.id.clone().expect("a schedule is put under a name"));
        let _names = self.lock_names(std::slice::from_ref(&request)).await;
        let existing = self.shared.store.get(vec![name]).await?.pop().flatten();
        // The store compares again, in the step that changes it: this one only saves it the trouble.
        if existing.as_deref().map(Schedule::seen) != seen {
            return Ok(None);
        }
        match self.plan_over(request, existing.as_deref(), timing, now) {
            Some(insert) => self.write_put(insert, now, |insert| Change::PutIf { insert, seen }).await,
            None => Ok(Some(Err(CreateRefusal::NeverFires))),
        }
    }

    /// `None` if the precondition of `change` is not met.
    async fn write_put(
        &self,
        mut insert: Insert,
        now: Timestamp,
        change: impl FnOnce(Insert) -> Change,
    ) -> Result<Option<Result<PutAnswer, CreateRefusal>>, Undone> {
        let poller = insert.schedule.poller;
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        insert.due.position = self.open_position(poller, insert.due.position).await?;
        let target = insert.due.target;
        match self.write(poller, change(insert)).await? {
            Ok(Written::Put { schedule, position, before }) => {
                let nominal = schedule.next.expect("a schedule that was put has an occurrence");
                let occurrence =
                    Occurrence { incarnation: schedule.incarnation, nominal, revision: schedule.revision, replay: 0 };
                let key = DueKey { position, occurrence, attempt: 1, target };
                self.placed(schedule.poller, key, now).await?;
                self.shared.metrics.created.inc();
                let created = before.is_none_or(|before| before == Status::Cancelled);
                let too_late = !created && self.shared.in_flight.contains(schedule.incarnation);
                Ok(Some(Ok(PutAnswer { schedule, created, too_late })))
            }
            Ok(Written::Done) => panic!("a put is answered with what it made"),
            Err(WriteRefusal::Changed) => Ok(None),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// The mark is durable; `applied` as the store said.
    pub(crate) async fn cancel(
        &self,
        poller: PollerId,
        incarnation: Incarnation,
        applied: bool,
    ) -> Result<CancelAnswer, Undone> {
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        if !applied {
            match self.write(poller, Change::Cancel(incarnation)).await? {
                Ok(_) | Err(WriteRefusal::NotFound) => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        Ok(self.cancelled(incarnation))
    }

    /// If the schedule is still of this edition; `None` if it is not.
    pub(crate) async fn cancel_if(&self, poller: PollerId, edition: Edition) -> Result<Option<CancelAnswer>, Undone> {
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        match self.write(poller, Change::CancelIf(edition)).await? {
            Ok(_) => Ok(Some(self.cancelled(edition.incarnation))),
            Err(WriteRefusal::Changed) => Ok(None),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// The cancellation is durable: what is not in flight now will find it.
    fn cancelled(&self, incarnation: Incarnation) -> CancelAnswer {
        self.shared.metrics.cancelled.inc();
        match self.shared.in_flight.contains(incarnation) {
            true => CancelAnswer::TooLate,
            false => CancelAnswer::Cancelled,
        }
    }

    /// Runs a dead letter again, at once, as a new occurrence.
    pub(crate) async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, Undone> {
        let now = self.shared.runtime.now();
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveAnswer::NotFound);
        };
        let _shard = self.enter(BTreeSet::from([schedule.poller.shard()])).await?;
        match self.shared.store.find_runs(vec![of]).await?.pop().flatten() {
            None => return Ok(RedriveAnswer::NotFound),
            Some(run) if run.state != RunState::Failed => return Ok(RedriveAnswer::NotDead),
            Some(_) => {}
        }
        let Some(mut due) = decide::redrive(of, schedule.spec.target.key(), now) else {
            return Ok(RedriveAnswer::NotDead);
        };
        due.position = self.open_position(schedule.poller, due.position).await?;
        match self.write(schedule.poller, Change::Redrive { of, due }).await? {
            Ok(_) => {
                self.placed(schedule.poller, due, now).await?;
                Ok(RedriveAnswer::Redriven(due.occurrence))
            }
            Err(WriteRefusal::NotFound) => Ok(RedriveAnswer::NotDead),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// A schedule and its first row, or `None` if it has no occurrence.
    fn plan(&self, request: Create, now: Timestamp) -> Option<Insert> {
        let drawn = || Incarnation::new(now, self.shared.runtime.random_u128());
        let incarnation = request.incarnation.unwrap_or_else(drawn);
        let id = request.id.clone().unwrap_or_else(|| ScheduleId::from_incarnation(incarnation));
        let mut schedule = Schedule {
            tenant: request.tenant.id,
            incarnation,
            poller: home(&request, &id),
            id,
            revision: Revision::default(),
            status: Status::Active,
            created_at: now,
            updated_at: now,
            next: None,
            spec: request.spec,
        };
        let due = decide::first(&schedule, now)?;
        schedule.next = Some(due.occurrence.nominal);
        Some(Insert { schedule: Arc::new(schedule), due })
    }

    /// As [`Changes::plan`], for the place of `existing`: what is there when that is put.
    fn plan_over(
        &self,
        request: Create,
        existing: Option<&Schedule>,
        timing: Timing,
        now: Timestamp,
    ) -> Option<Insert> {
        let mut insert = self.plan(request, now);
        let live = existing.filter(|existing| existing.status != Status::Cancelled);
        if let (Some(insert), Some(live)) = (&mut insert, live) {
            let schedule = Arc::make_mut(&mut insert.schedule);
            schedule.poller = live.poller;
            if timing == Timing::Kept {
                (schedule.updated_at, schedule.next) = (live.updated_at, live.next);
                insert.due = decide::kept(schedule, now)?;
            }
        }
        insert
    }

    /// As [`crate::Scheduler::would_put`].
    pub(crate) fn would_put(&self, request: Create, existing: Option<&Schedule>, timing: Timing) -> Option<Schedule> {
        let insert = self.plan_over(request, existing, timing, self.shared.runtime.now())?;
        let mut schedule = Arc::unwrap_or_clone(insert.schedule);
        if let Some(live) = existing.filter(|existing| existing.status != Status::Cancelled) {
            schedule.incarnation = live.incarnation;
            schedule.revision.0 = live.revision.0 + 1;
            schedule.created_at = live.created_at;
        }
        Some(schedule)
    }

    async fn write(&self, poller: PollerId, change: Change) -> Result<Result<Written, WriteRefusal>, Undone> {
        let shard = poller.shard();
        let term = self.shared.shards.term(shard)?;
        let answer = self.shared.store.write(vec![OwnerWrite { term, poller, change }]).await?.pop();
        let answer = answer.expect("the store answers every write");
        if answer == Err(WriteRefusal::Superseded) {
            self.shared.superseded(shard, term);
        }
        Ok(answer)
    }

    /// `position`, or the first instant that the poller has not closed: an owner writes no row where it is done, and the
    /// clock may have gone back since.
    async fn open_position(&self, poller: PollerId, position: Timestamp) -> Result<Timestamp, StoreError> {
        let closed = self.shared.store.closed(vec![poller]).await?;
        Ok(closed.into_iter().fold(position, |position, closed| position.max(closed + Duration::from_millis(1))))
    }

    /// Tells the owner of a row that a user's change wrote, and sees that it lies where it will be read.
    async fn placed(&self, poller: PollerId, key: DueKey, now: Timestamp) -> Result<(), StoreError> {
        // An owner that has just ended is followed by one that reads the row itself.
        self.shared.send(ToOwner::Arrived(Arrival { poller, key })).await;
        confirm_placement(&*self.shared.store, vec![(poller, key)]).await?;
        if self.is_near(key.position, now) {
            self.shared.nudge.notify_one();
        }
        Ok(())
    }

    /// As [`crate::Scheduler::confirm`].
    pub(crate) async fn confirm(&self, found: Incarnation) -> Result<(), StoreError> {
        match self.shared.store.health() {
            Health::Full => Ok(()),
            Health::Ready | Health::Unreachable | Health::Closed => self.repair(vec![found]).await,
        }
    }

    /// Before it is said that these schedules exist: a creator that died half-way may have left a row unread.
    async fn repair(&self, incarnations: Vec<Incarnation>) -> Result<(), StoreError> {
        if incarnations.is_empty() {
            return Ok(());
        }
        let schedules = self.shared.store.load(incarnations).await?;
        let rows: Vec<(PollerId, DueKey)> = schedules
            .into_iter()
            .flatten()
            .filter_map(|schedule| {
                let Schedule { incarnation, revision, next, .. } = *schedule;
                let occurrence = Occurrence { incarnation, nominal: next?, revision, replay: 0 };
                let key = DueKey { position: next?, occurrence, attempt: 1, target: schedule.spec.target.key() };
                Some((schedule.poller, key))
            })
            .collect();
        let placed = self.shared.store.place(rows.clone()).await?;
        confirm_placement(&*self.shared.store, unconfirmed(rows, &placed)).await
    }

    fn is_near(&self, position: Timestamp, now: Timestamp) -> bool {
        position <= now + self.shared.options.window_ahead + 2 * self.shared.options.period
    }

    /// These shards are owned here, and stay so until the guards are gone or the lease is over. Names are locked before
    /// this, never after: a shard that is being left lets nobody in, and waits for those who are.
    async fn enter(&self, shards: BTreeSet<ShardId>) -> Result<Vec<RwLockReadGuard<'_, ()>>, NotOwned> {
        let mut guards = Vec::with_capacity(shards.len());
        for shard in shards {
            guards.push(self.shared.enter(shard).await?);
        }
        Ok(guards)
    }

    /// Holds the chosen ids of `requests` against others, in an order that cannot deadlock.
    async fn lock_names(&self, requests: &[Create]) -> Vec<MutexGuard<'_, ()>> {
        let lock_of = |request: &Create| {
            let id = request.id.as_ref()?;
            let hash = domain::id::fnv1a(id.as_str().as_bytes()) ^ request.tenant.id.0;
            Some(hash as usize % NAME_LOCKS)
        };
        let mut locks: Vec<usize> = requests.iter().filter_map(lock_of).collect();
        locks.sort_unstable();
        locks.dedup();
        let mut guards = Vec::with_capacity(locks.len());
        for lock in locks {
            guards.push(self.names[lock].lock().await);
        }
        guards
    }
}

/// The poller of a schedule that is made now under this id.
pub(crate) fn home(request: &Create, id: &ScheduleId) -> PollerId {
    let tenant = &request.tenant;
    let generation = u16::try_from(tenant.generations.len() - 1).expect("a tenant has few generations");
    let pollers = *tenant.generations.last().expect("a tenant has a generation of pollers");
    PollerId::of(tenant.id, generation, pollers, id)
}

fn refused(refusal: WriteRefusal) -> Undone {
    match refusal {
        WriteRefusal::Superseded => Undone::NotOwned,
        WriteRefusal::Changed | WriteRefusal::NotFound | WriteRefusal::Resolved => {
            Undone::Failed(StoreError::Unavailable(refusal.to_string()))
        }
    }
}
