//! Reference model of the store port. Tests also use it as a store.
//!
//! The module contains two engines. The *atomic* engine completes each item of a call in one step, confirms placement
//! itself and applies cancellation records, as the embedded store does. The *weak* engine guarantees only the minimum
//! that the port requires. Time passes between its steps for one item, creators confirm placement, and owners apply
//! cancellation records. Code that works with the weak engine works with every engine.
//!
//! Neither engine stores anything on disk. The data survives a simulated crash of the member, because
//! [`MemoryStore::reopen`] passes the same data to the next store. If the caller drops a call, the effects of the
//! completed steps remain.
//!
//! Invariants: if a caller breaks a rule of the port, the engine panics and names the rule. The same simulated
//! `runtime` and the same calls give the same results.

mod call;
mod inbox;
mod model;
mod owner;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId, Status,
    Tenant, TenantId, Term,
};
use runtime::Runtime;

use self::call::Access;
pub use self::inbox::{InboxDeadLetter, InboxRejection};
use self::model::{Model, Writer};
use crate::{
    Answer, Cancellation, CancellationResult, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated,
    OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage, WriteRejection, Written,
};

/// Options for the behaviour of a [`MemoryStore`]. All values are within the limits of the port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// True if the engine completes each item of a call in one step and confirms placement. The default is true.
    pub atomic: bool,
    /// True if the engine applies cancellation records in the call that appends them. The default is true.
    pub applies_marks: bool,
    /// Range of the simulated latencies. A call waits for a random latency before its effect and for another random
    /// latency after its effect. The weak engine also waits between steps. The default is no latency.
    pub latency: Option<RangeInclusive<Duration>>,
    /// Rate of failures: on average, one call out of this number of calls fails. The call fails before its effect,
    /// after its effect, or (in the weak engine) between two steps. By default no call fails.
    pub fail_one_in: Option<u32>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { atomic: true, applies_marks: true, latency: None, fail_one_in: None }
    }
}

impl MemoryOptions {
    /// Returns the options of the weakest engine that the port allows.
    #[must_use]
    pub fn weak() -> Self {
        MemoryOptions { atomic: false, applies_marks: false, ..MemoryOptions::default() }
    }
}

/// In-memory engine. The documentation of the module describes its two forms.
pub struct MemoryStore {
    runtime: Runtime,
    options: MemoryOptions,
    data: Arc<Data>,
}

/// Terms of a [`MemoryStore`] that has returned to an earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TermsAfterLoss {
    /// The store starts an epoch, as the port requires.
    NewEpoch,
    /// Bug: the terms continue from the terms of the earlier state.
    Stored,
    /// Bug: the terms stay the same, so that the owners do not notice the loss.
    Unchanged,
}

/// Copy of the state of a [`MemoryStore`].
pub struct Snapshot(Model);

struct Data {
    /// Lock that a call of the atomic engine holds from its first to its last step, so that no other thread observes a
    /// state between the steps.
    whole: futures_util::lock::Mutex<()>,
    model: Mutex<Model>,
}

impl MemoryStore {
    /// Returns an empty store.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let data = Data { whole: futures_util::lock::Mutex::new(()), model: Mutex::new(Model::default()) };
        MemoryStore { runtime, options, data: Arc::new(data) }
    }

    /// Returns a store on the same data, for another member or for the same member after its crash.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryStore { runtime, options: self.options.clone(), data: self.data.clone() }
    }

    /// Returns a store on the same data with other options.
    #[must_use]
    pub fn with_options(self, options: MemoryOptions) -> Self {
        MemoryStore { options, ..self }
    }

    /// Makes later calls fail as if the disk were full, the server unreachable or the engine closed.
    pub fn set_health(&self, health: Health) {
        self.model().health = health;
    }

    /// Returns a copy of the present state. Waits until the atomic engine has completed its calls.
    pub async fn snapshot(&self) -> Snapshot {
        let _whole = self.data.whole.lock().await;
        Snapshot(self.model().clone())
    }

    /// Returns to the state `snapshot`, like a database after a fail-over to a standby that lagged.
    pub async fn go_back(&self, snapshot: Snapshot, terms: TermsAfterLoss) {
        let _whole = self.data.whole.lock().await;
        self.model().go_back(snapshot.0, terms);
    }

    /// Locks the model. Panics if an earlier caller broke a rule of the port, because the model's state may then be
    /// wrong.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.data.model.lock().expect("no earlier call panicked because its caller violated a precondition")
    }

    async fn insert_one(&self, call: &mut call::Call<'_>, insert: Insert) -> Result<Inserted, StoreError> {
        let Insert { schedule, mut due, by: _ } = insert;
        Model::check_new(&schedule, &due);
        call.step().await?;
        if let Some(known) = self.model().conflicting_incarnation(&schedule) {
            return Ok(Inserted::Exists(known));
        }
        if self.options.atomic {
            due.position = self.model().open_position(schedule.poller, due.position);
        }
        self.model().write_due(schedule.poller, due, Writer::Creator);

        // In the weak engine, the entry in the insert log may become visible before its schedule or long after it.
        let log_first = !self.options.atomic && self.runtime.random().is_multiple_of(2);
        if log_first {
            call.step().await?;
            self.model().append_to_insert_log(schedule.poller, due);
        }
        call.step().await?;
        let Schedule { poller, incarnation, .. } = *schedule;
        {
            let mut model = self.model();
            // Another call may have taken the id after this call first checked it. The due row of this call then has no
            // schedule.
            if let Some(known) = model.conflicting_incarnation(&schedule) {
                return Ok(Inserted::Exists(known));
            }
            model.write_schedule(incarnation, schedule, None);
        }
        if !log_first {
            call.step().await?;
            self.model().append_to_insert_log(poller, due);
        }
        Ok(Inserted::Placed(Placed { position: due.position, settled: self.options.atomic }))
    }

    async fn place_one(
        &self,
        call: &mut call::Call<'_>,
        poller: PollerId,
        mut key: DueKey,
    ) -> Result<Placed, StoreError> {
        call.step().await?;
        {
            let mut model = self.model();
            model.check_placed(poller, &key);
            if self.options.atomic {
                key.position = model.open_position(poller, key.position);
            }
            model.write_due(poller, key, Writer::Creator);
        }
        call.step().await?;
        self.model().append_to_insert_log(poller, key);
        Ok(Placed { position: key.position, settled: self.options.atomic })
    }

    async fn append_cancellation(
        &self,
        call: &mut call::Call<'_>,
        mark: Cancellation,
    ) -> Result<CancellationResult, StoreError> {
        call.step().await?;
        let before = self.model().find(mark.tenant, &mark.id);
        let Some(schedule) = before.as_ref().filter(|schedule| schedule.status != Status::Cancelled) else {
            return Ok(CancellationResult { before, applied: true });
        };
        if self.options.applies_marks {
            self.model().cancel(schedule.incarnation, mark.author);
        } else {
            call.step().await?;
            self.model().append_cancellation(schedule.poller.shard(), schedule.incarnation, mark.author);
        }
        Ok(CancellationResult { before, applied: self.options.applies_marks })
    }

    /// Looks up each of `names`. In the weak engine the look-ups happen at different times.
    async fn read<N, T>(&self, names: Vec<N>, look: impl Fn(&Model, N) -> T) -> Result<Vec<T>, StoreError> {
        let mut call = self.begin(Access::Read, names.len()).await?;
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            call.step().await?;
            found.push(look(&self.model(), name));
        }
        call.end(found).await
    }

    /// Makes a call that consists of the single step `change`.
    async fn change<T>(&self, access: Access, change: impl FnOnce(&mut Model) -> T) -> Result<T, StoreError> {
        let call = self.begin(access, 1).await?;
        let response = change(&mut self.model());
        call.end(response).await
    }
}

impl Store for MemoryStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, inserts.len() * 3).await?;
            let mut responses = Vec::with_capacity(inserts.len());
            for insert in inserts {
                responses.push(self.insert_one(&mut call, insert).await?);
            }
            call.end(responses).await
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        Box::pin(self.read(pollers, Model::closed))
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, rows.len() * 2).await?;
            let mut responses = Vec::with_capacity(rows.len());
            for (poller, key) in rows {
                responses.push(self.place_one(&mut call, poller, key).await?);
            }
            call.end(responses).await
        })
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, marks.len() * 2).await?;
            let mut responses = Vec::with_capacity(marks.len());
            for mark in marks {
                responses.push(self.append_cancellation(&mut call, mark).await?);
            }
            call.end(responses).await
        })
    }

    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        Box::pin(self.read(names, |model, (tenant, id)| model.find(tenant, &id)))
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        Box::pin(self.read(incarnations, Model::schedule))
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        Box::pin(self.change(Access::Read, move |model| model.list(&read)))
    }

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        Box::pin(self.change(Access::Read, move |model| model.chosen_ids(&read)))
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        Box::pin(self.read(occurrences, |model, occurrence| model.run(&occurrence).cloned()))
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.change(Access::Read, move |model| model.runs(incarnation, after, limit)))
    }

    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>> {
        Box::pin(self.change(Access::Read, move |model| model.past_timings(incarnation, from, limit)))
    }

    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList> {
        Box::pin(self.change(Access::Read, move |model| model.list_runs(&read)))
    }

    fn counts(&self, read: CountRead) -> Answer<'_, CountPage> {
        Box::pin(self.change(Access::Read, move |model| model.counts(&read)))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.change(Access::Read, move |model| model.dead_letters(tenant, after, limit)))
    }

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        Box::pin(self.read(tenants, Model::usage))
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        Box::pin(self.change(Access::Read, |model| model.tenants()))
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        Box::pin(self.change(Access::User, |model| model.put_tenant(tenant, entry)))
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>> {
        Box::pin(self.change(Access::Read, move |model| model.audit(tenant, after, limit)))
    }

    fn health(&self) -> Health {
        self.model().health
    }

    fn epoch(&self) -> u64 {
        self.model().epoch
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let mut call = self.begin(Access::Owner, shards.len()).await?;
            let mut terms = Vec::with_capacity(shards.len());
            for shard in shards {
                call.step().await?;
                terms.push(self.model().take(shard));
            }
            call.end(terms).await
        })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        Box::pin(self.read(pollers, Model::positions))
    }

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        Box::pin(self.change(Access::Read, move |model| {
            let (entries, cursor) = model.insert_log.read(&shards, cursor, limit);
            (entries.into_iter().map(|(_, arrival)| arrival).collect(), cursor)
        }))
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(self.change(Access::Read, move |model| model.cancellations.read(&shards, cursor, usize::MAX)))
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(self.read(reads, |model, read| model.due(&read)))
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        Box::pin(async move {
            let mut call = self.begin(Access::Owner, writes.len() * 3).await?;
            let mut responses = Vec::with_capacity(writes.len());
            for write in writes {
                responses.push(self.write_one(&mut call, write).await?);
            }
            call.end(responses).await
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        Box::pin(async move {
            let mut call = self.begin(Access::Owner, lists.len()).await?;
            let mut responses = Vec::with_capacity(lists.len());
            for list in lists {
                call.step().await?;
                responses.push(self.model().hand_over(list));
            }
            call.end(responses).await
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        Box::pin(self.read(shards, Model::handed_over))
    }
}
