//! What a user of the SDK may set.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

/// Limits, each with a default that suits a service that calls its Reveille in the same region.
#[derive(Clone, Debug)]
pub struct Options {
    /// For one attempt, from connecting to the end of the answer. Default 10 s. Too short breaks off what the server was
    /// about to answer; too long leaves less of the deadline for another try.
    pub attempt_timeout: Duration,
    /// For a call, with all attempts and the waits between them; a batch has none. Default 30 s. Too short makes a restart of
    /// the server an error of yours; too long keeps your caller waiting.
    pub deadline: Duration,
    /// To connect, of one attempt. Default 5 s.
    pub connect_timeout: Duration,
    /// Attempts of a call. Default 6; 1 is never to try again.
    pub attempts_max: u32,
    /// The bound of the first wait, doubled for each further one; the wait is drawn evenly below it, and never shorter than
    /// the server asks for (`Retry-After`). Default 100 ms. Too short is a burden to a server in trouble.
    pub backoff: Duration,
    /// No bound of a wait is longer. Default 5 s.
    pub backoff_max: Duration,
    /// The largest answer that is read. Default 128 MiB: more than the largest page. A smaller one guards your memory, and
    /// needs pages with smaller limits.
    pub answer_bytes_max: usize,
    /// Connections kept open between calls. Default 32. Too few cost a handshake for calls that overlap.
    pub idle_connections_max: usize,
    /// Certificate authorities to trust beside those of the Mozilla list.
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

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address of the server.
    #[error("{url:?} is no address of a server: {reason}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The key, which is not shown.
    #[error("the key is not one: it is `ID.SECRET` in visible ASCII, as `data/admin.key` has it")]
    Key,
    /// One of [`Options::extra_roots`].
    #[error("extra certificate authority number {number} (from 0) cannot be read")]
    Root {
        /// From 0.
        number: usize,
        /// What is wrong with it.
        #[source]
        source: rustls::Error,
    },
}
