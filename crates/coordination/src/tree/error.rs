//! Errors of a tree.

use super::NodePathError;

/// Failure of a request to a tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    /// The node in the request does not exist, or the parent of a new node does not exist.
    #[error("the node, or the parent of the new node, does not exist")]
    NoNode,
    /// A node already exists at the path of the new node.
    #[error("the node already exists")]
    NodeExists,
    /// The version of the node's data differs from the version that the request requires.
    #[error("the version of the node differs from the expected version")]
    BadVersion,
    /// The request tries to delete a node that has children.
    #[error("the node cannot be deleted while it has children")]
    NotEmpty,
    /// The parent of the new node is ephemeral.
    #[error("an ephemeral node cannot have children")]
    NoChildrenForEphemerals,
    /// The node's access list does not grant the session the permission that the request needs.
    #[error("the node's access list does not allow this request")]
    Forbidden,
    /// The access list grants nothing, or it needs an identity of the creator and the session has no credentials.
    #[error("the access list is empty, or it requires credentials and the session has none")]
    InvalidAcl,
    /// The request is invalid. The text of the error names the part that the caller must change.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Failure of a multi at its step `at`. The first step has the number 0. The multi has changed nothing.
    #[error("step {at} of the multi failed (the first step is 0)")]
    Multi {
        /// Index of the failed step. It starts at 0.
        at: usize,
        /// Error of the failed step.
        source: Box<TreeError>,
    },
    /// The caller cannot reach the engine, or the connection ended before the response. The engine may have executed
    /// the requested change.
    #[error("the coordination engine did not respond: {0}")]
    Disconnected(String),
    /// The session has ended. The engine has deleted the session's ephemeral nodes or will delete them soon. The caller
    /// must open another session.
    #[error("the session has ended; open another session")]
    SessionLost,
}

impl From<NodePathError> for TreeError {
    fn from(error: NodePathError) -> Self {
        TreeError::Invalid(error.to_string())
    }
}

impl TreeError {
    /// Returns true if the same request may succeed later in the same session.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, TreeError::Disconnected(_))
    }
}
