//! Tests of the inbox: applications request schedules inside their own transactions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::id::SHARDS;
use domain::limits::Limits;
use domain::{
    Audit, Cron, Incarnation, PollerId, Quota, ScheduleId, ShardId, SigningSecret, Tenant, TenantId, Timestamp,
};
use futures_util::future::BoxFuture;
use runtime::{Runtime, TaskSet};
use store::{Inbox, InboxEntry, InboxRead, InboxRequest, Store};
use store_conformance::Case;
use store_conformance::inbox::InboxSubject;
use store_postgres::{Options, migrate};
use test_servers::postgres::{Postgres, shared};

use crate::support::{Home, OtherSession, database, migrated, name_of, on_real, undo_to};

/// Subject of the conformance suite of the inbox: a store in a new database, and the functions of the database.
struct InDatabase {
    runtime: Runtime,
    url: String,
    home: Mutex<Option<Home>>,
}

impl InboxSubject for InDatabase {
    fn open(&self) -> BoxFuture<'_, (Arc<dyn Store>, Arc<dyn Inbox>)> {
        Box::pin(async {
            let home = Home::open(&self.runtime, &self.url).await;
            let store = home.store.clone();
            *self.home.lock().unwrap() = Some(home);
            (store.clone() as Arc<dyn Store>, store as Arc<dyn Inbox>)
        })
    }

    fn request(&self, requests: Vec<InboxRequest>) -> BoxFuture<'_, Result<(), String>> {
        let call = |InboxRequest { tenant, id, spec }: InboxRequest| match spec {
            Some(spec) => format!("perform reveille.schedule('{tenant}', '{id}', '{spec}');"),
            None => format!("perform reveille.cancel('{tenant}', '{id}');"),
        };
        let calls: String = requests.into_iter().map(call).collect();
        let made = shared().sql(name_of(&self.url), &format!("do $$ begin {calls} end $$"));
        let made = made.map(drop).map_err(|error| {
            let text = format!("{error:#}");
            let (_, rejection) = text.split_once("ERROR:  ").unwrap_or_else(|| panic!("not an SQL error: {text}"));
            rejection.to_owned()
        });
        Box::pin(std::future::ready(made))
    }

    fn dead_letters(&self) -> BoxFuture<'_, Vec<(String, String)>> {
        let select = "select id, reason from reveille.inbox_dead_letter order by number";
        let rows = shared().sql(name_of(&self.url), select).unwrap();
        let pair = |row: &str| row.split_once('|').map(|(id, reason)| (id.to_owned(), reason.to_owned()));
        Box::pin(std::future::ready(rows.lines().filter_map(pair).collect()))
    }
}

store_conformance::inbox_conformance_tests!(run);

fn run(case: Case<dyn InboxSubject>) {
    let url = database();
    on_real(async |runtime| {
        let subject = InDatabase { runtime, url, home: Mutex::new(None) };
        case.run(&subject).await;
        let home = subject.home.lock().unwrap().take();
        home.unwrap().close().await;
    });
}

const OK: &str = r#"{"at": "2033-05-18T03:33:20Z", "target": {"http": {"url": "https://example.com/hook"}}}"#;

fn schedule(tenant: &str, id: &str, spec: &str) -> String {
    format!("select reveille.schedule('{tenant}', '{id}', '{spec}')")
}

fn tenant() -> Tenant {
    Tenant::new(TenantId(1), "default", 4, SigningSecret::first(vec![7; 32], Timestamp::MIN))
}

async fn put_tenant(store: &dyn Store, tenant: Tenant) {
    let entry = Audit::of(&tenant, Timestamp::MIN, "test", "tenant.change", "");
    store.put_tenant(tenant, entry).await.unwrap().unwrap();
}

/// Returns the URL of a new database with the tenant `default`.
fn database_with_tenant() -> String {
    let url = database();
    put_tenants(&url, vec![tenant()]);
    url
}

fn put_tenants(url: &str, tenants: Vec<Tenant>) {
    on_real(async |runtime| {
        let home = Home::open(&runtime, url).await;
        for tenant in tenants {
            put_tenant(&*home.store, tenant).await;
        }
        home.close().await;
    });
}

async fn entries(store: &dyn Inbox) -> Vec<InboxEntry> {
    let read = InboxRead { shards: (0..SHARDS).map(ShardId).collect(), except: Vec::new(), limit: 1_000 };
    store.read_inbox(read).await.unwrap()
}

/// Returns the error of a statement that the database must reject.
fn rejection(url: &str, statement: &str) -> String {
    match shared().sql(name_of(url), statement) {
        Ok(rows) => panic!("the database accepts {statement}: {rows}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn inbox_returns_only_committed_requests() {
    let url = database_with_tenant();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let now = runtime.now();
        let (one, other) = (OtherSession::new(&runtime, &tasks, &url), OtherSession::new(&runtime, &tasks, &url));
        let ids = async || entries(store).await.into_iter().map(|entry| entry.id).collect::<Vec<_>>();
        one.execute("create table orders (number int)").await;
        one.execute(&format!("begin; insert into orders values (1); {}", schedule("default", "order-1", OK))).await;
        one.execute("select reveille.cancel('default', 'order-0')").await;
        other.execute(&format!("begin; {}; rollback", schedule("default", "order-2", OK))).await;
        other.execute(&schedule("default", "order-3", OK)).await;
        assert_eq!(ids().await, ["order-3"]);
        store.settle_inbox(vec![entries(store).await[0].number], Vec::new()).await.unwrap();
        one.execute("commit").await;
        assert_eq!(ids().await, ["order-1", "order-0"], "an entry that commits later is returned");
        for entry in entries(store).await {
            let drawn = Timestamp::from_millis(i64::try_from(entry.incarnation.0 >> 80).unwrap());
            let distance = drawn.since(now).max(now.since(drawn));
            assert!(distance.as_secs() < 60, "the incarnation contains the time of the call: {drawn}");
            assert_ne!(entry.incarnation, Incarnation(0));
        }
        home.close().await;
    });
}

#[test]
fn sql_computes_the_same_pollers_and_shards_as_rust() {
    let url = database();
    let mut values = Vec::new();
    let mut expected = String::new();
    for number in 0..800_u32 {
        let tenant = TenantId(number.wrapping_mul(2_654_435_761));
        let (generation, pollers) =
            (u16::try_from(number % 5 * 13_000).unwrap(), u16::try_from(number % 1_024 + 1).unwrap());
        let text = "aZ9_-".repeat(usize::try_from(number % 24).unwrap()) + &number.to_string();
        let poller = PollerId::of(tenant, generation, pollers, &ScheduleId::new(&text).unwrap());
        values.push(format!("({}::bigint, {generation}, {pollers}, '{text}')", tenant.0));
        expected += &format!("{}|{}\n", poller.number, poller.shard().0);
    }
    let found = shared().sql(
        name_of(&url),
        &format!(
            "select p.poller & 65535, reveille.shard_of(p.poller)
             from (values {}) as v (tenant, generation, pollers, id)
             cross join lateral (select reveille.poller_of(v.tenant, v.generation, v.pollers, v.id) as poller) p",
            values.join(", ")
        ),
    );
    assert_eq!(found.unwrap(), expected.trim_end());
}

#[test]
fn functions_reject_malformed_requests_and_name_the_field() {
    let url = database_with_tenant();
    let with = |fields: &str| format!(r#"{{{fields}, "target": {{"http": {{"url": "https://example.com/hook"}}}}}}"#);
    let at = |at: &str| with(&format!(r#""at": "{at}""#));
    let more = |fields: &str| with(&format!(r#""every": "1h", {fields}"#));
    let http = |fields: &str| {
        format!(r#"{{"every": "1h", "target": {{"http": {{"url": "https://example.com/hook", {fields}}}}}}}"#)
    };
    let specs = [
        ("[]".to_owned(), "spec: the spec is not a JSON object"),
        (at("never"), "/at: the value is not an instant"),
        (at("2033-05-18T03:33:20"), "/at: the value is not an instant"),
        (at("2033-05-18T24:00:00Z"), "/at: the value is not an instant"),
        (at("2033-02-29T00:00:00Z"), "/at: the instant does not exist"),
        (at("1969-12-31T23:59:59Z"), "/at: 1969-12-31T23:59:59Z is before 1970"),
        (at("1970-01-01T23:58:59+23:59"), "is before 1970"),
        (at("2096-01-01T00:00:00Z"), "is too far in the future"),
        (with(r#""at": 5"#), "/at: expected a string, but found number"),
        (with(r#""every": "1h", "cron": "0 7 * * *""#), "/at: at, cron and every exclude each other"),
        (with(r#""labels": {}"#), "/at: one of at, cron and every is required"),
        (more(r#""zone": "UTC""#), "/zone: a zone requires a cron expression"),
        (more(r#""taget": {}"#), "/taget: the field is unknown"),
        (more(r#""id": "a""#), "/id: the function has an argument for the id"),
        (more(r#""retry": {"backof": "1s"}"#), "/retry/backof: the field is unknown"),
        (more(r#""retry": {"backoff": 1}"#), "/retry/backoff: expected a string"),
        (more(r#""retry": {"attempts_max": 0}"#), "/retry/attempts_max: attempts_max is 0"),
        (more(r#""retry": {"attempts_max": 1.5}"#), "/retry/attempts_max: attempts_max is 1.5"),
        (more(r#""labels": {"a/b": 1}"#), "/labels/a~1b: expected a string"),
        (http(r#""methd": "PUT""#), "/target/http/methd: the field is unknown"),
        (http(r#""timeout": 5"#), "/target/http/timeout: expected a string"),
        (r#"{"every": "1h"}"#.to_owned(), "/target/http/url: the field is required"),
        (r#"{"every": "1h", "target": []}"#.to_owned(), "/target: expected an object"),
    ];
    for (spec, message) in &specs {
        let error = rejection(&url, &schedule("default", "a", spec));
        assert!(error.contains(message), "{spec}: {error}");
    }
    let calls = [
        ("select reveille.schedule('default', 'a b', '{}')", "id: an id consists of"),
        ("select reveille.schedule('', 'a', '{}')", "tenant: no tenant has the name ''"),
        ("select reveille.schedule(null, 'a', '{}')", "tenant: no tenant has the name null"),
        ("select reveille.schedule('default', 'a', null)", "spec: the spec is null"),
        ("select reveille.cancel('default', null)", "id: an id consists of"),
    ];
    for (call, message) in calls {
        let error = rejection(&url, call);
        assert!(error.contains(message), "{call}: {error}");
    }
    let diagnostics = "do $$ declare field text; begin perform reveille.schedule('default', 'a', '{\"at\": 1}');
        exception when others then get stacked diagnostics field = column_name; raise notice '%', field;
        assert field = '/at', field; end $$";
    shared().sql(name_of(&url), diagnostics).unwrap();
    let id = shared().sql(name_of(&url), &format!("select reveille.schedule('default', null, '{OK}')")).unwrap();
    ScheduleId::new(&id).unwrap();
    let accepted = [
        at("1970-01-01T00:00:00Z"),
        at("1970-01-01t23:59:00.5+23:59"),
        at("2033-12-31T23:59:60z"),
        more(r#""at": null, "zone": null, "labels": null, "retry": null, "payload": null"#),
        http(r#""headers": {}, "method": "PUT""#),
        with(r#""cron": "0 7 * * *", "zone": "Europe/Berlin""#),
    ];
    for spec in accepted {
        shared().sql(name_of(&url), &schedule("default", "b", &spec)).unwrap();
    }
    assert_eq!(shared().sql(name_of(&url), "select count(*) from reveille.inbox").unwrap(), "7");
}

#[test]
fn functions_apply_the_limits_of_the_service() {
    let url = database_with_tenant();
    let limits = Limits::default();
    let base = r#"'{"every": "1h", "target": {"http": {"url": "https://example.com/"}}}'::jsonb"#;
    let text = |len: usize| format!("to_jsonb(repeat('x', {len}))");
    let set = |path: &str, value: &str| format!("jsonb_set({base}, '{{{path}}}', {value})");
    let labels = |count: usize| {
        set("labels", &format!("(select jsonb_object_agg('n' || n, 'v') from generate_series(1, {count}) n)"))
    };
    let label = |name: usize| set("labels", &format!("jsonb_build_object(repeat('n', {name}), 'v')"));
    let url_of = |len: usize| set("target,http,url", &text(len));
    let cron = |len: usize| format!("({base} - 'every') || jsonb_build_object('cron', repeat('x', {len}))");
    let horizon = |millis: i64| {
        let secs = i64::try_from(limits.horizon.as_secs()).unwrap() + millis;
        let instant = format!("clock_timestamp() at time zone 'utc' + interval '{secs} s'");
        let at = format!("to_char({instant}, 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')");
        format!("({base} - 'every') || jsonb_build_object('at', {at})")
    };
    let attempts = |count: u16| set("retry", &format!("jsonb_build_object('attempts_max', {count})"));
    // A payload of text has two quotation marks.
    let payload = |bytes: usize| set("payload", &text(bytes - 2));
    let cases = [
        ("/payload", payload(limits.payload_bytes_max), payload(limits.payload_bytes_max + 1)),
        ("/labels", labels(limits.labels_max), labels(limits.labels_max + 1)),
        ("/labels", label(limits.label_bytes_max), label(limits.label_bytes_max + 1)),
        (
            "/labels/a",
            set("labels", &format!("jsonb_build_object('a', {})", text(limits.label_bytes_max))),
            set("labels", &format!("jsonb_build_object('a', {})", text(limits.label_bytes_max + 1))),
        ),
        ("/target/http/url", url_of(limits.url_bytes_max), url_of(limits.url_bytes_max + 1)),
        ("/cron", cron(Cron::EXPRESSION_BYTES_MAX), cron(Cron::EXPRESSION_BYTES_MAX + 1)),
        ("/at", horizon(-60), horizon(60)),
        ("/retry/attempts_max", attempts(limits.attempts_max), attempts(limits.attempts_max + 1)),
    ];
    for (field, within, beyond) in cases {
        let call = |spec: &str| format!("select reveille.schedule('default', 'a', {spec})");
        shared().sql(name_of(&url), &call(&within)).unwrap();
        let error = rejection(&url, &call(&beyond));
        assert!(error.contains(&format!("ERROR:  {field}: ")), "{field}: {error}");
    }
    let huge =
        format!("select reveille.schedule('default', 'a', {base} || jsonb_build_object('p', repeat('x', 140000)))");
    assert!(rejection(&url, &huge).contains("spec: the spec has more than 128 KiB"));
}

#[test]
fn functions_enforce_the_quotas_of_the_tenant() {
    let url = database();
    let mut limited = tenant();
    let quotas = [(Quota::PayloadBytesMax, 100), (Quota::HorizonDays, 30), (Quota::StoredMibMax, 1)];
    for (quota, number) in quotas {
        limited.quotas.set(quota, Some(number));
        limited.ceilings.set(quota, Some(number));
    }
    put_tenants(&url, vec![limited]);
    let sql = |statement: &str| shared().sql(name_of(&url), statement);
    let every = r#"{"every": "1h", "target": {"http": {"url": "https://example.com/"}}}"#;
    let error = rejection(&url, &schedule("default", "a", OK));
    assert!(error.contains("/at: 2033-05-18T03:33:20Z is beyond the quota horizon_days of 30"), "{error}");
    let long = format!(
        "select reveille.schedule('default', 'a', '{every}' || jsonb_build_object('payload', repeat('x', 99)))"
    );
    assert!(rejection(&url, &long).contains("more than the quota payload_bytes_max of 100"));
    sql(&long.replace("99", "98")).unwrap();

    // Each request counts with about 380 bytes, so a transaction of 3,000 requests exceeds 1 MiB.
    let many = |count: u32| {
        format!("select count(reveille.schedule('default', 'n' || n, '{every}')) from generate_series(1, {count}) n")
    };
    let error = rejection(&url, &many(4_000));
    assert!(error.contains("stored_mib_max: the tenant has reached its quota of 1 MiB"), "{error}");
    assert_eq!(sql("select count(*) from reveille.inbox").unwrap(), "1");
    sql(&many(2_500)).unwrap();
    assert!(rejection(&url, &many(2_500)).contains("stored_mib_max"), "the inbox counts until its entries are moved");
    sql("select reveille.publish_usage()").unwrap();
    assert!(rejection(&url, &many(2_500)).contains("stored_mib_max"), "the published usage includes the inbox");
}

#[test]
fn check_of_quotas_waits_for_no_lock_of_another_transaction() {
    let url = database();
    let mut limited = tenant();
    limited.quotas.set(Quota::PendingMax, Some(100));
    limited.ceilings.set(Quota::PendingMax, Some(100));
    put_tenants(&url, vec![limited]);
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let [one, other, locking] = [(); 3].map(|()| OtherSession::new(&runtime, &tasks, &url));
        for session in [&one, &other] {
            // A request that waits for a lock of another transaction exceeds this timeout.
            session.execute("set lock_timeout = '100ms'; begin").await;
            session.execute(&schedule("default", "a", OK)).await;
        }
        one.execute("commit; begin").await;
        let locks = "begin; select reveille.publish_usage(); update reveille.inbox_tenant set name = name;
            update reveille.inbox_usage set active = active; insert into reveille.usage values (1, 0, 1, 0, 0, 0);
            update reveille.inbox set id = id";
        locking.execute(locks).await;
        for session in [&one, &other] {
            session.execute(&schedule("default", "a", OK)).await;
            session.execute("commit").await;
        }
        locking.execute("rollback").await;
    });
    assert_eq!(shared().sql(name_of(&url), "select count(*) from reveille.inbox").unwrap(), "4");
}

#[test]
fn request_with_headers_is_rejected_with_the_way_to_create_it() {
    let url = database_with_tenant();
    let spec = r#"{"every": "1h", "target": {"http": {"url": "https://example.com/", "headers": {"authorization": "Bearer hunter2"}}}}"#;
    let error = rejection(&url, &schedule("default", "a", spec));
    assert!(error.contains("/target/http/headers: a request in SQL cannot contain headers"), "{error}");
    assert!(error.contains("create a schedule with headers over HTTP, which encrypts their values"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    assert_eq!(shared().sql(name_of(&url), "select count(*) from reveille.inbox").unwrap(), "0");
}

#[test]
fn housekeeping_deletes_old_dead_letters() {
    let url = database_with_tenant();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let sql = |statement: &str| shared().sql(name_of(&url), statement).unwrap();
        for id in ["old", "new"] {
            sql(&schedule("default", id, OK));
        }
        let rejected = entries(&*home.store).await.iter().map(|entry| (entry.number, "reason".to_owned())).collect();
        home.store.settle_inbox(Vec::new(), rejected).await.unwrap();
        sql("update reveille.inbox_dead_letter set rejected_at = rejected_at - interval '31 days' where id = 'old'");
        let now = runtime.now();
        home.store.maintain(now, now - Duration::from_secs(30 * 86_400)).await.unwrap();
        assert_eq!(sql("select tenant || ' ' || id from reveille.inbox_dead_letter"), "default new");
        home.close().await;
    });
}

#[test]
fn migration_moves_the_entries_of_the_earlier_inbox() {
    let url = database_with_tenant();
    let sql = |statement: &str| shared().sql(name_of(&url), statement).unwrap();
    sql(&undo_to(6));
    // The earlier functions checked neither the tenant nor the spec.
    let secret =
        r#"{"at": "1969-12-31T23:59:59Z", "target": {"http": {"url": "http://a/", "headers": {"a": "secret"}}}}"#;
    sql(&schedule("default", "first", secret));
    sql("select reveille.cancel('default', 'second')");
    sql(&schedule("nobody", "third", secret));
    on_real(async |runtime| {
        let migrated = migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!(migrated.from, Some(6));
        let home = Home::open(&runtime, &url).await;
        let found = entries(&*home.store).await;
        let request = |entry: &InboxEntry| (entry.tenant, entry.id.clone(), entry.spec.is_some());
        let expected = [(TenantId(1), "first".to_owned(), true), (TenantId(1), "second".to_owned(), false)];
        assert_eq!(found.iter().map(request).collect::<Vec<_>>(), expected);
        assert_eq!(found[0].poller, PollerId::of(TenantId(1), 0, 4, &ScheduleId::new("first").unwrap()));
        let reject = vec![(found[0].number, "too far in the past".to_owned())];
        home.store.settle_inbox(Vec::new(), reject).await.unwrap();
        home.close().await;
    });
    let letters = sql("select tenant, id, reason, spec from reveille.inbox_dead_letter order by id");
    assert!(letters.contains("default|first|too far in the past|"), "{letters}");
    assert!(letters.contains("nobody|third|no tenant has the name nobody|"), "{letters}");
    assert!(!letters.contains("secret"), "a dead letter contains no values of headers: {letters}");
    sql(&schedule("default", "later", OK));
}

#[test]
fn client_role_can_only_create_and_cancel_schedules() {
    // The test needs its own server, because a role exists in all databases of a PostgreSQL server.
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    put_tenants(&url, vec![tenant()]);
    let run_sql = |statement: &str| postgres.sql(name_of(&url), &format!("set role reveille_client; {statement}"));
    assert_eq!(run_sql(&schedule("default", "a", OK)).unwrap(), "a");
    run_sql("select reveille.cancel('default', 'a')").unwrap();
    for statement in [
        "select * from reveille.inbox",
        "select * from reveille.inbox_dead_letter",
        "insert into reveille.inbox_role values (session_user, 'default')",
        "select reveille.publish_usage()",
        "select reveille.inbox_tenant_named('default')",
        "select reveille.inbox_append(null, 'a', null)",
        "select * from reveille.schedule",
        "select * from reveille.tenant",
        "update reveille.shard set term = 0",
    ] {
        let error = run_sql(statement).unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{statement}: {error}");
    }
}

#[test]
fn role_of_one_tenant_cannot_write_for_another_tenant() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    put_tenants(&url, vec![tenant(), Tenant { id: TenantId(2), name: "other".to_owned(), ..tenant() }]);
    let sql = |statement: &str| postgres.sql(name_of(&url), statement);
    sql("create role shop login; grant reveille_client to shop").unwrap();
    sql("insert into reveille.inbox_role values ('shop', 'other')").unwrap();
    let as_shop = |statement: &str| sql(&format!("set session authorization shop; {statement}"));
    as_shop(&schedule("other", "a", OK)).unwrap();
    as_shop("select reveille.cancel('other', 'a')").unwrap();
    for tenant in ["default", "unknown"] {
        for call in [schedule(tenant, "a", OK), format!("select reveille.cancel('{tenant}', 'a')")] {
            // A role that the caller assumes does not change the role of the session.
            for statement in [call.clone(), format!("set role reveille_client; {call}")] {
                let error = as_shop(&statement).unwrap_err().to_string();
                assert!(error.contains("tenant: the role shop may write only for the tenant other"), "{error}");
            }
        }
    }
    assert_eq!(sql("select count(*) from reveille.inbox where tenant = 1").unwrap(), "0");
    sql(&schedule("default", "a", OK)).unwrap();
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
    put_tenants(&plain, vec![tenant()]);
    let id = postgres.sql(name, &format!("set role reveille_client; {}", schedule("default", "a", OK)));
    assert_eq!(id.unwrap(), "a");
}
