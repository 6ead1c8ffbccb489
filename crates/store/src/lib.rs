//! The store port: schedules, due rows, runs and ownership of shards. The documentation states the contract that every
//! engine keeps. It does not describe how an engine works.
//!
//! The contract assumes the weakest engine: it has no atomic write over a schedule row and a due row, and no
//! transaction across shards. An engine that combines several steps reports it where this saves the caller work
//! ([`Placed::settled`], [`CancellationResult::applied`]). Every call takes a batch. A batch is not a transaction: the engine
//! accepts or rejects each item separately, in order.
//!
//! There are two kinds of callers:
//! - *Any member* inserts schedules, places due rows, appends cancellation records and reads.
//! - *The owner of a shard* makes every change to an existing schedule through [`Store::write`], under the term that
//!   [`Store::take`] minted for it. The engine rejects a write under an older term.
//!
//! A poller has two durable positions, which are whole instants, with `done` <= `closed`. Every occurrence at or before
//! `done` has an outcome. No creator leaves a due row at or before `closed` unless the owner is certain to read it. The
//! modules `creator` and `owner` of `scheduler` define the order of these steps. An engine stores the two positions and
//! provides linearizable reads.
//!
//! A reader may observe an unfinished sequence of steps:
//! - [`Change::Advance`] writes the schedule's `next` before the due row.
//! - [`Store::insert`], [`Change::Put`] and [`Change::PutIf`] may write the due row before the schedule.
//! - [`Change::Run`] writes `then`, the run, and the end of the schedule, in this order.
//! - [`Change::Redrive`] writes the due row before it removes the dead letter.
//!
//! Each of these steps is atomic. A call that fails or is dropped part-way leaves the steps made so far. A due row may
//! therefore have no schedule, or may name a revision that a later [`Change::Put`] gives to another spec. For this
//! reason the owner checks that the schedule has the row's revision *and* its instant. A final run may belong to a
//! one-shot that is still active; the owner that finds such a run writes [`Change::End`].
//!
//! Invariant: a write that was acknowledged with `Ok` is durable, and every later read observes it.
//!
//! docs/decisions/0031-store-incarnations-in-cancellation-records.md gives the reasons for the design.
//! docs/decisions/0032-assign-a-chosen-id-in-one-step.md gives the reasons for the design.

mod encrypted_store;
pub mod encryption;
mod error;
pub mod listing;

pub mod memory;

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, LabelKey, Occurrence, PollerId, Precondition, Revision, Schedule, ScheduleId,
    ScheduleVersion, ShardId, Status, Tenant, TenantId, Term, Timestamp,
};
use futures_util::future::BoxFuture;

pub use encrypted_store::EncryptedStore;
pub use encryption::{Keyring, StoreKey};
pub use error::{StoreError, WriteRejection};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store engine. The crate's documentation states the contract.
///
/// # Errors
/// Every method fails as a whole with [`StoreError`]. The caller then does not know which items took effect.
pub trait Store: Send + Sync + 'static {
    // Calls that any member makes.

    /// Writes each schedule, its due row and its entry in the insert log. The due row is durable before the schedule,
    /// or together with it.
    ///
    /// Assigning an id is one atomic step: of concurrent calls (including [`Change::Put`]), exactly one takes the id,
    /// whichever members make them. Within a call, the first item takes the id.
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>>;

    /// Returns each poller's `closed`, read after this call began.
    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>>;

    /// Writes due rows of existing schedules, and their entries in the insert log. Writing a row twice is harmless. The
    /// engine does not compare the row's revision with the schedule's.
    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>>;

    /// Appends cancellation records to the home shards of the named schedules.
    fn append_cancellations(&self, marks: Vec<Cancellation>) -> Answer<'_, Vec<CancellationResult>>;

    /// Returns the schedules that have these ids now, in the order and number of `names`. A cancelled schedule keeps
    /// its id until another schedule takes it.
    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// Returns the schedules of these incarnations, as [`Store::get`] does. The result includes schedules whose id
    /// another schedule has taken since. The owner loads a schedule by incarnation before it fires it.
    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// Returns a page of incarnations that match a filter; [`listing`] turns them into schedules.
    fn list(&self, read: ListRead) -> Answer<'_, ListPage>;

    /// Returns the runs' records; `None` for an occurrence that has no record yet.
    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>>;

    /// Returns a schedule's runs that have a record, in the order of [`Occurrence`], from the first after `after`.
    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// Returns a tenant's dead letters (failed and not redriven), in the order of [`Occurrence`], from the first after
    /// `after`.
    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// Returns the number of active schedules of each of these tenants.
    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>>;

    /// Returns all tenants.
    fn tenants(&self) -> Answer<'_, Vec<Tenant>>;

    /// Creates or changes a tenant. Rejects the change with [`Outdated`] if the tenant exists and its version is not
    /// `tenant.version - 1`. The same step appends `entry`, which has the new version, to the tenant's audit log.
    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>>;

    /// Returns the entries of a tenant's audit log after version `after`, the oldest first.
    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>>;

    /// Returns whether the store accepts user writes now. The call reads only memory and is cheap.
    fn health(&self) -> Health;

    /// Deletes rows that are no longer needed. One member calls it periodically. The engine may delete history that was
    /// over before `history_from`: runs, schedules that are over, and the recorded incarnations of puts. Deleted rows
    /// leave no trace. Firing never waits for this call. Returns the amount deleted, in the engine's own units; if it
    /// is not 0, there may be more to delete.
    fn maintain(&self, _now: Timestamp, _history_from: Timestamp) -> Answer<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    // Calls that only the owner of a shard makes.

    /// Mints a new term for each shard, above every earlier one. From then on the engine rejects older terms.
    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>>;

    /// Returns each poller's positions; both are [`Timestamp::MIN`] for a poller that has never had any.
    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>>;

    /// Reads the insert logs of these shards: the due rows that [`Store::insert`] and [`Store::place`] wrote after
    /// `cursor`. Returns about `limit` entries at most, and the cursor for the next call. The result may repeat an
    /// entry, and may contain an entry whose call has not returned yet. It need not contain rows of [`Store::write`],
    /// which the owner already knows, nor rows from before this store was opened: a member that takes a shard calls
    /// this method once and then reads the shard's due rows from `done` on.
    ///
    /// The engine may delete, for these shards, the entries at or before a cursor that a caller has presented. A caller
    /// must therefore present a cursor only if it certainly owned these shards when it received the cursor; entries
    /// that came later belong to another owner.
    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Answer<'_, (Vec<InsertLogEntry>, Cursor)>;

    /// Reads the cancellation records of these shards after `cursor`, as [`Store::arrivals`] reads the insert logs. A
    /// record names an incarnation, so that a repeated record does not cancel a schedule that took the id later. The
    /// result omits records that the engine applied itself. A caller presents a cursor only when it has durably
    /// processed every record before it, because the engine may then delete them.
    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)>;

    /// Returns, for each read, the poller's due rows in key order. The result contains every row whose write was
    /// acknowledged before this call began, but may omit rows at or before the poller's `done`.
    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>>;

    /// Makes changes under terms and returns a result for each. Changes of one schedule or one poller take effect in
    /// their order. Concurrent calls take effect in any order.
    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>>;

    /// Replaces each shard's list of attempts in flight, which an owner that releases the shard leaves to its
    /// successor. Each list is written under its term and has its own result.
    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>>;

    /// Returns the last list that was handed over with each shard, whichever member took the shard since; an empty list
    /// if there is none. A new owner reads it after [`Store::take`].
    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>>;
}

/// Rejection of a change whose tenant has another version now. The caller reads the tenant again and decides again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outdated;

/// Asserts the preconditions of [`Store::put_tenant`]. Every engine calls it.
///
/// # Panics
/// Panics if a precondition does not hold.
pub fn check_put_tenant(tenant: &Tenant, entry: &Audit) {
    let is_operators = tenant.id == Tenant::OPERATOR;
    assert_eq!(tenant.generations.is_empty(), is_operators, "a tenant has pollers, and the operator tenant has none");
    assert_eq!(tenant.version, entry.version, "an audit entry has the version of its change");
    assert!(is_operators || tenant.store_keys.is_empty(), "only the operator tenant has store keys");
    assert_eq!(tenant.quotas.first_above(&tenant.ceilings), None, "a quota does not exceed its ceiling");
}

/// A position in a log of the engine. Only the engine interprets the number. [`Cursor::default`] is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor(pub u64);

#[derive(Clone, Debug)]
pub struct Insert {
    /// New schedule; its status is active. Its id was either derived from the incarnation
    /// ([`ScheduleId::from_incarnation`]) or chosen by the user.
    pub schedule: Arc<Schedule>,
    pub due: DueKey,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inserted {
    Placed(Placed),
    /// Another schedule that is not cancelled has this id, or an insert or put of this incarnation took effect before
    /// (for example in a call that failed), whatever happened to the schedule since. Nothing was written. The field is
    /// the incarnation that has the id.
    Exists(Incarnation),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Position of the row: the requested one, or the first instant after `closed` if the engine found that the poller
    /// had already closed the requested one.
    pub position: Timestamp,
    /// True if the engine confirmed the placement: it compared `position` with `closed`, in the same step as the write
    /// or after the row was durable, and `position` is later. If false, the creator confirms the placement: it calls
    /// [`Store::closed`] after this call, and [`Store::place`] again if `closed` has passed the row.
    pub settled: bool,
}

/// Cancellation record: a durable request to cancel, which the owner of the home shard processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cancellation {
    pub tenant: TenantId,
    pub id: ScheduleId,
}

#[derive(Clone, Debug)]
pub struct CancellationResult {
    /// Schedule as it was before the cancellation record; `None` if there is none.
    pub before: Option<Arc<Schedule>>,
    /// True if the owner has nothing left to do. Either the engine itself set the active or ended schedule to
    /// [`Status::Cancelled`] under the next revision (as [`Change::Cancel`] does), or there was nothing to cancel.
    pub applied: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Positions {
    pub closed: Timestamp,
    pub done: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InsertLogEntry {
    pub poller: PollerId,
    pub key: DueKey,
}

/// Read of the rows of `poller` after `after`, with positions up to and including `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueRead {
    pub poller: PollerId,
    pub after: DueBound,
    pub until: Timestamp,
    pub limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueBound {
    /// Starts at the first position after this instant.
    Instant(Timestamp),
    /// Starts at the first key after this one, which may have the same position.
    Key(DueKey),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DuePage {
    pub keys: Vec<DueKey>,
    /// Position of the first row after `keys`, before or after `until`; `None` if the poller has no more rows.
    pub next: Option<Timestamp>,
}

/// Read of the schedules of `tenant` after `after`, in the order of their incarnations. This is the order of creation,
/// by the clocks of the creators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRead {
    pub tenant: TenantId,
    pub by: ListBy,
    pub after: Option<Incarnation>,
    pub limit: usize,
}

/// Filter for listing. Accepts one criterion, because every engine must serve it from an index without reading other
/// schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListBy {
    All,
    Status(Status),
    Label(LabelKey),
}

/// Page of incarnations. Up to `next`, it contains every schedule that still has its id and that matched the filter
/// both before and during the call. It may contain other schedules: those that no longer match, those whose id another
/// schedule has taken, and those that a hash does not distinguish. The caller therefore checks the schedules
/// themselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// At most `limit` incarnations. An engine that has read many rows may return fewer, or none.
    pub incarnations: Vec<Incarnation>,
    /// Start of the next page: it begins after this incarnation, which may not be in this page. `None` if there are no
    /// more.
    pub next: Option<Incarnation>,
}

/// Change by the owner of `poller`'s shard.
#[derive(Clone, Debug)]
pub struct OwnerWrite {
    pub term: Term,
    pub poller: PollerId,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Creates the schedule, or replaces the existing one of its tenant and id. An active or ended schedule keeps its
    /// incarnation and takes the next revision. A cancelled schedule is superseded by the new incarnation. The engine
    /// writes `due` with the resulting incarnation and revision. An existing schedule keeps its poller and its
    /// `created_at`. An engine that confirms placement in [`Store::insert`] also confirms it here, and returns the
    /// row's position.
    ///
    /// Rejected with [`WriteRejection::NotFound`] if the id's schedule is cancelled and a put or insert of this
    /// incarnation took effect before (also a put over a live schedule). A repeated put therefore never reverts a
    /// cancellation.
    Put(Insert),
    /// Does the same as [`Change::Put`] if the schedule that has the id matches `seen` in the step that assigns or
    /// changes it. With `None`, no schedule may have the id, not even a cancelled one. Otherwise rejected with
    /// [`WriteRejection::Changed`].
    PutIf { insert: Insert, seen: Option<Precondition> },
    /// Sets an active or ended schedule to [`Status::Cancelled`], under the next revision and without `next`. Rejected
    /// with [`WriteRejection::NotFound`] if there is no schedule of this incarnation, or it is cancelled.
    Cancel(Incarnation),
    /// Does the same as [`Change::Cancel`] if the schedule has this version in the same step. Rejected with
    /// [`WriteRejection::Changed`] if it has another version, does not exist, or is cancelled.
    CancelIf(ScheduleVersion),
    /// Writes an outcome. `then`, the due row of a retry, is durable before `run`. If `ends` and the schedule still has
    /// the run's revision, the schedule ends as by [`Change::End`]. Rejected as a whole with [`WriteRejection::Resolved`]
    /// if the occurrence has a final record.
    Run { run: Run, then: Option<DueKey>, ends: bool },
    /// Moves a recurring schedule to its next occurrence: sets the schedule's `next` to the instant of `due`, then
    /// writes `due`. No row is therefore ahead of its schedule. An owner that finds a row behind `next` writes the row
    /// of `next` again. Returns [`Written::Done`] without effect if the revision differs, the schedule is not active,
    /// or its `next` is later: `next` never decreases.
    Advance { incarnation: Incarnation, revision: Revision, due: DueKey },
    /// Ends a schedule that has no further occurrence: an active schedule becomes [`Status::Ended`], keeps its revision
    /// and loses `next`. Returns [`Written::Done`] without effect if the revision differs.
    End { incarnation: Incarnation, revision: Revision },
    /// Writes the row again at a later position.
    Defer(DueKey),
    /// Runs a dead letter again. `due` is for the same occurrence, with the next replay number. Rejected with
    /// [`WriteRejection::NotFound`] if `of` is not a dead letter, or was redriven before.
    Redrive { of: Occurrence, due: DueKey },
    /// Raises the poller's positions: each becomes the maximum of its old and new value, so a position never decreases.
    /// Requires `done` <= `closed`. The engine may drop rows at or before `done`, so the owner writes no row there.
    Positions(Positions),
}

/// Attempts in flight of a shard whose owner releases it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandOver {
    pub shard: ShardId,
    pub term: Term,
    pub attempts: Vec<HandedOver>,
}

/// Attempt that an earlier owner had in flight. The new owner waits for its outcome before it repeats the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandedOver {
    pub poller: PollerId,
    pub key: DueKey,
    /// Latest instant at which the attempt ends, by the earlier owner's clock.
    pub until: Timestamp,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Written {
    /// Result of [`Change::Put`]: the schedule as it is now, the position of its row, and the previous status.
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
    /// The engine's server is unreachable. Calls fail until it is reachable again.
    Unreachable,
    /// The engine is closing or has failed. It accepts no calls.
    Closed,
}
