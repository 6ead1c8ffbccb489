//! Inbox of the in-memory engine. [`MemoryStore::request`] has the effect of an application's transaction that makes
//! one or more requests and commits.

use std::collections::{BTreeMap, BTreeSet};

use domain::id::ScheduleIdError;
use domain::{Incarnation, PollerId, Quota, ScheduleId, ShardId, Tenant, TenantId, Timestamp};

use super::MemoryStore;
use super::call::Access;
use super::model::Model;
use crate::{Answer, Inbox, InboxEntry, InboxRead, InboxRequest, InboxState, StoreError};

/// Reason why the engine rejects a request. The text begins with the name of the field or of the quota.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InboxRejection {
    #[error("tenant: no tenant has the name {0}")]
    Tenant(String),
    #[error("id: {0}")]
    Id(#[from] ScheduleIdError),
    #[error("pending_max: the tenant has {0} active and requested schedules, which is its quota")]
    PendingMax(u64),
}

/// Request that the owner of its shard rejected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxDeadLetter {
    pub entry: InboxEntry,
    pub reason: String,
}

/// Rows of the inbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    last: u64,
    entries: BTreeMap<u64, (InboxEntry, Timestamp)>,
    dead_letters: BTreeMap<u64, InboxDeadLetter>,
}

impl Rows {
    fn waiting(&self, tenant: TenantId) -> u64 {
        let creates = self.entries.values().filter(|(entry, _)| entry.tenant == tenant && entry.spec.is_some());
        creates.count() as u64
    }

    fn read(&self, read: &InboxRead) -> Vec<InboxEntry> {
        let mut earlier: BTreeMap<(TenantId, &str), BTreeSet<ShardId>> = BTreeMap::new();
        let mut counts: BTreeMap<TenantId, usize> = BTreeMap::new();
        let mut turns: BTreeSet<(usize, u64)> = BTreeSet::new();
        for (number, (entry, _)) in &self.entries {
            let shard = entry.poller.shard();
            let earlier = earlier.entry((entry.tenant, &entry.id)).or_default();
            let is_first = earlier.iter().all(|other| *other == shard);
            earlier.insert(shard);
            if is_first && read.shards.contains(&shard) && !read.except.contains(&entry.tenant) {
                let count = counts.entry(entry.tenant).or_default();
                turns.insert((*count, *number));
                *count += 1;
            }
        }
        let numbers: BTreeSet<u64> = turns.into_iter().take(read.limit).map(|(_, number)| number).collect();
        numbers.iter().map(|number| self.entries[number].0.clone()).collect()
    }

    fn settle(&mut self, moved: &[u64], rejected: Vec<(u64, String)>) {
        for number in moved {
            self.entries.remove(number);
        }
        for (number, reason) in rejected {
            if let Some((entry, _)) = self.entries.remove(&number) {
                self.dead_letters.insert(number, InboxDeadLetter { entry, reason });
            }
        }
    }

    fn state(&self) -> InboxState {
        InboxState {
            waiting: self.entries.len() as u64,
            oldest: self.entries.values().map(|(_, written_at)| *written_at).min(),
            dead_letters: self.dead_letters.len() as u64,
        }
    }
}

impl MemoryStore {
    /// Makes requests in one transaction, and commits it. Returns the incarnation of each entry. If the engine rejects
    /// a request, the transaction has no effect.
    ///
    /// # Errors
    /// Returns an error if the engine rejects one of the requests.
    pub fn request(&self, requests: Vec<InboxRequest>) -> Result<Vec<Incarnation>, InboxRejection> {
        let now = self.runtime.now();
        let mut model = self.model();
        let mut entries = Vec::with_capacity(requests.len());
        for InboxRequest { tenant, id, spec } in requests {
            let known = model.tenants().into_iter().find(|known| known.name == tenant && known.id != Tenant::OPERATOR);
            let known = known.ok_or(InboxRejection::Tenant(tenant))?;
            let poller = newest_poller(&known, &ScheduleId::new(&id)?);
            let own = entries.iter().filter(|entry: &&InboxEntry| entry.tenant == known.id && entry.spec.is_some());
            check_pending(&model, &known, own.count() as u64, spec.is_some())?;
            let incarnation = Incarnation::new(now, self.runtime.random_u128());
            let number = model.inbox.last + 1 + entries.len() as u64;
            entries.push(InboxEntry { number, tenant: known.id, id, poller, incarnation, spec });
        }
        model.inbox.last += entries.len() as u64;
        let incarnations = entries.iter().map(|entry| entry.incarnation).collect();
        model.inbox.entries.extend(entries.into_iter().map(|entry| (entry.number, (entry, now))));
        Ok(incarnations)
    }

    /// Returns the dead letters of the inbox, the oldest entry first.
    #[must_use]
    pub fn inbox_dead_letters(&self) -> Vec<InboxDeadLetter> {
        self.model().inbox.dead_letters.values().cloned().collect()
    }
}

fn newest_poller(tenant: &Tenant, id: &ScheduleId) -> PollerId {
    let pollers = *tenant.generations.last().expect("a tenant has at least one generation of pollers");
    let generation =
        u16::try_from(tenant.generations.len() - 1).expect("a tenant has fewer than 2^16 poller generations");
    PollerId::of(tenant.id, generation, pollers, id)
}

/// Checks the quota of active schedules. `own` is the number of schedules that the same transaction requested before.
fn check_pending(model: &Model, tenant: &Tenant, own: u64, is_create: bool) -> Result<(), InboxRejection> {
    let Some(pending_max) = tenant.quotas.get(Quota::PendingMax).filter(|_| is_create) else { return Ok(()) };
    let used = model.usage(tenant.id).active + model.inbox.waiting(tenant.id) + own;
    if used < u64::from(pending_max) { Ok(()) } else { Err(InboxRejection::PendingMax(used)) }
}

impl MemoryStore {
    /// Makes a call of the inbox. The call is one step in both engines.
    async fn inbox_call<T>(&self, access: Access, step: impl FnOnce(&mut Rows) -> T) -> Result<T, StoreError> {
        self.change(access, |model| step(&mut model.inbox)).await
    }
}

impl Inbox for MemoryStore {
    fn read_inbox(&self, read: InboxRead) -> Answer<'_, Vec<InboxEntry>> {
        Box::pin(self.inbox_call(Access::Read, move |inbox| inbox.read(&read)))
    }

    fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Answer<'_, ()> {
        Box::pin(self.inbox_call(Access::Owner, move |inbox| inbox.settle(&moved, rejected)))
    }

    fn publish_usage(&self) -> Answer<'_, InboxState> {
        Box::pin(self.inbox_call(Access::Read, |inbox| inbox.state()))
    }
}
