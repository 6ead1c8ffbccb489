//! Batches: many schedules in one request. The server reads NDJSON lines and writes NDJSON results at the same time.
//!
//! Lines go to the scheduler in groups, which share its commits. Several groups run concurrently, and their results
//! leave in the order of the lines. Memory is bounded: it contains the current piece of the body, the current groups
//! and their results. The server stops reading from a client that does not read its results.
//!
//! Invariants: the server writes one result for each line, after its schedule is durable or rejected. An invalid line
//! does not affect other lines. The server checks the key repeatedly and accepts no line with a revoked or expired key,
//! because a batch may run for days.

mod lines;

use std::sync::Arc;
use std::time::Duration;

use api::BatchLine;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::{Schedule, Tenant, Timestamp};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesOrdered, Stream, StreamExt, unfold};
use scheduler::{Create, CreateRejection};
use store::StoreError;
use tokio::sync::oneshot;

use super::created::{may_exist, reject_create, timing_pointer};
use crate::auth::{self, Caller};
use crate::body::{ParsedSchedule, read_schedule};
use crate::extract::check_content_type;
use crate::quota::Reservation;
use crate::rejection::{Code, HandlerResult, Rejected, reject, to_json};
use crate::spans;
use crate::state::{App, AppState};
use crate::wire;
use lines::{Line, Lines};

/// Media types of a batch. Some client generators support only the last one.
const NDJSON: &[&str] =
    &[api::NDJSON_CONTENT_TYPE, "application/ndjson", "application/jsonl", "application/octet-stream"];

pub(super) async fn batch(State(app): App, caller: Caller, request: Request) -> HandlerResult {
    let (head, body) = request.into_parts();
    check_content_type(&head.headers, NDJSON)?;
    let lines = Lines::new(body, app.options.body_bytes_max);
    let batch = Batch { app, caller, lines, group: Group::default(), under_way: FuturesOrdered::new() };
    let mut response = Response::new(Body::from_stream(batch.into_stream()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON_CONTENT_TYPE));
    Ok(response)
}

/// Number of lines after which the stream yields, so that other tasks and sockets of this thread run. The executor
/// limits the number of polls, not their duration. If each poll processed a whole group, single requests and callbacks
/// would wait for dozens of groups.
const LINES_PER_TURN: u64 = 32;

/// Time limit for discarding the rest of a body after the last result.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

struct Batch {
    app: Arc<AppState>,
    /// Caller of the batch at the time of the last check of the key.
    caller: Caller,
    lines: Lines,
    /// Lines that the batch has read but not yet sent to the scheduler.
    group: Group,
    under_way: FuturesOrdered<BoxFuture<'static, Bytes>>,
}

#[derive(Default)]
struct Group {
    requests: Vec<Create>,
    /// Reservation of each request.
    reservations: Vec<Reservation>,
    entries: Vec<Entry>,
}

/// One line of a group.
struct Entry {
    line: u64,
    /// `Ok` with the pointer to the timing field if the request goes to the scheduler, or the rejection of the line.
    checked: Result<&'static str, Rejected>,
}

impl Batch {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static {
        unfold(self, |mut batch| async move { batch.next().await.map(|results| (Ok(results), batch)) })
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
            if !has_capacity {
                return self.under_way.next().await;
            }
            if self.lines.is_at_end() {
                let results = self.under_way.next().await;
                if results.is_none() {
                    self.app.runtime.timeout(DISCARD_TIME_MAX, self.lines.discard_rest()).await;
                }
                return results;
            }
            if self.under_way.is_empty() {
                // No group is running, so the stream waits for the body. Lines that have arrived do not wait for
                // further lines.
                if !self.lines.fill_at_once().await && self.group.entries.is_empty() {
                    let limit = self.app.options.body_timeout;
                    let filled = self.app.runtime.timeout(limit, self.lines.fill()).await;
                    if filled.is_none() {
                        self.lines.stop(crate::body::collect::timed_out(&self.app));
                    }
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

    /// Returns true if the group should start. While other groups run, lines wait until the group is full, because a
    /// smaller group has no advantage.
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
            if number.is_multiple_of(LINES_PER_TURN) {
                tokio::task::yield_now().await;
            }
            let lines_max = self.app.options.batch_lines_max;
            let checked = match line {
                Line::Text(_) if number > lines_max => {
                    self.lines.end();
                    let detail = format!(
                        "the batch has more than {lines_max} lines; send the rest, from this line on, in another batch"
                    );
                    Err(reject(Code::BatchTooLong, detail))
                }
                Line::Text(text) => check(&self.app, &self.caller.tenant, &text, now).await,
                Line::Rejected(rejected) => {
                    // The line counts, but its own error helps the client more than an error about the rate.
                    drop(self.app.count_create(&self.caller.tenant));
                    Err(rejected)
                }
            };
            let checked = checked.map(|(parsed, reservation)| {
                let request =
                    Create { tenant: self.caller.tenant.clone(), id: parsed.id, incarnation: None, spec: parsed.spec };
                let when = timing_pointer(&request);
                self.group.requests.push(request);
                self.group.reservations.push(reservation);
                when
            });
            self.group.entries.push(Entry { line: number, checked });
        }
    }

    fn start_group(&mut self) {
        let Group { requests, reservations, entries } = std::mem::take(&mut self.group);
        let app = self.app.clone();
        // The call runs in its own task, because the executor does not poll this stream while the client does not read.
        // A slow client must not extend the time for which the scheduler holds locks.
        let (sender, receiver) = oneshot::channel();
        let scheduler = app.scheduler.clone();
        let work = async move {
            let results = if requests.is_empty() { Ok(Vec::new()) } else { scheduler.create(requests).await };
            let _client_is_gone = sender.send(results);
        };
        drop(self.app.runtime.spawn("batch group", work));
        let work = async move {
            let results = receiver.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the task failed".to_owned())));
            app.metrics.batch_lines.inc_by(entries.len() as u64);
            group_results(&app, entries, &reservations, results)
        };
        self.under_way.push_back(work.boxed());
    }
}

/// Parses and checks a line, and reserves its schedule.
async fn check(
    app: &AppState,
    tenant: &Tenant,
    text: &[u8],
    now: Timestamp,
) -> Result<(ParsedSchedule, Reservation), Rejected> {
    app.count_create(tenant)?;
    let parsed = read_schedule(text, None, &app.options.limits, &tenant.egress, now)?;
    let reservation = app.admit(tenant, None, &parsed.spec, now).await?;
    Ok((parsed, reservation))
}

fn group_results(
    app: &AppState,
    entries: Vec<Entry>,
    reservations: &[Reservation],
    results: Result<Vec<Result<Arc<Schedule>, CreateRejection>>, StoreError>,
) -> Bytes {
    let mut text = Vec::with_capacity(entries.len() * 256);
    let failed = results.as_ref().err().cloned();
    let results = results.unwrap_or_default();
    for (reservation, result) in reservations.iter().zip(&results) {
        app.pending.finish(reservation, may_exist(result));
    }
    let mut results = results.into_iter();
    for Entry { line, checked } in entries {
        let outcome = checked.and_then(|when| match (&failed, results.next()) {
            (None, Some(result)) => result.map_err(|rejection| reject_create(rejection, when)),
            (Some(error), _) => Err(error.clone().into()),
            (None, None) => unreachable!("the scheduler returns a result for every request of a call"),
        });
        match outcome {
            Ok(schedule) => {
                spans::record_batch_line(&schedule);
                write_line(&mut text, line, StatusCode::CREATED, Ok(&schedule));
            }
            Err(rejected) => {
                let status = rejected.status();
                write_line(&mut text, line, status, Err(rejected.into_problem(Some(app.request_id()))));
            }
        }
    }
    Bytes::from(text)
}

fn write_line(text: &mut Vec<u8>, line: u64, status: StatusCode, outcome: Result<&Schedule, api::Problem>) {
    let (schedule, problem) = match outcome {
        Ok(schedule) => (Some(wire::summary(schedule)), None),
        Err(problem) => (None, Some(problem)),
    };
    let line = BatchLine { line, status: status.as_u16(), schedule, problem };
    text.extend_from_slice(&to_json(&line));
    text.push(b'\n');
}
