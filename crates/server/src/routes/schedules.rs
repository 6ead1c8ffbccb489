//! One schedule at a time.

use api::{FieldError, ScheduleSummary};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use domain::{Edition, Role, Schedule, ScheduleId, Status, When};
use scheduler::{Create, CreateRefusal, Timing};

use super::{check_content_type, dry_run, once};
use crate::answer;
use crate::auth::authenticate;
use crate::body::collect::collect;
use crate::body::read_schedule;
use crate::condition::{Condition, Unmet, with_etag};
use crate::refusal::{Kind, Refused, refuse, refuse_fields};
use crate::shared::Shared;
use crate::spans;

pub(super) const JSON: &[&str] = &["application/json"];

pub(super) async fn create(shared: &Shared, request: Request) -> Result<Response<Body>, Refused> {
    let (head, body) = request.into_parts();
    spans::caller(&head.headers);
    let tenant = authenticate(shared, &head.headers, Role::Writer)?.tenant;
    check_content_type(&head.headers, JSON)?;
    let is_dry_run = dry_run::is_asked(head.uri.query())?;
    let key = once::Key::read(&head.headers)?;
    let bytes = collect(shared, &head.headers, body).await?;
    if let Some(key) = key {
        return Box::pin(once::create(shared, tenant, &key, &bytes, is_dry_run)).await;
    }
    let now = shared.runtime.now();
    let wanted = read_schedule(&bytes, None, &shared.options.limits, &tenant.egress, now)?;
    let room = shared.admit(&tenant, None, &wanted.spec, now).await?;
    let request = Create { tenant, id: wanted.id, incarnation: None, spec: wanted.spec };
    let when = never_fires(&request);
    if is_dry_run {
        shared.pending.settle(&room, false);
        return would_create(shared, request).await;
    }
    let answers = shared.scheduler.create(vec![request]).await?;
    let answer = answers.into_iter().next().expect("the scheduler answers every request of a call");
    shared.pending.settle(&room, may_be_made(&answer));
    let schedule = answer.map_err(|refusal| refuse_create(refusal, when))?;
    spans::made(&schedule);
    Ok(made(StatusCode::CREATED, &answer::summary(&schedule), schedule.edition()))
}

async fn would_create(shared: &Shared, request: Create) -> Result<Response<Body>, Refused> {
    let existing = match &request.id {
        Some(id) => shared.scheduler.get(request.tenant.id, id.clone()).await?,
        None => None,
    };
    if existing.as_ref().is_some_and(|existing| existing.status != Status::Cancelled) {
        return Err(refuse_create(CreateRefusal::Exists, never_fires(&request)));
    }
    dry_run::answer(shared, request, existing.as_deref(), Timing::Anew)
}

pub(super) fn made(status: StatusCode, summary: &ScheduleSummary<'_>, edition: Edition) -> Response<Body> {
    let mut response = with_etag(answer::json(status, summary), edition);
    if status == StatusCode::CREATED {
        let place = format!("/v1/schedules/{}", summary.id);
        if let Ok(place) = HeaderValue::try_from(place) {
            response.headers_mut().insert(LOCATION, place);
        }
    }
    response
}

/// The field to blame if this schedule turns out never to fire.
pub(super) fn never_fires(request: &Create) -> &'static str {
    match request.spec.when {
        When::At(_) => "/at",
        When::Cron(_) => "/cron",
        When::Every(_) => "/every",
    }
}

/// Whether there may be one schedule more.
pub(super) fn may_be_made<T>(answer: &Result<T, CreateRefusal>) -> bool {
    !matches!(answer, Err(CreateRefusal::Exists | CreateRefusal::NeverFires))
}

pub(super) fn refuse_create(refusal: CreateRefusal, when: &'static str) -> Refused {
    match refusal {
        CreateRefusal::Exists => {
            refuse(Kind::ScheduleExists, "choose another id, or replace the schedule with PUT /v1/schedules/{id}")
        }
        CreateRefusal::Unreachable => {
            refuse(Kind::StoreUnavailable, "nothing is known of whether this request took effect; send it again")
        }
        CreateRefusal::NeverFires => {
            let error = FieldError {
                pointer: Some(when.to_owned()),
                code: "never_fires".into(),
                detail: "it names no instant that is still to come".into(),
                ..FieldError::default()
            };
            refuse_fields(Kind::InvalidSchedule, "the schedule would never fire", vec![error])
        }
    }
}

pub(super) async fn get(shared: &Shared, id: &str, headers: &HeaderMap) -> Result<Response<Body>, Refused> {
    let tenant = authenticate(shared, headers, Role::Reader)?.tenant;
    let id = find_id(id)?;
    let condition = Condition::read(headers)?;
    let found = shared.scheduler.get(tenant.id, id).await?.ok_or_else(not_found)?;
    let response = match condition.check(Some(&found)) {
        Ok(()) => answer::json(StatusCode::OK, &shown(&found)?),
        Err(Unmet::Match) => return Err(Unmet::Match.refuse()),
        Err(Unmet::NoneMatch) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
    };
    // No cache in between may ask with the tag by itself: whether it is the same edition is not all that a reader may want.
    Ok(no_store(with_etag(response, found.edition())))
}

pub(super) fn shown(schedule: &Schedule) -> Result<api::Schedule, Refused> {
    answer::schedule(schedule)
        .ok_or_else(|| refuse(Kind::StoreDamaged, "the payload that is stored is not the one that was sent"))
}

fn no_store(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The id in a path; one that cannot be is simply not there.
pub(super) fn find_id(id: &str) -> Result<ScheduleId, Refused> {
    ScheduleId::new(id).map_err(|_| not_found())
}

pub(super) fn not_found() -> Refused {
    refuse(Kind::ScheduleNotFound, "no schedule of your tenant has this id")
}
