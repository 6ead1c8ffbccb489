//! Tests of `POST /v1/schedules/preview`, which checks a schedule and lists its next occurrences.

use serde_json::{Value, json};

use crate::support::{Response, World, body};

const TARGET: &str = r#""target":{"http":{"url":"http://127.0.0.1:9/hook"}}"#;

async fn preview(world: &World, query: &str, timing: &str) -> Response {
    world.send("POST", &format!("/v1/schedules/preview{query}"), &format!("{{{timing},{TARGET}}}")).await
}

/// Returns the values of a field of each occurrence in the list with this name.
fn values(response: &Response, list: &str, pointer: &str) -> Vec<Value> {
    let json = response.json();
    let list = json[list].as_array().unwrap_or_else(|| panic!("{}", response.body));
    list.iter().map(|one| one.pointer(pointer).cloned().unwrap_or(Value::Null)).collect()
}

#[tokio::test]
async fn preview_explains_the_effects_of_clock_changes() {
    let world = World::start().await;
    let cron = |expression: &str| format!(r#""cron":"{expression}","zone":"Europe/Berlin""#);
    // In Berlin on 31 March 2030, the clock moves from 02:00 to 03:00 at 01:00Z.
    let spring = preview(&world, "?from=2030-03-30T12:00:00Z&count=2", &cron("*/30 2 * * *")).await;
    assert_eq!(spring.status, 200, "{}", spring.body);
    assert_eq!(spring.json()["zone"], "Europe/Berlin");
    assert_eq!(values(&spring, "occurrences", "/at"), ["2030-03-31T01:00:00.000Z", "2030-04-01T00:00:00.000Z"]);
    let local = ["2030-03-31T03:00:00.000+02:00", "2030-04-01T02:00:00.000+02:00"];
    assert_eq!(values(&spring, "occurrences", "/local"), local);
    assert_eq!(values(&spring, "occurrences", "/clock_change/kind"), [json!("moved"), Value::Null]);
    let text = &values(&spring, "occurrences", "/clock_change/text")[0];
    assert!(text.as_str().unwrap().contains("the clock skips 2030-03-31T02:00:00"), "{text}");
    assert_eq!(values(&spring, "dropped", "/local"), ["2030-03-31T02:30:00"]);
    assert_eq!(values(&spring, "dropped", "/clock_change/kind"), ["dropped"]);
    assert_eq!(spring.json()["dropped_count"], 1);

    // On 27 October 2030, the clock shows the hour after 02:00 twice: from 00:00Z, and again from 01:00Z.
    let autumn = preview(&world, "?from=2030-10-27T00:00:00Z&count=3", &cron("30 * * * *")).await;
    let kinds = values(&autumn, "occurrences", "/clock_change/kind");
    assert_eq!(kinds, [Value::Null, json!("repeated"), Value::Null]);
    assert_eq!(values(&autumn, "occurrences", "/local")[1], "2030-10-27T02:30:00.000+01:00");
    let autumn = preview(&world, "?from=2030-10-27T00:00:00Z&count=2", &cron("30 2 * * *")).await;
    assert_eq!(values(&autumn, "occurrences", "/at"), ["2030-10-27T00:30:00.000Z", "2030-10-28T01:30:00.000Z"]);
    assert_eq!(values(&autumn, "dropped", "/at"), ["2030-10-27T01:30:00.000Z"]);
    assert_eq!(values(&autumn, "dropped", "/local"), ["2030-10-27T02:30:00.000+01:00"]);
    let text = &values(&autumn, "dropped", "/clock_change/text")[0];
    assert!(text.as_str().unwrap().contains("2030-10-27T00:30:00.000Z"), "{text}");
    let later = preview(&world, "?from=2030-10-27T00:30:00.0001Z&count=1", &cron("30 2 * * *")).await;
    assert_eq!(values(&later, "occurrences", "/at"), ["2030-10-28T01:30:00.000Z"], "the start is inclusive and exact");
    world.stop().await;
}

#[tokio::test]
async fn preview_lists_the_same_instants_as_a_dry_run() {
    let world = World::start().await;
    for timing in [r#""cron":"0 12 * * *""#, r#""at":"2035-01-02T03:04:05Z""#] {
        let sent = format!("{{{timing},{TARGET}}}");
        let dry = world.send("POST", "/v1/schedules?dry_run=true", &sent).await;
        let found = preview(&world, "?count=5", timing).await;
        assert_eq!(json!(values(&found, "occurrences", "/at")), dry.json()["upcoming"], "{timing}");
        assert_eq!(found.json()["dropped"], json!([]));
    }
    assert_eq!(values(&preview(&world, "", r#""every":"1h""#).await, "occurrences", "/at").len(), 10);
    let hundred = preview(&world, "?count=100", r#""every":"1s""#).await;
    assert_eq!(values(&hundred, "occurrences", "/at").len(), 100);
    world.stop().await;
}

#[tokio::test]
async fn preview_creates_no_schedule_and_keeps_its_id_free() {
    let world = World::start().await;
    let path = "/v1/schedules/preview";
    let named = preview(&world, "", r#""id":"preview","every":"1h""#).await;
    assert_eq!(named.status, 200, "{}", named.body);
    assert_eq!(world.send("GET", path, "").await.text("/code"), "schedule_not_found");
    assert_eq!(world.send("PUT", path, &body("")).await.status, 201);
    assert_eq!(world.send("GET", path, "").await.text("/id"), "preview");
    assert_eq!(preview(&world, "", r#""every":"1h""#).await.status, 200);
    assert_eq!(world.send("DELETE", path, "").await.status, 200);
    world.stop().await;
}

#[tokio::test]
async fn preview_has_no_second_path() {
    let world = World::start().await;
    for path in ["/v1/schedules:preview", "/v1/schedules%3Apreview", "/v1/schedules%3apreview"] {
        for method in ["POST", "GET"] {
            let rejected = world.send(method, path, &body("")).await;
            assert_eq!((rejected.status, rejected.text("/code").as_str()), (404, "route_not_found"), "{method} {path}");
        }
    }
    let batch = world.send("POST", "/v1/schedules%3Abatch", "{}").await;
    assert_ne!(batch.status, 404, "{}", batch.body);
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_the_preview_of_an_invalid_schedule() {
    let world = World::start().await;
    for (query, sent, status, code, place) in [
        ("", "{}".to_owned(), 422, "invalid_schedule", "/target"),
        ("", format!(r#"{{"cron":"61 * * * *",{TARGET}}}"#), 422, "invalid_schedule", "/cron"),
        ("", format!(r#"{{"cron":"0 0 30 2 *",{TARGET}}}"#), 422, "invalid_schedule", "/cron"),
        ("", format!(r#"{{"cron":"0 0 * * *","zone":"Mars",{TARGET}}}"#), 422, "invalid_schedule", "/zone"),
        ("", format!(r#"{{"every":"1h","evry":"1h",{TARGET}}}"#), 422, "invalid_schedule", "/evry"),
        ("?count=0", body(""), 400, "invalid_parameter", "count"),
        ("?count=101", body(""), 400, "invalid_parameter", "count"),
        ("?count=ten", body(""), 400, "invalid_parameter", "count"),
        ("?count=1&count=2", body(""), 400, "invalid_parameter", "count"),
        ("?from=soon", body(""), 400, "invalid_parameter", "from"),
        ("?from=2030-01-01T00:00:00", body(""), 400, "invalid_parameter", "from"),
        ("?from=1969-01-01T00:00:00Z", body(""), 400, "invalid_parameter", "from"),
        ("?from=10000-01-01T00:00:00Z", body(""), 400, "invalid_parameter", "from"),
        ("?dry_run=true", body(""), 400, "invalid_parameter", "dry_run"),
    ] {
        let rejected = world.send("POST", &format!("/v1/schedules/preview{query}"), &sent).await;
        assert_eq!((rejected.status, rejected.text("/code").as_str()), (status, code), "{query} {sent}");
        let errors = rejected.json()["errors"].as_array().unwrap().clone();
        let places = errors.iter().map(|error| error["pointer"].as_str().or(error["parameter"].as_str()).unwrap());
        assert!(places.clone().any(|found| found == place), "{place} in {}", rejected.body);
    }
    let malformed = world.send("POST", "/v1/schedules/preview", "{").await;
    assert_eq!((malformed.status, malformed.text("/code").as_str()), (400, "malformed_json"));
    world.stop().await;
}
