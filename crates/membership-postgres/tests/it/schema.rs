//! Tests of the schema of the tables for members, claims and other coordination data.

use std::time::Duration;

use coordination::Elector as _;
use coordination_postgres::{GroupName, PostgresElectors, migrate};
use membership::{ClaimName, Member, MemberId, Ownership as _};
use membership_postgres::{OpenError, Options, PostgresOwnership};
use postgres_client::Failure;
use runtime::Runtime;
use test_servers::postgres::{PASSWORD, PgBouncer, shared};

use crate::support::{TestEngine, database, member, name_of, on_real, open};

const LONG: Duration = Duration::from_secs(60);

async fn open_error(runtime: &Runtime, url: &str) -> OpenError {
    PostgresOwnership::open(runtime, url, &Options::default()).await.map(drop).unwrap_err()
}

#[test]
fn engine_rejects_a_pooler_that_drops_its_settings() {
    let url = database();
    let pooler = PgBouncer::start(shared()).unwrap();
    on_real(async |runtime| {
        let error = open_error(&runtime, &pooler.url(name_of(&url))).await;
        assert!(matches!(error, OpenError::Server(Failure::Settings { .. })), "{error}");
    });
}

#[test]
fn repeated_migration_keeps_the_members_in_the_database() {
    let url = shared().create_database().unwrap();
    on_real(async |runtime| {
        let error = open_error(&runtime, &url).await;
        assert!(matches!(error, OpenError::SchemaMissing { .. }), "{error:?}");
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let ownership = open(&runtime, &url).await;
        ownership.join(member(1), LONG).await.unwrap();
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!(ownership.view().await.unwrap().members, [member(1)]);
        let shown = format!("{ownership:?}");
        assert!(!shown.contains(PASSWORD) && !shown.contains("p%40ss"), "{shown}");
    });
}

/// The members of the older schema keep their sessions during the migration.
#[test]
fn migration_of_an_older_schema_keeps_its_members() {
    let url = shared().create_database().unwrap();
    let first = include_str!("../../../coordination-postgres/migrations/0001.sql");
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
            let updated = Member { owns, ..member(2) };
            coordination.join(updated.clone(), LONG).await.unwrap();
            assert_eq!(other.view().await.unwrap().members.last(), Some(&updated));
        }
    });
}

#[test]
fn documented_permissions_are_sufficient_for_another_database_user() {
    let url = database();
    let database = name_of(&url).to_owned();
    let user = format!("runner_of_{database}");
    let sql = |statement: &str| shared().sql(&database, statement).unwrap();
    sql(&format!("create role {user} login password 'secret'"));
    let theirs = format!("postgresql://{user}:secret@127.0.0.1:{}/{database}", shared().port());
    on_real(async |runtime| {
        let error = open_error(&runtime, &theirs).await;
        assert!(!error.is_retryable() && error.to_string().contains("permission denied"), "{error}");
        sql(&format!("grant usage on schema reveille_coordination to {user}"));
        sql(&format!("grant select, insert, update, delete on all tables in schema reveille_coordination to {user}"));
        let coordination = open(&runtime, &theirs).await;
        let case = membership_conformance::case("leave_frees_all_claims_of_the_member");
        case.run(&TestEngine { runtime: runtime.clone(), url: theirs.clone() }).await;
        sql(&format!("revoke all on all tables in schema reveille_coordination from {user}"));
        let error = coordination.view().await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains("permission denied"), "{error}");
    });
}

/// Claims and leases are rows, so they outlive connections. The tables of these rows survive a crash of the server.
#[test]
fn claims_and_leases_survive_the_loss_of_connections() {
    let url = database();
    on_real(async |runtime| {
        let coordination = open(&runtime, &url).await;
        let claims = [ClaimName::leader()];
        let group = GroupName::new("group").unwrap();
        let electors = async || PostgresElectors::open(&runtime, &url, &Options::default()).await.unwrap();
        coordination.join(member(1), LONG).await.unwrap();
        assert_eq!(coordination.claim(member(1).id, claims.to_vec()).await, Ok(vec![true]));
        let elector = electors().await.elector(&group);
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
        assert_eq!(
            other.claim(member(2).id, claims.to_vec()).await,
            Ok(vec![false]),
            "the claim survives the connection"
        );
        let elector = electors().await.elector(&group);
        assert!(!elector.is_leader("two", LONG).await.unwrap().leads);
    });
}
