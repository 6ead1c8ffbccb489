//! Data folder of a server. This module contains the path of the embedded store in the folder, the check that other
//! users have no access to the folder, and the error texts for a store that cannot be opened.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use runtime::Runtime;

use crate::{identity, server_url};

/// Mode bits that give access to the group and to other users.
const SHARED: u32 = 0o077;
/// Mode bit of folders that belong to all users, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Returns the path of the embedded store in a data folder. The keys and the control socket are in the same folder.
pub(crate) fn store_path(data: &Path) -> PathBuf {
    data.join("store")
}

/// Creates a folder for data, backups or keys to which only the user of this process has access. If the folder exists,
/// the function removes the access of other users to the folder and to the files that this crate writes to it. The file
/// `store.key` has a check of its own.
///
/// # Errors
/// Returns an error if the folder cannot be created, or if the access of other users cannot be removed. Also returns an
/// error if other users have access to the folder and the folder is neither empty nor written by Reveille, because
/// another program may need their access.
pub(crate) async fn make_private(runtime: &Runtime, folder: &Path) -> anyhow::Result<()> {
    let created = runtime.disk().create_dir_all(folder).await;
    created.with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let metadata = fs::metadata(folder).with_context(|| format!("cannot read the mode of {}", folder.display()))?;
    let mode = metadata.mode();
    let may_change = mode & SHARED == 0
        || mode & STICKY == 0
            && is_empty_or_ours(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    ensure!(
        may_change,
        "other users have access to the folder {0} (mode {1:o}), which contains files that are not from Reveille: choose \
         another folder, or run `chmod 700 {0}`",
        folder.display(),
        mode & 0o7777
    );
    let files = identity::files(folder).into_iter().chain([server_url::path(folder)]);
    runtime.restrict(folder, files).await.with_context(|| {
        format!(
            "other users have access to the folder {0}: run `chmod 700 {0}` as the owner of the folder, or choose \
             another folder, for example a new folder inside this one",
            folder.display()
        )
    })
}

/// Returns true if the folder is empty, or if it contains data or a key of Reveille.
fn is_empty_or_ours(folder: &Path) -> io::Result<bool> {
    let ours = [store_path(folder), folder.join("store.key")];
    if ours.into_iter().chain(identity::files(folder)).any(|path| path.exists()) {
        return Ok(true);
    }
    for entry in fs::read_dir(folder)? {
        // A new file system has this folder.
        if entry?.file_name() != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds the next step for the operator to an error that occurred when the store was opened.
pub(crate) fn explain_open(error: store_embedded::OpenError, data: &Path) -> anyhow::Error {
    if let store_embedded::OpenError::Journal(journal::OpenError::Locked { lock }) = &error {
        let holder = holder_of(lock).map_or_else(String::new, |pid| format!(" with the id {pid}"));
        let data = data.display();
        return anyhow::anyhow!(
            "{data} is in use by another Reveille process{holder}: stop that process, or choose another folder with \
             --data"
        );
    }
    let denied = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied);
    let error = anyhow::Error::new(error);
    match denied {
        true => error.context(format!(
            "no permission to use the data folder {}: run as the user who owns the folder, or choose another folder \
             with --data",
            data.display()
        )),
        false => error,
    }
}

/// Returns the id of the process that holds a lock on this file or its folder, from `/proc/locks` (`proc_locks(5)`). A
/// process of an earlier build locks only the file.
fn holder_of(lock: &Path) -> Option<u32> {
    let table = fs::read_to_string("/proc/locks").ok()?;
    let holder = |path: &Path| {
        let inode = fs::metadata(path).ok()?.ino().to_string();
        let of_this_file = |line: &&str| {
            let place = line.split_ascii_whitespace().find(|field| field.matches(':').count() == 2);
            place.is_some_and(|place| place.rsplit(':').next() == Some(&inode))
        };
        let fields = table.lines().find(of_this_file)?.split_ascii_whitespace();
        fields.skip(4).find_map(|field| field.parse().ok())
    };
    lock.parent().and_then(holder).or_else(|| holder(lock))
}
