//! Errors of PostgreSQL URLs.

/// Error of an invalid PostgreSQL URL. The error texts never contain the URL, because the URL may contain a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    /// The URL starts with neither `postgresql://` nor `postgres://`.
    #[error("the PostgreSQL URL has an invalid scheme; begin the URL with postgresql:// or postgres://")]
    Scheme,
    /// The URL names no host.
    #[error("the PostgreSQL URL has no host; use the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE")]
    NoHost,
    /// The value of `sslmode` is unknown.
    #[error("the PostgreSQL URL has an invalid sslmode; use disable, prefer, require, verify-ca or verify-full")]
    SslMode,
    /// The file that `sslrootcert` names is unreadable or contains an invalid certificate.
    #[error("invalid root certificate {path}: {reason}")]
    RootCertificate {
        /// Path of the file with the root certificates.
        path: String,
        /// Reason why the client cannot use the file with the root certificates.
        reason: String,
    },
    /// The URL has a fault that no other variant describes. The text states the fault.
    #[error(
        "invalid PostgreSQL URL: {0}; write @, / and ? in a password as %40, %2F and %3F, or read the password from a \
         file"
    )]
    Form(String),
}
