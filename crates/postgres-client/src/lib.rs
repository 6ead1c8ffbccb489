//! Connections to PostgreSQL: URLs, TLS, timeouts, reconnection and the migrations of a schema. The storage engines
//! supply the statements.
//!
//! A [`Server`] is an address with its connection options. A [`Link`] maintains one connection and opens a new one
//! whenever the connection ends. An engine opens one link for each statement or transaction that the engine runs
//! concurrently. A [`Probe`] detects a server that no longer responds.
//!
//! Invariants: every wait for the server has a time limit. No error, log line or `Debug` text contains a password. A
//! failure caused by a missing connection is retryable ([`Failure::is_retryable`]).
//!
//! docs/decisions/0090-use-tokio-postgres-with-rustls.md gives the reasons for the design.

#![warn(missing_docs)]

mod failure;
mod link;
mod probe;
mod schema;
mod server;
mod session;
mod tls;
mod url_error;

pub use failure::Failure;
pub use link::{Admission, Link};
pub use probe::Probe;
pub use schema::Schema;
pub use server::{Messages, Options, Server};
pub use session::Session;
pub use tokio_postgres;
pub use url_error::UrlError;
