use expect_test::expect;
use serde_json::Value;

use crate::support::{FOREIGN_KEY, Response, World};

/// Polls until the schedule's first run is in `state`. Fails after a timeout.
async fn run_in_state(world: &World, id: &str, state: &str) -> Response {
    let wait = async {
        loop {
            let response = world.send("GET", &format!("/v1/schedules/{id}/runs"), "").await;
            if response.json().pointer("/runs/0/state").and_then(Value::as_str) == Some(state) {
                return response;
            }
        }
    };
    world.runtime.timeout(std::time::Duration::from_secs(20), wait).await.expect("the run reaches the state")
}

async fn create_due(world: &World, id: &str, status: u16) {
    let body = format!(
        r#"{{"id":"{id}","at":"{}","target":{{"http":{{"url":"http://127.0.0.1:9/{status}"}}}},"retry":{{"attempts_max":1}}}}"#,
        world.runtime.now()
    );
    let created = world.send("POST", "/v1/schedules", &body).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

#[tokio::test]
async fn response_contains_a_run_with_its_attempts() {
    let world = World::start().await;
    create_due(&world, "one", 204).await;
    let mut runs = run_in_state(&world, "one", "succeeded").await.json();
    runs["runs"][0]["id"] = "RUN".into();
    runs["runs"][0]["attempts"][0]["duration_ms"] = 0.into();
    expect![[r#"
        {
          "next_page_token": null,
          "runs": [
            {
              "attempts": [
                {
                  "duration_ms": 0,
                  "number": 1,
                  "started_at": "TIME",
                  "status": 204
                }
              ],
              "id": "RUN",
              "replay": 0,
              "revision": 0,
              "schedule_id": "one",
              "scheduled_at": "TIME",
              "state": "succeeded"
            }
          ]
        }"#]]
    .assert_eq(&crate::support::normalized(&serde_json::to_string_pretty(&runs).unwrap()));
    world.stop().await;
}

#[tokio::test]
async fn client_lists_dead_letter_and_redrives_it_once() {
    let world = World::start().await;
    create_due(&world, "bad", 500).await;
    let run_id = run_in_state(&world, "bad", "failed").await.text("/runs/0/id");
    let letters = world.send("GET", "/v1/runs?dead_letter=true", "").await;
    assert_eq!((letters.text("/runs/0/id"), letters.text("/runs/0/schedule_id")), (run_id.clone(), "bad".to_owned()));
    let foreign = world.send_as(FOREIGN_KEY, "GET", "/v1/runs?dead_letter=true", "").await;
    assert_eq!(foreign.body, r#"{"runs":[],"next_page_token":null}"#);

    let redrive = format!("/v1/runs/{run_id}/redrive");
    let rejected = world.send_as(FOREIGN_KEY, "POST", &redrive, "").await;
    assert_eq!((rejected.status, rejected.text("/code").as_str()), (404, "run_not_found"));
    let redriven = world.send("POST", &redrive, "").await;
    assert_eq!(redriven.status, 200, "{}", redriven.body);
    assert_ne!(redriven.text("/run_id"), run_id);
    let again = world.send("POST", &redrive, "").await;
    expect![[r#"
        409
        content-type: application/problem+json
        {
          "code": "not_dead_letter",
          "detail": "the run has not failed or was already redriven; only a failed run can be redriven, and only once",
          "request_id": "REQUEST",
          "status": 409,
          "title": "The run is not a dead letter",
          "type": "urn:reveille:problem:not_dead_letter"
        }
    "#]]
    .assert_eq(&again.shown());
    world.stop().await;
}

#[tokio::test]
async fn client_reads_a_run_by_its_webhook_id() {
    let world = World::start().await;
    create_due(&world, "one", 204).await;
    let listed = run_in_state(&world, "one", "succeeded").await.json()["runs"][0].clone();
    let path = format!("/v1/runs/{}", listed["id"].as_str().unwrap());
    let response = world.send("GET", &path, "").await;
    assert_eq!((response.status, response.json()), (200, listed.clone()));

    let foreign = world.send_as(FOREIGN_KEY, "GET", &path, "").await;
    expect![[r#"
        404
        content-type: application/problem+json
        {
          "code": "run_not_found",
          "detail": "the tenant has no run with this id",
          "request_id": "REQUEST",
          "status": 404,
          "title": "The run does not exist",
          "type": "urn:reveille:problem:run_not_found"
        }
    "#]]
    .assert_eq(&foreign.shown());
    for id in ["nothing", "%00", "a.b", &format!("{}x", listed["id"].as_str().unwrap())] {
        let response = world.send("GET", &format!("/v1/runs/{id}"), "").await;
        assert_eq!((response.status, response.text("/code").as_str()), (404, "run_not_found"), "{id}");
    }
    assert_eq!(world.send("GET", &format!("{path}?limit=1"), "").await.text("/code"), "invalid_parameter");
    world.stop().await;
}

#[tokio::test]
async fn client_can_read_a_run_after_its_schedule_id_is_reused() {
    let world = World::start().await;
    let body = format!(
        r#"{{"id":"bad","at":"{}","target":{{"http":{{"url":"http://127.0.0.1:9/500"}}}},"retry":{{"backoff":"1h","backoff_max":"1h"}}}}"#,
        world.runtime.now()
    );
    assert_eq!(world.send("POST", "/v1/schedules", &body).await.status, 201);
    let id = run_in_state(&world, "bad", "retrying").await.text("/runs/0/id");
    let path = format!("/v1/runs/{id}");
    assert_eq!(world.send("GET", &path, "").await.text("/state"), "retrying");
    assert_eq!(world.send("DELETE", "/v1/schedules/bad", "").await.status, 200);
    let later = r#"{"id":"bad","every":"1h","target":{"http":{"url":"http://127.0.0.1:9/200"}}}"#;
    assert_eq!(world.send("POST", "/v1/schedules", later).await.status, 201);
    assert_eq!(world.send("GET", &path, "").await.text("/schedule_id"), "bad");
    world.stop().await;
}

#[tokio::test]
async fn page_continues_after_the_last_run_of_the_previous_page() {
    let world = World::start().await;
    for id in ["a", "b", "c"] {
        create_due(&world, id, 500).await;
        run_in_state(&world, id, "failed").await;
    }
    let mut seen = Vec::new();
    let mut query = "dead_letter=true&limit=2".to_owned();
    loop {
        let page = world.send("GET", &format!("/v1/runs?{query}"), "").await.json();
        seen.extend(page["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        match page["next_page_token"].as_str() {
            Some(token) => query = format!("dead_letter=true&limit=2&page_token={token}"),
            None => break,
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn response_to_invalid_run_query_lists_all_errors() {
    let world = World::start().await;
    expect![[r#"
        400
        content-type: application/problem+json
        {
          "code": "invalid_parameter",
          "detail": "the query is invalid; see the field `errors`",
          "errors": [
            {
              "code": "out_of_range",
              "detail": "the value must be a whole number from 1 to 1000",
              "parameter": "limit"
            },
            {
              "code": "invalid_token",
              "detail": "the value is not a page token; send the next_page_token of the previous page",
              "parameter": "page_token"
            },
            {
              "code": "unknown_parameter",
              "detail": "unknown parameter \"sort\"; a listing with dead_letter has only the parameters limit and page_token",
              "parameter": "sort"
            },
            {
              "code": "missing_parameter",
              "detail": "the only value of this parameter is true; send dead_letter=true, or omit the parameter",
              "parameter": "dead_letter"
            }
          ],
          "request_id": "REQUEST",
          "status": 400,
          "title": "A parameter is invalid",
          "type": "urn:reveille:problem:invalid_parameter"
        }
    "#]]
    .assert_eq(&world.send("GET", "/v1/runs?dead_letter=yes&limit=0&page_token=x&sort=up", "").await.shown());
    let response = world.send("GET", "/v1/runs/nothing/redrive", "").await;
    assert_eq!((response.status, response.header("allow")), (405, Some("POST")));
    assert_eq!(world.send("POST", "/v1/runs/nothing/redrive", "").await.text("/code"), "run_not_found");
    world.stop().await;
}
