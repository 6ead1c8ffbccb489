//! Opens a client of the engine that a URL names, with one call.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coordination::recipes::Client;
use coordination::tree::{Credentials, SessionOptions, TreeError};
use runtime::Runtime;

use crate::{OpenError, trees};

/// Access of other processes to the nodes that a client creates with [`Client::default_acl`]. A caller must name it, so
/// that no program grants access to everyone by mistake.
#[derive(Clone, Debug)]
pub enum Access {
    /// Only processes with the same credentials have access. The list must not be empty.
    Credentials(Vec<Credentials>),
    /// Every process that can reach the engine can read, change and delete the nodes.
    Open,
}

impl Access {
    /// Reads credentials from a file that `reveille credentials FILE` created. Each line has the form `NAME:PASSWORD`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or contains no credentials. The error contains no password.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, CredentialsError> {
        read_credentials(path.as_ref()).map(Access::Credentials)
    }

    /// Returns the credentials, which are none for [`Access::Open`].
    #[must_use]
    pub fn credentials(&self) -> &[Credentials] {
        match self {
            Access::Credentials(credentials) => credentials,
            Access::Open => &[],
        }
    }
}

/// Reads credentials like [`Access::from_file`].
///
/// # Errors
/// Returns an error if the file cannot be read or contains no credentials. The error contains no password.
pub fn read_credentials(path: &Path) -> Result<Vec<Credentials>, CredentialsError> {
    let error = |problem| CredentialsError { path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|failure| error(format!("cannot read the file: {failure}")))?;
    parse_credentials(&text).map_err(error)
}

fn parse_credentials(text: &str) -> Result<Vec<Credentials>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(at, line): (usize, &str)| match line.split_once(':') {
        Some((name, password)) => Ok(Credentials { name: name.to_owned(), password: password.to_owned() }),
        None => Err(format!("line {}: expected the form NAME:PASSWORD", at + 1)),
    };
    let all = lines.map(parse).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() {
        let text = "the file has no line NAME:PASSWORD; `reveille credentials FILE` creates a file with one";
        return Err(text.to_owned());
    }
    Ok(all)
}

/// Reason why a file of credentials cannot be used.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct CredentialsError {
    path: PathBuf,
    problem: String,
}

/// Options of [`connect_with`].
#[derive(Clone)]
pub struct ConnectOptions {
    /// Longest time for which the call waits until the engine responds. The default is 15 s. If the time is too short,
    /// a program that starts together with its engine fails. If the time is too long, a program with a wrong address
    /// reports its error late.
    pub limit: Duration,
    /// Timeout of the client's sessions ([`SessionOptions::timeout`]). The default is 10 s.
    pub session_timeout: Duration,
    /// Password of the database, or of the user in a ZooKeeper URL. It replaces a password in the URL. By default the
    /// URL contains the password.
    pub password: Option<String>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let session_timeout = SessionOptions::default().timeout;
        ConnectOptions { limit: Duration::from_secs(15), session_timeout, password: None }
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("limit", &self.limit)
            .field("session_timeout", &self.session_timeout)
            .finish_non_exhaustive()
    }
}

/// Reason why [`connect`] returned no client.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The engine did not respond in time.
    #[error(
        "cannot reach the coordination engine within {limit:?}: {cause}; check that the engine runs and is reachable \
         from this machine, or allow more time with `ConnectOptions::limit`"
    )]
    Unreachable {
        /// [`ConnectOptions::limit`].
        limit: Duration,
        /// Last failure.
        cause: String,
    },
    /// The URL is invalid, or this build cannot use the database.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine rejects the session.
    #[error("the coordination engine rejects the session: {0}")]
    Rejected(TreeError),
    /// [`Access::Credentials`] contains no credentials.
    #[error("no credentials: pass at least one name and password, or choose `Access::Open`")]
    NoCredentials,
}

/// Writes the same text as `Display`, because a `main` function that returns an error prints its debug text.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes the same text as `Display`, because a `main` function that returns an error prints its debug text.
impl fmt::Debug for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opens a client of the engine at `url`, with the options of [`ConnectOptions::default`]. Waits for up to 15 s while
/// the engine does not respond, because a program may start before its engine. On PostgreSQL, [`crate::migrate`] or
/// `reveille store migrate` must have prepared the database.
///
/// # Errors
/// Returns an error if the engine does not respond in time, if the URL is invalid, or if the engine rejects the session.
///
/// # Panics
/// Panics if the caller is outside a tokio runtime.
pub async fn connect(url: &str, access: Access) -> Result<Client, ConnectError> {
    connect_with(url, access, ConnectOptions::default()).await
}

/// Opens a client like [`connect`], with these options.
///
/// # Errors
/// Returns the same errors as [`connect`].
///
/// # Panics
/// Panics if the caller is outside a tokio runtime.
pub async fn connect_with(url: &str, access: Access, options: ConnectOptions) -> Result<Client, ConnectError> {
    let ConnectOptions { limit, session_timeout, password } = options;
    let credentials = match access {
        Access::Credentials(credentials) if credentials.is_empty() => return Err(ConnectError::NoCredentials),
        Access::Credentials(credentials) => credentials,
        Access::Open => Vec::new(),
    };
    let runtime = Runtime::real();
    let deadline = runtime.monotonic() + limit;
    let mut cause = "no response".to_owned();
    let open = async || {
        let opened = trees(&runtime, url, password.clone()).await;
        opened.inspect_err(|error| cause = error.to_string())
    };
    let opened = runtime.timeout(limit, runtime.open_when_reachable(open, OpenError::is_retryable)).await;
    let Some(trees) = opened.transpose()? else { return Err(ConnectError::Unreachable { limit, cause }) };
    let client = Client::new(&runtime, trees, SessionOptions { timeout: session_timeout, credentials });
    match client.connect(deadline.since(runtime.monotonic())).await {
        Ok(()) => Ok(client),
        Err(error) if error.is_retryable() => Err(ConnectError::Unreachable { limit, cause: error.to_string() }),
        Err(error) => Err(ConnectError::Rejected(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_credentials_contains_no_password() {
        let parsed = parse_credentials("\nann:p:w\n").unwrap();
        assert_eq!(parsed, [Credentials { name: "ann".to_owned(), password: "p:w".to_owned() }]);
        let error = parse_credentials("ann:p\nhunter2").unwrap_err();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
        assert!(parse_credentials(" \n").unwrap_err().contains("reveille credentials"));
        let options = ConnectOptions { password: Some("hunter2".to_owned()), ..ConnectOptions::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
