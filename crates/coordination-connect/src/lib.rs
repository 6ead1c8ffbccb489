//! Opens coordination engines by URL, `zookeeper://…`, `zookeeper+tls://…` or `postgres://…`. A program that uses this
//! crate names no engine in its code. It switches to another engine when its user configures another URL.
//!
//! [`connect()`] opens a client of the recipes with one call. The other functions return the parts of this call, for a
//! program that opens its sessions itself, and the electors.
//!
//! This crate has no state. The `Client` of the recipes stores the session and retries requests. The client opens its
//! sessions through the [`Trees`] that this crate returns.

#![warn(missing_docs)]

mod connect;
mod signals;

/// The crate `reveille-coordination`, whose ports this crate uses.
pub use coordination;

pub use connect::{Access, ConnectError, ConnectOptions, CredentialsError, connect, connect_with, read_credentials};
pub use signals::stop_signal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::Elector;
use coordination::recipes::{Client, Form, TreeElector};
use coordination::tree::{Credentials, NodePath, SessionOptions, Trees};
use coordination_postgres::{GroupName, GroupNameError, PostgresElectors, PostgresTrees};
use coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl, ZookeeperUrlError};
use runtime::Runtime;

/// Reason why this crate cannot open an engine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL has an unknown scheme or no scheme. The error text does not contain the URL, because the URL may contain
    /// a password.
    #[error(
        "unknown or missing scheme of the coordination URL; use zookeeper://HOST:PORT,HOST:PORT/ROOT, \
         zookeeper+tls:// with the same parts for TLS, or postgres://USER:PASSWORD@HOST:PORT/DATABASE with a \
         database that `reveille store migrate` has prepared"
    )]
    Unknown,
    /// The URL starts with `zookeeper://` or `zookeeper+tls://`, but is not a valid ZooKeeper URL, or a file that it
    /// names cannot be used.
    #[error(transparent)]
    Zookeeper(#[from] ZookeeperUrlError),
    /// The PostgreSQL URL is invalid, the server failed, or the schema does not match this build.
    #[error(transparent)]
    Postgres(#[from] coordination_postgres::OpenError),
    /// PostgreSQL stores the lease in a row, but the path of the replica group is not a valid [`GroupName`].
    #[error("the path of the replica group is not valid on PostgreSQL: {0}")]
    Group(#[from] GroupNameError),
}

impl OpenError {
    /// Returns whether a later attempt may succeed without an operator's action. A program that may start before its
    /// database passes this function to [`Runtime::open_when_reachable`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            OpenError::Postgres(error) => error.is_retryable(),
            OpenError::Unknown | OpenError::Zookeeper(_) | OpenError::Group(_) => false,
        }
    }
}

/// Settings that the URL does not contain.
#[derive(Clone, Default)]
pub struct Options {
    /// Password of the database, or of the user in a ZooKeeper URL. It replaces a password in the URL.
    pub password: Option<String>,
    /// Credentials of the members of one replica group on a tree. If they are set, other sessions cannot access the
    /// nodes of the replica group.
    pub credentials: Vec<Credentials>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").finish_non_exhaustive()
    }
}

/// Engine that a URL names.
pub enum Engine {
    /// ZooKeeper, with the servers and the root node that the URL names.
    Zookeeper(ZookeeperUrl),
    /// PostgreSQL. [`Engine::of`] checks only the scheme of the URL.
    Postgres,
}

impl Engine {
    /// Parses a URL and returns its engine.
    ///
    /// # Errors
    /// Returns an error if the URL names an unknown engine, or if a ZooKeeper URL cannot be used.
    pub fn of(url: &str) -> Result<Self, OpenError> {
        if url.starts_with(ZookeeperUrl::SCHEME) || url.starts_with(ZookeeperUrl::TLS_SCHEME) {
            return Ok(Engine::Zookeeper(ZookeeperUrl::parse(url)?));
        }
        let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if is_postgres { Ok(Engine::Postgres) } else { Err(OpenError::Unknown) }
    }
}

/// Opens the tree at `url`. For PostgreSQL, the function connects at once. For ZooKeeper, the returned object connects
/// when the caller opens a session. `password` is the password of the database, or of the user in a ZooKeeper URL. It
/// replaces a password in the URL.
///
/// # Errors
/// Returns an error if the URL is invalid or this build cannot use the database.
pub async fn trees(runtime: &Runtime, url: &str, password: Option<String>) -> Result<Arc<dyn Trees>, OpenError> {
    Ok(match Engine::of(url)? {
        Engine::Zookeeper(url) => Arc::new(ZookeeperTrees::new(runtime.clone(), url.with_password(password))),
        Engine::Postgres => {
            let options = coordination_postgres::Options { password, ..coordination_postgres::Options::default() };
            Arc::new(PostgresTrees::open(runtime, url, &options).await?)
        }
    })
}

/// Creates or upgrades the schema at `url` to the version that this build needs. `password` is the password of the
/// database.
///
/// # Errors
/// Returns an error if the URL is invalid or the database rejects the migration.
pub async fn migrate(runtime: &Runtime, url: &str, password: Option<String>) -> Result<(), OpenError> {
    match Engine::of(url)? {
        Engine::Zookeeper(_) => Ok(()),
        Engine::Postgres => {
            let options = coordination_postgres::Options { password, ..coordination_postgres::Options::default() };
            Ok(coordination_postgres::migrate(runtime, url, &options).await?)
        }
    }
}

/// Returns an elector of the replica group `group` for this process, with leases of at most `lease`. If the caller
/// passes a `form`, the elector uses nodes at the path `group` of a tree. Without a `form`, PostgreSQL stores the lease
/// in a row, and ZooKeeper uses [`Form::Watching`]. An elector on a tree has a session. The session ends if the elector
/// has no contact with the engine for twice the time `lease`.
///
/// # Errors
/// Returns an error if the URL is invalid, if this build cannot use the database, or if PostgreSQL stores the lease in
/// a row and `group` is not a valid [`GroupName`].
pub async fn elector(
    runtime: &Runtime,
    url: &str,
    group: &NodePath,
    lease: Duration,
    form: Option<Form>,
    options: &Options,
) -> Result<Arc<dyn Elector>, OpenError> {
    if form.is_none() && matches!(Engine::of(url)?, Engine::Postgres) {
        let group = GroupName::new(group.as_str())?;
        let password = options.password.clone();
        let options = coordination_postgres::Options { password, ..coordination_postgres::Options::with_lease(lease) };
        let electors = PostgresElectors::open(runtime, url, &options).await?;
        return Ok(Arc::new(electors.elector(&group)));
    }
    let session = SessionOptions { timeout: lease * 2, credentials: options.credentials.clone() };
    let acl = session.default_acl();
    let client = Client::new(runtime, trees(runtime, url, options.password.clone()).await?, session);
    let form = form.unwrap_or(Form::Watching);
    Ok(Arc::new(TreeElector::new(&client, group.clone(), form, acl)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_an_unknown_url_lists_valid_forms_and_hides_the_url() {
        for url in ["redis://ann:hunter2@db", "db:2181", "", "ZOOKEEPER://a"] {
            let error = Engine::of(url).err().expect(url).to_string();
            assert!(error.contains("zookeeper://") && error.contains("postgres://"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = Engine::of("zookeeper://ann:hunter2@a:x").err().expect("the port is invalid");
        assert!(matches!(error, OpenError::Zookeeper(_)) && !format!("{error} {error:?}").contains("hunter2"));
        assert!(matches!(Engine::of("zookeeper://ann:hunter2@a"), Ok(Engine::Zookeeper(_))));
        assert!(matches!(Engine::of("zookeeper+tls://a:2281/x"), Ok(Engine::Zookeeper(_))));
        assert!(matches!(Engine::of("postgresql://db/x"), Ok(Engine::Postgres)));
    }
}
