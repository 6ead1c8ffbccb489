//! Background tasks of the store. They apply durable journal entries, flush and merge the index, and check the free
//! disk space.
//!
//! A sealed part of the index is a memtable that accepts no more rows and waits for its flush. The applying task waits
//! for a flush only if the number of sealed parts exceeds [`SEALED_MAX`]. User writes wait at a lower number
//! ([`Shared::wait_for_capacity`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use journal::{AppendError, Commit, FolderLock, Journal};
use runtime::Runtime;
use store::{Health, StoreError};
use tokio::sync::{Notify, RwLock, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::apply::{Machine, Response};
use crate::checkpoint::Checkpoint;
use crate::damage::Damage;
use crate::index::{Family, Index, IndexError, Sequence};
use crate::options::Options;
use crate::space::{Pending, Space};

pub(crate) type Ticket = oneshot::Sender<Result<Response, StoreError>>;

/// Number of sealed parts in memory above which user writes wait.
const SEALED_WAIT: usize = 4;
/// Number of sealed parts in memory above which every write waits.
const SEALED_MAX: usize = 8;
/// Number of unmerged parts on disk above which user writes wait. Every read must search each of these parts.
const UNMERGED_WAIT: usize = 64;
/// Duration of a journal commit above which the disk counts as busy.
const BUSY_COMMIT: Duration = Duration::from_millis(50);
/// Time for which the disk counts as busy after such a commit.
const BUSY_TIME: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// State that the background tasks share with the callers of the store.
pub(crate) struct Shared {
    pub runtime: Runtime,
    pub dir: PathBuf,
    pub options: Options,
    pub index: Arc<dyn Index>,
    pub closed: CancellationToken,
    pub space: Space,
    pub damage: Damage,
    /// Request to the task [`watch_free_space`] to read the free space before its period ends.
    check_wanted: Notify,
    /// Notification that the task has read the free space.
    checked: Notify,
    /// True while user writes must wait for flushes or merges.
    behind: AtomicBool,
    /// Notification that `behind` became false. A `watch` channel would wake its receivers in an order that does not
    /// depend on the simulator's seed.
    caught_up: Notify,
    /// Instant until which the disk counts as busy, in nanoseconds since the start of the clock.
    busy_until: AtomicU64,
    /// Last durable checkpoint.
    pub checkpoint: watch::Sender<Checkpoint>,
    /// Lock that excludes flushes and merges during a backup. Flushes and merges share the lock; a backup takes it
    /// exclusively.
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
        Shared {
            runtime: runtime.clone(),
            dir,
            space: Space::new(options.free_bytes_floor),
            damage: Damage::default(),
            check_wanted: Notify::new(),
            checked: Notify::new(),
            options,
            index,
            closed: CancellationToken::new(),
            behind: AtomicBool::new(false),
            caught_up: Notify::new(),
            busy_until: AtomicU64::new(0),
            checkpoint: watch::Sender::new(checkpoint),
            maintenance: RwLock::new(()),
        }
    }

    pub(crate) fn health(&self) -> Health {
        if self.closed.is_cancelled() {
            Health::Closed
        } else if self.space.is_full() {
            Health::Full
        } else {
            Health::Ready
        }
    }

    /// Converts `error`, with which the journal rejected an entry, into a store error.
    pub(crate) fn append_error(&self, error: &AppendError) -> StoreError {
        match error {
            AppendError::Full => self.space.full_error(),
            AppendError::TooLarge { .. } => StoreError::Unavailable(error.to_string()),
            AppendError::Closed => StoreError::Unavailable("the store is closed".to_owned()),
        }
    }

    /// Waits until the backlog of flushes and merges is small enough for user writes. Returns at once if the store is
    /// closed.
    pub(crate) async fn wait_for_capacity(&self) {
        while self.behind.load(Ordering::Acquire) && !self.closed.is_cancelled() {
            let mut caught_up = std::pin::pin!(self.caught_up.notified());
            caught_up.as_mut().enable();
            // The method checks `behind` again, because the backlog may have ended before this task subscribed to the
            // notification.
            if self.behind.load(Ordering::Acquire) {
                tokio::select! {
                    biased;
                    () = caught_up => {}
                    () = self.closed.cancelled() => {}
                }
            }
        }
    }

    /// Returns true if a commit of the journal has recently waited long for the disk. A read from the disk may then
    /// wait equally long.
    pub(crate) fn is_disk_busy(&self) -> bool {
        self.nanos() < self.busy_until.load(Ordering::Relaxed)
    }

    fn nanos(&self) -> u64 {
        nanos_of(self.runtime.monotonic().since_start())
    }

    pub(crate) fn update_pressure(&self) -> usize {
        let pressure = self.index.pressure();
        let behind = pressure.sealed > SEALED_WAIT || pressure.unmerged > UNMERGED_WAIT;
        if self.behind.swap(behind, Ordering::AcqRel) && !behind {
            self.caught_up.notify_waiters();
        }
        pressure.sealed
    }

    /// Returns the sequence from which the index must keep every version of a row, because a replay from the last
    /// checkpoint may read these versions.
    fn keep_from(&self) -> Sequence {
        Sequence::new(self.checkpoint.borrow().synced + 1, 0)
    }

    /// Returns the number of bytes in memory that flushes will write to the tables.
    fn unflushed_bytes(&self) -> u64 {
        let unsealed: u64 = Family::ALL.into_iter().map(|family| self.index.unsealed_bytes(family)).sum();
        unsealed + self.index.pressure().sealed as u64 * self.options.memtable_bytes
    }

    /// Counts a user write of `bytes` bytes. The caller drops the returned guard when the write is in the journal.
    ///
    /// # Errors
    /// Returns [`StoreError::Full`] if the free space of the disk could fall below [`Options::free_bytes_floor`].
    pub(crate) async fn take_space(&self, bytes: u64) -> Result<Pending<'_>, StoreError> {
        let (pending, must_check) = self.space.take(bytes);
        if must_check {
            let mut checked = std::pin::pin!(self.checked.notified());
            checked.as_mut().enable();
            self.check_wanted.notify_one();
            tokio::select! {
                biased;
                () = checked => {}
                () = self.closed.cancelled() => {}
            }
        }
        if self.space.is_full() { Err(self.space.full_error()) } else { Ok(pending) }
    }

    pub(crate) async fn check_free_space(&self) {
        let free_bytes = match self.runtime.disk().free_bytes(&self.dir).await {
            Ok(free_bytes) => free_bytes,
            Err(error) => {
                tracing::warn!(%error, "free space of the data folder's disk could not be read");
                return;
            }
        };
        if self.space.update(free_bytes, self.unflushed_bytes()) {
            if self.space.is_full() {
                let floor_bytes = self.options.free_bytes_floor;
                tracing::warn!(
                    free_bytes,
                    floor_bytes,
                    "disk nearly full; user writes are rejected until disk space is freed"
                );
            } else {
                tracing::info!(free_bytes, "disk has enough free space again; user writes are accepted");
            }
        }
    }
}

/// Progress of the applying task: how often it has sealed parts of the index, and up to which journal entry.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Encrypted {
    /// Number of times that the task sealed a part of the index.
    pub count: u64,
    /// Last journal entry after which the task sealed all families.
    pub entry: Option<u64>,
}

/// Request to the applying task to seal all families. The response is the number of the last applied entry.
pub(crate) type SealRequest = oneshot::Sender<u64>;

pub(crate) struct Applier {
    pub shared: Arc<Shared>,
    pub machine: Machine,
    pub sealed: watch::Sender<Encrypted>,
    /// Number of the entry before the first entry of the journal.
    pub base: u64,
    /// Number of the last applied entry.
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
                    Some(response) => {
                        self.seal_all();
                        // The send of the response fails if the caller has dropped the receiver. This failure is
                        // harmless.
                        let _ignored = response.send(self.applied);
                    }
                    None => requests_open = false,
                },
            }
        }
        self.seal_all();
    }

    async fn commit(&mut self, commit: Commit<Ticket>) {
        let first_index = self.base + commit.first_index;
        assert_eq!(first_index, self.applied + 1, "the journal delivers every entry once and in order");
        if commit.took > BUSY_COMMIT {
            let until = self.shared.nanos() + nanos_of(BUSY_TIME);
            self.shared.busy_until.store(until, Ordering::Relaxed);
        }
        for (entry_index, (entry, ticket)) in (first_index..).zip(commit.entries) {
            let response = self.machine.apply(entry_index, &entry);
            match &response {
                Ok(response) => self.bytes_since_checkpoint += response.extra_bytes(),
                Err(error) => tracing::error!(entry = entry_index, %error, "journal entry could not be applied"),
            }
            // The send of the response fails if the caller has dropped the receiver. This failure is harmless, because
            // the journal entry is durable.
            let _ignored = ticket.send(response);
            self.bytes_since_checkpoint += entry.len() as u64;
            self.applied = entry_index;
        }
        self.seal_if_large();
        if self.shared.update_pressure() > SEALED_MAX {
            self.shared.wait_for_capacity().await;
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

/// Flushes the sealed parts of the index, writes checkpoints, and releases journal segments whose entries are all in
/// the index. The task keeps the folder locked until its last write, which may be later than the end of the journal.
pub(crate) async fn flush(
    shared: Arc<Shared>,
    journal: Journal<Ticket>,
    lock: FolderLock,
    mut sealed: watch::Receiver<Encrypted>,
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
            // The store is closed. This task drops the last handle of the journal, so the journal ends. The entries
            // that the journal has already delivered still need a flush.
            journal = None;
            continue;
        };
        let Encrypted { count, entry } = *sealed.borrow_and_update();
        flush_until_done(&shared, journal.as_ref(), &lock, entry).await;
        flushed.send_replace(count);
        if !more_to_come {
            return;
        }
    }
}

async fn flush_until_done(
    shared: &Shared,
    journal: Option<&Journal<Ticket>>,
    lock: &FolderLock,
    sealed_entry: Option<u64>,
) {
    while let Err(error) = flush_once(shared, journal, lock, sealed_entry).await {
        // Until a retry of the flush succeeds, the rows stay in memory and in the journal. A full disk may have free
        // space later.
        tracing::error!(%error, "flush failed; retrying");
        if shared.closed.is_cancelled() {
            return; // The journal contains all rows, so the store loses nothing.
        }
        shared.runtime.sleep(RETRY).await;
    }
}

async fn flush_once(
    shared: &Shared,
    journal: Option<&Journal<Ticket>>,
    lock: &FolderLock,
    sealed_entry: Option<u64>,
) -> Result<(), IndexError> {
    let _shared = shared.maintenance.read().await;
    lock.verify().await;
    shared.index.flush(shared.keep_from()).await?;
    shared.update_pressure();
    let mut checkpoint = *shared.checkpoint.borrow();
    let Some(synced) = sealed_entry.filter(|entry| *entry > checkpoint.synced) else { return Ok(()) };
    checkpoint.synced = synced;
    lock.verify().await;
    checkpoint.write(&shared.runtime, &shared.dir).await?;
    shared.checkpoint.send_replace(checkpoint);
    if let Some(journal) = journal {
        journal.release(synced - checkpoint.base + 1);
    }
    Ok(())
}

/// Merges flushed parts of the index. The first merges run as soon as the store has started, because user writes may
/// wait for merges of parts that an earlier process wrote. The task keeps the folder locked until its last write.
pub(crate) async fn merge(shared: Arc<Shared>, lock: FolderLock, mut flushed: watch::Receiver<u64>) {
    loop {
        lock.verify().await;
        let merged = {
            let _shared = shared.maintenance.read().await;
            shared.index.merge_step(shared.keep_from())
        };
        shared.update_pressure();
        match merged {
            Ok(true) if !shared.closed.is_cancelled() => {}
            Ok(_) if flushed.changed().await.is_err() => return,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "merge failed; retrying");
                if matches!(error, IndexError::Damaged { family, .. } if family == Family::Due.name()) {
                    shared.damage.search();
                }
                if shared.runtime.timeout(RETRY, shared.closed.cancelled()).await.is_some() {
                    return;
                }
            }
        }
    }
}

/// Checks the free space of the disk periodically, and when a user write requests it. Only this task makes the disk
/// call that reads the free space, because the call may block its thread.
pub(crate) async fn watch_free_space(shared: Arc<Shared>) {
    loop {
        let wait = async {
            tokio::select! {
                biased;
                () = shared.closed.cancelled() => {}
                () = shared.check_wanted.notified() => {}
            }
        };
        shared.runtime.timeout(shared.options.free_bytes_period, wait).await;
        if shared.closed.is_cancelled() {
            return;
        }
        shared.check_free_space().await;
        shared.checked.notify_waiters();
    }
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("2^64 nanoseconds are longer than 500 years")
}
