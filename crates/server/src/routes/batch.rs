//! Batches: many schedules in one request. The server reads NDJSON lines and writes NDJSON results at the same time.
//!
//! The server passes the lines to the scheduler in groups. The store commits many lines of a group together. Several
//! groups run concurrently, and the server sends their results in the order of the lines. For each batch, a separate
//! task reads the lines and adds the results to a spool, so the client may write all lines before it reads the first
//! result. The memory of a batch is bounded: it contains the current piece of the body, the current groups and their
//! results, and the part of the spool that is in memory.
//!
//! A client that declares the length of its body or uses HTTP/1.0 receives the response after the server has read the
//! body, because nginx stops sending a body when the response starts (`ngx_http_upstream_send_request_handler`). Any
//! other client receives results while it sends lines.
//!
//! Invariants: the server writes one result for each line, after the line's schedule is durable or rejected. An invalid
//! line does not affect other lines. The server checks the API key repeatedly and accepts no line with a revoked or
//! expired key, because a batch may run for days. All batches with the same `Idempotency-Key` together create the
//! schedule of each line once.
//!
//! docs/decisions/0198-spool-unread-results-of-a-batch.md and
//! docs/decisions/0199-derive-ids-of-batch-lines-from-the-key.md give the reasons for the design.

mod group;
mod lines;
mod record;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Response, Version};
use bytes::Bytes;
use domain::Timestamp;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesOrdered, StreamExt, unfold};
use scheduler::Create;
use store::Health;

use super::created::timing_pointer;
use crate::auth::{self, Caller};
use crate::body::read_schedule;
use crate::extract::check_content_type;
use crate::idempotency::{IdempotencyKey, Key};
use crate::rejection::{Code, HandlerResult, Rejected, reject};
use crate::spool::{PushError, Writer};
use crate::state::{App, AppState};
use group::{Checked, Entry, Group};
use lines::{Line, Lines};
use record::{Delivery, Record};

/// Media types of a batch. Some client generators support only `application/octet-stream`.
const NDJSON: &[&str] =
    &[api::NDJSON_CONTENT_TYPE, "application/ndjson", "application/jsonl", "application/octet-stream"];

pub(super) async fn batch(
    State(app): App,
    caller: Caller,
    IdempotencyKey(key): IdempotencyKey,
    request: Request,
) -> HandlerResult {
    let (head, body) = request.into_parts();
    check_content_type(&head.headers, NDJSON)?;
    let start = match head.version {
        Version::HTTP_09 | Version::HTTP_10 => Start::AfterBody,
        _ if head.headers.contains_key(CONTENT_LENGTH) => Start::AfterPause,
        _ => Start::AtOnce,
    };
    let (writer, reader) = app.spools.open();
    let record = Arc::new(Record::new(app.clone(), caller.tenant.id.0));
    let delivery = Delivery { reader, record: record.clone() };
    let batch = Batch {
        lines: Lines::new(body, app.options.body_bytes_max),
        app: app.clone(),
        caller,
        key: key.map(Arc::new),
        start,
        group: Group::default(),
        under_way: FuturesOrdered::new(),
        writer,
        record,
    };
    drop(app.runtime.spawn("batch", batch.run()));
    let bytes = delivery.reader.released().await;
    let results = unfold(delivery, async |delivery| delivery.reader.next().await.map(|results| (results, delivery)));
    let mut response = Response::new(Body::from_stream(results));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON_CONTENT_TYPE));
    if let (Start::AfterBody, Some(bytes)) = (start, bytes) {
        // Without `Content-Length`, an HTTP/1.0 client could not detect an incomplete response.
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    Ok(response)
}

/// Time at which the response starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    AtOnce,
    /// The response starts when the results of all lines are ready. If the client sends nothing for [`PAUSE`], the
    /// response starts earlier, because the client may be waiting for results.
    AfterPause,
    /// The response starts when the results of all lines are ready.
    AfterBody,
}

/// Time without data from the client after which the server assumes that the client waits for results.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of lines after which the task yields, so that the thread can run other tasks and handle its sockets. The
/// executor handles the sockets after a fixed number of polls, even if each poll takes long. If each poll processed a
/// whole group, single requests and callbacks would wait for dozens of groups.
const LINES_PER_TURN: u64 = 32;

/// Time limit for discarding the rest of a body after the last result.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// Task that reads the lines of a batch.
struct Batch {
    app: Arc<AppState>,
    /// Caller of the batch, as of the last check of its API key.
    caller: Caller,
    key: Option<Arc<Key>>,
    start: Start,
    lines: Lines,
    group: Group,
    under_way: FuturesOrdered<BoxFuture<'static, Bytes>>,
    writer: Writer,
    record: Arc<Record>,
}

impl Batch {
    async fn run(mut self) {
        if self.start == Start::AtOnce {
            self.writer.release();
        }
        while let Some(results) = self.next().await {
            let is_disk_full = self.app.scheduler.health() == Health::Full;
            match self.writer.push(results, is_disk_full).await {
                Ok(()) => {}
                Err(PushError::ReaderGone) => {
                    // The client is gone. The task waits for the running groups, because the batch's record counts
                    // their lines.
                    while self.under_way.next().await.is_some() {}
                    return;
                }
                Err(PushError::Unwritable(error)) => self.stop_unwritable(&error),
            }
        }
        self.record.counts().stopped = self.lines.stopped();
        self.writer.complete();
        self.app.runtime.timeout(DISCARD_TIME_MAX, self.lines.discard_rest()).await;
    }

    fn stop_unwritable(&mut self, error: &std::io::Error) {
        let folder = self.app.options.batch_folder.display();
        tracing::warn!(%error, %folder, "cannot write the unread results of a batch to a file; the batch ends early");
        if !self.lines.is_at_end() {
            let detail = "the server's disk cannot store further unread results; send the rest, from this line on, in \
                          another batch, and read results while you send lines";
            self.lines.stop(reject(Code::StorageFull, detail));
        }
    }

    /// Returns the results of the next group, or `None` after the last group.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.take_lines().await;
            let has_capacity = self.under_way.len() < self.app.options.batch_groups_max;
            if has_capacity && self.is_group_ready() {
                self.start_group();
                continue;
            }
            if !has_capacity || self.lines.is_at_end() {
                return self.under_way.next().await;
            }
            if self.under_way.is_empty() {
                // No group is running. The task starts a group with the lines that have arrived. If no line has
                // arrived, the task waits for the body.
                if !self.lines.fill_at_once().await && self.group.entries.is_empty() {
                    self.wait_for_body().await;
                } else if !self.group.entries.is_empty() {
                    self.take_lines().await;
                    self.start_group();
                }
                continue;
            }
            let (lines, under_way) = (&mut self.lines, &mut self.under_way);
            futures_util::select_biased! {
                results = under_way.next().fuse() => return results,
                () = lines.fill().fuse() => {}
            }
        }
    }

    async fn wait_for_body(&mut self) {
        let (runtime, limit) = (&self.app.runtime, self.app.options.body_timeout);
        let pause = if self.start == Start::AfterPause { PAUSE.min(limit) } else { Duration::ZERO };
        if !pause.is_zero() {
            if runtime.timeout(pause, self.lines.fill()).await.is_some() {
                return;
            }
            self.writer.release();
        }
        if runtime.timeout(limit - pause, self.lines.fill()).await.is_none() {
            self.lines.stop(crate::body::collect::timed_out(&self.app));
        }
    }

    /// Returns true if the group should start. While other groups run, the lines of this group wait until it is full,
    /// because a smaller group has no advantage.
    fn is_group_ready(&self) -> bool {
        let lines = self.group.entries.len();
        lines >= self.app.options.batch_group_lines || (lines > 0 && self.lines.is_at_end())
    }

    async fn take_lines(&mut self) {
        match auth::recheck(&self.app, &self.caller.key) {
            Ok(caller) => self.caller = caller,
            Err(rejected) if !self.lines.is_at_end() => self.lines.stop(rejected),
            Err(_) => {}
        }
        let now = self.app.runtime.now();
        while self.group.entries.len() < self.app.options.batch_group_lines {
            let Some((number, line)) = self.lines.next() else { return };
            self.record.counts().read = number;
            if number.is_multiple_of(LINES_PER_TURN) {
                tokio::task::yield_now().await;
            }
            let lines_max = self.app.options.batch_lines_max;
            let checked = match line {
                Line::Text(_) if number > lines_max => {
                    self.lines.end();
                    let detail = format!(
                        "the batch exceeds the limit of {lines_max} lines; send this and later lines in another batch"
                    );
                    Err(reject(Code::BatchTooLong, detail))
                }
                Line::Text(text) if self.key.is_some() => Ok(Checked::Text(text)),
                Line::Text(text) => self.check(&text, now).await.map(Checked::Request),
                Line::Rejected(rejected) => {
                    // The rejected line counts toward the tenant's rate. If the line also exceeds the rate, the result
                    // reports the line's own fault and not the exceeded rate, because the fault helps the client more.
                    drop(self.app.count_create(&self.caller.tenant));
                    Err(rejected)
                }
            };
            self.group.entries.push(Entry { line: number, checked });
        }
    }

    /// Checks a line and adds its request to the group. Returns the JSON pointer to the line's timing field.
    async fn check(&mut self, text: &[u8], now: Timestamp) -> Result<&'static str, Rejected> {
        let (limits, tenant) = (&self.app.options.limits, &self.caller.tenant);
        self.app.count_create(tenant)?;
        let parsed = read_schedule(text, None, limits, &tenant.egress, now)?;
        let reservation = self.app.admit(tenant, None, &parsed.spec, now).await?;
        let request = Create { tenant: tenant.clone(), id: parsed.id, incarnation: None, spec: parsed.spec, by: None };
        let when = timing_pointer(&request);
        self.group.requests.push(request);
        self.group.reservations.push(reservation);
        Ok(when)
    }

    fn start_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        let (app, tenant) = (self.app.clone(), self.caller.tenant.clone());
        self.under_way.push_back(group.start(app, tenant, self.key.clone(), self.record.clone()));
    }
}
