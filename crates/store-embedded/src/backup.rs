//! A copy of a store while it runs, and a store from a copy.
//!
//! A backup is a data folder without a journal: `CHECKPOINT` and `index/`, as they are right after everything applied
//! was flushed. It holds what was answered before the backup was asked for, and perhaps some of what came during it,
//! but nothing half. On the same file system the index's tables are not copied, only named again.
//!
//! A restored store goes on with a new journal, and with terms above every one that the first store can have minted.

use std::io;
use std::path::Path;

use runtime::Runtime;
use tokio::sync::oneshot;

use crate::checkpoint::{Checkpoint, CheckpointError, FILE};
use crate::index::lsm;
use crate::index::map;
use crate::index::{IndexError, Sequence};
use crate::open::INDEX_DIR;
use crate::{BackupError, EmbeddedStore, IndexKind};

impl EmbeddedStore {
    /// Copies the store to `dir`, which must be empty or missing. Writes go on meanwhile; flushes and merges wait.
    ///
    /// Blocks its thread while it copies.
    ///
    /// # Errors
    /// See [`BackupError`]. A folder without `CHECKPOINT` is no backup: remove it.
    pub async fn backup(&self, dir: &Path) -> Result<(), BackupError> {
        let io = |source: io::Error| BackupError::Io { dir: dir.to_owned(), source };
        let disk = self.shared.runtime.disk();
        make_empty(&self.shared.runtime, dir).await?;
        let _alone = self.flushed().await?;
        let failed = |error: IndexError| match error {
            IndexError::Damaged { .. } => BackupError::Damaged(error.to_string()),
            IndexError::Io(source) => BackupError::Io { dir: dir.to_owned(), source },
        };
        self.shared.index.copy_to(&dir.join(INDEX_DIR)).await.map_err(failed)?;
        disk.sync_dir(dir).await.map_err(io)?;
        // Last: with it, the folder is a backup.
        let checkpoint = *self.shared.checkpoint.borrow();
        checkpoint.write(&self.shared.runtime, dir).await.map_err(io)
    }

    /// Flushes everything applied so far, and keeps the index as it is then: exactly what the checkpoint says.
    async fn flushed(&self) -> Result<tokio::sync::RwLockWriteGuard<'_, ()>, BackupError> {
        loop {
            self.flush_all().await?;
            let alone = self.shared.maintenance.write().await;
            let synced = self.shared.checkpoint.borrow().synced;
            // One family may have been flushed further before this had the index alone. With a journal that is nothing;
            // without one, its rows would be half of what came later.
            let is_whole = |at: Sequence| at < Sequence::new(synced + 1, 0);
            if self.shared.index.flushed_to().is_none_or(is_whole) {
                return Ok(alone);
            }
        }
    }

    async fn flush_all(&self) -> Result<(), BackupError> {
        let (answer, sealed) = oneshot::channel();
        self.seal_requests.send(answer).await.map_err(|_| BackupError::Closed)?;
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

/// Makes a data folder `to` from the backup `from`, which stays as it is.
///
/// # Errors
/// See [`BackupError`].
pub async fn restore(runtime: &Runtime, from: &Path, to: &Path) -> Result<(), BackupError> {
    let no_backup = |what: String| BackupError::NoBackup { dir: from.to_owned(), what };
    let io = |source: io::Error| BackupError::Io { dir: to.to_owned(), source };
    let mut checkpoint = match Checkpoint::read(runtime, from).await {
        Ok(Some(checkpoint)) => checkpoint,
        Ok(None) => return Err(no_backup(format!("{FILE} is missing"))),
        Err(CheckpointError::Io(error)) => return Err(io(error)),
        Err(error) => return Err(no_backup(error.to_string())),
    };
    make_empty(runtime, to).await?;
    let (from_index, to_index) = (from.join(INDEX_DIR), to.join(INDEX_DIR));
    match checkpoint.index {
        IndexKind::Lsm => lsm::copy_tree(&from_index, &to_index).map_err(io)?,
        IndexKind::Map => map::copy_files(runtime, &from_index, &to_index).await.map_err(io)?,
    }
    runtime.disk().sync_dir(to).await.map_err(io)?;
    // Also above those of an earlier restore from the same backup, which was some other second.
    let now = u64::try_from(runtime.now().as_millis() / 1000).unwrap_or(0);
    checkpoint.epoch = now.max(checkpoint.epoch + 1);
    checkpoint.journal_id = None;
    checkpoint.base = checkpoint.synced;
    checkpoint.write(runtime, to).await.map_err(io)
}

async fn make_empty(runtime: &Runtime, dir: &Path) -> Result<(), BackupError> {
    let io = |source: io::Error| BackupError::Io { dir: dir.to_owned(), source };
    let disk = runtime.disk();
    disk.create_dir_all(dir).await.map_err(io)?;
    let names = disk.list(dir).await.map_err(io)?;
    let index = disk.list(&dir.join(INDEX_DIR)).await;
    if names.is_empty() && index.is_err() { Ok(()) } else { Err(BackupError::NotEmpty { dir: dir.to_owned() }) }
}
