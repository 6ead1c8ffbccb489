//! Why coordination says no.

/// A call failed as a whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OwnershipError {
    /// The member's session has ended, and its claims with it: join again under a new id.
    #[error("the member's session has ended")]
    Lost,
    /// The engine cannot be reached or did not answer in time; the same call may go through later.
    #[error("the coordination engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine will not do this, now or later: the text says what to change.
    #[error("the coordination engine refuses: {0}")]
    Refused(String),
}

impl OwnershipError {
    /// Whether the same call may go through later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OwnershipError::Unavailable(_) => true,
            OwnershipError::Lost | OwnershipError::Refused(_) => false,
        }
    }
}
