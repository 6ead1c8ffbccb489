//! Errors of the opening and of the migration of a store, and the conversion of failures into store errors.

use postgres_client::{Failure, UrlError};
use store::StoreError;

/// Error of the opening or of the migration of a store. The error text names the operator's next step.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Url(#[from] UrlError),
    /// Failure to connect to the server, or a statement that the server rejected.
    #[error(transparent)]
    Server(#[from] Failure),
    /// A stored tenant that the migration needs is damaged.
    #[error("cannot migrate the schema: {0}")]
    Store(#[from] StoreError),
    #[error("{server} has no Reveille schema; create it with `reveille store migrate --store …`")]
    NoSchema { server: String },
    #[error(
        "the schema in {server} has version {found}, and this build needs {wanted}; \
         migrate it with `reveille store migrate --store …`"
    )]
    Older { server: String, found: i32, wanted: i32 },
    #[error(
        "the schema in {server} has version {found} of a later build, and this build supports {wanted}; \
         use a build at least as new as the one that migrated the schema"
    )]
    Newer { server: String, found: i32, wanted: i32 },
    #[error(
        "the store in {server} belongs to the cluster {found} instead of {expected}; check the database in the URL"
    )]
    OtherCluster { server: String, found: String, expected: String },
    #[error(
        "the store in {server} is a copy, for example a restored dump; stop all members that use the original, then run \
         `reveille store new-epoch --store …`, which makes this copy the store of the cluster"
    )]
    OtherDatabase { server: String },
}

impl OpenError {
    /// Returns whether a later attempt may succeed without an operator's action.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OpenError::Server(failure) => failure.is_retryable(),
            OpenError::Store(error) => error.is_retryable(),
            OpenError::Url(_)
            | OpenError::NoSchema { .. }
            | OpenError::Older { .. }
            | OpenError::Newer { .. }
            | OpenError::OtherCluster { .. }
            | OpenError::OtherDatabase { .. } => false,
        }
    }
}

/// Converts a failure into a store error.
pub(crate) fn store_error(failure: Failure) -> StoreError {
    let code = match &failure {
        Failure::Statement { code, .. } => code.as_str(),
        Failure::Unreachable { .. }
        | Failure::Silent { .. }
        | Failure::Denied { .. }
        | Failure::Tls { .. }
        | Failure::Settings { .. }
        | Failure::NotAdmitted { .. } => "",
    };
    match code {
        // Error codes of class 53: disk full, out of memory (also for locks), configuration limit exceeded.
        "53100" | "53200" | "53400" => StoreError::Full(failure.to_string()),
        // The server reports that the data or an index is corrupted.
        "XX001" | "XX002" => StoreError::Damaged(failure.to_string()),
        _ => StoreError::Unavailable(failure.to_string()),
    }
}

pub(crate) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closing".to_owned())
}

/// Returns whether the server rejected the statement because of one row. Other failures result from the state of the
/// server, for example a slow server, a full disk or damaged data.
pub(crate) fn is_about_a_row(failure: &Failure) -> bool {
    let is_of_the_server = |code: &str| code.starts_with("53") || code.starts_with("XX");
    matches!(failure, Failure::Statement { code, .. } if !failure.is_retryable() && !is_of_the_server(code))
}
