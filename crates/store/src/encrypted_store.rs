//! Store that encrypts secrets before its engine receives them. No other code of the project encrypts stored secrets.
//!
//! The store does not decrypt the secrets that it reads. A secret stays encrypted until a callback needs the plaintext,
//! and an excerpt of a response until a user reads the run.
//!
//! Invariant: the engine receives no schedule, no tenant and no run with a plaintext secret. The invariant also holds
//! if the caller read the secret from a row that a member wrote before the operator configured encryption.

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId, Tenant,
    TenantId, Term, Timestamp,
};
use runtime::Runtime;

use crate::encryption::Keyring;
use crate::{
    Answer, Cancellation, CancellationResult, Change, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated,
    OwnerWrite, Placed, Positions, RunList, RunRead, Store, Usage, WriteRejection, Written,
};

pub struct EncryptedStore {
    store: Arc<dyn Store>,
    keyring: Arc<Keyring>,
    runtime: Runtime,
}

impl EncryptedStore {
    #[must_use]
    pub fn new(runtime: &Runtime, store: Arc<dyn Store>, keyring: Arc<Keyring>) -> Self {
        EncryptedStore { store, keyring, runtime: runtime.clone() }
    }

    fn encrypt_schedule(&self, schedule: &mut Arc<Schedule>) {
        self.keyring.encrypt_schedule(&self.runtime, schedule);
    }
}

impl Store for EncryptedStore {
    fn insert(&self, mut inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        inserts.iter_mut().for_each(|insert| self.encrypt_schedule(&mut insert.schedule));
        self.store.insert(inserts)
    }

    fn put_tenant(&self, mut tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        self.keyring.encrypt_tenant(&self.runtime, &mut tenant);
        self.store.put_tenant(tenant, entry)
    }

    fn write(&self, mut writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        for write in &mut writes {
            // The match names every variant of `Change`, so that the author of a new variant must decide whether it
            // contains secrets.
            match &mut write.change {
                Change::Put(insert) | Change::PutIf { insert, .. } => self.encrypt_schedule(&mut insert.schedule),
                Change::Reencrypt(schedule) => self.encrypt_schedule(schedule),
                Change::Run { run, .. } => self.keyring.encrypt_run(&self.runtime, run),
                Change::Cancel(_)
                | Change::CancelIf(..)
                | Change::Advance { .. }
                | Change::End { .. }
                | Change::Defer(_)
                | Change::Redrive { .. }
                | Change::Positions(_)
                | Change::Reopen(_) => {}
            }
        }
        self.store.write(writes)
    }

    // The remaining methods of this store write no secrets.

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        self.store.closed(pollers)
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.store.place(rows)
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>> {
        self.store.append_cancellations(marks)
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

    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>> {
        self.store.past_timings(incarnation, from, limit)
    }

    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList> {
        self.store.list_runs(read)
    }

    fn counts(&self, read: CountRead) -> Answer<'_, CountPage> {
        self.store.counts(read)
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.store.dead_letters(tenant, after, limit)
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        self.store.list(read)
    }

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        self.store.list_chosen_ids(read)
    }

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        self.store.usage(tenants)
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

    fn epoch(&self) -> u64 {
        self.store.epoch()
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

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        self.store.insert_log(shards, cursor, limit)
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        self.store.cancellations(shards, cursor)
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        self.store.due(reads)
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        self.store.hand_over(lists)
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.store.handed_over(shards)
    }
}
