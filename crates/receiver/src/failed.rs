//! The error type of handlers.

use std::error::Error;
use std::fmt;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// Any error that made a handler fail. The response has the status 500, so Reveille sends the callback again. The
/// error appears only in this process's log.
pub struct Failed(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::warn!(error = self.0, "callback handler failed; Reveille will send the callback again");
        (StatusCode::INTERNAL_SERVER_ERROR, "the handler failed; see the receiver's log").into_response()
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
