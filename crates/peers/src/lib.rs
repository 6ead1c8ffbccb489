//! The HTTP implementation of [`scheduler::Peers`]: [`HttpPeers`] sends requests to other members, a [`Listener`] has them
//! handled and answers.
//!
//! Both ends prove that they know the cluster's secret ([`ClusterSecret`]): the asking one with each request, for this
//! member, once and now; the answering one with each answer, for this request. So nobody else can ask, answer, change
//! what is sent or send it again. What this does not do: hide anything. Until there is TLS, whoever listens on the
//! network between members reads the bodies, tenants' payloads and headers among them; keep that network private.
//!
//! Nothing is tried again here, but for a request of which not a byte was sent when its kept connection turned out to be
//! closed. This crate knows no operation and no schedule: it carries bytes under an operation's name.
//!
//! Always true here: nothing is handled, and no answer believed, before its MAC was found right; every failure of
//! asking is [`scheduler::PeerError::Unreachable`] with a reason; sizes, times and numbers have limits; the secret is
//! in no log and no error.

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
pub use service::{Handler, IsMe, ListenerOptions};

/// A request's or an answer's line and headers.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Runs the asking side's connections; each ends with its pool.
#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("peer connection", future));
    }
}
