//! The scheduler: from a request for a schedule to a callback and its durable outcome.
//!
//! [`Scheduler`] serves HTTP and all other front ends. [`Tenants`] manages the tenants. `changes` creates and changes
//! schedules. `cluster` assigns shards to members and forwards owner-only requests. `firing` makes callbacks: an owner
//! reads due rows a short time ahead, and the outcome writer writes the outcomes.
//!
//! This crate contains no HTTP (see `server` and `callback`), no storage (see `store`) and no decisions about one
//! schedule (see `domain::decide`). Window, wheel and dispatch are pure. Invariant: a caller receives only durable
//! facts.

mod changes;
mod cluster;
mod creator;
mod deliver;
mod firing;
mod known_tenants;
mod metrics;
mod options;
mod requests;
mod service;
mod shared;
mod tenants;

pub use cluster::assignment::Peering;
pub use cluster::operations;
pub use cluster::peers::{InvalidRequest, PeerError, Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
pub use deliver::{Deliver, Delivered, Delivery};
pub use options::Options;
pub use prometheus_client::registry::Registry;
pub use requests::{
    AttemptOutcome, CancelResponse, Create, CreateRejection, OwnerError, PutResponse, RedriveResponse, Timing,
};
pub use service::Scheduler;
pub use tenants::Tenants;
