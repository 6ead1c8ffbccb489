//! Errors of PostgreSQL URLs.

/// Error of an invalid PostgreSQL URL. The texts never contain the URL, because the URL may contain a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    /// The URL starts with neither `postgresql://` nor `postgres://`.
    #[error("invalid scheme; a PostgreSQL URL begins with postgresql:// or postgres://")]
    Scheme,
    /// The URL names no host.
    #[error("the URL has no host; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")]
    NoHost,
    /// The value of `sslmode` is unknown.
    #[error("invalid sslmode; expected disable, prefer, require, verify-ca or verify-full")]
    SslMode,
    /// The file that `sslrootcert` names is unreadable or contains an invalid certificate.
    #[error("invalid root certificate {path}: {reason}")]
    RootCertificate {
        /// Path of the file.
        path: String,
        /// Fault of the file.
        reason: String,
    },
    /// The URL has another fault. The text is the reason.
    #[error("invalid URL: {0}; percent-encode the special characters of the password")]
    Form(String),
}
