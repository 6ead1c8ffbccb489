//! Options that an operator may set for the parts of the service, with their bounds. Each option is a flag, an
//! environment variable and a key of the configuration file.
//!
//! The help of an option states its meaning, and the cost of a value that is too small or too large. The full
//! documentation is in the `Options` of the crates scheduler, server, callback and store_embedded, which also contain
//! the defaults.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use domain::egress::Network;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::service::Options;
use crate::stop::StopTimeouts;

#[derive(Args, Debug)]
pub(crate) struct TuningArguments {
    /// Maximum number of callbacks in flight to one target, for a tenant without the quota `in_flight_per_target_max`; a
    /// low value delays callbacks to a target that responds slowly, a high value may overload the target [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = scheduler().in_flight_per_target, env = "REVEILLE_IN_FLIGHT_PER_TARGET")]
    in_flight_per_target: usize,
    /// Maximum number of callbacks in flight; after a kill of the process, up to twice this number of callbacks may be
    /// delivered twice [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = scheduler().in_flight_max, env = "REVEILLE_IN_FLIGHT_MAX")]
    in_flight_max: usize,
    /// Maximum number of callbacks in memory that the scheduler has read in advance or that wait for their target; each
    /// callback takes about 100 bytes [1 to 1073741824]
    #[arg(long, value_parser = count(1, 1 << 30), default_value_t = scheduler().window_keys_max, env = "REVEILLE_WINDOW_KEYS_MAX")]
    window_keys_max: usize,
    /// Time by which the scheduler reads due callbacks in advance; with a short time, callbacks are late when a read is
    /// slow; a long time takes memory [100ms to 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(scheduler().window_ahead), env = "REVEILLE_WINDOW_AHEAD")]
    window_ahead: Span,
    /// Longest time for which a due callback waits in memory for its target before the scheduler postpones it [100ms to
    /// 10m]
    #[arg(long, value_parser = between("100ms", "10m"), default_value_t = Span(scheduler().parked_for), env = "REVEILLE_PARKED_FOR")]
    parked_for: Span,
    /// Longest postponement of a callback that waits for its target; a short time causes many writes while a target is
    /// slow [1s to 1h]
    #[arg(long, value_parser = between("1s", "1h"), default_value_t = Span(scheduler().defer_max), env = "REVEILLE_DEFER_MAX")]
    defer_max: Span,
    /// Time after the signal to stop during which the server handles requests and /readyz returns 503; if the time is
    /// too short, a load balancer does not notice the stop and sends requests to a stopped server [0s to 5m]
    #[arg(long, value_parser = between("0s", "5m"), default_value = "0s", env = "REVEILLE_STOP_NOTICE")]
    stop_notice: Span,
    /// Longest time for which a stop waits for callbacks in flight; Reveille later sends a callback again if its target
    /// has not responded by the end of this time [0s to 10m]
    #[arg(long, value_parser = between("0s", "10m"), default_value_t = Span(scheduler().drain), env = "REVEILLE_DRAIN")]
    drain: Span,
    /// Longest time for which a stop waits for requests in progress [0s to 10m]
    #[arg(long, value_parser = between("0s", "10m"), default_value_t = Span(server().drain_timeout), env = "REVEILLE_REQUEST_DRAIN")]
    request_drain: Span,
    /// Maximum number of open client connections; for a further connection, the server closes the longest idle
    /// connection without a valid key; if no such connection exists, the further connection waits in the kernel; one
    /// client address may have half of the maximum [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = server().connections_max, env = "REVEILLE_CONNECTIONS_MAX")]
    connections_max: usize,
    /// Address or network of a reverse proxy, such as 10.0.0.0/8, which may have all client connections; repeat the option
    /// or separate the values with commas
    #[arg(long, value_delimiter = ',', env = "REVEILLE_TRUSTED_PROXY")]
    trusted_proxy: Vec<Network>,
    /// Time after which the server closes an idle client connection; a short time causes reconnects; with a long time,
    /// idle connections use up --connections-max [1s to 1h]
    #[arg(long, value_parser = between("1s", "1h"), default_value_t = Span(server().idle_timeout), env = "REVEILLE_IDLE_TIMEOUT")]
    idle_timeout: Span,
    /// Longest time that a request body may take to arrive [100ms to 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(server().body_timeout), env = "REVEILLE_BODY_TIMEOUT")]
    body_timeout: Span,
    /// Maximum size of a request body in bytes; the largest payload must fit. A connection may take this amount of
    /// memory, and an HTTP/2 connection up to 128 times this amount [131072 to 16777216]
    #[arg(long, value_parser = count(128 << 10, 16 << 20), default_value_t = server().body_bytes_max, env = "REVEILLE_BODY_BYTES_MAX")]
    body_bytes_max: usize,
    /// Maximum number of lines in a batch [1 to 1000000000]
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000), default_value_t = server().batch_lines_max, env = "REVEILLE_BATCH_LINES_MAX")]
    batch_lines_max: u64,
    /// Longest time that a target may take to accept a connection; the timeout of the callback also applies [100ms to
    /// 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(callback().connect_timeout), env = "REVEILLE_CALLBACK_CONNECT_TIMEOUT")]
    callback_connect_timeout: Span,
    /// Time after which the server closes an idle connection to a target; if the time is too long, the target closes
    /// the connection first [1s to 10m]
    #[arg(long, value_parser = between("1s", "10m"), default_value_t = Span(callback().idle_timeout), env = "REVEILLE_CALLBACK_IDLE_TIMEOUT")]
    callback_idle_timeout: Span,
    /// Maximum number of idle connections to targets; each connection takes a file descriptor [0 to 1000000]
    #[arg(long, value_parser = count(0, 1_000_000), default_value_t = callback().idle_connections_max, env = "REVEILLE_CALLBACK_IDLE_CONNECTIONS_MAX")]
    callback_idle_connections_max: usize,
    /// Address and port of a DNS server for the host names of targets; repeat the option or separate the values with
    /// commas [default: the servers of /etc/resolv.conf]
    #[arg(long, value_delimiter = ',', env = "REVEILLE_CALLBACK_NAME_SERVER")]
    callback_name_server: Vec<SocketAddr>,
    /// PEM file with certificate authorities to trust for targets, in addition to the authorities in Mozilla's list
    #[arg(long, env = "REVEILLE_CALLBACK_ROOTS")]
    callback_roots: Option<PathBuf>,
    /// Single process only: free space on the disk in bytes, below which the server rejects new schedules; the store
    /// needs some of this space to merge files [16777216 to 1099511627776]
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(16 << 20..=1 << 40), default_value_t = store().free_bytes_floor, env = "REVEILLE_FREE_BYTES_FLOOR")]
    free_bytes_floor: u64,
    /// Single process only: size in bytes of the memory cache for reads of stored data [1048576 to 1099511627776]
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1 << 20..=1 << 40), default_value_t = store().cache_bytes, env = "REVEILLE_CACHE_BYTES")]
    cache_bytes: u64,
}

fn scheduler() -> scheduler::Options {
    scheduler::Options::default()
}

fn server() -> server::Options {
    server::Options::default()
}

fn callback() -> callback::Options {
    callback::Options::default()
}

fn store() -> store_embedded::Options {
    store_embedded::Options::default()
}

impl TuningArguments {
    /// Writes the values of the flags to `options`.
    ///
    /// # Errors
    /// Returns an error if the file of --callback-roots cannot be read, or if it has no certificate.
    pub(crate) fn apply(&self, options: &mut Options) -> anyhow::Result<()> {
        let scheduler = &mut options.scheduler;
        scheduler.in_flight_per_target = self.in_flight_per_target;
        scheduler.in_flight_max = self.in_flight_max;
        scheduler.window_keys_max = self.window_keys_max;
        scheduler.window_ahead = self.window_ahead.0;
        scheduler.parked_for = self.parked_for.0;
        scheduler.defer_max = self.defer_max.0;
        scheduler.drain = self.drain.0;
        let server = &mut options.server;
        server.drain_timeout = self.request_drain.0;
        server.connections_max = self.connections_max;
        server.trusted_proxies.clone_from(&self.trusted_proxy);
        server.idle_timeout = self.idle_timeout.0;
        server.body_timeout = self.body_timeout.0;
        server.body_bytes_max = self.body_bytes_max;
        server.batch_lines_max = self.batch_lines_max;
        let callback = &mut options.callback;
        callback.connect_timeout = self.callback_connect_timeout.0;
        callback.idle_timeout = self.callback_idle_timeout.0;
        callback.idle_connections_max = self.callback_idle_connections_max;
        callback.name_servers.clone_from(&self.callback_name_server);
        callback.extra_roots = self.roots()?;
        options.store.free_bytes_floor = self.free_bytes_floor;
        options.store.cache_bytes = self.cache_bytes;
        Ok(())
    }

    pub(crate) fn stop_timeouts(&self) -> StopTimeouts {
        StopTimeouts { notice: self.stop_notice.0, drain: self.request_drain.0 + self.drain.0 }
    }

    fn roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let Some(path) = &self.callback_roots else { return Ok(Vec::new()) };
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let roots =
            read.with_context(|| format!("cannot read the certificates of --callback-roots {}", path.display()))?;
        ensure!(
            !roots.is_empty(),
            "the file {} of --callback-roots has no certificate in PEM format; write the certificates to this file",
            path.display()
        );
        Ok(roots)
    }
}

/// Duration in the form that people write, for example `30s`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

fn span(text: &str) -> Result<Span, String> {
    domain::duration::parse(text).map(Span).map_err(|error| error.to_string())
}

/// Returns a parser for durations from `least` to `most`, inclusive.
fn between(least: &'static str, most: &'static str) -> impl Fn(&str) -> Result<Span, String> + Clone + Send + Sync {
    let bound = |text| span(text).expect("every bound of an option's range is a valid duration");
    let range = bound(least)..=bound(most);
    move |text| match span(text)? {
        span if range.contains(&span) => Ok(span),
        _ => Err(format!("not between {least} and {most}")),
    }
}

/// Returns a parser for numbers from `least` to `most`, inclusive.
fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}
