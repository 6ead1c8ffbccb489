//! Tests of the inbox: applications request schedules inside their own transactions.

use domain::Incarnation;
use runtime::TaskSet;
use store_postgres::{InboxEntry, Options, migrate};
use test_servers::postgres::{Postgres, shared};

use crate::support::{Home, OtherSession, database, migrated, name_of, on_real};

fn spec_of(entry: &InboxEntry) -> (&str, &str, Option<&str>) {
    (&entry.tenant, &entry.id, entry.spec.as_deref())
}

#[test]
fn inbox_returns_only_committed_requests() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let now = runtime.now();
        let (one, other) = (OtherSession::new(&runtime, &tasks, &url), OtherSession::new(&runtime, &tasks, &url));
        one.execute("create table orders (number int)").await;
        one.execute(
            "begin; insert into orders values (1); select reveille.schedule('default', 'order-1', '{\"at\": \"x\"}')",
        )
        .await;
        one.execute("select reveille.cancel('default', 'order-0')").await;
        other.execute("begin; select reveille.schedule('default', 'order-2', '{}'); rollback").await;
        other.execute("select reveille.schedule('default', 'order-3', '{}')").await;
        let entries = store.inbox(10).await.unwrap();
        assert_eq!(entries.iter().map(spec_of).collect::<Vec<_>>(), [("default", "order-3", Some("{}"))]);
        store.inbox_done(vec![entries[0].number]).await.unwrap();
        one.execute("commit").await;
        for _ in 0..2 {
            // Every read of the inbox returns an entry, until the reader has called `inbox_done` for this entry.
            let entries = store.inbox(10).await.unwrap();
            let expected = [("default", "order-1", Some("{\"at\": \"x\"}")), ("default", "order-0", None)];
            assert_eq!(
                entries.iter().map(spec_of).collect::<Vec<_>>(),
                expected,
                "an entry with a lower number that commits later is returned"
            );
            let at = entries[0].incarnation.0 >> 80;
            let drawn = domain::Timestamp::from_millis(i64::try_from(at).unwrap());
            assert!(
                drawn.since(now).max(now.since(drawn)).as_secs() < 60,
                "the incarnation contains the time of the call: {drawn}"
            );
            assert_ne!(entries[0].incarnation, entries[1].incarnation);
            assert_ne!(entries[0].incarnation, Incarnation(0));
        }
        assert_eq!(store.inbox(1).await.unwrap().len(), 1);
        let numbers = store.inbox(10).await.unwrap().iter().map(|entry| entry.number).collect();
        store.inbox_done(numbers).await.unwrap();
        assert_eq!(store.inbox(10).await, Ok(Vec::new()));
        home.close().await;
    });
}

#[test]
fn inbox_functions_reject_malformed_requests() {
    let url = database();
    let run_sql = |statement: &str| shared().sql(name_of(&url), statement);
    let rejected = [
        ("select reveille.schedule('default', 'a b', '{}')", "an id is made of"),
        ("select reveille.schedule('', 'a', '{}')", "a tenant's name is made of"),
        ("select reveille.schedule(null, 'a', '{}')", "a tenant's name is made of"),
        ("select reveille.schedule('default', 'a', '[]')", "a JSON object"),
        ("select reveille.schedule('default', 'a', null)", "a JSON object"),
        ("select reveille.schedule('default', 'a', jsonb_build_object('p', repeat('x', 140000)))", "more than 128 KiB"),
        ("select reveille.cancel('default', null)", "is not said"),
    ];
    for (statement, why) in rejected {
        let error = run_sql(statement).unwrap_err();
        assert!(error.to_string().contains(why), "{statement}: {error}");
    }
    let id = run_sql("select reveille.schedule('default', null, '{}')").unwrap();
    domain::ScheduleId::new(&id).unwrap();
    assert_eq!(run_sql("select id from reveille.inbox").unwrap(), id);
}

#[test]
fn client_role_can_only_create_and_cancel_schedules() {
    // The test needs its own server, because a role exists in all databases of a PostgreSQL server.
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    let run_sql = |statement: &str| postgres.sql(name_of(&url), &format!("set role reveille_client; {statement}"));
    assert_eq!(run_sql("select reveille.schedule('default', 'a', '{}')").unwrap(), "a");
    run_sql("select reveille.cancel('default', 'a')").unwrap();
    for statement in [
        "select * from reveille.inbox",
        "insert into reveille.inbox (tenant, id, incarnation) values ('a', 'b', gen_random_uuid())",
        "select reveille.append('default', 'a', null)",
        "select * from reveille.schedule",
        "select * from reveille.tenant",
        "update reveille.shard set term = 0",
    ] {
        let error = run_sql(statement).unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{statement}: {error}");
    }
}

#[test]
fn migration_grants_rights_to_a_client_role_that_an_admin_created() {
    let postgres = Postgres::start().unwrap();
    let url = postgres.create_database().unwrap();
    let name = name_of(&url);
    let make = format!("create role plain login password 'secret'; alter database {name} owner to plain");
    postgres.sql("postgres", &make).unwrap();
    let plain = format!("postgresql://plain:secret@127.0.0.1:{}/{name}", postgres.port());
    let has_role =
        || on_real(async |runtime| migrate(&runtime, &plain, &Options::default()).await).unwrap().has_client_role;
    assert!(!has_role(), "an unprivileged user cannot create the role");
    postgres.sql("postgres", "create role reveille_client").unwrap();
    assert!(has_role());
    let id = postgres.sql(name, "set role reveille_client; select reveille.schedule('default', 'a', '{}')");
    assert_eq!(id.unwrap(), "a");
}
