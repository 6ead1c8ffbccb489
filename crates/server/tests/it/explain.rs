use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, Response, World};

const FAR: &str = "2033-05-18T03:33:20Z";
const LATER: &str = "2034-01-01T00:00:00Z";

async fn create(world: &World, id: &str, at: &str, status: u16) {
    let body = json!({
        "id": id,
        "at": at,
        "target": {"http": {"url": format!("http://127.0.0.1:9/{status}")}},
        "retry": {"attempts_max": 1},
    });
    let created = world.send("POST", "/v1/schedules", &body.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

async fn explain(world: &World, id: &str, query: &str) -> Response {
    world.send("GET", &format!("/v1/schedules/{id}/explain{query}"), "").await
}

/// Returns the verdict and the kinds of the causes.
fn kinds(response: &Response) -> (String, Vec<String>) {
    let json = response.json();
    let causes = json["causes"].as_array().unwrap_or_else(|| panic!("{}", response.body));
    let kinds = causes.iter().map(|cause| cause["kind"].as_str().unwrap().to_owned());
    (response.text("/verdict"), kinds.collect())
}

#[tokio::test]
async fn instant_is_explained_by_its_causes() {
    let world = World::start().await;
    let due = world.runtime.now().to_string();
    create(&world, "failed", &due, 503).await;
    create(&world, "fired", &due, 204).await;
    for id in ["future", "replaced", "put", "cancelled", "conditional"] {
        create(&world, id, FAR, 204).await;
    }
    let patched = world.send("PATCH", "/v1/schedules/replaced", &json!({"at": LATER}).to_string()).await;
    assert_eq!(patched.status, 200, "{}", patched.body);
    let put = json!({"at": LATER, "target": {"http": {"url": "http://127.0.0.1:9/204"}}}).to_string();
    assert_eq!(world.send("PUT", "/v1/schedules/put", &put).await.status, 200);
    assert_eq!(world.send("DELETE", "/v1/schedules/cancelled", "").await.status, 200);
    let cancelled = world.send_if("DELETE", "/v1/schedules/conditional", &[("if-match", "*")], "").await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    for id in ["failed", "fired"] {
        let runs = format!("/v1/schedules/{id}/runs");
        let wait = async { while world.send("GET", &runs, "").await.json()["runs"][0]["state"] == Value::Null {} };
        world.runtime.timeout(Duration::from_secs(20), wait).await.expect("the schedule has a run");
    }
    for (id, at, verdict, expected) in [
        ("failed", &*due, "failed", &["dead_letter", "answered"][..]),
        ("fired", &due, "fired", &["fired"]),
        ("fired", FAR, "will_not_fire", &["ended"]),
        ("future", FAR, "will_fire", &["not_yet_due"]),
        ("future", LATER, "will_not_fire", &["no_match"]),
        ("replaced", FAR, "will_not_fire", &["replaced", "no_match"]),
        ("replaced", LATER, "will_fire", &["not_yet_due"]),
        ("put", FAR, "will_not_fire", &["replaced", "no_match"]),
        ("cancelled", FAR, "will_not_fire", &["cancelled"]),
        ("conditional", FAR, "will_not_fire", &["cancelled"]),
    ] {
        let explained = explain(&world, id, &format!("?at={at}")).await;
        let (found, causes) = kinds(&explained);
        assert_eq!(
            (found.as_str(), &causes.iter().map(String::as_str).collect::<Vec<_>>()[..]),
            (verdict, expected),
            "{id}"
        );
        if causes[0] == "cancelled" || causes[0] == "replaced" {
            assert_eq!(explained.text("/causes/0/key"), "ours", "the cause names the key");
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn invalid_request_for_an_explanation_is_rejected() {
    let world = World::start().await;
    create(&world, "one", FAR, 204).await;
    for (query, parameter, code) in [
        ("", "at", "missing_parameter"),
        ("?at=soon", "at", "invalid_time"),
        ("?at=2030-01-01T00:00:00", "at", "invalid_time"),
        ("?at=1969-01-01T00:00:00Z", "at", "invalid_time"),
        ("?at=2030-01-01T00:00:00Z&zone=UTC", "zone", "unknown_parameter"),
    ] {
        let response = explain(&world, "one", query).await;
        assert_eq!((response.status, response.text("/code").as_str()), (400, "invalid_parameter"), "{query}");
        let error = &response.json()["errors"][0];
        assert_eq!((&error["parameter"], &error["code"]), (&json!(parameter), &json!(code)), "{query}");
    }
    let missing = explain(&world, "two", &format!("?at={FAR}")).await;
    assert_eq!((missing.status, missing.text("/code").as_str()), (404, "schedule_not_found"));
    let path = format!("/v1/schedules/one/explain?at={FAR}");
    assert_eq!(world.send_as(FOREIGN_KEY, "GET", &path, "").await.status, 404);
    world.stop().await;
}
