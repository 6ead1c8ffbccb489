//! Tests of schedules whose targets a writer to the database replaces. The new target must not receive the schedule's
//! headers.

use serde_json::json;
use test_servers::postgres;

use crate::client::rfc3339;
use crate::cluster::{TestCluster, failure};
use crate::receiver::Receiver;
use crate::{now_millis, until};

#[test]
fn redirected_schedule_sends_no_callback_and_records_the_reason() {
    let cluster = TestCluster::new();
    let server = cluster.start("a");
    let (intended, other) = (Receiver::start(), Receiver::start());
    let mut client = server.client();
    for id in ["redirected", "kept"] {
        let headers = json!({ "authorization": format!("Bearer of-{id}") });
        let target = json!({ "http": { "url": format!("{}/a", intended.url()), "headers": headers } });
        let later = rfc3339(now_millis() + 3_600_000);
        let body = json!({ "id": id, "at": later, "target": target, "retry": { "attempts_max": 1 } });
        assert_eq!(client.create(&body).status, 201);
    }
    let [from, to] = [&intended, &other].map(Receiver::url);
    assert_eq!(from.len(), to.len(), "the stored URL is preceded by its length");
    let hex = |text: &str| format!("encode('{text}', 'hex')");
    let replaced = format!("decode(replace(encode(spec, 'hex'), {}, {}), 'hex')", hex(&from), hex(&to));
    let update = format!("update reveille.schedule set spec = {replaced} where id = 'redirected'");
    postgres::shared().sql(cluster.database(), &update).unwrap();
    let shown = client.get("/v1/schedules/redirected").json();
    assert_eq!(shown["target"]["http"]["url"], format!("{to}/a"));

    // This change keeps the stored headers, because it does not name them.
    for id in ["redirected", "kept"] {
        let now = json!({ "at": rfc3339(now_millis()) }).to_string();
        assert_eq!(client.send("PATCH", &format!("/v1/schedules/{id}"), &now).unwrap().status, 200);
    }
    let hits = intended.wait(|hits| !hits.is_empty());
    assert_eq!(hits[0].authorization, "Bearer of-kept");
    let mut run = json!(null);
    until("the run of the redirected schedule fails", || {
        run = client.get("/v1/schedules/redirected/runs").json()["runs"][0].clone();
        run["state"] == "failed"
    });
    let error = run["attempts"][0]["error"].as_str().unwrap();
    assert!(
        error.starts_with("secret_not_opened: ") && error.contains("host or port was changed without the API"),
        "{error}"
    );
    assert_eq!((intended.hits().len(), other.hits().len()), (1, 0));

    // The user sends the target and its headers again.
    let headers = json!({ "authorization": "Bearer again" });
    let target = json!({ "http": { "url": format!("{from}/a"), "headers": headers } });
    let body = json!({ "at": rfc3339(now_millis()), "target": target }).to_string();
    assert_eq!(client.send("PUT", "/v1/schedules/redirected", &body).unwrap().status, 200);
    intended.wait(|hits| hits.iter().any(|hit| hit.authorization == "Bearer again"));
    assert!(server.stop().success());
}

#[test]
fn member_starts_only_after_the_migration_of_the_headers() {
    let cluster = TestCluster::new();
    let server = cluster.start("a");
    // A store of an earlier build has no record of the migration.
    let old = "convert_to((convert_from(value, 'UTF8')::jsonb - 'header_binding')::text, 'UTF8')";
    let update = format!("update reveille.tenant set value = {old} where tenant = 0");
    postgres::shared().sql(cluster.database(), &update).unwrap();
    let message = failure(&mut cluster.migrate());
    assert!(message.contains("running members; stop the members a,"), "{message}");
    assert!(server.stop().success());
    let message = failure(&mut cluster.serve("b"));
    assert!(message.contains("not bound to their targets") && message.contains("store migrate"), "{message}");
    assert!(cluster.migrate().output().unwrap().status.success());
    assert!(cluster.start("b").stop().success());
}
