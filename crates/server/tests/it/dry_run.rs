//! Tests of `dry_run=true`, which shows the result of a request and writes no data.

use expect_test::expect;

use crate::support::{World, body};

const PATH: &str = "/v1/schedules/invoice-7";
const DRY: &str = "/v1/schedules/invoice-7?dry_run=true";

#[tokio::test]
async fn dry_run_shows_the_result_without_writing_data() {
    let world = World::start().await;
    let sent = r#"{"cron":"0 12 * * *","zone":"UTC","target":{"http":{"url":"http://127.0.0.1:9/hook"}},"payload":{ "a" : 1 }}"#;
    let preview = world.send("POST", "/v1/schedules?dry_run=true", sent).await;
    assert_eq!((preview.status, preview.header("location"), preview.header("etag")), (200, None, None));
    expect![[r#"
        200
        content-type: application/json
        {
          "dry_run": true,
          "schedule": {
            "created_at": "TIME",
            "cron": "0 12 * * *",
            "id": "ID",
            "labels": {},
            "next": "TIME",
            "payload": {
              "a": 1
            },
            "retry": {
              "attempts_max": 5,
              "backoff": "1s",
              "backoff_max": "10m"
            },
            "revision": 0,
            "state": "active",
            "target": {
              "http": {
                "headers": {},
                "method": "POST",
                "timeout": "10s",
                "url": "http://127.0.0.1:9/hook"
              }
            },
            "updated_at": "TIME",
            "zone": "UTC"
          },
          "status": 201,
          "upcoming": [
            "TIME",
            "TIME",
            "TIME",
            "TIME",
            "TIME"
          ]
        }
    "#]]
    .assert_eq(&preview.shown());
    let json = preview.json();
    let upcoming: Vec<&str> = json["upcoming"].as_array().unwrap().iter().map(|at| at.as_str().unwrap()).collect();
    assert!(upcoming.is_sorted() && upcoming.iter().all(|at| at.ends_with("T12:00:00.000Z")), "{upcoming:?}");
    assert_eq!(json["schedule"]["next"], upcoming[0]);
    let id = json["schedule"]["id"].as_str().unwrap();
    assert_eq!(world.send("GET", &format!("/v1/schedules/{id}"), "").await.status, 404);

    assert_eq!(world.send("PUT", DRY, &body("")).await.text("/status"), "201");
    assert_eq!(world.send("GET", PATH, "").await.status, 404);
    world.send("PUT", PATH, &body("")).await;
    let before = world.send("GET", PATH, "").await;
    let put = world.send("PUT", DRY, sent).await;
    assert_eq!((put.text("/status"), put.text("/schedule/revision")), ("200".to_owned(), "1".to_owned()));
    assert_eq!(put.text("/schedule/created_at"), before.text("/created_at"));
    let patched = world.send("PATCH", DRY, r#"{"labels":{"a":"1"}}"#).await;
    assert_eq!((patched.text("/status"), patched.text("/schedule/labels/a")), ("200".to_owned(), "1".to_owned()));
    assert_eq!(patched.json()["upcoming"], serde_json::json!(["2035-01-02T03:04:05.000Z"]));
    assert_eq!(world.send("GET", PATH, "").await.body, before.body);
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_the_dry_run_of_a_request_that_would_fail() {
    let world = World::start().await;
    world.send("PUT", PATH, &body("")).await;
    let post = "/v1/schedules?dry_run=true";
    for (method, path, headers, sent, code) in [
        ("POST", post, None, "{}", "invalid_schedule"),
        ("POST", post, None, &*body(r#","id":"invoice-7""#), "schedule_exists"),
        ("PUT", DRY, Some(("if-match", "\"x\"")), &*body(""), "precondition_failed"),
        ("PUT", DRY, Some(("if-none-match", "*")), &*body(""), "precondition_failed"),
        ("PATCH", DRY, None, r#"{"oops":1}"#, "invalid_schedule"),
        ("PATCH", DRY, Some(("if-match", "\"x\"")), "{}", "precondition_failed"),
        ("PATCH", "/v1/schedules/never-was?dry_run=true", None, "{}", "schedule_not_found"),
    ] {
        let rejected = world.send_if(method, path, &Vec::from_iter(headers), sent).await;
        assert_eq!(rejected.text("/code"), code, "{method} {path} {sent}");
    }
    world.stop().await;
}

#[tokio::test]
async fn request_with_misspelt_dry_run_parameter_writes_no_data() {
    let world = World::start().await;
    for query in
        ["dryrun=true", "dry_run", "dry_run=", "dry_run=1", "dry_run=True", "dry_run=true&dry_run=false", "a=b"]
    {
        let sent = body(r#","id":"invoice-7""#);
        for (method, path) in
            [("POST", "/v1/schedules"), ("PUT", PATH), ("PATCH", PATH), ("POST", "/v1/schedules:batch")]
        {
            let media = if path.ends_with(":batch") { "application/x-ndjson" } else { "application/json" };
            let rejected = world.send_if(method, &format!("{path}?{query}"), &[("content-type", media)], &sent).await;
            assert_eq!(
                (rejected.status, rejected.text("/code")),
                (400, "invalid_parameter".to_owned()),
                "{method} {path}?{query}"
            );
        }
    }
    let (path, ndjson) = ("/v1/schedules:batch?dry_run=true", [("content-type", "application/x-ndjson")]);
    let batch = world.send_if("POST", path, &ndjson, &body(r#","id":"invoice-7""#)).await;
    assert_eq!(batch.text("/code"), "invalid_parameter");
    assert_eq!(world.send("GET", PATH, "").await.status, 404);
    assert_eq!(world.send("PUT", &format!("{PATH}?dry_run=false"), &body("")).await.status, 201);
    world.stop().await;
}
