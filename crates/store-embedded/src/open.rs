//! Opening of a store. The process that opens a store reads the checkpoint, opens the index, replays the journal from
//! the checkpoint and starts the store's tasks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use domain::id::new_epoch;
use domain::{Term, Timestamp};
use futures_util::future::BoxFuture;
use journal::{Journal, Opened, ReadError};
use prometheus_client::metrics::counter::Counter;
use runtime::{Runtime, TaskSet};
use store::StoreError;
use tokio::sync::{mpsc, watch};

use crate::apply::{self, Machine};
use crate::background::{self, Applier, Encrypted, Shared, Ticket};
use crate::checkpoint::{Checkpoint, CheckpointError, FILE, RunIndex};
use crate::codec::timed::Progress;
use crate::history;
use crate::index::lsm::{self, LsmIndex};
use crate::index::map::{self, MapIndex};
use crate::index::{Family, Index, IndexError, Sequence};
use crate::listing;
use crate::memory::Memory;
use crate::read::Rows;
use crate::readers::Readers;
use crate::rebuild;
use crate::run_index;
use crate::{EmbeddedStore, IndexKind, OpenError, Options};

pub(crate) const JOURNAL_DIR: &str = "journal";
pub(crate) const INDEX_DIR: &str = "index";

/// Number of threads that load rows ahead of their use.
const PRELOADERS: usize = 2;

struct Opening<'a> {
    runtime: &'a Runtime,
    dir: &'a Path,
    options: &'a Options,
}

impl EmbeddedStore {
    /// Opens the store in the folder `dir`, and creates the store if it does not exist. Removes the access of other
    /// users to the folder and the files of the store. The call blocks its thread while it replays the journal. The
    /// store's tasks run in `tasks`. They end after [`EmbeddedStore::close`], or after the caller drops the store.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the store cannot be opened. If the error reports damage, the call has changed no
    /// file.
    pub async fn open(
        runtime: &Runtime,
        tasks: &TaskSet,
        dir: &Path,
        options: Options,
    ) -> Result<EmbeddedStore, OpenError> {
        options.check()?;
        let opening = Opening { runtime, dir, options: &options };
        runtime.disk().create_dir_all(dir).await.map_err(|source| opening.io(source))?;
        runtime.restrict_all(dir).await.map_err(|source| opening.io(source))?;
        let opened = Journal::<Ticket>::open(runtime, tasks, &dir.join(JOURNAL_DIR), options.journal.clone()).await?;
        match opening.recover(&opened).await {
            Ok(Recovered { checkpoint, index, memory, machine, replayed }) => {
                let shared = Arc::new(Shared::new(runtime, dir.to_owned(), options, index, checkpoint));
                shared.check_free_space().await;
                Ok(start(tasks, shared, opened, memory, machine, replayed))
            }
            Err(error) => {
                let Opened { journal, commits, .. } = opened;
                drop(commits);
                journal.close().await;
                Err(error)
            }
        }
    }
}

/// Starts an epoch in the closed store in the folder `dir`. The new epoch is higher than the epoch `earlier`. The
/// caller has copied the data of another store, whose epoch is `earlier`, to this store.
///
/// # Errors
/// Returns an [`OpenError`] if the folder does not contain a store that was closed regularly, or if another process
/// uses it.
pub async fn start_epoch(runtime: &Runtime, tasks: &TaskSet, dir: &Path, earlier: u64) -> Result<(), OpenError> {
    let options = Options::default();
    let opening = Opening { runtime, dir, options: &options };
    let Opened { journal, commits, next, .. } =
        Journal::<Ticket>::open(runtime, tasks, &dir.join(JOURNAL_DIR), options.journal.clone()).await?;
    let started = async {
        let Ok(Some(mut checkpoint)) = Checkpoint::read(runtime, dir).await else {
            return Err(opening.damaged(format!("{FILE} is missing or damaged")));
        };
        // A replay under another epoch would assign other terms, and would reject the writes under the earlier terms.
        if checkpoint.base + next - 1 != checkpoint.synced {
            return Err(opening.damaged("the index lacks entries of the journal, although the store is closed"));
        }
        checkpoint.epoch = new_epoch(runtime.now(), earlier.max(checkpoint.epoch));
        checkpoint.write(runtime, dir).await.map_err(|source| opening.io(source))
    };
    let started = started.await;
    drop(commits);
    journal.close().await;
    started
}

/// Parts of a store after recovery and before the store's tasks start.
struct Recovered {
    checkpoint: Checkpoint,
    index: Arc<dyn Index>,
    memory: Arc<Mutex<Memory>>,
    machine: Machine,
    replayed: Replayed,
}

/// Result of a replay. The task that applies journal entries starts with these values.
struct Replayed {
    applied: u64,
    bytes: u64,
}

fn start(
    tasks: &TaskSet,
    shared: Arc<Shared>,
    opened: Opened<Ticket>,
    memory: Arc<Mutex<Memory>>,
    machine: Machine,
    replayed: Replayed,
) -> EmbeddedStore {
    let Opened { journal, commits, lock, .. } = opened;
    let (alive, tasks_alive) = mpsc::channel::<()>(1);
    let living = |task: BoxFuture<'static, ()>| {
        let alive = alive.clone();
        async move {
            task.await;
            drop(alive);
        }
    };
    let task = |name, task| tasks.spawn_thread(name, living(task));
    let background = |name, task| tasks.spawn_background(name, living(task));

    let (sealed, sealed_receiver) = watch::channel(Encrypted::default());
    let (flushed, flushed_receiver) = watch::channel(0);
    let (seal_requests, requests) = mpsc::channel(1);
    let base = shared.checkpoint.borrow().base;
    let rows = machine.rows.clone();
    let applier = Applier {
        shared: shared.clone(),
        machine,
        sealed,
        base,
        applied: replayed.applied,
        bytes_since_checkpoint: replayed.bytes,
    };
    // The guard closes the store when the applying task ends for any reason. Callers whose entries the task has not
    // applied then get no response, and later callers get the error that the store is closed.
    let close_at_end = shared.closed.clone().drop_guard();
    let apply = async move {
        applier.run(commits, requests).await;
        drop(close_at_end);
    };
    task("store apply", Box::pin(apply));
    let flush = background::flush(shared.clone(), journal.clone(), lock.clone(), sealed_receiver, flushed);
    background("store flush", Box::pin(flush));
    background("store merge", Box::pin(background::merge(shared.clone(), lock, flushed_receiver)));
    task("store space", Box::pin(background::watch_free_space(shared.clone())));
    task("store history", Box::pin(history::forget(shared.clone(), memory.clone(), rows.clone(), journal.clone())));
    let rebuild = rebuild::run(shared.clone(), memory.clone(), rows.clone(), journal.clone());
    background("store rebuild", Box::pin(rebuild));
    if !rows.are_runs_listed.load(Ordering::Acquire) {
        background("store run index", Box::pin(run_index::build(shared.clone(), journal.clone())));
    }
    let (readers, scanner, preloaders) = (Readers::new(), Readers::new(), Readers::new());
    for _ in 0..shared.options.readers {
        task("store reader", Box::pin(readers.clone().run(shared.closed.clone())));
    }
    for _ in 0..PRELOADERS {
        task("store preloader", Box::pin(preloaders.clone().run(shared.closed.clone())));
    }
    background("store scanner", Box::pin(scanner.clone().run(shared.closed.clone())));
    EmbeddedStore {
        rows,
        shared,
        journal,
        memory,
        readers,
        scanner,
        preloaders,
        preloaded: Counter::default(),
        seal_requests,
        tasks_alive: tokio::sync::Mutex::new(tasks_alive),
    }
}

impl Opening<'_> {
    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { dir: self.dir.to_owned(), source }
    }

    fn damaged(&self, what: impl std::fmt::Display) -> OpenError {
        OpenError::Damaged { dir: self.dir.to_owned(), what: what.to_string() }
    }

    fn lacks_last(&self, lost: u64) -> OpenError {
        self.damaged(format!("the journal lacks the last {lost} entries that the index contains"))
    }

    fn index_dir(&self) -> PathBuf {
        self.dir.join(INDEX_DIR)
    }

    async fn recover(&self, opened: &Opened<Ticket>) -> Result<Recovered, OpenError> {
        let mut checkpoint = self.checkpoint(opened).await?;
        let index = self.index(&checkpoint).await?;
        let last = checkpoint.base + opened.next - 1;
        if let Some(flushed) = index.flushed_to().map(Sequence::entry).filter(|flushed| *flushed > last) {
            // The index flushes rows only after their entries are durable, and may flush them before a checkpoint.
            return Err(self.lacks_last(flushed - last));
        }
        if !checkpoint.is_listed {
            let listed = listing::build(&index, checkpoint.synced, self.options.memtable_bytes).await;
            listed.map_err(|error| match error {
                StoreError::Unavailable(reason) | StoreError::Unindexed(reason) | StoreError::Full(reason) => {
                    self.io(io::Error::other(reason))
                }
                StoreError::Damaged(what) => self.damaged(what),
            })?;
            checkpoint.is_listed = true;
            checkpoint.write(self.runtime, self.dir).await.map_err(|source| self.io(source))?;
        }
        if checkpoint.run_index == RunIndex::Missing || checkpoint.counted_from.is_none() {
            // From now on, an earlier build must not write to the store, because it would not list or count its runs.
            if checkpoint.run_index == RunIndex::Missing {
                checkpoint.run_index = RunIndex::Building;
            }
            checkpoint.counted_from.get_or_insert(self.runtime.now());
            checkpoint.write(self.runtime, self.dir).await.map_err(|source| self.io(source))?;
        }
        let mut memory = Memory::new(self.options.arrivals_max);
        let from = checkpoint.synced + 1;
        let rows = Rows::new(index.clone());
        apply::load(&rows, Sequence::new(from, 0), &mut memory).map_err(|error| self.damaged(error))?;
        let progress = rows.run_index_progress(Sequence::new(from, 0)).map_err(|error| self.damaged(error))?;
        let are_runs_listed = checkpoint.run_index == RunIndex::Complete || progress == Some(Progress::Complete);
        rows.are_runs_listed.store(are_runs_listed, Ordering::Release);
        let memory = Arc::new(Mutex::new(memory));
        let machine = Machine::new(rows, memory.clone(), Term::before_epoch(checkpoint.epoch));
        opened.journal.release(from - checkpoint.base);
        let replayed = self.replay(opened, &checkpoint, &machine, &*index).await?;
        Ok(Recovered { checkpoint, index, memory, machine, replayed })
    }

    /// Reads the checkpoint and checks that it matches the journal. Creates a checkpoint if the journal is new and the
    /// folder has no index.
    async fn checkpoint(&self, opened: &Opened<Ticket>) -> Result<Checkpoint, OpenError> {
        let journal_id = opened.journal.id();
        let known = Checkpoint::read(self.runtime, self.dir).await.map_err(|error| match error {
            CheckpointError::Io(source) => self.io(source),
            CheckpointError::Envelope(_) | CheckpointError::Malformed(_) => self.damaged(error),
        })?;
        let is_new_journal = opened.next == 1;
        let Some(mut checkpoint) = known else {
            if !is_new_journal || self.has_index().await? {
                return Err(self.damaged(format!("{FILE} is missing")));
            }
            let checkpoint = Checkpoint {
                index: self.options.index,
                epoch: new_epoch(self.runtime.now(), 0),
                journal_id: Some(journal_id),
                base: 0,
                synced: 0,
                is_listed: true,
                run_index: RunIndex::Complete,
                counted_from: Some(Timestamp::MIN),
            };
            checkpoint.write(self.runtime, self.dir).await.map_err(|source| self.io(source))?;
            return Ok(checkpoint);
        };
        if checkpoint.index != self.options.index {
            return Err(OpenError::OtherIndex { dir: self.dir.to_owned() });
        }
        match checkpoint.journal_id {
            Some(expected) if expected == journal_id => {}
            Some(_) => return Err(self.damaged("the journal does not belong to the index")),
            None if is_new_journal => {
                checkpoint.journal_id = Some(journal_id);
                checkpoint.write(self.runtime, self.dir).await.map_err(|source| self.io(source))?;
            }
            None => {
                return Err(self.damaged(
                    "the folder contains a journal, but the checkpoint in the folder comes from a backup, and a backup \
                     contains no journal",
                ));
            }
        }
        let from = checkpoint.synced + 1 - checkpoint.base;
        if opened.next < from {
            return Err(self.lacks_last(from - opened.next));
        }
        if opened.first > from {
            let lost = opened.first - from;
            return Err(self.damaged(format!(
                "the journal lacks the {lost} entries after the last entry that the index contains"
            )));
        }
        Ok(checkpoint)
    }

    async fn has_index(&self) -> Result<bool, OpenError> {
        match self.options.index {
            IndexKind::Lsm => Ok(LsmIndex::exists(&self.index_dir())),
            IndexKind::Map => match self.runtime.disk().list(&self.index_dir()).await {
                Ok(names) => Ok(!names.is_empty()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(source) => Err(self.io(source)),
            },
        }
    }

    async fn index(&self, checkpoint: &Checkpoint) -> Result<Arc<dyn Index>, OpenError> {
        if checkpoint.synced > 0 && !self.has_index().await? {
            return Err(self.damaged("the index is missing"));
        }
        let opened = open_index(self.runtime, &self.index_dir(), self.options).await;
        opened.map_err(|error| match error {
            IndexError::Damaged { .. } => self.damaged(error),
            IndexError::Io(source) => self.io(source),
        })
    }

    /// Applies the journal entries that may be missing in the index.
    async fn replay(
        &self,
        opened: &Opened<Ticket>,
        checkpoint: &Checkpoint,
        machine: &Machine,
        index: &dyn Index,
    ) -> Result<Replayed, OpenError> {
        let mut replayed = Replayed { applied: checkpoint.synced, bytes: 0 };
        let mut reader = opened.journal.reader(checkpoint.synced + 1 - checkpoint.base);
        loop {
            let (entry_index, entry) = match reader.next().await {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(error @ (ReadError::Damaged(_) | ReadError::Released { .. })) => return Err(self.damaged(error)),
                Err(ReadError::Io { source, .. }) => return Err(self.io(source)),
            };
            let entry_index = checkpoint.base + entry_index;
            // A replayed entry has no waiting caller, so this function drops the response.
            let response = machine.apply(entry_index, &entry).map_err(|error| self.damaged(error))?;
            replayed.applied = entry_index;
            replayed.bytes += entry.len() as u64 + response.extra_bytes();
            if Family::ALL.iter().any(|family| index.unsealed_bytes(*family) >= self.options.memtable_bytes) {
                Family::ALL.into_iter().for_each(|family| index.seal(family));
                let flushed = index.flush(Sequence::new(checkpoint.synced + 1, 0)).await;
                flushed.map_err(|error| self.damaged(error))?;
            }
        }
        if replayed.applied > checkpoint.synced {
            let entries = replayed.applied - checkpoint.synced;
            tracing::info!(entries, bytes = replayed.bytes, "journal replayed");
        }
        Ok(replayed)
    }
}

impl Options {
    fn check(&self) -> Result<(), OpenError> {
        // The last item of a journal entry can make the entry larger than `entry_bytes`. An item has at most about 64
        // KiB of payload and headers.
        if self.entry_bytes > self.journal.entry_bytes_max / 2 {
            return Err(OpenError::Options(
                "the option `entry_bytes` must be at most half of the journal's option `entry_bytes_max`",
            ));
        }
        if self.readers == 0 {
            return Err(OpenError::Options("the option `readers` must be at least 1"));
        }
        if self.history.is_zero() || self.history_period.is_zero() {
            return Err(OpenError::Options("the options `history` and `history_period` must be greater than zero"));
        }
        if self.memtable_bytes == 0 || self.checkpoint_bytes == 0 || self.arrivals_max == 0 {
            return Err(OpenError::Options(
                "`memtable_bytes`, `checkpoint_bytes` and `arrivals_max` must be at least 1",
            ));
        }
        Ok(())
    }
}

/// Opens the index in `dir`, or creates it. Only the user of this process has access to the folder afterwards.
pub(crate) async fn open_index(runtime: &Runtime, dir: &Path, options: &Options) -> Result<Arc<dyn Index>, IndexError> {
    runtime.disk().create_dir_all(dir).await?;
    restrict_index(runtime, dir, options.index).await?;
    Ok(match options.index {
        IndexKind::Lsm => Arc::new(LsmIndex::open(dir, options)?),
        IndexKind::Map => Arc::new(MapIndex::open(runtime, dir, options.hides_damage).await?),
    })
}

/// Returns the path of the file with the due rows of the store in `dir`, if its index is [`IndexKind::Map`]. A
/// simulation damages this file.
#[must_use]
pub fn due_file(dir: &Path) -> PathBuf {
    map::path(&dir.join(INDEX_DIR), Family::Due)
}

/// Removes the access of other users to the folder `dir` of an index and to its files. The library creates files and
/// subfolders with the modes that the umask of the process permits. Other users have no access to them in any case,
/// because they have no access to `dir`.
pub(crate) async fn restrict_index(runtime: &Runtime, dir: &Path, kind: IndexKind) -> io::Result<()> {
    match kind {
        IndexKind::Lsm => runtime.restrict(dir, lsm::files_below(dir)?).await,
        IndexKind::Map => runtime.restrict_all(dir).await,
    }
}
