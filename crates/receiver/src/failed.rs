//! Error type that handlers of callbacks return.

use std::error::Error;
use std::fmt;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// Error of a callback's handler, with the cause of the failure. The receiver responds with the status 500, so Reveille
/// sends the callback again. The cause appears only in the log of the receiver's process.
pub struct Failed(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        tracing::warn!(error = self.0, "callback handler failed; Reveille will send the callback again");
        (StatusCode::INTERNAL_SERVER_ERROR, "the receiver's callback handler failed; see the receiver's log")
            .into_response()
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
