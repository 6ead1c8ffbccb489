//! Failures of connections to PostgreSQL and of SQL statements.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::error::SqlState;

/// Failure of a connection or a statement. The error texts contain no statement, parameter or password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no connection, or the connection ended before the server responded. The statement may have taken
    /// effect.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable {
        /// Server's URL without the password.
        server: String,
        /// Reason why the server cannot be reached.
        reason: String,
    },
    /// The server did not respond within `waited`, so the client closed the connection. The statement may have taken
    /// effect.
    #[error("{server} did not respond within {waited:?}")]
    Silent {
        /// Server's URL without the password.
        server: String,
        /// Time limit that the client applied.
        waited: Duration,
    },
    /// The server rejected the user, the password or the database, or does not permit the connection.
    #[error("{server} rejected the connection: {reason}; check the user, the password and the database in its URL")]
    Denied {
        /// Server's URL without the password.
        server: String,
        /// Error text of the server.
        reason: String,
    },
    /// The server's certificate fails the checks that the URL's `sslmode` and `sslrootcert` require, or the server does
    /// not support TLS.
    #[error("TLS negotiation with {server} failed: {reason}; check sslmode and sslrootcert in its URL")]
    Tls {
        /// Server's URL without the password.
        server: String,
        /// Error text of the TLS negotiation.
        reason: String,
    },
    /// The settings of the startup message are not in effect, because a pooler between the client and the server dropped
    /// or rejected them.
    #[error(
        "{server} does not apply the settings of the connection: {reason}; connect to PostgreSQL directly and not \
         through a pooler such as PgBouncer"
    )]
    Settings {
        /// Server's URL without the password.
        server: String,
        /// Settings with their values, or the error text of the pooler.
        reason: String,
    },
    /// The admission of the link rejected the connection ([`crate::Link::start_admitted`]).
    #[error("{server} cannot be used: {reason}")]
    NotAdmitted {
        /// Server's URL without the password.
        server: String,
        /// Reason of the rejection, with the next step of an operator.
        reason: String,
    },
    /// The server rejected a statement.
    #[error("{server} rejected the statement: {reason}")]
    Statement {
        /// Server's URL without the password.
        server: String,
        /// Error code (SQLSTATE) of five characters.
        code: String,
        /// Error text of the server.
        reason: String,
    },
}

impl Failure {
    pub(crate) fn of(server: &str, error: &tokio_postgres::Error) -> Self {
        let server = server.to_owned();
        let Some(db_error) = error.as_db_error() else {
            return Failure::Unreachable { server, reason: message_chain(error) };
        };
        let (code, reason) = (db_error.code(), db_error.message().to_owned());
        match code.code() {
            // These error codes mean that the server is shutting down, ended all sessions after a crash, is starting,
            // ended an idle session, or has too many clients. A later attempt may succeed.
            "57P01" | "57P02" | "57P03" | "57P05" | "53300" => Failure::Unreachable { server, reason },
            // Only a primary accepts writes. The server became a standby while this process was connected.
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
            // A pooler rejects the startup message, and names the unsupported parameter. PostgreSQL supports every
            // parameter that the client sends.
            Failure::Unreachable { server, reason } if reason.contains("unsupported startup parameter") => {
                Failure::Settings { server, reason }
            }
            failure => failure,
        }
    }

    /// Returns the error code (SQLSTATE) of a statement that the server rejected.
    #[must_use]
    pub fn code(&self) -> Option<SqlState> {
        match self {
            Failure::Statement { code, .. } => Some(SqlState::from_code(code)),
            Failure::Unreachable { .. }
            | Failure::Silent { .. }
            | Failure::Denied { .. }
            | Failure::Tls { .. }
            | Failure::Settings { .. }
            | Failure::NotAdmitted { .. } => None,
        }
    }

    /// Returns whether a retry may succeed without an action of an operator: the server was unreachable or slow, or the
    /// transaction conflicted with another transaction.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Failure::Unreachable { .. } | Failure::Silent { .. } => true,
            Failure::Denied { .. } | Failure::Tls { .. } | Failure::Settings { .. } | Failure::NotAdmitted { .. } => {
                false
            }
            // Error code 57014: the server was slow and cancelled the statement at the statement timeout.
            Failure::Statement { code, .. } => self.is_conflict() || code == "57014",
        }
    }

    /// Returns whether the transaction conflicted with another transaction or waited too long for a lock. The
    /// transaction had no effect, and an immediate retry may succeed.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        let Failure::Statement { code, .. } = self else { return false };
        // These error codes mean: serialization failure, deadlock, lock not available.
        matches!(code.as_str(), "40001" | "40P01" | "55P03")
    }
}

/// Returns the error's text and the texts of its sources, on one line.
fn message_chain(error: &tokio_postgres::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !message.contains(&more) {
            message.push_str(": ");
            message.push_str(&more);
        }
        source = error.source();
    }
    message
}
