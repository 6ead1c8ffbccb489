//! The store and the coordination engine, as a member reaches them over the network.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term, Timestamp,
};
use futures_util::future::BoxFuture;
use membership::{ClaimName, Member, MemberId, Ownership, Renewed, View};
use runtime::Runtime;
use store::{
    Answer, Arrival, Cursor, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted, ListPage, ListRead,
    Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, StoreError, WriteRefusal, Written,
};

use super::mutant::Mutant;
use super::net::{ENGINE, Net, STORE};
use super::record::Record;

pub(super) struct FarStore {
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) runtime: Runtime,
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
    pub(super) mutant: Option<Mutant>,
}

impl FarStore {
    fn over<'a, T: Send + 'a>(&'a self, call: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            if self.net.is_cut(&self.name, STORE) {
                return self.lost("the call got lost").await;
            }
            let answer = call.await;
            if self.net.is_cut(STORE, &self.name) {
                return self.lost("the answer got lost").await;
            }
            answer
        })
    }

    async fn lost<T>(&self, what: &str) -> Result<T, StoreError> {
        self.runtime.sleep(self.net.give_up_after()).await;
        Err(StoreError::Unavailable(what.to_owned()))
    }

    fn now(&self) -> Duration {
        self.net.sim.elapsed()
    }
}

impl Store for FarStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        self.over(self.store.insert(inserts))
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>> {
        self.over(self.store.closed(pollers))
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.over(self.store.place(rows))
    }

    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>> {
        self.over(self.store.mark(marks))
    }

    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        self.over(self.store.get(names))
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>> {
        self.over(self.store.load(incarnations))
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        self.over(self.store.list(read))
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        self.over(self.store.find_runs(occurrences))
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.over(self.store.runs(incarnation, after, limit))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.over(self.store.dead_letters(tenant, after, limit))
    }

    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>> {
        self.over(self.store.active(tenants))
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        self.over(self.store.tenants())
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        self.over(self.store.put_tenant(tenant, entry))
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>> {
        self.over(self.store.audit(tenant, after, limit))
    }

    fn health(&self) -> Health {
        self.store.health()
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            self.record.takes(&self.name, &shards);
            let numbers: Vec<u16> = shards.iter().map(|shard| shard.0).collect();
            self.net.sim.note(&format!("{} takes {numbers:?}", self.name));
            let terms = self.over(self.store.take(shards.clone())).await?;
            self.record.took(&self.name, shards.into_iter().zip(terms.iter().copied()));
            Ok(terms)
        })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        self.over(self.store.positions(pollers))
    }

    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)> {
        self.over(self.store.arrivals(shards, cursor, limit))
    }

    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        if self.mutant == Some(Mutant::RenewsWithoutMarks) && cursor != Cursor::default() {
            return Box::pin(std::future::ready(Ok((Vec::new(), cursor))));
        }
        self.over(self.store.marks(shards, cursor))
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        self.over(self.store.due(reads))
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        let newest = |write: &OwnerWrite| self.record.newest(write.poller.shard()).unwrap_or(write.term);
        let is_old: Vec<bool> = writes.iter().map(|write| write.term < newest(write)).collect();
        let mut writes = writes;
        if self.mutant == Some(Mutant::ForgetsTerms) {
            for write in &mut writes {
                write.term = newest(write);
            }
        }
        Box::pin(async move {
            let answers = self.over(self.store.write(writes)).await?;
            for (answer, is_old) in answers.iter().zip(is_old) {
                if is_old && !matches!(answer, Err(WriteRefusal::Superseded)) {
                    self.record.broken(format!("old term: a write of {} is answered {answer:?}", self.name));
                }
            }
            Ok(answers)
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>> {
        let mut lists = lists;
        if self.mutant == Some(Mutant::HandsOverNothing) {
            lists.iter_mut().for_each(|list| list.attempts.clear());
        }
        Box::pin(async move {
            let began_at = self.now();
            let numbers: Vec<(u16, usize)> = lists.iter().map(|list| (list.shard.0, list.attempts.len())).collect();
            self.net.sim.note(&format!("{} hands over {numbers:?}", self.name));
            self.record.hands_over(lists.iter().map(|list| list.shard));
            let answer = self.over(self.store.hand_over(lists)).await;
            if answer.is_err() {
                self.record.interrupted(&self.name, began_at..=self.now());
            }
            answer
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.over(self.store.handed_over(shards))
    }
}

pub(super) struct FarOwnership {
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) name: String,
    pub(super) ownership: Arc<dyn Ownership>,
}

impl FarOwnership {
    /// Its caller gives up by itself.
    fn over<'a, T: Send + 'a>(&'a self, call: membership::Answer<'a, T>) -> membership::Answer<'a, T> {
        Box::pin(async move {
            if self.net.is_cut(&self.name, ENGINE) {
                return std::future::pending().await;
            }
            let answer = call.await;
            if self.net.is_cut(ENGINE, &self.name) {
                return std::future::pending().await;
            }
            answer
        })
    }

    fn note(&self, what: &str, names: &[ClaimName]) {
        let shards: Vec<u16> = names.iter().filter_map(|name| Some(name.to_shard()?.0)).collect();
        self.net.sim.note(&format!("{} {what}s {shards:?}", self.name));
    }
}

impl Ownership for FarOwnership {
    fn join(&self, member: Member, lease: Duration) -> membership::Answer<'_, Renewed> {
        Box::pin(async move {
            let id = member.id;
            let seen = self.over(self.ownership.join(member, lease)).await?;
            self.record.joined(&self.name, id);
            Ok(seen)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> membership::Answer<'_, Renewed> {
        self.over(self.ownership.renew(member, lease))
    }

    fn leave(&self, member: MemberId) -> membership::Answer<'_, ()> {
        self.over(self.ownership.leave(member))
    }

    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> membership::Answer<'_, Vec<bool>> {
        self.note("claim", &names);
        self.over(self.ownership.claim(member, names))
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> membership::Answer<'_, ()> {
        self.note("release", &names);
        self.over(self.ownership.release(member, names))
    }

    fn view(&self) -> membership::Answer<'_, View> {
        self.over(self.ownership.view())
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        self.ownership.changed()
    }
}
