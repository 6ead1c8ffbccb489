//! Permissions of files: only the user of a process may access the files that the process creates.
//!
//! docs/decisions/0205-keep-data-files-private.md gives the reasons for the design.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Runtime;

/// Mode of a new file.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Mode of a new directory.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;
/// Mode bits that give access to the group and to other users.
const SHARED: u32 = 0o077;

/// Removes the access of the group and of other users from a file or a directory. Returns true if a user other than
/// the owner had access. Returns false if `path` does not exist.
pub(crate) fn restrict(path: &Path) -> io::Result<bool> {
    let before = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mode = before.permissions().mode() & 0o7777;
    if mode & SHARED == 0 {
        return Ok(false);
    }
    let failed = |reason: String| {
        let path = path.display();
        let text = format!("cannot remove the access of other users to {path}, whose mode is {mode:o}: {reason}");
        io::Error::new(ErrorKind::PermissionDenied, text)
    };
    let kept = if before.is_dir() { DIRECTORY_MODE } else { FILE_MODE };
    fs::set_permissions(path, Permissions::from_mode(mode & kept)).map_err(|error| failed(error.to_string()))?;
    // Some file systems ignore changes of the mode, for example FAT.
    if fs::metadata(path)?.permissions().mode() & SHARED == 0 {
        Ok(true)
    } else {
        Err(failed("the file system does not store modes".to_owned()))
    }
}

impl Runtime {
    /// Removes the access of the group and of other users from the directory `dir` and from `files`, which are in the
    /// directory or below it. Logs the number of changed files. Ignores a missing file.
    ///
    /// # Errors
    /// Returns an error of the kind `PermissionDenied` if the access cannot be removed, for example because the files
    /// belong to another user.
    pub async fn restrict(&self, dir: &Path, files: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
        let is_changed = self.disk().restrict(dir).await?;
        self.restrict_files(dir, is_changed, files).await
    }

    /// Does the same as [`Runtime::restrict`] for the directory `dir` and all files directly in it.
    ///
    /// # Errors
    /// Returns the errors of [`Runtime::restrict`], and the error of a failed listing.
    pub async fn restrict_all(&self, dir: &Path) -> io::Result<()> {
        let is_changed = self.disk().restrict(dir).await?;
        // Other users can no longer replace a listed file, because they have no access to the directory any more.
        let names = self.disk().list(dir).await?;
        self.restrict_files(dir, is_changed, names.into_iter().map(|name| dir.join(name))).await
    }

    async fn restrict_files(
        &self,
        dir: &Path,
        is_dir_changed: bool,
        files: impl IntoIterator<Item = PathBuf>,
    ) -> io::Result<()> {
        let mut changed = usize::from(is_dir_changed);
        for file in files {
            changed += usize::from(self.disk().restrict(&file).await?);
        }
        if changed > 0 {
            tracing::warn!(
                dir = %dir.display(),
                changed,
                "removed the access of other users to a folder and its files; they may have read the data before"
            );
        }
        Ok(())
    }
}
