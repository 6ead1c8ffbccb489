//! Tests of invalid input. The response names each fault with a stable code and a pointer, and the server stores no
//! schedule.

use expect_test::{Expect, expect};

use crate::support::{FOREIGN_KEY, KEY, World, body};

async fn check(world: &World, body: &str, expect: Expect) {
    let response = world.send("POST", "/v1/schedules", body).await;
    expect.assert_eq(&response.shown());
}

#[tokio::test]
async fn response_lists_all_invalid_fields() {
    let world = World::start().await;
    let wrong = r#"{
        "id": "no spaces", "at": 7, "Cron": "x", "zone": ["UTC"],
        "target": {"http": {"url": "ftp://example.org", "methd": "POST", "headers": {"Host": "a", "x": null, "y": "a\r\nb: c"}, "timeout": "1 month"}, "buss": {}},
        "labels": {"a/b~c": 1},
        "retry": {"attempts_max": 1.5, "backoff": "2h"}
    }"#;
    check(
        &world,
        wrong,
        expect![[r#"
        422
        content-type: application/problem+json
        {
          "code": "invalid_schedule",
          "detail": "the body has 13 errors; see the field `errors`",
          "errors": [
            {
              "code": "wrong_type",
              "detail": "expected a string, but found a number",
              "hint": "put the value in quotation marks; a duration also has a unit, such as \"30s\"",
              "pointer": "/at"
            },
            {
              "code": "unknown_field",
              "detail": "unknown field",
              "hint": "did you mean `cron`?",
              "pointer": "/Cron"
            },
            {
              "code": "wrong_type",
              "detail": "expected a string, but found an array",
              "pointer": "/zone"
            },
            {
              "code": "unknown_field",
              "detail": "unknown field",
              "hint": "did you mean `method`?",
              "pointer": "/target/http/methd"
            },
            {
              "code": "wrong_type",
              "detail": "expected a string, but found null",
              "pointer": "/target/http/headers/x"
            },
            {
              "code": "unknown_field",
              "detail": "unknown field",
              "hint": "did you mean `bus`?",
              "pointer": "/target/buss"
            },
            {
              "code": "wrong_type",
              "detail": "expected a string, but found a number",
              "hint": "put the value in quotation marks; a duration also has a unit, such as \"30s\"",
              "pointer": "/labels/a~1b~0c"
            },
            {
              "code": "wrong_type",
              "detail": "expected a whole number, but found a number with a fraction or exponent",
              "pointer": "/retry/attempts_max"
            },
            {
              "code": "invalid_id",
              "detail": "id contains ' ' at byte 2, but may contain only A-Z, a-z, 0-9, _ and -",
              "hint": "leave the id out to get a generated id",
              "pointer": "/id"
            },
            {
              "code": "invalid_duration",
              "detail": "months and years have no fixed length",
              "hint": "use weeks, days, hours, minutes or seconds, such as 30d",
              "pointer": "/target/http/timeout"
            },
            {
              "code": "invalid_url",
              "detail": "URL must start with http:// or https://",
              "pointer": "/target/http/url"
            },
            {
              "code": "reserved_header",
              "detail": "Reveille or the connection sets this header",
              "hint": "leave it out",
              "pointer": "/target/http/headers/Host"
            },
            {
              "code": "invalid_header",
              "detail": "invalid header value: only visible ASCII characters, spaces and tabs on one line are allowed",
              "pointer": "/target/http/headers/y"
            }
          ],
          "request_id": "REQUEST",
          "status": 422,
          "title": "The schedule is invalid",
          "type": "urn:reveille:problem:invalid_schedule"
        }
    "#]],
    )
    .await;
    world.stop().await;
}

#[tokio::test]
async fn rejection_of_malformed_json_contains_line_and_column() {
    let world = World::start().await;
    check(
        &world,
        "{\"at\": \"2035-01-02T03:04:05Z\",\n  \"target\": {,}}",
        expect![[r#"
        400
        content-type: application/problem+json
        {
          "code": "malformed_json",
          "detail": "key must be a string at line 2 column 14; send one JSON object in UTF-8",
          "request_id": "REQUEST",
          "status": 400,
          "title": "The body is not JSON",
          "type": "urn:reveille:problem:malformed_json"
        }
    "#]],
    )
    .await;
    for body in ["", " ", "{", "{}x", "{\"at\": 01}", "\u{feff}{}", "{'at': 1}", "nul"] {
        let response = world.send("POST", "/v1/schedules", body).await;
        assert_eq!((response.status, response.text("/code").as_str()), (400, "malformed_json"), "{body:?}");
    }
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_json_that_is_not_an_object() {
    let world = World::start().await;
    check(
        &world,
        "[1]",
        expect![[r#"
        422
        content-type: application/problem+json
        {
          "code": "invalid_schedule",
          "detail": "the body has 1 error; see the field `errors`",
          "errors": [
            {
              "code": "wrong_type",
              "detail": "expected an object, but found an array",
              "pointer": ""
            }
          ],
          "request_id": "REQUEST",
          "status": 422,
          "title": "The schedule is invalid",
          "type": "urn:reveille:problem:invalid_schedule"
        }
    "#]],
    )
    .await;
    for body in ["null", "7", "\"x\"", "true", "1.5", "[]"] {
        let response = world.send("POST", "/v1/schedules", body).await;
        assert_eq!(response.errors(), [(String::new(), "wrong_type".to_owned())], "{body}");
    }
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_bytes_that_are_not_utf8() {
    let world = World::start().await;
    let headers = format!("authorization: Bearer {KEY}\r\n");
    let mut connection = world.connect().await;
    for bytes in [&b"{\"id\": \"\xff\"}"[..], b"{\"payload\": \"\xc3\x28\"}"] {
        let response = connection.request("POST", "/v1/schedules", &headers, bytes).await;
        assert_eq!((response.status, response.text("/code").as_str()), (400, "not_utf8"));
    }
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn response_to_empty_object_names_the_required_fields() {
    let world = World::start().await;
    check(
        &world,
        "{}",
        expect![[r#"
        422
        content-type: application/problem+json
        {
          "code": "invalid_schedule",
          "detail": "the body has 2 errors; see the field `errors`",
          "errors": [
            {
              "code": "missing_field",
              "detail": "one of at, cron and every is required",
              "hint": "add \"at\": \"2030-01-02T03:04:05Z\", \"cron\": \"0 7 * * *\" or \"every\": \"30s\", for example",
              "pointer": ""
            },
            {
              "code": "missing_field",
              "detail": "the field is required",
              "pointer": "/target"
            }
          ],
          "request_id": "REQUEST",
          "status": 422,
          "title": "The schedule is invalid",
          "type": "urn:reveille:problem:invalid_schedule"
        }
    "#]],
    )
    .await;
    check(
        &world,
        r#"{"at":null,"target":{"http":{}}}"#,
        expect![[r#"
        422
        content-type: application/problem+json
        {
          "code": "invalid_schedule",
          "detail": "the body has 2 errors; see the field `errors`",
          "errors": [
            {
              "code": "missing_field",
              "detail": "one of at, cron and every is required",
              "hint": "add \"at\": \"2030-01-02T03:04:05Z\", \"cron\": \"0 7 * * *\" or \"every\": \"30s\", for example",
              "pointer": ""
            },
            {
              "code": "missing_field",
              "detail": "the field is required",
              "pointer": "/target/http/url"
            }
          ],
          "request_id": "REQUEST",
          "status": 422,
          "title": "The schedule is invalid",
          "type": "urn:reveille:problem:invalid_schedule"
        }
    "#]],
    )
    .await;
    world.stop().await;
}

#[tokio::test]
async fn server_returns_the_specific_code_of_each_timing_error() {
    let world = World::start().await;
    let target = r#""target":{"http":{"url":"http://127.0.0.1/"}}"#;
    for (when, pointer, code) in [
        (r#""at":"2020-01-01T00:00:00Z""#, "/at", "time_in_past"),
        (r#""at":"9998-12-31T23:59:59Z""#, "/at", "time_too_far"),
        (r#""at":"2035-02-30T00:00:00Z""#, "/at", "invalid_time"),
        (r#""at":"2035-13-01T00:00:00Z""#, "/at", "invalid_time"),
        (r#""at":"2035-01-01T25:00:00Z""#, "/at", "invalid_time"),
        (r#""at":"2035-01-01T00:00:00""#, "/at", "invalid_time"),
        (r#""at":"2035-01-01""#, "/at", "invalid_time"),
        (r#""at":"tomorrow""#, "/at", "invalid_time"),
        (r#""at":"""#, "/at", "invalid_time"),
        (r#""at":1893456000"#, "/at", "wrong_type"),
        (r#""every":"1ms""#, "/every", "too_frequent"),
        (r#""every":"0s""#, "/every", "too_frequent"),
        (r#""every":"99999999d""#, "/every", "invalid_duration"),
        (r#""every":"5000d""#, "/every", "interval_too_long"),
        (r#""every":"-5s""#, "/every", "invalid_duration"),
        (r#""every":"soon""#, "/every", "invalid_duration"),
        (r#""cron":"* * *""#, "/cron", "invalid_cron"),
        (r#""cron":"61 * * * *""#, "/cron", "invalid_cron"),
        (r#""cron":"*/0 * * * *""#, "/cron", "invalid_cron"),
        (r#""cron":"0 0 30 2 *""#, "/cron", "never_fires"),
        (r#""cron":"0 7 * * *","zone":"Mars/Olympus""#, "/zone", "unknown_zone"),
        (r#""at":"2035-01-01T00:00:00Z","zone":"UTC""#, "/zone", "zone_without_cron"),
        (r#""at":"2035-01-01T00:00:00Z","every":"5m""#, "", "conflicting_fields"),
    ] {
        let response = world.send("POST", "/v1/schedules", &format!("{{{when},{target}}}")).await;
        assert_eq!(response.status, 422, "{when}");
        assert_eq!(response.errors(), [(pointer.to_owned(), code.to_owned())], "{when}: {}", response.body);
    }
    let cron = format!(r#""cron":"{}""#, "1,".repeat(500));
    let response = world.send("POST", "/v1/schedules", &format!("{{{cron},{target}}}")).await;
    assert_eq!(response.errors(), [("/cron".to_owned(), "too_long".to_owned())]);
    world.stop().await;
}

#[tokio::test]
async fn server_returns_the_specific_code_of_each_field_error() {
    let world = World::start().await;
    let long = "x".repeat(10_000);
    let many: Vec<String> = (0..40).map(|n| format!(r#""n{n}":"v""#)).collect();
    let many = many.join(",");
    let url = |url: &str| format!(r#""target":{{"http":{{"url":"{url}"}}}}"#);
    let http = |field: &str| format!(r#""target":{{"http":{{"url":"http://h/",{field}}}}}"#);
    let good = url("http://h/");
    for (fields, pointer, code) in [
        (format!(r#""id":"{long}",{good}"#), "/id", "invalid_id"),
        (format!(r#""id":"",{good}"#), "/id", "invalid_id"),
        (format!(r#""id":"é",{good}"#), "/id", "invalid_id"),
        (format!(r#""labels":{{"a":"{long}"}},{good}"#), "/labels/a", "too_long"),
        (format!(r#""labels":{{{many}}},{good}"#), "/labels", "too_many"),
        (format!(r#""labels":{{"a":"b","a":"c"}},{good}"#), "/labels/a", "duplicate_field"),
        (format!(r#""id":"a","id":"b",{good}"#), "/id", "duplicate_field"),
        (format!(r#""payload":"{}",{good}"#, long.repeat(7)), "/payload", "payload_too_large"),
        (format!(r#""retry":{{"attempts_max":0}},{good}"#), "/retry/attempts_max", "out_of_range"),
        (format!(r#""retry":{{"attempts_max":-1}},{good}"#), "/retry/attempts_max", "out_of_range"),
        (format!(r#""retry":{{"attempts_max":99999999999999}},{good}"#), "/retry/attempts_max", "out_of_range"),
        (format!(r#""retry":{{"backoff_max":"9999d"}},{good}"#), "/retry/backoff_max", "out_of_range"),
        (format!(r#""retry":[],{good}"#), "/retry", "wrong_type"),
        (url("http://user:pass@h/"), "/target/http/url", "invalid_url"),
        (url("/relative"), "/target/http/url", "invalid_url"),
        (url(&format!("http://h/{long}")), "/target/http/url", "invalid_url"),
        (http(r#""method":"CONNECT""#), "/target/http/method", "invalid_method"),
        (http(r#""method":"GET\r\nx: y""#), "/target/http/method", "invalid_method"),
        (http(r#""headers":{"X-A":"a\r\nInjected: b"}"#), "/target/http/headers/X-A", "invalid_header"),
        (http(r#""headers":{"x\r\ny":"a"}"#), "/target/http/headers/x\r\ny", "invalid_header"),
        (http(r#""headers":{"Webhook-Id":"a"}"#), "/target/http/headers/Webhook-Id", "reserved_header"),
        (
            http(r#""headers":{"transfer-encoding":"chunked"}"#),
            "/target/http/headers/transfer-encoding",
            "reserved_header",
        ),
        (http(r#""headers":{"A":"a","a":"b"}"#), "/target/http/headers/a", "duplicate_field"),
        (http(&format!(r#""headers":{{{many}}}"#)), "/target/http/headers", "too_many"),
        (http(r#""timeout":"1d""#), "/target/http/timeout", "out_of_range"),
        (http(r#""timeout":5"#), "/target/http/timeout", "wrong_type"),
    ] {
        let response =
            world.send("POST", "/v1/schedules", &format!(r#"{{"at":"2035-01-01T00:00:00Z",{fields}}}"#)).await;
        let shown: String = fields.chars().take(80).collect();
        assert_eq!(response.status, 422, "{shown}");
        assert_eq!(response.errors(), [(pointer.to_owned(), code.to_owned())], "{shown}: {}", response.body);
    }
    world.stop().await;
}

#[tokio::test]
async fn response_lists_at_most_32_field_errors() {
    let world = World::start().await;
    let fields: Vec<String> = (0..20_000).map(|n| format!("\"f{n}\":1")).collect();
    let response = world.send("POST", "/v1/schedules", &format!("{{{}}}", fields.join(","))).await;
    assert_eq!((response.status, response.errors().len()), (422, 32));
    world.stop().await;
}

#[tokio::test]
async fn deeply_nested_json_does_not_crash_the_server() {
    let world = World::start().await;
    let deep = "[".repeat(30_000) + &"]".repeat(30_000);
    assert_eq!(world.send("POST", "/v1/schedules", &body(&format!(r#","payload":{deep}"#))).await.status, 201);
    let response = world.send("POST", "/v1/schedules", &body(&format!(r#","labels":{deep}"#))).await;
    assert_eq!(response.errors(), [("/labels".to_owned(), "wrong_type".to_owned())]);
    world.stop().await;
}

#[tokio::test]
async fn client_receives_the_rejection_of_a_too_large_body() {
    let world = World::start().await;
    let large = body(&format!(r#","payload":"{}""#, "x".repeat(5_000_000)));
    let response = world.send("POST", "/v1/schedules", &large).await;
    expect![[r#"
        413
        content-type: application/problem+json
        {
          "code": "body_too_large",
          "detail": "the body exceeds the limit of 262144 bytes; store large data elsewhere and send a reference",
          "request_id": "REQUEST",
          "status": 413,
          "title": "The body is too large",
          "type": "urn:reveille:problem:body_too_large"
        }
    "#]]
    .assert_eq(&response.shown());

    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: 5000000\r\n\r\n"
    );
    connection.write(head.as_bytes()).await;
    assert_eq!(connection.response().await.status, 413, "the server rejects the request without reading the body");
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_request_without_a_valid_key() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    expect![[r#"
        401
        www-authenticate: Bearer realm="reveille"
        content-type: application/problem+json
        {
          "code": "missing_credentials",
          "detail": "send one header of the form `Authorization: Bearer KEY_ID.SECRET`",
          "request_id": "REQUEST",
          "status": 401,
          "title": "An API key is required",
          "type": "urn:reveille:problem:missing_credentials"
        }
    "#]]
    .assert_eq(&connection.request("POST", "/v1/schedules", "", body("").as_bytes()).await.shown());
    drop(connection);
    expect![[r#"
        401
        www-authenticate: Bearer realm="reveille", error="invalid_token"
        content-type: application/problem+json
        {
          "code": "invalid_credentials",
          "detail": "the API key is wrong or revoked; ask the tenant's admin for a valid key",
          "request_id": "REQUEST",
          "status": 401,
          "title": "The API key is invalid",
          "type": "urn:reveille:problem:invalid_credentials"
        }
    "#]]
    .assert_eq(&world.send_as("ours.secret-of-theirs", "POST", "/v1/schedules", &body("")).await.shown());
    for key in ["missing.secret", "ours.", ".secret-of-ours", "ours", "", "ours.secret-of-ours.", "OURS.secret-of-ours"]
    {
        assert_eq!(world.send_as(key, "GET", "/v1/schedules/a", "").await.status, 401, "{key}");
    }
    let mut connection = world.connect().await;
    for header in [
        format!("authorization: Basic {KEY}\r\n"),
        format!("authorization: {KEY}\r\n"),
        format!("authorization: Bearer {KEY}\r\nauthorization: Bearer {FOREIGN_KEY}\r\n"),
        "authorization: Bearer \u{e9}.\u{e9}\r\n".to_owned(),
    ] {
        assert_eq!(connection.request("GET", "/v1/runs?dead_letter=true", &header, b"").await.status, 401, "{header}");
    }
    drop(connection);
    world.stop().await;
}

/// The server must reject an unknown query parameter, because the client expects that the parameter has an effect. For
/// example, a client may expect that `dry_run` prevents a cancellation.
#[tokio::test]
async fn server_rejects_unknown_query_parameter() {
    let world = World::start().await;
    world.send("PUT", "/v1/schedules/a", r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/"}}}"#).await;
    for (method, path) in [
        ("DELETE", "/v1/schedules/a?dry_run=true"),
        ("GET", "/v1/schedules/a?foo"),
        ("GET", "/v1/schedules?foo=1"),
        ("GET", "/v1/schedules/a/runs?foo=1"),
        ("PUT", "/v1/schedules/a?foo=1"),
        ("POST", "/v1/schedules?foo=1"),
        ("POST", "/v1/schedules:batch?dry_run=true"),
        ("GET", "/v1/quotas?tenant=b"),
        ("PATCH", "/v1/quotas?dry_run=true"),
        ("POST", "/v1/runs/r/redrive?dry_run=true"),
    ] {
        let response = world.send(method, path, "").await;
        assert_eq!(response.status, 400, "{method} {path}");
        assert_eq!(response.json()["errors"][0]["code"], "unknown_parameter", "{method} {path}");
    }
    assert_eq!(world.send("GET", "/v1/schedules/a?", "").await.json()["state"], "active");
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_unknown_paths_methods_and_media_types() {
    let world = World::start().await;
    expect![[r#"
        404
        content-type: application/problem+json
        {
          "code": "route_not_found",
          "detail": "\"/v2/schedules\" is not a path of this API; /docs and /openapi.json list all paths",
          "request_id": "REQUEST",
          "status": 404,
          "title": "The path does not exist",
          "type": "urn:reveille:problem:route_not_found"
        }
    "#]]
    .assert_eq(&world.send("GET", "/v2/schedules", "").await.shown());
    expect![[r#"
        405
        allow: GET,HEAD,PUT,PATCH,DELETE
        content-type: application/problem+json
        {
          "code": "method_not_allowed",
          "detail": "the path does not support OPTIONS; the Allow header lists the supported methods",
          "request_id": "REQUEST",
          "status": 405,
          "title": "The path does not support this method",
          "type": "urn:reveille:problem:method_not_allowed"
        }
    "#]]
    .assert_eq(&world.send("OPTIONS", "/v1/schedules/a", "").await.shown());
    let headers = format!("authorization: Bearer {KEY}\r\ncontent-type: application/x-www-form-urlencoded\r\n");
    let mut connection = world.connect().await;
    expect![[r#"
        415
        content-type: application/problem+json
        {
          "code": "unsupported_media_type",
          "detail": "unsupported media type \"application/x-www-form-urlencoded\"; send `Content-Type: application/json`",
          "request_id": "REQUEST",
          "status": 415,
          "title": "The body's media type or encoding is not supported",
          "type": "urn:reveille:problem:unsupported_media_type"
        }
    "#]].assert_eq(&connection.request("POST", "/v1/schedules", &headers, body("").as_bytes()).await.shown());
    drop(connection);
    for path in ["/v1/schedules/%ff", "/v1/schedules/a%20b", &format!("/v1/schedules/{}", "x".repeat(10_000))] {
        assert_eq!(world.send("GET", path, "").await.text("/code"), "schedule_not_found");
        let put = world.send("PUT", path, &body("")).await;
        assert_eq!((put.status, put.text("/code").as_str()), (400, "invalid_parameter"));
    }
    world.stop().await;
}

#[tokio::test]
async fn server_does_not_store_a_rejected_schedule() {
    let world = World::start().await;
    for more in [r#","id":"half","every":"5m""#, r#","id":"half","labels":7"#, r#","id":"half","#] {
        assert!(world.send("POST", "/v1/schedules", &body(more)).await.status >= 400);
        assert!(world.send("PUT", "/v1/schedules/half", &body(more)).await.status >= 400);
    }
    assert_eq!(world.send("GET", "/v1/schedules/half", "").await.status, 404);
    world.stop().await;
}
