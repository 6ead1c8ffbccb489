//! Deliberate bugs. Each bug changes the calls between two correct components, and the checkers must detect it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, Cron, DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, RunState, Schedule, ScheduleId,
    ShardId, Tenant, TenantId, Term, Timestamp, When,
};
use futures_util::future::BoxFuture;
use runtime::{Disk, DiskFile, DiskLock, Monotonic, OpenMode, Place, Runtime, TaskHandle, World};
use store::{
    Answer, Cancellation, CancellationResult, Change, ChosenIdPage, ChosenIdRead, Closed, CountPage, CountRead, Cursor,
    DueBound, DuePage, DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead,
    Outdated, OwnerWrite, Placed, Positions, RunList, RunRead, Store, StoreError, Usage, WriteRejection, Written,
};

use crate::History;

/// A plausible bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The journal's fsync has no effect.
    AcknowledgesBeforeFsync,
    /// The owner advances `done` to `closed`, even if some occurrences up to `closed` have no outcome.
    DoneBeforeOutcome,
    /// The owner does not read a range of due rows a second time after `closed` is durable.
    SkipsTheSecondRead,
    /// A creator reads `closed` before its due row is durable, instead of afterwards.
    ReadsClosedBeforeItsRow,
    /// The owner executes a due row with the first revision of its schedule, even if the schedule has a later revision.
    IgnoresTheRevision,
    /// An owner does not know the positions from which an earlier owner set the pollers back.
    ForgetsPositionsAhead,
    /// The owner computes the instants of a cron schedule with the winter time of its zone in the whole year.
    IgnoresClockChanges,
    /// The owner puts off overdue rows, although their target is fast, and does not count them.
    PutsOffOverdueRows,
    /// The embedded store skips damaged due rows and does not report them.
    HidesDamagedRows,
    /// The owner marks no missed run as a run that may have started.
    MarksNoMissedRun,
    /// The owner marks every missed run as a run that may have started.
    MarksEveryMissedRun,
    /// A producer of the bus soon reports a record as stored, even if the bus has not acknowledged the record.
    AcknowledgesBeforeTheBus,
    /// A producer of the bus sends records after the timeout of their attempts.
    SendsAfterTheTimeout,
    /// The transport to the bus ignores the topics that the policy of the tenant lists.
    IgnoresTheTopicPolicy,
    /// The transport to the bus ignores the deadline of an attempt. Only clusters have deadlines.
    SendsAfterTheDeadline,
}

/// Delay between two steps of a creator. It is so long that an owner may advance `closed` between the steps.
const CREATOR_SLOW: Duration = Duration::from_millis(400);
/// Delay of reads of the insert log. It is so long that the owner needs its second read of the due rows to find all
/// rows.
const INSERT_LOG_LATE: Duration = Duration::from_millis(1_500);

/// Lateness of a row from which a deliberate bug puts the row off, and the time by which the bug puts it off.
const OVERDUE_MIN: Duration = Duration::from_secs(2);
const PUT_OFF: Duration = Duration::from_secs(40);

/// Store with at most one deliberate bug. It reports the marked runs to the history.
pub(crate) struct Mutated {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) runtime: Runtime,
    pub(crate) history: History,
    pub(crate) memory: Arc<Mutex<Memory>>,
}

/// Data that the deliberate bugs and the reports need. A crash of the member does not delete the data.
#[derive(Default)]
pub(crate) struct Memory {
    /// Latest reading of a member's wall clock until the last take of each shard.
    taken_at: BTreeMap<ShardId, Timestamp>,
    /// Term of the last take of each shard.
    terms: BTreeMap<ShardId, Term>,
    put_off: BTreeSet<Occurrence>,
    closed_written: BTreeMap<PollerId, Timestamp>,
    closed_read_early: BTreeMap<PollerId, Closed>,
    first_seen: BTreeMap<Incarnation, Arc<Schedule>>,
}

impl Mutated {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }

    /// Returns true if the store has this deliberate bug.
    fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Changes the mark of a missed run if a deliberate bug requires it, and reports a marked run to the history.
    fn mark(&self, shard: ShardId, run: &mut Run) {
        let RunState::Missed { attempt_possible, .. } = &mut run.state else { return };
        match self.mutant {
            Some(Mutant::MarksNoMissedRun) => *attempt_possible = false,
            Some(Mutant::MarksEveryMissedRun) => *attempt_possible = true,
            _ => {}
        }
        if *attempt_possible {
            let taken_at = self.memory().taken_at.get(&shard).copied();
            self.history.marked(run.occurrence, taken_at.expect("an owner writes only to shards that it has taken"));
        }
    }

    /// Puts off the overdue rows of a page, and removes them from the page.
    async fn put_off_overdue(&self, poller: PollerId, page: &mut DuePage) -> Result<(), StoreError> {
        let now = self.runtime.now();
        let is_overdue = |key: &DueKey| key.attempt == 1 && key.position + OVERDUE_MIN < now;
        for key in page.keys.iter().filter(|key| is_overdue(key)) {
            let Some(term) = self.memory().terms.get(&poller.shard()).copied() else { return Ok(()) };
            if self.memory().put_off.insert(key.occurrence) {
                let change = Change::Defer(DueKey { position: now + PUT_OFF, ..*key });
                drop(self.store.write(vec![OwnerWrite { term, poller, change }]).await?);
            }
        }
        page.keys.retain(|key| !is_overdue(key));
        Ok(())
    }

    /// Returns true if the read is the owner's second read of a range of due rows. A second read ends exactly at the
    /// `closed` that the owner last wrote.
    fn is_second_read(&self, read: &DueRead) -> bool {
        self.memory().closed_written.get(&read.poller) == Some(&read.until)
    }
}

impl Store for Mutated {
    fn insert(&self, inserts: Vec<Insert>) -> Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            if self.has(Mutant::ReadsClosedBeforeItsRow) {
                let pollers: Vec<PollerId> = inserts.iter().map(|insert| insert.schedule.poller).collect();
                let closed = self.store.closed(pollers.clone()).await?;
                self.memory().closed_read_early.extend(pollers.into_iter().zip(closed));
                self.runtime.sleep(CREATOR_SLOW).await;
            }
            let first_seen = inserts.iter().map(|insert| (insert.schedule.incarnation, insert.schedule.clone()));
            self.memory().first_seen.extend(first_seen);
            self.store.insert(inserts).await
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> Answer<'_, Vec<Closed>> {
        if !self.has(Mutant::ReadsClosedBeforeItsRow) {
            return Box::pin(async move {
                let mut closed = self.store.closed(pollers).await?;
                if self.has(Mutant::ForgetsPositionsAhead) {
                    closed.iter_mut().for_each(|closed| closed.reopened_from = Timestamp::MIN);
                }
                Ok(closed)
            });
        }
        let early = pollers.iter().map(|poller| self.memory().closed_read_early.get(poller).copied());
        let early = early.map(Option::unwrap_or_default).collect();
        Box::pin(async move { Ok(early) })
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
        Box::pin(async move {
            let mut schedules = self.store.load(incarnations).await?;
            if self.has(Mutant::IgnoresTheRevision) {
                let memory = self.memory();
                for schedule in schedules.iter_mut().flatten() {
                    if let Some(first) = memory.first_seen.get(&schedule.incarnation) {
                        *schedule = first.clone();
                    }
                }
            }
            if self.has(Mutant::IgnoresClockChanges) {
                schedules.iter_mut().flatten().for_each(in_winter_time);
            }
            Ok(schedules)
        })
    }

    fn list(&self, read: ListRead) -> Answer<'_, ListPage> {
        self.store.list(read)
    }

    fn list_chosen_ids(&self, read: ChosenIdRead) -> Answer<'_, ChosenIdPage> {
        self.store.list_chosen_ids(read)
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

    fn usage(&self, tenants: Vec<TenantId>) -> Answer<'_, Vec<Usage>> {
        self.store.usage(tenants)
    }

    fn tenants(&self) -> Answer<'_, Vec<Tenant>> {
        self.store.tenants()
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> Answer<'_, Result<(), Outdated>> {
        self.store.put_tenant(tenant, entry)
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

    fn take(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let terms = self.store.take(shards.clone()).await?;
            let now = self.history.latest_clock();
            self.memory().terms.extend(shards.iter().copied().zip(terms.iter().copied()));
            self.memory().taken_at.extend(shards.into_iter().map(|shard| (shard, now)));
            Ok(terms)
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> Answer<'_, Vec<Result<(), WriteRejection>>> {
        self.store.hand_over(lists)
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> Answer<'_, Vec<Vec<HandedOver>>> {
        self.store.handed_over(shards)
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
        Box::pin(async move {
            if self.has(Mutant::SkipsTheSecondRead) {
                // The owner may read the insert log late. Without the bug, the owner's second read of the due rows
                // finds the rows that the insert log does not report in time.
                self.runtime.sleep(INSERT_LOG_LATE).await;
            }
            self.store.insert_log(shards, cursor, limit).await
        })
    }

    fn cancellations(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        self.store.cancellations(shards, cursor)
    }

    fn due(&self, reads: Vec<DueRead>) -> Answer<'_, Vec<DuePage>> {
        Box::pin(async move {
            let mut pages = self.store.due(reads.clone()).await?;
            if self.has(Mutant::PutsOffOverdueRows) {
                for (read, page) in reads.iter().zip(&mut pages) {
                    self.put_off_overdue(read.poller, page).await?;
                }
            }
            if self.has(Mutant::SkipsTheSecondRead) {
                for (read, page) in reads.iter().zip(&mut pages) {
                    if self.is_second_read(read) && matches!(read.after, DueBound::Instant(_)) {
                        *page = DuePage::default();
                    }
                }
            }
            Ok(pages)
        })
    }

    fn write(&self, mut writes: Vec<OwnerWrite>) -> Answer<'_, Vec<Result<Written, WriteRejection>>> {
        for write in &mut writes {
            if let Change::Positions(positions) = &mut write.change {
                self.memory().closed_written.insert(write.poller, positions.closed);
                if self.has(Mutant::DoneBeforeOutcome) {
                    positions.done = positions.closed;
                }
            }
            if let Change::Run { run, .. } = &mut write.change {
                self.mark(write.poller.shard(), run);
            }
        }
        Box::pin(async move {
            if self.has(Mutant::ReadsClosedBeforeItsRow) {
                // The bug affects only creators. The store still moves the rows of owners to a position after `closed`.
                for write in &mut writes {
                    if let Change::Put(Insert { due, .. })
                    | Change::PutIf { insert: Insert { due, .. }, .. }
                    | Change::Redrive { due, .. } = &mut write.change
                    {
                        let closed = self.store.closed(vec![write.poller]).await?;
                        due.position = closed
                            .into_iter()
                            .fold(due.position, |position, closed| position.max(closed.at + Duration::from_millis(1)));
                    }
                }
            }
            self.store.write(writes).await
        })
    }
}

/// Replaces the zone of a cron schedule with a zone that has the same winter time and no summer time.
fn in_winter_time(schedule: &mut Arc<Schedule>) {
    let When::Cron(cron) = &schedule.spec.when else { return };
    let zone = match cron.zone() {
        // The signs of these names are opposite to the signs of the offsets (POSIX).
        "Europe/Berlin" => "Etc/GMT-1",
        "Atlantic/Azores" => "Etc/GMT+1",
        "America/New_York" => "Etc/GMT+5",
        "America/Santiago" => "Etc/GMT+4",
        _ => return,
    };
    let cron = Cron::from_stored(cron.expression(), zone);
    Arc::make_mut(schedule).spec.when = When::Cron(cron);
}

/// World in which an fsync has no effect.
pub(super) struct Unsynced(Arc<dyn World>);

impl Unsynced {
    pub(super) fn runtime(runtime: &Runtime) -> Runtime {
        Runtime::new(Arc::new(Unsynced(runtime.world().clone())))
    }
}

impl World for Unsynced {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.0.sleep_until(at)
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        self.0.spawn(name, place, future)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(UnsyncedDisk(self.0.disk()))
    }

    fn halt(&self, reason: &str) {
        self.0.halt(reason);
    }
}

struct UnsyncedDisk(Arc<dyn Disk>);

impl Disk for UnsyncedDisk {
    fn create_dir_all<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.0.create_dir_all(path)
    }

    fn open<'a>(&'a self, path: &'a Path, mode: OpenMode) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        Box::pin(async move {
            let file = self.0.open(path, mode).await?;
            Ok(Arc::new(UnsyncedFile(file)) as Arc<dyn DiskFile>)
        })
    }

    fn open_unnamed<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Arc<dyn DiskFile>>> {
        self.0.open_unnamed(dir)
    }

    fn restrict<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<bool>> {
        self.0.restrict(path)
    }

    fn list<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<Vec<String>>> {
        self.0.list(dir)
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.0.rename(from, to)
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.0.remove(path)
    }

    fn sync_dir<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.0.sync_dir(dir)
    }

    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        self.0.free_bytes(path)
    }

    fn lock<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Box<dyn DiskLock>>> {
        self.0.lock(path)
    }
}

struct UnsyncedFile(Arc<dyn DiskFile>);

impl DiskFile for UnsyncedFile {
    fn len(&self) -> BoxFuture<'_, io::Result<u64>> {
        self.0.len()
    }

    fn read_at<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> BoxFuture<'a, io::Result<()>> {
        self.0.read_at(offset, into)
    }

    fn write_at<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        self.0.write_at(offset, bytes)
    }

    fn allocate(&self, len: u64) -> BoxFuture<'_, io::Result<()>> {
        self.0.allocate(len)
    }

    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
