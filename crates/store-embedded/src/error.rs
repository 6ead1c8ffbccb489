//! Errors when a store is opened, backed up or restored.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The journal is damaged, locked by another process, or cannot be read.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    #[error("{what} in {}; the store changed no file: copy the data folder, then restore a backup", .dir.display())]
    Damaged { dir: PathBuf, what: String },
    #[error("the index kind in {} differs from the kind in the options; set the option to the kind of the existing index", .dir.display())]
    OtherIndex { dir: PathBuf },
    #[error("invalid store options: {0}")]
    Options(&'static str),
    #[error("cannot open the store in {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{} is not empty; choose a folder that does not exist", .dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("{} is not a backup: {what}", .dir.display())]
    NoBackup { dir: PathBuf, what: String },
    #[error("the store is closed")]
    Closed,
    #[error("the store's data is damaged: {0}")]
    Damaged(String),
    #[error("cannot copy to {}", .dir.display())]
    Io { dir: PathBuf, source: io::Error },
}
