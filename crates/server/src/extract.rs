//! Extractors for the parts of a request that several handlers use. They run in the order of a handler's arguments. The
//! first extractor that rejects the request determines the response.

use std::sync::Arc;

use api::FieldError;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use domain::ScheduleId;
use serde::de::DeserializeOwned;

use crate::body::collect::collect;
use crate::rejection::{Code, Rejected, reject, reject_fields};
use crate::route::Body;
use crate::state::AppState;

/// Returns a path parameter. A parameter that is not UTF-8 becomes the empty text, which is the name of no object.
pub(crate) async fn path_parameter(parts: &mut Parts, name: &str) -> String {
    let Ok(parameters) = RawPathParams::from_request_parts(parts, &()).await else { return String::new() };
    parameters.iter().find(|(known, _)| *known == name).map_or_else(String::new, |(_, value)| value.to_owned())
}

/// Value of the path parameter `id`.
pub(crate) struct Id(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Id {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        Ok(Id(path_parameter(parts, "id").await))
    }
}

/// Id of an existing schedule. A text that is not a valid id causes the response 404.
pub(crate) struct ExistingId(pub(crate) ScheduleId);

impl<S: Sync> FromRequestParts<S> for ExistingId {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        ScheduleId::new(&path_parameter(parts, "id").await).map(ExistingId).map_err(|_| schedule_not_found())
    }
}

pub(crate) fn schedule_not_found() -> Rejected {
    reject(Code::ScheduleNotFound, "the tenant has no schedule with this id")
}

/// Id of the schedule that the request creates or replaces.
pub(crate) struct NewId(pub(crate) ScheduleId);

impl<S: Sync> FromRequestParts<S> for NewId {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        ScheduleId::new(&path_parameter(parts, "id").await).map(NewId).map_err(|error| bad_id(&error))
    }
}

fn bad_id(error: &domain::id::ScheduleIdError) -> Rejected {
    let errors = vec![FieldError {
        parameter: Some("id".into()),
        code: "invalid_id".into(),
        detail: error.to_string(),
        ..FieldError::default()
    }];
    reject_fields(Code::InvalidParameter, "the path contains an invalid schedule id; see the field `errors`", errors)
}

/// Check of the body's media type against the route's media types.
pub(crate) struct MediaType;

impl<S: Sync> FromRequestParts<S> for MediaType {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        let body = parts.extensions.get::<Body>().expect("the route of this handler declares a body");
        check_content_type(&parts.headers, body.media).map(|()| MediaType)
    }
}

/// Rejects a body whose media type is not in `supported`, and a compressed body. Accepts a body without a media type.
pub(crate) fn check_content_type(headers: &HeaderMap, supported: &[&str]) -> Result<(), Rejected> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    if let Some(encoding) = encodings.into_iter().find(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        let found: String = String::from_utf8_lossy(encoding).chars().take(64).collect();
        let detail = format!("unsupported content encoding {found:?}; send the body uncompressed");
        return Err(reject(Code::UnsupportedMediaType, detail));
    }
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if supported.iter().any(|supported| essence.eq_ignore_ascii_case(supported)) {
        return Ok(());
    }
    let found: String = essence.chars().take(64).collect();
    let detail = format!("unsupported media type {found:?}; send `Content-Type: {}`", supported.join("` or `"));
    Err(reject(Code::UnsupportedMediaType, detail))
}

/// Request body within the limits of size and time.
pub(crate) struct BodyBytes(pub(crate) Bytes);

impl FromRequest<Arc<AppState>> for BodyBytes {
    type Rejection = Rejected;

    async fn from_request(request: Request, app: &Arc<AppState>) -> Result<Self, Rejected> {
        let (head, body) = request.into_parts();
        collect(app, &head.headers, body).await.map(BodyBytes)
    }
}

/// Request body that is a small JSON object with the route's media type.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<AppState>> for JsonBody<T> {
    type Rejection = Rejected;

    async fn from_request(request: Request, app: &Arc<AppState>) -> Result<Self, Rejected> {
        let (mut head, body) = request.into_parts();
        MediaType::from_request_parts(&mut head, app).await?;
        parse(&collect(app, &head.headers, body).await?).map(JsonBody)
    }
}

/// Maximum length in bytes of the JSON parser's error text in a response.
const DETAIL_BYTES_MAX: usize = 512;

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Rejected> {
    // The function rejects an array, because serde would accept an array of field values in place of an object.
    if bytes.trim_ascii_start().first().is_some_and(|first| b"[\"-0123456789tfn".contains(first)) {
        return Err(reject(Code::InvalidRequest, "the body must be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            // The error text may contain a long value or name from the body, so the function shortens the text.
            let detail = error.to_string();
            reject(Code::InvalidRequest, &detail[..detail.floor_char_boundary(DETAIL_BYTES_MAX)])
        }
        _ => reject(Code::MalformedJson, format!("{error}; send one JSON object in UTF-8")),
    })
}
