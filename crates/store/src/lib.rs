//! Store port: the interface to schedules, due rows, runs and ownership of shards. This documentation states the
//! contract that every engine keeps. It does not describe how an engine works.
//!
//! The contract assumes the weakest engine. Such an engine cannot write a schedule row and a due row atomically, and
//! has no transaction across shards. Some engines combine several steps. A result then states which later step the
//! caller can skip ([`Placed::settled`], [`CancellationResult::applied`]). Every call takes a batch. A batch is not a
//! transaction: the engine accepts or rejects each item separately, in order.
//!
//! There are two kinds of callers:
//! - *Any member* inserts schedules, places due rows, appends cancellation records and reads rows.
//! - *The owner of a shard* makes every change to an existing schedule through [`Store::write`], under the term that
//!   [`Store::take`] assigned to the owner. The engine rejects a write under an older term.
//!
//! A poller has two durable positions, `done` and `closed`. Positions are instants, and `done` <= `closed`. Every
//! occurrence at or before `done` has an outcome. A creator leaves a due row at or before `closed` only if the owner is
//! certain to read the row. The modules `creator` and `owner` of `scheduler` define the order in which creators and
//! owners write and read `closed` and due rows. An engine stores the two positions, and its reads are linearizable. The
//! positions only increase, except in a change [`Change::Reopen`]. An engine drops due rows only by the position `done`
//! that it reads in the same step. It therefore never drops, after a change [`Change::Reopen`], a row by the position
//! from before this change. It may have dropped a row before the change, and the creator of the row may still wait for
//! its confirmation. A creator therefore writes its row again if [`Closed::reopened`] has increased.
//!
//! A reader may observe a state between two steps of these calls:
//! - [`Change::Advance`] writes the schedule's `next` before the due row.
//! - [`Store::insert`], [`Change::Put`] and [`Change::PutIf`] may write the due row before the schedule.
//! - [`Change::Run`] first writes the due row of the retry (`then`), then the run, and last the end of the schedule.
//! - [`Change::Redrive`] writes the due row before it removes the dead letter.
//!
//! Each of these steps is atomic. If a call fails, or its caller drops it, the effects of its completed steps remain. A
//! due row may therefore have no schedule, or may name a revision that a later [`Change::Put`] gives to another spec.
//! For this reason the owner checks that the schedule has the revision *and* the instant of the row. A final run may
//! belong to a one-shot schedule that is still active. The owner that finds such a run writes [`Change::End`].
//!
//! Invariant: a write that the engine acknowledged with `Ok` is durable, and every later read observes it.
//!
//! docs/decisions/0031-store-incarnations-in-cancellation-records.md gives the reasons for the design.
//! docs/decisions/0032-assign-a-chosen-id-in-one-step.md gives the reasons for the design.

pub mod audit;
mod encrypted_store;
pub mod encryption;
mod error;
pub mod inbox;
pub mod listing;
pub mod report;
pub mod runs;

pub mod memory;

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Audit, Author, DueKey, Incarnation, LabelKey, Occurrence, PastTiming, PollerId, Precondition, Revision, RunOrigin,
    Schedule, ScheduleId, ScheduleVersion, ShardId, Status, Tenant, TenantId, Term, Timestamp,
};
use futures_util::future::BoxFuture;

pub use encrypted_store::EncryptedStore;
pub use encryption::{Keyring, StoreKey};
pub use error::{StoreError, WriteRejection};
pub use inbox::{Inbox, InboxEntry, InboxRead, InboxRequest, InboxState};
pub use report::{CountPage, CountRead};
pub use runs::{RunList, RunRead};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Interface of a store engine. The documentation of the crate states the contract.
///
/// # Errors
/// Every method returns [`StoreError`] if the whole call fails. The caller then does not know which items took effect.
pub trait Store: Send + Sync + 'static {
    // Methods that every member may call.

    /// Writes each schedule, its due row and its entry in the insert log. The due row is durable before the schedule,
    /// or together with it.
    ///
    /// The assignment of an id is one atomic step. If several concurrent calls (including [`Change::Put`]) request the
    /// same free id, exactly one call takes the id, no matter which members make the calls. If several items of one
    /// call request the same free id, the first item takes it.
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>>;

    /// Returns the position `closed` of each poller. The engine reads the values after this call began.
    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>>;

    /// Writes due rows of existing schedules, and their entries in the insert log. A second write of the same row is
    /// harmless. The engine does not compare the revision of a row with the revision of its schedule.
    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>>;

    /// Appends cancellation records to the home shards of the named schedules.
    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>>;

    /// Returns the schedules that have these ids now: one result for each of `names`, in the same order. A cancelled
    /// schedule keeps its id until another schedule takes the id.
    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// Returns the schedules of these incarnations: one result for each, in the same order. The result includes
    /// schedules whose id another schedule has taken. An owner loads a schedule by its incarnation before it fires the
    /// schedule.
    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// Returns a page of the incarnations of schedules that may match the filter `read.by`. The module [`listing`]
    /// loads these schedules and applies the filter to them.
    fn list(&self, read: ListRead) -> Answer<'_, ListPage>;

    /// Returns a page of the ids that users chose or that were derived from idempotency keys, in byte order. The page
    /// contains an id if a schedule has the id before and during this call, even if the schedule is cancelled. The page
    /// omits every server-made id, because such an id is equal to [`ScheduleId::from_incarnation`] of the incarnation
    /// of its schedule. An engine therefore needs no row for a server-made id.
    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage>;

    /// Returns the run record of each occurrence. A result is `None` if the occurrence has no record yet.
    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>>;

    /// Returns up to `limit` recorded runs of a schedule, in the order of [`Occurrence`]. The runs follow the
    /// occurrence `after`.
    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// Returns up to `limit` past timings of a schedule, in the order of their revisions. Their revisions are at or
    /// after `from`. A change that gives a schedule a new revision also writes the timing of the old revision, in the
    /// same step. [`Store::maintain`] deletes past timings by the same rule as runs.
    fn past_timings(&self, incarnation: Incarnation, from: Revision, limit: usize) -> Answer<'_, Vec<PastTiming>>;

    /// Returns a page of the runs that match `read`, in the order of [`Occurrence::by_time`] or in the reverse order.
    /// The module [`runs`] combines these pages with conditions on the schedules of the runs. An engine examines at
    /// most [`runs::EXAMINED_MAX`] runs in one call, also for many schedules and all states. It may end the page before
    /// it has examined this many, for example because the range is long, and may then return an empty page.
    ///
    /// # Errors
    /// Returns [`StoreError::Unindexed`] if an earlier build wrote the store, and the engine has not yet completed the
    /// index of its runs. A read of single schedules needs no index.
    fn list_runs(&self, read: RunRead) -> Answer<'_, RunList>;

    /// Returns the counts of the final runs of a tenant, hour by hour. The engine maintains the counts, so the call
    /// does not read the runs. The result includes every final run whose write the engine acknowledged before this
    /// call began, and no run twice. The module [`report`] combines the counts of several hours.
    fn counts(&self, read: CountRead) -> Answer<'_, CountPage>;

    /// Returns up to `limit` dead letters of a tenant, in the order of [`Occurrence`]. Their occurrences follow
    /// `after`. A dead letter is a failed run that no caller has redriven.
    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// Returns the numbers of stored schedules and bytes of each of these tenants. The engine maintains these numbers,
    /// so the call does not read the rows. The result includes every write that the engine acknowledged before this
    /// call began.
    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>>;

    /// Returns all tenants.
    fn tenants(&self) -> Answer<'_, Vec<Tenant>>;

    /// Creates or changes a tenant. Rejects the change with [`Outdated`] if the tenant exists and its version is not
    /// `tenant.version - 1`. The same step appends `entry`, which has the new version, to the tenant's audit log.
    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>>;

    /// Returns the entries of a tenant's audit log after version `after`, the oldest first.
    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>>;

    /// Returns the health of the store: whether it currently accepts calls and user writes. The call is cheap, because
    /// it reads only memory.
    fn health(&self) -> Health;

    /// Deletes rows that no member needs. One member calls this method periodically. The engine may delete history that
    /// is older than [`Tenant::history_from`] of its tenant: final runs, and ended or cancelled schedules.
    /// `history_from` is the limit of a tenant without a class of retention, and of the records of the incarnations
    /// that puts requested. It may also delete the counts of hours that end before [`Tenant::history_from`]. The engine
    /// keeps a run whose nominal instant is after its poller's `done`. Owners that fire
    /// schedules never wait for this call. Returns the number of deleted units, whose size the engine chooses. If the
    /// number is not 0, there may be more rows to delete.
    fn maintain(&self, _now: Timestamp, _history_from: Timestamp) -> Answer<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Returns the latest epoch of the store that this process knows. Terms of earlier epochs are void: the store has
    /// returned to an earlier state since the owner took its shard, so the owner has lost the shard. The store learns
    /// of an epoch at the latest in the next successful call of [`Store::cancellations`]. The call reads only memory.
    /// The default is for an engine that never returns to an earlier state while it is open.
    fn epoch(&self) -> u64 {
        0
    }

    // Methods that only the owner of a shard may call.

    /// Assigns a new term to each shard. The term is higher than every earlier term of the shard. After this call the
    /// engine rejects writes under older terms.
    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>>;

    /// Returns the positions of each poller. Both positions are [`Timestamp::MIN`] if no owner has ever raised them.
    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>>;

    /// Reads the insert logs of these shards: the due rows that [`Store::insert`] and [`Store::place`] wrote after
    /// `cursor`. Returns at most about `limit` entries, and the cursor for the next call. The result may repeat an
    /// entry, and may contain an entry whose call has not returned yet. It need not contain rows that [`Store::write`]
    /// wrote, because the owner already knows these rows. It also need not contain rows that members wrote before the
    /// caller opened this store. For this reason a member that takes a shard calls this method once, and then reads the
    /// shard's due rows after `done`.
    ///
    /// The engine may delete the entries of these shards at or before a cursor that a caller has presented. A caller
    /// must therefore present a cursor only if it certainly owned these shards when it received the cursor.
    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)>;

    /// Reads the cancellation records of these shards after `cursor`. The cursor has the same meaning as in
    /// [`Store::insert_log`]. A record names an incarnation, so that a repeated record does not cancel a later schedule
    /// with the same id. The result omits records that the engine has applied itself. A caller must present a cursor
    /// only after it has durably processed every record before the cursor, because the engine may then delete these
    /// records.
    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)>;

    /// Returns one page of due rows for each of `reads`, in key order. A page contains every row of its range whose
    /// write the engine acknowledged before this call began. It may omit rows at or before the poller's `done`.
    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>>;

    /// Makes the changes in `writes`, each under the term that the owner passes with it. Returns a result for each
    /// change. The changes of one schedule or poller take effect in the order of `writes`. Concurrent calls take effect
    /// in any order.
    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>>;

    /// Stores the list of each shard's attempts in flight, and replaces the earlier list. An owner that releases
    /// a shard leaves this list to the next owner. The engine writes each list under the owner's term, and returns a
    /// result for each list.
    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>>;

    /// Returns, for each shard, the last list of attempts that an owner handed over. The store keeps the list when a
    /// member takes the shard. The list is empty if no owner has handed over attempts. A new owner reads the list after
    /// [`Store::take`].
    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>>;
}

/// Rejection of a change of a tenant, because the stored version is not the version that the change expects. The caller
/// reads the tenant again and decides whether to repeat the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outdated;

/// Asserts the preconditions of [`Store::put_tenant`]. Every engine calls this function.
///
/// # Panics
/// Panics if a precondition does not hold.
pub fn check_put_tenant(tenant: &Tenant, entry: &Audit) {
    let is_operators = tenant.id == Tenant::OPERATOR;
    assert_eq!(tenant.generations.is_empty(), is_operators, "every tenant except the operator tenant has pollers");
    assert_eq!(tenant.version, entry.version, "the version of an audit entry equals the new version of its tenant");
    assert!(is_operators || tenant.store_keys.is_empty(), "only the operator tenant has store keys");
    assert!(
        is_operators || tenant.header_binding.is_none(),
        "only the operator tenant has the record of header binding"
    );
    assert_eq!(tenant.quotas.first_above(&tenant.ceilings), None, "every quota is at most its ceiling");
}

/// Amount of data that the store contains for one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Number of active schedules.
    pub active: u64,
    /// Number of ended schedules that [`Store::maintain`] has not deleted yet.
    pub ended: u64,
    /// Number of cancelled schedules that [`Store::maintain`] has not deleted yet.
    pub cancelled: u64,
    /// Size in bytes of all schedules, past timings, runs and counts of the tenant. A schedule counts at least the
    /// bytes of its payload. An engine adds a fixed number of bytes per row for keys and states, and does not count
    /// due rows.
    pub bytes: u64,
}

impl Usage {
    /// Returns a mutable reference to the number of schedules with this status.
    pub fn count_mut(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::Active => &mut self.active,
            Status::Ended => &mut self.ended,
            Status::Cancelled => &mut self.cancelled,
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(usages: I) -> Usage {
        usages.fold(Usage::default(), |sum, usage| Usage {
            active: sum.active + usage.active,
            ended: sum.ended + usage.ended,
            cancelled: sum.cancelled + usage.cancelled,
            bytes: sum.bytes + usage.bytes,
        })
    }
}

/// Position in a log of the engine. Only the engine interprets the number. [`Cursor::default`] is the beginning of the
/// log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor(pub u64);

#[derive(Clone, Debug)]
pub struct Insert {
    /// New schedule, whose status is active. Either the server derived its id from the incarnation
    /// ([`ScheduleId::from_incarnation`]), or the user chose the id.
    pub schedule: Arc<Schedule>,
    pub due: DueKey,
    /// Id of the API key that requested the put, for the past timing of the revision that the put replaces. `None` if
    /// the caller does not know the key.
    pub by: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inserted {
    Placed(Placed),
    /// The engine did not create the schedule, for one of two reasons. The first is that a schedule that is not
    /// cancelled already has the id. The second is that an earlier insert or put of the same incarnation took effect,
    /// for example in a call that failed. The field is the incarnation of the schedule that has the id.
    Exists(Incarnation),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Position of the row. It is the requested position, or the first instant after `closed` if the engine found that
    /// the requested position is at or before `closed`.
    pub position: Timestamp,
    /// True if the engine confirmed the placement: it compared `position` with `closed` in the same step as the write,
    /// or after the row was durable, and found that `position` is later. In the second case, it also found that
    /// [`Closed::reopened`] is 0. If the field is false, the creator confirms the placement. The creator calls
    /// [`Store::closed`] after the write. It calls [`Store::place`] again if the row is at or before `closed`, or if
    /// [`Closed::reopened`] may have increased since the write.
    pub settled: bool,
}

/// Cancellation record: a durable request to cancel a schedule. The owner of the schedule's home shard processes the
/// record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancellation {
    pub tenant: TenantId,
    pub id: ScheduleId,
    /// Actor and instant of the cancellation, for the past timing that the cancellation writes. `None` if the caller
    /// does not know them.
    pub author: Option<Author>,
}

#[derive(Clone, Debug)]
pub struct CancellationResult {
    /// State of the schedule before the cancellation record. `None` if no schedule has the id.
    pub before: Option<Arc<Schedule>>,
    /// True if the owner need not process the record. The field is true if the engine itself cancelled the active or
    /// ended schedule, with the same effect as [`Change::Cancel`]. It is also true if no active or ended schedule had
    /// the id.
    pub applied: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Positions {
    pub closed: Timestamp,
    pub done: Timestamp,
}

/// Position `closed` of a poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Closed {
    pub at: Timestamp,
    /// Number of changes [`Change::Reopen`] of the poller.
    pub reopened: u32,
    /// Latest `closed` from which a change [`Change::Reopen`] set the poller back. [`Timestamp::MIN`] if there was no
    /// such change.
    pub reopened_from: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsertLogEntry {
    pub poller: PollerId,
    pub key: DueKey,
}

/// Read of at most `limit` due rows of `poller`, from `after` (exclusive) to the position `until` (inclusive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueRead {
    pub poller: PollerId,
    pub after: DueBound,
    pub until: Timestamp,
    pub limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueBound {
    /// The read starts at the first position after this instant.
    Instant(Timestamp),
    /// The read starts at the first key after this key. The first key may have the same position as this key.
    Key(DueKey),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DuePage {
    pub keys: Vec<DueKey>,
    /// Position of the first row after `keys`. The position may be before or after `until`. `None` if the poller has no
    /// more rows.
    pub next: Option<Timestamp>,
}

/// Read of at most `limit` schedules of `tenant` that may match `by`, in `order`. The read starts after the incarnation
/// `after`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRead {
    pub tenant: TenantId,
    pub by: ListBy,
    pub order: Order,
    pub after: Option<Incarnation>,
    pub limit: usize,
}

/// Order of the incarnations in a listing. A lower incarnation is older, according to the creators' clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The incarnations rise.
    #[default]
    Oldest,
    /// The incarnations fall.
    Newest,
}

impl Order {
    /// Returns true if `incarnation` comes after `after` in this order. Every incarnation comes after `None`, which is
    /// the beginning of the listing.
    #[must_use]
    pub fn is_after(self, incarnation: Incarnation, after: Option<Incarnation>) -> bool {
        after.is_none_or(|after| match self {
            Order::Oldest => incarnation > after,
            Order::Newest => incarnation < after,
        })
    }
}

/// Filter of a listing. A filter has one criterion, because every engine must serve it from an index without reads of
/// other schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListBy {
    All,
    Status(Status),
    Label(LabelKey),
}

/// Page of incarnations, in the order of the read. Up to `next`, the page contains every schedule that still has its id
/// and that matched the filter before and during the call. It may also contain schedules that do not match, for three
/// reasons: the schedule has changed, another schedule has taken its id, or two labels have the same hash. The caller
/// therefore checks each schedule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// Incarnations of the page, at most [`ListRead::limit`]. An engine that has read many rows may return fewer
    /// incarnations, or none.
    pub incarnations: Vec<Incarnation>,
    /// Incarnation after which the next page starts. The current page need not contain this incarnation. `None` if
    /// there are no more incarnations.
    pub next: Option<Incarnation>,
}

/// Read of at most `limit` chosen ids of `tenant` that follow `after` in byte order. `limit` is at least 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenIdRead {
    pub tenant: TenantId,
    pub after: Option<ScheduleId>,
    pub limit: usize,
}

/// Page of chosen ids. The next page starts after the last id of this page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChosenIdPage {
    /// Chosen ids, each with the incarnation of the schedule that has the id. The page is empty only if no chosen id
    /// follows [`ChosenIdRead::after`].
    pub ids: Vec<(ScheduleId, Incarnation)>,
    /// True if further chosen ids may follow the page.
    pub has_more: bool,
}

/// Change by the owner of the shard of `poller`.
#[derive(Clone, Debug)]
pub struct OwnerWrite {
    pub term: Term,
    pub poller: PollerId,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Creates the schedule, or replaces the existing schedule that has the same tenant and id. An active or ended
    /// schedule keeps its incarnation and gets the next revision. If the existing schedule is cancelled, the new
    /// schedule takes its id. A replacement also writes the past timing of the replaced revision. This timing ends at
    /// the `updated_at` of the new schedule. The engine writes `due` with the resulting incarnation and revision. A
    /// replaced schedule keeps its poller and its `created_at`. An engine that confirms placement in [`Store::insert`]
    /// also confirms the placement of this row, and returns the position of the row.
    ///
    /// The engine rejects the change with [`WriteRejection::NotFound`] if the schedule that has the id is cancelled and
    /// an earlier put or insert of this incarnation took effect. This also applies if the earlier put replaced an
    /// existing schedule. A repeated put therefore never reverts a cancellation.
    Put(Insert),
    /// Has the same effect as [`Change::Put`] if the schedule that has the id matches `seen`. If `seen` is `None`, the
    /// condition is that no schedule has the id, not even a cancelled schedule. The engine checks this condition in the
    /// same step as the write. It rejects the change with [`WriteRejection::Changed`] if the condition does not hold.
    PutIf { insert: Insert, seen: Option<Precondition> },
    /// Sets an active or ended schedule to [`Status::Cancelled`], with the next revision and without `next`, and writes
    /// the past timing of the old revision. This timing has the author of the schedule's last cancellation record that
    /// the engine has not applied itself, if there is such a record. The engine
    /// rejects the change with [`WriteRejection::NotFound`] if no schedule has this incarnation, or if the schedule is
    /// cancelled.
    Cancel(Incarnation),
    /// Has the same effect as [`Change::Cancel`] if the schedule has this version. The engine checks the version in the
    /// same step as the cancellation. It rejects the change with [`WriteRejection::Changed`] if the schedule has
    /// another version, does not exist, or is cancelled. The past timing has the given author.
    CancelIf(ScheduleVersion, Option<Author>),
    /// Writes the record of a run. `then`, the due row of a retry, is durable before `run`. If `ends` is true and the
    /// schedule still has the run's revision, the schedule ends as with [`Change::End`]. The engine rejects the whole
    /// change with [`WriteRejection::Resolved`] if the occurrence already has a final record.
    ///
    /// The step that writes a final record also adds the run to the counts of its hour ([`Store::counts`]). `origin` is
    /// the origin of a final run: the properties of its schedule by which the engine counts the run. `None` if the
    /// caller does not know them.
    Run { run: Run, then: Option<DueKey>, ends: bool, origin: Option<RunOrigin> },
    /// Moves a recurring schedule to its next occurrence. The engine sets the schedule's `next` to the instant of
    /// `due`, and then writes `due`. No due row is therefore later than its schedule's `next`. An owner that finds a
    /// due row before the schedule's `next` writes the due row of `next` again. The engine returns [`Written::Done`]
    /// without any effect if the schedule has another revision, is not active, or has a `next` later than `due`. `next`
    /// never decreases.
    Advance { incarnation: Incarnation, revision: Revision, due: DueKey },
    /// Ends a schedule that has no further occurrences. An active schedule becomes [`Status::Ended`], keeps its
    /// revision and loses its `next`. The engine returns [`Written::Done`] without any effect if the schedule has
    /// another revision.
    End { incarnation: Incarnation, revision: Revision },
    /// Writes a due row again at another position.
    Defer(DueKey),
    /// Redrives a dead letter. `due` has the same occurrence with the next replay number. The engine rejects the change
    /// with [`WriteRejection::NotFound`] if `of` is not a dead letter, or if a caller has already redriven it.
    Redrive { of: Occurrence, due: DueKey },
    /// Raises the positions of the poller. Each position becomes the maximum of its old and new value, so it does not
    /// decrease. The caller must ensure `done` <= `closed`. The engine may drop rows at or before `done`, so the owner
    /// must not write such rows.
    Positions(Positions),
    /// Sets the positions of the poller in one step, also to earlier instants. An owner writes this change if its clock
    /// shows that `closed` lies in the future. The owner must write it before any other change under its term. From
    /// this step on, the engine keeps all rows after the new `done`. Earlier, it may have dropped rows at or before the
    /// old `done`. All occurrences of such rows have an outcome.
    Reopen(Positions),
    /// Replaces the header values of a schedule by the same values in another encrypted form. Everything else stays the
    /// same, also the revision. The caller has read the given schedule and has changed only the header values. The
    /// engine does not write its status and its `next`, which other changes may have changed since. The engine returns
    /// [`Written::Done`] without any effect if the schedule has another revision.
    Reencrypt(Arc<Schedule>),
}

/// List of the attempts that are in flight when the owner of `shard` releases the shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandOver {
    pub shard: ShardId,
    pub term: Term,
    pub attempts: Vec<HandedOver>,
}

/// Attempt that an earlier owner had in flight. The new owner waits until `until` for the outcome before it repeats the
/// attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandedOver {
    pub poller: PollerId,
    pub key: DueKey,
    /// Latest instant at which the attempt ends, by the earlier owner's clock.
    pub until: Timestamp,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Written {
    /// Result of [`Change::Put`]: the new state of the schedule, the position of its row, and the status before the
    /// put.
    Put {
        schedule: Arc<Schedule>,
        position: Timestamp,
        before: Option<Status>,
    },
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    Ready,
    /// The disk is nearly full. The store rejects user writes with [`StoreError::Full`], and accepts reads and
    /// owner writes.
    Full,
    /// The engine's server is unreachable. Calls fail until the server is reachable again.
    Unreachable,
    /// The engine is closing or has failed. It accepts no calls.
    Closed,
}
