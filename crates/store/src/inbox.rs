//! Inbox port: the interface to requests that applications wrote inside their own transactions. An engine has an inbox
//! if applications can use its database.
//!
//! The engine checks a request in the application's transaction. It rejects a request for an unknown tenant, with a
//! malformed id, or beyond a quota of the tenant. It does not judge a spec completely, because only the owner of the
//! shard can judge a cron expression, a time zone and the egress policy of the tenant.
//!
//! A request becomes an entry of the inbox when its transaction commits. The entry contains the poller of the schedule:
//! a poller of the generation that was the tenant's newest one at the request. The owner of the poller's shard reads
//! the entry, makes its effect durable, and then settles the entry. A read deletes no entries, so a member may read an
//! entry that another member has already processed. A second create is harmless, because the entry contains the
//! incarnation of the schedule.
//!
//! docs/decisions/0209-let-owners-move-the-entries-of-the-inbox.md gives the reasons for the design.

use std::sync::Arc;

use domain::{Incarnation, PollerId, ShardId, TenantId, Timestamp};

use crate::Answer;

/// Interface to the inbox of a store engine. The documentation of the module states the contract.
///
/// # Errors
/// Every method returns [`crate::StoreError`] if the whole call fails. The caller then does not know whether the call
/// took effect.
pub trait Inbox: Send + Sync + 'static {
    /// Returns at most `read.limit` entries of committed transactions, in the order of their numbers. The result
    /// contains only entries whose poller belongs to one of `read.shards`, and no entries of the tenants in
    /// `read.except`. If more entries match, the tenants take turns: each tenant gets about the same number of entries,
    /// the oldest ones first.
    ///
    /// A request that a client makes after the commit of another request has the higher number. The requests of two
    /// overlapping transactions have no defined order. If several entries have the same tenant and id, the result omits
    /// an entry as long as the inbox contains an earlier entry of another shard.
    fn read_inbox(&self, read: InboxRead) -> Answer<'_, Vec<InboxEntry>>;

    /// Deletes the entries in `moved`. Turns each entry in `rejected` into a dead letter with the reason, in one atomic
    /// step. The call ignores numbers that no entry has.
    fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Answer<'_, ()>;

    /// Publishes the usage of each tenant that has entries in the inbox. The check of a request reads the published
    /// usage without a lock. Every member calls this method about once per second. The engine may skip a publication if
    /// another member has just made one. Returns the state of the inbox.
    fn publish_usage(&self) -> Answer<'_, InboxState>;
}

/// Request of an application, as the application passes it to the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxRequest {
    /// Name of a tenant.
    pub tenant: String,
    pub id: String,
    /// Spec of the schedule to create, as the text of a JSON object. If `None`, the request cancels the schedule that
    /// has the id.
    pub spec: Option<String>,
}

/// Read of the oldest entries of the inbox.
#[derive(Clone, Debug)]
pub struct InboxRead {
    pub shards: Arc<[ShardId]>,
    pub except: Vec<TenantId>,
    pub limit: usize,
}

/// Request that an application has written to the inbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxEntry {
    /// Number of the entry, which the caller passes to [`Inbox::settle_inbox`].
    pub number: u64,
    pub tenant: TenantId,
    /// Text of an id. The engine has checked its form.
    pub id: String,
    /// Poller of the schedule to create.
    pub poller: PollerId,
    /// Incarnation of the schedule to create.
    pub incarnation: Incarnation,
    /// Spec as the text of a JSON object. If `None`, the request cancels the schedule that has the id.
    pub spec: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InboxState {
    /// Number of entries that no owner has settled yet.
    pub waiting: u64,
    /// Instant at which an application wrote the oldest entry, by the engine's clock. `None` if there is no entry.
    pub oldest: Option<Timestamp>,
    /// Number of dead letters that no operator has deleted yet.
    pub dead_letters: u64,
}
