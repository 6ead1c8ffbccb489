//! Exporter that sends spans in batches with OTLP/HTTP and protobuf bodies.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use runtime::{Monotonic, Runtime, TaskSet};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::message::{ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span};

/// Maximum number of spans in one request.
const BATCH: usize = 512;
/// Maximum time for which the first span of a batch waits for further spans.
const GATHER: Duration = Duration::from_secs(1);
/// Timeout of one request to the collector.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of attempts to send the same spans.
const ATTEMPTS: u32 = 3;
/// Wait after the first failed attempt. The wait doubles after each further attempt.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum time for which [`Exporting::stop`] waits until the exporter has sent the remaining spans.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about dropped spans.
const REPORT_PERIOD: Duration = Duration::from_secs(60);

/// URL to which the exporter sends spans: the base URL of the collector with `/v1/traces` appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint(Uri);

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const NONE: &str = "the value is not the URL of a collector; write a URL such as http://127.0.0.1:4318";
        let base: Uri = text.parse().map_err(|_| NONE)?;
        let is_http = matches!(base.scheme_str(), Some("http" | "https"));
        if !is_http || base.host().is_none() || base.query().is_some() || text.contains('@') {
            return Err(NONE);
        }
        let uri = format!("{}/v1/traces", text.trim_end_matches('/'));
        uri.parse().map(Endpoint).map_err(|_| NONE)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) struct Exporter {
    runtime: Runtime,
    endpoint: Endpoint,
    waiting: mpsc::Receiver<Span>,
    dropped: Arc<AtomicU64>,
}

/// Handle of a running exporter. The exporter runs until [`Exporting::stop`], because any part of the process may
/// create spans.
pub(crate) struct Exporting {
    runtime: Runtime,
    stop: CancellationToken,
    tasks: TaskSet,
}

impl Exporting {
    /// Sends the waiting spans for at most [`FLUSH_MAX`], and stops the exporter.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        if self.runtime.timeout(FLUSH_MAX, self.tasks.join()).await.is_none() {
            tracing::warn!("the exporter did not send the last spans: the collector did not respond in time");
        }
    }
}

impl Exporter {
    pub(super) fn new(
        runtime: Runtime,
        endpoint: Endpoint,
        waiting: mpsc::Receiver<Span>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        Exporter { runtime, endpoint, waiting, dropped }
    }

    pub(crate) fn start(self) -> Exporting {
        let (runtime, stop) = (self.runtime.clone(), CancellationToken::new());
        let tasks = TaskSet::new(&runtime);
        tasks.spawn("spans", self.run(stop.clone()));
        Exporting { runtime, stop, tasks }
    }

    async fn run(mut self, stop: CancellationToken) {
        let connector = HttpsConnectorBuilder::new().with_webpki_roots().https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let mut reported_at = None;
        while let Some(first) = self.next(&stop).await {
            let mut spans = vec![first];
            let deadline = self.runtime.monotonic() + GATHER;
            while spans.len() < BATCH && !stop.is_cancelled() {
                let left = deadline.since(self.runtime.monotonic());
                let runtime = self.runtime.clone();
                match runtime.timeout(left, Box::pin(self.next(&stop))).await {
                    Some(Some(span)) => spans.push(span),
                    Some(None) | None => break,
                }
            }
            while spans.len() < BATCH
                && let Ok(span) = self.waiting.try_recv()
            {
                spans.push(span);
            }
            let count = spans.len() as u64;
            if let Err(reason) = self.send(&client, request_of(spans)).await {
                self.dropped.fetch_add(count, Ordering::Relaxed);
                self.report_dropped(&mut reported_at, &reason);
            } else if self.dropped.load(Ordering::Relaxed) > 0 {
                self.report_dropped(&mut reported_at, "spans arrive faster than the collector accepts them");
            }
        }
    }

    /// Waits for the next span. Returns `None` if `stop` is cancelled and no span is left.
    async fn next(&mut self, stop: &CancellationToken) -> Option<Span> {
        if !stop.is_cancelled() {
            tokio::select! {
                biased;
                span = self.waiting.recv() => return span,
                () = stop.cancelled() => {}
            }
        }
        self.waiting.try_recv().ok()
    }

    async fn send(
        &self,
        client: &Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
        body: Bytes,
    ) -> Result<(), String> {
        let mut wait = RETRY_FIRST;
        let mut reason = String::new();
        for attempt in 1..=ATTEMPTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = self.endpoint.0.clone();
            let kind = hyper::header::HeaderValue::from_static("application/x-protobuf");
            request.headers_mut().insert(CONTENT_TYPE, kind);
            reason = match self.runtime.timeout(RESPONSE_TIMEOUT, Box::pin(client.request(request))).await {
                Some(Ok(response)) if response.status().is_success() => return Ok(()),
                // After a response with an error status, the exporter repeats the request only if the specification
                // allows this for the status (OTLP 1, "OTLP/HTTP Response").
                Some(Ok(response)) if !is_retryable(response.status()) => {
                    return Err(format!("the collector responded with status {}", response.status()));
                }
                Some(Ok(response)) => format!("the collector responded with status {}", response.status()),
                Some(Err(error)) => error.to_string(),
                None => "the collector did not respond in time".to_owned(),
            };
            if attempt < ATTEMPTS {
                self.runtime.sleep(wait).await;
                wait *= 2;
            }
        }
        Err(reason)
    }

    fn report_dropped(&self, reported_at: &mut Option<Monotonic>, reason: &str) {
        let now = self.runtime.monotonic();
        if reported_at.is_none_or(|at| now.since(at) >= REPORT_PERIOD) {
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            tracing::warn!(
                dropped,
                reason,
                endpoint = %self.endpoint,
                "spans dropped; the collector did not accept them"
            );
            *reported_at = Some(now);
        }
    }
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

fn request_of(spans: Vec<Span>) -> Bytes {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![KeyValue::of("service.name", "reveille"), KeyValue::of("service.version", version)];
    let scope = Scope { name: "reveille".to_owned(), version: version.to_owned() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource_spans = vec![ResourceSpans { resource: Some(Resource { attributes }), scope_spans }];
    Bytes::from(ExportTraceServiceRequest { resource_spans }.encode_to_vec())
}
