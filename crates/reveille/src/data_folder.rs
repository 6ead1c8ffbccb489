//! Data folder of a server. This module contains the path of the embedded store in the folder, and the error texts for
//! a store that cannot be opened.

use std::path::{Path, PathBuf};

/// Returns the path of the embedded store in a data folder. The keys and the control socket are in the same folder.
pub(crate) fn store_path(data: &Path) -> PathBuf {
    data.join("store")
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
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied);
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
    use std::os::unix::fs::MetadataExt;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = |path: &Path| {
        let inode = std::fs::metadata(path).ok()?.ino().to_string();
        let of_this_file = |line: &&str| {
            let place = line.split_ascii_whitespace().find(|field| field.matches(':').count() == 2);
            place.is_some_and(|place| place.rsplit(':').next() == Some(&inode))
        };
        let fields = table.lines().find(of_this_file)?.split_ascii_whitespace();
        fields.skip(4).find_map(|field| field.parse().ok())
    };
    lock.parent().and_then(holder).or_else(|| holder(lock))
}
