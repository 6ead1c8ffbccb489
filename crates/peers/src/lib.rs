//! HTTP implementation of [`scheduler::Peers`]: [`HttpPeers`] sends requests to other members, and a [`Listener`]
//! passes them to a handler and responds.
//!
//! Both sides prove that they know the cluster's secret ([`ClusterSecret`]): the client with each request, which
//! names the receiving member, a nonce and the time, and the listener with each response, which names the request.
//! So other processes cannot send requests, respond, change messages or replay them. This crate does not encrypt.
//! Without TLS, a process that records the network traffic between members can read the bodies, including tenants'
//! payloads and headers; keep that network private.
//!
//! The client repeats a request only if its kept connection was already closed before any byte of the request was
//! sent. This crate knows no operations and no schedules: it carries bytes under an operation's name.
//!
//! Invariants: A request is handled, and a response is used, only after its MAC was verified. Every failure of a
//! request is [`scheduler::PeerError::Unreachable`] with a reason. Sizes, times and counts are limited. The secret
//! appears in no log and no error.
//!
//! docs/decisions/0110-send-member-requests-over-http.md gives the reasons for the design.

mod client;
mod connection;
mod listener;
mod metrics;
mod nonces;
mod proof;
mod secret;
mod service;

use runtime::Runtime;

pub use self::listener::Listener;
pub use ::listener::BindError;
pub use client::{HttpPeers, PeersOptions};
pub use secret::ClusterSecret;
pub use service::{Handler, IsCurrentSession, ListenerOptions};

/// Largest head (first line and headers) of a request or response, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Runs the client's connections; each ends with its pool.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("peer connection", future));
    }
}
