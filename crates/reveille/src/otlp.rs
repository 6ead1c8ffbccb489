//! Export of spans to an OpenTelemetry collector. Each span describes a run, an attempt, or a request that creates a
//! schedule.
//!
//! The spans are `tracing` spans with the target [`SPANS`]. The crate `server` creates `request` (SERVER), the crate
//! `scheduler` creates `fire` (INTERNAL), and the crate `callback` creates `attempt` (CLIENT). This module assigns OTLP
//! ids to the spans and encodes the spans. No other code depends on OTLP. If the operator configures no collector, no
//! layer enables these spans, and the code that would create a span only compares two `tracing` levels.
//!
//! A schedule may fire hours after the request that created it. Therefore each run is its own trace, and each `fire`
//! *links* to the span of the request. The link needs no stored data. This module derives the ids of a request's span
//! from the incarnation and the revision of the schedule, which every due row contains. The span of the request links
//! to the trace that the client named in its `traceparent` header.
//!
//! The service never waits for the collector. The exporter drops spans that the collector does not accept in time, and
//! logs their number.
//!
//! docs/decisions/0085-export-spans-with-a-custom-layer.md gives the reasons for the design.

mod exporter;
mod message;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::{Incarnation, Revision, RunId, Timestamp};
use runtime::{Monotonic, Runtime};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use message::{KeyValue, Link, Span, Status, kind};

pub(crate) use exporter::{Endpoint, Exporter};

/// `tracing` target of the spans that go to the collector.
const SPANS: &str = "reveille::spans";
/// Maximum number of spans that wait for the exporter. The layer drops further spans.
const QUEUE: usize = 16_384;

/// Creates the layer that collects spans, and the exporter that sends them.
pub(crate) fn open(runtime: &Runtime, endpoint: Endpoint) -> (Spans, Exporter) {
    let (queue, waiting) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let spans = Spans { runtime: runtime.clone(), queue, dropped: dropped.clone() };
    (spans, Exporter::new(runtime.clone(), endpoint, waiting, dropped))
}

pub(crate) fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == SPANS
}

pub(crate) struct Spans {
    runtime: Runtime,
    queue: mpsc::Sender<Span>,
    dropped: Arc<AtomicU64>,
}

/// Span that has started but has not ended.
struct Open {
    started: Timestamp,
    began: Monotonic,
    /// Id of the span, unless the fields of the span determine another id.
    span: u64,
    fields: Fields,
}

/// Id of a trace, and id of a span in this trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SpanIds {
    trace: u128,
    span: u64,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let (started, began) = (self.runtime.now(), self.runtime.monotonic());
        span.extensions_mut().insert(Open { started, began, span: self.runtime.random().max(1), fields });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Open>().map(|open| open.span));
        let took = self.runtime.monotonic().since(open.began);
        let random = || self.runtime.random_u128().max(1);
        let mut exported = open.into_span(span.name(), parent, random);
        exported.end_nanos = exported.start_nanos + u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if self.queue.try_send(exported).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Open {
    fn into_span(self, name: &str, parent: Option<u64>, random: impl FnOnce() -> u128) -> Span {
        let Open { started, span, fields, .. } = self;
        let run = fields.text("run").and_then(RunId::parse);
        let caller = fields.text("caller").and_then(traceparent);
        let (kind, ids, parent, linked) = match (name, run) {
            ("fire", Some(run)) => {
                let ids = SpanIds { trace: callback::trace_id(&run.run_id()), span };
                (kind::INTERNAL, ids, None, Some(request_span(run.incarnation, run.revision)))
            }
            ("attempt", Some(run)) => {
                // The `traceparent` header of the callback has this span id, so the receiver's spans become children of
                // this span.
                let span = fields.text("span").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(span);
                (kind::CLIENT, SpanIds { trace: callback::trace_id(&run.run_id()), span }, parent, None)
            }
            _ => match (fields.request_span(), caller) {
                (Some(request_span), caller) => (kind::SERVER, request_span, None, caller),
                (None, Some(caller)) => (kind::SERVER, SpanIds { trace: caller.trace, span }, Some(caller.span), None),
                (None, None) => (kind::SERVER, SpanIds { trace: random(), span }, None, None),
            },
        };
        let link = |ids: SpanIds| Link { trace_id: ids.trace_bytes(), span_id: ids.span_bytes() };
        Span {
            trace_id: ids.trace_bytes(),
            span_id: ids.span_bytes(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
            name: fields.text("route").unwrap_or(name).to_owned(),
            kind,
            start_nanos: u64::try_from(started.as_millis()).unwrap_or(0) * 1_000_000,
            end_nanos: 0,
            status: Some(Status { code: fields.status() }),
            links: linked.map(link).into_iter().collect(),
            attributes: fields.0,
        }
    }
}

impl SpanIds {
    fn trace_bytes(self) -> Vec<u8> {
        self.trace.to_be_bytes().to_vec()
    }

    fn span_bytes(self) -> Vec<u8> {
        self.span.to_be_bytes().to_vec()
    }
}

/// Returns the ids for the span of the request that created this revision of the schedule.
fn request_span(incarnation: Incarnation, revision: Revision) -> SpanIds {
    let mut digest = Sha256::new_with_prefix(b"reveille: made by");
    digest.update(incarnation.0.to_be_bytes());
    digest.update(revision.0.to_be_bytes());
    let digest = digest.finalize();
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number: u128, byte| number << 8 | u128::from(*byte));
    let span = u64::try_from(number(&digest[16..24])).expect("the first eight bytes of the hash fit in 64 bits");
    SpanIds { trace: number(&digest[..16]).max(1), span: span.max(1) }
}

/// Parses a `traceparent` header of W3C Trace Context, version 00 or later.
fn traceparent(text: &str) -> Option<SpanIds> {
    let mut parts = text.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(span, 16) {
        return None;
    }
    let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    (trace != 0 && span != 0).then_some(SpanIds { trace, span })
}

/// Fields of a span, in the order in which the code recorded them.
#[derive(Default)]
struct Fields(Vec<KeyValue>);

impl Fields {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|field| field.key == name)?.text()
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|field| field.key == name)?.number()
    }

    /// Returns the ids that the incarnation and the revision in the fields determine. Returns `None` if the request
    /// created neither a schedule nor a revision of a schedule.
    fn request_span(&self) -> Option<SpanIds> {
        let incarnation = u128::from_str_radix(self.text("incarnation")?, 16).ok()?;
        let revision = u32::try_from(self.number("revision")?).ok()?;
        Some(request_span(Incarnation(incarnation), Revision(revision)))
    }

    fn status(&self) -> i32 {
        match self.text("error") {
            Some(_) => message::ERROR,
            None => message::UNSET,
        }
    }

    fn put(&mut self, field: &Field, value: message::AnyValue) {
        self.0.push(KeyValue { key: field.name().to_owned(), value: Some(value) });
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, message::AnyValue::text(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, message::AnyValue::number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, message::AnyValue::number(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, message::AnyValue::text(&format!("{value:?}")));
    }
}

#[cfg(test)]
mod tests;
