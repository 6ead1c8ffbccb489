use expect_test::expect;

use crate::support::{FOREIGN_KEY, World, body};

#[tokio::test]
async fn api_creates_reads_replaces_and_cancels_a_schedule() {
    let world = World::start().await;
    let created = world.send("POST", "/v1/schedules", &body("")).await;
    expect![[r#"
        201
        location: /v1/schedules/ID
        content-type: application/json
        {
          "created_at": "TIME",
          "id": "ID",
          "next": "TIME",
          "revision": 0,
          "state": "active",
          "updated_at": "TIME"
        }
    "#]]
    .assert_eq(&created.shown());
    let path = created.header("location").unwrap().to_owned();
    assert_eq!(path, format!("/v1/schedules/{}", created.text("/id")));
    expect![[r#"
        200
        content-type: application/json
        {
          "at": "TIME",
          "created_at": "TIME",
          "id": "ID",
          "labels": {},
          "next": "TIME",
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
          "updated_at": "TIME"
        }
    "#]]
    .assert_eq(&world.send("GET", &path, "").await.shown());

    let replaced = world.send("PUT", &path, &body(r#","labels":{"team":"red"}"#)).await;
    assert_eq!((replaced.status, replaced.text("/revision")), (200, "1".to_owned()));
    assert_eq!(world.send("GET", &path, "").await.text("/labels/team"), "red");

    let cancelled = world.send("DELETE", &path, "").await;
    assert_eq!((cancelled.status, cancelled.body.as_str()), (200, r#"{"result":"cancelled"}"#));
    assert_eq!(world.send("GET", &path, "").await.text("/state"), "cancelled");
    let again = world.send("DELETE", &path, "").await;
    assert_eq!((again.status, again.body.as_str()), (200, r#"{"result":"cancelled"}"#));
    assert_eq!(world.send("DELETE", "/v1/schedules/never-was", "").await.text("/code"), "schedule_not_found");
    world.stop().await;
}

#[tokio::test]
async fn server_returns_a_schedule_with_redacted_header_values() {
    let world = World::start().await;
    let request = r#"{
        "id": "nightly-report", "cron": "30 2 * * *", "zone": "Europe/Berlin",
        "target": {"http": {"url": "https://example.org/a?b=c", "method": "PUT", "headers": {"X-Team": "red"}, "timeout": "PT3S"}},
        "payload": [1, 2.50, "x"],
        "labels": {"a": "b"},
        "retry": {"attempts_max": 3, "backoff": "2s", "backoff_max": "1m"}
    }"#;
    assert_eq!(world.send("POST", "/v1/schedules", request).await.status, 201);
    expect![[r#"
        200
        content-type: application/json
        {
          "created_at": "TIME",
          "cron": "30 2 * * *",
          "id": "nightly-report",
          "labels": {
            "a": "b"
          },
          "next": "TIME",
          "payload": [
            1,
            2.5,
            "x"
          ],
          "retry": {
            "attempts_max": 3,
            "backoff": "2s",
            "backoff_max": "1m"
          },
          "revision": 0,
          "state": "active",
          "target": {
            "http": {
              "headers": {
                "x-team": "[redacted]"
              },
              "method": "PUT",
              "timeout": "3s",
              "url": "https://example.org/a?b=c"
            }
          },
          "updated_at": "TIME",
          "zone": "Europe/Berlin"
        }
    "#]]
    .assert_eq(&world.send("GET", "/v1/schedules/nightly-report", "").await.shown());
    world.stop().await;
}

#[tokio::test]
async fn server_returns_the_exact_bytes_of_a_payload() {
    let payloads = [
        "null",
        "{}",
        "{ \"b\" : 1 ,\t\"a\":\r\n 2 }",
        "123456789012345678901234567890.000e+0010",
        r#""\u0041\/\ud83d\ude00 é 😀""#,
        r#"{"a":1,"a":2}"#,
        "[[[[1,  2],\n3]]]",
        r#""\ud800""#,
        "1e999",
    ];
    let world = World::start().await;
    for (number, payload) in payloads.into_iter().enumerate() {
        let created =
            world.send("POST", "/v1/schedules", &body(&format!(r#","id":"p{number}","payload":{payload}"#))).await;
        assert_eq!(created.status, 201, "{payload}: {}", created.body);
        let read = world.send("GET", &format!("/v1/schedules/p{number}"), "").await;
        assert!(read.body.contains(&format!(r#""payload":{payload},"labels""#)), "{payload}: {}", read.body);
    }
    world.stop().await;
}

#[tokio::test]
async fn put_creates_a_schedule_with_the_given_id() {
    let world = World::start().await;
    let created = world.send("PUT", "/v1/schedules/mine", &body("")).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/v1/schedules/mine")));
    let again = world.send("PUT", "/v1/schedules/mine", &body(r#","id":"mine""#)).await;
    assert_eq!((again.status, again.header("location")), (200, None));
    world.send("DELETE", "/v1/schedules/mine", "").await;
    assert_eq!(world.send("PUT", "/v1/schedules/mine", &body("")).await.status, 201);
    let other = world.send("PUT", "/v1/schedules/mine", &body(r#","id":"yours""#)).await;
    assert_eq!(other.errors(), [("/id".to_owned(), "id_mismatch".to_owned())]);
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_post_with_the_id_of_an_existing_schedule() {
    let world = World::start().await;
    assert_eq!(world.send("POST", "/v1/schedules", &body(r#","id":"mine""#)).await.status, 201);
    let second = world.send("POST", "/v1/schedules", &body(r#","id":"mine""#)).await;
    expect![[r#"
        409
        content-type: application/problem+json
        {
          "code": "schedule_exists",
          "detail": "the id is in use; choose another id, or replace the schedule with PUT /v1/schedules/{id}",
          "request_id": "REQUEST",
          "status": 409,
          "title": "A schedule with this id exists",
          "type": "urn:reveille:problem:schedule_exists"
        }
    "#]]
    .assert_eq(&second.shown());
    world.stop().await;
}

#[tokio::test]
async fn tenant_does_not_see_schedules_of_another_tenant() {
    let world = World::start().await;
    assert_eq!(world.send("PUT", "/v1/schedules/mine", &body("")).await.status, 201);
    for (method, path) in
        [("GET", "/v1/schedules/mine"), ("DELETE", "/v1/schedules/mine"), ("GET", "/v1/schedules/mine/runs")]
    {
        let response = world.send_as(FOREIGN_KEY, method, path, "").await;
        assert_eq!((response.status, response.text("/code").as_str()), (404, "schedule_not_found"), "{method} {path}");
    }
    assert_eq!(world.send_as(FOREIGN_KEY, "PUT", "/v1/schedules/mine", &body("")).await.status, 201);
    assert_eq!(world.send("GET", "/v1/schedules/mine", "").await.text("/revision"), "0");
    world.stop().await;
}

#[tokio::test]
async fn server_rounds_instants_up_to_the_next_millisecond() {
    let world = World::start().await;
    for (sent, kept) in [
        ("2035-01-02T03:04:05.0001Z", "2035-01-02T03:04:05.001Z"),
        ("2035-01-02T03:04:05.999999999Z", "2035-01-02T03:04:06.000Z"),
        ("2035-01-02t03:04:05.120+01:00", "2035-01-02T02:04:05.120Z"),
    ] {
        let body = body("").replace("2035-01-02T03:04:05Z", sent);
        assert_eq!(world.send("POST", "/v1/schedules", &body).await.text("/next"), kept);
    }
    world.stop().await;
}
