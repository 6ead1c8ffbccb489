//! Electors and the coordination tree as rows of PostgreSQL. The engine needs only a PostgreSQL database. This database
//! may also contain Reveille's store.
//!
//! Sessions and leases are rows. Each row contains the end of its session or lease by the *database's* clock. This
//! crate uses no session-level advisory locks of PostgreSQL, because such a lock ends with its connection. Each change
//! is one call of a function on the server.
//!
//! The schema of this crate also contains the members and claims of a cluster, because databases of older builds have
//! a single schema. The crate `membership-postgres` accesses the members and claims through [`Database`] (decision
//! 0165).
//!
//! Invariant: the server confirms a change only after it has synced the change to disk. A database that returns to an
//! earlier state loses leases. It returns to an earlier state after a restore, or after a fail-over to a standby that
//! lagged. See docs/decisions/0101-tie-claims-to-sessions.md.

#![warn(missing_docs)]

mod database;
mod elector;
mod error;
mod listener;
mod schema;
mod tree;

/// The crate `reveille-coordination`, whose ports this crate implements.
pub use coordination;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::LEASE_MAX;
use postgres_client::Server;

pub use database::{Database, OnDrop};
pub use elector::{GroupName, GroupNameError, PostgresElector, PostgresElectors};
pub use error::{OpenError, is_unavailable};
pub use schema::{VERSION, migrate};
pub use tree::PostgresTrees;

/// Options of the connections to the database.
#[derive(Clone)]
pub struct Options {
    /// Password that replaces the password in the URL.
    pub password: Option<String>,
    /// Time limit of a connection attempt. The default is 5 s.
    pub connect_timeout: Duration,
    /// Time limit of a statement. The default is 500 ms. This is less than 600 ms, the margin that a member subtracts
    /// from its default lease. If the time limit is too small, members lose their leases while the database is busy. If
    /// the time limit is too large, a stuck call delays the retry that would succeed.
    pub statement_timeout: Duration,
}

impl Options {
    /// Returns options with a statement timeout of about one twelfth of `lease`. Several attempts of a call therefore
    /// fit into one lease.
    #[must_use]
    pub fn with_lease(lease: Duration) -> Self {
        let statement_timeout = (lease / 12).clamp(Duration::from_millis(20), Duration::from_secs(2));
        Options { statement_timeout, ..Options::default() }
    }

    fn server(&self, url: &str) -> Result<Arc<Server>, OpenError> {
        let options = postgres_client::Options {
            password: self.password.clone(),
            application_name: "reveille coordination".to_owned(),
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            // These settings override the defaults of the database, because leases may be unsafe under other values.
            settings: vec![
                ("synchronous_commit", "on".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
                // The server disconnects a client that is paused while it receives a response, because such a client
                // blocks other clients.
                ("tcp_user_timeout", "10000".to_owned()),
            ],
        };
        Ok(Arc::new(Server::new(url, options)?))
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            password: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_millis(500),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { password, connect_timeout, statement_timeout } = self;
        f.debug_struct("Options")
            .field("password", &password.as_ref().map(|_| "***"))
            .field("connect_timeout", connect_timeout)
            .field("statement_timeout", statement_timeout)
            .finish()
    }
}

/// Converts `lease` to milliseconds, for the SQL functions of the schema.
///
/// # Panics
/// Panics if the lease is zero or above [`LEASE_MAX`].
#[must_use]
pub fn millis(lease: Duration) -> i64 {
    assert!(
        !lease.is_zero() && lease <= LEASE_MAX,
        "invalid lease {lease:?}: it must be above zero and at most {LEASE_MAX:?}"
    );
    // The function rounds the lease up. The lease may end later than the caller requested, but not earlier.
    i64::try_from(lease.as_micros().div_ceil(1000))
        .expect("a lease of at most one hour has milliseconds that fit into an i64")
}
