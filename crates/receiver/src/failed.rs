//! A handler's failure.

use std::error::Error;
use std::fmt;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// Why a handler could not do what it was called for: any error. It is answered with 500, so that Reveille calls again; the error
/// goes to the log of this process, and to nobody else.
pub struct Failed(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::warn!(error = self.0, "a callback's handler failed; the callback will come again");
        (StatusCode::INTERNAL_SERVER_ERROR, "the handler failed; its log says why").into_response()
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
