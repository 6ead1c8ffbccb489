//! Rejections of requests, and their problem documents.
//!
//! docs/decisions/0062-choose-status-codes-by-cause.md gives the reasons for the design.

use std::borrow::Cow;
use std::fmt;

use api::{FieldError, PROBLEM_CONTENT_TYPE, Problem};
use axum::Extension;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use domain::Quota;
use store::StoreError;

/// Result of a handler.
pub(crate) type HandlerResult = Result<Response<Body>, Rejected>;

/// Rejection of a request. The `Box` reduces the size of [`HandlerResult`].
pub(crate) type Rejected = Box<Rejection>;

#[derive(Clone)]
pub(crate) struct Rejection {
    kind: Code,
    detail: String,
    errors: Vec<FieldError>,
    quota: Option<Quota>,
}

/// Problem codes of the API. docs/http-api.md contains the same list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    MalformedJson,
    NotUtf8,
    InvalidParameter,
    MissingCredentials,
    InvalidCredentials,
    RoleForbidden,
    QuotaExceeded,
    QuotaCeiling,
    RateExceeded,
    RouteNotFound,
    ScheduleNotFound,
    RunNotFound,
    TenantNotFound,
    KeyNotFound,
    MethodNotAllowed,
    BodyTimeout,
    BodyBroken,
    ScheduleExists,
    ScheduleOver,
    PreconditionFailed,
    IdempotencyKeyReused,
    TenantExists,
    LastOne,
    TooMany,
    NotDeadLetter,
    BodyTooLarge,
    BatchTooLong,
    UnsupportedMediaType,
    InvalidSchedule,
    InvalidRequest,
    Internal,
    StoreDamaged,
    StoreUnavailable,
    RunsNotIndexed,
    CoordinationUnavailable,
    StorageFull,
    Overloaded,
    Stopping,
}

impl Code {
    /// Returns the HTTP status, the text of the problem code, and the title of the problem.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Code::MalformedJson => (StatusCode::BAD_REQUEST, "malformed_json", "The body is not JSON"),
            Code::NotUtf8 => (StatusCode::BAD_REQUEST, "not_utf8", "The body is not UTF-8"),
            Code::InvalidParameter => (StatusCode::BAD_REQUEST, "invalid_parameter", "A parameter is invalid"),
            Code::MissingCredentials => (StatusCode::UNAUTHORIZED, "missing_credentials", "An API key is required"),
            Code::InvalidCredentials => (StatusCode::UNAUTHORIZED, "invalid_credentials", "The API key is invalid"),
            Code::RoleForbidden => {
                (StatusCode::FORBIDDEN, "role_forbidden", "The key's role does not allow this request")
            }
            Code::QuotaExceeded => {
                (StatusCode::FORBIDDEN, "quota_exceeded", "The tenant's quota does not allow this request")
            }
            Code::QuotaCeiling => {
                (StatusCode::FORBIDDEN, "quota_ceiling", "The request sets a quota above its ceiling")
            }
            Code::RateExceeded => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_exceeded",
                "The tenant sends more requests per second than its quota allows",
            ),
            Code::TenantNotFound => (StatusCode::NOT_FOUND, "tenant_not_found", "The tenant does not exist"),
            Code::KeyNotFound => (StatusCode::NOT_FOUND, "key_not_found", "The key or secret does not exist"),
            Code::TenantExists => (StatusCode::CONFLICT, "tenant_exists", "A tenant with this name exists"),
            Code::LastOne => (StatusCode::CONFLICT, "last_one", "A tenant's last key or secret cannot be removed"),
            Code::TooMany => (StatusCode::CONFLICT, "too_many", "The tenant has the maximum number of keys or secrets"),
            Code::InvalidRequest => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The body is invalid"),
            Code::RouteNotFound => (StatusCode::NOT_FOUND, "route_not_found", "The path does not exist"),
            Code::ScheduleNotFound => (StatusCode::NOT_FOUND, "schedule_not_found", "The schedule does not exist"),
            Code::RunNotFound => (StatusCode::NOT_FOUND, "run_not_found", "The run does not exist"),
            Code::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The path does not support this method")
            }
            Code::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time"),
            Code::BodyBroken => (StatusCode::BAD_REQUEST, "body_broken", "The body is incomplete"),
            Code::ScheduleExists => (StatusCode::CONFLICT, "schedule_exists", "A schedule with this id exists"),
            Code::ScheduleOver => (StatusCode::CONFLICT, "schedule_over", "The schedule is cancelled or has ended"),
            Code::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, "precondition_failed", "The schedule does not meet the precondition")
            }
            Code::IdempotencyKeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "The idempotency key was used for another request",
            ),
            Code::NotDeadLetter => (StatusCode::CONFLICT, "not_dead_letter", "The run is not a dead letter"),
            Code::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large"),
            Code::BatchTooLong => (StatusCode::PAYLOAD_TOO_LARGE, "batch_too_long", "The batch has too many lines"),
            Code::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "The body's media type or encoding is not supported",
            ),
            Code::InvalidSchedule => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_schedule", "The schedule is invalid"),
            Code::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed"),
            Code::StoreDamaged => (StatusCode::INTERNAL_SERVER_ERROR, "store_damaged", "Stored data is damaged"),
            Code::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "The store is unreachable")
            }
            Code::RunsNotIndexed => {
                (StatusCode::SERVICE_UNAVAILABLE, "runs_not_indexed", "The index of runs is incomplete")
            }
            Code::CoordinationUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "coordination_unavailable", "The coordination engine is unreachable")
            }
            Code::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage_full", "The server's disk is nearly full"),
            Code::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Clients have too many unread responses")
            }
            Code::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", "The server is about to stop"),
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        self.parts().0
    }

    pub(crate) fn code(self) -> &'static str {
        self.parts().1
    }

    pub(crate) fn title(self) -> &'static str {
        self.parts().2
    }

    /// Returns the number of seconds after which a client may send the request again.
    pub(crate) fn retry_after_secs(self) -> Option<&'static str> {
        match self {
            Code::StoreUnavailable | Code::CoordinationUnavailable | Code::RateExceeded | Code::Overloaded => Some("1"),
            Code::RunsNotIndexed => Some("10"),
            Code::StorageFull => Some("30"),
            _ => None,
        }
    }

    pub(crate) fn challenge(self) -> Option<&'static str> {
        match self {
            Code::MissingCredentials => Some("Bearer realm=\"reveille\""),
            Code::InvalidCredentials => Some("Bearer realm=\"reveille\", error=\"invalid_token\""),
            _ => None,
        }
    }
}

pub(crate) fn reject(kind: Code, detail: impl Into<String>) -> Rejected {
    reject_fields(kind, detail, Vec::new())
}

pub(crate) fn reject_fields(kind: Code, detail: impl Into<String>, errors: Vec<FieldError>) -> Rejected {
    Box::new(Rejection { kind, detail: detail.into(), errors, quota: None })
}

/// Rejects a request because of a quota of its tenant. The problem's detail contains the quota's name and number.
pub(crate) fn reject_quota(kind: Code, quota: Quota, number: u32, remedy: &str, errors: Vec<FieldError>) -> Rejected {
    let detail = format!("the tenant's `{}` is {number}; {remedy}", quota.name());
    Box::new(Rejection { kind, detail, errors, quota: Some(quota) })
}

/// Writes the errors as text for callers that cannot use a problem document.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errors.is_empty() {
            return f.write_str(&self.detail);
        }
        for (at, error) in self.errors.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", error.pointer.as_deref().unwrap_or(""), error.detail)?;
        }
        // The errors do not contain the name of the quota that the request exceeds.
        if self.quota.is_some() { write!(f, "; {}", self.detail) } else { Ok(()) }
    }
}

impl Rejection {
    pub(crate) fn code(&self) -> Code {
        self.kind
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.kind.parts().0
    }

    pub(crate) fn into_problem(self, request_id: Option<String>) -> Problem {
        let (status, code, title) = self.kind.parts();
        Problem {
            kind: Cow::Owned(format!("urn:reveille:problem:{code}")),
            title: Cow::Borrowed(title),
            status: status.as_u16(),
            code: Cow::Borrowed(code),
            detail: self.detail,
            request_id,
            quota: self.quota.map(|quota| Cow::Borrowed(quota.name())),
            errors: self.errors,
        }
    }

    pub(crate) fn into_problem_response(self, request_id: String) -> Response<Body> {
        let kind = self.kind;
        let status = self.status();
        let body = to_json(&self.into_problem(Some(request_id)));
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE));
        if let Some(seconds) = kind.retry_after_secs() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        if let Some(challenge) = kind.challenge() {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

/// Stores the rejection in an extension of the response. `AppState::respond`, which handles every response, then writes
/// the problem document.
impl IntoResponse for Rejected {
    fn into_response(self) -> Response<Body> {
        (self.status(), Extension(self)).into_response()
    }
}

/// Returns a value of a wire type as JSON text.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    let mut text = Vec::with_capacity(256);
    serde_json::to_writer(&mut text, value)
        .expect("all object keys of the value are strings, and a Vec accepts every write");
    text
}

impl From<StoreError> for Rejected {
    fn from(error: StoreError) -> Rejected {
        match &error {
            StoreError::Full(_) => reject(
                Code::StorageFull,
                "schedules cannot change until the server's disk has free space; the server still reads and fires them",
            ),
            StoreError::Unavailable(_) => {
                tracing::debug!(%error, "store unavailable");
                reject(Code::StoreUnavailable, "the request may or may not have taken effect; send it again")
            }
            StoreError::Unindexed(next_step) => reject(Code::RunsNotIndexed, next_step.clone()),
            StoreError::Damaged(_) => {
                tracing::error!(%error, "request failed because of damaged data");
                reject(
                    Code::StoreDamaged,
                    "the requested data is damaged; ask an operator to find its location in the server's log",
                )
            }
        }
    }
}
