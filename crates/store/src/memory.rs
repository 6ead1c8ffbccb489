//! The reference model of the port, and the double that tests use.
//!
//! Two engines in one. The *atomic* one does each item in one step, settles `closed` itself and applies marks, as an
//! embedded engine does. The *weak* one is the least that the port allows: the steps of an item are apart in time, a
//! creator has to look at `closed` itself, marks wait for the owner. What works on the weak one works on every engine.
//!
//! It keeps nothing on a disk: the data outlives a crash of the member because [`MemoryStore::reopen`] hands the same
//! data to the next one. A call that is dropped half-way leaves the steps that it made.
//!
//! Always true here: an engine's caller that breaks the port's rules meets a panic that says which one; with the same
//! `runtime` and the same calls, the same happens.

mod call;
mod model;
mod owner;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Status, Tenant, TenantId, Term,
    Timestamp,
};
use runtime::Runtime;

use self::call::Access;
use self::model::{Model, Writer};
use crate::{
    Answer, Arrival, Cursor, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted, ListPage, ListRead,
    Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, StoreError, WriteRefusal, Written,
};

/// How a [`MemoryStore`] behaves within what the port allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// Each item in one step, `closed` settled by the engine. Default true.
    pub atomic: bool,
    /// Marks cancel by themselves. Default true.
    pub applies_marks: bool,
    /// How long a call takes before its effect and again after it, and a weak engine's steps. Default none.
    pub latency: Option<RangeInclusive<Duration>>,
    /// One call in so many fails: before its effect, after it, or (weak) between two of its steps. Default never.
    pub fail_one_in: Option<u32>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { atomic: true, applies_marks: true, latency: None, fail_one_in: None }
    }
}

impl MemoryOptions {
    /// The weakest engine that the port allows.
    #[must_use]
    pub fn weak() -> Self {
        MemoryOptions { atomic: false, applies_marks: false, ..MemoryOptions::default() }
    }
}

/// See the module's documentation.
pub struct MemoryStore {
    runtime: Runtime,
    options: MemoryOptions,
    data: Arc<Data>,
}

struct Data {
    /// Held by an atomic call from its first step to its last, so that no other thread sees the middle.
    whole: futures_util::lock::Mutex<()>,
    model: Mutex<Model>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let data = Data { whole: futures_util::lock::Mutex::new(()), model: Mutex::new(Model::default()) };
        MemoryStore { runtime, options, data: Arc::new(data) }
    }

    /// The same data, for another member or for the same one after its crash.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryStore { runtime, options: self.options.clone(), data: self.data.clone() }
    }

    /// The same data, behaving otherwise.
    #[must_use]
    pub fn with_options(self, options: MemoryOptions) -> Self {
        MemoryStore { options, ..self }
    }

    /// From now on calls fail as on a disk that is full, or on an engine that is closed.
    pub fn set_health(&self, health: Health) {
        self.model().health = health;
    }

    /// # Panics
    /// If a caller broke a rule of the port earlier: what it left is not to be built on.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.data.model.lock().expect("no caller broke a rule of the port before")
    }

    async fn insert_one(&self, call: &mut call::Call<'_>, insert: Insert) -> Result<Inserted, StoreError> {
        let Insert { schedule, mut due } = insert;
        Model::check_new(&schedule, &due);
        call.step().await?;
        if let Some(known) = self.model().incarnation_in_the_way(&schedule) {
            return Ok(Inserted::Exists(known));
        }
        if self.options.atomic {
            due.position = self.model().settle(schedule.poller, due.position);
        }
        self.model().write_due(schedule.poller, due, Writer::Creator);

        // The arrival may be told before its schedule is there, or long after.
        let arrival_first = !self.options.atomic && self.runtime.random().is_multiple_of(2);
        if arrival_first {
            call.step().await?;
            self.model().append_arrival(schedule.poller, due);
        }
        call.step().await?;
        let Schedule { poller, incarnation, .. } = *schedule;
        {
            let mut model = self.model();
            // Another call may have taken the id since, and this one's row is left without a schedule.
            if let Some(known) = model.incarnation_in_the_way(&schedule) {
                return Ok(Inserted::Exists(known));
            }
            model.write_schedule(incarnation, schedule);
        }
        if !arrival_first {
            call.step().await?;
            self.model().append_arrival(poller, due);
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
                key.position = model.settle(poller, key.position);
            }
            model.write_due(poller, key, Writer::Creator);
        }
        call.step().await?;
        self.model().append_arrival(poller, key);
        Ok(Placed { position: key.position, settled: self.options.atomic })
    }

    async fn mark_one(&self, call: &mut call::Call<'_>, mark: Mark) -> Result<Marked, StoreError> {
        call.step().await?;
        let before = self.model().find(mark.tenant, &mark.id);
        let Some(schedule) = before.as_ref().filter(|schedule| schedule.status != Status::Cancelled) else {
            return Ok(Marked { before, applied: true });
        };
        if self.options.applies_marks {
            self.model().cancel(schedule.incarnation);
        } else {
            call.step().await?;
            self.model().append_mark(schedule.poller.shard(), schedule.incarnation);
        }
        Ok(Marked { before, applied: self.options.applies_marks })
    }

    /// Looks each of `names` up, each at a moment of its own on the weak engine.
    async fn read<N, T>(&self, names: Vec<N>, look: impl Fn(&Model, N) -> T) -> Result<Vec<T>, StoreError> {
        let mut call = self.begin(Access::Read, names.len()).await?;
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            call.step().await?;
            found.push(look(&self.model(), name));
        }
        call.end(found).await
    }

    /// One effect, in one step.
    async fn change<T>(&self, access: Access, change: impl FnOnce(&mut Model) -> T) -> Result<T, StoreError> {
        let call = self.begin(access, 1).await?;
        let answer = change(&mut self.model());
        call.end(answer).await
    }
}

impl Store for MemoryStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, inserts.len() * 3).await?;
            let mut answers = Vec::with_capacity(inserts.len());
            for insert in inserts {
                answers.push(self.insert_one(&mut call, insert).await?);
            }
            call.end(answers).await
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>> {
        Box::pin(self.read(pollers, |model, poller| model.positions(poller).closed))
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, rows.len() * 2).await?;
            let mut answers = Vec::with_capacity(rows.len());
            for (poller, key) in rows {
                answers.push(self.place_one(&mut call, poller, key).await?);
            }
            call.end(answers).await
        })
    }

    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>> {
        Box::pin(async move {
            let mut call = self.begin(Access::User, marks.len() * 2).await?;
            let mut answers = Vec::with_capacity(marks.len());
            for mark in marks {
                answers.push(self.mark_one(&mut call, mark).await?);
            }
            call.end(answers).await
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

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        Box::pin(self.read(occurrences, |model, occurrence| model.run(&occurrence).cloned()))
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.change(Access::Read, move |model| model.runs(incarnation, after, limit)))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        Box::pin(self.change(Access::Read, move |model| model.dead_letters(tenant, after, limit)))
    }

    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>> {
        Box::pin(self.read(tenants, Model::active))
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

    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)> {
        Box::pin(self.change(Access::Read, move |model| {
            let (told, cursor) = model.arrivals.read(&shards, cursor, limit);
            (told.into_iter().map(|(_, arrival)| arrival).collect(), cursor)
        }))
    }

    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        Box::pin(self.change(Access::Read, move |model| model.marks.read(&shards, cursor, usize::MAX)))
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(self.read(reads, |model, read| model.due(&read)))
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        Box::pin(async move {
            let mut call = self.begin(Access::Owner, writes.len() * 3).await?;
            let mut answers = Vec::with_capacity(writes.len());
            for write in writes {
                answers.push(self.write_one(&mut call, write).await?);
            }
            call.end(answers).await
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>> {
        Box::pin(async move {
            let mut call = self.begin(Access::Owner, lists.len()).await?;
            let mut answers = Vec::with_capacity(lists.len());
            for list in lists {
                call.step().await?;
                answers.push(self.model().hand_over(list));
            }
            call.end(answers).await
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        Box::pin(self.read(shards, Model::handed_over))
    }
}
