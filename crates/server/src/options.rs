//! What an operator can set of the HTTP side.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use domain::limits::Limits;
use domain::{Quota, Quotas};

use crate::tls::Tls;

/// Every limit at the edge, with its default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Default 127.0.0.1:8080: nobody else's machine reaches a server that was not told to be reached.
    pub listen: SocketAddr,
    /// Under which certificate. Default none: requests come in plain.
    pub tls: Option<Tls>,
    /// How long a TLS handshake may take. Default 5 s. Too short loses clients far away, too long lets who stalls hold a
    /// place.
    pub handshake_timeout: Duration,
    /// TLS handshakes under way at once; more wait for their turn, within that time. Default 1,024. Too few let some who
    /// stall keep others waiting, too many take memory, and time from requests.
    pub handshakes_max: usize,
    /// Users' requests are answered. Default true; false leaves /healthz, /readyz and /metrics.
    pub answers_users: bool,
    /// The pollers of a tenant that is made; see [`scheduler::Options::pollers`].
    pub tenant_pollers: u16,
    /// What a tenant that is made may use, if who makes it does not say. Default: 50,000 callbacks a minute, 1,000
    /// schedules made a second, 1,000,000 pending, 1,024 callbacks in flight, 256 to one target and 1,000 a second there;
    /// payloads and days ahead as [`Options::limits`] has them. Too little makes new users' callbacks late, too much lets one
    /// crowd the others' targets and the disk.
    pub tenant_quotas: Quotas,
    /// How high its admins may set them. Default: ten times as much; four times in flight.
    pub tenant_ceilings: Quotas,
    /// What a schedule may ask for.
    pub limits: Limits,
    /// The bytes of one request's body, and of one line of a batch. Default 256 KiB; it must hold a payload of the
    /// largest size with everything around it. Each request under way can take so much memory: over HTTP/1 one for each
    /// connection, over HTTP/2 up to [`Options::streams_max`].
    pub body_bytes_max: usize,
    /// The bytes of one request's head. Default 16 KiB; at least 8 KiB.
    pub head_bytes_max: usize,
    /// How long a connection may go without beginning a request, or going on with a batch. Default 30 s. A head that
    /// trickles in counts as not beginning. Too short costs clients new connections, too long lets idle ones hold places.
    pub idle_timeout: Duration,
    /// How long a body may take to arrive, and each further piece of a batch's body. Default 10 s.
    pub body_timeout: Duration,
    /// Further connections wait in the kernel's queue. Default 4,096.
    pub connections_max: usize,
    /// Requests under way on one HTTP/2 connection. Default 256.
    pub streams_max: u32,
    /// Lines of one batch. Default 1,000,000.
    pub batch_lines_max: u64,
    /// Lines that go to the scheduler in one call. Default 500; few cost commits, many cost memory and the wait of the
    /// first.
    pub batch_group_lines: usize,
    /// Calls of one batch under way at once. Default 4; one leaves the disk idle while lines are read.
    pub batch_groups_max: usize,
    /// How long requests under way may go on after the stop. Default 20 s; then their connections are closed.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
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
                .with(Quota::CallbacksPerSecondPerTarget, 1_000),
            tenant_ceilings: Quotas::NONE
                .with(Quota::CallbacksPerMinute, 500_000)
                .with(Quota::CreatesPerSecond, 10_000)
                .with(Quota::PendingMax, 10_000_000)
                .with(Quota::InFlightMax, 4_096)
                .with(Quota::InFlightPerTargetMax, 1_024)
                .with(Quota::CallbacksPerSecondPerTarget, 10_000),
            limits: Limits::default(),
            body_bytes_max: 256 * 1024,
            head_bytes_max: 16 * 1024,
            idle_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            connections_max: 4_096,
            streams_max: 256,
            batch_lines_max: 1_000_000,
            batch_group_lines: 500,
            batch_groups_max: 4,
            drain_timeout: Duration::from_secs(20),
        }
    }
}
