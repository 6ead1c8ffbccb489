//! What an operator may set of the parts of the service, with its bounds: each is a flag, a variable and a key of the file.
//!
//! One line says here what it is and what too small and too large cost; the part that has it says it in full (the `Options` of
//! scheduler, server, callback and store_embedded, whose defaults these are).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::service::Options;
use crate::stop::Patience;

#[derive(Args, Debug)]
pub(crate) struct TuningArguments {
    /// Callbacks in flight to one target; too few slow down a target with long answers, too many may overrun it [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = scheduler().in_flight_per_target, env = "REVEILLE_IN_FLIGHT_PER_TARGET")]
    in_flight_per_target: usize,
    /// Callbacks in flight in all; a kill can double so many [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = scheduler().in_flight_max, env = "REVEILLE_IN_FLIGHT_MAX")]
    in_flight_max: usize,
    /// Due callbacks kept in memory, ahead of time and waiting; about 100 bytes each [1 to 1073741824]
    #[arg(long, value_parser = count(1, 1 << 30), default_value_t = scheduler().window_keys_max, env = "REVEILLE_WINDOW_KEYS_MAX")]
    window_keys_max: usize,
    /// How far ahead due callbacks are read; too short makes them late when a read is slow, too long takes memory [100ms to 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(scheduler().window_ahead), env = "REVEILLE_WINDOW_AHEAD")]
    window_ahead: Span,
    /// How long a due callback waits for its target in memory, before it is put off to a later instant [100ms to 10m]
    #[arg(long, value_parser = between("100ms", "10m"), default_value_t = Span(scheduler().parked_for), env = "REVEILLE_PARKED_FOR")]
    parked_for: Span,
    /// How much later such a callback is put at most; too short rewrites much while a target is slow [1s to 1h]
    #[arg(long, value_parser = between("1s", "1h"), default_value_t = Span(scheduler().defer_max), env = "REVEILLE_DEFER_MAX")]
    defer_max: Span,
    /// How long requests are still answered after the word to stop, while /readyz says 503; too short for whatever balances load to
    /// notice makes it send requests to nobody [0s to 5m]
    #[arg(long, value_parser = between("0s", "5m"), default_value = "0s", env = "REVEILLE_STOP_NOTICE")]
    stop_notice: Span,
    /// How long a stop waits for callbacks in flight; those without an answer by then are made again [0s to 10m]
    #[arg(long, value_parser = between("0s", "10m"), default_value_t = Span(scheduler().drain), env = "REVEILLE_DRAIN")]
    drain: Span,
    /// How long requests under way may go on after the stop [0s to 10m]
    #[arg(long, value_parser = between("0s", "10m"), default_value_t = Span(server().drain_timeout), env = "REVEILLE_REQUEST_DRAIN")]
    request_drain: Span,
    /// Open connections of clients; more wait in the kernel [1 to 1000000]
    #[arg(long, value_parser = count(1, 1_000_000), default_value_t = server().connections_max, env = "REVEILLE_CONNECTIONS_MAX")]
    connections_max: usize,
    /// How long a client's connection may be idle; too short costs new connections, too long lets idle ones hold places [1s to 1h]
    #[arg(long, value_parser = between("1s", "1h"), default_value_t = Span(server().idle_timeout), env = "REVEILLE_IDLE_TIMEOUT")]
    idle_timeout: Span,
    /// How long a request's body may take to arrive [100ms to 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(server().body_timeout), env = "REVEILLE_BODY_TIMEOUT")]
    body_timeout: Span,
    /// The bytes of a request's body; it holds the largest payload, and each connection may take so much memory, over HTTP/2 up to 256 times as much [131072 to 16777216]
    #[arg(long, value_parser = count(128 << 10, 16 << 20), default_value_t = server().body_bytes_max, env = "REVEILLE_BODY_BYTES_MAX")]
    body_bytes_max: usize,
    /// The lines of a batch [1 to 1000000000]
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000), default_value_t = server().batch_lines_max, env = "REVEILLE_BATCH_LINES_MAX")]
    batch_lines_max: u64,
    /// How long a target may take to accept a connection; the callback's own timeout holds, too [100ms to 5m]
    #[arg(long, value_parser = between("100ms", "5m"), default_value_t = Span(callback().connect_timeout), env = "REVEILLE_CALLBACK_CONNECT_TIMEOUT")]
    callback_connect_timeout: Span,
    /// How long a connection to a target is kept without a callback; too long runs into targets that close first [1s to 10m]
    #[arg(long, value_parser = between("1s", "10m"), default_value_t = Span(callback().idle_timeout), env = "REVEILLE_CALLBACK_IDLE_TIMEOUT")]
    callback_idle_timeout: Span,
    /// Connections to targets kept open between callbacks; each takes a file descriptor [0 to 1000000]
    #[arg(long, value_parser = count(0, 1_000_000), default_value_t = callback().idle_connections_max, env = "REVEILLE_CALLBACK_IDLE_CONNECTIONS_MAX")]
    callback_idle_connections_max: usize,
    /// A file in PEM: authorities whose certificates targets may have, beside those that Mozilla lists
    #[arg(long, env = "REVEILLE_CALLBACK_ROOTS")]
    callback_roots: Option<PathBuf>,
    /// One process: free bytes on the disk below which new schedules are refused; merging needs some of them [16777216 to 1099511627776]
    #[arg(long, value_parser = RangedU64ValueParser::<u64>::new().range(16 << 20..=1 << 40), default_value_t = store().free_bytes_floor, env = "REVEILLE_FREE_BYTES_FLOOR")]
    free_bytes_floor: u64,
    /// One process: bytes of stored data that are kept in memory for reading [1048576 to 1099511627776]
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
    /// # Errors
    /// If a file that is named cannot be read.
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
        server.idle_timeout = self.idle_timeout.0;
        server.body_timeout = self.body_timeout.0;
        server.body_bytes_max = self.body_bytes_max;
        server.batch_lines_max = self.batch_lines_max;
        let callback = &mut options.callback;
        callback.connect_timeout = self.callback_connect_timeout.0;
        callback.idle_timeout = self.callback_idle_timeout.0;
        callback.idle_connections_max = self.callback_idle_connections_max;
        callback.extra_roots = self.roots()?;
        options.store.free_bytes_floor = self.free_bytes_floor;
        options.store.cache_bytes = self.cache_bytes;
        Ok(())
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience { notice: self.stop_notice.0, drain: self.request_drain.0 + self.drain.0 }
    }

    fn roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let Some(path) = &self.callback_roots else { return Ok(Vec::new()) };
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let roots =
            read.with_context(|| format!("cannot read the certificates of --callback-roots, {}", path.display()))?;
        ensure!(!roots.is_empty(), "{} of --callback-roots has no certificate in PEM", path.display());
        Ok(roots)
    }
}

/// A duration as people write it.
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

/// Both included.
fn between(least: &'static str, most: &'static str) -> impl Fn(&str) -> Result<Span, String> + Clone + Send + Sync {
    let bound = |text| span(text).expect("a bound is a duration");
    let range = bound(least)..=bound(most);
    move |text| match span(text)? {
        span if range.contains(&span) => Ok(span),
        _ => Err(format!("it is not between {least} and {most}")),
    }
}

/// Both included.
fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}
