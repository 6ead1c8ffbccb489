//! Errors of calls, with methods that tell the caller whether a repeated call may succeed.

use std::time::Duration;

use api::{FieldError, Problem};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a call failed. The client has already made all attempts that [`crate::Options`] and the kind of request
/// permit. The error is from the last attempt. Exception: if an earlier attempt has an unknown outcome and the last
/// attempt certainly had no effect, the error is from that earlier attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server rejected the request, and sent problem details.
    #[error("{} ({})", .0.problem.detail, .0.problem.code)]
    Rejected(Box<Rejection>),
    /// The response is not from Reveille's API. A proxy or another server at this address may have sent it.
    #[error("the response is not from Reveille's API: status {status}, body {text:?}; check the server's URL")]
    Foreign {
        /// HTTP status of the response.
        status: u16,
        /// Beginning of the response's body.
        text: String,
    },
    /// The connection could not be established, so the client sent no request.
    #[error("{url} cannot be reached")]
    Unreachable {
        /// Base URL of the server.
        url: String,
        /// Reason why the client could not connect.
        #[source]
        source: Source,
    },
    /// The connection closed before the response was complete.
    #[error("connection closed before the response was complete")]
    Broken {
        /// Reason why the response is incomplete.
        #[source]
        source: Source,
    },
    /// No response arrived within the time limit.
    #[error("no response within {limit:?}")]
    TimedOut {
        /// Time limit of the attempt: the smaller of [`crate::Options::attempt_timeout`] and the rest of
        /// [`crate::Options::deadline`]. For a batch, it is the time limit of each wait for the next bytes of the
        /// response.
        limit: Duration,
    },
    /// The response is longer than [`crate::Options::answer_bytes_max`], or a result line of a batch exceeds 1 MiB.
    #[error("the response is larger than the limit of {bytes_max} bytes; request fewer items per page")]
    TooLarge {
        /// Size limit in bytes.
        bytes_max: usize,
    },
    /// The response does not have the form that this version of the SDK expects.
    #[error("cannot parse the response; check the server's URL and the version of the SDK")]
    Unreadable {
        /// Position and kind of the error in the JSON text.
        #[source]
        source: serde_json::Error,
    },
}

/// Response with which the server rejected a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Rejection {
    /// Problem details of the response. Callers should branch on their `code`.
    pub problem: Problem,
    /// Wait that the server requests before the next attempt.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// Returns the stable problem code of a rejection, for example `schedule_not_found`.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_ref())
    }

    /// Returns the problem details of a rejection.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Rejected(refused) => Some(&refused.problem),
            _ => None,
        }
    }

    /// Returns the errors that the server reported for invalid fields of the request.
    #[must_use]
    pub fn field_errors(&self) -> &[FieldError] {
        self.problem().map_or(&[], |problem| &problem.errors)
    }

    /// Returns the id that the server's log uses for the request.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.problem()?.request_id.as_deref()
    }

    /// Returns the HTTP status, if a response with a failure status arrived.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Rejected(refused) => Some(refused.problem.status),
            Error::Foreign { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the same request may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Broken { .. } | Error::TimedOut { .. } => true,
            Error::Rejected(_) | Error::Foreign { .. } => {
                matches!(self.status(), Some(408 | 425 | 429 | 502 | 503 | 504 | 507))
            }
            Error::TooLarge { .. } | Error::Unreadable { .. } => false,
        }
    }

    /// Returns whether the server may have carried out the request in spite of the error.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Unreachable { .. } => false,
            Error::Broken { .. } | Error::TimedOut { .. } | Error::TooLarge { .. } | Error::Unreadable { .. } => true,
            // Status 507 means that the server's disk is full. The server detects a full disk before it carries out any
            // operation.
            Error::Rejected(_) | Error::Foreign { .. } => {
                self.status().is_some_and(|status| status >= 500 && status != 507)
            }
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Rejected(refused) => refused.retry_after,
            _ => None,
        }
    }
}
