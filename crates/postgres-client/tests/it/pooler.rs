use std::sync::Arc;

use reveille_postgres_client::{Failure, Link, Options, Server, Session};
use runtime::{Runtime, TaskSet};
use test_servers::postgres::{PgBouncer, shared};
use tokio_util::sync::CancellationToken;

fn options() -> Options {
    let settings = [("synchronous_commit", "on"), ("default_transaction_isolation", "read committed"), ("jit", "off")];
    Options { settings: settings.map(|(name, value)| (name, value.to_owned())).to_vec(), ..Options::default() }
}

/// Opens a connection and returns the value of `setting`.
async fn value(url: &str, setting: &str) -> Result<String, Failure> {
    let server = Arc::new(Server::new(url, options()).unwrap());
    Session::once(&Runtime::real(), &server, async |session| {
        let row = session.within(session.client().query_one(&format!("show {setting}"), &[])).await?;
        Ok(row.get(0))
    })
    .await
}

/// The pooler accepts the connection, but the sessions of the server have the server's defaults.
#[tokio::test]
async fn client_rejects_a_pooler_that_drops_its_settings() {
    let database = shared().create_database().unwrap();
    let name = database.rsplit_once('/').unwrap().1;
    shared().sql("postgres", &format!("alter database {name} set synchronous_commit = off")).unwrap();
    shared()
        .sql("postgres", &format!("alter database {name} set default_transaction_isolation = serializable"))
        .unwrap();
    assert_eq!(value(&database, "synchronous_commit").await.as_deref(), Ok("on"));

    let pooler = PgBouncer::start(shared()).unwrap();
    let rejection = value(&pooler.url(name), "synchronous_commit").await;
    let Err(failure @ Failure::Settings { .. }) = &rejection else { panic!("{rejection:?}") };
    assert!(!failure.is_retryable(), "{failure}");
    let text = failure.to_string();
    for part in [
        "default_transaction_isolation is serializable instead of read committed",
        "statement_timeout is 0 instead of 10000",
        "synchronous_commit is off instead of on",
        "connect to PostgreSQL directly",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("p@ss"), "{text}");

    let (runtime, stop) = (Runtime::real(), CancellationToken::new());
    let tasks = TaskSet::new(&runtime);
    let server = Arc::new(Server::new(&pooler.url(name), options()).unwrap());
    let link = Link::start(&runtime, &tasks, &server, stop.clone());
    assert!(matches!(link.session().await.map(drop), Err(Failure::Settings { .. })));
    stop.cancel();
    tasks.join().await;
}

#[tokio::test]
async fn client_rejects_a_pooler_that_rejects_its_settings() {
    let pooler = PgBouncer::start_with(shared(), "").unwrap();
    let rejection = value(&pooler.url("postgres"), "statement_timeout").await;
    let Err(failure @ Failure::Settings { .. }) = &rejection else { panic!("{rejection:?}") };
    assert!(!failure.is_retryable() && failure.to_string().contains("options"), "{failure}");
}

#[tokio::test]
async fn url_parameter_overrides_a_setting_of_the_client() {
    let url = shared().url("postgres");
    let overridden = value(&format!("{url}?options=-c%20statement_timeout%3D7s"), "statement_timeout").await;
    assert_eq!(overridden.as_deref(), Ok("7s"));
}
