//! Middleware that turns an axum request into a [`Callback`]: it reads the body up to the limits of size and time,
//! verifies the signature, and calls the handler.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::{Callback, Rejection, Verifier, clock};

/// Middleware that accepts only signed callbacks. Install it with `axum::middleware::from_fn_with_state(verifier,
/// verified)`. The handler may take a [`Callback`], and may also read the body with other extractors. The middleware
/// passes duplicates to the handler.
///
/// The response to a rejected request has the status 400, 401, 408 or 413, with the reason as text.
pub async fn verified(State(verifier): State<Verifier>, request: Request, next: Next) -> Response {
    match verifier.checked(request).await {
        Ok((_, request)) => next.run(request).await,
        Err(rejected) => rejected.into_response(),
    }
}

/// Reason why the middleware does not pass a request to its handler.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejected {
    #[error("the request's body exceeds the limit of {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("the request's body did not arrive within {limit:?}")]
    TooSlow { limit: Duration },
    #[error("the request's body is incomplete")]
    Broken,
    #[error(transparent)]
    Unverified(#[from] Rejection),
}

impl IntoResponse for Rejected {
    fn into_response(self) -> Response {
        tracing::debug!(reason = %self, "request rejected");
        let status = match &self {
            Rejected::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Rejected::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Rejected::Broken => StatusCode::BAD_REQUEST,
            Rejected::Unverified(refusal) => refusal.status(),
        };
        (status, self.to_string()).into_response()
    }
}

impl Verifier {
    /// Verifies a request. Returns the callback, and the request with the callback in its extensions.
    pub(crate) async fn checked(&self, request: Request) -> Result<(Arc<Callback>, Request), Rejected> {
        let (mut parts, body) = request.into_parts();
        let limit = self.options.body_timeout;
        let body = clock::timeout(limit, self.whole(body)).await.ok_or(Rejected::TooSlow { limit })??;
        let callback = Arc::new(self.verify(&parts.headers, body.clone(), clock::wall())?);
        parts.extensions.insert(callback.clone());
        Ok((callback, Request::from_parts(parts, Body::from(body))))
    }

    async fn whole(&self, body: Body) -> Result<Bytes, Rejected> {
        let bytes_max = self.options.body_bytes_max;
        match Limited::new(body, bytes_max).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Rejected::TooLarge { bytes_max }),
            Err(_) => Err(Rejected::Broken),
        }
    }
}

/// Extracts the callback for a handler. The handler's route must have the middleware [`verified`] or
/// [`once`](crate::once()). Without the middleware, the route responds with 500.
impl<S: Sync> FromRequestParts<S> for Callback {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        match parts.extensions.get::<Arc<Callback>>() {
            Some(callback) => Ok(Callback::clone(callback)),
            None => Err(missing(
                "this route's handler takes a callback; add the middleware `verified` or `once` to the route",
            )),
        }
    }
}

/// Logs `what`, which describes a mistake in the program's routes or handlers. Returns a response with the status 500
/// and this text.
pub(crate) fn missing(what: &'static str) -> (StatusCode, &'static str) {
    tracing::error!("{what}");
    (StatusCode::INTERNAL_SERVER_ERROR, what)
}
