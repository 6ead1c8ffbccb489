//! The store port: schedules, due rows, runs, ownership of shards. What every engine promises, and nothing of how.
//!
//! The contract is that of the weakest engine: no atomic write over a schedule row and a due row, none across shards.
//! An engine that can do several steps in one does them in one and says so where the caller saves work
//! ([`Placed::settled`], [`Marked::applied`]). Every call is batch-shaped, and a batch is not a transaction: each item
//! succeeds or is refused alone, in order.
//!
//! Two kinds of callers:
//! - *Any member* inserts schedules, places due rows, appends marks and reads.
//! - *The owner of a shard* makes every change to an existing schedule, through [`Store::write`], under the term that
//!   [`Store::take`] minted for it. A write under an older term is refused.
//!
//! A poller has two durable positions, whole instants: `done` <= `closed`. Every occurrence at or before `done` has an
//! outcome; no creator leaves a due row at or before `closed` unless the owner is sure to read it. Who does what, in
//! which order, is told in `scheduler` (`creator`, `owner`); an engine keeps the two numbers and linearizable reads.
//!
//! What may be seen half-done: in [`Change::Advance`] the schedule's `next` comes before its row; in `insert` and in [`Change::Put`] or [`Change::PutIf`] the due row can be there before its schedule; in
//! [`Change::Run`] come `then`, the run, the end of the schedule, in this order; in [`Change::Redrive`] the due row
//! comes before the dead letter is gone. Each of these steps is whole. A call that fails or is dropped half-way leaves
//! the steps made so far: so a due row may have no schedule, or name a revision that a later [`Change::Put`] gives to
//! another spec, and the owner checks that the schedule has the row's revision *and* its instant. A final run may
//! belong to a one-shot that is still active; the owner that comes across it writes [`Change::End`].
//!
//! Always true here: what a call answered `Ok` is durable, and every later read sees it.

mod error;
pub mod listing;
pub mod seal;
mod sealed;

pub mod memory;

use std::sync::Arc;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Edition, Incarnation, LabelKey, Occurrence, PollerId, Revision, Schedule, ScheduleId, Seen, ShardId,
    Status, Tenant, TenantId, Term, Timestamp,
};
use futures_util::future::BoxFuture;

pub use error::{StoreError, WriteRefusal};
pub use seal::{Seal, SealKey};
pub use sealed::SealedStore;

pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// See the crate's documentation for the contract.
///
/// # Errors
/// Every method fails as a whole with [`StoreError`]; then it is not known which items took effect.
pub trait Store: Send + Sync + 'static {
    // Any member.

    /// Writes each schedule, its due row, and its arrival. The due row is durable before, or with, the schedule.
    ///
    /// An id is given in one step, the schedule's own: of calls at once (and [`Change::Put`]), one takes it, whatever
    /// members make them. Within a call the first takes it.
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>>;

    /// Each poller's `closed`, read after this call began.
    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Timestamp>>;

    /// Writes due rows (and their arrivals) of schedules that exist; writing one twice is harmless. Whether a row's
    /// revision is its schedule's is not looked at.
    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> Answer<'_, Vec<Placed>>;

    /// Appends cancel marks to the home shards of the schedules they name.
    fn mark(&self, marks: Vec<Mark>) -> Answer<'_, Vec<Marked>>;

    /// The schedules that have these ids now; a cancelled one until its id is taken again. Order and length as asked.
    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// As [`Store::get`], by incarnation: what the owner fires from. Also those whose id another has taken since.
    fn load(&self, incarnations: Vec<Incarnation>) -> Answer<'_, Vec<Option<Arc<Schedule>>>>;

    /// A page of what a tenant's schedules are listed by; [`listing`] makes schedules of it.
    fn list(&self, read: ListRead) -> Answer<'_, ListPage>;

    /// The runs' records; `None` for an occurrence that has none yet.
    fn find_runs(&self, occurrences: Vec<Occurrence>) -> Answer<'_, Vec<Option<Run>>>;

    /// A schedule's runs that have a record, in the order of [`Occurrence`], from the first after `after`.
    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// A tenant's dead letters (failed and not redriven), in the order of [`Occurrence`], from the first after `after`.
    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> Answer<'_, Vec<Run>>;

    /// How many schedules of each of these tenants are active now.
    fn active(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<u64>>;

    fn tenants(&self) -> Answer<'_, Vec<Tenant>>;

    /// Makes a tenant, or changes it: refused [`Outdated`] if there is one of this id, and its version is not the one before
    /// `tenant.version`. `entry`, which has that version, goes to its audit log in the same step.
    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>>;

    /// A tenant's audit log: its changes after version `after`, the oldest first.
    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Answer<'_, Vec<Audit>>;

    /// Whether writes of users are taken now; a cheap look at memory.
    fn health(&self) -> Health;

    /// The engine's housekeeping, which one member does now and then: what nobody needs any more is dropped, and what was
    /// over before `history_from` may be: runs, schedules that are over, incarnations of puts. That is then as if it had
    /// never been. Nothing that is due waits for this. How much was dropped, in the engine's own units; if anything was,
    /// there may be more.
    fn maintain(&self, _now: Timestamp, _history_from: Timestamp) -> Answer<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    // The owner.

    /// A new term for each shard, above every earlier one; from then on older terms are refused.
    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>>;

    /// Each poller's positions; both [`Timestamp::MIN`] for a poller that never had any.
    fn positions(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Positions>>;

    /// The due rows that [`Store::insert`] and [`Store::place`] wrote to these shards after `cursor`, at most about
    /// `limit`, and the cursor to go on from; a row may be told twice, and one whose call is under way may be told.
    /// Rows of [`Store::write`] need not be told: the owner knows them. Nor need those from before this store was opened:
    /// whoever takes a shard reads its due rows from `done` on, after it called this once. The engine may forget, for
    /// these shards, what is at or before a cursor that a caller has presented. So present a cursor only if its answer
    /// came while these shards were surely owned: what came later is another owner's to hear of.
    fn arrivals(&self, shards: Arc<[ShardId]>, cursor: Cursor, limit: usize) -> Answer<'_, (Vec<Arrival>, Cursor)>;

    /// What the cancel marks of these shards after `cursor` name, as [`Store::arrivals`]: by incarnation, so that a mark
    /// told again does not hit a schedule that took the id later. Only marks that the engine did not apply itself.
    /// Present a cursor only when everything before it has been obeyed durably: the engine may forget it.
    fn marks(&self, shards: Arc<[ShardId]>, cursor: Cursor) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)>;

    /// For each read, the poller's due rows in key order: each row whose writing was answered before this call began.
    /// Rows at or before the poller's `done` may be missing.
    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>>;

    /// Changes under terms, each with its own answer. Items of one schedule or poller take effect in their order; of
    /// two calls at once, in any.
    fn write(&self, writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRefusal>>>;

    /// Replaces each shard's list of attempts in flight: what an owner that lets go tells its successor. Each under its
    /// term, with its own answer.
    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRefusal>>>;

    /// What was last handed over with each shard, whoever took it since; empty if nothing ever was. Read after
    /// [`Store::take`], it is all that an earlier owner had to tell.
    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>>;
}

/// Somebody else changed the tenant meanwhile: read it again, and decide anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outdated;

/// What a caller owes [`Store::put_tenant`]; engines look.
///
/// # Panics
/// If the caller broke that.
pub fn check_put_tenant(tenant: &Tenant, entry: &Audit) {
    let is_operators = tenant.id == Tenant::OPERATOR;
    assert_eq!(tenant.generations.is_empty(), is_operators, "a tenant has pollers, and the operators have none");
    assert_eq!(tenant.version, entry.version, "a change is told with its version");
    assert!(is_operators || tenant.store_keys.is_empty(), "the store's keys are the operators'");
    assert_eq!(tenant.quotas.first_above(&tenant.ceilings), None, "no quota is above its ceiling");
}

/// A place in a stream of an engine; only the engine knows what it means. [`Cursor::default`] is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor(pub u64);

#[derive(Clone, Debug)]
pub struct Insert {
    /// Active, as every schedule begins. `schedule.id` was either made from the incarnation ([`ScheduleId::from_incarnation`]) or chosen by the user.
    pub schedule: Arc<Schedule>,
    pub due: DueKey,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inserted {
    Placed(Placed),
    /// A schedule of this id exists and was not cancelled, or an insert or put of this very incarnation took effect
    /// before (by a call that failed, say), whatever became of it since. Nothing was written; the incarnation is the one that has the id.
    Exists(Incarnation),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Where the row is: as asked, or the first instant after `closed` if the engine saw that its poller had closed that.
    pub position: Timestamp,
    /// The engine compared `position` with `closed`, in the same step as the write or once the row was durable, and it lies
    /// after it. If not, the creator must: by
    /// [`Store::closed`] after this, and [`Store::place`] again if it has passed.
    pub settled: bool,
}

/// A durable wish to cancel, which the owner of the home shard obeys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    pub tenant: TenantId,
    pub id: ScheduleId,
}

#[derive(Clone, Debug)]
pub struct Marked {
    /// The schedule as it was before the mark; `None` if there is none.
    pub before: Option<Arc<Schedule>>,
    /// Nothing is left for the owner to do: the engine has itself made the schedule, active or ended,
    /// [`Status::Cancelled`] under the next revision (as [`Change::Cancel`] does), or there was nothing to cancel.
    pub applied: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Positions {
    pub closed: Timestamp,
    pub done: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub poller: PollerId,
    pub key: DueKey,
}

/// The rows of `poller` after `after`, with positions up to and including `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueRead {
    pub poller: PollerId,
    pub after: DueBound,
    pub until: Timestamp,
    pub limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueBound {
    /// Positions later than this.
    Instant(Timestamp),
    /// Keys after this one, within its instant too.
    Key(DueKey),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DuePage {
    pub keys: Vec<DueKey>,
    /// The position of the first row after these, be it before or after `until`; `None` if the poller has no more.
    pub next: Option<Timestamp>,
}

/// The schedules of `tenant` after `after`, in the order of their incarnations: that of their making, by their makers' clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRead {
    pub tenant: TenantId,
    pub by: ListBy,
    pub after: Option<Incarnation>,
    pub limit: usize,
}

/// What every engine can list schedules by, from one place to the next, without reading those of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListBy {
    All,
    Status(Status),
    Label(LabelKey),
}

/// Every schedule that has its id, is as was asked for, and was so before the call is told, up to `next`; others may be
/// among them: what was so before, what another has taken the id of, what a hash cannot tell apart. So whoever reads
/// looks at the schedules themselves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListPage {
    /// `limit` at most; an engine that has looked at many rows may stop before, even without any.
    pub incarnations: Vec<Incarnation>,
    /// Where the next page begins: after this, which may be no schedule of the page. `None`: there are no more.
    pub next: Option<Incarnation>,
}

/// One change by the owner of `poller`'s shard.
#[derive(Clone, Debug)]
pub struct OwnerWrite {
    pub term: Term,
    pub poller: PollerId,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Makes the schedule, or replaces an existing one of its tenant and id: an active or ended one keeps its
    /// incarnation and takes the next revision, a cancelled one gives way to the new incarnation. `due` is written
    /// with the incarnation and revision that came of it. Its poller is the one of an existing schedule, and so is
    /// `created_at`. An engine that settles `closed` in [`Store::insert`] does so here, and says where the row is.
    /// Refused [`WriteRefusal::NotFound`] if the id's schedule is cancelled and a put or insert of this very incarnation
    /// took effect before (for a put over a live schedule, too): one that is tried again does not undo a cancel.
    Put(Insert),
    /// As [`Change::Put`], but only if the schedule that has the id is, in the step that gives or changes it, as it was
    /// `seen`; for `None`, only if no schedule has the id, not even a cancelled one. Else refused
    /// [`WriteRefusal::Changed`].
    PutIf { insert: Insert, seen: Option<Seen> },
    /// Makes an active or ended schedule [`Status::Cancelled`], under the next revision and without `next`. Refused
    /// [`WriteRefusal::NotFound`] if there is none of this incarnation, or it is cancelled.
    Cancel(Incarnation),
    /// As [`Change::Cancel`], but only if the schedule is, in the same step, of this edition. Else, and if there is none,
    /// or it is cancelled, refused [`WriteRefusal::Changed`].
    CancelIf(Edition),
    /// An outcome. `then` (a retry, the one due row that an outcome makes) is durable before `run` is.
    /// If `ends` and the schedule still has the run's revision, it is ended as by [`Change::End`]. Refused
    /// [`WriteRefusal::Resolved`], whole, if the occurrence has a final record.
    Run { run: Run, then: Option<DueKey>, ends: bool },
    /// A recurring schedule goes on: `due`'s instant becomes the schedule's `next`, then `due` is written: so no row is
    /// ahead of its schedule, and whoever finds one behind `next` writes the row of `next` again. Answered
    /// [`Written::Done`] without effect if the revision is another, the schedule is not active, or its `next` is later: it
    /// never goes back, whoever comes late.
    Advance { incarnation: Incarnation, revision: Revision, due: DueKey },
    /// A recurring schedule or one-shot has no further occurrence: an active schedule becomes [`Status::Ended`], its
    /// revision kept, without `next`. Answered [`Written::Done`] without effect if the revision is another.
    End { incarnation: Incarnation, revision: Revision },
    /// The row again, at a later position.
    Defer(DueKey),
    /// Runs a dead letter again: `due` is for the same occurrence, replay one higher. Refused
    /// [`WriteRefusal::NotFound`] if `of` is no dead letter, or was redriven before.
    Redrive { of: Occurrence, due: DueKey },
    /// Moves the poller's positions, each to the later of what it was and what it is here: neither ever goes back.
    /// `done` <= `closed`. Rows at or before `done` may be dropped, so the owner writes none there.
    Positions(Positions),
}

/// The attempts in flight of a shard, as its owner lets go of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandOver {
    pub shard: ShardId,
    pub term: Term,
    pub attempts: Vec<HandedOver>,
}

/// An attempt that an earlier owner had in flight: its successor waits for the outcome before it makes it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandedOver {
    pub poller: PollerId,
    pub key: DueKey,
    /// When it has ended in any case, by the earlier owner's clock.
    pub until: Timestamp,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Written {
    /// What [`Change::Put`] made: the schedule as it is now, where its row is, and what was there before.
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
    /// The disk is nearly full: users' writes are refused with [`StoreError::Full`], reads and owners' writes go on.
    Full,
    /// The engine's server cannot be reached; calls fail until it can.
    Unreachable,
    /// Nothing is taken: the engine is closing, or has failed.
    Closed,
}
