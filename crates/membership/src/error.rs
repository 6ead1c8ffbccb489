//! Errors of the port `Ownership`.

/// Failure of a whole call to the port `Ownership`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OwnershipError {
    /// The member's session and its claims have ended. The member must join again under a new id.
    #[error("the member's session has ended; join again under a new id")]
    Lost,
    /// The engine is unreachable or did not respond in time. The same call may succeed later.
    #[error("the coordination engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine rejects this call permanently. The text states the change that makes the call succeed.
    #[error("the coordination engine rejected the call: {0}")]
    Rejected(String),
}

impl OwnershipError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OwnershipError::Unavailable(_) => true,
            OwnershipError::Lost | OwnershipError::Rejected(_) => false,
        }
    }
}
