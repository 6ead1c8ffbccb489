//! The tree port: ZooKeeper's data model, for recipes that several processes share.
//!
//! A tree has nodes by their paths; each has bytes, a version, a list of who may do what, and children. A process opens a
//! [`Session`](session::Session) on it ([`Trees::open`]) and works through the [`Tree`] it gets; its *ephemeral* nodes are there for as long as the session lives,
//! and go when it is closed, or a timeout after its last sign of life by the engine's clock. A session that was lost never comes back:
//! open another.
//!
//! What every engine promises:
//! - Every change has a [`Zxid`], in the one order in which all changes happen. A [multi](Tree::multi) happens whole or not at all.
//! - A session's changes happen in the order in which they were asked for.
//! - A read may be of the past, but never of a past before what the same session has seen or done. After [`Tree::sync`] it is of a moment after
//!   that call began; on ZooKeeper, unless a leader answers that was deposed and has not found out yet (decision 0148).
//! - A watch tells of a change before a read of the same session shows it, and tells changes in their order. A [`Watch`] fires once. [`Events`] go
//!   on; where a connection was lost in between they say [`Event::Gap`], and what changed meanwhile is to be read again.
//! - The session's local deadline comes before the engine ends the session ([`session`]).
//!
//! What it does not promise: that all changes of a node are seen, as several may lie between two looks; that an empty
//! [container](CreateMode::Container) stays.

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

/// Of a node, or of all paths and data in a multi, and some more for each step. ZooKeeper refuses requests above 1 MiB, heads and paths included.
pub const DATA_BYTES_MAX: usize = 1_000_000;
/// What a step of a multi counts for besides its path and data: its head, and a list of a few grants.
const OP_BYTES: usize = 100;
/// How many steps a multi has.
pub const OPS_MAX: usize = 1_000;

/// An engine: where sessions are opened.
pub trait Trees: Send + Sync + 'static {
    /// # Errors
    /// [`TreeError::Disconnected`] if the engine cannot be reached in time, [`TreeError::Invalid`] if the options cannot be had.
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<std::sync::Arc<dyn Tree>, TreeError>>;
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// From the last sign of life to the end. Short: a pause of the process or the network ends it; long: what a dead process
    /// held is stuck for that long. The engine may give another. Default 10 s.
    pub timeout: Duration,
    /// Who this is. Default nobody.
    pub credentials: Vec<Credentials>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { timeout: Duration::from_secs(10), credentials: Vec::new() }
    }
}

/// One session. Calls may be made from several tasks at once; dropped, it is closed as well as can be, [`Tree::close`] waits for it.
///
/// # Errors
/// With [`TreeError::Disconnected`] it is not known whether a change happened, or will still happen until the session ends;
/// [`TreeError::SessionLost`] is final. Others say what of the request cannot be, and that nothing changed.
pub trait Tree: Send + Sync + 'static {
    fn session(&self) -> &Session;

    /// A sequential node's name is `path` with a [`Sequence`].
    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created>;

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat>;

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()>;

    /// All or nothing, as one change, in this order: each sees what those before it did. At most [`OPS_MAX`].
    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>>;

    fn get(&self, path: &NodePath) -> Answer<'_, Node>;

    /// `None` if there is no such node.
    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>>;

    /// Of the direct children, in the order of their names.
    fn children(&self, path: &NodePath) -> Answer<'_, Children>;

    /// As [`Tree::get`]; it fires when the data change or the node goes.
    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)>;

    /// As [`Tree::exists`]; it fires when the node comes, goes, or its data change.
    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)>;

    /// As [`Tree::children`]; it fires when a child comes or goes, and when the node goes.
    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)>;

    /// What happens to this node and all below it from now on, whether it is there or not.
    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events>;

    /// Reads that begin after this show all that had happened when it was called. And no change that this session asked for before it,
    /// and had no answer to, happens after it.
    fn sync(&self) -> Answer<'_, ()>;

    /// To who may read the node or change its list. Who may not change it is told `x` in place of each digest: from one, a weak
    /// password can be found.
    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>>;

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat>;

    /// Ends the session and its ephemeral nodes; harmless if it has ended.
    fn close(&self) -> Answer<'_, ()>;
}

/// The place of a change in the order of all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Zxid(pub i64);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreateMode {
    Persistent,
    PersistentSequential,
    /// Goes with the session; has no children.
    Ephemeral,
    EphemeralSequential,
    /// Goes some time after its last child went.
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

/// What a change expects of the node's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Any,
    Version(i32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// The node is there, and as expected.
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

    /// Empty for those that write none.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        match self {
            Op::Create { data, .. } | Op::Set { data, .. } => data,
            Op::Check { .. } | Op::Delete { .. } => &[],
        }
    }
}

/// What an [`Op`] did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    Check,
    Create(Created),
    Set(Stat),
    Delete,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// With its number, if it is sequential.
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
    /// Of their parent.
    pub stat: Stat,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The change that made it: rises over all nodes, whatever was deleted and made anew.
    pub created: Zxid,
    /// The last change of its data.
    pub modified: Zxid,
    /// The last change of the set of its children.
    pub children_modified: Zxid,
    /// Of its data, from 0.
    pub version: i32,
    /// Counts creations and deletions of children.
    pub children_version: i32,
    pub acl_version: i32,
    /// Whose ephemeral node it is.
    pub owner: Option<SessionId>,
    pub data_bytes: usize,
    pub children: usize,
    /// By the engine's clock.
    pub created_at: Timestamp,
    pub modified_at: Timestamp,
}

/// # Errors
/// [`TreeError::Invalid`] if there are too many bytes.
pub fn check_data(bytes: usize) -> Result<(), TreeError> {
    if bytes > DATA_BYTES_MAX {
        return Err(TreeError::Invalid(format!(
            "at most {DATA_BYTES_MAX} bytes go into a node, and into all of a multi: {bytes}"
        )));
    }
    Ok(())
}

/// # Errors
/// [`TreeError::Invalid`] if there are too many, or their data are too many bytes.
pub fn check_ops(ops: &[Op]) -> Result<(), TreeError> {
    if ops.len() > OPS_MAX {
        return Err(TreeError::Invalid(format!("a multi has at most {OPS_MAX} steps: {}", ops.len())));
    }
    check_data(ops.iter().map(|op| op.path().as_str().len() + op.data().len() + OP_BYTES).sum())
}
