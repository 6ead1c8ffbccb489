//! Lock of the journal's folder, which excludes other processes.
//!
//! Invariant: a process that finds that its folder or its lock file was removed, moved or replaced stops before it
//! changes another file of the folder. Another process may own the folder that has the path now.
//!
//! docs/decisions/0204-lock-the-folder-of-the-data.md gives the reasons for the design.

use std::io;
use std::path::Path;
use std::sync::Arc;

use runtime::{DiskLock, Runtime};

use crate::error::{OpenError, io_error};

const FILE: &str = "lock";

/// Lock of a journal's folder; cheap to clone. The drop of the last clone unlocks the folder. The journal's tasks hold
/// clones until they have ended.
#[derive(Clone)]
pub struct FolderLock {
    runtime: Runtime,
    lock: Arc<dyn DiskLock>,
}

impl FolderLock {
    pub(crate) async fn take(runtime: &Runtime, dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        match runtime.disk().lock(&path).await {
            Ok(lock) => Ok(FolderLock { runtime: runtime.clone(), lock: Arc::from(lock) }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked { lock: path }),
            Err(error) => Err(io_error("lock", &path)(error)),
        }
    }

    /// Stops the process if another program has removed, moved or replaced the folder or its lock file. A caller that
    /// changes files by their path calls this method before the change.
    pub async fn verify(&self) {
        if let Err(error) = self.lock.verify().await {
            let reason = format!(
                "the lock of the data is lost: {error}; check that no other program changes the data folder of a running \
                 process, then start the process again"
            );
            self.runtime.halt(&reason).await;
        }
    }
}
