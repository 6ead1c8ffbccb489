//! Port for requests between members. It sends the bytes of a request for an operation to another member, and returns
//! the bytes of the response.
//!
//! An implementation of the port does not know the operations. The module `operations` defines the operations and their
//! bytes, and the module `serving` handles the requests.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use membership::Member;

/// Largest size of a request in bytes. A batch of 1,000 schedules of 64 KiB occupies 64 MiB, so the sender splits a
/// create request that exceeds this size into several requests.
pub const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest size of a response in bytes. The response to a create repeats the request and adds a few fields to each
/// schedule.
pub const RESPONSE_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;

/// Transport for requests to other members.
pub trait Peers: Send + Sync + 'static {
    /// Sends a request to [`crate::Scheduler::handle`] of another member, and returns the response. An implementation
    /// must not retry the request.
    ///
    /// # Errors
    /// Returns [`PeerError::Unreachable`] if no response arrives. The member `to` may or may not have executed the
    /// operation. Returns [`PeerError::UnknownOperation`] if the member does not know the operation.
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
    /// The member runs an earlier build, which does not know the operation. The request has had no effect.
    #[error("member {member} does not know the operation; upgrade this member")]
    UnknownOperation { member: String },
}

/// Rejection of a request that this member cannot handle. The request has had no effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidRequest {
    #[error("unknown operation")]
    UnknownOperation,
    #[error("invalid request: {0}")]
    Malformed(#[from] stored::Malformed),
}
