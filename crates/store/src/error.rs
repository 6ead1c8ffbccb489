//! Why a store says no.

/// A call failed as a whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine cannot be reached, or is closing; the same call may go through later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Too little space is left for users' writes.
    #[error("the store's disk is nearly full: {0}")]
    Full(String),
    /// Stored bytes are not what was written. Nothing of them was served.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Unavailable(_) | StoreError::Full(_) => true,
            StoreError::Damaged(_) => false,
        }
    }
}

/// One item of an owner's write was refused. Nothing of it took effect, but for due rows that are void or already told:
/// an engine that writes in steps may meet the reason after the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteRefusal {
    /// The shard has been taken under a later term: stop owning it.
    #[error("the shard has a later owner")]
    Superseded,
    /// There is no such schedule or run, or it is not in a state that allows this.
    #[error("there is nothing there to change")]
    NotFound,
    /// The id is not, or no longer, as the change wants to find it.
    #[error("the schedule has changed")]
    Changed,
    /// The occurrence has its final outcome already.
    #[error("the occurrence has its outcome")]
    Resolved,
}
