//! What one session may have, so that nothing about it is too long for one message of ZooKeeper's (`jute.maxbuffer`, by default 1 MiB less a byte).

use std::collections::BTreeMap;
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

/// The ephemeral nodes of a session: never fewer than there are, and more until the server is asked.
pub(crate) struct Ephemerals {
    root_len: usize,
    known: Arc<Mutex<Known>>,
    /// Held while the server is asked.
    asking: tokio::sync::Mutex<()>,
}

/// Bytes of paths.
#[derive(Default)]
struct Known {
    /// As the server listed them, and those that it has answered for since. Who deletes one is not known here.
    there: usize,
    /// Asked for, and not answered yet.
    asked: usize,
    /// Asked for, and never answered.
    in_doubt: usize,
}

/// Room for what is asked for. Dropped, it is in doubt whether that was made.
pub(crate) struct Reserved {
    known: Arc<Mutex<Known>>,
    bytes: usize,
}

impl Ephemerals {
    pub(crate) fn new(root: Option<&NodePath>) -> Self {
        Ephemerals { root_len: len_of(root), known: Arc::default(), asking: tokio::sync::Mutex::default() }
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
    pub(crate) async fn reserve(&self, client: &zk::Client, more: usize) -> Result<Reserved, TreeError> {
        if let Some(reserved) = self.room_for(more) {
            return Ok(reserved);
        }
        // Many of them may be gone.
        let _asking = self.asking.lock().await;
        let (there, in_doubt) = {
            let known = lock(&self.known);
            (known.there, known.in_doubt)
        };
        // On another server than the one that was asked before, too, what is in doubt is there then, or never.
        client.sync("/").await.map_err(error_of)?;
        let listed = client.list_ephemerals("/").await.map_err(error_of)?;
        {
            let mut known = lock(&self.known);
            known.there = listed.iter().map(|path| self.bytes_of_path(path)).sum::<usize>() + known.there - there;
            known.in_doubt -= in_doubt;
        }
        self.room_for(more).ok_or_else(|| {
            TreeError::Invalid(format!(
                "the paths of a session's ephemeral nodes have at most {EPHEMERAL_BYTES_MAX} bytes, or its end would stop the \
                 ensemble: open another session for more, or shorten the paths"
            ))
        })
    }

    fn room_for(&self, more: usize) -> Option<Reserved> {
        let mut known = lock(&self.known);
        let Known { there, asked, in_doubt } = *known;
        if more > 0 && there + asked + in_doubt + more > EPHEMERAL_BYTES_MAX {
            return None;
        }
        known.asked += more;
        Some(Reserved { known: self.known.clone(), bytes: more })
    }
}

impl Reserved {
    pub(crate) fn settle<T>(mut self, answer: &Result<T, TreeError>) {
        if answer.as_ref().is_err_and(TreeError::is_retryable) {
            // Dropped.
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut known = lock(&self.known);
        known.asked -= bytes;
        known.there += if answer.is_ok() { bytes } else { 0 };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        known.asked -= self.bytes;
        known.in_doubt += self.bytes;
    }
}

/// The watches of a session. The client asks once for all that are of one kind at one path.
#[derive(Clone)]
pub(crate) struct Watches {
    root_len: usize,
    watched: Arc<Mutex<Watched>>,
}

#[derive(Default)]
struct Watched {
    counts: BTreeMap<(NodePath, Kind), usize>,
    /// Of their paths, each counted once.
    bytes: usize,
}

/// What ZooKeeper tells apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Data,
    Exists,
    Children,
    All,
}

/// One of them; dropped, it is none.
pub(crate) struct Counted {
    watches: Watches,
    of: (NodePath, Kind),
}

impl Watches {
    pub(crate) fn new(root: Option<&NodePath>) -> Self {
        Watches { root_len: len_of(root), watched: Arc::default() }
    }

    /// # Errors
    /// [`TreeError::Invalid`] if there are too many.
    pub(crate) fn count(&self, path: &NodePath, kind: Kind) -> Result<Counted, TreeError> {
        let of = (path.clone(), kind);
        let mut watched = lock(&self.watched);
        let more = if watched.counts.contains_key(&of) { 0 } else { self.bytes_of(path) };
        if more > 0 && watched.bytes + more > WATCHED_BYTES_MAX {
            return Err(TreeError::Invalid(format!(
                "the paths that a session watches have at most {WATCHED_BYTES_MAX} bytes, or it would not outlive a lost connection: \
                 open another session for more, or watch all below a node"
            )));
        }
        watched.bytes += more;
        *watched.counts.entry(of.clone()).or_default() += 1;
        Ok(Counted { watches: self.clone(), of })
    }

    fn bytes_of(&self, path: &NodePath) -> usize {
        self.root_len + path.as_str().len()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut watched = lock(&self.watches.watched);
        let Some(count) = watched.counts.get_mut(&self.of) else { return };
        *count -= 1;
        if *count == 0 {
            watched.counts.remove(&self.of);
            watched.bytes -= self.watches.bytes_of(&self.of.0);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

fn len_of(root: Option<&NodePath>) -> usize {
    root.map_or(0, |root| root.as_str().len())
}
