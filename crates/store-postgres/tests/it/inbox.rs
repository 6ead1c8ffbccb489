//! Scheduling inside somebody's own transaction.

use domain::Incarnation;
use runtime::TaskSet;
use store_postgres::{InboxEntry, Options, migrate};
use test_servers::postgres::{Postgres, shared};

use crate::support::{Home, Somebody, database, migrated, name_of, on_real};

fn spec_of(entry: &InboxEntry) -> (&str, &str, Option<&str>) {
    (&entry.tenant, &entry.id, entry.spec.as_deref())
}

#[test]
fn what_is_scheduled_in_a_transaction_is_there_when_it_commits_and_never_if_it_does_not() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let now = runtime.now();
        let (one, other) = (Somebody::new(&runtime, &tasks, &url), Somebody::new(&runtime, &tasks, &url));
        one.says("create table orders (number int)").await;
        one.says(
            "begin; insert into orders values (1); select reveille.schedule('default', 'order-1', '{\"at\": \"x\"}')",
        )
        .await;
        one.says("select reveille.cancel('default', 'order-0')").await;
        other.says("begin; select reveille.schedule('default', 'order-2', '{}'); rollback").await;
        other.says("select reveille.schedule('default', 'order-3', '{}')").await;
        let told = store.inbox(10).await.unwrap();
        assert_eq!(told.iter().map(spec_of).collect::<Vec<_>>(), [("default", "order-3", Some("{}"))]);
        store.inbox_done(vec![told[0].number]).await.unwrap();
        one.says("commit").await;
        for _ in 0..2 {
            // Told again until it is done.
            let told = store.inbox(10).await.unwrap();
            let expected = [("default", "order-1", Some("{\"at\": \"x\"}")), ("default", "order-0", None)];
            assert_eq!(
                told.iter().map(spec_of).collect::<Vec<_>>(),
                expected,
                "what commits late under a lower number"
            );
            let at = told[0].incarnation.0 >> 80;
            let drawn = domain::Timestamp::from_millis(i64::try_from(at).unwrap());
            assert!(drawn.since(now).max(now.since(drawn)).as_secs() < 60, "its time is in it: {drawn}");
            assert_ne!(told[0].incarnation, told[1].incarnation);
            assert_ne!(told[0].incarnation, Incarnation(0));
        }
        assert_eq!(store.inbox(1).await.unwrap().len(), 1);
        let numbers = store.inbox(10).await.unwrap().iter().map(|entry| entry.number).collect();
        store.inbox_done(numbers).await.unwrap();
        assert_eq!(store.inbox(10).await, Ok(Vec::new()));
        home.close().await;
    });
}

#[test]
fn what_has_no_good_shape_is_refused_at_once() {
    let url = database();
    let says = |statement: &str| shared().sql(name_of(&url), statement);
    let refused = [
        ("select reveille.schedule('default', 'a b', '{}')", "an id is made of"),
        ("select reveille.schedule('', 'a', '{}')", "a tenant's name is made of"),
        ("select reveille.schedule(null, 'a', '{}')", "a tenant's name is made of"),
        ("select reveille.schedule('default', 'a', '[]')", "a JSON object"),
        ("select reveille.schedule('default', 'a', null)", "a JSON object"),
        ("select reveille.schedule('default', 'a', jsonb_build_object('p', repeat('x', 140000)))", "more than 128 KiB"),
        ("select reveille.cancel('default', null)", "is not said"),
    ];
    for (statement, why) in refused {
        let error = says(statement).unwrap_err();
        assert!(error.to_string().contains(why), "{statement}: {error}");
    }
    let made = says("select reveille.schedule('default', null, '{}')").unwrap();
    domain::ScheduleId::new(&made).unwrap();
    assert_eq!(says("select id from reveille.inbox").unwrap(), made);
}

#[test]
fn the_role_of_clients_may_do_this_and_nothing_else() {
    // A server of its own: roles are the server's.
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    let says = |statement: &str| postgres.sql(name_of(&url), &format!("set role reveille_client; {statement}"));
    assert_eq!(says("select reveille.schedule('default', 'a', '{}')").unwrap(), "a");
    says("select reveille.cancel('default', 'a')").unwrap();
    for statement in [
        "select * from reveille.inbox",
        "insert into reveille.inbox (tenant, id, incarnation) values ('a', 'b', gen_random_uuid())",
        "select reveille.append('default', 'a', null)",
        "select * from reveille.schedule",
        "select * from reveille.tenant",
        "update reveille.shard set term = 0",
    ] {
        let error = says(statement).unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{statement}: {error}");
    }
}

#[test]
fn the_role_of_clients_may_come_after_the_schema() {
    let postgres = Postgres::start().unwrap();
    let url = postgres.create_database().unwrap();
    let name = name_of(&url);
    let make = format!("create role plain login password 'secret'; alter database {name} owner to plain");
    postgres.sql("postgres", &make).unwrap();
    let plain = format!("postgresql://plain:secret@127.0.0.1:{}/{name}", postgres.port());
    let has_role =
        || on_real(async |runtime| migrate(&runtime, &plain, &Options::default()).await).unwrap().has_client_role;
    assert!(!has_role(), "who is nobody special makes no roles");
    postgres.sql("postgres", "create role reveille_client").unwrap();
    assert!(has_role());
    let made = postgres.sql(name, "set role reveille_client; select reveille.schedule('default', 'a', '{}')");
    assert_eq!(made.unwrap(), "a");
}
