//! What one session may have, so that nothing about it is too long for one message of ZooKeeper's (`jute.maxbuffer`, by default 1 MiB less a byte).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use coordination::tree::{CreateMode, NodePath, Op, TreeError};
use zookeeper_client as zk;

use crate::translate::error_of;

/// Of the paths of a session's ephemeral nodes. As the session ends, its leader tells the other servers all of them in one message, of
/// which they take the limit and as much again. What is longer stops the ensemble, and does so again with each new leader (ZOOKEEPER-4306).
pub const EPHEMERAL_BYTES_MAX: usize = 1_900_000;
/// Of the paths that a session watches. After a lost connection the client asks for all of them again, in messages of this length; but it
/// takes the answer to the second for a mistake (0.11.2: they have one number, and `Depot` keeps one of each), ends the connection, and
/// does so again and again until the session is lost.
pub const WATCHED_BYTES_MAX: usize = 128 << 10;
/// Stands before each path in a message: its length.
const LENGTH_BYTES: usize = 4;
/// Of a sequential node's name.
const NUMBER_BYTES: usize = 11;

/// The ephemeral nodes of a session, as far as they are known here: all that it asked for, until the server is asked what there is.
pub(crate) struct Ephemerals {
    root_len: usize,
    bytes: Mutex<usize>,
}

impl Ephemerals {
    pub(crate) fn new(root: Option<&NodePath>) -> Self {
        Ephemerals { root_len: len_of(root), bytes: Mutex::new(0) }
    }

    pub(crate) fn bytes_of(&self, path: &NodePath, mode: CreateMode) -> usize {
        let number = if mode.is_sequential() { NUMBER_BYTES } else { 0 };
        if mode.is_ephemeral() { self.bytes_of_path(path.as_str()) + number } else { 0 }
    }

    pub(crate) fn bytes_of_all(&self, ops: &[Op]) -> usize {
        let bytes_of = |op: &Op| match op {
            Op::Create { path, mode, .. } => self.bytes_of(path, *mode),
            Op::Check { .. } | Op::Set { .. } | Op::Delete { .. } => 0,
        };
        ops.iter().map(bytes_of).sum()
    }

    fn bytes_of_path(&self, path: &str) -> usize {
        LENGTH_BYTES + self.root_len + path.len()
    }

    /// Makes room for so many more.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if there is none, and those of asking the server.
    pub(crate) async fn reserve(&self, client: &zk::Client, more: usize) -> Result<(), TreeError> {
        if self.has_room(more) {
            return Ok(());
        }
        // Many of them may be gone. The server answers a session in the order in which it asks, so all that was asked for before is there.
        let before = *self.lock();
        let there = client.list_ephemerals("/").await.map_err(error_of)?;
        {
            let mut bytes = self.lock();
            let since = bytes.saturating_sub(before);
            *bytes = there.iter().map(|path| self.bytes_of_path(path)).sum::<usize>() + since;
        }
        if self.has_room(more) {
            return Ok(());
        }
        Err(TreeError::Invalid(format!(
            "the paths of a session's ephemeral nodes have at most {EPHEMERAL_BYTES_MAX} bytes, or its end would stop the ensemble: \
             open another session for more, or shorten the paths"
        )))
    }

    fn has_room(&self, more: usize) -> bool {
        let mut bytes = self.lock();
        let has_room = *bytes + more <= EPHEMERAL_BYTES_MAX;
        *bytes += if has_room { more } else { 0 };
        has_room
    }

    /// What was reserved is given back where nothing was made.
    pub(crate) fn settle<T>(&self, reserved: usize, answer: &Result<T, TreeError>) {
        if answer.as_ref().is_err_and(|error| !error.is_retryable()) {
            let mut bytes = self.lock();
            *bytes = bytes.saturating_sub(reserved);
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.bytes.lock().expect("no holder of this lock panics")
    }
}

/// The watches of a session.
#[derive(Clone)]
pub(crate) struct Watches {
    root_len: usize,
    bytes: Arc<AtomicUsize>,
}

/// One of them; dropped, it is none.
pub(crate) struct Counted {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Watches {
    pub(crate) fn new(root: Option<&NodePath>) -> Self {
        Watches { root_len: len_of(root), bytes: Arc::default() }
    }

    /// # Errors
    /// [`TreeError::Invalid`] if there are too many.
    pub(crate) fn count(&self, path: &NodePath) -> Result<Counted, TreeError> {
        let bytes = self.root_len + path.as_str().len();
        // Dropped where it is one too many.
        let counted = Counted { all: self.bytes.clone(), bytes };
        if self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes > WATCHED_BYTES_MAX {
            return Err(TreeError::Invalid(format!(
                "the paths that a session watches have at most {WATCHED_BYTES_MAX} bytes, or it would not outlive a lost connection: \
                 open another session for more, or watch all below a node"
            )));
        }
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

fn len_of(root: Option<&NodePath>) -> usize {
    root.map_or(0, |root| root.as_str().len())
}
