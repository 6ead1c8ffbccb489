//! Errors of the store port.

/// Error for which a call of the store has no response. The rejection of a single write is a part of the response.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine is unreachable or is closing. A retry may succeed later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The engine has not completed the index that the call reads, because an earlier build wrote the store. A retry may
    /// succeed later. The text contains the next step.
    #[error("the index is incomplete: {0}")]
    Unindexed(String),
    /// The disk has too little free space for user writes.
    #[error("the store's disk is nearly full: {0}")]
    Full(String),
    /// Stored bytes differ from the bytes that the engine wrote. The engine returned none of the damaged bytes.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Unavailable(_) | StoreError::Unindexed(_) | StoreError::Full(_) => true,
            StoreError::Damaged(_) => false,
        }
    }
}

/// Rejection of one item of an owner's write. The item had no effect, with one exception. An engine that writes in
/// steps may find the reason for the rejection only after it has written a due row. The owner ignores such a row, or
/// the row is a duplicate of another row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteRejection {
    /// Another member took the shard under a later term. The caller no longer owns the shard.
    #[error("another member took the shard with a later term")]
    Superseded,
    /// The schedule or run does not exist, or its state does not allow the change.
    #[error("the schedule or run does not exist, or its state does not allow the change")]
    NotFound,
    /// The schedule that has the id does not match the precondition of the change.
    #[error("the schedule does not match the precondition of the change")]
    Changed,
    /// The occurrence already has its final outcome.
    #[error("the occurrence already has a final outcome")]
    Resolved,
}
