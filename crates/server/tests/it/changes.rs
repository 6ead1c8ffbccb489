//! Tests of preconditions and of changes of one schedule.

use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, Spec, When};
use futures_util::future::join_all;
use store::{Insert, Store as _};

use crate::support::{Response, World, body};

const PATH: &str = "/v1/schedules/invoice-7";

/// Returns a patch that sets a label.
fn change(label: &str) -> String {
    format!(r#"{{"labels":{{"{label}":"set"}}}}"#)
}

async fn create_schedule(world: &World) -> String {
    let response = world.send("PUT", PATH, &body("")).await;
    assert_eq!(response.status, 201);
    etag(&response)
}

fn etag(response: &Response) -> String {
    response.header("etag").expect("a response about a schedule has an ETag").to_owned()
}

/// Returns the status of the response, and the problem code if the response is a problem.
fn status_and_code(response: &Response) -> (u16, String) {
    let is_problem = response.header("content-type") == Some("application/problem+json");
    (response.status, if is_problem { response.text("/code") } else { String::new() })
}

fn ok(status: u16) -> (u16, String) {
    (status, String::new())
}

fn precondition_failed() -> (u16, String) {
    (412, "precondition_failed".to_owned())
}

#[tokio::test]
async fn every_response_about_a_schedule_has_an_etag() {
    let world = World::start().await;
    let first = create_schedule(&world).await;
    assert_eq!(etag(&world.send("GET", PATH, "").await), first);
    let second = etag(&world.send("PUT", PATH, &body("")).await);
    let third = etag(&world.send("PATCH", PATH, &change("a")).await);
    assert!(first != second && second != third);
    assert_eq!(etag(&world.send("GET", PATH, "").await), third);
    world.send("DELETE", PATH, "").await;
    let fourth = etag(&world.send("GET", PATH, "").await);
    let again = world.send("PUT", PATH, &body("")).await;
    assert_eq!(again.status, 201);
    assert!(![&first, &second, &third, &fourth].contains(&&etag(&again)), "the tags of another incarnation differ");
    let posted = world.send("POST", "/v1/schedules", &body("")).await;
    let path = posted.header("location").unwrap();
    assert_eq!(etag(&world.send("GET", path, "").await), etag(&posted));
    world.stop().await;
}

#[tokio::test]
async fn recurring_schedule_keeps_its_etag_when_it_fires() {
    let world = World::start().await;
    let recurring = r#"{"every":"1s","target":{"http":{"url":"http://127.0.0.1:9/200"}}}"#;
    let first = world.send("PUT", PATH, recurring).await;
    let runs = format!("{PATH}/runs");
    while world.send("GET", &runs, "").await.json()["runs"].as_array().unwrap().is_empty() {
        world.runtime.sleep(Duration::from_millis(20)).await;
    }
    let now = world.send("GET", PATH, "").await;
    assert_ne!(now.text("/next"), first.text("/next"));
    assert_eq!(etag(&now), etag(&first));
    assert_eq!(
        status_and_code(&world.send_if("PATCH", PATH, &[("if-match", &etag(&first))], &change("a")).await),
        ok(200)
    );
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_a_change_with_an_outdated_if_match_header() {
    let world = World::start().await;
    let first = create_schedule(&world).await;
    let second = etag(&world.send_if("PUT", PATH, &[("if-match", &first)], &body("")).await);
    let list = format!("\"x\", {first}, {second}");
    let weak = format!("W/{second}");
    for (method, sent) in [("PUT", body("")), ("PATCH", change("a")), ("DELETE", String::new())] {
        for stale in [&*first, "\"x\"", &weak] {
            let response = world.send_if(method, PATH, &[("if-match", stale)], &sent).await;
            assert_eq!(status_and_code(&response), precondition_failed(), "{method} {stale}");
        }
    }
    assert_eq!(etag(&world.send("GET", PATH, "").await), second, "rejected requests change nothing");
    let third = etag(&world.send_if("PATCH", PATH, &[("if-match", &list)], &change("a")).await);
    let fourth = etag(&world.send_if("PUT", PATH, &[("if-match", "\"x\""), ("if-match", &third)], &body("")).await);
    assert_eq!(status_and_code(&world.send_if("PATCH", PATH, &[("if-match", "*")], &change("a")).await), ok(200));
    assert_eq!(
        status_and_code(&world.send_if("DELETE", PATH, &[("if-match", &fourth)], "").await),
        precondition_failed()
    );
    let fifth = etag(&world.send("GET", PATH, "").await);
    assert_eq!(world.send_if("DELETE", PATH, &[("if-match", &fifth)], "").await.body, r#"{"result":"cancelled"}"#);
    assert_eq!(world.send_if("DELETE", PATH, &[("if-match", &fifth)], "").await.body, r#"{"result":"cancelled"}"#);
    world.stop().await;
}

#[tokio::test]
async fn server_follows_rfc_9110_for_if_match_on_a_missing_schedule() {
    let world = World::start().await;
    for method in ["GET", "PATCH", "DELETE"] {
        let response = world.send_if(method, PATH, &[("if-match", "*")], "{}").await;
        assert_eq!(
            status_and_code(&response),
            (404, "schedule_not_found".to_owned()),
            "{method}: the response is 404 without a precondition too"
        );
    }
    assert_eq!(
        status_and_code(&world.send_if("PUT", PATH, &[("if-match", "*")], &body("")).await),
        precondition_failed()
    );
    let first = create_schedule(&world).await;
    world.send("DELETE", PATH, "").await;
    let cancelled = etag(&world.send("GET", PATH, "").await);
    assert_eq!(
        status_and_code(&world.send_if("PUT", PATH, &[("if-match", "*")], &body("")).await),
        precondition_failed()
    );
    assert_eq!(
        status_and_code(&world.send_if("PUT", PATH, &[("if-match", &first)], &body("")).await),
        precondition_failed()
    );
    assert_eq!(status_and_code(&world.send_if("PUT", PATH, &[("if-match", &cancelled)], &body("")).await), ok(201));
    world.stop().await;
}

#[tokio::test]
async fn put_with_if_none_match_star_replaces_no_active_schedule() {
    let world = World::start().await;
    let only_new = [("if-none-match", "*")];
    let sent = body("");
    let puts = join_all((0..8).map(|_| world.send_if("PUT", PATH, &only_new, &sent))).await;
    let mut statuses: Vec<u16> = puts.iter().map(|response| response.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 412, 412, 412, 412, 412, 412, 412]);
    assert_eq!(world.send("GET", PATH, "").await.text("/revision"), "0");
    world.send("DELETE", PATH, "").await;
    assert_eq!(status_and_code(&world.send_if("PUT", PATH, &only_new, &body("")).await), ok(201));
    let tag = etag(&world.send("GET", PATH, "").await);
    for (method, sent) in [("PUT", body("")), ("PATCH", change("a")), ("DELETE", String::new())] {
        assert_eq!(
            status_and_code(&world.send_if(method, PATH, &[("if-none-match", &tag)], &sent).await),
            precondition_failed(),
            "{method}"
        );
    }
    assert_eq!(
        status_and_code(&world.send_if("PATCH", PATH, &[("if-none-match", "\"x\"")], &change("a")).await),
        ok(200)
    );
    world.stop().await;
}

#[tokio::test]
async fn conditional_get_returns_304_if_the_schedule_has_not_changed() {
    let world = World::start().await;
    let first = create_schedule(&world).await;
    for tag in [first.clone(), format!("W/{first}"), format!("\"x\", {first}"), "*".to_owned()] {
        let same = world.send_if("GET", PATH, &[("if-none-match", &tag)], "").await;
        assert_eq!((same.status, &*same.body, etag(&same)), (304, "", first.clone()));
        assert_eq!(same.header("cache-control"), Some("no-store"));
    }
    assert_eq!(status_and_code(&world.send_if("GET", PATH, &[("if-none-match", "\"x\"")], "").await), ok(200));
    assert_eq!(status_and_code(&world.send_if("GET", PATH, &[("if-match", "\"x\"")], "").await), precondition_failed());
    assert_eq!(status_and_code(&world.send_if("GET", PATH, &[("if-match", &first)], "").await), ok(200));
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_request_with_malformed_precondition_header() {
    let world = World::start().await;
    let first = create_schedule(&world).await;
    let bare = first.trim_matches('"').to_owned();
    for (method, sent) in [("PUT", body("")), ("PATCH", change("a")), ("DELETE", String::new()), ("GET", String::new())]
    {
        for name in ["if-match", "if-none-match"] {
            for bad in [&*bare, "\"", "*, \"a\"", "\"a\" \"b\"", &"\"".repeat(8_001)] {
                let response = world.send_if(method, PATH, &[(name, bad)], &sent).await;
                assert_eq!(
                    status_and_code(&response),
                    (400, "invalid_parameter".to_owned()),
                    "{method} {name}: {bad:.40}"
                );
                assert_eq!(response.json()["errors"][0]["code"], "invalid_etag");
            }
        }
    }
    assert_eq!(etag(&world.send("GET", PATH, "").await), first);
    world.stop().await;
}

#[tokio::test]
async fn patch_changes_only_the_fields_in_its_body() {
    let world = World::start().await;
    let sent = r#"{"every":"1h","payload":{ "n" : 1.50 },"labels":{"a":"1","b":"2"},
        "target":{"http":{"url":"http://127.0.0.1:9/a","headers":{"x-token":"secret"}}}}"#;
    let first = world.send("PUT", PATH, sent).await;
    for media in ["application/merge-patch+json", "application/json"] {
        let change = r#"{"labels":{"a":null,"c":"3"},"target":{"http":{"url":"http://127.0.0.1:9/b"}}}"#;
        world.runtime.sleep(Duration::from_millis(2)).await; // Timestamps have a resolution of 1 ms.
        let response = world.send_if("PATCH", PATH, &[("content-type", media)], change).await;
        assert_eq!(response.status, 200, "{}", response.body);
        assert_eq!(response.text("/next"), first.text("/next"), "the instants of an hourly schedule stay the same");
        assert!(response.text("/updated_at") > first.text("/updated_at"), "a PATCH is an update");
        assert_eq!(response.text("/created_at"), first.text("/created_at"));
    }
    let now = world.send("GET", PATH, "").await;
    assert_eq!(now.text("/revision"), "2");
    assert_eq!(now.text("/labels"), r#"{"b":"2","c":"3"}"#);
    assert_eq!(now.text("/target/http/url"), "http://127.0.0.1:9/b");
    assert!(now.body.contains(r#""payload":{ "n" : 1.50 }"#), "{}", now.body);
    assert!(now.body.contains("x-token"));

    let moved = world.send("PATCH", PATH, r#"{"at":"2036-01-01T00:00:00+01:00"}"#).await;
    assert_eq!(moved.text("/next"), "2035-12-31T23:00:00.000Z");
    let now = world.send("GET", PATH, "").await;
    assert_eq!((now.json().get("every"), now.text("/at")), (None, "2035-12-31T23:00:00.000Z".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_invalid_patch_of_a_schedule() {
    let world = World::start().await;
    create_schedule(&world).await;
    let long = format!(r#"{{"payload":"{}"}}"#, "x".repeat(64 * 1024));
    for (change, pointer, code) in [
        (r#"{"oops":1}"#, "/oops", "unknown_field"),
        (r#"{"at":"2020-01-01T00:00:00Z"}"#, "/at", "time_in_past"),
        (r#"{"at":null}"#, "", "missing_field"),
        (r#"{"zone":"UTC"}"#, "/zone", "zone_without_cron"),
        (r#"{"target":{"http":{"url":"http://169.254.169.254/"}}}"#, "/target/http/url", "egress_refused"),
        (&*long, "/payload", "payload_too_large"),
    ] {
        let response = world.send("PATCH", PATH, change).await;
        assert_eq!(
            (response.status, response.errors()),
            (422, vec![(pointer.to_owned(), code.to_owned())]),
            "{change:.60}"
        );
    }
    for (media, change, rejected) in [
        ("text/plain", "{}", (415, "unsupported_media_type")),
        ("application/json-patch+json", "[]", (415, "unsupported_media_type")),
        ("application/json", "{", (400, "malformed_json")),
        ("application/json", "[]", (422, "invalid_schedule")),
    ] {
        let response = world.send_if("PATCH", PATH, &[("content-type", media)], change).await;
        assert_eq!(status_and_code(&response), (rejected.0, rejected.1.to_owned()), "{media} {change}");
    }
    let unknown = world.send("PATCH", "/v1/schedules/never-was", "{}").await;
    assert_eq!(status_and_code(&unknown), (404, "schedule_not_found".to_owned()));
    assert_eq!(world.send("GET", PATH, "").await.text("/revision"), "0");
    world.stop().await;
}

#[tokio::test]
async fn patch_of_an_ended_schedule_requires_a_new_timing() {
    let world = World::start().await;
    create_schedule(&world).await;
    world.send("DELETE", PATH, "").await;
    let over = (409, "schedule_over".to_owned());
    for change in [&*change("a"), r#"{"at":"2036-01-01T00:00:00Z"}"#] {
        assert_eq!(
            status_and_code(&world.send("PATCH", PATH, change).await),
            over,
            "a cancelled schedule stays cancelled"
        );
    }
    let once = |at: &str| body("").replace("2035-01-02T03:04:05Z", at).replace("/hook", "/200");
    let soon = domain::Timestamp::from_millis(world.runtime.now().as_millis() + 50).to_string();
    assert_eq!(world.send("PUT", PATH, &once(&soon)).await.status, 201);
    while world.send("GET", PATH, "").await.text("/state") != "ended" {
        world.runtime.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status_and_code(&world.send("PATCH", PATH, &change("a")).await), over);
    let revived = world.send("PATCH", PATH, r#"{"at":"2036-01-01T00:00:00Z"}"#).await;
    assert_eq!(
        (revived.status, revived.text("/state"), revived.text("/revision")),
        (200, "active".to_owned(), "1".to_owned())
    );
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_a_patch_of_an_overdue_one_shot_schedule() {
    let world = World::start().await;
    create_schedule(&world).await;
    let tenant = world.store.tenants().await.unwrap().into_iter().find(|tenant| tenant.name == "tenant-1").unwrap();
    let id = ScheduleId::new("invoice-7").unwrap();
    let known = world.store.get(vec![(tenant.id, id)]).await.unwrap().remove(0).unwrap();
    // No request can create a schedule that was due an hour ago, so the test writes this schedule to the store.
    let id = ScheduleId::new("old").unwrap();
    let at = world.runtime.now() - Duration::from_secs(3_600);
    let incarnation = Incarnation::new(at, 1);
    let spec = Spec { when: When::At(at), ..known.spec.clone() };
    let target = spec.target.key();
    let poller = PollerId::of(tenant.id, 0, 4, &id);
    let old = Schedule { id, incarnation, poller, next: Some(at), spec, ..Schedule::clone(&known) };
    let occurrence = Occurrence { incarnation, nominal: at, revision: old.revision, replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target };
    world.store.insert(vec![Insert { schedule: Arc::new(old), due, by: None }]).await.unwrap();
    let patched = world.send("PATCH", "/v1/schedules/old", &change("a")).await;
    assert_eq!(status_and_code(&patched), (409, "schedule_over".to_owned()), "{}", patched.body);
    world.stop().await;
}

#[tokio::test]
async fn owner_applies_all_concurrent_patches() {
    let world = World::start().await;
    create_schedule(&world).await;
    let changes = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let responses = join_all(changes.map(|label| {
        let change = change(label);
        let world = &world;
        async move { world.send("PATCH", PATH, &change).await }
    }))
    .await;
    assert!(responses.iter().all(|response| response.status == 200), "{responses:?}");
    let now = world.send("GET", PATH, "").await;
    assert_eq!((now.json()["labels"].as_object().unwrap().len(), now.text("/revision")), (8, "8".to_owned()));

    // Exactly one of the changes with the same precondition succeeds.
    let tag = etag(&now);
    let responses = join_all((0..8).map(|number| {
        let (world, tag, change) = (&world, &*tag, change(&format!("n{number}")));
        async move { world.send_if("PATCH", PATH, &[("if-match", tag)], &change).await.status }
    }))
    .await;
    assert_eq!(responses.iter().filter(|status| **status == 200).count(), 1, "{responses:?}");
    assert_eq!(responses.iter().filter(|status| **status == 412).count(), 7, "{responses:?}");
    world.stop().await;
}
