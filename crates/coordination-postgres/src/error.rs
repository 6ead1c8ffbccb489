//! What PostgreSQL's refusals mean for coordination.

use coordination::ElectorError;
use postgres_client::{Failure, UrlError};

/// The database cannot be used for coordination.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Some of these pass: see [`Failure::is_retryable`].
    #[error(transparent)]
    Server(#[from] Failure),
    #[error("{server} has no schema for coordination; run `reveille store migrate` with this URL")]
    SchemaMissing { server: String },
    #[error(
        "the schema for coordination in {server} has version {found}, and this build needs {wanted}; \
         run `reveille store migrate` with this URL"
    )]
    SchemaOlder { server: String, found: i32, wanted: i32 },
    #[error(
        "the schema for coordination in {server} has version {found}, and this build knows {wanted} at most; \
         run a newer build"
    )]
    SchemaNewer { server: String, found: i32, wanted: i32 },
}

impl OpenError {
    /// Whether it may open later, with nothing changed by a person.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OpenError::Server(failure) => failure.is_retryable(),
            OpenError::Url(_)
            | OpenError::SchemaMissing { .. }
            | OpenError::SchemaOlder { .. }
            | OpenError::SchemaNewer { .. } => false,
        }
    }
}

/// Whether the same call may succeed later.
#[must_use]
pub fn is_unavailable(failure: &Failure) -> bool {
    // 53: no disk, memory or connection is left; that may pass.
    let is_short = matches!(failure, Failure::Statement { code, .. } if code.starts_with("53"));
    failure.is_retryable() || is_short
}

pub(crate) fn of_failure(failure: Failure) -> ElectorError {
    if is_unavailable(&failure) {
        ElectorError::Unavailable(failure.to_string())
    } else {
        ElectorError::Rejected(failure.to_string())
    }
}
