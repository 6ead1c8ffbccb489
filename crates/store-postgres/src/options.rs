//! Options for the use of the server.

use std::time::Duration;

#[derive(Clone)]
pub struct Options {
    /// Id of the cluster that the database must contain. Default: any cluster.
    pub cluster: Option<String>,
    /// Password that replaces the one in the URL.
    pub password: Option<String>,
    /// Longest time to establish a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// Longest duration of a statement. Default 10 s. Too short: large batches fail. Too long: a call hangs when the
    /// server is gone.
    pub statement_timeout: Duration,
    /// Number of connections for creates, each with one transaction under way. Default 2. Too many: more syncs. Too
    /// few: the server is idle while one transaction syncs.
    pub creator_connections: usize,
    /// Number of connections for the transactions of owners and for cancellations. Default 3.
    pub owner_connections: usize,
    /// Number of connections that reads share. Default 2.
    pub reader_connections: usize,
    /// Maximum number of rows in one transaction of creates. Default 1,000. It also bounds one read of the insert logs.
    pub batch_rows: usize,
    /// Maximum payload bytes of one transaction of creates. Default 4 MiB.
    pub batch_bytes: usize,
    /// Maximum number of waiting calls in each queue (creates, owners' writes, cancellations). Further calls wait for a
    /// free slot. Default 10,000.
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
                // Acknowledged writes are durable, whatever the database's default is.
                setting("synchronous_commit", "on"),
                setting("default_transaction_isolation", "read committed"),
                // A member that is paused within a transaction does not block its successor.
                ("idle_in_transaction_session_timeout", (self.statement_timeout.as_millis() / 4).to_string()),
                // Each statement has one good plan, by index. The statistics lag behind, because these tables fill and
                // empty quickly.
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
