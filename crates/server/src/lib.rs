//! HTTP API of Reveille: routes, authentication, limits, and errors as problem details.
//!
//! The crate translates requests into calls of the scheduler, and the scheduler's results into responses. It stores no
//! schedules and depends on no store engine. It makes only one decision about time: whether it accepts
//! the times in a request.
//!
//! Invariants: the server reads a body only after it has checked the key. The scheduler receives a schedule only after
//! the server has checked all of its fields. Every rejection is a problem document with a stable code. Every
//! connection, head, body, line and page has a limit, which is a field of [`Options`] or a constant next to the code
//! that applies it.

mod auth;
mod body;
mod condition;
mod connection;
mod credentials;
mod extract;
mod idempotency;
mod listener;
mod metrics;
mod openapi;
mod options;
pub mod preview;
mod query;
mod quota;
mod readiness;
mod rejection;
mod route;
mod routes;
mod spans;
mod spool;
mod state;
mod tls;
mod unread;
mod wire;

pub use self::listener::Server;
pub use ::listener::BindError;
pub use body::read_spec;
pub use credentials::{new_key, new_signing_secret};
pub use options::{BODY_BYTES_MAX, Options};
pub use readiness::Readiness;
pub use tls::{Tls, TlsError};
