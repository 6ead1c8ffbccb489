//! Tests of the inbox of a cluster: an application requests schedules in SQL, inside its own transactions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::TestCluster;
use crate::receiver::{Hit, Receiver};
use crate::{client::rfc3339, now_millis, until};

#[test]
fn member_applies_an_inbox_request_only_after_its_commit() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let server = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    let sql = |text: &str| cluster.sql(text);
    let spec = |millis: u64, n: u64| {
        let at = rfc3339(millis);
        json!({ "at": at, "target": { "http": { "url": receiver.url() } }, "payload": { "n": n } })
    };
    sql("create table orders (id text primary key)");
    let due = now_millis() + 2_500;
    let schedule = |id: &str, spec: &Value| format!("select reveille.schedule('default', '{id}', '{spec}')");
    sql(&format!("begin; insert into orders values ('one'); {}; commit", schedule("one", &spec(due, 1))));
    sql(&format!("begin; insert into orders values ('two'); {}; rollback", schedule("two", &spec(due, 2))));
    sql(&format!("begin; {}; select reveille.cancel('default', 'three'); commit", schedule("three", &spec(due, 3))));
    // The instant of this schedule is ten minutes before the commit of its transaction.
    sql(&schedule("four", &spec(now_millis() - 600_000, 4)));
    // Only the owner of the shard can judge a cron expression. The rejection of an entry stops no other entry.
    let mut broken = spec(due, 6);
    broken.as_object_mut().unwrap().remove("at");
    broken["cron"] = json!("0 25 * * *");
    sql(&schedule("broken", &broken));
    sql(&schedule("one", &spec(due, 5)));

    let hits = receiver.wait(|hits| hits.len() >= 2);
    let is_immediate = |hit: &Hit| hit.schedule == "four" && hit.at_millis < due;
    assert!(hits.iter().any(is_immediate), "an overdue schedule fires immediately: {hits:?}");
    let is_taken = |line: &str| (line.contains("dead letter") && line.contains("already exists")).then_some(());
    server.log.wait(is_taken).expect("the log names the taken id");
    let is_broken = |line: &str| (line.contains("broken") && line.contains("/cron")).then_some(());
    server.log.wait(is_broken).expect("the log names the invalid field");
    let letters = sql("select id from reveille.inbox_dead_letter order by id");
    assert_eq!(letters.trim(), "broken\none");
    std::thread::sleep(Duration::from_millis(500));
    let bodies: Vec<String> = receiver.hits().into_iter().map(|hit| hit.body).collect();
    assert_eq!(bodies.len(), 2, "{bodies:?}");
    assert_eq!(sql("select count(*) from reveille.inbox").trim(), "0");
    assert_eq!(server.client().get("/v1/schedules/three").json()["state"], "cancelled");
    assert!(server.stop().success());
}

#[test]
fn entry_that_the_database_rejects_becomes_a_dead_letter() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let server = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    cluster.sql(
        "create function reject() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
        create trigger reject before insert on reveille.schedule for each row when (new.id = 'poison')
            execute function reject()",
    );
    let spec = json!({ "at": rfc3339(now_millis()), "target": { "http": { "url": receiver.url() } } });
    let request = |id: &str| cluster.sql(&format!("select reveille.schedule('default', '{id}', '{spec}')"));
    request("poison");
    let mut count = 0;
    until("the entry becomes a dead letter", || {
        // The entry counts as the cause of a failure only if other entries succeed.
        request(&format!("good-{count}"));
        count += 1;
        cluster.sql("select id from reveille.inbox_dead_letter").trim() == "poison"
    });
    receiver.wait(|hits| hits.len() == count);
    assert_eq!(cluster.sql("select count(*) from reveille.inbox").trim(), "0");
    let metrics = server.client().get("/metrics").body;
    assert!(metrics.lines().any(|line| line == "reveille_inbox_rejected_total 1"), "{metrics}");
    assert!(server.stop().success());
}

#[test]
fn import_rejects_a_database_with_waiting_requests() {
    let cluster = TestCluster::new();
    let request = r#"select reveille.schedule('default', 'a', '{"every":"1h","target":{"http":{"url":"http://a/"}}}')"#;
    cluster.sql(request);
    let error = cluster.import_failure();
    assert!(error.contains("the inbox of the database has 1 requests that no member has carried out"), "{error}");
}
