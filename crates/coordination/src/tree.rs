//! The tree port: ZooKeeper's data model, for recipes that several processes share.
//!
//! A tree has nodes, each with a path. A node has bytes, a version, an access list and children. A process opens a
//! [`Session`](session::Session) with [`Trees::open`] and works through the [`Tree`] that it gets. *Ephemeral* nodes
//! exist as long as their session. They are removed when the session is closed, or when the session's timeout has
//! passed since its last sign of life by the engine's clock. A lost session never comes back: open another one.
//!
//! Every engine promises:
//! - Every change has a [`Zxid`], and all changes happen in one order. A [multi](Tree::multi) happens completely or not
//!   at all.
//! - The changes of a session happen in the order in which the session requested them.
//! - A read may show an earlier state, but never one from before a state that the same session has already seen or
//!   written. After [`Tree::sync`], reads show a state from after the start of that call. On ZooKeeper the exception is
//!   a deposed leader that does not yet know that it was deposed (decision 0148).
//! - A watch reports a change before a read of the same session shows that change, and reports changes in their order.
//!   A [`Watch`] fires once. [`Events`] continue to report. If the connection was lost in between, they report
//!   [`Event::Gap`], and the caller reads the nodes again.
//! - The session's local deadline comes before the engine ends the session ([`session`]).
//!
//! An engine does not promise that a caller sees every change of a node, because several changes may lie between two
//! reads. It does not promise that an empty [container](CreateMode::Container) stays.
//!
//! docs/decisions/0140-model-the-tree-port-on-zookeeper.md gives the reasons for the design.

mod acl;
mod counted;
mod error;
mod path;
pub mod session;
mod watch;
mod watchers;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use instants::Timestamp;

pub use acl::{Acl, Credentials, Grant, Identity, Permissions, allows, shown};
pub use counted::Counted;
pub use error::TreeError;
pub use path::{NodePath, NodePathError, Sequence};
pub use session::{Session, SessionId, SessionState};
pub use watch::{Event, EventSender, Events, Watch, WatchSender};
pub use watchers::Watchers;

pub type Answer<'a, T> = BoxFuture<'a, Result<T, TreeError>>;

/// Largest data of one node, in bytes. Also the largest sum over a multi of all paths and data, plus 100 bytes for each
/// step. ZooKeeper rejects requests above 1 MiB, including headers and paths.
pub const DATA_BYTES_MAX: usize = 1_000_000;
/// Bytes that a step of a multi counts for besides its path and data: its header and an access list of a few grants.
const OP_BYTES: usize = 100;
/// Largest number of steps in a multi.
pub const OPS_MAX: usize = 1_000;

/// An engine that opens sessions.
pub trait Trees: Send + Sync + 'static {
    /// Opens a session.
    ///
    /// # Errors
    /// Returns [`TreeError::Disconnected`] if the engine cannot be reached in time, [`TreeError::Invalid`] if the
    /// engine cannot provide the options.
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<std::sync::Arc<dyn Tree>, TreeError>>;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// Time from the last sign of life of a session to its end. If it is too short, a pause of the process or the
    /// network ends the session. If it is too long, a dead process blocks the nodes that it held for that time. The
    /// engine may choose another value. Default 10 s.
    pub timeout: Duration,
    /// Credentials of the session. Default none.
    pub credentials: Vec<Credentials>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { timeout: Duration::from_secs(10), credentials: Vec::new() }
    }
}

/// One session. Several tasks may call it at once. Dropping it closes the session on a best-effort basis;
/// [`Tree::close`] waits for the close.
///
/// # Errors
/// After [`TreeError::Disconnected`] a change may have happened, or may still happen until the session ends.
/// [`TreeError::SessionLost`] is final. Every other error names the invalid part of the request and means that nothing
/// changed.
pub trait Tree: Send + Sync + 'static {
    fn session(&self) -> &Session;

    /// Creates a node. The path of a sequential node is `path` followed by a [`Sequence`].
    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created>;

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat>;

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()>;

    /// Runs all steps in order as one change, or none of them. Each step sees the effects of the steps before it. At
    /// most [`OPS_MAX`] steps.
    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>>;

    fn get(&self, path: &NodePath) -> Answer<'_, Node>;

    /// Returns `None` if the node does not exist.
    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>>;

    /// Returns the direct children, sorted by name.
    fn children(&self, path: &NodePath) -> Answer<'_, Children>;

    /// Reads like [`Tree::get`]. The watch fires when the data changes or the node is deleted.
    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)>;

    /// Reads like [`Tree::exists`]. The watch fires when the node is created or deleted, or its data changes.
    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)>;

    /// Reads like [`Tree::children`]. The watch fires when a child is created or deleted, and when the node itself is
    /// deleted.
    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)>;

    /// Returns the events of this node and of all nodes below it, from now on, whether the node exists or not.
    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events>;

    /// Makes every read that begins after this call show all changes that happened before the call. A change that this
    /// session requested earlier, and that got no response, does not happen after this call.
    fn sync(&self) -> Answer<'_, ()>;

    /// Returns the access list to a session that may read the node or change its access list. A session that may not
    /// change the list sees `x` in place of each digest, because a weak password can be guessed from its digest.
    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>>;

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat>;

    /// Ends the session and deletes its ephemeral nodes. Does nothing if the session has ended.
    fn close(&self) -> Answer<'_, ()>;
}

/// Position of a change in the order of all changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Zxid(pub i64);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreateMode {
    Persistent,
    PersistentSequential,
    /// Ends with its session and has no children.
    Ephemeral,
    EphemeralSequential,
    /// Is deleted some time after its last child was deleted.
    Container,
}

impl CreateMode {
    #[must_use]
    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }

    #[must_use]
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }
}

/// Precondition of a change on the version of the node's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Any,
    Version(i32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Checks that the node exists and meets the precondition.
    Check {
        path: NodePath,
        expected: Expected,
    },
    Create {
        path: NodePath,
        data: Bytes,
        mode: CreateMode,
        acl: Acl,
    },
    Set {
        path: NodePath,
        data: Bytes,
        expected: Expected,
    },
    Delete {
        path: NodePath,
        expected: Expected,
    },
}

impl Op {
    #[must_use]
    pub fn path(&self) -> &NodePath {
        match self {
            Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } => path,
        }
    }

    /// Returns the data that the step writes, or nothing for steps that write no data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        match self {
            Op::Create { data, .. } | Op::Set { data, .. } => data,
            Op::Check { .. } | Op::Delete { .. } => &[],
        }
    }
}

/// Result of an [`Op`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    Check,
    Create(Created),
    Set(Stat),
    Delete,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Path of the node, including the number of a sequential node.
    pub path: NodePath,
    pub stat: Stat,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub data: Bytes,
    pub stat: Stat,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Children {
    pub names: Vec<String>,
    /// Stat of the parent.
    pub stat: Stat,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Change that created the node. It is greater than that of every node created earlier, even if a node was deleted
    /// and created again.
    pub created: Zxid,
    /// Last change of the node's data.
    pub modified: Zxid,
    /// Last change of the node's set of children.
    pub children_modified: Zxid,
    /// Version of the node's data, starting at 0.
    pub version: i32,
    /// Count of creations and deletions of children.
    pub children_version: i32,
    pub acl_version: i32,
    /// Session that owns the node, if the node is ephemeral.
    pub owner: Option<SessionId>,
    pub data_bytes: usize,
    pub children: usize,
    /// Time of creation by the engine's clock.
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
}

/// Checks the size of data.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if `bytes` is above [`DATA_BYTES_MAX`].
pub fn check_data(bytes: usize) -> Result<(), TreeError> {
    if bytes > DATA_BYTES_MAX {
        return Err(TreeError::Invalid(format!(
            "too much data: {bytes} bytes; a node or a whole multi holds at most {DATA_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

/// Checks the number and the size of the steps of a multi.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if there are more than [`OPS_MAX`] steps, or their paths and data are too large.
pub fn check_ops(ops: &[Op]) -> Result<(), TreeError> {
    if ops.len() > OPS_MAX {
        return Err(TreeError::Invalid(format!("too many steps: {}; a multi has at most {OPS_MAX} steps", ops.len())));
    }
    check_data(ops.iter().map(|op| op.path().as_str().len() + op.data().len() + OP_BYTES).sum())
}
