//! What is opened and what is not.

use std::time::Duration;

use coordination::{ClaimName, Elector as _, Member, MemberId, Ownership as _};
use coordination_postgres::{OpenError, Options, PostgresCoordination, VERSION, migrate};
use runtime::Runtime;
use test_servers::postgres::{PASSWORD, shared};

use crate::support::{Subjected, database, member, name_of, on_real, open};

const LONG: Duration = Duration::from_secs(60);

async fn refusal(runtime: &Runtime, url: &str) -> OpenError {
    PostgresCoordination::open(runtime, url, &Options::default()).await.map(drop).unwrap_err()
}

#[test]
fn a_database_without_the_schema_is_refused_until_it_is_migrated() {
    let url = shared().create_database().unwrap();
    on_real(async |runtime| {
        let refused = refusal(&runtime, &url).await;
        assert!(matches!(refused, OpenError::SchemaMissing { .. }), "{refused:?}");
        assert!(refused.to_string().contains("reveille store migrate") && !refused.is_retryable(), "{refused}");
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        // Again, with a member in it.
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!(coordination.view().await.unwrap().members, [member(1)]);
    });
}

/// Its members go on meanwhile.
#[test]
fn an_older_schema_is_brought_along_with_its_members() {
    let url = shared().create_database().unwrap();
    let first = include_str!("../../migrations/0001.sql");
    let version = "insert into reveille_coordination.meta (version) values (1)";
    let before = format!("select reveille_coordination.join_as('{}', 'old', 'old:1', true, 'old', 60000)", MemberId(1));
    for statements in [first, version, &before] {
        shared().sql(name_of(&url), statements).unwrap();
    }
    on_real(async |runtime| {
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let (coordination, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        assert_eq!(coordination.id(), other.id());
        coordination.renew(MemberId(1), LONG).await.unwrap();
        for owns in [true, false] {
            let told = Member { owns, ..member(2) };
            coordination.join(told.clone(), LONG).await.unwrap();
            assert_eq!(other.view().await.unwrap().members.last(), Some(&told));
        }
    });
}

#[test]
fn two_that_migrate_at_once_make_one_schema() {
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
fn a_schema_of_another_build_is_refused() {
    let url = database();
    let set = |version: i32| {
        let statement = format!("update reveille_coordination.meta set version = {version}");
        shared().sql(name_of(&url), &statement).unwrap();
    };
    on_real(async |runtime| {
        set(VERSION + 1);
        let newer = refusal(&runtime, &url).await;
        assert!(matches!(newer, OpenError::SchemaNewer { found, .. } if found == VERSION + 1), "{newer:?}");
        let newer = migrate(&runtime, &url, &Options::default()).await.unwrap_err();
        assert!(matches!(newer, OpenError::SchemaNewer { .. }), "a newer schema is left alone: {newer:?}");
        set(-1);
        let older = refusal(&runtime, &url).await;
        assert!(matches!(older, OpenError::SchemaOlder { .. }), "{older:?}");
        assert!(older.to_string().contains("reveille store migrate"), "{older}");
    });
}

#[test]
fn no_error_shows_the_password() {
    let url = database();
    on_real(async |runtime| {
        let wrong = Options { password: Some("hunter2-wrong".to_owned()), ..Options::default() };
        let denied = PostgresCoordination::open(&runtime, &url, &wrong).await.map(drop).unwrap_err();
        let nowhere = refusal(&runtime, &url.replace(&format!(":{}", shared().port()), ":1")).await;
        let unreadable = refusal(&runtime, &url.replace("127.0.0.1", "[")).await;
        let coordination = open(&runtime, &url).await;
        for text in [
            format!("{denied} {denied:?} {wrong:?}"),
            format!("{nowhere} {nowhere:?}"),
            format!("{unreadable} {unreadable:?}"),
            format!("{coordination:?}"),
        ] {
            assert!(!text.contains(PASSWORD) && !text.contains("p%40ss") && !text.contains("hunter2"), "{text}");
        }
        assert!(nowhere.is_retryable() && !denied.is_retryable() && !unreadable.is_retryable());
    });
}

#[test]
fn another_user_than_the_schemas_owner_works_with_the_permissions_that_are_told() {
    let url = database();
    let database = name_of(&url).to_owned();
    let user = format!("runner_of_{database}");
    let sql = |statement: &str| shared().sql(&database, statement).unwrap();
    sql(&format!("create role {user} login password 'secret'"));
    let theirs = format!("postgresql://{user}:secret@127.0.0.1:{}/{database}", shared().port());
    on_real(async |runtime| {
        let refused = refusal(&runtime, &theirs).await;
        assert!(!refused.is_retryable() && refused.to_string().contains("permission denied"), "{refused}");
        sql(&format!("grant usage on schema reveille_coordination to {user}"));
        sql(&format!("grant select, insert, update, delete on all tables in schema reveille_coordination to {user}"));
        let coordination = open(&runtime, &theirs).await;
        let case =
            coordination::conformance::Case::named(coordination::conformance::CASES, "claims_go_with_those_who_leave");
        case.run(&Subjected { runtime: runtime.clone(), url: theirs.clone() }).await;
        sql(&format!("revoke all on all tables in schema reveille_coordination from {user}"));
        let refused = coordination.view().await.unwrap_err();
        assert!(!refused.is_retryable() && refused.to_string().contains("permission denied"), "{refused}");
    });
}

/// What is held is in rows, which outlive connections, and in tables that outlive a crash.
#[test]
fn no_lock_of_a_connection_holds_anything() {
    let url = database();
    on_real(async |runtime| {
        let coordination = open(&runtime, &url).await;
        let claims = [ClaimName::leader()];
        coordination.join(member(1), LONG).await.unwrap();
        assert_eq!(coordination.claim(member(1).id, claims.to_vec()).await, Ok(vec![true]));
        let elector = coordination.elector(&ClaimName::new("group").unwrap());
        assert!(elector.is_leader("one", LONG).await.unwrap().leads);
        let count = |what: &str| shared().sql(name_of(&url), &format!("select count(*) from {what}")).unwrap();
        let advisory = "pg_locks where locktype = 'advisory' and database =
            (select oid from pg_database where datname = current_database())";
        assert_eq!(count(advisory).trim(), "0");
        let schema = "pg_class where relnamespace = 'reveille_coordination'::regnamespace and relkind = 'r'";
        assert_ne!(count(schema).trim(), "0");
        assert_eq!(count(&format!("{schema} and relpersistence <> 'p'")).trim(), "0");
        let own = "application_name like 'reveille%' and datname = current_database()";
        shared()
            .sql(name_of(&url), &format!("select pg_terminate_backend(pid) from pg_stat_activity where {own}"))
            .unwrap();
        let other = open(&runtime, &url).await;
        other.join(member(2), LONG).await.unwrap();
        assert_eq!(other.claim(member(2).id, claims.to_vec()).await, Ok(vec![false]), "it is held all the same");
        let elector = other.elector(&ClaimName::new("group").unwrap());
        assert!(!elector.is_leader("two", LONG).await.unwrap().leads);
    });
}
