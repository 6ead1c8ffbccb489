//! Extractors: the parts of a request that several handlers take. They run in the order of a handler's arguments, and the first
//! that rejects the request decides the answer.

use std::sync::Arc;

use api::FieldError;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use bytes::Bytes;
use domain::ScheduleId;
use serde::de::DeserializeOwned;

use crate::body::collect::collect;
use crate::refusal::{Code, Refused, refuse, refuse_fields};
use crate::route::Body;
use crate::state::AppState;

/// A parameter of the path. One that is not UTF-8 names nothing, as the empty text.
pub(crate) async fn path_parameter(parts: &mut Parts, name: &str) -> String {
    let Ok(parameters) = RawPathParams::from_request_parts(parts, &()).await else { return String::new() };
    parameters.iter().find(|(known, _)| *known == name).map_or_else(String::new, |(_, value)| value.to_owned())
}

/// The id in the path.
pub(crate) struct Id(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Id {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        Ok(Id(path_parameter(parts, "id").await))
    }
}

/// The id of a schedule that exists: text that cannot be an id is not found.
pub(crate) struct ExistingId(pub(crate) ScheduleId);

impl<S: Sync> FromRequestParts<S> for ExistingId {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        ScheduleId::new(&path_parameter(parts, "id").await).map(ExistingId).map_err(|_| schedule_not_found())
    }
}

pub(crate) fn schedule_not_found() -> Refused {
    refuse(Code::ScheduleNotFound, "no schedule of your tenant has this id")
}

/// The id of a schedule that may not exist yet.
pub(crate) struct NewId(pub(crate) ScheduleId);

impl<S: Sync> FromRequestParts<S> for NewId {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        ScheduleId::new(&path_parameter(parts, "id").await).map(NewId).map_err(|error| bad_id(&error))
    }
}

fn bad_id(error: &domain::id::ScheduleIdError) -> Refused {
    let errors = vec![FieldError {
        parameter: Some("id".into()),
        code: "invalid_id".into(),
        detail: error.to_string(),
        ..FieldError::default()
    }];
    refuse_fields(Code::InvalidParameter, "the path names a schedule that cannot be", errors)
}

/// Rejects a body whose media type the route does not take.
pub(crate) struct MediaType;

impl<S: Sync> FromRequestParts<S> for MediaType {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let body = parts.extensions.get::<Body>().expect("the route's operation describes a body");
        check_content_type(&parts.headers, body.media).map(|()| MediaType)
    }
}

/// Refuses a body that says that it is something else; one that says nothing is taken at its word.
pub(crate) fn check_content_type(headers: &HeaderMap, taken: &[&str]) -> Result<(), Refused> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if taken.iter().any(|taken| essence.eq_ignore_ascii_case(taken)) {
        return Ok(());
    }
    let found: String = essence.chars().take(64).collect();
    let detail = format!("the body is said to be {found:?}; send `Content-Type: {}`", taken.join("` or `"));
    Err(refuse(Code::UnsupportedMediaType, detail))
}

/// The body, within the limits of size and time.
pub(crate) struct BodyBytes(pub(crate) Bytes);

impl FromRequest<Arc<AppState>> for BodyBytes {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &Arc<AppState>) -> Result<Self, Refused> {
        let (head, body) = request.into_parts();
        collect(app, &head.headers, body).await.map(BodyBytes)
    }
}

/// A small JSON object of the route's media type.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<AppState>> for JsonBody<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &Arc<AppState>) -> Result<Self, Refused> {
        let (mut head, body) = request.into_parts();
        MediaType::from_request_parts(&mut head, app).await?;
        parse(&collect(app, &head.headers, body).await?).map(JsonBody)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    // Fields by their places would be taken, too.
    if bytes.trim_ascii_start().first().is_some_and(|first| b"[\"-0123456789tfn".contains(first)) {
        return Err(refuse(Code::InvalidRequest, "the body is to be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => refuse(Code::InvalidRequest, error.to_string()),
        _ => refuse(Code::MalformedJson, format!("{error}; send one JSON object in UTF-8")),
    })
}
