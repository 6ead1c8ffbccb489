//! Errors that a process gets when it opens the database, and conversion of PostgreSQL's errors to an elector's errors.

use coordination::ElectorError;
use postgres_client::{Failure, UrlError};

/// Reasons why this build cannot use the database for coordination.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not a valid PostgreSQL URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Failure of the server. Some failures are transient; see [`Failure::is_retryable`].
    #[error(transparent)]
    Server(#[from] Failure),
    /// The database has no schema for coordination, or no migration of this schema has finished.
    #[error("{server} has no schema for coordination; run `reveille store migrate` with the URL of this database")]
    SchemaMissing {
        /// URL of the server without the password.
        server: String,
    },
    /// The schema is older than the version that this build needs.
    #[error(
        "the schema for coordination in {server} has version {found}, and this build needs {wanted}; \
         run `reveille store migrate` with the URL of this database"
    )]
    SchemaOlder {
        /// URL of the server without the password.
        server: String,
        /// Version of the schema in the database.
        found: i32,
        /// Version of the schema that this build needs.
        wanted: i32,
    },
    /// The schema is newer than the version that this build needs.
    #[error(
        "the schema for coordination in {server} has version {found}, but this build supports at most {wanted}; \
         run a newer build of Reveille"
    )]
    SchemaNewer {
        /// URL of the server without the password.
        server: String,
        /// Version of the schema in the database.
        found: i32,
        /// Version of the schema that this build needs. This build supports no newer version.
        wanted: i32,
    },
}

impl OpenError {
    /// Returns whether a later attempt to open the database may succeed without an operator's action.
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

/// Returns whether the failed call may succeed if the caller repeats it later.
#[must_use]
pub fn is_unavailable(failure: &Failure) -> bool {
    // Error codes of class 53 mean that the server has no free disk space, memory or connections. The shortage may be
    // temporary.
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
