//! Electors and the tree of coordination on PostgreSQL's rows: no more than the database that the store is in.
//!
//! A session is a row with an end by the *database's* clock, and so is a lease. Neither is a session lock of PostgreSQL: a
//! lock belongs to a connection, and those come and go. A change is one function call on the server.
//!
//! The members and claims of a cluster are in the same schema, which has one list of migrations: the crate
//! `membership-postgres` stands on [`Database`] (decision 0165).
//!
//! Always true here: what is answered is synced to disk. A database that is put back in time (a restore, a fail-over to a
//! standby that lagged) forgets leases. See docs/decisions/0101-sessions-on-postgresql.md.

mod database;
mod elector;
mod error;
mod listener;
mod schema;
mod tree;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::LEASE_MAX;
use postgres_client::Server;

pub use database::{Database, Dropped};
pub use elector::{GroupName, GroupNameError, PostgresElector, PostgresElectors};
pub use error::{OpenError, is_unavailable};
pub use schema::{VERSION, migrate};
pub use tree::PostgresTrees;

#[derive(Clone)]
pub struct Options {
    /// Instead of one in the URL.
    pub password: Option<String>,
    /// Default 5 s.
    pub connect_timeout: Duration,
    /// The longest call. Default 500 ms, below the margin of the default lease. Too small: a busy database loses
    /// members; too large: what is stuck holds up the retry that would have gone through.
    pub statement_timeout: Duration,
}

impl Options {
    /// A twelfth of the lease for a call: then several tries fit into it.
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
            // Whoever set another default for the database did not mean leases.
            settings: vec![
                ("synchronous_commit", "on".to_owned()),
                ("default_transaction_isolation", "read committed".to_owned()),
                // A client that stands still while it is answered, holding what others wait for, is given up.
                ("tcp_user_timeout", "10s".to_owned()),
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

/// The lease in milliseconds, as the functions of the schema take it.
///
/// # Panics
/// If the lease is zero or above [`LEASE_MAX`].
#[must_use]
pub fn millis(lease: Duration) -> i64 {
    assert!(!lease.is_zero() && lease <= LEASE_MAX, "a lease is above zero and at most {LEASE_MAX:?}: {lease:?}");
    // Rounded up: an end that comes later gives nothing away too soon.
    i64::try_from(lease.as_micros().div_ceil(1000)).expect("an hour has few milliseconds")
}
