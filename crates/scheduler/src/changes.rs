//! Creates, replaces and cancels schedules, and redrives dead letters. Any member may create a schedule with a
//! generated id. Only the owner of a schedule's shard may change an existing schedule or create a schedule with a
//! chosen id.
//!
//! For a chosen id, the owner of the id's home shard processes all requests that create a schedule with this id. The
//! owner does not hand the shard over while such a request is in progress.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{
    Author, DueKey, Incarnation, Occurrence, PollerId, Precondition, Revision, RunState, Schedule, ScheduleId,
    ScheduleVersion, ShardId, Status, TenantId, Timestamp, decide,
};
use store::{
    Change, Health, Insert, InsertLogEntry, Inserted, OwnerWrite, Placed, StoreError, WriteRejection, Written,
};
use tokio::sync::{MutexGuard, RwLockReadGuard};

use crate::cluster::shards::NotOwned;
use crate::creator::{BeforeWrite, Unconfirmed, confirm_placement, open_position};
use crate::firing::messages::ToOwner;
use crate::requests::{CancelResponse, Create, CreateRejection, OwnerError, PutResponse, RedriveResponse, Timing};
use crate::shared::Shared;

/// Number of locks for chosen ids. Two requests for the same id use the same lock.
const ID_LOCKS: usize = 1_024;
/// Longest time for which a change waits until this member has compared its clock with the coordination engine's clock.
const CLOCK_WAIT_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Changes {
    shared: Arc<Shared>,
    id_locks: Vec<tokio::sync::Mutex<()>>,
}

impl Changes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Changes { shared, id_locks: (0..ID_LOCKS).map(|_| tokio::sync::Mutex::new(())).collect() }
    }

    /// Creates schedules and returns one result per request, in order. The store commits the rows of all requests
    /// together. This member must own the home shards of all chosen ids.
    pub(crate) async fn create(
        &self,
        requests: Vec<Create>,
    ) -> Result<Vec<Result<Arc<Schedule>, CreateRejection>>, OwnerError> {
        self.create_in(requests, None).await
    }

    /// Creates schedules as [`Changes::create`] does. If `pollers` is present, it contains the poller of each request,
    /// and this member must own the shards of these pollers.
    pub(crate) async fn create_in(
        &self,
        requests: Vec<Create>,
        pollers: Option<&[PollerId]>,
    ) -> Result<Vec<Result<Arc<Schedule>, CreateRejection>>, OwnerError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.now().await?;
        let _ids = self.lock_ids(&requests).await;
        let shards = match pollers {
            Some(pollers) => pollers.iter().map(|poller| poller.shard()).collect(),
            None => {
                let named = requests.iter().filter_map(|request| Some(home_poller(request, request.id.as_ref()?)));
                named.map(PollerId::shard).collect()
            }
        };
        let shards = self.enter(shards).await?;
        let mut responses = Vec::with_capacity(requests.len());
        let mut inserts = Vec::with_capacity(requests.len());
        for (at, request) in requests.into_iter().enumerate() {
            responses.push(match self.plan(request, now) {
                Some(mut insert) => {
                    if let Some(pollers) = pollers {
                        Arc::make_mut(&mut insert.schedule).poller = pollers[at];
                    }
                    let schedule = insert.schedule.clone();
                    inserts.push(insert);
                    Ok(schedule)
                }
                None => Err(CreateRejection::NeverFires),
            });
        }
        let rows: Vec<(PollerId, DueKey)> = inserts.iter().map(|insert| (insert.schedule.poller, insert.due)).collect();
        let before_write = BeforeWrite::read(&self.shared)?;
        let mut inserted = self.shared.store.insert(inserts).await?.into_iter();
        // Any member may place rows, so the rest of this function does not delay a hand-over.
        drop(shards);
        let mut placed = Vec::with_capacity(rows.len());
        let mut placed_rows = Vec::with_capacity(rows.len());
        let mut existing = Vec::new();
        let mut rows = rows.into_iter();
        for response in &mut responses {
            if response.is_err() {
                continue;
            }
            let row = rows.next().expect("each planned insert has one due row");
            match inserted.next().expect("the store returns one result per insert") {
                Inserted::Placed(place) => {
                    placed.push(place);
                    placed_rows.push(row);
                }
                Inserted::Exists(incarnation) => {
                    existing.push(incarnation);
                    *response = Err(CreateRejection::Exists);
                }
            }
        }
        self.shared.metrics.created.inc_by(placed.len() as u64);
        self.nudge(&placed_rows, &placed, now);
        let unconfirmed = Unconfirmed::of(placed_rows, &placed, self.shared.clock.now(), before_write);
        confirm_placement(&self.shared, unconfirmed).await?;
        self.repair(existing).await?;
        Ok(responses)
    }

    /// Notifies the owner of each shard in which one of these rows is due soon. The owner then reads its insert log at
    /// once.
    fn nudge(&self, rows: &[(PollerId, DueKey)], placed: &[Placed], now: Timestamp) {
        let near = rows.iter().zip(placed).filter(|(_, placed)| self.is_near(placed.position, now));
        let shards: BTreeSet<ShardId> = near.map(|((poller, _), _)| poller.shard()).collect();
        if !shards.is_empty() {
            self.shared.nudge(shards);
        }
    }

    /// Creates the schedule, or replaces the schedule with the same id.
    pub(crate) async fn put(&self, request: Create) -> Result<Result<PutResponse, CreateRejection>, OwnerError> {
        let now = self.now().await?;
        let id = request.id.clone().expect("a put request contains the id of its schedule");
        let tenant = request.tenant.id;
        let _ids = self.lock_ids(std::slice::from_ref(&request)).await;
        let Some(mut insert) = self.plan(request, now) else { return Ok(Err(CreateRejection::NeverFires)) };
        let existing = self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten();
        if let Some(existing) = existing.filter(|existing| existing.status != Status::Cancelled) {
            Arc::make_mut(&mut insert.schedule).poller = existing.poller;
        }
        let response = self.write_put(insert, now, Change::Put).await?;
        Ok(response.expect("an unconditional put cannot fail because of a precondition"))
    }

    /// Puts a schedule as [`Changes::put`] does, if the existing schedule still matches the precondition `seen`.
    /// Returns `None` if the schedule does not match.
    pub(crate) async fn put_if(
        &self,
        request: Create,
        seen: Option<Precondition>,
        timing: Timing,
    ) -> Result<Option<Result<PutResponse, CreateRejection>>, OwnerError> {
        let now = self.now().await?;
        let name = (request.tenant.id, request.id.clone().expect("a put request contains the id of its schedule"));
        let _ids = self.lock_ids(std::slice::from_ref(&request)).await;
        let existing = self.shared.store.get(vec![name]).await?.pop().flatten();
        // The store checks the precondition again in the same step as it writes the put. This first check only avoids a
        // write that would certainly fail.
        if existing.as_deref().map(Schedule::seen) != seen {
            return Ok(None);
        }
        match self.plan_over(request, existing.as_deref(), timing, now) {
            Some(insert) => self.write_put(insert, now, |insert| Change::PutIf { insert, seen }).await,
            None => Ok(Some(Err(CreateRejection::NeverFires))),
        }
    }

    /// Writes a planned put to the store. Returns `None` if the store's state does not match the precondition of
    /// `change`.
    async fn write_put(
        &self,
        mut insert: Insert,
        now: Timestamp,
        change: impl FnOnce(Insert) -> Change,
    ) -> Result<Option<Result<PutResponse, CreateRejection>>, OwnerError> {
        let poller = insert.schedule.poller;
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        let before_write = BeforeWrite::read(&self.shared)?;
        insert.due.position = open_position(&self.shared, poller, insert.due.position).await?;
        let target = insert.due.target;
        match self.write(poller, change(insert)).await? {
            Ok(Written::Put { schedule, position, before }) => {
                let nominal = schedule.next.expect("the schedule of a put has a next occurrence");
                let occurrence =
                    Occurrence { incarnation: schedule.incarnation, nominal, revision: schedule.revision, replay: 0 };
                let key = DueKey { position, occurrence, attempt: 1, target };
                self.publish_due_row(schedule.poller, key, now, before_write).await?;
                self.shared.metrics.created.inc();
                let created = before.is_none_or(|before| before == Status::Cancelled);
                let too_late = !created && self.shared.in_flight.contains(schedule.incarnation);
                Ok(Some(Ok(PutResponse { schedule, created, too_late })))
            }
            Ok(Written::Done) => panic!("the store returns the schedule of a put"),
            Err(WriteRejection::Changed) => Ok(None),
            Err(refusal) => Err(undone_from(refusal)),
        }
    }

    /// Cancels a schedule whose cancellation record is durable. `applied` is true if the store cancelled the schedule
    /// in the same step as it wrote the record.
    pub(crate) async fn cancel(
        &self,
        poller: PollerId,
        incarnation: Incarnation,
        applied: bool,
    ) -> Result<CancelResponse, OwnerError> {
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        if !applied {
            match self.write(poller, Change::Cancel(incarnation)).await? {
                Ok(_) | Err(WriteRejection::NotFound) => {}
                Err(refusal) => return Err(undone_from(refusal)),
            }
        }
        Ok(self.cancel_answer(incarnation))
    }

    /// Cancels the schedule if it still has this incarnation and revision. Returns `None` if the schedule has another
    /// version. `key` is the id of the API key that requested the cancellation.
    pub(crate) async fn cancel_if(
        &self,
        poller: PollerId,
        edition: ScheduleVersion,
        key: Option<String>,
    ) -> Result<Option<CancelResponse>, OwnerError> {
        let _shard = self.enter(BTreeSet::from([poller.shard()])).await?;
        let author = Author { at: self.shared.runtime.now(), key };
        match self.write(poller, Change::CancelIf(edition, Some(author))).await? {
            Ok(_) => Ok(Some(self.cancel_answer(edition.incarnation))),
            Err(WriteRejection::Changed) => Ok(None),
            Err(refusal) => Err(undone_from(refusal)),
        }
    }

    /// Returns the result of a durable cancellation. Every attempt that starts after this call reads the cancelled
    /// schedule.
    fn cancel_answer(&self, incarnation: Incarnation) -> CancelResponse {
        self.shared.metrics.cancelled.inc();
        match self.shared.in_flight.contains(incarnation) {
            true => CancelResponse::TooLate,
            false => CancelResponse::Cancelled,
        }
    }

    /// Starts another run of a dead letter, as a new occurrence that is due at once.
    pub(crate) async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveResponse, OwnerError> {
        let now = self.now().await?;
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveResponse::NotFound);
        };
        let _shard = self.enter(BTreeSet::from([schedule.poller.shard()])).await?;
        match self.shared.store.find_runs(vec![of]).await?.pop().flatten() {
            None => return Ok(RedriveResponse::NotFound),
            Some(run) if run.state != RunState::Failed => return Ok(RedriveResponse::NotDead),
            Some(_) => {}
        }
        let Some(mut due) = decide::redrive(of, schedule.spec.target.key(), now) else {
            return Ok(RedriveResponse::NotDead);
        };
        let before_write = BeforeWrite::read(&self.shared)?;
        due.position = open_position(&self.shared, schedule.poller, due.position).await?;
        match self.write(schedule.poller, Change::Redrive { of, due }).await? {
            Ok(_) => {
                self.publish_due_row(schedule.poller, due, now, before_write).await?;
                Ok(RedriveResponse::Redriven(due.occurrence))
            }
            Err(WriteRejection::NotFound) => Ok(RedriveResponse::NotDead),
            Err(refusal) => Err(undone_from(refusal)),
        }
    }

    /// Returns an [`Insert`] of the requested schedule and its first due row. Returns `None` if the schedule has no
    /// occurrence.
    fn plan(&self, request: Create, now: Timestamp) -> Option<Insert> {
        let drawn = || Incarnation::new(now, self.shared.runtime.random_u128());
        let incarnation = request.incarnation.unwrap_or_else(drawn);
        let id = request.id.clone().unwrap_or_else(|| ScheduleId::from_incarnation(incarnation));
        let mut schedule = Schedule {
            tenant: request.tenant.id,
            incarnation,
            poller: home_poller(&request, &id),
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
        Some(Insert { schedule: Arc::new(schedule), due, by: request.by })
    }

    /// Plans a put that replaces `existing`, as [`Changes::plan`] plans a create. `existing` is the stored schedule at
    /// the time of the put.
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
                schedule.next = live.next;
                schedule.spec.when = live.spec.when.clone();
                schedule.spec.when.keep_since(live.updated_at);
                insert.due = decide::kept(schedule, now)?;
            }
        }
        insert
    }

    /// Returns the time by which a change computes its due rows. In a cluster, waits until this member has compared its
    /// clock with the coordination engine's clock. Before that, the clock may be far ahead, and due rows would lie at
    /// positions that the owner reads only when the time has come.
    ///
    /// # Errors
    /// Returns an error if the member does not reach the engine in time.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        let Shared { runtime, clock, steady, .. } = &*self.shared;
        if runtime.timeout(CLOCK_WAIT_MAX, clock.measured()).await.is_none() {
            return Err(StoreError::Unavailable(
                "this member has not compared its clock with the database's clock yet; retry the request".to_owned(),
            ));
        }
        Ok(steady.now())
    }

    /// Implements [`crate::Scheduler::would_put`].
    pub(crate) fn would_put(&self, request: Create, existing: Option<&Schedule>, timing: Timing) -> Option<Schedule> {
        let insert = self.plan_over(request, existing, timing, self.shared.steady.now())?;
        let mut schedule = Arc::unwrap_or_clone(insert.schedule);
        if let Some(live) = existing.filter(|existing| existing.status != Status::Cancelled) {
            schedule.incarnation = live.incarnation;
            schedule.revision.0 = live.revision.0 + 1;
            schedule.created_at = live.created_at;
        }
        Some(schedule)
    }

    async fn write(&self, poller: PollerId, change: Change) -> Result<Result<Written, WriteRejection>, OwnerError> {
        let shard = poller.shard();
        let term = self.shared.shards.term(shard)?;
        let response = self.shared.store.write(vec![OwnerWrite { term, poller, change }]).await?.pop();
        let response = response.expect("the store returns one result per write");
        if response == Err(WriteRejection::Superseded) {
            self.shared.superseded(shard, term);
        }
        Ok(response)
    }

    /// Sends the owner a due row that a user's change wrote, and confirms the row's placement.
    async fn publish_due_row(
        &self,
        poller: PollerId,
        key: DueKey,
        now: Timestamp,
        before_write: BeforeWrite,
    ) -> Result<(), StoreError> {
        // If the owner's task has just ended, the next owner reads the row from the store.
        self.shared.send(ToOwner::DueRow(InsertLogEntry { poller, key })).await;
        confirm_placement(&self.shared, Unconfirmed::all(vec![(poller, key)], before_write)).await?;
        if self.is_near(key.position, now) {
            self.shared.nudge.notify_one();
        }
        Ok(())
    }

    /// Implements [`crate::Scheduler::confirm`].
    pub(crate) async fn confirm(&self, found: Incarnation) -> Result<(), StoreError> {
        match self.shared.store.health() {
            Health::Full => Ok(()),
            Health::Ready | Health::Unreachable | Health::Closed => self.repair(vec![found]).await,
        }
    }

    /// Writes the due rows of these schedules again, before the response reports that the schedules exist. If the
    /// creator of a schedule stopped before it confirmed the placement, the due row may lie at a position that no owner
    /// reads.
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
        let before_write = BeforeWrite::read(&self.shared)?;
        let placed = self.shared.store.place(rows.clone()).await?;
        let unconfirmed = Unconfirmed::of(rows, &placed, self.shared.clock.now(), before_write);
        confirm_placement(&self.shared, unconfirmed).await
    }

    fn is_near(&self, position: Timestamp, now: Timestamp) -> bool {
        position <= now + self.shared.options.window_ahead + 2 * self.shared.options.period
    }

    /// Checks that this member owns these shards and returns a guard for each. This member owns the shards until the
    /// caller drops the guards or the lease ends. A caller that locks ids must lock them before this call. Otherwise a
    /// deadlock is possible, because the release of a shard waits for its guards and blocks new guards.
    async fn enter(&self, shards: BTreeSet<ShardId>) -> Result<Vec<RwLockReadGuard<'_, ()>>, NotOwned> {
        let mut guards = Vec::with_capacity(shards.len());
        for shard in shards {
            guards.push(self.shared.enter(shard).await?);
        }
        Ok(guards)
    }

    /// Locks the chosen ids of `requests`. All calls use the same order of locks, so they cannot deadlock.
    async fn lock_ids(&self, requests: &[Create]) -> Vec<MutexGuard<'_, ()>> {
        let lock_of = |request: &Create| {
            let id = request.id.as_ref()?;
            let hash = domain::id::fnv1a(id.as_str().as_bytes()) ^ request.tenant.id.0;
            Some(hash as usize % ID_LOCKS)
        };
        let mut locks: Vec<usize> = requests.iter().filter_map(lock_of).collect();
        locks.sort_unstable();
        locks.dedup();
        let mut guards = Vec::with_capacity(locks.len());
        for lock in locks {
            guards.push(self.id_locks[lock].lock().await);
        }
        guards
    }
}

/// Returns the poller of a new schedule with this id.
pub(crate) fn home_poller(request: &Create, id: &ScheduleId) -> PollerId {
    let tenant = &request.tenant;
    let generation =
        u16::try_from(tenant.generations.len() - 1).expect("a tenant has fewer than 2^16 poller generations");
    let pollers = *tenant.generations.last().expect("a tenant has at least one generation of pollers");
    PollerId::of(tenant.id, generation, pollers, id)
}

fn undone_from(refusal: WriteRejection) -> OwnerError {
    match refusal {
        WriteRejection::Superseded => OwnerError::NotOwned,
        WriteRejection::Changed | WriteRejection::NotFound | WriteRejection::Resolved => {
            OwnerError::Failed(StoreError::Unavailable(refusal.to_string()))
        }
    }
}
