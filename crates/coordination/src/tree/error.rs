//! Errors of a tree.

use super::NodePathError;

/// Failure of a whole call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    #[error("the node does not exist")]
    NoNode,
    #[error("the node already exists")]
    NodeExists,
    #[error("the node's version differs from the expected one")]
    BadVersion,
    #[error("the node has children")]
    NotEmpty,
    #[error("an ephemeral node cannot have children")]
    NoChildrenForEphemerals,
    /// The node's access list does not grant this permission to the session.
    #[error("the node's access list does not allow this request")]
    Forbidden,
    #[error("the access list is empty, or names a creator that gave no credentials")]
    InvalidAcl,
    /// No engine accepts this request. The text names the part to change.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Failure of a multi at its step `at`, counted from 0. The multi changed nothing.
    #[error("step {at} of the multi failed")]
    Multi { at: usize, source: Box<TreeError> },
    /// The engine cannot be reached, or the connection broke before the response. The change may have happened.
    #[error("the coordination engine did not respond: {0}")]
    Disconnected(String),
    /// The session has ended, and its ephemeral nodes are deleted or soon will be. Open another session.
    #[error("the session has ended")]
    SessionLost,
}

impl From<NodePathError> for TreeError {
    fn from(error: NodePathError) -> Self {
        TreeError::Invalid(error.to_string())
    }
}

impl TreeError {
    /// Returns true if the same call may succeed later in this session.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, TreeError::Disconnected(_))
    }
}
