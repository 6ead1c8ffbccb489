//! Where the data is and where members find each other: what the operator says, and what that means.
//!
//! Without a word it is the embedded store, in the data folder, for one process. A URL moves it. A URL may hold a
//! password, so none is ever printed or logged as it was given.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use clap::Args;
use cli_support::Url;
use coordination::tree::{Acl, Credentials, NodePath};
use membership::{Ownership, View};
use membership_postgres::PostgresOwnership;
use membership_tree::TreeOwnership;
use runtime::Runtime;
use sha2::{Digest as _, Sha256};
use store_postgres::PostgresStore;

/// How long who is no member waits for the engine of coordination, whatever the members' lease is.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EngineArguments {
    /// Where the data is, postgres://USER:PASSWORD@HOST:PORT/DATABASE; without it, in the data folder
    #[arg(long, env = "REVEILLE_STORE", hide_env_values = true)]
    store: Option<Url>,
    /// Where members find each other, postgres://USER:PASSWORD@HOST:PORT/DATABASE or zookeeper://HOST:PORT,HOST:PORT/ROOT [default: the
    /// store's database]
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Option<Url>,
    /// A file with the password for these, instead of one in the URL
    #[arg(long, env = "REVEILLE_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
}

/// What the arguments come to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Engine {
    /// In the data folder, for one process.
    #[default]
    Embedded,
    Postgres(PostgresEngine),
}

/// One database for the data, and one for coordination, mostly the same.
#[derive(Clone)]
pub(crate) struct PostgresEngine {
    pub(crate) store: Url,
    pub(crate) coordination: Url,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresEngine(…)")
    }
}

impl EngineArguments {
    /// # Errors
    /// If the two do not go together, or the file cannot be read.
    pub(crate) fn engine(&self) -> anyhow::Result<Engine> {
        match (&self.store, &self.coordination) {
            (None, None) => Ok(Engine::Embedded),
            (None, Some(_)) => bail!(
                "an embedded store belongs to one process, so there is nothing to coordinate: leave out --coordination, \
                 or share the data, too, with --store postgres://…"
            ),
            (Some(store), coordination) => Ok(Engine::Postgres(PostgresEngine {
                store: store.clone(),
                coordination: coordination.as_ref().unwrap_or(store).clone(),
                password: self.password()?,
            })),
        }
    }

    /// # Errors
    /// As [`EngineArguments::engine`]; and if no database is named.
    pub(crate) fn postgres(&self) -> anyhow::Result<PostgresEngine> {
        match self.engine()? {
            Engine::Postgres(engine) => Ok(engine),
            Engine::Embedded => bail!(
                "a process on a folder of its own is no cluster; for one, name the database with --store postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ),
        }
    }

    fn password(&self) -> anyhow::Result<Option<String>> {
        self.password_file.as_deref().map(read_password).transpose()
    }
}

/// Without the line's end.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn read_password(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Where the members of a cluster meet.
#[derive(Clone)]
pub(crate) struct Meeting {
    pub(crate) ownership: Arc<dyn Ownership>,
    /// Id of the place, kept for ever: all members that open the place read the same one.
    id: String,
}

impl PostgresEngine {
    pub(crate) fn store_options(&self) -> store_postgres::Options {
        store_postgres::Options { password: self.password.clone(), ..store_postgres::Options::default() }
    }

    /// Where the members of the cluster in `store` meet, whose leases are `lease`. On a tree their nodes are closed to all who do not know the
    /// cluster's secret.
    ///
    /// # Errors
    /// With the next step for the operator.
    pub(crate) async fn meeting(
        &self,
        runtime: &Runtime,
        lease: Duration,
        store: &PostgresStore,
    ) -> anyhow::Result<Meeting> {
        let meeting = self.open_meeting(runtime, lease, store).await?;
        let meets_in = store.meet_in(&meeting.id).await.context("cannot look where the members meet")?;
        check_meeting(&meeting, &meets_in)?;
        Ok(meeting)
    }

    /// # Errors
    /// With the next step for the operator.
    pub(crate) async fn view(&self, runtime: &Runtime, store: &PostgresStore) -> anyhow::Result<View> {
        let meeting = self.open_meeting(runtime, PATIENCE, store).await?;
        if let Some(meets_in) = &store.cluster().meets_in {
            check_meeting(&meeting, meets_in)?;
        }
        meeting.ownership.view().await.context("cannot see the members")
    }

    async fn open_meeting(&self, runtime: &Runtime, lease: Duration, store: &PostgresStore) -> anyhow::Result<Meeting> {
        let secret = Sha256::new().chain_update("reveille coordination").chain_update(&store.cluster().peer_secret.0);
        let credentials = Credentials { name: "reveille".to_owned(), password: BASE64.encode(secret.finalize()) };
        let meeting = self.meeting_of(runtime, lease, credentials).await;
        meeting.context("cannot coordinate with the other members")
    }

    /// In the database's own tables, or at `/reveille` of a tree.
    async fn meeting_of(
        &self,
        runtime: &Runtime,
        lease: Duration,
        credentials: Credentials,
    ) -> anyhow::Result<Meeting> {
        let (url, password) = (self.coordination.as_str(), self.password.clone());
        match coordination_connect::Engine::of(url)? {
            coordination_connect::Engine::Zookeeper(_) => {
                let trees = coordination_connect::trees(runtime, url, password).await?;
                let root = NodePath::new("/reveille").expect("it is a path");
                let ownership = TreeOwnership::new(runtime, trees, &root, Acl::Creator, vec![credentials]);
                let ownership = ownership.expect("its root is short");
                let id = ownership.id().await?;
                Ok(Meeting { ownership: Arc::new(ownership), id })
            }
            coordination_connect::Engine::Postgres => {
                let options =
                    membership_postgres::Options { password, ..membership_postgres::Options::with_lease(lease) };
                let ownership = PostgresOwnership::open(runtime, url, &options).await?;
                let id = ownership.id().to_owned();
                Ok(Meeting { ownership: Arc::new(ownership), id })
            }
        }
    }
}

fn check_meeting(meeting: &Meeting, meets_in: &str) -> anyhow::Result<()> {
    ensure!(
        meets_in == meeting.id,
        "the members of this cluster meet elsewhere: give the same --coordination as they do. To move them, stop them all, \
         and `update reveille.meta set coordination = null` in the store's database"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://someone:hunter2@db/reveille";

    fn arguments(store: Option<&str>, coordination: Option<&str>) -> EngineArguments {
        let url = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        EngineArguments { store: url(store), coordination: url(coordination), password_file: None }
    }

    #[test]
    fn the_stores_database_coordinates_unless_another_is_named() {
        assert!(matches!(arguments(None, None).engine().unwrap(), Engine::Embedded));
        let other = "postgresql://db2/coordination";
        for (coordination, expected) in [(None, URL), (Some(other), other)] {
            let engine = arguments(Some(URL), coordination).postgres().unwrap();
            assert_eq!((engine.store.as_str(), engine.coordination.as_str()), (URL, expected));
        }
        assert!(arguments(None, None).postgres().is_err());
    }

    #[test]
    fn an_embedded_store_with_a_shared_coordination_is_refused_with_the_way_out() {
        let said = arguments(None, Some(URL)).engine().unwrap_err().to_string();
        assert!(said.contains("--store postgres://") && said.contains("leave out --coordination"), "{said}");
    }

    #[test]
    fn no_password_is_ever_shown() {
        let arguments = arguments(Some(URL), None);
        let shown = format!("{arguments:?} {:?} {:?}", arguments.engine(), arguments.postgres());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
