//! Why a tree says no.

use super::NodePathError;

/// A call failed as a whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    #[error("there is no such node")]
    NoNode,
    #[error("the node is there already")]
    NodeExists,
    #[error("the node has another version than the one expected")]
    BadVersion,
    #[error("the node has children")]
    NotEmpty,
    #[error("an ephemeral node has no children")]
    NoChildrenForEphemerals,
    /// The node's list does not grant this to who this session is.
    #[error("the node's access list does not allow this")]
    Forbidden,
    #[error("the access list is empty, or of one who gave no credentials")]
    InvalidAcl,
    /// No engine will do this: the text says what to change.
    #[error("the request cannot be: {0}")]
    Invalid(String),
    /// Why a multi did nothing: its step `at`, from 0.
    #[error("step {at} of the multi failed")]
    Multi { at: usize, source: Box<TreeError> },
    /// The engine cannot be reached, or the connection broke before the answer. A change may have happened.
    #[error("the coordination engine did not answer: {0}")]
    Disconnected(String),
    /// The session has ended, and its ephemeral nodes with it or soon: open another.
    #[error("the session has ended")]
    SessionLost,
}

impl From<NodePathError> for TreeError {
    fn from(error: NodePathError) -> Self {
        TreeError::Invalid(error.to_string())
    }
}

impl TreeError {
    /// Whether the same call may go through later, in this session.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, TreeError::Disconnected(_))
    }
}
