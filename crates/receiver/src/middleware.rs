//! From a request to a [`Callback`] in axum: the body is read within its limits, then verified, then handed on.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::{Callback, Refusal, Verifier, clock};

/// Lets through what is signed, with `axum::middleware::from_fn_with_state(verifier, verified)`. The handler may take a
/// [`Callback`], and read the body by other extractors, too. A callback that comes twice gets through twice.
///
/// What is refused is answered with 400, 401, 408 or 413, and a line that says why.
pub async fn verified(State(verifier): State<Verifier>, request: Request, next: Next) -> Response {
    match verifier.checked(request).await {
        Ok((_, request)) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Why a request goes no further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("a body has at most {bytes_max} bytes here")]
    TooLarge { bytes_max: usize },
    #[error("the body did not come in time")]
    TooSlow,
    #[error("the body broke off")]
    Broken,
    #[error(transparent)]
    Unverified(#[from] Refusal),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        tracing::debug!(reason = %self, "a request is refused");
        let status = match &self {
            Refused::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refused::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Refused::Broken => StatusCode::BAD_REQUEST,
            Refused::Unverified(refusal) => refusal.status(),
        };
        (status, self.to_string()).into_response()
    }
}

impl Verifier {
    /// The callback, and the request again, with the callback among its extensions.
    pub(crate) async fn checked(&self, request: Request) -> Result<(Arc<Callback>, Request), Refused> {
        let (mut parts, body) = request.into_parts();
        let body = clock::timeout(self.options.body_timeout, self.whole(body)).await.ok_or(Refused::TooSlow)??;
        let callback = Arc::new(self.verify(&parts.headers, body.clone(), clock::wall())?);
        parts.extensions.insert(callback.clone());
        Ok((callback, Request::from_parts(parts, Body::from(body))))
    }

    async fn whole(&self, body: Body) -> Result<Bytes, Refused> {
        let bytes_max = self.options.body_bytes_max;
        match Limited::new(body, bytes_max).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Refused::TooLarge { bytes_max }),
            Err(_) => Err(Refused::Broken),
        }
    }
}

/// In handlers behind [`verified`] or [`once`](crate::once()); elsewhere it is answered with 500, since nothing was verified.
impl<S: Sync> FromRequestParts<S> for Callback {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        match parts.extensions.get::<Arc<Callback>>() {
            Some(callback) => Ok(Callback::clone(callback)),
            None => Err(missing("this route takes a callback, and has no middleware that verifies it")),
        }
    }
}

/// A mistake in how the routes are put together.
pub(crate) fn missing(what: &'static str) -> (StatusCode, &'static str) {
    tracing::error!("{what}");
    (StatusCode::INTERNAL_SERVER_ERROR, what)
}
