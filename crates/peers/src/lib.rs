//! Members asking each other over HTTP: [`HttpPeers`] asks, a [`Listener`] has what was asked done and answers.
//!
//! Both ends prove that they know the cluster's secret ([`ClusterSecret`]): the asking one with each request, for this
//! member, once and now; the answering one with each answer, for this request. So nobody else can ask, answer, change
//! what is sent or send it again. What this does not do: hide anything. Until there is TLS, whoever listens on the
//! network between members reads the bodies, tenants' payloads and headers among them; keep that network private.
//!
//! Nothing is tried again here, but for a request of which not a byte was sent when its kept connection turned out to be
//! closed. What is asked, and what follows from an answer, is the scheduler's; the form on the wire is in `wire`.
//!
//! Always true here: nothing is decoded, and no answer believed, before its MAC was found right; every failure of
//! asking is [`scheduler::PeerError::Unreachable`] with a reason; sizes, times and numbers have limits; the secret is
//! in no log and no error.

mod client;
mod connection;
mod kind;
mod listener;
mod metrics;
mod nonces;
mod proof;
mod secret;
mod service;
mod wire;

use runtime::Runtime;

pub use client::{HttpPeers, PeersOptions};
pub use listener::{BindError, Handler, IsMe, Listener, ListenerOptions};
pub use secret::ClusterSecret;

/// The body of a request. A create of more is sent in parts (at most 1,000 schedules of 64 KiB would be 64 MiB).
pub const ASK_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The body of an answer. To a create it repeats what was asked, and tells some more of each schedule.
pub const REPLY_BYTES_MAX: usize = 4 * ASK_BYTES_MAX;

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
