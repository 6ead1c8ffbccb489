//! Scheduler. It accepts requests for schedules, makes the callbacks and writes their durable outcomes.
//!
//! [`Scheduler`] is the service for HTTP and all other front ends. [`Tenants`] manages the tenants. `changes` creates
//! and changes schedules. `cluster` assigns shards to members and forwards owner-only requests. `firing` makes
//! callbacks: an owner reads due rows a short time ahead of their instants, and the outcome writer writes the outcomes.
//!
//! The crates `server` and `callback` contain the HTTP code, `store` contains the storage, and `domain::decide` makes
//! the decisions about a single schedule. The window, the wheel and the dispatch queue do no I/O. Invariant: every
//! response contains only durable facts.

mod ahead;
mod auditor;
mod audits;
mod changes;
mod clock;
mod cluster;
mod creator;
mod deliver;
mod explain;
mod firing;
mod inbox;
mod known_tenants;
mod metrics;
mod options;
mod progress;
mod requests;
mod service;
mod shared;
mod tenants;
mod turns;

pub use cluster::assignment::Peering;
pub use cluster::operations;
pub use cluster::peers::{InvalidRequest, PeerError, Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
pub use deliver::{CONNECTION_WAIT_MAX, Deliver, Delivered, Delivery};
pub use inbox::ReadSpec;
pub use membership::Outage;
pub use options::Options;
pub use prometheus_client::registry::Registry;
pub use requests::{
    AttemptOutcome, AuditFinding, AuditReport, AuditRequest, CancelResponse, Create, CreateRejection, OwnerError,
    Progress, PutResponse, RedriveResponse, Timing, Waiting,
};
pub use service::Scheduler;
pub use tenants::Tenants;
