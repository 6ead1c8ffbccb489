//! Many schedules in one request: NDJSON in, NDJSON out, while both are under way.
//!
//! Lines go to the scheduler in groups, which share its commits; a few groups are under way at once, and their answers
//! leave in the order of the lines. What is held is bounded: the piece of the body being split, the groups under way
//! and their answers. A client that does not read its answers is not read from, either.
//!
//! Always true here: a line is answered once, after its schedule is durable or refused; a bad line hurts no other. No line is
//! taken with a key that is known to be revoked or to have expired: a batch may go on for days.

mod lines;

use std::sync::Arc;
use std::time::Duration;

use api::BatchLine;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::Schedule;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesOrdered, Stream, StreamExt, unfold};
use scheduler::{Create, CreateRefusal};
use store::StoreError;
use tokio::sync::oneshot;

use super::created::{may_be_made, never_fires, refuse_create};
use crate::answer;
use crate::auth::{self, Caller};
use crate::body::read_schedule;
use crate::extract::check_content_type;
use crate::quota::Room;
use crate::refusal::{Answered, Code, Refused, refuse, to_json};
use crate::spans;
use crate::state::{App, AppState};
use lines::{Line, Lines};

const NDJSON: &[&str] = &[api::NDJSON_CONTENT_TYPE, "application/ndjson", "application/jsonl"];

pub(super) async fn batch(State(app): App, caller: Caller, request: Request) -> Answered {
    let (head, body) = request.into_parts();
    check_content_type(&head.headers, NDJSON)?;
    let lines = Lines::new(body, app.options.body_bytes_max);
    let batch = Batch { app, caller, lines, group: Group::default(), under_way: FuturesOrdered::new() };
    let mut response = Response::new(Body::from_stream(batch.into_stream()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON_CONTENT_TYPE));
    Ok(response)
}

/// Lines read before all else that this thread has to do gets its turn, sockets included. An executor counts turns, not
/// time: with a whole group in each, single requests and callbacks would wait behind dozens of groups.
const LINES_PER_TURN: u64 = 32;

/// How long the server reads and discards the rest of a body after the last answer.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

struct Batch {
    app: Arc<AppState>,
    /// Who sends it, as last looked up.
    caller: Caller,
    lines: Lines,
    /// Lines that were read and not sent to the scheduler yet.
    group: Group,
    under_way: FuturesOrdered<BoxFuture<'static, Bytes>>,
}

#[derive(Default)]
struct Group {
    requests: Vec<Create>,
    /// What each of these requests has taken.
    rooms: Vec<Room>,
    entries: Vec<Entry>,
}

/// One line of a group.
struct Entry {
    line: u64,
    /// The field that says when, for a request that goes to the scheduler; or the line's refusal.
    checked: Result<&'static str, Refused>,
}

impl Batch {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static {
        unfold(self, |mut batch| async move { batch.next().await.map(|answers| (Ok(answers), batch)) })
    }

    /// The answers of the next group; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.take_lines().await;
            let is_room = self.under_way.len() < self.app.options.batch_groups_max;
            if is_room && self.is_group_ready() {
                self.start_group();
                continue;
            }
            if !is_room {
                return self.under_way.next().await;
            }
            if self.lines.is_at_end() {
                let answers = self.under_way.next().await;
                if answers.is_none() {
                    self.app.runtime.timeout(DISCARD_TIME_MAX, self.lines.discard_rest()).await;
                }
                return answers;
            }
            if self.under_way.is_empty() {
                // Nothing to do but to read; what has come so far does not wait for more.
                if !self.lines.fill_at_once().await && self.group.entries.is_empty() {
                    let limit = self.app.options.body_timeout;
                    let filled = self.app.runtime.timeout(limit, self.lines.fill()).await;
                    if filled.is_none() {
                        self.lines.stop(crate::body::collect::late(&self.app));
                    }
                } else if !self.group.entries.is_empty() {
                    self.take_lines().await;
                    self.start_group();
                }
                continue;
            }
            let (lines, under_way) = (&mut self.lines, &mut self.under_way);
            futures_util::select_biased! {
                answers = under_way.next().fuse() => return answers,
                () = lines.fill().fuse() => {}
            }
        }
    }

    /// Lines wait for a full group while there is nothing to gain from sending fewer.
    fn is_group_ready(&self) -> bool {
        let lines = self.group.entries.len();
        lines >= self.app.options.batch_group_lines || (lines > 0 && self.lines.is_at_end())
    }

    async fn take_lines(&mut self) {
        match auth::again(&self.app, &self.caller.key) {
            Ok(caller) => self.caller = caller,
            Err(refused) if !self.lines.is_at_end() => self.lines.stop(refused),
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
                    let detail =
                        format!("a batch has at most {lines_max} lines; send the rest, from here on, in another");
                    Err(refuse(Code::BatchTooLong, detail))
                }
                Line::Text(text) => {
                    let (limits, egress) = (&self.app.options.limits, &self.caller.tenant.egress);
                    match read_schedule(&text, None, limits, egress, now) {
                        Ok(wanted) => {
                            let admitted = self.app.admit(&self.caller.tenant, None, &wanted.spec, now).await;
                            admitted.map(|room| (wanted, room))
                        }
                        Err(refused) => Err(refused),
                    }
                }
                Line::Refused(refused) => Err(refused),
            };
            let checked = checked.map(|(wanted, room)| {
                let request =
                    Create { tenant: self.caller.tenant.clone(), id: wanted.id, incarnation: None, spec: wanted.spec };
                let when = never_fires(&request);
                self.group.requests.push(request);
                self.group.rooms.push(room);
                when
            });
            self.group.entries.push(Entry { line: number, checked });
        }
    }

    fn start_group(&mut self) {
        let Group { requests, rooms, entries } = std::mem::take(&mut self.group);
        let app = self.app.clone();
        // A task of its own, because this stream stands still while its client does not read: what the scheduler
        // holds for a call must not wait for that.
        let (answer, answers) = oneshot::channel();
        let scheduler = app.scheduler.clone();
        let work = async move {
            let answers = if requests.is_empty() { Ok(Vec::new()) } else { scheduler.create(requests).await };
            let _client_is_gone = answer.send(answers);
        };
        drop(self.app.runtime.spawn("batch group", work));
        let work = async move {
            let answers = answers.await.unwrap_or_else(|_| Err(StoreError::Unavailable("a task failed".to_owned())));
            app.metrics.batch_lines.inc_by(entries.len() as u64);
            answer_group(&app, entries, &rooms, answers)
        };
        self.under_way.push_back(work.boxed());
    }
}

fn answer_group(
    app: &AppState,
    entries: Vec<Entry>,
    rooms: &[Room],
    answers: Result<Vec<Result<Arc<Schedule>, CreateRefusal>>, StoreError>,
) -> Bytes {
    let mut text = Vec::with_capacity(entries.len() * 256);
    let failed = answers.as_ref().err().cloned();
    let answers = answers.unwrap_or_default();
    for (room, answer) in rooms.iter().zip(&answers) {
        app.pending.settle(room, may_be_made(answer));
    }
    let mut answers = answers.into_iter();
    for Entry { line, checked } in entries {
        let outcome = checked.and_then(|when| match (&failed, answers.next()) {
            (None, Some(answer)) => answer.map_err(|refusal| refuse_create(refusal, when)),
            (Some(error), _) => Err(error.clone().into()),
            (None, None) => unreachable!("the scheduler answers every request of a call"),
        });
        match outcome {
            Ok(schedule) => {
                spans::made_in_batch(&schedule);
                write_line(&mut text, line, StatusCode::CREATED, Ok(&schedule));
            }
            Err(refused) => {
                let status = refused.status();
                write_line(&mut text, line, status, Err(refused.into_problem(Some(app.request_id()))));
            }
        }
    }
    Bytes::from(text)
}

fn write_line(text: &mut Vec<u8>, line: u64, status: StatusCode, outcome: Result<&Schedule, api::Problem>) {
    let (schedule, problem) = match outcome {
        Ok(schedule) => (Some(answer::summary(schedule)), None),
        Err(problem) => (None, Some(problem)),
    };
    let line = BatchLine { line, status: status.as_u16(), schedule, problem };
    text.extend_from_slice(&to_json(&line));
    text.push(b'\n');
}
