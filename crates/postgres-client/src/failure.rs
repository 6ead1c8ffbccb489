//! Why a server did not do what it was asked.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::error::SqlState;

/// In words that may be shown: no statement, no parameter, no password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no connection, or it ended before the answer. What was asked may have been done.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// The server was silent for so long; the connection has been given up. What was asked may have been done.
    #[error("{server} has not answered for {waited:?}")]
    Silent { server: String, waited: Duration },
    /// User, password, database or permission are not what the server wants.
    #[error("{server} refuses the connection: {reason}; check the user, the password and the database in its URL")]
    Denied { server: String, reason: String },
    /// The server's certificate is not one that the URL's `sslmode` and `sslrootcert` accept, or it offers no TLS.
    #[error("{server} and this end do not agree on TLS: {reason}; check sslmode and sslrootcert in its URL")]
    Tls { server: String, reason: String },
    /// The server has refused a statement.
    #[error("{server} refuses: {reason}")]
    Statement { server: String, code: String, reason: String },
}

impl Failure {
    pub(crate) fn of(server: &str, error: &tokio_postgres::Error) -> Self {
        let server = server.to_owned();
        let Some(refusal) = error.as_db_error() else {
            return Failure::Unreachable { server, reason: words_of(error) };
        };
        let (code, reason) = (refusal.code(), refusal.message().to_owned());
        match code.code() {
            // It is shutting down, starting, or has been crashed by another's fault; or it has too many clients.
            "57P01" | "57P02" | "57P03" | "57P05" | "53300" => Failure::Unreachable { server, reason },
            // A promise that only a primary can keep: it became a standby under us.
            "25006" => Failure::Unreachable { server, reason },
            other if other.starts_with("08") => Failure::Unreachable { server, reason },
            other if other.starts_with("28") || other == "3D000" => Failure::Denied { server, reason },
            other => Failure::Statement { server, code: other.to_owned(), reason },
        }
    }

    pub(crate) fn of_connecting(server: &str, error: &tokio_postgres::Error) -> Self {
        match Failure::of(server, error) {
            Failure::Unreachable { server, reason } if error.to_string().contains("TLS") => {
                Failure::Tls { server, reason }
            }
            failure => failure,
        }
    }

    /// The SQLSTATE of a refused statement.
    #[must_use]
    pub fn code(&self) -> Option<SqlState> {
        match self {
            Failure::Statement { code, .. } => Some(SqlState::from_code(code)),
            Failure::Unreachable { .. } | Failure::Silent { .. } | Failure::Denied { .. } | Failure::Tls { .. } => None,
        }
    }

    /// The same may succeed later, with nothing changed by a person: the server was away or slow, or the transaction was
    /// one of two that could not both go on.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Failure::Unreachable { .. } | Failure::Silent { .. } => true,
            Failure::Denied { .. } | Failure::Tls { .. } => false,
            // Or it was cancelled by its timeout: the server was slow.
            Failure::Statement { code, .. } => self.is_conflict() || code == "57014",
        }
    }

    /// The transaction was one of two that could not both go on, or waited too long for a lock: nothing of it was
    /// done, and another try may succeed at once.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        let Failure::Statement { code, .. } = self else { return false };
        // Serialization failure, deadlock, lock not available.
        matches!(code.as_str(), "40001" | "40P01" | "55P03")
    }
}

/// The error and what it comes from, on one line.
fn words_of(error: &tokio_postgres::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !words.contains(&more) {
            words.push_str(": ");
            words.push_str(&more);
        }
        source = error.source();
    }
    words
}
