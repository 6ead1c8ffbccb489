//! Creates databases for the tests, on the PostgreSQL server that the tests of one process share.

use std::sync::OnceLock;

use reveille_coordination_postgres::{Options, migrate};
use runtime::Runtime;
use test_servers::postgres::{Postgres, shared};

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

/// Creates a database with the schema for coordination, and returns the URL of the database.
pub(crate) fn database() -> String {
    static TEMPLATE: OnceLock<String> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        let url = shared().create_database().unwrap();
        // A caller may call this function within a runtime, and a runtime cannot run inside another runtime. The
        // migration therefore runs on its own thread.
        let migrated = url.clone();
        let migrating =
            move || on_real(async |runtime| migrate(&runtime, &migrated, &Options::default()).await.unwrap());
        #[expect(clippy::disallowed_methods, reason = "a test may spawn threads")]
        std::thread::spawn(migrating).join().unwrap();
        url.rsplit_once('/').unwrap().1.to_owned()
    });
    shared().copy_database(template).unwrap()
}

/// Starts a server for one test and creates a database with the schema on it. The test may stop the server.
pub(crate) async fn own_server(runtime: &Runtime) -> (Postgres, String) {
    let server = Postgres::start().unwrap();
    let url = server.create_database().unwrap();
    migrate(runtime, &url, &Options::default()).await.unwrap();
    (server, url)
}

pub(crate) fn name_of(url: &str) -> &str {
    url.rsplit_once('/').unwrap().1
}
