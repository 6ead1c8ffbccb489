//! The port for requests between members: bytes to an operation of another member, and bytes back.
//!
//! An implementation does not know the operations: `operations` defines them and their bytes, and `serving` handles them.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use membership::Member;

/// The most bytes of one request. A longer create is sent in parts: 1,000 schedules of 64 KiB have 64 MiB.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The most bytes of one response. The response to a create repeats the request and adds a little to each schedule.
pub const RESPONSE_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;

pub trait Peers: Send + Sync + 'static {
    /// Carries a request to [`crate::Scheduler::handle`] of another member, and the response back. It retries nothing.
    ///
    /// # Errors
    /// [`PeerError::Unreachable`] if no response came; then it is not known whether `to` did the operation.
    fn request(
        &self,
        to: &Member,
        operation: &'static str,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>>;
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    #[error("member {member} cannot be reached: {reason}")]
    Unreachable { member: String, reason: String },
}

/// A request that this member does not handle; nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidRequest {
    #[error("unknown operation")]
    UnknownOperation,
    #[error("invalid request: {0}")]
    Malformed(#[from] stored::Malformed),
}
