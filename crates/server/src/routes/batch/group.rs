//! Group of a batch's lines, which share the scheduler's commits.

use std::sync::Arc;

use api::BatchLine;
use axum::http::StatusCode;
use bytes::Bytes;
use domain::{Schedule, Tenant};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{StreamExt, iter};
use scheduler::{Create, CreateRejection};
use store::StoreError;

use super::record::Record;
use crate::idempotency::Key;
use crate::quota::Reservation;
use crate::rejection::{Rejected, to_json};
use crate::routes::created::{reject_create, written};
use crate::routes::once::{self, Once};
use crate::spans;
use crate::state::AppState;
use crate::wire;

/// Number of concurrent writes of a group with an idempotency key. The store makes concurrent writes durable together.
const CONCURRENT: usize = 64;

/// Lines of a batch that the server has read but not yet sent to the scheduler.
#[derive(Default)]
pub(super) struct Group {
    pub(super) requests: Vec<Create>,
    /// Reservations of the requests in `requests`, in the same order.
    pub(super) reservations: Vec<Reservation>,
    pub(super) entries: Vec<Entry>,
}

/// One line of a group.
pub(super) struct Entry {
    pub(super) line: u64,
    pub(super) checked: Result<Checked, Rejected>,
}

pub(super) enum Checked {
    /// Valid line, whose request goes to the scheduler. The string is the JSON pointer to the line's timing field.
    Request(&'static str),
    /// Unparsed line of a batch with an idempotency key. The server parses the line only after it has looked for a
    /// schedule that an earlier batch with this key created.
    Text(Bytes),
}

type Outcome = Result<Once, Rejected>;

impl Group {
    /// Starts the group, and returns the result lines once every schedule is durable or rejected. A separate task does
    /// the work, because the work holds locks of the scheduler and must continue even if the caller does not poll the
    /// returned future.
    pub(super) fn start(
        self,
        app: Arc<AppState>,
        tenant: Arc<Tenant>,
        key: Option<Arc<Key>>,
        record: Arc<Record>,
    ) -> BoxFuture<'static, Bytes> {
        let outcomes = match key {
            Some(key) => self.create_once(app.clone(), tenant, key),
            None => self.create(app.clone()),
        };
        async move { result_lines(&app, &record, outcomes.await) }.boxed()
    }

    fn create(self, app: Arc<AppState>) -> BoxFuture<'static, Vec<(u64, Outcome)>> {
        let Group { requests, reservations, entries } = self;
        let scheduler = app.scheduler.clone();
        let results = app.runtime.detached("batch group", async move {
            if requests.is_empty() { Ok(Vec::new()) } else { scheduler.create(requests).await }
        });
        async move { outcomes(&app, entries, &reservations, results.await.unwrap_or_else(|| Err(failed()))) }.boxed()
    }

    /// Creates each schedule with a separate scheduler call, because the call that creates a whole group does not
    /// compare the fingerprints of the lines with those of existing schedules.
    fn create_once(
        self,
        app: Arc<AppState>,
        tenant: Arc<Tenant>,
        key: Arc<Key>,
    ) -> BoxFuture<'static, Vec<(u64, Outcome)>> {
        let numbers: Vec<u64> = self.entries.iter().map(|entry| entry.line).collect();
        let runtime = app.runtime.clone();
        let outcomes = runtime.detached("batch group", async move {
            let created = iter(self.entries).map(|Entry { line, checked }| {
                let (app, tenant, key) = (&app, &tenant, &key);
                async move {
                    let outcome = match checked {
                        Ok(Checked::Text(text)) => once::create_line(app, tenant, key, line, &text).await,
                        Ok(Checked::Request(_)) => unreachable!("the batch has an idempotency key"),
                        Err(rejected) => Err(rejected),
                    };
                    (line, outcome)
                }
            });
            created.buffered(CONCURRENT).collect().await
        });
        let failed = move || numbers.into_iter().map(|line| (line, Err(failed().into()))).collect();
        outcomes.map(|outcomes| outcomes.unwrap_or_else(failed)).boxed()
    }
}

fn failed() -> StoreError {
    StoreError::Unavailable("the task failed".to_owned())
}

fn outcomes(
    app: &AppState,
    entries: Vec<Entry>,
    reservations: &[Reservation],
    results: Result<Vec<Result<Arc<Schedule>, CreateRejection>>, StoreError>,
) -> Vec<(u64, Outcome)> {
    let failed = results.as_ref().err().cloned();
    let results = results.unwrap_or_default();
    for (reservation, result) in reservations.iter().zip(&results) {
        app.stored.finish(reservation, written(result, true));
    }
    let mut results = results.into_iter();
    let outcomes = entries.into_iter().map(|Entry { line, checked }| {
        let outcome = checked.and_then(|checked| match (checked, &failed, results.next()) {
            (Checked::Text(_), ..) => unreachable!("the batch has no idempotency key"),
            (Checked::Request(when), None, Some(result)) => {
                result.map(Once::Created).map_err(|rejection| reject_create(rejection, when, &app.scheduler))
            }
            (Checked::Request(_), Some(error), _) => Err(error.clone().into()),
            (Checked::Request(_), None, None) => {
                unreachable!("the scheduler returns a result for every request of a call")
            }
        });
        (line, outcome)
    });
    outcomes.collect()
}

fn result_lines(app: &AppState, record: &Record, outcomes: Vec<(u64, Outcome)>) -> Bytes {
    app.metrics.batch_lines.inc_by(outcomes.len() as u64);
    let mut text = Vec::with_capacity(outcomes.len() * 256);
    let mut counts = record.counts();
    for (line, outcome) in outcomes {
        let result = BatchLine { line, status: StatusCode::CREATED.as_u16(), ..BatchLine::default() };
        match outcome {
            Ok(Once::Created(schedule)) => {
                counts.created += 1;
                spans::record_batch_line(&schedule);
                write_line(&mut text, &BatchLine { schedule: Some(wire::summary(&schedule)), ..result });
            }
            Ok(Once::Replayed(first)) => {
                counts.replayed += 1;
                let schedule = Some(wire::summary(&first));
                write_line(&mut text, &BatchLine { schedule, replayed: true, ..result });
            }
            Err(rejected) => {
                counts.rejected += 1;
                let status = rejected.status().as_u16();
                let problem = Some(rejected.into_problem(Some(app.request_id())));
                write_line(&mut text, &BatchLine { status, problem, ..result });
            }
        }
    }
    Bytes::from(text)
}

fn write_line(text: &mut Vec<u8>, line: &BatchLine<'_>) {
    text.extend_from_slice(&to_json(line));
    text.push(b'\n');
}
