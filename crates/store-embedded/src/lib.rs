//! The embedded store: a journal, a state machine over it, and an index behind that.
//!
//! A write is encoded as a journal entry, made durable together with all others that came meanwhile, applied by one
//! task in the order of the journal, and answered. The index behind it is flushed and merged on other threads and may
//! lose whatever was not flushed: a start replays the journal from the last [checkpoint](checkpoint::Checkpoint).
//! Journal segments are given back only when all that is in them is in flushed tables that were read back and checked.
//!
//! What this engine does in one step where the port allows several: [`Store::insert`], [`Store::place`] and
//! [`store::Change::Put`] settle `closed`; [`Store::mark`] cancels. Nothing here knows HTTP, quotas or callbacks.
//!
//! In a data folder: `CHECKPOINT` (how far the index is durable), `journal/`, `index/`.
//!
//! Always true here:
//! - what was answered is durable, and every later read sees it;
//! - applying is deterministic: the same entries make the same rows and answers;
//! - damage is told with the rows that it hits, by [`StoreError::Damaged`] or at the start; rows are never fewer
//!   silently.

mod apply;
mod backup;
mod checkpoint;
mod codec;
mod error;
mod file;
mod history;
mod index;
mod keep;
mod listing;
mod memory;
mod open;
mod options;
mod read;

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, ShardId, Tenant, TenantId, Term, Timestamp,
};
use journal::Journal;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use store::{
    Arrival, Change, Cursor, DuePage, DueRead, HandOver, HandedOver, Health, Insert, Inserted, ListPage, ListRead,
    Mark, Marked, Outdated, OwnerWrite, Placed, Positions, Store, StoreError, WriteRefusal, Written,
};
use tokio::sync::{mpsc, oneshot};

use crate::apply::Answer;
use crate::codec::entry::{Builder, Kind};
use crate::keep::{Readers, SealRequest, Shared, Ticket};
use crate::memory::Memory;
use crate::read::Rows;

pub use backup::restore;
pub use error::{BackupError, OpenError};
pub use index::Verified;
pub use journal;
pub use options::{IndexKind, Options};

/// Look-ups that a caller makes itself at most; more go to the readers' threads.
const PEEK_MAX: usize = 64;

/// See the crate's documentation. Made by [`EmbeddedStore::open`].
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    journal: Journal<Ticket>,
    memory: Arc<Mutex<Memory>>,
    rows: Rows,
    readers: Readers,
    /// One thread for what users have listed, which walks over many rows: what is due does not wait for it.
    scanner: Readers,
    seal_requests: mpsc::Sender<SealRequest>,
    /// Ends when the last task has.
    tasks_alive: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}

/// For metrics. Changes while it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    pub journal: journal::Stats,
    /// The last entry of all that is known to be in the index durably.
    pub synced: u64,
    /// Parts of the index in memory that wait to be flushed, and parts on disk that wait to be merged.
    pub sealed: usize,
    pub unmerged: usize,
}

impl EmbeddedStore {
    /// Refuses further calls, lets those under way finish, flushes, and returns when the store's tasks have ended.
    pub async fn close(&self) {
        self.shared.closed.cancel();
        self.journal.close().await;
        let mut tasks_alive = self.tasks_alive.lock().await;
        while tasks_alive.recv().await.is_some() {}
    }

    /// Adds what is counted here to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.journal.register(registry);
        let free = "Free bytes on the disk that the data is on";
        registry.register("reveille_store_free_bytes", free, self.shared.free_bytes.clone());
        let floor = ConstGauge::new(i64::try_from(self.shared.options.free_bytes_floor).unwrap_or(i64::MAX));
        let help = "Free bytes below which new schedules are refused";
        registry.register("reveille_store_free_floor_bytes", help, floor);
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let pressure = self.shared.index.pressure();
        Stats {
            journal: self.journal.stats(),
            synced: self.shared.checkpoint.borrow().synced,
            sealed: pressure.sealed,
            unmerged: pressure.unmerged,
        }
    }

    /// Makes everything applied so far durable in the index, so that a restart has nothing to replay.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the store is closed meanwhile.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        let (answer, sealed) = oneshot::channel();
        self.seal_requests.send(answer).await.map_err(|_| closed())?;
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

    /// Compares everything in the index with its checksums, and counts its rows, while the store goes on.
    ///
    /// Blocks its thread, and reads it all: minutes for a large one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the files cannot be read. Damage is told in the answer.
    pub async fn verify(&self) -> Result<Verified, StoreError> {
        self.shared.index.verify().await.map_err(read::damaged)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.shared.closed.is_cancelled() { Err(closed()) } else { Ok(()) }
    }

    /// Users' writes are refused where owners' are not.
    async fn check_user(&self) -> Result<(), StoreError> {
        match self.shared.health() {
            Health::Ready => {}
            Health::Full => return Err(self.shared.full_error()),
            Health::Closed | Health::Unreachable => return Err(closed()),
        }
        if self.memory().arrivals.is_full() {
            return Err(StoreError::Unavailable("the owner has not read its arrivals for too long".to_owned()));
        }
        self.shared.wait_for_room().await;
        Ok(())
    }

    /// Appends entries and waits for their answers, in order.
    async fn submit(&self, entries: Builder) -> Result<Vec<Answer>, StoreError> {
        self.check_open()?;
        let entries = entries.finish();
        let mut answered = Vec::with_capacity(entries.len());
        for entry in entries {
            let (ticket, answer) = oneshot::channel();
            self.journal.append(Bytes::from(entry), ticket).await.map_err(|error| self.shared.refused(&error))?;
            answered.push(answer);
        }
        let mut answers = Vec::with_capacity(answered.len());
        for answer in answered {
            answers.push(answer.await.map_err(|_| closed())??);
        }
        Ok(answers)
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

    /// A few point look-ups are made by the caller itself: some microseconds each from memory, less than it would take to
    /// wake another thread.
    fn look_up<T: Send + 'static>(
        &self,
        count: usize,
        look_up: impl FnOnce(&Rows) -> Result<T, StoreError> + Send + 'static,
    ) -> store::Answer<'_, T> {
        if count > PEEK_MAX {
            return Box::pin(self.read(look_up));
        }
        let answer = self.check_open().and_then(|()| look_up(&self.rows));
        Box::pin(std::future::ready(answer))
    }

    fn recall<'a, T: Send + 'a>(&self, recall: impl FnOnce(&mut Memory) -> T) -> store::Answer<'a, T> {
        let answer = self.check_open().map(|()| recall(&mut self.memory()));
        Box::pin(std::future::ready(answer))
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// Joins the answers of a call's entries.
macro_rules! join {
    ($answers:expr, $kind:ident) => {{
        let mut joined = Vec::new();
        for answer in $answers {
            match answer {
                Answer::$kind(part) => joined.extend(part),
                other => unreachable!("an entry is answered in its kind, not with {other:?}"),
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
            Ok(join!(self.submit(entries).await?, Inserted))
        })
    }

    fn closed(&self, pollers: Vec<PollerId>) -> store::Answer<'_, Vec<Timestamp>> {
        self.recall(|memory| pollers.iter().map(|poller| memory.positions(*poller).closed).collect())
    }

    fn place(&self, rows: Vec<(PollerId, DueKey)>) -> store::Answer<'_, Vec<Placed>> {
        Box::pin(async move {
            self.check_user().await?;
            let mut entries = self.builder(Kind::Place);
            rows.iter().for_each(|(poller, due)| entries.place(*poller, due));
            Ok(join!(self.submit(entries).await?, Placed))
        })
    }

    fn mark(&self, marks: Vec<Mark>) -> store::Answer<'_, Vec<Marked>> {
        Box::pin(async move {
            self.check_user().await?;
            let mut entries = self.builder(Kind::Mark);
            marks.iter().for_each(|mark| entries.mark(mark));
            Ok(join!(self.submit(entries).await?, Marked))
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

    fn find_runs(&self, occurrences: Vec<Occurrence>) -> store::Answer<'_, Vec<Option<Run>>> {
        let count = occurrences.len();
        let find = move |rows: &Rows| occurrences.iter().map(|occurrence| rows.run(occurrence)).collect();
        self.look_up(count, find)
    }

    fn runs(&self, incarnation: Incarnation, after: Option<Occurrence>, limit: usize) -> store::Answer<'_, Vec<Run>> {
        Box::pin(self.scan(move |rows| rows.runs(incarnation, after, limit)))
    }

    fn dead_letters(&self, tenant: TenantId, after: Option<Occurrence>, limit: usize) -> store::Answer<'_, Vec<Run>> {
        Box::pin(self.scan(move |rows| rows.dead_letters(tenant, after, limit)))
    }

    fn active(&self, tenants: Vec<TenantId>) -> store::Answer<'_, Vec<u64>> {
        self.recall(move |memory| tenants.iter().map(|tenant| memory.active.of(*tenant)).collect())
    }

    fn tenants(&self) -> store::Answer<'_, Vec<Tenant>> {
        self.recall(|memory| memory.tenants.values().cloned().collect())
    }

    fn put_tenant(&self, tenant: Tenant, entry: Audit) -> store::Answer<'_, Result<(), Outdated>> {
        Box::pin(async move {
            store::check_put_tenant(&tenant, &entry);
            self.check_user().await?;
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

    fn take(&self, shards: Vec<ShardId>) -> store::Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let mut entries = self.builder(Kind::Take);
            shards.iter().for_each(|shard| entries.take(*shard));
            Ok(join!(self.submit(entries).await?, Terms))
        })
    }

    fn positions(&self, pollers: Vec<PollerId>) -> store::Answer<'_, Vec<Positions>> {
        self.recall(|memory| pollers.iter().map(|poller| memory.positions(*poller)).collect())
    }

    fn arrivals(
        &self,
        shards: Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> store::Answer<'_, (Vec<Arrival>, Cursor)> {
        self.recall(|memory| memory.arrivals.read(&shards, cursor, limit))
    }

    fn marks(
        &self,
        _shards: Arc<[ShardId]>,
        cursor: Cursor,
    ) -> store::Answer<'_, (Vec<(ShardId, Incarnation)>, Cursor)> {
        // Every mark was applied when it was made.
        self.recall(|_| (Vec::new(), cursor))
    }

    fn due(&self, reads: Vec<DueRead>) -> store::Answer<'_, Vec<DuePage>> {
        Box::pin(async move {
            let done: Vec<Timestamp> = {
                let memory = self.memory();
                reads.iter().map(|read| memory.positions(read.poller).done).collect()
            };
            self.read(move |rows| reads.iter().zip(done).map(|(read, done)| rows.due(read, done)).collect()).await
        })
    }

    fn write(&self, writes: Vec<OwnerWrite>) -> store::Answer<'_, Vec<Result<Written, WriteRefusal>>> {
        Box::pin(async move {
            // A put carries a user's payload, whoever writes it.
            if writes.iter().any(|write| matches!(write.change, Change::Put(_) | Change::PutIf { .. })) {
                self.check_user().await?;
            }
            let mut entries = self.builder(Kind::Write);
            writes.iter().for_each(|write| entries.write(write));
            Ok(join!(self.submit(entries).await?, Written))
        })
    }

    fn hand_over(&self, lists: Vec<HandOver>) -> store::Answer<'_, Vec<Result<(), WriteRefusal>>> {
        Box::pin(async move {
            let mut entries = self.builder(Kind::HandOver);
            lists.iter().for_each(|list| entries.hand_over(list));
            Ok(join!(self.submit(entries).await?, HandedOver))
        })
    }

    fn handed_over(&self, shards: Vec<ShardId>) -> store::Answer<'_, Vec<Vec<HandedOver>>> {
        let of = |memory: &Memory, shard| memory.handed_over.get(shard).cloned().unwrap_or_default();
        self.recall(|memory| shards.iter().map(|shard| of(memory, shard)).collect())
    }
}

#[cfg(test)]
mod tests;
