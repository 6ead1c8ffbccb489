//! Options of a client of the SDK.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

use crate::Error;

/// Limits of a client. The defaults suit a service in the same region as its Reveille server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time limit of one attempt, from the start of the connection to the end of the response. Default 10 s. If the
    /// limit is too small, the client aborts requests to which the server would have responded. If it is too large, one
    /// attempt without a response leaves little time for further attempts before the deadline.
    pub attempt_timeout: Duration,
    /// Time limit of a call, with all its attempts and the waits between them. Batches have no deadline. Default 30 s.
    /// If the limit is too small, calls fail while the server restarts. If it is too large, your own callers wait for a
    /// long time.
    pub deadline: Duration,
    /// Time limit for opening a connection to the server, in each attempt. Default 5 s.
    pub connect_timeout: Duration,
    /// Maximum number of attempts of a call. Default 6. With 1, the client repeats no request.
    pub attempts_max: u32,
    /// Upper bound of the first wait between attempts. The bound doubles with each further attempt. The client waits
    /// for a random time below the bound, in addition to the time that the server requests with `Retry-After`. Default
    /// 100 ms. If the bound is too small, repeated requests add load to a server that is already overloaded.
    pub backoff: Duration,
    /// Limit for the doubling of [`Options::backoff`]: the upper bound of a random wait never exceeds this time.
    /// Default 5 s.
    pub backoff_max: Duration,
    /// Maximum size of a response that the client reads, in bytes. Default 128 MiB, which is more than the largest
    /// page. A smaller value saves memory, but the caller may then have to request fewer items per page.
    pub answer_bytes_max: usize,
    /// Maximum number of idle connections. Default 32. If the number is too small, concurrent calls need additional
    /// handshakes.
    pub idle_connections_max: usize,
    /// Function that the client calls before each wait for another attempt. The arguments are the error of the last
    /// attempt and the duration of the wait. Default `None`. For example, the function can log why a call takes long.
    pub on_retry: Option<fn(&Error, Duration)>,
    /// Certificate authorities that the client trusts in addition to the Mozilla list.
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
            on_retry: None,
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
        /// Description of the error in the URL.
        reason: &'static str,
    },
    /// The key is invalid. The error does not contain the key.
    #[error("invalid API key: expected `ID.SECRET` in visible ASCII, as in the file `data/admin.key`")]
    Key,
    /// One of [`Options::extra_roots`] is invalid.
    #[error("cannot parse extra certificate authority {number} (counted from 0)")]
    Root {
        /// Index of the invalid certificate in [`Options::extra_roots`], from 0.
        number: usize,
        /// Description of the error in the certificate.
        #[source]
        source: rustls::Error,
    },
}
