//! A store whose engine sees sealed secrets only, whoever writes: the one place where secrets are sealed.
//!
//! It does not open what it reads: a secret stays sealed until a callback goes out with it.
//!
//! Always true here: no schedule and no tenant reaches the engine with a secret in plain, be it one that this build was
//! given or one that it read from before there was a seal.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term, Timestamp,
};
use runtime::Runtime;

use crate::seal::Seal;
use crate::{
    Answer, Arrival, Change, Cursor, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted, ListPage,
    ListRead, Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, WriteRefusal, Written,
};

pub struct SealedStore {
    store: Arc<dyn Store>,
    seal: Arc<Seal>,
    runtime: Runtime,
}

impl SealedStore {
    #[must_use]
    pub fn new(runtime: &Runtime, store: Arc<dyn Store>, seal: Arc<Seal>) -> Self {
        SealedStore { store, seal, runtime: runtime.clone() }
    }

    fn seal_schedule(&self, schedule: &mut Arc<Schedule>) {
        self.seal.seal_schedule(&self.runtime, schedule);
    }
}

impl Store for SealedStore {
    fn insert(&self, mut inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        inserts.iter_mut().for_each(|insert| self.seal_schedule(&mut insert.schedule));
        self.store.insert(inserts)
    }

    fn put_tenant(&self, mut tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        self.seal.seal_tenant(&self.runtime, &mut tenant);
        self.store.put_tenant(tenant, entry)
    }

    fn write(&self, mut writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        for write in &mut writes {
            // Each is named, so that a new one is thought of.
            match &mut write.change {
                Change::Put(insert) | Change::PutIf { insert, .. } => self.seal_schedule(&mut insert.schedule),
                Change::Cancel(_)
                | Change::CancelIf(_)
                | Change::Run { .. }
                | Change::Advance { .. }
                | Change::End { .. }
                | Change::Defer(_)
                | Change::Redrive { .. }
                | Change::Positions(_) => {}
            }
        }
        self.store.write(writes)
    }

    // The others say nothing that is secret.

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>> {
        self.store.closed(pollers)
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.store.place(rows)
    }

    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>> {
        self.store.mark(marks)
    }

    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        self.store.get(names)
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        self.store.load(incarnations)
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        self.store.find_runs(occurrences)
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.store.runs(incarnation, after, limit)
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.store.dead_letters(tenant, after, limit)
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        self.store.list(read)
    }

    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>> {
        self.store.active(tenants)
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        self.store.tenants()
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>> {
        self.store.audit(tenant, after, limit)
    }

    fn health(&self) -> Health {
        self.store.health()
    }

    fn maintain(&self, now: Timestamp, history_from: Timestamp) -> Answer<'_, u64> {
        self.store.maintain(now, history_from)
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        self.store.take(shards)
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        self.store.positions(pollers)
    }

    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)> {
        self.store.arrivals(shards, cursor, limit)
    }

    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        self.store.marks(shards, cursor)
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        self.store.due(reads)
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>> {
        self.store.hand_over(lists)
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.store.handed_over(shards)
    }
}
