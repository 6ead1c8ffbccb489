//! Port (interface) of the coordination tree, which has ZooKeeper's data model. Recipes that several processes run
//! together use this port. An engine implements the port, for example on ZooKeeper or PostgreSQL.
//!
//! A tree consists of nodes, each with a path. A node has data, a version, an access list and children. A process opens
//! a [`Session`](session::Session) with [`Trees::open`] and sends requests through the [`Tree`] that it gets.
//! *Ephemeral* nodes exist as long as their session. The engine removes them when the process closes the session. It
//! also removes them if it receives no request or ping of the session for the session's timeout, by the engine's clock.
//! A lost session never becomes valid again, so the process must open another session.
//!
//! Every engine promises:
//! - Every change has a [`Zxid`], and all changes happen in one order. A [multi](Tree::multi) happens completely or not
//!   at all.
//! - The changes of a session happen in the order in which the session requested them.
//! - A read may show an outdated state of the tree. It never shows an older state than a state that the same session
//!   has already read or written. After [`Tree::sync`], reads show a state that is at least as new as the state at the
//!   start of that call. ZooKeeper has one exception: a server that was the leader may return an older state until it
//!   notices that another server has become the leader (decision 0148).
//! - A watch reports a change before a read of the same session shows that change. It reports changes in their order. A
//!   [`Watch`] fires once. [`Events`] report many changes. After a lost connection they report [`Event::Gap`], and the
//!   caller must read the nodes again.
//! - A session reaches its deadline in its own process before the engine ends the session ([`session`]).
//!
//! An engine does not promise that a caller sees every change of a node, because several changes may happen between two
//! reads. It does not promise that an empty [container](CreateMode::Container) remains.
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

/// Future of the outcome of a request to a [`Tree`].
pub type Answer<'a, T> = BoxFuture<'a, Result<T, TreeError>>;

/// Largest size of the data of one node, in bytes. It is also the largest size of a multi, a list of steps that the
/// engine runs as one change. The size of a multi is the sum of the sizes of its paths and data, plus 100 bytes for
/// each step. ZooKeeper rejects requests above 1 MiB, including headers and paths.
pub const DATA_BYTES_MAX: usize = 1_000_000;
/// Number of bytes that a step of a multi needs in addition to its path and data. The number includes a header and an
/// access list with a few grants.
const OP_BYTES: usize = 100;
/// Largest number of steps in a multi.
pub const OPS_MAX: usize = 1_000;

/// Engine that opens sessions.
pub trait Trees: Send + Sync + 'static {
    /// Opens a session.
    ///
    /// # Errors
    /// Returns [`TreeError::Disconnected`] if this process cannot reach the engine in time. Returns
    /// [`TreeError::Invalid`] if the engine does not support the options.
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<std::sync::Arc<dyn Tree>, TreeError>>;
}

/// Options with which a process opens a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// Time without a request or ping after which the engine ends the session. If the timeout is too short, a pause of
    /// the process or the network ends the session. If it is too long, the locks and nodes of a dead process block
    /// other processes for a long time. The engine may choose another timeout. The default is 10 s.
    pub timeout: Duration,
    /// Credentials of the session. By default a session has no credentials.
    pub credentials: Vec<Credentials>,
}

impl SessionOptions {
    /// Returns the access list for nodes whose creator names none: if the session has credentials, only sessions with
    /// the same credentials have access, and otherwise every session has access.
    #[must_use]
    pub fn default_acl(&self) -> Acl {
        if self.credentials.is_empty() { Acl::Open } else { Acl::Creator }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { timeout: Duration::from_secs(10), credentials: Vec::new() }
    }
}

/// Access to a tree in one session. Several tasks may use it at the same time. A drop of this object tries to close the
/// session, but the attempt may fail. [`Tree::close`] waits until the session is closed.
///
/// # Errors
/// Returns [`TreeError::Disconnected`] if the engine did not respond. The engine may have executed the requested
/// change, or may still execute it until the session ends. Returns [`TreeError::SessionLost`] if the session has ended.
/// Returns another error if the engine rejected the request and changed nothing.
pub trait Tree: Send + Sync + 'static {
    /// Returns the handle of the session's state.
    fn session(&self) -> &Session;

    /// Creates a node. The path of a sequential node is `path` followed by a [`Sequence`].
    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created>;

    /// Replaces the data of a node that has the `expected` version, and increments the version. Returns the new stat of
    /// the node.
    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat>;

    /// Deletes a node that has the `expected` version and no children. The root cannot be deleted.
    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()>;

    /// Runs a multi: the engine executes all steps of `ops` in order as one change, or none of them. Each step sees the
    /// effects of the steps before it. A multi has at most [`OPS_MAX`] steps.
    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>>;

    /// Returns the data and the stat of the node.
    fn get(&self, path: &NodePath) -> Answer<'_, Node>;

    /// Returns the stat of the node, or `None` if the node does not exist.
    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>>;

    /// Returns the names of the node's direct children, sorted, and the stat of the node.
    fn children(&self, path: &NodePath) -> Answer<'_, Children>;

    /// Reads a node like [`Tree::get`] and returns a watch. The watch fires when the data changes or the node is
    /// deleted.
    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)>;

    /// Reads a stat like [`Tree::exists`] and returns a watch. The watch fires when the node is created or deleted, or
    /// its data changes.
    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)>;

    /// Reads the children of a node like [`Tree::children`] and returns a watch. The watch fires when a child is
    /// created or deleted, and when the node itself is deleted.
    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)>;

    /// Returns a stream of the later events of this node and of all nodes below it. The node does not have to exist.
    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events>;

    /// Ensures that every read that begins after this call shows all changes that happened before the call. If an
    /// earlier request of this session got no response, the engine does not execute that request after this call.
    fn sync(&self) -> Answer<'_, ()>;

    /// Returns the access list of a node. The session must have permission to read the node or to change its access
    /// list. If the session may not change the list, it receives `x` in place of each digest, because an attacker can
    /// guess a weak password from its digest.
    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>>;

    /// Replaces the access list of the node. Returns the new stat of the node. The session needs the permission
    /// [`Permissions::ADMIN`].
    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat>;

    /// Ends the session and deletes its ephemeral nodes. Does nothing if the session has ended.
    fn close(&self) -> Answer<'_, ()>;
}

/// Position of a change in the order of all changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Zxid(pub i64);

/// Kind of a new node. The kind determines whether the engine deletes the node by itself, and whether the node's name
/// ends with a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreateMode {
    /// Node that exists until a session deletes it.
    Persistent,
    /// Persistent node whose name ends with a [`Sequence`].
    PersistentSequential,
    /// Node that the engine deletes when the session that created it ends. The node cannot have children.
    Ephemeral,
    /// Ephemeral node whose name ends with a [`Sequence`].
    EphemeralSequential,
    /// Node that the engine deletes some time after its last child is deleted.
    Container,
}

impl CreateMode {
    /// Returns true if the engine adds a [`Sequence`] to the name of the node.
    #[must_use]
    pub fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }

    /// Returns true if the engine deletes the node when the session that created it ends.
    #[must_use]
    pub fn is_ephemeral(self) -> bool {
        matches!(self, CreateMode::Ephemeral | CreateMode::EphemeralSequential)
    }
}

/// Version of the node's data that a change requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Any version of the node's data. The node must exist.
    Any,
    /// Only this version of the node's data. An earlier read or change returned it as [`Stat::version`].
    Version(i32),
}

/// Step of a [multi](Tree::multi).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Checks that the node exists and has the expected version.
    Check {
        /// Path of the node that the step checks.
        path: NodePath,
        /// Version of the node's data that the check requires.
        expected: Expected,
    },
    /// Creates a node like [`Tree::create`].
    Create {
        /// Path of the new node, without the number that the engine adds to the name of a sequential node.
        path: NodePath,
        /// Data of the new node. The data may be empty.
        data: Bytes,
        /// Kind of the new node.
        mode: CreateMode,
        /// Access list of the new node.
        acl: Acl,
    },
    /// Replaces the data of a node like [`Tree::set`].
    Set {
        /// Path of the node whose data the step replaces.
        path: NodePath,
        /// New data of the node. The data may be empty.
        data: Bytes,
        /// Version of the node's data that the step requires.
        expected: Expected,
    },
    /// Deletes a node like [`Tree::delete`].
    Delete {
        /// Path of the node that the step deletes.
        path: NodePath,
        /// Version of the node's data that the step requires.
        expected: Expected,
    },
}

impl Op {
    /// Returns the path in the step. If the step creates a sequential node, the path does not contain the node's
    /// number.
    #[must_use]
    pub fn path(&self) -> &NodePath {
        match self {
            Op::Check { path, .. } | Op::Create { path, .. } | Op::Set { path, .. } | Op::Delete { path, .. } => path,
        }
    }

    /// Returns the data that the step writes, or an empty slice if the step writes no data.
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
    /// Result of a successful [`Op::Check`].
    Check,
    /// Result of [`Op::Create`], with the path and the stat of the new node.
    Create(Created),
    /// Result of [`Op::Set`], with the new stat of the node.
    Set(Stat),
    /// Result of a successful [`Op::Delete`].
    Delete,
}

/// Node that a session has just created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Path of the new node. The path of a sequential node includes its number.
    pub path: NodePath,
    /// Versions, times and sizes of the new node.
    pub stat: Stat,
}

/// Data and stat of a node at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Data of the node. The data may be empty.
    pub data: Bytes,
    /// Versions, times and sizes of the node.
    pub stat: Stat,
}

/// Children of a node at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Children {
    /// Names of the direct children, sorted. A name is the last part of a path.
    pub names: Vec<String>,
    /// Versions, times and sizes of the parent.
    pub stat: Stat,
}

/// Versions, times and sizes of a node at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Number of the change that created the node. Every node that an earlier change created has a smaller number, even
    /// a node at the same path.
    pub created: Zxid,
    /// Number of the last change of the node's data.
    pub modified: Zxid,
    /// Number of the last change that created or deleted a child of the node.
    pub children_modified: Zxid,
    /// Version of the node's data. It starts at 0.
    pub version: i32,
    /// Number of creations and deletions of children.
    pub children_version: i32,
    /// Version of the access list. It starts at 0, and each [`Tree::set_acl`] increments it.
    pub acl_version: i32,
    /// Session that owns the node, if the node is ephemeral.
    pub owner: Option<SessionId>,
    /// Size of the node's data, in bytes.
    pub data_bytes: usize,
    /// Number of direct children.
    pub children: usize,
    /// Time at which the engine created the node, by the engine's clock.
    pub created_at: Timestamp,
    /// Time of the last change of the node's data, by the engine's clock. It equals `created_at` until the first
    /// change.
    pub modified_at: Timestamp,
}

/// Checks the size, in bytes, of the data of a node or of a multi.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if `bytes` is above [`DATA_BYTES_MAX`].
pub fn check_data(bytes: usize) -> Result<(), TreeError> {
    if bytes > DATA_BYTES_MAX {
        return Err(TreeError::Invalid(format!(
            "too much data: {bytes} bytes; use at most {DATA_BYTES_MAX} bytes in a node or a multi"
        )));
    }
    Ok(())
}

/// Checks the number and the size of the steps of a multi.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if the multi has more than [`OPS_MAX`] steps or its size is above [`DATA_BYTES_MAX`].
pub fn check_ops(ops: &[Op]) -> Result<(), TreeError> {
    if ops.len() > OPS_MAX {
        return Err(TreeError::Invalid(format!(
            "too many steps: {}; use at most {OPS_MAX} steps in a multi",
            ops.len()
        )));
    }
    check_data(ops.iter().map(|op| op.path().as_str().len() + op.data().len() + OP_BYTES).sum())
}
