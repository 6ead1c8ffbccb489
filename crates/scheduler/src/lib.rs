//! The scheduler: from a request for a schedule to a callback and its durable outcome.
//!
//! [`Scheduler`] serves HTTP and every other front; [`Tenants`] is the service for tenants beside it. `changes` creates and
//! changes schedules. `cluster` gives shards to members and forwards owner-only requests. `firing` calls back: an owner
//! reads due rows a short way ahead, and the outcome writer writes the outcomes.
//!
//! This crate does no HTTP (`server` in front, `callback` behind), stores nothing itself (`store`) and decides nothing about
//! one schedule (`domain::decide`). Window, wheel and dispatch are pure. Invariant: a caller receives only durable facts.

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
pub use requests::{AttemptOutcome, CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing, Undone};
pub use service::Scheduler;
pub use tenants::Tenants;
