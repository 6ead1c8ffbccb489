//! Port for requests between members: it carries bytes to an operation of another member and returns bytes.
//!
//! An implementation does not know the operations: `operations` defines them and their bytes, and `serving` handles
//! them.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use membership::Member;

/// Largest request in bytes. A longer create is sent in parts: 1,000 schedules of 64 KiB have 64 MiB.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest response in bytes. The response to a create repeats the request and adds a little to each schedule.
pub const RESPONSE_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;

/// Transport for requests to other members.
pub trait Peers: Send + Sync + 'static {
    /// Carries a request to [`crate::Scheduler::handle`] of another member, and returns the response. It does not
    /// retry.
    ///
    /// # Errors
    /// Returns [`PeerError::Unreachable`] if no response arrives; `to` may or may not have done the operation.
    fn request(
        &self,
        to: &Member,
        operation: &'static str,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>>;
}

/// Failure of a request to another member.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    #[error("cannot reach member {member}: {reason}")]
    Unreachable { member: String, reason: String },
}

/// A request that this member cannot handle. It has had no effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidRequest {
    #[error("unknown operation")]
    UnknownOperation,
    #[error("invalid request: {0}")]
    Malformed(#[from] stored::Malformed),
}
