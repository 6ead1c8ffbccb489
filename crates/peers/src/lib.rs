//! HTTP implementation of [`scheduler::Peers`]: [`HttpPeers`] sends requests to other members, and a [`Listener`]
//! passes requests to a handler and sends the responses.
//!
//! The members use mutual TLS 1.3. A cluster has a certificate authority ([`Authority`]). Each member has the key of the
//! authority and issues its own certificates ([`Identity`]). The certificate of a listener contains the id of the
//! member's session. The caller checks this id, so it never sends a request to another member or to an earlier session.
//!
//! The client repeats a request only if its pooled connection closed before the client sent any byte of the request.
//! This crate does not interpret the bodies of requests: it transports bytes and the name of an operation.
//!
//! Invariants: The listener reads a request only after the caller has presented a certificate of a trusted authority.
//! The client sends a request only after the listener has presented such a certificate with the id of the receiver.
//! Every failure of a request is [`scheduler::PeerError::Unreachable`] with a reason, except that an earlier build may
//! not know the operation. This crate limits the sizes of messages, the durations of waits, and the numbers of
//! connections and requests. Keys appear in no log and no error.
//!
//! docs/decisions/0110-send-member-requests-over-http.md and 0228-encrypt-the-connections-between-members.md give the
//! reasons for the design.

mod authority;
mod client;
mod connection;
mod connector;
mod identity;
mod listener;
mod metrics;
mod service;

use std::error::Error;
use std::io;

use http::HeaderName;
use runtime::Runtime;

pub use self::listener::Listener;
pub use ::listener::BindError;
pub use authority::{Authority, AuthorityError};
pub use client::{HttpPeers, PeersOptions};
pub use identity::{Identity, IsCurrentSession, server_name};
pub use service::{Handler, ListenerOptions};

/// Maximum size in bytes of a request's or response's head (first line and headers).
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Path of every request.
const PATH: &str = "/peer/v3/request";
/// Header with the name of the operation.
const OPERATION: HeaderName = HeaderName::from_static("reveille-peer-operation");
/// Operation that does nothing.
const CHECK: &str = "check";
/// Header with the percent-encoded name of the sender, for logs.
const FROM: HeaderName = HeaderName::from_static("reveille-peer-from");

/// Returns the error and the chain of its sources. The chain includes the errors that `io::Error` values contain.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    })
}

/// Spawns the tasks of the client's connections. Each task ends at the latest when the client drops its connection
/// pool.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("peer connection", future));
    }
}
