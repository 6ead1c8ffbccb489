//! Errors of the calls that open, back up or restore a store.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal is damaged, locked by another process, or cannot be read.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    #[error(
        "the store in {} is damaged: {what}; no file was changed; copy the folder, then restore a backup",
        .dir.display()
    )]
    Damaged { dir: PathBuf, what: String },
    #[error(
        "the kind of the index in {} differs from the option `index`; set `index` to the kind of the existing index",
        .dir.display()
    )]
    OtherIndex { dir: PathBuf },
    #[error("invalid store options: {0}")]
    Options(&'static str),
    #[error("cannot open the store in {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("the destination folder {} is not empty; choose a folder that does not exist", .dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("the folder {} is not a backup: {what}; choose a folder that contains a backup", .dir.display())]
    NoBackup { dir: PathBuf, what: String },
    #[error("the store is closed")]
    Closed,
    #[error("the data to copy is damaged: {0}; restore an intact backup")]
    Damaged(String),
    #[error("cannot copy to {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}
