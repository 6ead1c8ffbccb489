//! Errors of PostgreSQL URLs.

/// Error of an invalid PostgreSQL URL. The texts never contain the URL, because the URL may contain a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    #[error("invalid scheme; a PostgreSQL URL begins with postgresql:// or postgres://")]
    Scheme,
    #[error("the URL has no host; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")]
    NoHost,
    #[error("invalid sslmode; expected disable, prefer, require, verify-ca or verify-full")]
    SslMode,
    #[error("invalid root certificate {path}: {reason}")]
    RootCertificate { path: String, reason: String },
    #[error("invalid URL: {0}; percent-encode the special characters of the password")]
    Form(String),
}
