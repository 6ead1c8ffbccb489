//! The tasks behind the store: apply what the journal made durable, flush, merge, watch the disk.
//!
//! Applying never waits for a flush or a merge, unless rows pile up in memory faster than the disk takes them
//! ([`SEALED_MAX`]); before that, users' writes wait ([`Shared::wait_for_room`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use journal::{AppendError, Commit, Journal};
use prometheus_client::metrics::gauge::Gauge;
use runtime::Runtime;
use store::{Health, StoreError};
use tokio::sync::{Notify, RwLock, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::apply::{Answer, Machine};
use crate::checkpoint::Checkpoint;
use crate::index::{Family, Index, IndexError, Sequence};
use crate::options::Options;

pub(crate) type Ticket = oneshot::Sender<Result<Answer, StoreError>>;

/// Sealed parts in memory above which users' writes wait, and above which everything waits.
const SEALED_WAIT: usize = 4;
const SEALED_MAX: usize = 8;
/// Unmerged parts on disk above which users' writes wait: every read looks into each of them.
const UNMERGED_WAIT: usize = 64;
const RETRY: Duration = Duration::from_secs(1);

/// What the tasks and the store's callers see of each other.
pub(crate) struct Shared {
    pub runtime: Runtime,
    pub dir: PathBuf,
    pub options: Options,
    pub index: Arc<dyn Index>,
    pub closed: CancellationToken,
    full: AtomicBool,
    pub free_bytes: Gauge,
    /// Users' writes wait while this is true.
    behind: AtomicBool,
    /// Woken when that ends. (Not a `watch`, which wakes its receivers in an order that no seed gives.)
    caught_up: Notify,
    /// The last checkpoint that is durable.
    pub checkpoint: watch::Sender<Checkpoint>,
    /// Flushes and merges share it; a backup has it alone.
    pub maintenance: RwLock<()>,
}

impl Shared {
    pub(crate) fn new(
        runtime: &Runtime,
        dir: PathBuf,
        options: Options,
        index: Arc<dyn Index>,
        checkpoint: Checkpoint,
    ) -> Self {
        let free_bytes = Gauge::default();
        free_bytes.set(i64::MAX);
        Shared {
            runtime: runtime.clone(),
            dir,
            options,
            index,
            closed: CancellationToken::new(),
            full: AtomicBool::new(false),
            free_bytes,
            behind: AtomicBool::new(false),
            caught_up: Notify::new(),
            checkpoint: watch::Sender::new(checkpoint),
            maintenance: RwLock::new(()),
        }
    }

    pub(crate) fn health(&self) -> Health {
        if self.closed.is_cancelled() {
            Health::Closed
        } else if self.full.load(Ordering::Relaxed) {
            Health::Full
        } else {
            Health::Ready
        }
    }

    pub(crate) fn full_error(&self) -> StoreError {
        let free = self.free_bytes.get();
        let floor = self.options.free_bytes_floor;
        StoreError::Full(format!("{free} bytes are free, {floor} must stay free"))
    }

    /// Why the journal took no entry.
    pub(crate) fn refused(&self, error: &AppendError) -> StoreError {
        match error {
            AppendError::Full => self.full_error(),
            AppendError::TooLarge { .. } => StoreError::Unavailable(error.to_string()),
            AppendError::Closed => StoreError::Unavailable("the store is closed".to_owned()),
        }
    }

    /// Returns at once unless flushing or merging is far behind; and when the store is closed.
    pub(crate) async fn wait_for_room(&self) {
        while self.behind.load(Ordering::Acquire) && !self.closed.is_cancelled() {
            let mut caught_up = std::pin::pin!(self.caught_up.notified());
            caught_up.as_mut().enable();
            // It may have ended before this was listening.
            if self.behind.load(Ordering::Acquire) {
                tokio::select! {
                    biased;
                    () = caught_up => {}
                    () = self.closed.cancelled() => {}
                }
            }
        }
    }

    fn look_at_pressure(&self) -> usize {
        let pressure = self.index.pressure();
        let behind = pressure.sealed > SEALED_WAIT || pressure.unmerged > UNMERGED_WAIT;
        if self.behind.swap(behind, Ordering::AcqRel) && !behind {
            self.caught_up.notify_waiters();
        }
        pressure.sealed
    }

    /// Reads of a replay from the last checkpoint on see every version from here on.
    fn keep_from(&self) -> Sequence {
        Sequence::new(self.checkpoint.borrow().synced + 1, 0)
    }

    pub(crate) async fn look_at_free_space(&self) {
        let free_bytes = match self.runtime.disk().free_bytes(&self.dir).await {
            Ok(free_bytes) => free_bytes,
            Err(error) => {
                tracing::warn!(%error, "the free space of the data folder's disk cannot be read");
                return;
            }
        };
        self.free_bytes.set(i64::try_from(free_bytes).unwrap_or(i64::MAX));
        let full = free_bytes < self.options.free_bytes_floor;
        if self.full.swap(full, Ordering::Relaxed) != full {
            if full {
                let floor_bytes = self.options.free_bytes_floor;
                tracing::warn!(free_bytes, floor_bytes, "the disk is nearly full: users' writes are refused");
            } else {
                tracing::info!(free_bytes, "the disk has room again: users' writes are taken");
            }
        }
    }
}

/// What the applying task has sealed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sealed {
    /// How often something was sealed.
    pub count: u64,
    /// The last entry after which everything was.
    pub entry: Option<u64>,
}

/// Asks the applying task to seal everything; answered with the last entry applied.
pub(crate) type SealRequest = oneshot::Sender<u64>;

pub(crate) struct Applier {
    pub shared: Arc<Shared>,
    pub machine: Machine,
    pub sealed: watch::Sender<Sealed>,
    /// The number of the entry before the journal's first.
    pub base: u64,
    /// The last entry applied.
    pub applied: u64,
    pub bytes_since_checkpoint: u64,
}

impl Applier {
    pub(crate) async fn run(
        mut self,
        mut commits: mpsc::Receiver<Commit<Ticket>>,
        mut requests: mpsc::Receiver<SealRequest>,
    ) {
        let mut requests_open = true;
        loop {
            tokio::select! {
                biased;
                commit = commits.recv() => match commit {
                    Some(commit) => self.commit(commit).await,
                    None => break,
                },
                request = requests.recv(), if requests_open => match request {
                    Some(answer) => {
                        self.seal_all();
                        // Whoever asked may have gone.
                        let _unheard = answer.send(self.applied);
                    }
                    None => requests_open = false,
                },
            }
        }
        self.seal_all();
    }

    async fn commit(&mut self, commit: Commit<Ticket>) {
        let first_index = self.base + commit.first_index;
        assert_eq!(first_index, self.applied + 1, "the journal tells every entry once, in order");
        for (entry_index, (entry, ticket)) in (first_index..).zip(commit.entries) {
            let answer = self.machine.apply(entry_index, &entry);
            if let Err(error) = &answer {
                tracing::error!(entry = entry_index, %error, "a journal entry could not be applied");
            }
            // The caller may have gone; what it asked for is durable all the same.
            let _unheard = ticket.send(answer);
            self.bytes_since_checkpoint += entry.len() as u64;
            self.applied = entry_index;
        }
        self.seal_if_large();
        if self.shared.look_at_pressure() > SEALED_MAX {
            self.shared.wait_for_room().await;
        }
    }

    fn seal_if_large(&mut self) {
        if self.bytes_since_checkpoint >= self.shared.options.checkpoint_bytes {
            self.seal_all();
            return;
        }
        for family in Family::ALL {
            if self.shared.index.unsealed_bytes(family) >= self.shared.options.memtable_bytes {
                self.shared.index.seal(family);
                self.sealed.send_modify(|sealed| sealed.count += 1);
            }
        }
    }

    fn seal_all(&mut self) {
        self.machine.write_memory(self.applied);
        Family::ALL.into_iter().for_each(|family| self.shared.index.seal(family));
        self.bytes_since_checkpoint = 0;
        self.sealed.send_modify(|sealed| {
            sealed.count += 1;
            sealed.entry = Some(self.applied);
        });
    }
}

/// Flushes what was sealed, notes how far the index is durable, and gives the journal's segments back.
pub(crate) async fn flush(
    shared: Arc<Shared>,
    journal: Journal<Ticket>,
    mut sealed: watch::Receiver<Sealed>,
    flushed: watch::Sender<u64>,
) {
    let mut journal = Some(journal);
    loop {
        let changed = tokio::select! {
            biased;
            () = shared.closed.cancelled(), if journal.is_some() => None,
            changed = sealed.changed() => Some(changed.is_ok()),
        };
        let Some(more_to_come) = changed else {
            // The journal ends when no one holds it, and what it told last is still to be flushed.
            journal = None;
            continue;
        };
        let Sealed { count, entry } = *sealed.borrow_and_update();
        flush_until_done(&shared, journal.as_ref(), entry).await;
        flushed.send_replace(count);
        if !more_to_come {
            return;
        }
    }
}

async fn flush_until_done(shared: &Shared, journal: Option<&Journal<Ticket>>, sealed_entry: Option<u64>) {
    while let Err(error) = flush_once(shared, journal, sealed_entry).await {
        // Rows stay in memory and in the journal meanwhile; a full disk passes.
        tracing::error!(%error, "rows could not be flushed; trying again");
        if shared.closed.is_cancelled() {
            return; // The journal has it all.
        }
        shared.runtime.sleep(RETRY).await;
    }
}

async fn flush_once(
    shared: &Shared,
    journal: Option<&Journal<Ticket>>,
    sealed_entry: Option<u64>,
) -> Result<(), IndexError> {
    let _shared = shared.maintenance.read().await;
    shared.index.flush(shared.keep_from()).await?;
    shared.look_at_pressure();
    let mut checkpoint = *shared.checkpoint.borrow();
    let Some(synced) = sealed_entry.filter(|entry| *entry > checkpoint.synced) else { return Ok(()) };
    checkpoint.synced = synced;
    checkpoint.write(&shared.runtime, &shared.dir).await?;
    shared.checkpoint.send_replace(checkpoint);
    if let Some(journal) = journal {
        journal.release(synced - checkpoint.base + 1);
    }
    Ok(())
}

/// Merges what was flushed, what an earlier life left first: users' writes may wait for it.
pub(crate) async fn merge(shared: Arc<Shared>, mut flushed: watch::Receiver<u64>) {
    loop {
        let merged = {
            let _shared = shared.maintenance.read().await;
            shared.index.merge_step(shared.keep_from())
        };
        shared.look_at_pressure();
        match merged {
            Ok(true) if !shared.closed.is_cancelled() => {}
            Ok(_) if flushed.changed().await.is_err() => return,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "flushed rows could not be merged; trying again");
                if shared.runtime.timeout(RETRY, shared.closed.cancelled()).await.is_some() {
                    return;
                }
            }
        }
    }
}

/// Looks at the disk's free space once a period.
pub(crate) async fn watch_free_space(shared: Arc<Shared>) {
    loop {
        let period = shared.options.free_bytes_period;
        if shared.runtime.timeout(period, shared.closed.cancelled()).await.is_some() {
            return;
        }
        shared.look_at_free_space().await;
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that look rows up, so that no caller's thread waits for the disk.
pub(crate) struct Readers {
    jobs: Vec<mpsc::Sender<Job>>,
    next: AtomicU64,
}

/// Look-ups that may wait for one reader.
const JOBS_MAX: usize = 1024;

impl Readers {
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::Receiver<Job>>) {
        let (jobs, receivers) = (0..count).map(|_| mpsc::channel(JOBS_MAX)).unzip();
        (Readers { jobs, next: AtomicU64::new(0) }, receivers)
    }

    pub(crate) async fn run(mut jobs: mpsc::Receiver<Job>, closed: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                job = jobs.recv() => match job {
                    Some(job) => job(),
                    None => return,
                },
                // Also when the store is gone.
                () = closed.cancelled() => return,
            }
        }
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look_up: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move || {
            // The caller may have gone.
            let _unheard = answer.send(look_up());
        });
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let reader = usize::try_from(turn % self.jobs.len() as u64).unwrap_or(0);
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        self.jobs[reader].send(job).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}
