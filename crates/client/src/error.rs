//! Why a call failed, and whether it is worth another one.

use std::time::Duration;

use api::{FieldError, Problem};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call failed. What may be tried again was, within [`crate::Options`]; this is the last attempt's, or the first whose
/// outcome is unknown if the last one did nothing and says nothing of that.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server said why it does not do it.
    #[error("{} ({})", .0.problem.detail, .0.problem.code)]
    Refused(Box<Refused>),
    /// Something answered that is not Reveille's API: a proxy, say, or another server at this address.
    #[error("what answered is not Reveille: status {status}, {text:?}")]
    Foreign {
        /// The status of HTTP.
        status: u16,
        /// How the answer begins.
        text: String,
    },
    /// No connection could be made, so nothing was sent.
    #[error("{url} cannot be reached")]
    Unreachable {
        /// The server's.
        url: String,
        /// Why.
        #[source]
        source: Source,
    },
    /// The connection ended before the whole answer was there.
    #[error("the connection ended before the whole answer")]
    Broken {
        /// Why.
        #[source]
        source: Source,
    },
    /// No answer came in time.
    #[error("no answer within {limit:?}")]
    TimedOut {
        /// What was left of [`crate::Options::attempt_timeout`] and [`crate::Options::deadline`].
        limit: Duration,
    },
    /// The answer is longer than [`crate::Options::answer_bytes_max`].
    #[error("the answer is larger than {bytes_max} bytes; ask for smaller pages")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
    /// The answer is not of the form that this version of the SDK knows.
    #[error("the answer cannot be read")]
    Unreadable {
        /// Where.
        #[source]
        source: serde_json::Error,
    },
}

/// A refusal of the server's.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// What it said; branch on its `code`.
    pub problem: Problem,
    /// How long it asks to wait.
    pub retry_after: Option<Duration>,
}

impl Error {
    /// The code of a refusal, which keeps its meaning: `schedule_not_found`, say.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_ref())
    }

    /// The refusal as the server said it.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(refused) => Some(&refused.problem),
            _ => None,
        }
    }

    /// Each thing that is wrong with the request.
    #[must_use]
    pub fn field_errors(&self) -> &[FieldError] {
        self.problem().map_or(&[], |problem| &problem.errors)
    }

    /// Names this request in the server's log.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.problem()?.request_id.as_deref()
    }

    /// The status of HTTP, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Refused(refused) => Some(refused.problem.status),
            Error::Foreign { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the same request may go through later, unchanged.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Broken { .. } | Error::TimedOut { .. } => true,
            Error::Refused(_) | Error::Foreign { .. } => {
                matches!(self.status(), Some(408 | 425 | 429 | 502 | 503 | 504 | 507))
            }
            Error::TooLarge { .. } | Error::Unreadable { .. } => false,
        }
    }

    /// Whether what was asked for may have been done all the same.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Unreachable { .. } => false,
            Error::Broken { .. } | Error::TimedOut { .. } | Error::TooLarge { .. } | Error::Unreadable { .. } => true,
            // A full disk is the one fault of a server that is found before anything is done.
            Error::Refused(_) | Error::Foreign { .. } => {
                self.status().is_some_and(|status| status >= 500 && status != 507)
            }
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused(refused) => refused.retry_after,
            _ => None,
        }
    }
}
