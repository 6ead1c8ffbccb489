//! Embedded store. It consists of a journal, a state machine that applies the journal's entries, and an index to which
//! the state machine writes rows.
//!
//! The store encodes a write as a journal entry. It makes the entry durable together with all other waiting entries.
//! One task applies the entries in journal order, and then the store responds to the callers. Other threads flush and
//! merge the index. A crash may lose rows that the store has not flushed. A start therefore replays the journal from
//! the last [checkpoint](checkpoint::Checkpoint). The store releases a journal segment only when verified tables of the
//! index contain all entries of the segment.
//!
//! This engine combines steps that the store port allows an engine to separate: [`Store::insert`], [`Store::place`] and
//! [`store::Change::Put`] confirm placement, and [`Store::append_cancellations`] cancels the schedules. The crate
//! contains no code for HTTP, quotas or callbacks.
//!
//! A data folder contains `CHECKPOINT` (the last entry that is durable in the index), `journal/` and `index/`.
//!
//! Invariants:
//! - A write that the store has acknowledged is durable, and every later read observes it.
//! - The state machine is deterministic: the same entries produce the same rows and results.
//! - The store reports damaged rows: a call returns [`StoreError::Damaged`], or the open returns an error. Rows never
//!   disappear without an error.
//!
//! docs/decisions/0005-let-the-firing-task-look-up-rows.md gives the reasons for the design.

mod apply;
mod background;
mod backup;
mod checkpoint;
mod codec;
mod damage;
mod error;
mod file;
mod history;
mod index;
mod listing;
mod memory;
mod open;
mod options;
mod read;
mod readers;
mod rebuild;
mod run_index;
mod runs_by_time;
mod space;

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Hour, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, ShardId,
    Tenant, TenantId, Term, Timestamp,
};
use journal::Journal;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::{
    Cancellation, CancellationResult, Change, ChosenIdPage, ChosenIdRead, CountPage, CountRead, Cursor, DuePage,
    DueRead, HandOver, HandedOver, Health, Insert, InsertLogEntry, Inserted, ListPage, ListRead, Outdated, OwnerWrite,
    Placed, Positions, RunList, RunRead, Store, StoreError, WriteRejection, Written,
};
use tokio::sync::{mpsc, oneshot};

use crate::apply::Response;
use crate::background::{SealRequest, Shared, Ticket};
use crate::codec::entry::{Builder, Kind};
use crate::memory::Memory;
use crate::read::Rows;
use crate::readers::Readers;

pub use backup::restore;
pub use error::{BackupError, OpenError};
pub use index::Verified;
pub use index::map::block_bytes;
pub use journal;
pub use open::{due_file, start_epoch};
pub use options::{IndexKind, Options};

/// Maximum number of look-ups of one call that run on the caller's thread. The reader threads run larger batches of
/// look-ups.
const PEEK_MAX: usize = 64;

/// Store on the local disk. [`EmbeddedStore::open`] opens it.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    journal: Journal<Ticket>,
    memory: Arc<Mutex<Memory>>,
    rows: Rows,
    readers: Readers,
    /// Reader thread for listings, which scan many rows. Reads of due rows do not wait for this thread.
    scanner: Readers,
    /// Reader threads that load rows ahead of their use, while the disk is busy. Other look-ups do not wait for them.
    preloaders: Readers,
    /// Number of schedules that the preloaders have read.
    preloaded: Counter,
    seal_requests: mpsc::Sender<SealRequest>,
    /// Channel that closes when the last task ends.
    tasks_alive: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

/// Figures of the store for metrics. The store reads the fields at slightly different instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    pub journal: journal::Stats,
    /// Number of the last journal entry up to which all entries are durable in the index.
    pub synced: u64,
    /// Number of index parts in memory that wait for a flush.
    pub sealed: usize,
    /// Number of index parts on disk that wait for a merge.
    pub unmerged: usize,
    /// Number of schedules that the store read some time before they were due, because the disk was busy.
    pub preloaded: u64,
}

impl EmbeddedStore {
    /// Closes the store: rejects further calls, waits for the calls under way, and flushes the index. Returns when the
    /// store's tasks have ended.
    pub async fn close(&self) {
        self.shared.closed.cancel();
        self.journal.close().await;
        let mut tasks_alive = self.tasks_alive.lock().await;
        while tasks_alive.recv().await.is_some() {}
    }

    /// Registers the store's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.journal.register(registry);
        let free = "Free bytes on the disk that holds the data";
        registry.register("reveille_store_free_bytes", free, self.shared.space.free_bytes.clone());
        let floor = ConstGauge::new(i64::try_from(self.shared.options.free_bytes_floor).unwrap_or(i64::MAX));
        let help = "Number of free bytes on the disk below which the store rejects new schedules";
        registry.register("reveille_store_free_floor_bytes", help, floor);
        let help = "Schedules that the store read some time before they were due, because the disk was busy";
        registry.register("reveille_store_preloaded_schedules", help, self.preloaded.clone());
        self.shared.damage.register(registry);
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let pressure = self.shared.index.pressure();
        Stats {
            journal: self.journal.stats(),
            synced: self.shared.checkpoint.borrow().synced,
            sealed: pressure.sealed,
            unmerged: pressure.unmerged,
            preloaded: self.preloaded.get(),
        }
    }

    /// Makes all applied entries durable in the index, so that a restart need not replay them.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`] if the store closes before the checkpoint is durable.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        let (response, sealed) = oneshot::channel();
        self.seal_requests.send(response).await.map_err(|_| closed())?;
        let entry = sealed.await.map_err(|_| closed())?;
        let mut checkpoint = self.shared.checkpoint.subscribe();
        tokio::select! {
            biased;
            durable = async { checkpoint.wait_for(|checkpoint| checkpoint.synced >= entry).await.map(|_| ()) } => {
                durable.map_err(|_| closed())
            }
            () = self.shared.closed.cancelled() => Err(closed()),
        }
    }

    /// Compares all stored bytes of the index with their checksums and counts the rows. Callers can use the store
    /// during the call.
    ///
    /// The call blocks its thread and reads the whole index, which takes minutes for a large store.
    ///
    /// # Errors
    /// Returns [`StoreError::Unavailable`] if the files cannot be read. Damage is not an error: the returned `Verified`
    /// describes all damage.
    pub async fn verify(&self) -> Result<Verified, StoreError> {
        self.shared.index.verify().await.map_err(read::damaged)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.shared.closed.is_cancelled() { Err(closed()) } else { Ok(()) }
    }

    /// Returns an error if the store currently rejects user writes. Owner writes other than puts skip this check.
    async fn check_user(&self) -> Result<(), StoreError> {
        if self.shared.space.is_full() {
            return Err(self.shared.space.full_error());
        }
        self.check_reserved().await
    }

    /// Returns an error if the store currently rejects the writes that may use the reserve of disk space. These writes
    /// are placements, cancellations and operators' changes.
    async fn check_reserved(&self) -> Result<(), StoreError> {
        self.check_open()?;
        self.shared.space.check_reserve()?;
        if self.memory().insert_log.is_full() {
            return Err(StoreError::Unavailable(
                "the insert log is full because the owner of a shard has not read its entries; retry later".to_owned(),
            ));
        }
        self.shared.wait_for_capacity().await;
        Ok(())
    }

    /// Appends the entries of a call to the journal. Waits for their responses and returns them in the order of the
    /// entries.
    async fn submit(&self, entries: Builder) -> Result<Vec<Response>, StoreError> {
        self.append(entries.finish()).await
    }

    /// Appends entries that contain the data of users, as [`EmbeddedStore::submit`] does. Rejects the entries if the
    /// free space of the disk could fall below [`Options::free_bytes_floor`].
    async fn submit_user(&self, entries: Builder) -> Result<Vec<Response>, StoreError> {
        let entries = entries.finish();
        let bytes = entries.iter().map(|entry| entry.len() as u64).sum();
        let _pending = self.shared.take_space(bytes).await?;
        self.append(entries).await
    }

    async fn append(&self, entries: Vec<Vec<u8>>) -> Result<Vec<Response>, StoreError> {
        self.check_open()?;
        let mut receivers = Vec::with_capacity(entries.len());
        for entry in entries {
            let (ticket, receiver) = oneshot::channel();
            self.journal.append(Bytes::from(entry), ticket).await.map_err(|error| self.shared.append_error(&error))?;
            receivers.push(receiver);
        }
        let mut responses = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            responses.push(receiver.await.map_err(|_| closed())??);
        }
        Ok(responses)
    }

    fn builder(&self, kind: Kind) -> Builder {
        Builder::new(kind, self.shared.options.entry_bytes)
    }

    async fn read<T: Send + 'static>(
        &self,
        look_up: impl FnOnce(&Rows) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let rows = self.rows.clone();
        self.readers.read(move || look_up(&rows)).await
    }

    async fn scan<T: Send + 'static>(
        &self,
        scan: impl FnOnce(&Rows) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.check_open()?;
        let rows = self.rows.clone();
        self.scanner.read(move || scan(&rows)).await
    }

    /// Looks up rows. A small number of look-ups runs on the caller's thread. A look-up of a row in memory takes some
    /// microseconds, and a wake-up of another thread takes longer. While the disk is busy, a look-up of a row on the
    /// disk could stop the caller's thread for 100 ms, so all look-ups run on the reader threads.
    fn look_up<T: Send + 'static>(
        &self,
        count: usize,
        look_up: impl FnOnce(&Rows) -> Result<T, StoreError> + Send + 'static,
    ) -> store::Answer<'_, T> {
        if count > PEEK_MAX || self.shared.is_disk_busy() {
            return Box::pin(self.read(look_up));
        }
        let found = self.check_open().and_then(|()| look_up(&self.rows));
        Box::pin(std::future::ready(found))
    }

    /// Loads the schedules of due rows into memory while the disk is busy. An owner reads due rows some time before they
    /// are due, so a slow read of a schedule ends before the owner needs the schedule.
    fn load_ahead(&self, pages: &[DuePage]) {
        if !self.shared.is_disk_busy() {
            return;
        }
        for keys in pages.iter().flat_map(|page| page.keys.chunks(PEEK_MAX)) {
            let (rows, keys, preloaded) = (self.rows.clone(), keys.to_vec(), self.preloaded.clone());
            self.preloaders.load_ahead(move || {
                for key in keys {
                    // If this look-up fails, the later look-up by the owner fails, too, and reports the error.
                    let _ignored = rows.schedule(key.occurrence.incarnation);
                    preloaded.inc();
                }
            });
        }
    }

    fn read_memory<'a, T: Send + 'a>(&self, read: impl FnOnce(&mut Memory) -> T) -> store::Answer<'a, T> {
        let found = self.check_open().map(|()| read(&mut self.memory()));
        Box::pin(std::future::ready(found))
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// Joins the responses of the entries of one call.
macro_rules! join {
    ($responses:expr, $kind:ident) => {{
        let mut joined = Vec::new();
        for response in $responses {
            match response {
                Response::$kind(part) => joined.extend(part),
                other => unreachable!("the response must have the kind of its journal entry, but it is {other:?}"),
            }
        }
        joined
    }};
}

impl Store for EmbeddedStore {
    fn insert(&self, inserts: Vec<Insert>) -> store::Answer<'_, Vec<Inserted>> {
        Box::pin(async move {
            self.check_user().await?;
            let mut entries = self.builder(Kind::Insert);
            inserts.iter().for_each(|insert| entries.insert(insert));
            Ok(join!(self.submit_user(entries).await?, Inserted))
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> store::Answer<'_, Vec<store::Closed>> {
        self.read_memory(|memory| pollers.iter().map(|poller| memory.poller(*poller).closed()).collect())
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> store::Answer<'_, Vec<Placed>> {
        Box::pin(async move {
            self.check_reserved().await?;
            let mut entries = self.builder(Kind::Place);
            rows.iter().for_each(|(poller, due)| entries.place(*poller, due));
            Ok(join!(self.submit(entries).await?, Placed))
        })
    }

    fn append_cancellations(&self, marks: Vec<Cancellation>) -> store::Answer<'_, Vec<CancellationResult>> {
        Box::pin(async move {
            self.check_reserved().await?;
            let mut entries = self.builder(Kind::AuthoredCancellation);
            marks.iter().for_each(|mark| entries.cancellation(mark));
            Ok(join!(self.submit(entries).await?, CancellationResult))
        })
    }

    fn get(&self, names: Vec<(TenantId, ScheduleId)>) -> store::Answer<'_, Vec<Option<Arc<Schedule>>>> {
        let count = names.len();
        let get = move |rows: &Rows| names.iter().map(|(tenant, id)| rows.named(*tenant, id)).collect();
        self.look_up(count, get)
    }

    fn load(&self, incarnations: Vec<Incarnation>) -> store::Answer<'_, Vec<Option<Arc<Schedule>>>> {
        let count = incarnations.len();
        let load = move |rows: &Rows| incarnations.iter().map(|incarnation| rows.schedule(*incarnation)).collect();
        self.look_up(count, load)
    }

    fn list(&self, read: ListRead) -> store::Answer<'_, ListPage> {
        Box::pin(self.scan(move |rows| rows.list(&read)))
    }

    fn list_chosen_ids(&self, read: ChosenIdRead) -> store::Answer<'_, ChosenIdPage> {
        Box::pin(self.scan(move |rows| rows.chosen_ids(&read)))
    }

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> store::Answer<'_, Vec<Option<Run>>> {
        let count = occurrences.len();
        let find = move |rows: &Rows| occurrences.iter().map(|occurrence| rows.run(occurrence)).collect();
        self.look_up(count, find)
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> store::Answer<'_, Vec<Run>> {
        Box::pin(self.scan(move |rows| rows.runs(incarnation, after, limit)))
    }

    fn past_timings(
        &self,
        incarnation: Incarnation,
        from: Revision,
        limit: usize,
    ) -> store::Answer<'_, Vec<PastTiming>> {
        Box::pin(self.scan(move |rows| rows.past_timings(incarnation, from, limit)))
    }

    fn list_runs(&self, read: RunRead) -> store::Answer<'_, RunList> {
        Box::pin(self.scan(move |rows| rows.list_runs(&read)))
    }

    fn counts(&self, read: CountRead) -> store::Answer<'_, CountPage> {
        let (memory, counted_from) = (self.memory.clone(), self.shared.checkpoint.borrow().counted_from);
        let counted_from = Hour::from_start(counted_from.unwrap_or(Timestamp::MAX));
        Box::pin(self.scan(move |rows| Ok(CountPage { counted_from, ..rows.counts(&memory, &read)? })))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> store::Answer<'_, Vec<Run>> {
        Box::pin(self.scan(move |rows| rows.dead_letters(tenant, after, limit)))
    }

    fn usage(&self, tenants: Vec<TenantId>) -> store::Answer<'_, Vec<store::Usage>> {
        self.read_memory(move |memory| tenants.iter().map(|tenant| memory.usages.of(*tenant)).collect())
    }

    fn tenants(&self) -> store::Answer<'_, Vec<Tenant>> {
        self.read_memory(|memory| memory.tenants.values().cloned().collect())
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> store::Answer<'_, Result<(), Outdated>> {
        Box::pin(async move {
            store::check_put_tenant(&tenant, &entry);
            self.check_reserved().await?;
            let mut entries = self.builder(Kind::ChangeTenant);
            entries.change_tenant(&tenant, &entry);
            Ok(join!(self.submit(entries).await?, Changed).remove(0))
        })
    }

    fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> store::Answer<'_, Vec<Audit>> {
        Box::pin(self.scan(move |rows| rows.audit(tenant, after, limit)))
    }

    fn health(&self) -> Health {
        self.shared.health()
    }

    fn epoch(&self) -> u64 {
        self.shared.checkpoint.borrow().epoch
    }

    fn take(&self, shards: Vec<ShardId>) -> store::Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let mut entries = self.builder(Kind::Take);
            shards.iter().for_each(|shard| entries.take(*shard));
            Ok(join!(self.submit(entries).await?, Terms))
        })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> store::Answer<'_, Vec<Positions>> {
        self.read_memory(|memory| pollers.iter().map(|poller| memory.positions(*poller)).collect())
    }

    fn insert_log(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> store::Answer<'_, (Vec<InsertLogEntry>, Cursor)> {
        self.read_memory(|memory| memory.insert_log.read(&shards, cursor, limit))
    }

    fn cancellations(
        &self,
        _shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> store::Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        // This engine applies every cancellation record when it appends the record, so no records wait for an owner.
        self.read_memory(|_| (Vec::new(), cursor))
    }

    fn due(&self, reads: Vec<DueRead>) -> store::Answer<'_, Vec<DuePage>> {
        Box::pin(async move {
            let done: Vec<Timestamp> = {
                let memory = self.memory();
                reads.iter().map(|read| memory.positions(read.poller).done).collect()
            };
            let (pages, skipped) = self
                .read(move |rows| {
                    let mut skipped = Vec::new();
                    let pages: Result<Vec<DuePage>, StoreError> =
                        reads.iter().zip(done).map(|(read, done)| rows.due(read, done, &mut skipped)).collect();
                    Ok((pages?, skipped))
                })
                .await?;
            // The store limits `done` before the owner receives the page that lacks rows.
            self.shared.damage.report(skipped);
            self.load_ahead(&pages);
            Ok(pages)
        })
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> store::Answer<'_, Vec<Result<Written, WriteRejection>>> {
        Box::pin(async move {
            let mut writes = writes;
            self.shared.damage.limit_done(&mut writes);
            // A put contains a user's payload, so the limits for user writes apply to it.
            let has_put = writes.iter().any(|write| matches!(write.change, Change::Put(_) | Change::PutIf { .. }));
            let mut entries = self.builder(Kind::Write);
            writes.iter().for_each(|write| entries.write(write));
            let responses = if has_put {
                self.check_user().await?;
                self.submit_user(entries).await?
            } else {
                self.submit(entries).await?
            };
            Ok(join!(responses, Written))
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> store::Answer<'_, Vec<Result<(), WriteRejection>>> {
        Box::pin(async move {
            let mut entries = self.builder(Kind::HandOver);
            lists.iter().for_each(|list| entries.hand_over(list));
            Ok(join!(self.submit(entries).await?, HandedOver))
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> store::Answer<'_, Vec<Vec<HandedOver>>> {
        let of = |memory: &Memory, shard| memory.handed_over.get(shard).cloned().unwrap_or_default();
        self.read_memory(|memory| shards.iter().map(|shard| of(memory, shard)).collect())
    }
}

#[cfg(test)]
mod tests;
