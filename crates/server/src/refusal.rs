//! Refusals on their way to a problem document.

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

/// What a handler makes of a request.
pub(crate) type Answered = Result<Response<Body>, Refused>;

/// A request that is not granted, and why. Boxed, so that the good case carries no weight.
pub(crate) type Refused = Box<Refusal>;

#[derive(Clone)]
pub(crate) struct Refusal {
    kind: Code,
    detail: String,
    errors: Vec<FieldError>,
    quota: Option<Quota>,
}

/// Every code that the API knows; docs/http-api.md has the same list.
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
    StorageFull,
    Stopping,
}

impl Code {
    /// Status, code, title.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Code::MalformedJson => (StatusCode::BAD_REQUEST, "malformed_json", "The body is not JSON"),
            Code::NotUtf8 => (StatusCode::BAD_REQUEST, "not_utf8", "The body is not UTF-8"),
            Code::InvalidParameter => (StatusCode::BAD_REQUEST, "invalid_parameter", "A parameter cannot be used"),
            Code::MissingCredentials => (StatusCode::UNAUTHORIZED, "missing_credentials", "An API key is needed"),
            Code::InvalidCredentials => (StatusCode::UNAUTHORIZED, "invalid_credentials", "The API key is not known"),
            Code::RoleForbidden => (StatusCode::FORBIDDEN, "role_forbidden", "The key's role does not allow this"),
            Code::QuotaExceeded => (StatusCode::FORBIDDEN, "quota_exceeded", "The tenant's quota does not allow this"),
            Code::QuotaCeiling => (StatusCode::FORBIDDEN, "quota_ceiling", "A quota would be above its ceiling"),
            Code::RateExceeded => (StatusCode::TOO_MANY_REQUESTS, "rate_exceeded", "The tenant asks too often"),
            Code::TenantNotFound => (StatusCode::NOT_FOUND, "tenant_not_found", "There is no such tenant"),
            Code::KeyNotFound => (StatusCode::NOT_FOUND, "key_not_found", "There is no such key or secret"),
            Code::TenantExists => (StatusCode::CONFLICT, "tenant_exists", "A tenant of this name exists"),
            Code::LastOne => (StatusCode::CONFLICT, "last_one", "The last one has to stay"),
            Code::TooMany => (StatusCode::CONFLICT, "too_many", "There are as many as there may be"),
            Code::InvalidRequest => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The body does not say what is needed")
            }
            Code::RouteNotFound => (StatusCode::NOT_FOUND, "route_not_found", "There is nothing at this path"),
            Code::ScheduleNotFound => (StatusCode::NOT_FOUND, "schedule_not_found", "There is no such schedule"),
            Code::RunNotFound => (StatusCode::NOT_FOUND, "run_not_found", "There is no such run"),
            Code::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The path does not take this method")
            }
            Code::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time"),
            Code::BodyBroken => (StatusCode::BAD_REQUEST, "body_broken", "The body broke off"),
            Code::ScheduleExists => (StatusCode::CONFLICT, "schedule_exists", "A schedule of this id exists"),
            Code::ScheduleOver => (StatusCode::CONFLICT, "schedule_over", "The schedule is over"),
            Code::PreconditionFailed => (
                StatusCode::PRECONDITION_FAILED,
                "precondition_failed",
                "What is there is not what the request wants to find",
            ),
            Code::IdempotencyKeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "The idempotency key came with another request before",
            ),
            Code::NotDeadLetter => (StatusCode::CONFLICT, "not_dead_letter", "The run is not a dead letter"),
            Code::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large"),
            Code::BatchTooLong => (StatusCode::PAYLOAD_TOO_LARGE, "batch_too_long", "The batch has too many lines"),
            Code::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "The body's media type is not taken")
            }
            Code::InvalidSchedule => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_schedule", "The schedule cannot be kept as it is")
            }
            Code::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed"),
            Code::StoreDamaged => (StatusCode::INTERNAL_SERVER_ERROR, "store_damaged", "Stored data is damaged"),
            Code::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "The store cannot be reached")
            }
            Code::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage_full", "The server's disk is nearly full"),
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

    /// After how many seconds the same request may go through.
    pub(crate) fn retry_after_secs(self) -> Option<&'static str> {
        match self {
            Code::StoreUnavailable | Code::RateExceeded => Some("1"),
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

pub(crate) fn refuse(kind: Code, detail: impl Into<String>) -> Refused {
    refuse_fields(kind, detail, Vec::new())
}

pub(crate) fn refuse_fields(kind: Code, detail: impl Into<String>, errors: Vec<FieldError>) -> Refused {
    Box::new(Refusal { kind, detail: detail.into(), errors, quota: None })
}

/// About one of the tenant's quotas; the detail begins with its name and number.
pub(crate) fn refuse_quota(
    kind: Code,
    quota: Quota,
    number: u32,
    what_to_do: &str,
    errors: Vec<FieldError>,
) -> Refused {
    let detail = format!("the tenant's `{}` is {number}; {what_to_do}", quota.name());
    Box::new(Refusal { kind, detail, errors, quota: Some(quota) })
}

/// In words, for one who does not read problem documents.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errors.is_empty() {
            return f.write_str(&self.detail);
        }
        for (at, error) in self.errors.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", error.pointer.as_deref().unwrap_or(""), error.detail)?;
        }
        Ok(())
    }
}

impl Refusal {
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

/// The refusal leaves in an extension: `AppState::respond`, which every response passes, writes the problem document.
impl IntoResponse for Refused {
    fn into_response(self) -> Response<Body> {
        (self.status(), Extension(self)).into_response()
    }
}

/// The JSON text of a wire type.
pub(crate) fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    let mut text = Vec::with_capacity(256);
    serde_json::to_writer(&mut text, value).expect("wire types have text keys, and a Vec takes every write");
    text
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        match &error {
            StoreError::Full(_) => refuse(
                Code::StorageFull,
                "schedules are neither made nor changed until there is space; reading and firing go on",
            ),
            StoreError::Unavailable(_) => {
                tracing::debug!(%error, "the store is unavailable");
                refuse(Code::StoreUnavailable, "nothing is known of whether this request took effect; send it again")
            }
            StoreError::Damaged(_) => {
                tracing::error!(%error, "a request met damaged data");
                refuse(Code::StoreDamaged, "what was asked for cannot be read; the server's log names the place")
            }
        }
    }
}
