//! Access of a member to the store and to the coordination engine over the network.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId, Tenant,
    TenantId, Term,
};
use futures_util::future::BoxFuture;
use membership::{ClaimName, Member, MemberId, Ownership, Renewed, View};
use runtime::Runtime;
use store::{
    Answer, Cancellation, CancellationResult, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DuePage, DueRead, HandOver, HandedOver, Health, Inbox, InboxEntry, InboxRead, InboxState, Insert, InsertLogEntry,
    Inserted, ListPage, ListRead, Outdated, OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage,
    WriteRejection, Written,
};

use super::mutant::Mutant;
use super::net::{ENGINE, Net, STORE};
use super::record::Record;

pub(super) struct RemoteStore {
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) runtime: Runtime,
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) mutant: Option<Mutant>,
}

impl RemoteStore {
    fn over<'a, T: Send + 'a>(&'a self, call: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            if self.net.is_cut(&self.name, STORE) {
                return self.lost("call lost").await;
            }
            let response = call.await;
            if self.net.is_cut(STORE, &self.name) {
                return self.lost("response lost").await;
            }
            response
        })
    }

    async fn lost<T>(&self, reason: &str) -> Result<T, StoreError> {
        self.runtime.sleep(self.net.give_up_after()).await;
        Err(StoreError::Unavailable(reason.to_owned()))
    }

    fn now(&self) -> Duration {
        self.net.sim.elapsed()
    }
}

impl Store for RemoteStore {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        self.over(self.store.insert(inserts))
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        self.over(self.store.closed(pollers))
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>> {
        self.over(self.store.place(rows))
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>> {
        self.over(self.store.append_cancellations(marks))
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

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        self.over(self.store.list_chosen_ids(read))
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>> {
        self.over(self.store.find_runs(occurrences))
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.over(self.store.runs(incarnation, after, limit))
    }

    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>> {
        self.over(self.store.past_timings(incarnation, from, limit))
    }

    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList> {
        self.over(self.store.list_runs(read))
    }

    fn counts(&self, read: CountRead) -> Answer<'_, CountPage> {
        self.over(self.store.counts(read))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>> {
        self.over(self.store.dead_letters(tenant, after, limit))
    }

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        self.over(self.store.usage(tenants))
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

    fn epoch(&self) -> u64 {
        self.store.epoch()
    }

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            self.record.record_take_request(&self.name, &shards);
            let numbers: Vec<u16> = shards.iter().map(|shard| shard.0).collect();
            self.net.sim.note(&format!("{} takes {numbers:?}", self.name));
            let terms = self.over(self.store.take(shards.clone())).await?;
            self.record.record_take(&self.name, shards.into_iter().zip(terms.iter().copied()));
            Ok(terms)
        })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>> {
        self.over(self.store.positions(pollers))
    }

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        self.over(self.store.insert_log(shards, cursor, limit))
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        if self.mutant == Some(Mutant::RenewsWithoutCancellations) && cursor != Cursor::default() {
            return Box::pin(std::future::ready(Ok((Vec::new(), cursor))));
        }
        self.over(self.store.cancellations(shards, cursor))
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        self.over(self.store.due(reads))
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        let newest = |write: &OwnerWrite| self.record.newest_term(write.poller.shard()).unwrap_or(write.term);
        let is_old: Vec<bool> = writes.iter().map(|write| write.term < newest(write)).collect();
        let mut writes = writes;
        if self.mutant == Some(Mutant::ForgetsTerms) {
            for write in &mut writes {
                write.term = newest(write);
            }
        }
        Box::pin(async move {
            let responses = self.over(self.store.write(writes)).await?;
            for (response, is_old) in responses.iter().zip(is_old) {
                if is_old && !matches!(response, Err(WriteRejection::Superseded)) {
                    let violation = format!(
                        "old term: a write of {} under an old term was not rejected, but returned {response:?}",
                        self.name
                    );
                    self.record.record_violation(violation);
                }
            }
            Ok(responses)
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        let mut lists = lists;
        if self.mutant == Some(Mutant::HandsOverNothing) {
            lists.iter_mut().for_each(|list| list.attempts.clear());
        }
        Box::pin(async move {
            let started_at = self.now();
            let numbers: Vec<(u16, usize)> = lists.iter().map(|list| (list.shard.0, list.attempts.len())).collect();
            self.net.sim.note(&format!("{} hands over {numbers:?}", self.name));
            self.record.record_hand_over(lists.iter().map(|list| list.shard));
            let response = self.over(self.store.hand_over(lists)).await;
            if response.is_err() {
                self.record.record_interruption(&self.name, started_at..=self.now());
            }
            response
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.over(self.store.handed_over(shards))
    }
}

impl Inbox for RemoteStore {
    fn read_inbox(&self, read: InboxRead) -> Answer<'_, Vec<InboxEntry>> {
        Box::pin(async move {
            let mut entries = self.over(self.inbox.read_inbox(read)).await?;
            if self.mutant == Some(Mutant::SettlesBeforeCreating) {
                let numbers = entries.iter().map(|entry| entry.number).collect();
                self.over(self.inbox.settle_inbox(numbers, Vec::new())).await?;
            }
            if self.mutant == Some(Mutant::ReversesTheInbox) {
                entries.reverse();
            }
            Ok(entries)
        })
    }

    fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Answer<'_, ()> {
        self.over(self.inbox.settle_inbox(moved, rejected))
    }

    fn publish_usage(&self) -> Answer<'_, InboxState> {
        self.over(self.inbox.publish_usage())
    }
}

pub(super) struct RemoteOwnership {
    pub(super) net: Net,
    pub(super) record: Record,
    pub(super) name: String,
    pub(super) runtime: Runtime,
    pub(super) ownership: Arc<dyn Ownership>,
    pub(super) mutant: Option<Mutant>,
}

impl RemoteOwnership {
    fn with_bug(&self, renewed: Renewed) -> Renewed {
        match self.mutant {
            Some(Mutant::ConfirmsFastClocks) => Renewed { engine_now: renewed.engine_now.max(self.runtime.now()) },
            _ => renewed,
        }
    }

    /// Runs a call over the network. If the network loses the call or its response, the call never returns, and the
    /// caller's timeout ends it.
    fn over<'a, T: Send + 'a>(&'a self, call: membership::Answer<'a, T>) -> membership::Answer<'a, T> {
        Box::pin(async move {
            if self.net.is_cut(&self.name, ENGINE) {
                return std::future::pending().await;
            }
            let response = call.await;
            if self.net.is_cut(ENGINE, &self.name) {
                return std::future::pending().await;
            }
            response
        })
    }

    fn note(&self, verb: &str, names: &[ClaimName]) {
        let shards: Vec<u16> = names.iter().filter_map(|name| Some(name.to_shard()?.0)).collect();
        self.net.sim.note(&format!("{} {verb}s {shards:?}", self.name));
    }
}

impl Ownership for RemoteOwnership {
    fn join(&self, member: Member, lease: Duration) -> membership::Answer<'_, Renewed> {
        Box::pin(async move {
            let id = member.id;
            let renewed = self.over(self.ownership.join(member, lease)).await?;
            self.record.record_join(&self.name, id);
            Ok(self.with_bug(renewed))
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> membership::Answer<'_, Renewed> {
        Box::pin(async move { Ok(self.with_bug(self.over(self.ownership.renew(member, lease)).await?)) })
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
