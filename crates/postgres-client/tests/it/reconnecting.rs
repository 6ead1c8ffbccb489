use std::sync::Arc;
use std::time::Duration;

use reveille_postgres_client::{Admission, Failure, Link, Options, Probe, Server, Session};
use runtime::{Runtime, TaskSet};
use test_servers::postgres::Postgres;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

async fn one(link: &Link) -> Result<i32, Failure> {
    let session = link.session().await?;
    let statement = session.prepare("select 1").await?;
    Ok(session.within(session.client().query_one(&statement, &[])).await?.get(0))
}

async fn until(link: &mut Link, is_up: bool) {
    let waiting = async {
        while link.is_up() != is_up {
            link.changed().await;
        }
    };
    let waited = Runtime::real().timeout(Duration::from_secs(60), Box::pin(waiting)).await;
    assert_eq!(waited, Some(()), "the link does not go {} within 60 s", if is_up { "up" } else { "down" });
}

#[tokio::test]
async fn link_reconnects_after_its_server_restarts() {
    let postgres = Postgres::start().unwrap();
    let (runtime, stop) = (Runtime::real(), CancellationToken::new());
    let tasks = TaskSet::new(&runtime);
    let options = Options { statement_timeout: Duration::from_millis(300), ..Options::default() };
    let server = Arc::new(Server::new(&postgres.url("postgres"), options).unwrap());
    let mut link = Link::start(&runtime, &tasks, &server, stop.clone());
    assert_eq!(one(&link).await, Ok(1));

    for kill in [true, false] {
        if kill {
            postgres.kill().unwrap()
        } else {
            postgres.stop().unwrap()
        }
        until(&mut link, false).await;
        let failure = one(&link).await.unwrap_err();
        assert!(failure.is_retryable(), "{failure}");
        postgres.restart().unwrap();
        until(&mut link, true).await;
        assert_eq!(one(&link).await, Ok(1));
    }

    let long = async {
        let session = link.session().await?;
        session.within(session.client().batch_execute("select pg_sleep(5)")).await
    };
    let failure = long.await.unwrap_err();
    assert!(
        failure.is_retryable() && !failure.is_conflict(),
        "the server cancels a statement that is too long: {failure}"
    );

    // The paused server does not respond at all. The session therefore ends the connection, and the link connects again
    // after the server resumes.
    postgres.pause().unwrap();
    let failure = one(&link).await.unwrap_err();
    assert!(matches!(failure, Failure::Silent { .. }), "{failure}");
    postgres.resume().unwrap();
    until(&mut link, false).await;
    until(&mut link, true).await;
    assert_eq!(one(&link).await, Ok(1));

    stop.cancel();
    tasks.join().await;
    assert!(one(&link).await.is_err());
}

/// The test makes the server behave as a primary that becomes a standby: the server keeps its connections and rejects
/// writes.
#[tokio::test]
async fn link_disconnects_from_server_that_becomes_read_only() {
    let postgres = Postgres::start().unwrap();
    let (runtime, stop) = (Runtime::real(), CancellationToken::new());
    let tasks = TaskSet::new(&runtime);
    let server = Arc::new(Server::new(&postgres.url("postgres"), Options::default()).unwrap());
    let mut link = Link::start(&runtime, &tasks, &server, stop.clone());
    let write = async |link: &Link| {
        let session = link.session().await?;
        session.within(session.client().batch_execute("create table if not exists written ()")).await
    };
    assert_eq!(write(&link).await, Ok(()));
    let read_only = |is: &str| {
        postgres.sql("postgres", &format!("alter system set default_transaction_read_only = {is}")).unwrap();
        postgres.sql("postgres", "select pg_reload_conf()").unwrap();
    };
    read_only("on");
    let failure = loop {
        match write(&link).await {
            Ok(()) => runtime.sleep(Duration::from_millis(5)).await,
            Err(failure) => break failure,
        }
    };
    assert!(failure.is_retryable(), "{failure}");
    until(&mut link, false).await;
    read_only("off");
    until(&mut link, true).await;
    assert_eq!(write(&link).await, Ok(()));
    stop.cancel();
    tasks.join().await;
}

/// Without the probe, the link would wait for the statement timeout of the admission.
#[tokio::test]
async fn link_fails_soon_if_the_server_stops_responding_during_the_admission() {
    let postgres = Postgres::start().unwrap();
    let (runtime, stop) = (Runtime::real(), CancellationToken::new());
    let tasks = TaskSet::new(&runtime);
    let options = Options { statement_timeout: Duration::from_secs(600), ..Options::default() };
    let server = Arc::new(Server::new(&postgres.url("postgres"), options).unwrap());
    let probe = Probe::start(&runtime, &tasks, &server, stop.clone());
    let (admitting, admit) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begun, wait) = (admitting.clone(), admit.clone());
    let admission: Admission = Arc::new(move |session: Arc<Session>| {
        let (begun, wait) = (begun.clone(), wait.clone());
        Box::pin(async move {
            begun.notify_one();
            wait.notified().await;
            session.within(session.client().batch_execute("select 1")).await?;
            Ok(CancellationToken::new())
        })
    });
    let mut link = Link::start_admitted(&runtime, &tasks, &server, &probe, admission, stop.clone());
    admitting.notified().await;
    // The probe detects the silence only on a connection that has worked.
    let probes = "select count(*) from pg_stat_activity where query = 'select 1' and state = 'idle'";
    while postgres.sql("postgres", probes).unwrap().trim() != "1" {
        runtime.sleep(Duration::from_millis(20)).await;
    }
    postgres.pause().unwrap();
    admit.notify_one();
    let session = runtime.timeout(Duration::from_secs(20), link.session()).await.expect("the link waits for long");
    let failure = session.map(drop).unwrap_err();
    assert!(matches!(failure, Failure::Silent { .. }), "{failure}");
    postgres.resume().unwrap();
    admit.notify_one();
    until(&mut link, true).await;
    stop.cancel();
    tasks.join().await;
}
