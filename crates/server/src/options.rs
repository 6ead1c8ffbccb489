//! Options of the HTTP server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::egress::Network;
use domain::limits::Limits;
use domain::{Quota, Quotas};
use store::Keyring;

use crate::tls::Tls;

/// Default of [`Options::body_bytes_max`].
pub const BODY_BYTES_MAX: usize = 256 * 1024;

/// Options and limits of the HTTP server, with their defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address at which the server responds to `/metrics` only, without TLS. If this address is set, the main listener
    /// responds to `/metrics` with 404. Default none.
    pub metrics_listen: Option<SocketAddr>,
    /// Address of the server. Default 127.0.0.1:8080, so that other machines cannot reach a server unless its operator
    /// sets another address.
    pub listen: SocketAddr,
    /// Certificate of the server. The default is no certificate. The server then accepts unencrypted requests.
    pub tls: Option<Tls>,
    /// Maximum duration of a TLS handshake. Default 5 s. With a short timeout, the server rejects distant clients. With
    /// a long timeout, a stalled client occupies one of the `handshakes_max` handshakes for a long time.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent TLS handshakes. Further handshakes wait, and the wait counts toward
    /// `handshake_timeout`. Default 1,024. If the number is too small, stalled clients delay other clients. If it is
    /// too large, handshakes use memory and CPU time that requests need.
    pub handshakes_max: usize,
    /// True if the server serves users' requests. Default true. If the value is false, the server serves only /healthz,
    /// /readyz and /metrics.
    pub answers_users: bool,
    /// Number of pollers of a new tenant without a quota of callbacks per minute. Default: the default of
    /// [`scheduler::Options::pollers`].
    pub tenant_pollers: u16,
    /// Quotas of a new tenant, unless its creator sets other quotas. Default: 50,000 callbacks per minute, 1,000
    /// schedules created per second, 1,000,000 pending schedules, 1,024 callbacks in flight, of which 256 may go to one
    /// target, and 1,000 callbacks per second to one target. [`Options::limits`] limits the size of payloads and the
    /// time until a schedule fires. A quota that is too low delays the callbacks of new tenants. A quota that is too
    /// high lets one tenant overload the targets and the disk.
    pub tenant_quotas: Quotas,
    /// Ceilings of a new tenant's quotas. Default: four times the default quotas for callbacks in flight, and ten times
    /// the other default quotas.
    pub tenant_ceilings: Quotas,
    /// Time for which the store retains the history of a tenant without a class of retention. It must equal the option
    /// of the store or the scheduler. Default: the default of [`scheduler::Options::history`]. An admin may choose a
    /// class of at most this time, unless an operator has set a ceiling.
    pub history: Duration,
    /// Limits of the values in a schedule.
    pub limits: Limits,
    /// Keys that decrypt the excerpts of responses in the store. Default: no keys. Without keys, the server can read
    /// only excerpts that are not encrypted.
    pub keyring: Arc<Keyring>,
    /// Maximum bytes of a request body and of one line of a batch. Default 256 KiB. The limit must suffice for the
    /// largest payload and the fields around it. Each current request can use this much memory. An HTTP/1 connection
    /// has one current request. An HTTP/2 connection has up to [`Options::streams_max`] current requests.
    pub body_bytes_max: usize,
    /// Maximum bytes of a request's head. Default 16 KiB; at least 8 KiB.
    pub head_bytes_max: usize,
    /// Longest time without a new request or further batch data on a connection. Default 30 s. A head that arrives
    /// slowly does not count as a new request. A short timeout makes clients reconnect. With a long timeout, idle
    /// connections use up `connections_max`.
    pub idle_timeout: Duration,
    /// Time limit for the arrival of a body, and for each further piece of a batch's body. Default 10 s.
    pub body_timeout: Duration,
    /// Maximum number of open connections. At the limit, the server closes an idle connection to accept a further
    /// connection. Among the connections whose client has not sent a valid key, it closes the connection that has been
    /// idle longest. If no such connection is idle, further connections wait in the kernel's queue. One client address
    /// may have at most half of the connections. Default 4,096.
    pub connections_max: usize,
    /// Networks of trusted reverse proxies. One address in these networks may have all connections. Default none.
    pub trusted_proxies: Vec<Network>,
    /// Maximum number of concurrent requests on one HTTP/2 connection. Default 128.
    pub streams_max: u32,
    /// Maximum bytes of unread responses on all connections together. The limit covers pages, single schedules and
    /// results of batches. Other responses are small. Further requests wait for up to 2 s, and then the server rejects
    /// them. Default 128 MiB. With a small number, clients that do not read delay the pages of other clients. With a
    /// large number, unread responses can use much memory.
    pub response_bytes_max: usize,
    /// Maximum bytes of unread responses on one connection. The limit covers the same responses as
    /// `response_bytes_max`. Further requests on the connection wait for up to `idle_timeout`, and then the server
    /// rejects them. Default 8 MiB, which suffices for two pages. With a small number, a client cannot read several
    /// pages at a time. With a large number, few connections use up `response_bytes_max`.
    pub response_bytes_per_connection_max: usize,
    /// Maximum number of lines in one batch. Default 1,000,000.
    pub batch_lines_max: u64,
    /// Number of lines that the server passes to the scheduler in one call. Default 500. A low number causes more
    /// commits. A high number uses more memory and delays the first results.
    pub batch_group_lines: usize,
    /// Maximum number of concurrent scheduler calls of one batch. Default 4. With one call, the disk is idle while the
    /// server reads lines.
    pub batch_groups_max: usize,
    /// Maximum bytes of a batch's results that stay in memory until the client reads them; one group of results may
    /// exceed the limit. Further results go to a file. Default 256 KiB. With a low limit, the server writes files for
    /// clients that read a little late. With a high limit, batches use more memory.
    pub batch_memory_max: usize,
    /// Maximum total size in bytes of the files with unread results of all batches. At the limit, the server reads no
    /// further lines of a batch until clients read results. Default 1 GiB. With a low limit, a large batch fails if its
    /// client writes the whole request before it reads results. With a high limit, the files can use much disk space.
    pub batch_files_max: u64,
    /// Folder of the files with unread results. The files have no names. Default: the system's temporary folder.
    pub batch_folder: PathBuf,
    /// Time within which current requests must end after the start of a shutdown. Default 20 s. After this time, the
    /// server closes the connections of the remaining requests.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            metrics_listen: None,
            tls: None,
            handshake_timeout: Duration::from_secs(5),
            handshakes_max: 1_024,
            answers_users: true,
            tenant_pollers: scheduler::Options::default().pollers,
            tenant_quotas: Quotas::NONE
                .with(Quota::CallbacksPerMinute, 50_000)
                .with(Quota::CreatesPerSecond, 1_000)
                .with(Quota::PendingMax, 1_000_000)
                .with(Quota::InFlightMax, 1_024)
                .with(Quota::InFlightPerTargetMax, 256)
                .with(Quota::CallbacksPerSecondPerTarget, 1_000)
                .with(Quota::StoredMibMax, 16 << 10),
            tenant_ceilings: Quotas::NONE
                .with(Quota::CallbacksPerMinute, 500_000)
                .with(Quota::CreatesPerSecond, 10_000)
                .with(Quota::PendingMax, 10_000_000)
                .with(Quota::InFlightMax, 4_096)
                .with(Quota::InFlightPerTargetMax, 1_024)
                .with(Quota::CallbacksPerSecondPerTarget, 10_000)
                .with(Quota::StoredMibMax, 1 << 20),
            history: scheduler::Options::default().history,
            limits: Limits::default(),
            keyring: Arc::new(Keyring::NONE),
            body_bytes_max: BODY_BYTES_MAX,
            head_bytes_max: 16 * 1024,
            idle_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            connections_max: 4_096,
            trusted_proxies: Vec::new(),
            streams_max: 128,
            response_bytes_max: 128 << 20,
            response_bytes_per_connection_max: 8 << 20,
            batch_lines_max: 1_000_000,
            batch_group_lines: 500,
            batch_groups_max: 4,
            batch_memory_max: 256 << 10,
            batch_files_max: 1 << 30,
            batch_folder: std::env::temp_dir(),
            drain_timeout: Duration::from_secs(20),
        }
    }
}
