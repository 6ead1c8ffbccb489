//! Options of the SDK.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

/// Limits of a client. Each default suits a service in the same region as its Reveille server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time limit of one attempt, from connecting to the end of the response. Default 10 s. A value that is too
    /// small aborts requests that the server would have answered; a value that is too large leaves less of the
    /// deadline for further attempts.
    pub attempt_timeout: Duration,
    /// Time limit of a call, with all its attempts and the waits between them; batches have no deadline. Default
    /// 30 s. A value that is too small turns a restart of the server into an error; a value that is too large
    /// makes your caller wait.
    pub deadline: Duration,
    /// Time limit for connecting, in each attempt. Default 5 s.
    pub connect_timeout: Duration,
    /// Largest number of attempts of a call. Default 6; with 1, no request is repeated.
    pub attempts_max: u32,
    /// Upper bound of the first wait between attempts; the bound doubles with each further attempt. The wait is
    /// uniformly random below the bound, plus the time that the server requests (`Retry-After`). Default 100 ms. A
    /// value that is too small loads a server that is already overloaded.
    pub backoff: Duration,
    /// Largest upper bound of a wait. Default 5 s.
    pub backoff_max: Duration,
    /// Largest response that is read, in bytes. Default 128 MiB, which exceeds the largest page. A smaller value
    /// protects your memory, and requires pages with smaller limits.
    pub answer_bytes_max: usize,
    /// Largest number of idle connections. Default 32. A value that is too small costs a handshake for concurrent
    /// calls.
    pub idle_connections_max: usize,
    /// Certificate authorities to trust in addition to the Mozilla list.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            attempt_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            attempts_max: 6,
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            answer_bytes_max: 128 << 20,
            idle_connections_max: 32,
            extra_roots: Vec::new(),
        }
    }
}

/// Reasons why a client cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The server's URL is invalid.
    #[error("invalid server URL {url:?}: {reason}")]
    Url {
        /// The rejected URL, without a user name or password.
        url: String,
        /// Defect of the URL.
        reason: &'static str,
    },
    /// The key is invalid. The error does not contain the key.
    #[error("invalid API key: expected `ID.SECRET` in visible ASCII, as in `data/admin.key`")]
    Key,
    /// One of [`Options::extra_roots`] is invalid.
    #[error("cannot parse extra certificate authority {number} (counted from 0)")]
    Root {
        /// Index of the certificate, from 0.
        number: usize,
        /// Defect of the certificate.
        #[source]
        source: rustls::Error,
    },
}
