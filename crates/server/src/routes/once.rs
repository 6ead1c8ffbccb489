//! POST requests with an `Idempotency-Key`: single requests and batches. A client may repeat these requests.
//!
//! The key determines the schedule's id. The id is a digest of the tenant and the key, and in a batch also of the
//! line's number. Therefore all repetitions of a request, or of a line of a batch, go to one owner. This owner creates
//! a schedule only if the store contains no schedule with this id, not even a cancelled one. A fingerprint of the body
//! replaces some random bits of the incarnation, so that the server detects another body with the same key. The server
//! stores no state other than the schedule. The mechanism works on every engine, across crashes and hand-overs, while
//! the store retains the schedule. The server can compute the first response again from the body and the creation time.
//!
//! Invariant: at most one of the requests with one key creates a schedule until the store deletes this schedule. In a
//! batch, this holds for each line.
//!
//! docs/decisions/0067-derive-the-schedule-id-from-the-key.md gives the reasons for the design.

use std::sync::Arc;

use api::FieldError;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::{Incarnation, Revision, Schedule, ScheduleId, Status, Tenant, Timestamp, decide};
use scheduler::{Create, Timing};

use super::changes::{TRIES, others};
use super::created::{reject_create, schedule_response, timing_pointer, written};
use super::dry_run;
use crate::body::{read_again, read_schedule};
use crate::idempotency::{Key, fingerprint};
use crate::quota::{Reservation, Written};
use crate::rejection::{Code, HandlerResult, Rejected, reject, reject_fields};
use crate::spans;
use crate::state::AppState;
use crate::wire;

const REPLAYED: &str = "idempotent-replayed";

pub(super) async fn create(
    app: &AppState,
    tenant: Arc<Tenant>,
    key: &Key,
    body: &Bytes,
    is_dry_run: bool,
) -> HandlerResult {
    // The second id in the list is the id that earlier builds derived from the same key.
    let ids = [key.id(tenant.id), key.id_old(tenant.id)];
    if is_dry_run {
        return would_create(app, tenant, &ids, body).await;
    }
    match create_once(app, &tenant, &ids, body).await? {
        Once::Created(schedule) => {
            spans::record_schedule(&schedule);
            Ok(schedule_response(StatusCode::CREATED, &wire::summary(&schedule), schedule.edition()))
        }
        Once::Replayed(first) => Ok(replayed(&first)),
    }
}

/// Result of a request with an idempotency key.
pub(super) enum Once {
    Created(Arc<Schedule>),
    /// Schedule that an earlier request created, in the state after its creation.
    Replayed(Arc<Schedule>),
}

/// Creates the schedule in line `number` of a batch whose request has the idempotency key `key`.
pub(super) async fn create_line(
    app: &AppState,
    tenant: &Arc<Tenant>,
    key: &Key,
    number: u64,
    line: &[u8],
) -> Result<Once, Rejected> {
    create_once(app, tenant, &[key.id_of_line(tenant.id, number)], line).await
}

/// Creates a schedule with the first of `ids`, unless an earlier request created a schedule with one of them.
async fn create_once(app: &AppState, tenant: &Arc<Tenant>, ids: &[ScheduleId], body: &[u8]) -> Result<Once, Rejected> {
    let mut reservation = Reservation::default();
    for attempt in 0..TRIES {
        let first = find_first(app, tenant, ids, body).await;
        if !matches!(first, Ok(None)) {
            // Another request with this key may have created the schedule first.
            app.stored.finish(&reservation, Written::Nothing);
        }
        if let Some((found, first)) = first? {
            app.scheduler.confirm(found).await?;
            return Ok(Once::Replayed(Arc::new(first)));
        }
        if attempt == 0 {
            app.count_create(tenant)?;
        }
        let now = app.runtime.now();
        let request = request(app, tenant, &ids[0], body, now)?;
        if attempt == 0 {
            reservation = app.admit(tenant, None, &request.spec, now).await?;
        }
        let when = timing_pointer(&request);
        if let Some(response) = app.scheduler.put_if(request, None, Timing::Restarted).await? {
            app.stored.finish(&reservation, written(&response, true));
            let put = response.map_err(|rejection| reject_create(rejection, when, &app.scheduler))?;
            return Ok(Once::Created(put.schedule));
        }
    }
    Err(others())
}

async fn would_create(app: &AppState, tenant: Arc<Tenant>, ids: &[ScheduleId], body: &[u8]) -> HandlerResult {
    if let Some((_, first)) = find_first(app, &tenant, ids, body).await? {
        return dry_run::preview_of(StatusCode::CREATED, &first);
    }
    let now = app.runtime.now();
    let request = request(app, &tenant, &ids[0], body, now)?;
    let reservation = app.admit(&tenant, None, &request.spec, now).await?;
    app.stored.finish(&reservation, Written::Nothing);
    dry_run::preview(app, request, None, Timing::Restarted)
}

/// Returns the incarnation of the schedule that an earlier request with this body created, and the schedule in the
/// state after its creation.
async fn find_first(
    app: &AppState,
    tenant: &Tenant,
    ids: &[ScheduleId],
    body: &[u8],
) -> Result<Option<(Incarnation, Schedule)>, Rejected> {
    for id in ids {
        if let Some(found) = app.scheduler.get(tenant.id, id.clone()).await? {
            if found.incarnation.fingerprint() != fingerprint(body) {
                let detail = "the Idempotency-Key was used with another body; send a new key with each new request";
                return Err(reject(Code::IdempotencyKeyReused, detail));
            }
            return Ok(Some((found.incarnation, as_created(&found, body))));
        }
    }
    Ok(None)
}

fn request(
    app: &AppState,
    tenant: &Arc<Tenant>,
    id: &ScheduleId,
    body: &[u8],
    now: Timestamp,
) -> Result<Create, Rejected> {
    let parsed = read_schedule(body, None, &app.options.limits, &tenant.egress, now)?;
    if parsed.id.is_some() {
        return Err(id_and_key());
    }
    let incarnation = Incarnation::with_fingerprint(now, app.runtime.random_u128(), fingerprint(body));
    Ok(Create {
        tenant: tenant.clone(),
        id: Some(id.clone()),
        incarnation: Some(incarnation),
        spec: parsed.spec,
        by: None,
    })
}

fn id_and_key() -> Rejected {
    let error = FieldError {
        pointer: Some("/id".to_owned()),
        code: "conflicting_fields".into(),
        detail: "the body must not contain an id, because the server derives the id from the Idempotency-Key"
            .to_owned(),
        hint: Some(
            "omit the id or the Idempotency-Key; without the key, a POST with an existing id returns 409".to_owned(),
        ),
        ..FieldError::default()
    };
    reject_fields(Code::InvalidSchedule, "the body has 1 error; see the field `errors`", vec![error])
}

/// Returns the schedule in the state after its creation by a request with this body. `found` is its current state.
fn as_created(found: &Schedule, body: &[u8]) -> Schedule {
    let mut first = Schedule {
        revision: Revision::default(),
        status: Status::Active,
        updated_at: found.created_at,
        next: None,
        spec: read_again(body).unwrap_or_else(|| found.spec.clone()),
        ..found.clone()
    };
    first.next = decide::first(&first, found.created_at).map(|due| due.occurrence.nominal);
    first
}

/// Repeats the response to the request that created `first`.
fn replayed(first: &Schedule) -> Response<Body> {
    let mut response = schedule_response(StatusCode::CREATED, &wire::summary(first), first.edition());
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
