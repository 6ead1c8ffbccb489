//! Metrics of the HTTP server.

mod plain;

use std::sync::Mutex;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use listener::Slot;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::Monotonic;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    /// Label with the method and the path pattern from the routing table. The label does not contain the path of the
    /// request, because the label would then have a separate value for each schedule.
    route: &'static str,
    status: u16,
}

pub(crate) struct HttpMetrics {
    registry: Registry,
    durations: Family<RequestLabels, Histogram, fn() -> Histogram>,
    connections: Gauge,
    pub(crate) connections_idle_closed: Counter,
    pub(crate) connections_rejected: Counter,
    connections_replaced: Counter,
    pub(crate) batch_lines: Counter,
    pub(crate) batches_broken_off: Counter,
    pub(crate) handshakes_failed: Counter,
    pub(crate) response_bytes: Gauge,
    rendered: Mutex<Option<Rendered>>,
}

/// Texts of all metrics at one instant. The server returns these texts to all requests within [`AGE_MAX`] after this
/// instant.
#[derive(Clone)]
struct Rendered {
    at: Monotonic,
    open: Bytes,
    plain: Bytes,
}

/// Time for which the server returns the same text. If the server created a text for each request, unauthenticated
/// callers could use up its CPU time and its memory.
const AGE_MAX: Duration = Duration::from_secs(1);

impl HttpMetrics {
    pub(crate) fn new() -> Self {
        let durations = Family::<RequestLabels, Histogram, fn() -> Histogram>::new_with_constructor(duration_histogram);
        let mut registry = Registry::default();
        registry.register(
            "reveille_http_request_duration_seconds",
            "Time from the headers of a request to the headers of its response",
            durations.clone(),
        );
        let connections = Gauge::default();
        registry.register("reveille_http_connections", "Open connections", connections.clone());
        let connections_idle_closed = Counter::default();
        registry.register(
            "reveille_http_connections_idle_closed",
            "Connections closed because they were idle",
            connections_idle_closed.clone(),
        );
        let connections_rejected = Counter::default();
        registry.register(
            "reveille_http_connections_rejected",
            "Connections closed because their client address had reached its limit of connections",
            connections_rejected.clone(),
        );
        let connections_replaced = Counter::default();
        registry.register(
            "reveille_http_connections_replaced",
            "Idle connections without a valid key that were closed to accept other connections",
            connections_replaced.clone(),
        );
        let batch_lines = Counter::default();
        registry.register(
            "reveille_http_batch_lines",
            "Batch lines whose result the server has written",
            batch_lines.clone(),
        );
        let batches_broken_off = Counter::default();
        registry.register(
            "reveille_http_batches_broken_off",
            "Batches that ended before the client received the result of every line",
            batches_broken_off.clone(),
        );
        let handshakes_failed = Counter::default();
        registry.register(
            "reveille_http_handshakes_failed",
            "TLS handshakes that failed or timed out",
            handshakes_failed.clone(),
        );
        let response_bytes = Gauge::default();
        registry.register(
            "reveille_http_response_bytes",
            "Bytes reserved for responses that clients have not read yet",
            response_bytes.clone(),
        );
        HttpMetrics {
            registry,
            durations,
            connections,
            connections_idle_closed,
            connections_rejected,
            connections_replaced,
            batch_lines,
            batches_broken_off,
            handshakes_failed,
            response_bytes,
            rendered: Mutex::new(None),
        }
    }

    pub(crate) fn observe(&self, route: &'static str, status: StatusCode, took: Duration) {
        let labels = RequestLabels { route, status: status.as_u16() };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Returns the metrics of the scheduler and of the HTTP server as OpenMetrics text, or in the text format of
    /// Prometheus. The text is at most [`AGE_MAX`] old.
    pub(crate) fn text(&self, is_open: bool, now: Monotonic, scheduler: impl FnOnce() -> String) -> Bytes {
        let mut rendered = self.rendered.lock().expect("no holder of this lock panics");
        let fresh = rendered.take().filter(|rendered| now.since(rendered.at) < AGE_MAX);
        let Rendered { open, plain, .. } = rendered.insert(fresh.unwrap_or_else(|| self.render(now, scheduler())));
        if is_open { open.clone() } else { plain.clone() }
    }

    /// Appends the metrics of the HTTP server to the scheduler's metrics.
    fn render(&self, at: Monotonic, scheduler: String) -> Rendered {
        let mut text = scheduler;
        let end = text.trim_end().strip_suffix("# EOF").map_or(text.len(), str::len);
        text.truncate(end);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        encode(&mut text, &self.registry).expect("a String accepts every write");
        Rendered { at, plain: plain::of_open_metrics(&text).into(), open: text.into() }
    }
}

/// Guard of an open connection. The metrics count the connection until its guard is dropped.
pub(crate) struct Open {
    connections: Gauge,
    replaced: Counter,
    slot: Slot,
}

impl Open {
    pub(crate) fn new(metrics: &HttpMetrics, slot: Slot) -> Self {
        metrics.connections.inc();
        Open { connections: metrics.connections.clone(), replaced: metrics.connections_replaced.clone(), slot }
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot.clone()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.dec();
        if self.slot.is_closing() {
            self.replaced.inc();
        }
    }
}

fn duration_histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}
