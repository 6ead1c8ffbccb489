//! Tests of the client that one call opens, and of the example `leader`, on a real ZooKeeper and a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]
#![expect(clippy::disallowed_methods, reason = "the tests start processes, which use the machine's clocks")]

mod leader;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reveille_coordination_connect::coordination::recipes::{Followed, KnownLeader, Lock};
use reveille_coordination_connect::coordination::runtime::Runtime;
use reveille_coordination_connect::coordination::tree::{Acl, Credentials, TreeError};
use reveille_coordination_connect::{Access, ConnectError, ConnectOptions, OpenError, connect, connect_with, migrate};
use test_servers::{postgres, zookeeper};

/// Time limit of a step that normally takes a few seconds at most.
const TIMEOUT: Duration = Duration::from_secs(60);

fn with_tokio<T>(test: impl AsyncFnOnce() -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(test())
}

async fn prepared_database(url: String) -> String {
    migrate(&Runtime::real(), &url, None).await.unwrap();
    url
}

fn credentials() -> Access {
    Access::Credentials(vec![Credentials { name: "ann".to_owned(), password: "hunter2".to_owned() }])
}

/// Connects with a short limit, and returns the error.
async fn unreachable(url: &str) -> String {
    let options = ConnectOptions { limit: Duration::from_secs(1), ..ConnectOptions::default() };
    let began = Instant::now();
    let error = connect_with(url, Access::Open, options).await.err().expect("the engine is unreachable");
    assert!(began.elapsed() < Duration::from_secs(10), "{error} after {:?}", began.elapsed());
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let text = format!("{error:?}");
    assert!(text.contains("within 1s") && text.contains("check that the engine runs"), "{text}");
    text
}

#[test]
fn client_of_one_call_protects_its_nodes_on_every_engine() {
    with_tokio(async || {
        let database = prepared_database(postgres::shared().create_database().unwrap()).await;
        let ensemble = format!("zookeeper://{}/connect-{}", zookeeper::shared().addresses(), std::process::id());
        for url in [database, ensemble] {
            let client = connect(&url, credentials()).await.unwrap();
            assert_eq!(client.default_acl(), Acl::Creator);
            let lock = Lock::new(&client, "/locks/report".parse().unwrap(), client.default_acl());
            let held = lock.acquire().await.unwrap();
            let stranger = connect(&url, Access::Open).await.unwrap();
            assert_eq!(stranger.default_acl(), Acl::Open);
            let theirs = Lock::new(&stranger, "/locks/report".parse().unwrap(), stranger.default_acl());
            assert_eq!(theirs.acquire().await.err(), Some(TreeError::Forbidden));
            held.release().await;
            client.close().await.unwrap();
            stranger.close().await.unwrap();
        }
    });
}

#[test]
fn error_names_the_cause_and_the_next_step_within_the_limit() {
    with_tokio(async || {
        let refused = unreachable("zookeeper://127.0.0.1:9/x").await;
        assert!(refused.contains("127.0.0.1:9"), "{refused}");
        let refused = unreachable("postgres://ann:hunter2@127.0.0.1:9/x").await;
        assert!(refused.contains("127.0.0.1:9") && !refused.contains("hunter2"), "{refused}");
        let frozen = zookeeper::Zookeeper::start(1).unwrap();
        frozen.pause(0).unwrap();
        unreachable(&format!("zookeeper://{}", frozen.addresses())).await;
        frozen.resume(0).unwrap();

        let empty = connect("zookeeper://127.0.0.1:9", Access::Credentials(Vec::new())).await.err().unwrap();
        assert!(empty.to_string().contains("Access::Open"), "{empty}");
        let unknown = connect("redis://ann:hunter2@db", Access::Open).await.err().unwrap();
        assert_eq!(unknown, ConnectError::Open(OpenError::Unknown));
        let unprepared = connect(&postgres::shared().create_database().unwrap(), Access::Open).await.err().unwrap();
        assert!(unprepared.to_string().contains("reveille store migrate"), "{unprepared}");
        let missing = Access::from_file("/no/such/file").err().unwrap();
        assert!(format!("{missing:?}").contains("/no/such/file: cannot read the file"), "{missing:?}");
    });
}

/// Returns the path of an example. `cargo test` builds the examples together with the tests.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

/// Waits until a process leads, and returns the follower's value.
async fn led(followed: &mut Followed<KnownLeader>, leads: bool) -> KnownLeader {
    let known = followed.until(|known| known.leader.is_some() == leads);
    Runtime::real().timeout(TIMEOUT, known).await.expect("the leader changes")
}

fn write_credentials(folder: &Path) {
    std::fs::write(folder.join("leader.credentials"), "ann:hunter2\n").unwrap();
}
