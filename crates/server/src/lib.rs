//! The HTTP side of Reveille: routes, keys, limits at the edge, and errors as problem details.
//!
//! It turns requests into calls of the scheduler and the scheduler's answers into responses. It keeps no schedule, knows
//! no store, and decides nothing about time but whether a request may ask for it.
//!
//! Always true here: nothing of a body is looked at before its key was; a schedule reaches the scheduler only after all
//! of it was checked; every refusal is a problem document with a stable code; every connection, head, body, line and
//! page has a limit in [`Options`] or beside its code.

mod answer;
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
mod query;
mod quota;
mod readiness;
mod refusal;
mod route;
mod routes;
mod spans;
mod state;
mod tls;

pub use self::listener::Server;
pub use ::listener::BindError;
pub use body::read_spec;
pub use credentials::{new_key, new_signing_secret};
pub use options::Options;
pub use readiness::Readiness;
pub use tls::{Tls, TlsError};
