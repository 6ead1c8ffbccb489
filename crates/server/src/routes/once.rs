//! POST requests with an `Idempotency-Key`, which a client may repeat.
//!
//! The key determines the schedule's id: the id is a digest of tenant and key. Therefore all requests with one key go
//! to one owner, which creates a schedule only if no schedule with this id ever existed. A fingerprint of the body
//! replaces some random bits of the incarnation, so that the owner detects another body with the same key. The server
//! stores no state other than the schedule. The mechanism works on every engine, across crashes and hand-overs, while
//! the store retains the schedule. The server can compute the first response again from the body and the creation time.
//!
//! Invariant: of all requests with one key, exactly one creates a schedule until the store deletes this schedule.
//!
//! docs/decisions/0067-derive-the-schedule-id-from-the-key.md gives the reasons for the design.

use std::sync::Arc;

use api::FieldError;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::{Incarnation, Revision, Schedule, Status, Tenant, decide};
use scheduler::{Create, Timing};

use super::changes::{TRIES, others, put_response};
use super::created::{may_exist, schedule_response, timing_pointer};
use super::dry_run;
use crate::body::{read_again, read_schedule};
use crate::idempotency::{Key, fingerprint};
use crate::quota::Reservation;
use crate::rejection::{Code, HandlerResult, Rejected, reject, reject_fields};
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
    let (id, fingerprint) = (key.id(tenant.id), fingerprint(body));
    let mut reservation = Reservation::default();
    for attempt in 0..TRIES {
        if let Some(found) = find(app, &tenant, key).await? {
            // Another request with this key may have created the schedule first.
            app.pending.finish(&reservation, false);
            if found.incarnation.fingerprint() != fingerprint {
                let detail = "the key was used with another body; send a new key with each new request";
                return Err(reject(Code::IdempotencyKeyReused, detail));
            }
            let first = as_created(&found, body);
            if is_dry_run {
                return dry_run::preview_of(StatusCode::CREATED, &first);
            }
            app.scheduler.confirm(found.incarnation).await?;
            return Ok(replayed(&first));
        }
        if attempt == 0 {
            app.count_create(&tenant)?;
        }
        let now = app.runtime.now();
        let parsed = read_schedule(body, None, &app.options.limits, &tenant.egress, now)?;
        if parsed.id.is_some() {
            return Err(id_and_key());
        }
        if attempt == 0 {
            reservation = app.admit(&tenant, None, &parsed.spec, now).await?;
        }
        let incarnation = Incarnation::with_fingerprint(now, app.runtime.random_u128(), fingerprint);
        let (tenant, id) = (tenant.clone(), Some(id.clone()));
        let request = Create { tenant, id, incarnation: Some(incarnation), spec: parsed.spec };
        if is_dry_run {
            app.pending.finish(&reservation, false);
            return dry_run::preview(app, request, None, Timing::Restarted);
        }
        let when = timing_pointer(&request);
        if let Some(response) = app.scheduler.put_if(request, None, Timing::Restarted).await? {
            app.pending.finish(&reservation, may_exist(&response));
            return put_response(response, when);
        }
    }
    Err(others())
}

/// Returns the schedule that a request with this key created, in this build or in an earlier one.
async fn find(app: &AppState, tenant: &Tenant, key: &Key) -> Result<Option<Arc<Schedule>>, Rejected> {
    let found = app.scheduler.get(tenant.id, key.id(tenant.id)).await?;
    match found {
        Some(found) => Ok(Some(found)),
        None => Ok(app.scheduler.get(tenant.id, key.id_old(tenant.id)).await?),
    }
}

fn id_and_key() -> Rejected {
    let error = FieldError {
        pointer: Some("/id".to_owned()),
        code: "conflicting_fields".into(),
        detail: "an Idempotency-Key determines the id".to_owned(),
        hint: Some("send the request without the key; a POST of an existing id returns 409".to_owned()),
        ..FieldError::default()
    };
    reject_fields(Code::InvalidSchedule, "the body has 1 error; see errors", vec![error])
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
