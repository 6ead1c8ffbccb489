//! Databases for the tests, on the server that the test process started.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination_postgres::migrate;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use membership::{Member, MemberId, Ownership};
use membership_conformance::Subject;
use membership_postgres::{Options, PostgresOwnership};
use runtime::Runtime;
use test_servers::postgres::{Postgres, shared};

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

/// Creates a database with the schema of this build. Returns the URL of the database.
pub(crate) fn database() -> String {
    static TEMPLATE: OnceLock<String> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        let url = shared().create_database().unwrap();
        // A caller may call this function inside an async runtime, so the migration runs on its own thread.
        let migrated = url.clone();
        let migrating =
            move || on_real(async |runtime| migrate(&runtime, &migrated, &Options::default()).await.unwrap());
        #[expect(clippy::disallowed_methods, reason = "a test may spawn threads")]
        std::thread::spawn(migrating).join().unwrap();
        url.rsplit_once('/').unwrap().1.to_owned()
    });
    shared().copy_database(template).unwrap()
}

/// Starts a server for one test, and creates a database with the schema of this build on this server. The test may stop
/// this server.
pub(crate) async fn own_server(runtime: &Runtime) -> (Postgres, String) {
    let server = Postgres::start().unwrap();
    let url = server.create_database().unwrap();
    migrate(runtime, &url, &Options::default()).await.unwrap();
    (server, url)
}

pub(crate) async fn open(runtime: &Runtime, url: &str) -> PostgresOwnership {
    PostgresOwnership::open(runtime, url, &Options::default()).await.unwrap()
}

/// Opens the engine with a long timeout, so that tests without a time limit succeed on a busy machine.
pub(crate) async fn open_with_long_timeout(runtime: &Runtime, url: &str) -> PostgresOwnership {
    let options = Options { statement_timeout: Duration::from_secs(10), ..Options::default() };
    PostgresOwnership::open(runtime, url, &options).await.unwrap()
}

pub(crate) fn name_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}

pub(crate) fn member(id: u128) -> Member {
    let text = |text: &str| text.to_owned();
    Member { id: MemberId(id), name: text("host"), address: text("host:1"), owns: true, build: text("test") }
}

pub(crate) struct TestEngine {
    pub(crate) runtime: Runtime,
    pub(crate) url: String,
}

impl Subject for TestEngine {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(700)
    }

    fn open(&self) -> BoxFuture<'_, Arc<dyn Ownership>> {
        async { Arc::new(open_with_long_timeout(&self.runtime, &self.url).await) as Arc<dyn Ownership> }.boxed()
    }
}
