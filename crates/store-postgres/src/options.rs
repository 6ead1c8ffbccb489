//! Options of a store on PostgreSQL.

use std::time::Duration;

#[derive(Clone)]
pub struct Options {
    /// Id of the cluster that the database must belong to. The default `None` accepts any cluster.
    pub cluster: Option<String>,
    /// Password that replaces the password in the URL.
    pub password: Option<String>,
    /// Longest time to establish a connection. The default is 5 s.
    pub connect_timeout: Duration,
    /// Longest duration of a statement. The default is 10 s. With a short limit, large batches fail. With a long limit,
    /// calls wait long for a server that does not respond.
    pub statement_timeout: Duration,
    /// Number of connections for creates. Each connection runs one transaction at a time. The default is 2. More
    /// connections cause more disk syncs. With one connection, the server is idle during the sync of a transaction.
    pub creator_connections: usize,
    /// Number of connections for the transactions of owners and for cancellations. The default is 3.
    pub owner_connections: usize,
    /// Number of connections that reads share. The default is 2.
    pub reader_connections: usize,
    /// Number of rows at which a batch of creates is full. The store also splits each call into parts of at most this
    /// number of rows. The default is 1,000.
    pub batch_rows: usize,
    /// Maximum number of payload bytes in one transaction of creates. The default is 4 MiB.
    pub batch_bytes: usize,
    /// Maximum number of waiting calls in each of the queues for creates, owners' writes and cancellations. Further
    /// calls wait for a free slot. The default is 10,000.
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
                // This setting makes acknowledged writes durable even if the database's default is weaker.
                setting("synchronous_commit", "on"),
                setting("default_transaction_isolation", "read committed"),
                // The server ends the transaction of a paused member, so that the member does not block its successor.
                ("idle_in_transaction_session_timeout", (self.statement_timeout.as_millis() / 4).to_string()),
                // Every statement has one good plan, which uses indexes. The following settings force PostgreSQL to use
                // this plan. Without them, PostgreSQL would choose a plan by its statistics, which are often out of
                // date: the tables fill and empty quickly.
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
