//! HTTP implementation of [`scheduler::Peers`]: [`HttpPeers`] sends requests to other members, and a [`Listener`]
//! passes requests to a handler and sends the responses.
//!
//! The client and the listener prove by MACs that they know the cluster's secret ([`ClusterSecret`]). The client's MAC
//! in each request covers the receiving member, a nonce and the time. The listener's MAC in each response covers the
//! request. Therefore processes without the secret cannot send valid requests or responses, and cannot change or replay
//! messages. This crate does not encrypt messages. Without TLS, a process that records the network traffic between
//! members can read the bodies, including tenants' payloads and headers. Therefore operators must keep the network
//! between members private.
//!
//! The client repeats a request only if its pooled connection closed before the client sent any byte of the request.
//! This crate does not interpret the bodies of requests: it transports bytes and the name of an operation.
//!
//! Invariants: The listener verifies the MAC of a request before it handles the request. The client verifies the MAC of
//! a response before it uses the response. Every failure of a request is [`scheduler::PeerError::Unreachable`] with a
//! reason. This crate limits the sizes of messages, the durations of waits, and the numbers of connections, requests
//! and nonces. The secret appears in no log and no error.
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

/// Maximum size in bytes of a request's or response's head (first line and headers).
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Spawns the tasks of the client's connections. Each task ends at the latest when the client drops its connection
/// pool.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("peer connection", future));
    }
}
