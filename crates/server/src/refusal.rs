//! Refusals on their way to a problem document.

use std::borrow::Cow;
use std::fmt;

use api::{FieldError, PROBLEM_CONTENT_TYPE, Problem};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use domain::Quota;
use store::StoreError;

/// A request that is not granted, and why. Boxed, so that the good case carries no weight.
pub(crate) type Refused = Box<Refusal>;

pub(crate) struct Refusal {
    kind: Kind,
    detail: String,
    errors: Vec<FieldError>,
    quota: Option<Quota>,
}

/// Every code that the API knows; docs/http-api.md has the same list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
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

impl Kind {
    /// Status, code, title.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Kind::MalformedJson => (StatusCode::BAD_REQUEST, "malformed_json", "The body is not JSON"),
            Kind::NotUtf8 => (StatusCode::BAD_REQUEST, "not_utf8", "The body is not UTF-8"),
            Kind::InvalidParameter => (StatusCode::BAD_REQUEST, "invalid_parameter", "A parameter cannot be used"),
            Kind::MissingCredentials => (StatusCode::UNAUTHORIZED, "missing_credentials", "An API key is needed"),
            Kind::InvalidCredentials => (StatusCode::UNAUTHORIZED, "invalid_credentials", "The API key is not known"),
            Kind::RoleForbidden => (StatusCode::FORBIDDEN, "role_forbidden", "The key's role does not allow this"),
            Kind::QuotaExceeded => (StatusCode::FORBIDDEN, "quota_exceeded", "The tenant's quota does not allow this"),
            Kind::QuotaCeiling => (StatusCode::FORBIDDEN, "quota_ceiling", "A quota would be above its ceiling"),
            Kind::RateExceeded => (StatusCode::TOO_MANY_REQUESTS, "rate_exceeded", "The tenant asks too often"),
            Kind::TenantNotFound => (StatusCode::NOT_FOUND, "tenant_not_found", "There is no such tenant"),
            Kind::KeyNotFound => (StatusCode::NOT_FOUND, "key_not_found", "There is no such key or secret"),
            Kind::TenantExists => (StatusCode::CONFLICT, "tenant_exists", "A tenant of this name exists"),
            Kind::LastOne => (StatusCode::CONFLICT, "last_one", "The last one has to stay"),
            Kind::TooMany => (StatusCode::CONFLICT, "too_many", "There are as many as there may be"),
            Kind::InvalidRequest => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The body does not say what is needed")
            }
            Kind::RouteNotFound => (StatusCode::NOT_FOUND, "route_not_found", "There is nothing at this path"),
            Kind::ScheduleNotFound => (StatusCode::NOT_FOUND, "schedule_not_found", "There is no such schedule"),
            Kind::RunNotFound => (StatusCode::NOT_FOUND, "run_not_found", "There is no such run"),
            Kind::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "The path does not take this method")
            }
            Kind::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time"),
            Kind::BodyBroken => (StatusCode::BAD_REQUEST, "body_broken", "The body broke off"),
            Kind::ScheduleExists => (StatusCode::CONFLICT, "schedule_exists", "A schedule of this id exists"),
            Kind::ScheduleOver => (StatusCode::CONFLICT, "schedule_over", "The schedule is over"),
            Kind::PreconditionFailed => (
                StatusCode::PRECONDITION_FAILED,
                "precondition_failed",
                "What is there is not what the request wants to find",
            ),
            Kind::IdempotencyKeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "The idempotency key came with another request before",
            ),
            Kind::NotDeadLetter => (StatusCode::CONFLICT, "not_dead_letter", "The run is not a dead letter"),
            Kind::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large"),
            Kind::BatchTooLong => (StatusCode::PAYLOAD_TOO_LARGE, "batch_too_long", "The batch has too many lines"),
            Kind::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "The body's media type is not taken")
            }
            Kind::InvalidSchedule => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_schedule", "The schedule cannot be kept as it is")
            }
            Kind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed"),
            Kind::StoreDamaged => (StatusCode::INTERNAL_SERVER_ERROR, "store_damaged", "Stored data is damaged"),
            Kind::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "The store cannot be reached")
            }
            Kind::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, "storage_full", "The server's disk is nearly full"),
            Kind::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", "The server is about to stop"),
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
            Kind::StoreUnavailable | Kind::RateExceeded => Some("1"),
            Kind::StorageFull => Some("30"),
            _ => None,
        }
    }

    pub(crate) fn challenge(self) -> Option<&'static str> {
        match self {
            Kind::MissingCredentials => Some("Bearer realm=\"reveille\""),
            Kind::InvalidCredentials => Some("Bearer realm=\"reveille\", error=\"invalid_token\""),
            _ => None,
        }
    }
}

pub(crate) fn refuse(kind: Kind, detail: impl Into<String>) -> Refused {
    refuse_fields(kind, detail, Vec::new())
}

pub(crate) fn refuse_fields(kind: Kind, detail: impl Into<String>, errors: Vec<FieldError>) -> Refused {
    Box::new(Refusal { kind, detail: detail.into(), errors, quota: None })
}

/// About one of the tenant's quotas; the detail begins with its name and number.
pub(crate) fn refuse_quota(
    kind: Kind,
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

    pub(crate) fn into_response(self, request_id: String) -> Response<Body> {
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
                Kind::StorageFull,
                "schedules are neither made nor changed until there is space; reading and firing go on",
            ),
            StoreError::Unavailable(_) => {
                tracing::debug!(%error, "the store is unavailable");
                refuse(Kind::StoreUnavailable, "nothing is known of whether this request took effect; send it again")
            }
            StoreError::Damaged(_) => {
                tracing::error!(%error, "a request met damaged data");
                refuse(Kind::StoreDamaged, "what was asked for cannot be read; the server's log names the place")
            }
        }
    }
}
