//! Why a store does not open, and what its callers are told when a call fails.

use postgres_client::{Failure, UrlError};
use store::StoreError;

/// A store cannot be opened or migrated. Each text says what a person does next.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Url(#[from] UrlError),
    /// No connection, or a refused statement.
    #[error(transparent)]
    Server(#[from] Failure),
    #[error("{server} has no schema of Reveille yet; make it with `reveille store migrate --store …`")]
    NoSchema { server: String },
    #[error(
        "the schema in {server} has version {found}, and this build needs {wanted}; \
         migrate it with `reveille store migrate --store …`"
    )]
    Older { server: String, found: i32, wanted: i32 },
    #[error(
        "the schema in {server} has version {found}, made by a later build; this one knows up to {wanted}: \
         use a build at least as new as the one that migrated it"
    )]
    Newer { server: String, found: i32, wanted: i32 },
    #[error("{server} holds the cluster {found}, and not {expected}: check the database in the URL")]
    OtherCluster { server: String, found: String, expected: String },
}

/// What `failure` means to the store's callers.
pub(crate) fn store_error(failure: Failure) -> StoreError {
    let code = match &failure {
        Failure::Statement { code, .. } => code.as_str(),
        Failure::Unreachable { .. } | Failure::Silent { .. } | Failure::Denied { .. } | Failure::Tls { .. } => "",
    };
    match code {
        // No disk, no memory, too many locks or other configured limits (class 53).
        "53100" | "53200" | "53400" => StoreError::Full(failure.to_string()),
        // Data or index is corrupted.
        "XX001" | "XX002" => StoreError::Damaged(failure.to_string()),
        _ => StoreError::Unavailable(failure.to_string()),
    }
}

pub(crate) fn closed() -> StoreError {
    StoreError::Unavailable("it is closing".to_owned())
}

/// Not about the server: slow, full, out of memory.
pub(crate) fn is_about_a_row(failure: &Failure) -> bool {
    let is_of_the_server = |code: &str| code.starts_with("53") || code.starts_with("XX");
    matches!(failure, Failure::Statement { code, .. } if !failure.is_retryable() && !is_of_the_server(code))
}
