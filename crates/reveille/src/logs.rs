//! Setup of logging: the log of the process on standard error, and the spans for a collector.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use runtime::Runtime;
use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::otlp::{self, Endpoint, Exporter};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// Format with one JSON object per line.
    Json,
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LogArguments {
    /// Format of the log; RUST_LOG selects the events, for example `RUST_LOG=info,server=debug`
    #[arg(long, value_enum, default_value_t, env = "REVEILLE_LOG_FORMAT")]
    log_format: Format,
    /// URL of an OpenTelemetry collector for the spans of requests, runs and attempts, such as http://127.0.0.1:4318;
    /// without this option, the process exports no spans
    #[arg(long, env = "REVEILLE_OTLP_ENDPOINT")]
    otlp_endpoint: Option<Endpoint>,
}

/// Starts logging. If the arguments name a collector, the function returns the exporter of spans, which the caller must
/// start. `is_server` is true for `serve`.
pub(crate) fn begin(runtime: &Runtime, arguments: &LogArguments, is_server: bool) -> Option<Exporter> {
    let filter = || EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let default = || {
        let quiet = "reveille_coordination_zookeeper::client=error".parse().expect("the directive is valid");
        // A member has several sessions with ZooKeeper, and each of them logs the loss of its connection. The
        // membership logs one line for all of them. RUST_LOG overrides this filter.
        if is_server { filter().from_env_lossy().add_directive(quiet) } else { filter().from_env_lossy() }
    };
    let filter = filter().try_from_env().unwrap_or_else(|_unset| default());
    let log = log(arguments.log_format, filter);
    let Some(endpoint) = arguments.otlp_endpoint.clone() else {
        log.init();
        return None;
    };
    let (spans, exporter) = otlp::open(runtime, endpoint);
    let wanted = filter_fn(otlp::is_exported).with_max_level_hint(LevelFilter::DEBUG);
    log.with(spans.with_filter(wanted)).init();
    Some(exporter)
}

fn log(format: Format, filter: EnvFilter) -> impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match format {
        Format::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_creates_no_trace_spans_if_no_collector_is_configured() {
        for format in [Format::Text, Format::Json] {
            let log = log(format, EnvFilter::new("info"));
            assert_eq!(
                log.max_level_hint(),
                Some(LevelFilter::INFO),
                "spans have a lower level, so one comparison disables each of them"
            );
        }
    }
}
