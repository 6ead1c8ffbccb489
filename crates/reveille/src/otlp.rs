//! Spans to an OpenTelemetry collector: what a request made, when it fired, and what each attempt came to.
//!
//! The spans are `tracing`'s own, of the target [`SPANS`]: `request` (SERVER) in the server, `fire` (INTERNAL) in the
//! scheduler, `attempt` (CLIENT) in callbacks. Here they get the ids and the form of OTLP; nothing else knows of either. Without
//! an endpoint there is no layer that wants them, and what makes them costs a look at a number.
//!
//! A schedule fires hours after it was asked for, so its runs are traces of their own, and each `fire` *links* to the span of the
//! request. For that nothing is stored: the ids of such a span follow from what the schedule is (its incarnation and revision),
//! which every due row carries. The trace that the client named in its `traceparent` is linked from there.
//!
//! Nothing waits for the collector: what it does not take in time is dropped, and the log says how much.

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

/// The target of the spans that go to the collector.
const SPANS: &str = "reveille::spans";
/// Spans that wait to be sent; further ones are dropped.
const QUEUE: usize = 16_384;

/// The layer that takes the spans, and what sends them.
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

/// A span that has not ended.
struct Open {
    started: Timestamp,
    began: Monotonic,
    /// Its own id, unless its fields say another.
    span: u64,
    fields: Fields,
}

/// A place in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
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
        let (kind, place, parent, linked) = match (name, run) {
            ("fire", Some(run)) => {
                let place = Place { trace: callback::trace_id(&run.run_id()), span };
                (kind::INTERNAL, place, None, Some(made(run.incarnation, run.revision)))
            }
            ("attempt", Some(run)) => {
                // What the receiver was told, so that its spans are this one's children.
                let span = fields.text("span").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(span);
                (kind::CLIENT, Place { trace: callback::trace_id(&run.run_id()), span }, parent, None)
            }
            _ => match (fields.made(), caller) {
                (Some(made), caller) => (kind::SERVER, made, None, caller),
                (None, Some(caller)) => (kind::SERVER, Place { trace: caller.trace, span }, Some(caller.span), None),
                (None, None) => (kind::SERVER, Place { trace: random(), span }, None, None),
            },
        };
        let link = |place: Place| Link { trace_id: place.trace_bytes(), span_id: place.span_bytes() };
        Span {
            trace_id: place.trace_bytes(),
            span_id: place.span_bytes(),
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

impl Place {
    fn trace_bytes(self) -> Vec<u8> {
        self.trace.to_be_bytes().to_vec()
    }

    fn span_bytes(self) -> Vec<u8> {
        self.span.to_be_bytes().to_vec()
    }
}

/// The span of the request that made a schedule, or this revision of it.
fn made(incarnation: Incarnation, revision: Revision) -> Place {
    let mut digest = Sha256::new_with_prefix(b"reveille: made by");
    digest.update(incarnation.0.to_be_bytes());
    digest.update(revision.0.to_be_bytes());
    let digest = digest.finalize();
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number: u128, byte| number << 8 | u128::from(*byte));
    let span = u64::try_from(number(&digest[16..24])).expect("eight bytes are 64 bits");
    Place { trace: number(&digest[..16]).max(1), span: span.max(1) }
}

/// W3C Trace Context, version 00 and what will come after it.
fn traceparent(text: &str) -> Option<Place> {
    let mut parts = text.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(span, 16) {
        return None;
    }
    let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    (trace != 0 && span != 0).then_some(Place { trace, span })
}

/// In the order in which they were told.
#[derive(Default)]
struct Fields(Vec<KeyValue>);

impl Fields {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|field| field.key == name)?.text()
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|field| field.key == name)?.number()
    }

    /// Where the span belongs if its request made a schedule.
    fn made(&self) -> Option<Place> {
        let incarnation = u128::from_str_radix(self.text("incarnation")?, 16).ok()?;
        let revision = u32::try_from(self.number("revision")?).ok()?;
        Some(made(Incarnation(incarnation), Revision(revision)))
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
