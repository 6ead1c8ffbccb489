//! A POST that may be sent again: `Idempotency-Key`.
//!
//! The key names the schedule. Its id is made from tenant and key, so that all requests with one key come to one owner, and it
//! is put only where no schedule ever was. What tells one body from another is in the incarnation, in the place of some of its
//! chance. So nothing is kept but the schedule itself, on every engine, through crashes and hand-overs, and as long as it can be
//! read; and the first answer follows from the body and from when the schedule was made.
//!
//! Always true here: of the requests with one key one makes a schedule, whatever becomes of it, until it is forgotten.

use std::sync::Arc;

use api::FieldError;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::{Incarnation, Revision, Schedule, Status, Tenant, decide};
use scheduler::{Create, Timing};

use super::changes::{TRIES, others, put_answer};
use super::created::{made, may_be_made, never_fires};
use super::dry_run;
use crate::answer;
use crate::body::{read_again, read_schedule};
use crate::idempotency::{Key, fingerprint};
use crate::quota::Room;
use crate::refusal::{Answered, Code, Refused, refuse, refuse_fields};
use crate::state::AppState;

const REPLAYED: &str = "idempotent-replayed";

pub(super) async fn create(app: &AppState, tenant: Arc<Tenant>, key: &Key, body: &Bytes, is_dry_run: bool) -> Answered {
    let (id, fingerprint) = (key.id(tenant.id), fingerprint(body));
    let mut room = Room::default();
    for attempt in 0..TRIES {
        if let Some(found) = app.scheduler.get(tenant.id, id.clone()).await? {
            // Another with this key may have been faster.
            app.pending.settle(&room, false);
            if found.incarnation.fingerprint() != fingerprint {
                let detail = "this key came with another body before; send a new key with each new request";
                return Err(refuse(Code::IdempotencyKeyReused, detail));
            }
            let first = as_made(&found, body);
            if is_dry_run {
                return dry_run::told(StatusCode::CREATED, &first);
            }
            app.scheduler.confirm(found.incarnation).await?;
            return Ok(replayed(&first));
        }
        let now = app.runtime.now();
        let wanted = read_schedule(body, None, &app.options.limits, &tenant.egress, now)?;
        if wanted.id.is_some() {
            return Err(id_and_key());
        }
        if attempt == 0 {
            room = app.admit(&tenant, None, &wanted.spec, now).await?;
        }
        let incarnation = Incarnation::with_fingerprint(now, app.runtime.random_u128(), fingerprint);
        let (tenant, id) = (tenant.clone(), Some(id.clone()));
        let request = Create { tenant, id, incarnation: Some(incarnation), spec: wanted.spec };
        if is_dry_run {
            app.pending.settle(&room, false);
            return dry_run::answer(app, request, None, Timing::Anew);
        }
        let when = never_fires(&request);
        if let Some(answer) = app.scheduler.put_if(request, None, Timing::Anew).await? {
            app.pending.settle(&room, may_be_made(&answer));
            return put_answer(answer, when);
        }
    }
    Err(others())
}

fn id_and_key() -> Refused {
    let error = FieldError {
        pointer: Some("/id".to_owned()),
        code: "conflicting_fields".into(),
        detail: "an Idempotency-Key names the schedule, too".to_owned(),
        hint: Some("send it without the key: a POST of an id that exists is answered 409".to_owned()),
        ..FieldError::default()
    };
    refuse_fields(Code::InvalidSchedule, "one thing is wrong with the body; see errors", vec![error])
}

/// What the request with this body made, whatever has become of it in `found`.
fn as_made(found: &Schedule, body: &[u8]) -> Schedule {
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

/// What the request that made `first` was answered.
fn replayed(first: &Schedule) -> Response<Body> {
    let mut response = made(StatusCode::CREATED, &answer::summary(first), first.edition());
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
