//! Tests that open databases with and without a suitable schema.

use std::time::Duration;

use coordination::Elector as _;
use postgres_client::Failure;
use reveille_coordination_postgres::{OpenError, Options, PostgresElectors, VERSION, migrate};
use runtime::Runtime;
use test_servers::postgres::{PASSWORD, PgBouncer, shared};

use crate::electors::{group, open};
use crate::support::{database, name_of, on_real};

const LONG: Duration = Duration::from_secs(60);

async fn open_error(runtime: &Runtime, url: &str) -> OpenError {
    PostgresElectors::open(runtime, url, &Options::default()).await.map(drop).unwrap_err()
}

#[test]
fn engine_rejects_a_database_until_its_schema_exists() {
    let url = shared().create_database().unwrap();
    on_real(async |runtime| {
        let error = open_error(&runtime, &url).await;
        assert!(matches!(error, OpenError::SchemaMissing { .. }), "{error:?}");
        assert!(error.to_string().contains("reveille store migrate") && !error.is_retryable(), "{error}");
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let elector = open(&runtime, &url).await.elector(&group());
        let first = elector.is_leader("a", LONG).await.unwrap();
        // The second migration runs while a leader exists.
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!(elector.is_leader("a", LONG).await, Ok(first));
    });
}

#[test]
fn concurrent_migrations_create_one_schema() {
    let url = shared().create_database().unwrap();
    on_real(async |runtime| {
        let options = Options::default();
        let migrations = (0..4).map(|_| migrate(&runtime, &url, &options));
        for migrated in futures_util::future::join_all(migrations).await {
            migrated.unwrap();
        }
        drop(open(&runtime, &url).await);
    });
}

#[test]
fn engine_rejects_a_schema_of_an_older_or_newer_build() {
    let url = database();
    let set = |version: i32| {
        let statement = format!("update reveille_coordination.meta set version = {version}");
        shared().sql(name_of(&url), &statement).unwrap();
    };
    on_real(async |runtime| {
        set(VERSION + 1);
        let newer = open_error(&runtime, &url).await;
        assert!(matches!(newer, OpenError::SchemaNewer { found, .. } if found == VERSION + 1), "{newer:?}");
        let newer = migrate(&runtime, &url, &Options::default()).await.unwrap_err();
        assert!(matches!(newer, OpenError::SchemaNewer { .. }), "a newer schema is not changed: {newer:?}");
        set(-1);
        let older = open_error(&runtime, &url).await;
        assert!(matches!(older, OpenError::SchemaOlder { .. }), "{older:?}");
        assert!(older.to_string().contains("reveille store migrate"), "{older}");
    });
}

#[test]
fn engine_rejects_a_pooler_that_drops_its_settings() {
    let url = database();
    let pooler = PgBouncer::start(shared()).unwrap();
    let pooled = pooler.url(name_of(&url));
    on_real(async |runtime| {
        let migration = migrate(&runtime, &pooled, &Options::default()).await.unwrap_err();
        for error in [open_error(&runtime, &pooled).await, migration] {
            assert!(matches!(error, OpenError::Server(Failure::Settings { .. })), "{error}");
            assert!(!error.is_retryable(), "{error}");
        }
    });
}

#[test]
fn errors_and_debug_texts_hide_the_password() {
    let url = database();
    on_real(async |runtime| {
        let wrong = Options { password: Some("hunter2-wrong".to_owned()), ..Options::default() };
        let denied = PostgresElectors::open(&runtime, &url, &wrong).await.map(drop).unwrap_err();
        let nowhere = open_error(&runtime, &url.replace(&format!(":{}", shared().port()), ":1")).await;
        let unreadable = open_error(&runtime, &url.replace("127.0.0.1", "[")).await;
        let electors = open(&runtime, &url).await;
        for text in [
            format!("{denied} {denied:?} {wrong:?}"),
            format!("{nowhere} {nowhere:?}"),
            format!("{unreadable} {unreadable:?}"),
            format!("{electors:?}"),
        ] {
            assert!(!text.contains(PASSWORD) && !text.contains("p%40ss") && !text.contains("hunter2"), "{text}");
        }
        assert!(nowhere.is_retryable() && !denied.is_retryable() && !unreadable.is_retryable());
    });
}
