//! The reasons why a URL names no server.

/// A URL is not one that can be used. Never shows the URL, which may have a password in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    #[error("a store's URL begins with postgresql:// or postgres://")]
    Scheme,
    #[error("the URL names no host: postgresql://USER:PASSWORD@HOST:PORT/DATABASE")]
    NoHost,
    #[error("the URL's sslmode is one of disable, prefer, require, verify-ca, verify-full")]
    SslMode,
    #[error("the root certificate {path} cannot be used: {reason}")]
    RootCertificate { path: String, reason: String },
    #[error("the URL cannot be read: {0}; mind that special characters of a password are percent-encoded in it")]
    Form(String),
}
