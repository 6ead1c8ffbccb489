//! Tests of the errors of a store that cannot open. Each error must state the reason and the operator's next step.

use std::time::Duration;

use domain::Timestamp;
use postgres_client::Failure;
use runtime::Runtime;
use store::Store as _;
use store_postgres::{OpenError, Options, SCHEMA_VERSION, migrate};
use test_servers::postgres::{PgBouncer, shared};

use crate::support::{Home, database, name_of, on_real};

async fn open_error(runtime: &Runtime, url: &str, options: Options) -> OpenError {
    match Home::try_open(runtime, url, options).await {
        Ok(_) => panic!("the store opens"),
        Err(error) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("p@ss") && !text.contains("p%40ss") && !text.contains("secret"), "{text}");
            error
        }
    }
}

#[test]
fn error_names_the_unreachable_server_or_the_rejected_login() {
    let url = database();
    on_real(async |runtime| {
        let quick = || Options { connect_timeout: Duration::from_millis(300), ..Options::default() };
        let wrong = url.replace("p%40ss", "secret");
        let error = open_error(&runtime, &wrong, quick()).await;
        assert!(error.to_string().contains("check the user, the password"), "{error}");
        let error = open_error(&runtime, "postgresql://a:secret@127.0.0.1:1/b", quick()).await;
        assert!(error.to_string().contains("postgresql://a@127.0.0.1:1/b cannot be reached"), "{error}");
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let silent = format!("postgresql://a:secret@{}/b", silent.local_addr().unwrap());
        let error = open_error(&runtime, &silent, quick()).await;
        assert!(
            error.to_string().contains("did not respond within 300ms") || error.to_string().contains("reached"),
            "{error}"
        );
        let error = open_error(&runtime, "postgres//a:secret@b", quick()).await;
        assert!(matches!(error, OpenError::Url(_)), "{error}");
        let options = Options { password: Some(test_servers::postgres::PASSWORD.to_owned()), ..quick() };
        Home::try_open(&runtime, &wrong, options).await.unwrap().stop().await;
    });
}

#[test]
fn store_opens_only_a_database_with_its_schema_version() {
    let (url, empty) = (database(), shared().create_database().unwrap());
    on_real(async |runtime| {
        let open = async |url: &str| open_error(&runtime, url, Options::default()).await;
        let error = open(&empty).await;
        assert!(matches!(error, OpenError::NoSchema { .. }), "{error}");
        assert!(error.to_string().contains("`reveille store migrate --store …`"), "{error}");

        let set = |version: i32| {
            shared().sql(name_of(&url), &format!("update reveille.meta set version = {version}")).unwrap();
        };
        set(SCHEMA_VERSION - 1);
        let error = open(&url).await;
        assert!(matches!(error, OpenError::Older { found, .. } if found == SCHEMA_VERSION - 1), "{error}");
        set(SCHEMA_VERSION + 1);
        let error = open(&url).await;
        assert!(matches!(error, OpenError::Newer { found, .. } if found == SCHEMA_VERSION + 1), "{error}");
        let error = migrate(&runtime, &url, &Options::default()).await.unwrap_err();
        assert!(matches!(error, OpenError::Newer { .. }), "{error}");
    });
}

#[test]
fn store_rejects_a_pooler_that_drops_its_settings() {
    let url = database();
    let pooler = PgBouncer::start(shared()).unwrap();
    let pooled = pooler.url(name_of(&url));
    on_real(async |runtime| {
        let error = open_error(&runtime, &pooled, Options::default()).await;
        assert!(error.to_string().contains("statement_timeout is 0 instead of 10000"), "{error}");
        let migration = migrate(&runtime, &pooled, &Options::default()).await.unwrap_err();
        for error in [error, migration] {
            assert!(matches!(error, OpenError::Server(Failure::Settings { .. })), "{error}");
        }
    });
}

#[test]
fn repeated_or_concurrent_migrations_create_one_schema() {
    let url = shared().create_database().unwrap();
    on_real(async |runtime| {
        let options = Options::default();
        let migrations = (0..4).map(|_| migrate(&runtime, &url, &options));
        let migrated = futures_util::future::join_all(migrations).await;
        let mut created = 0;
        let mut clusters = std::collections::BTreeSet::new();
        for migrated in migrated {
            let migrated = migrated.unwrap();
            created += u32::from(migrated.from.is_none());
            clusters.insert(migrated.cluster);
        }
        assert_eq!((created, clusters.len()), (1, 1));
        let again = migrate(&runtime, &url, &options).await.unwrap();
        assert_eq!((again.from, again.to), (Some(SCHEMA_VERSION), SCHEMA_VERSION));
        assert!(clusters.contains(&again.cluster));

        let expecting = |cluster: &str| Options { cluster: Some(cluster.to_owned()), ..Options::default() };
        let home = Home::try_open(&runtime, &url, expecting(&again.cluster)).await.unwrap();
        assert_eq!(home.store.cluster().id, again.cluster);
        home.close().await;
        let error = open_error(&runtime, &url, expecting("another")).await;
        assert!(matches!(error, OpenError::OtherCluster { .. }), "{error}");
    });
}

#[test]
fn database_owner_needs_no_superuser_rights_to_use_the_store() {
    let url = shared().create_database().unwrap();
    let name = name_of(&url);
    let make = format!("create role plain login password 'secret'; alter database {name} owner to plain");
    shared().sql("postgres", &make).unwrap();
    let plain = format!("postgresql://plain:secret@127.0.0.1:{}/{name}", shared().port());
    on_real(async |runtime| {
        migrate(&runtime, &plain, &Options::default()).await.unwrap();
        let home = Home::open(&runtime, &plain).await;
        let insert = crate::support::one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        home.store.insert(vec![insert]).await.unwrap();
        assert_eq!(home.store.maintain(runtime.now(), Timestamp::MIN).await, Ok(0));
        home.close().await;
    });
}
