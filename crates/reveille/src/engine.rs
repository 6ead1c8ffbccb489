//! Options that select the storage engine and the coordination engine, and the code that opens these engines.
//!
//! The default is the embedded store in the data folder, for one process. A URL selects a database instead. A URL may
//! contain a password, so the program never prints or logs a URL as the operator wrote it.

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
use membership::{Ownership, OwnershipError, View};
use membership_postgres::PostgresOwnership;
use membership_tree::TreeOwnership;
use runtime::Runtime;
use sha2::{Digest as _, Sha256};
use store_postgres::PostgresStore;

use crate::stop;

/// Length of the lease with which a process that is not a member uses the coordination engine. The leases of members
/// can have another length.
const VIEW_LEASE: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EngineArguments {
    /// Database for the data, postgres://USER:PASSWORD@HOST:PORT/DATABASE; without this option, the data is in the data
    /// folder
    #[arg(long, env = "REVEILLE_STORE", hide_env_values = true)]
    store: Option<Url>,
    /// Coordination engine through which members find each other, postgres://USER:PASSWORD@HOST:PORT/DATABASE,
    /// zookeeper://HOST:PORT,HOST:PORT/ROOT, or with TLS zookeeper+tls://USER@HOST:PORT/ROOT?sslrootcert=FILE [default:
    /// the store's database]
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Option<Url>,
    /// File with the password for both databases, as an alternative to a password in the URL
    #[arg(long, env = "REVEILLE_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// File with the password for the coordination engine, if it differs from the password for the store
    #[arg(long, env = "REVEILLE_COORDINATION_PASSWORD_FILE")]
    coordination_password_file: Option<PathBuf>,
}

/// Storage engine that the arguments select.
#[derive(Clone, Debug, Default)]
pub(crate) enum Engine {
    /// Embedded store in the data folder, for one process.
    #[default]
    Embedded,
    Postgres(PostgresEngine),
}

/// Database for the data, and coordination engine. The coordination engine is often the same database.
#[derive(Clone)]
pub(crate) struct PostgresEngine {
    pub(crate) store: Url,
    pub(crate) coordination: Url,
    pub(crate) password: Option<String>,
    /// Password for the coordination engine, if it has a file of its own.
    coordination_password: Option<String>,
}

impl fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresEngine(…)")
    }
}

impl EngineArguments {
    /// Returns the engine that the arguments select.
    ///
    /// # Errors
    /// Returns an error if the user sets `--coordination` without `--store`, or if a password file cannot be read.
    pub(crate) fn engine(&self) -> anyhow::Result<Engine> {
        match (&self.store, &self.coordination) {
            (None, None) => Ok(Engine::Embedded),
            (None, Some(_)) => bail!(
                "an embedded store belongs to one process and needs no coordination: leave out --coordination, or keep \
                 the data in a database with --store postgres://…"
            ),
            (Some(store), coordination) => {
                let read = |file: &Option<PathBuf>| file.as_deref().map(read_password).transpose();
                let password = read(&self.password_file)?;
                Ok(Engine::Postgres(PostgresEngine {
                    store: store.clone(),
                    coordination: coordination.as_ref().unwrap_or(store).clone(),
                    coordination_password: read(&self.coordination_password_file)?,
                    password,
                }))
            }
        }
    }

    /// Returns the database that the arguments select.
    ///
    /// # Errors
    /// Returns the same errors as [`EngineArguments::engine`], and an error if the arguments name no database.
    pub(crate) fn postgres(&self) -> anyhow::Result<PostgresEngine> {
        match self.engine()? {
            Engine::Postgres(engine) => Ok(engine),
            Engine::Embedded => bail!(
                "no database given: name the cluster's database with --store \
                 postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ),
        }
    }
}

/// Reads a password from a file. The password does not include the line end.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn read_password(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Coordination engine of a cluster. This process has opened the engine.
#[derive(Clone)]
pub(crate) struct Coordination {
    pub(crate) ownership: Arc<dyn Ownership>,
    /// Id of the coordination engine, which the engine stores permanently. All members that open the same engine read
    /// the same id.
    id: String,
    /// Address of the coordination engine, without a password.
    pub(crate) address: String,
}

/// Purpose for which a process opens the coordination engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// The process becomes a member, so it creates missing data of the cluster.
    Join,
    /// The process creates nothing.
    Read,
}

const CANNOT_COORDINATE: &str = "cannot coordinate with the other members";

/// Reason why this process cannot open the coordination engine.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Open(#[from] coordination_connect::OpenError),
    #[error(transparent)]
    Ownership(#[from] OwnershipError),
}

impl ConnectError {
    /// Returns whether a later attempt may succeed without an operator's action.
    fn is_retryable(&self) -> bool {
        match self {
            ConnectError::Open(error) => error.is_retryable(),
            ConnectError::Ownership(error) => error.is_retryable(),
        }
    }
}

impl PostgresEngine {
    pub(crate) fn store_options(&self) -> store_postgres::Options {
        store_postgres::Options { password: self.password.clone(), ..store_postgres::Options::default() }
    }

    /// Opens the coordination engine for a member of the cluster whose data is in `store`. Waits while the engine is
    /// unreachable. The leases of members have the length `lease`. If the engine is a tree, only processes that know
    /// the cluster's secret can access the nodes that members create.
    ///
    /// # Errors
    /// Returns an error if the engine cannot be opened, or if the members of the cluster use another engine.
    pub(crate) async fn coordination(
        &self,
        runtime: &Runtime,
        lease: Duration,
        store: &PostgresStore,
    ) -> anyhow::Result<Coordination> {
        let open = async || self.open_coordination(runtime, lease, store, Purpose::Join).await;
        let opened = stop::open_when_reachable(runtime, open, ConnectError::is_retryable).await?;
        let coordination = opened.context(CANNOT_COORDINATE)?;
        let recorded_id = store
            .record_coordination(&coordination.id)
            .await
            .context("cannot read the id of the members' coordination engine from the database")?;
        check_coordination(&coordination, &recorded_id)?;
        Ok(coordination)
    }

    /// Returns the members of the cluster and their shards.
    ///
    /// # Errors
    /// Returns an error if the engine cannot be opened or read, or if the members of the cluster use another engine.
    pub(crate) async fn view(&self, runtime: &Runtime, store: &PostgresStore) -> anyhow::Result<View> {
        let opened = self.open_coordination(runtime, VIEW_LEASE, store, Purpose::Read).await;
        let coordination = opened.context(CANNOT_COORDINATE)?;
        if let Some(recorded_id) = &store.cluster().coordination_id {
            check_coordination(&coordination, recorded_id)?;
        }
        coordination.ownership.view().await.context("cannot read the members of the cluster")
    }

    /// Returns the password that replaces the one in the coordination engine's URL. The store's password is only a
    /// fallback for a user without a password: the client must not show it to an engine that has its own password.
    pub(crate) fn coordination_password(&self) -> Option<String> {
        let has_own = match coordination_connect::Engine::of(self.coordination.as_str()) {
            Ok(coordination_connect::Engine::Zookeeper(url)) => url.has_password(),
            _ => false,
        };
        let fallback = self.password.clone().filter(|_| !has_own);
        self.coordination_password.clone().or(fallback)
    }

    async fn open_coordination(
        &self,
        runtime: &Runtime,
        lease: Duration,
        store: &PostgresStore,
        purpose: Purpose,
    ) -> Result<Coordination, ConnectError> {
        let secret = Sha256::new().chain_update("reveille coordination").chain_update(&store.cluster().peer_secret.0);
        let credentials = Credentials { name: "reveille".to_owned(), password: BASE64.encode(secret.finalize()) };
        self.connect_coordination(runtime, lease, credentials, purpose).await
    }

    /// Connects to the coordination engine. The engine's data is in tables of the database, or below the node
    /// `/reveille` of a tree.
    async fn connect_coordination(
        &self,
        runtime: &Runtime,
        lease: Duration,
        credentials: Credentials,
        purpose: Purpose,
    ) -> Result<Coordination, ConnectError> {
        let (url, password) = (self.coordination.as_str(), self.coordination_password());
        match coordination_connect::Engine::of(url)? {
            coordination_connect::Engine::Zookeeper(ensemble) => {
                let address = ensemble.to_string();
                let trees = coordination_connect::trees(runtime, url, password).await?;
                let root = NodePath::new("/reveille").expect("the path /reveille is valid in a tree");
                let ownership = TreeOwnership::new(runtime, trees, &root, Acl::Creator, vec![credentials]);
                let ownership = ownership.expect("the path of each node below /reveille is short enough for a tree");
                let id = match purpose {
                    Purpose::Join => ownership.id().await?,
                    Purpose::Read => ownership.existing_id().await?,
                };
                Ok(Coordination { ownership: Arc::new(ownership), id, address })
            }
            coordination_connect::Engine::Postgres => {
                let options =
                    membership_postgres::Options { password, ..membership_postgres::Options::with_lease(lease) };
                let opened = PostgresOwnership::open(runtime, url, &options).await;
                let ownership = opened.map_err(coordination_connect::OpenError::Postgres)?;
                let (id, address) = (ownership.id().to_owned(), ownership.server());
                Ok(Coordination { ownership: Arc::new(ownership), id, address })
            }
        }
    }
}

fn check_coordination(coordination: &Coordination, recorded_id: &str) -> anyhow::Result<()> {
    ensure!(
        recorded_id == coordination.id,
        "the members of this cluster use another coordination engine: give the same --coordination as for them. To \
         move the cluster, stop all members and run `update reveille.meta set coordination = null` in the store's \
         database"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://someone:hunter2@db/reveille";

    fn arguments(store: Option<&str>, coordination: Option<&str>) -> EngineArguments {
        let url = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        EngineArguments { store: url(store), coordination: url(coordination), ..EngineArguments::default() }
    }

    #[test]
    fn store_password_goes_only_to_an_engine_without_a_password_of_its_own() {
        let password = |coordination: &str, file: Option<&str>| {
            let engine = PostgresEngine {
                store: "postgres://app@db/x".parse().unwrap(),
                coordination: coordination.parse().unwrap(),
                password: Some("of the store".to_owned()),
                coordination_password: file.map(str::to_owned),
            };
            engine.coordination_password()
        };
        let store = Some("of the store".to_owned());
        assert_eq!(password("zookeeper://shop:own@zk", None), None);
        assert_eq!(password("zookeeper://shop@zk", None), store);
        assert_eq!(password("postgres://app@db/x", None), store);
        assert_eq!(password("zookeeper://shop:own@zk", Some("of the file")), Some("of the file".to_owned()));
    }

    #[test]
    fn coordination_defaults_to_the_database_of_the_store() {
        assert!(matches!(arguments(None, None).engine().unwrap(), Engine::Embedded));
        let other = "postgresql://db2/coordination";
        for (coordination, expected) in [(None, URL), (Some(other), other)] {
            let engine = arguments(Some(URL), coordination).postgres().unwrap();
            assert_eq!((engine.store.as_str(), engine.coordination.as_str()), (URL, expected));
        }
        assert!(arguments(None, None).postgres().is_err());
    }

    #[test]
    fn error_for_a_missing_store_option_states_the_next_step() {
        let error = arguments(None, Some(URL)).engine().unwrap_err().to_string();
        assert!(error.contains("--store postgres://") && error.contains("leave out --coordination"), "{error}");
    }

    #[test]
    fn debug_output_of_engine_arguments_hides_passwords() {
        let arguments = arguments(Some(URL), None);
        let shown = format!("{arguments:?} {:?} {:?}", arguments.engine(), arguments.postgres());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
