//! Coordination by URL: a program that is told `zookeeper://…` or `postgres://…` names no engine itself, and moves by another URL.
//!
//! What it does not do: keep anything, or try again. The recipes' `Client` does that, with the [`Trees`] that are opened here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coordination::Elector;
use coordination::recipes::{Client, Form, TreeElector};
use coordination::tree::{Acl, Credentials, NodePath, SessionOptions, Trees};
use coordination_postgres::{GroupName, GroupNameError, PostgresElectors, PostgresTrees};
use coordination_zookeeper::{ZookeeperTrees, ZookeeperUrl, ZookeeperUrlError};
use runtime::Runtime;

/// Why nothing was opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not repeat the URL, which may hold a password.
    #[error(
        "the URL names no engine of coordination that is known: zookeeper://HOST:PORT,HOST:PORT/ROOT, or \
         postgres://USER:PASSWORD@HOST:PORT/DATABASE, which `reveille store migrate` has prepared"
    )]
    Unknown,
    #[error(transparent)]
    Zookeeper(#[from] ZookeeperUrlError),
    #[error(transparent)]
    Postgres(#[from] coordination_postgres::OpenError),
    /// PostgreSQL keeps a group under its path as a name.
    #[error("the group's path is no name on PostgreSQL: {0}")]
    Group(#[from] GroupNameError),
}

/// What a URL does not say.
#[derive(Clone, Default)]
pub struct Options {
    /// Of the database, instead of one in the URL.
    pub password: Option<String>,
    /// Of the members of one group on a tree, whose nodes are then closed to everybody else.
    pub credentials: Vec<Credentials>,
}

impl Options {
    /// Of nodes that are made: closed to all others, if they say who they are.
    fn acl(&self) -> Acl {
        if self.credentials.is_empty() { Acl::Open } else { Acl::Creator }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").finish_non_exhaustive()
    }
}

/// The engine that a URL names.
pub enum Engine {
    Zookeeper(ZookeeperUrl),
    Postgres,
}

impl Engine {
    /// # Errors
    /// If the URL names no engine that is known.
    pub fn of(url: &str) -> Result<Self, OpenError> {
        if url.starts_with(ZookeeperUrl::SCHEME) {
            return Ok(Engine::Zookeeper(ZookeeperUrl::parse(url)?));
        }
        let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if is_postgres { Ok(Engine::Postgres) } else { Err(OpenError::Unknown) }
    }
}

/// The tree that `url` leads to. A ZooKeeper is reached when a session is opened, a PostgreSQL now; `password` is the database's.
///
/// # Errors
/// If it leads to none, or the database cannot be used.
pub async fn trees(runtime: &Runtime, url: &str, password: Option<String>) -> Result<Arc<dyn Trees>, OpenError> {
    Ok(match Engine::of(url)? {
        Engine::Zookeeper(url) => Arc::new(ZookeeperTrees::new(runtime.clone(), url)),
        Engine::Postgres => {
            let options = coordination_postgres::Options { password, ..coordination_postgres::Options::default() };
            Arc::new(PostgresTrees::open(runtime, url, &options).await?)
        }
    })
}

/// Makes what is needed there, or brings an older one to what this build needs; `password` is the database's.
///
/// # Errors
/// If `url` leads nowhere, or the database refuses.
pub async fn migrate(runtime: &Runtime, url: &str, password: Option<String>) -> Result<(), OpenError> {
    match Engine::of(url)? {
        Engine::Zookeeper(_) => Ok(()),
        Engine::Postgres => {
            let options = coordination_postgres::Options { password, ..coordination_postgres::Options::default() };
            Ok(coordination_postgres::migrate(runtime, url, &options).await?)
        }
    }
}

/// This process's replica object of a group of which one leads, with leases of at most `lease`. With a `form`, the group is at the path of a tree, under
/// sessions that end two leases after their process is not heard of. Without, it is what suits the engine: on PostgreSQL a lease in a row,
/// on ZooKeeper replicas that watch.
///
/// # Errors
/// If `url` leads nowhere, the database cannot be used, or a row's group is no [`GroupName`].
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
    let client = Client::new(runtime, trees(runtime, url, options.password.clone()).await?, session);
    let form = form.unwrap_or(Form::Watching);
    Ok(Arc::new(TreeElector::new(&client, group.clone(), form, options.acl())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_leads_nowhere_is_told_what_would_and_is_not_repeated() {
        for url in ["redis://ann:hunter2@db", "db:2181", "", "ZOOKEEPER://a"] {
            let error = Engine::of(url).err().expect(url).to_string();
            assert!(error.contains("zookeeper://") && error.contains("postgres://"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(matches!(Engine::of("zookeeper://ann:hunter2@a"), Err(OpenError::Zookeeper(_))));
        assert!(matches!(Engine::of("postgresql://db/x"), Ok(Engine::Postgres)));
    }
}
