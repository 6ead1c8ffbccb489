//! Backup of a running store, and restore of a store from a backup.
//!
//! A backup is a data folder without a journal. It contains `CHECKPOINT` and `index/` in their state directly after a
//! flush of all applied entries. It contains every write that the store acknowledged before the backup began. It may
//! contain writes that the store received during the backup, but no partial write. On the same file system the backup
//! hard-links the tables of the index instead of copying them. Only the user of the process has access to the files of
//! the copy. Hard links share their mode, so a copy of an older backup also changes the modes of its tables.
//!
//! A restored store uses a new journal. Its terms are higher than every term that the original store can have assigned.
//!
//! docs/decisions/0042-back-up-without-a-journal.md gives the reasons for the design.

use std::io;
use std::path::Path;

use domain::id::new_epoch;
use runtime::Runtime;
use tokio::sync::oneshot;

use crate::checkpoint::{Checkpoint, CheckpointError, FILE};
use crate::index::lsm;
use crate::index::map;
use crate::index::{IndexError, Sequence};
use crate::open::{INDEX_DIR, open_index, restrict_index};
use crate::{BackupError, EmbeddedStore, IndexKind, Options, Verified};

impl EmbeddedStore {
    /// Copies the store to `dir`, which must be empty or missing. Callers can write during the copy. Flushes and merges
    /// wait for the end of the copy.
    ///
    /// The call blocks its thread while it copies.
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the copy fails. The folder is then not a backup, because it has no `CHECKPOINT`.
    /// The caller must remove the folder.
    pub async fn backup(&self, dir: &Path) -> Result<(), BackupError> {
        let io = |source: io::Error| BackupError::Io { dir: dir.to_owned(), source };
        let disk = self.shared.runtime.disk();
        make_empty(&self.shared.runtime, dir).await?;
        let _alone = self.flushed().await?;
        let failed = |error: IndexError| match error {
            IndexError::Damaged { .. } => BackupError::Damaged(error.to_string()),
            IndexError::Io(source) => BackupError::Io { dir: dir.to_owned(), source },
        };
        let index = dir.join(INDEX_DIR);
        disk.create_dir_all(&index).await.map_err(io)?;
        self.shared.index.copy_to(&index).await.map_err(failed)?;
        restrict_index(&self.shared.runtime, &index, self.shared.options.index).await.map_err(io)?;
        disk.sync_dir(dir).await.map_err(io)?;
        // The backup writes the checkpoint last, because the checkpoint makes the folder a valid backup.
        let checkpoint = *self.shared.checkpoint.borrow();
        checkpoint.write(&self.shared.runtime, dir).await.map_err(io)
    }

    /// Flushes all applied entries. Returns a guard that prevents further flushes, so that the index matches the
    /// checkpoint exactly.
    async fn flushed(&self) -> Result<tokio::sync::RwLockWriteGuard<'_, ()>, BackupError> {
        loop {
            self.flush_all().await?;
            let alone = self.shared.maintenance.write().await;
            let synced = self.shared.checkpoint.borrow().synced;
            // Another flush may have written later rows of one family before this task got the lock. In a store, such
            // rows are harmless, because the journal contains the whole entry. A backup has no journal, so the backup
            // would contain only a part of the entry.
            let is_whole = |at: Sequence| at < Sequence::new(synced + 1, 0);
            if self.shared.index.flushed_to().is_none_or(is_whole) {
                return Ok(alone);
            }
        }
    }

    async fn flush_all(&self) -> Result<(), BackupError> {
        let (response, sealed) = oneshot::channel();
        self.seal_requests.send(response).await.map_err(|_| BackupError::Closed)?;
        let entry = sealed.await.map_err(|_| BackupError::Closed)?;
        let mut checkpoint = self.shared.checkpoint.subscribe();
        tokio::select! {
            biased;
            () = self.shared.closed.cancelled() => Err(BackupError::Closed),
            durable = async { checkpoint.wait_for(|checkpoint| checkpoint.synced >= entry).await.map(|_| ()) } => {
                durable.map_err(|_| BackupError::Closed)
            }
        }
    }
}

/// Creates a data folder `to` from the backup `from`, which stays unchanged. Compares all bytes in the new folder with
/// their checksums, and returns the number of rows in the folder.
///
/// The call blocks its thread while it copies and reads all files.
///
/// # Errors
/// Returns a [`BackupError`] if `from` is not a backup or is damaged, or if the copy fails. After an error, `to` is not
/// a data folder but may contain files. The caller must remove `to`.
pub async fn restore(runtime: &Runtime, from: &Path, to: &Path) -> Result<Verified, BackupError> {
    let not_a_backup = |what: String| BackupError::NoBackup { dir: from.to_owned(), what };
    let io = |source: io::Error| BackupError::Io { dir: to.to_owned(), source };
    let mut checkpoint = match Checkpoint::read(runtime, from).await {
        Ok(Some(checkpoint)) => checkpoint,
        Ok(None) => return Err(not_a_backup(format!("{FILE} is missing"))),
        Err(CheckpointError::Io(error)) => return Err(io(error)),
        Err(error) => return Err(not_a_backup(error.to_string())),
    };
    make_empty(runtime, to).await?;
    let (from_index, to_index) = (from.join(INDEX_DIR), to.join(INDEX_DIR));
    runtime.disk().create_dir_all(&to_index).await.map_err(io)?;
    match checkpoint.index {
        IndexKind::Lsm => lsm::copy_tree(&from_index, &to_index).map_err(io)?,
        IndexKind::Map => map::copy_files(runtime, &from_index, &to_index).await.map_err(io)?,
    }
    runtime.disk().sync_dir(to).await.map_err(io)?;
    let verified = verify(runtime, &to_index, checkpoint.index).await.map_err(|error| match error {
        IndexError::Damaged { .. } => BackupError::Damaged(error.to_string()),
        IndexError::Io(source) => io(source),
    })?;
    if !verified.damages.is_empty() {
        return Err(BackupError::Damaged(verified.damages.join("; ")));
    }
    checkpoint.epoch = new_epoch(runtime.now(), checkpoint.epoch);
    checkpoint.journal_id = None;
    checkpoint.base = checkpoint.synced;
    checkpoint.write(runtime, to).await.map_err(io)?;
    Ok(verified)
}

async fn verify(runtime: &Runtime, index: &Path, kind: IndexKind) -> Result<Verified, IndexError> {
    open_index(runtime, index, &Options { index: kind, ..Options::default() }).await?.verify().await
}

async fn make_empty(runtime: &Runtime, dir: &Path) -> Result<(), BackupError> {
    let io = |source: io::Error| BackupError::Io { dir: dir.to_owned(), source };
    let disk = runtime.disk();
    disk.create_dir_all(dir).await.map_err(io)?;
    let names = disk.list(dir).await.map_err(io)?;
    let index = disk.list(&dir.join(INDEX_DIR)).await;
    if names.is_empty() && index.is_err() { Ok(()) } else { Err(BackupError::NotEmpty { dir: dir.to_owned() }) }
}
