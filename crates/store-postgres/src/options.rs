//! How a store uses its server.

use std::time::Duration;

#[derive(Clone)]
pub struct Options {
    /// The id of the cluster that must be in the database; any if not given.
    pub cluster: Option<String>,
    /// Instead of one in the URL.
    pub password: Option<String>,
    /// Default 5 s.
    pub connect_timeout: Duration,
    /// The longest statement. Default 10 s; too short fails large batches, too long lets a call hang on a server that is
    /// gone.
    pub statement_timeout: Duration,
    /// Connections that write creations, each with one transaction under way. Default 2; more sync more often, fewer leave
    /// the server idle while one transaction syncs.
    pub creator_connections: usize,
    /// Connections for the transactions of owners, and for cancellations. Default 3.
    pub owner_connections: usize,
    /// Connections that reads share. Default 2.
    pub reader_connections: usize,
    /// The most rows of one transaction of creations. Default 1,000; it bounds a read of arrivals, too.
    pub batch_rows: usize,
    /// The most payload bytes of one. Default 4 MiB.
    pub batch_bytes: usize,
    /// Creations that wait, in calls, before further calls wait at the door; as many owners' writes, and cancellations.
    /// Default 10,000.
    pub queue_calls: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cluster: None,
            password: None,
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            creator_connections: 2,
            owner_connections: 3,
            reader_connections: 2,
            batch_rows: 1_000,
            batch_bytes: 4 << 20,
            queue_calls: 10_000,
        }
    }
}

impl Options {
    pub(crate) fn client(&self) -> postgres_client::Options {
        let setting = |name, value: &str| (name, value.to_owned());
        postgres_client::Options {
            password: self.password.clone(),
            application_name: "reveille store".to_owned(),
            connect_timeout: self.connect_timeout,
            statement_timeout: self.statement_timeout,
            settings: vec![
                // What is answered is durable, whatever the database's default is.
                setting("synchronous_commit", "on"),
                setting("default_transaction_isolation", "read committed"),
                // A member that is paused within a transaction does not keep its successor waiting.
                ("idle_in_transaction_session_timeout", (self.statement_timeout.as_millis() / 4).to_string()),
                // Each statement has one good plan, by index. Statistics lag behind tables that fill and empty so fast.
                setting("plan_cache_mode", "force_generic_plan"),
                setting("enable_seqscan", "off"),
                setting("enable_bitmapscan", "off"),
                setting("enable_hashjoin", "off"),
                setting("enable_mergejoin", "off"),
                setting("jit", "off"),
            ],
        }
    }
}
