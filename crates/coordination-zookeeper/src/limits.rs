//! Limits of one session. They ensure that ZooKeeper accepts every message about the session. ZooKeeper's message limit
//! is `jute.maxbuffer`, by default 1 MiB less one byte.

use std::sync::{Arc, Mutex, MutexGuard};

use coordination::tree::{CreateMode, NodePath, Op, TreeError};

use crate::client::Client;
use crate::client::protocol::{Request, code, error_of, op};
use crate::client::{Malformed, Reader, Response};

/// Largest total length of the paths of a session's ephemeral nodes, in bytes. When the session ends, the leader sends
/// all of these paths to the other servers in one message. A message between servers may be up to twice as long as the
/// message limit. A longer message stops the ensemble, and stops it again after each election of a leader
/// (ZOOKEEPER-4306).
pub const EPHEMERAL_BYTES_MAX: usize = 1_900_000;
/// Size of the length field before each path in a message, in bytes.
const LENGTH_BYTES: usize = 4;
/// Largest length of the number in the name of a sequential node, in bytes.
const NUMBER_BYTES: usize = 11;

/// Upper estimate of the total length of the paths of a session's ephemeral nodes. The estimate is exact only right
/// after the server has listed the nodes.
pub(crate) struct Ephemerals {
    root_len: usize,
    known: Arc<Mutex<Known>>,
    /// Mutex that a task locks while the server lists the nodes.
    listing: tokio::sync::Mutex<()>,
}

/// Total length of the paths of ephemeral nodes, in bytes. Each field counts the nodes whose creation is in one state.
#[derive(Default)]
struct Known {
    /// Path length in bytes of the nodes that the server listed last, and of the nodes whose creation the server has
    /// confirmed since that list. The length still includes nodes that a session has deleted since that list.
    confirmed: usize,
    /// Path length in bytes of the nodes whose creation this process has requested, and for which it still awaits the
    /// response.
    requested: usize,
    /// Path length in bytes of the nodes whose creation this process has requested, and for which it will never receive
    /// a response.
    uncertain: usize,
}

/// Reservation of path bytes for nodes whose creation this process requests. If the outcome of the creation is unknown,
/// a drop of the reservation adds the bytes to `Known::uncertain`.
pub(crate) struct Reservation {
    known: Arc<Mutex<Known>>,
    bytes: usize,
}

impl Ephemerals {
    pub(crate) fn new(root: Option<&NodePath>) -> Self {
        Ephemerals { root_len: len_of(root), known: Arc::default(), listing: tokio::sync::Mutex::default() }
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

    /// Reserves `more` bytes for the paths of new ephemeral nodes.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the session's ephemeral nodes would exceed the limit. Also returns the errors
    /// of the requests to the server.
    pub(crate) async fn reserve(&self, client: &Client, more: usize) -> Result<Reservation, TreeError> {
        if let Some(reserved) = self.try_reserve(more) {
            return Ok(reserved);
        }
        // The function asks the server for the session's ephemeral nodes, because many of the counted nodes may not
        // exist any more.
        let _listing = self.listing.lock().await;
        let (confirmed, uncertain) = {
            let known = lock(&self.known);
            (known.confirmed, known.uncertain)
        };
        // After a sync, a node whose creation got no response either exists or will never exist, even if the client has
        // changed servers.
        checked(client.send(Request::path(op::SYNC, "/"), None).await?)?;
        let response = checked(client.send(Request::path(op::GET_EPHEMERALS, "/"), None).await?)?;
        let listed = Reader::new(response.body).list(Reader::text).map_err(malformed)?;
        {
            let mut known = lock(&self.known);
            known.confirmed =
                listed.iter().map(|path| LENGTH_BYTES + path.len()).sum::<usize>() + known.confirmed - confirmed;
            known.uncertain -= uncertain;
        }
        self.try_reserve(more).ok_or_else(|| {
            TreeError::Invalid(format!(
                "too many ephemeral nodes: their paths may have at most {EPHEMERAL_BYTES_MAX} bytes in one session; \
                 open another session, or shorten the paths"
            ))
        })
    }

    fn try_reserve(&self, more: usize) -> Option<Reservation> {
        let mut known = lock(&self.known);
        let Known { confirmed, requested, uncertain } = *known;
        if more > 0 && confirmed + requested + uncertain + more > EPHEMERAL_BYTES_MAX {
            return None;
        }
        known.requested += more;
        Some(Reservation { known: self.known.clone(), bytes: more })
    }
}

impl Reservation {
    pub(crate) fn confirm<T>(mut self, answer: &Result<T, TreeError>) {
        if answer.as_ref().is_err_and(TreeError::is_retryable) {
            // The drop of this reservation adds its bytes to `Known::uncertain`.
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut known = lock(&self.known);
        known.requested -= bytes;
        known.confirmed += if answer.is_ok() { bytes } else { 0 };
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        known.requested -= self.bytes;
        known.uncertain += self.bytes;
    }
}

/// Returns the response, or the error that it reports.
pub(crate) fn checked(response: Response) -> Result<Response, TreeError> {
    if response.code == code::OK { Ok(response) } else { Err(error_of(response.code)) }
}

/// Returns the error for a response that this client cannot decode.
pub(crate) fn malformed(error: Malformed) -> TreeError {
    TreeError::Disconnected(error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds this mutex")
}

fn len_of(root: Option<&NodePath>) -> usize {
    root.map_or(0, |root| root.as_str().len())
}
