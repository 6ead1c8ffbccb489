//! Tests of schedules whose target is a topic of the message bus, and of the policy that lists the topics of a tenant.

use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, Response, World, body};

const PATH: &str = "/v1/schedules/invoice-7";

/// Returns a body with a bus target that has these fields in addition to its topic `orders`.
fn bus(fields: &str) -> String {
    format!(r#"{{"every":"1h","target":{{"bus":{{"topic":"orders"{fields}}}}}}}"#)
}

fn topic(name: &str) -> String {
    json!({ "every": "1h", "target": { "bus": { "topic": name } } }).to_string()
}

fn error(pointer: &str, code: &str) -> Vec<(String, String)> {
    vec![(pointer.to_owned(), code.to_owned())]
}

async fn patch(world: &World, change: &str) -> Response {
    world.send("PATCH", PATH, change).await
}

async fn target(world: &World) -> Value {
    world.send("GET", PATH, "").await.json()["target"].clone()
}

#[tokio::test]
async fn bus_target_is_shown_without_header_values() {
    let world = World::start_with_bus(&["orders"]).await;
    let fields = r#","key":"customer-7","headers":{"X-Team":"s3cret"},"cloud_event":{"mode":"structured","source":"/shop"},"timeout":"3s""#;
    assert_eq!(world.send("PUT", PATH, &bus(fields)).await.status, 201);
    let shown = world.send("GET", PATH, "").await;
    assert!(!shown.body.contains("s3cret"), "{}", shown.body);
    let event = json!({ "mode": "structured", "type": "reveille.callback", "source": "/shop" });
    let full = json!({ "bus": {
        "topic": "orders", "key": "customer-7", "headers": { "x-team": "[redacted]" }, "cloud_event": event,
        "timeout": "3s",
    } });
    assert_eq!(shown.json()["target"], full);
    assert_eq!(world.send("GET", "/v1/schedules", "").await.json()["schedules"][0]["target"], full);

    assert_eq!(world.send("PUT", PATH, &bus("")).await.status, 200);
    assert_eq!(target(&world).await, json!({ "bus": { "topic": "orders", "headers": {}, "timeout": "10s" } }));
    let dry = world.send("POST", "/v1/schedules?dry_run=true", &bus(r#","key":"""#)).await;
    assert_eq!((dry.status, dry.text("/schedule/target/bus/key")), (200, String::new()), "{}", dry.body);
    let line = world.send("POST", "/v1/schedules:batch", &format!("{}\n{}\n", bus(""), topic("payments"))).await;
    let lines: Vec<Value> = line.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["status"], &lines[1]["status"]), (&json!(201), &json!(422)), "{}", line.body);
    assert_eq!(lines[1]["problem"]["errors"][0]["pointer"], "/target/bus/topic");
    world.stop().await;
}

#[tokio::test]
async fn run_of_a_bus_target_shows_the_position_of_its_record() {
    let world = World::start_with_bus(&["orders"]).await;
    let now = world.runtime.now().to_string();
    let body = json!({ "at": now, "target": { "bus": { "topic": "orders" } } }).to_string();
    assert_eq!(world.send("PUT", PATH, &body).await.status, 201);
    let run = loop {
        let runs = world.send("GET", &format!("{PATH}/runs"), "").await.json();
        if runs["runs"][0]["state"] == "succeeded" {
            break runs["runs"][0].clone();
        }
        world.runtime.sleep(Duration::from_millis(10)).await;
    };
    let attempt = &run["attempts"][0];
    assert_eq!((&attempt["partition"], &attempt["offset"]), (&json!(2), &json!(41)), "{run}");
    assert!(attempt.get("status").is_none() && attempt.get("error").is_none(), "{run}");
    world.stop().await;
}

#[tokio::test]
async fn server_returns_the_specific_code_of_each_bus_target_error() {
    let world = World::start_with_bus(&["orders", "orders-*"]).await;
    let (long, attribute) = ("x".repeat(1_025), "x".repeat(257));
    let many: Vec<String> = (0..33).map(|n| format!(r#""n{n}":"v""#)).collect();
    let event = |fields: &str| bus(&format!(r#","cloud_event":{{{fields}}}"#));
    let http = r#""http":{"url":"http://127.0.0.1:9/"}"#;
    for (body, pointer, code) in [
        (topic(""), "/target/bus/topic", "invalid_topic"),
        (topic("."), "/target/bus/topic", "invalid_topic"),
        (topic(".."), "/target/bus/topic", "invalid_topic"),
        (topic("a b"), "/target/bus/topic", "invalid_topic"),
        (topic("orders/1"), "/target/bus/topic", "invalid_topic"),
        (topic("orders\u{0}"), "/target/bus/topic", "invalid_topic"),
        (topic(&"x".repeat(250)), "/target/bus/topic", "invalid_topic"),
        (r#"{"every":"1h","target":{"bus":{}}}"#.to_owned(), "/target/bus/topic", "missing_field"),
        (r#"{"every":"1h","target":{"bus":{"topic":null}}}"#.to_owned(), "/target/bus/topic", "missing_field"),
        (r#"{"every":"1h","target":{"bus":{"topic":7}}}"#.to_owned(), "/target/bus/topic", "wrong_type"),
        (r#"{"every":"1h","target":{"bus":["orders"]}}"#.to_owned(), "/target/bus", "wrong_type"),
        (r#"{"every":"1h","target":{"bus":"orders"}}"#.to_owned(), "/target/bus", "wrong_type"),
        (
            r#"{"every":"1h","target":{"Bus":{"topic":"orders"},"http":{"url":"http://127.0.0.1"}}}"#.to_owned(),
            "/target/Bus",
            "unknown_field",
        ),
        (r#"{"every":"1h","target":{}}"#.to_owned(), "/target", "missing_field"),
        (r#"{"every":"1h","target":{"bus":null,"http":null}}"#.to_owned(), "/target", "missing_field"),
        (
            format!(r#"{{"every":"1h","target":{{{http},"bus":{{"topic":"orders"}}}}}}"#),
            "/target",
            "conflicting_fields",
        ),
        (
            format!(r#"{{"every":"1h","target":{{{http},"bus":{{"topic":"__offsets"}}}}}}"#),
            "/target",
            "conflicting_fields",
        ),
        (
            r#"{"every":"1h","target":{"bus":{"topic":"orders"},"bus":{"topic":"orders"}}}"#.to_owned(),
            "/target/bus",
            "duplicate_field",
        ),
        (bus(r#","topic":"payments""#), "/target/bus/topic", "duplicate_field"),
        (bus(r#","partition":0"#), "/target/bus/partition", "unknown_field"),
        (bus(r#","url":"http://h/""#), "/target/bus/url", "unknown_field"),
        (bus(r#","key":7"#), "/target/bus/key", "wrong_type"),
        (bus(&format!(r#","key":"{long}""#)), "/target/bus/key", "too_long"),
        (bus(r#","timeout":"999ms""#), "/target/bus/timeout", "out_of_range"),
        (bus(r#","timeout":"1d""#), "/target/bus/timeout", "out_of_range"),
        (bus(r#","timeout":"soon""#), "/target/bus/timeout", "invalid_duration"),
        (bus(r#","timeout":5"#), "/target/bus/timeout", "wrong_type"),
        (bus(r#","cloud_event":"binary""#), "/target/bus/cloud_event", "wrong_type"),
        (event(""), "/target/bus/cloud_event/mode", "missing_field"),
        (event(r#""mode":"Binary""#), "/target/bus/cloud_event/mode", "invalid_cloud_event"),
        (event(r#""mode":"batched""#), "/target/bus/cloud_event/mode", "invalid_cloud_event"),
        (event(r#""mode":1"#), "/target/bus/cloud_event/mode", "wrong_type"),
        (event(r#""mode":"binary","id":"a""#), "/target/bus/cloud_event/id", "unknown_field"),
        (event(r#""mode":"binary","type":"""#), "/target/bus/cloud_event/type", "invalid_cloud_event"),
        (event(r#""mode":"binary","type":"a b""#), "/target/bus/cloud_event/type", "invalid_cloud_event"),
        (
            event(&format!(r#""mode":"binary","type":"{attribute}""#)),
            "/target/bus/cloud_event/type",
            "invalid_cloud_event",
        ),
        (event(r#""mode":"binary","source":"/é""#), "/target/bus/cloud_event/source", "invalid_cloud_event"),
        (event(r#""mode":"structured","source":"""#), "/target/bus/cloud_event/source", "invalid_cloud_event"),
        (bus(r#","headers":{"Reveille-Term":"7"}"#), "/target/bus/headers/Reveille-Term", "reserved_header"),
        (bus(r#","headers":{"webhook-signature":"v1,x"}"#), "/target/bus/headers/webhook-signature", "reserved_header"),
        (bus(r#","headers":{"CE_id":"7"}"#), "/target/bus/headers/CE_id", "reserved_header"),
        (bus(r#","headers":{"TraceParent":"7"}"#), "/target/bus/headers/TraceParent", "reserved_header"),
        (bus(r#","headers":{"x-a":"a\nb"}"#), "/target/bus/headers/x-a", "invalid_header"),
        (bus(r#","headers":{"x a":"b"}"#), "/target/bus/headers/x a", "invalid_header"),
        (bus(r#","headers":{"x-a":"1","X-A":"2"}"#), "/target/bus/headers/X-A", "duplicate_field"),
        (bus(r#","headers":{"x-a":"[redacted]"}"#), "/target/bus/headers/x-a", "redacted_header"),
        (bus(&format!(r#","headers":{{{}}}"#, many.join(","))), "/target/bus/headers", "too_many"),
        (
            bus(r#","cloud_event":{"mode":"structured"},"headers":{"Content-Type":"text/plain"}"#),
            "/target/bus/headers/Content-Type",
            "reserved_header",
        ),
    ] {
        let response = world.send("POST", "/v1/schedules", &body).await;
        let shown: String = body.chars().take(100).collect();
        assert_eq!((response.status, response.errors()), (422, error(pointer, code)), "{shown}: {}", response.body);
    }
    // HTTP callbacks may not have these headers, but records may.
    for headers in [r#"{"host":"a"}"#, r#"{"content-type":"text/plain"}"#] {
        let response = world.send("POST", "/v1/schedules", &bus(&format!(r#","headers":{headers}"#))).await;
        assert_eq!(response.status, 201, "{headers}: {}", response.body);
    }
    world.stop().await;
}

#[tokio::test]
async fn hint_of_a_bus_target_error_names_the_next_step() {
    let world = World::start_with_bus(&["orders"]).await;
    let response = world.send("POST", "/v1/schedules", r#"{"every":"1h","topic":"orders","target":{}}"#).await;
    expect![[r#"
        422
        content-type: application/problem+json
        {
          "code": "invalid_schedule",
          "detail": "the body has 2 errors; see the field `errors`",
          "errors": [
            {
              "code": "unknown_field",
              "detail": "unknown field",
              "hint": "`topic` is a field of \"target\": {\"bus\": {…}}",
              "pointer": "/topic"
            },
            {
              "code": "missing_field",
              "detail": "one of http and bus is required",
              "hint": "add \"http\": {\"url\": \"https://example.org/hook\"}, for example",
              "pointer": "/target"
            }
          ],
          "request_id": "REQUEST",
          "status": 422,
          "title": "The schedule is invalid",
          "type": "urn:reveille:problem:invalid_schedule"
        }
    "#]]
    .assert_eq(&response.shown());
    world.stop().await;
}

#[tokio::test]
async fn server_without_a_bus_rejects_bus_targets() {
    let world = World::start().await;
    let allowed = r#"{"egress":{"allow_topics":["*"]}}"#;
    assert_eq!(world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", allowed).await.status, 200);
    let response = world.send("POST", "/v1/schedules", &bus("")).await;
    assert_eq!(response.errors(), error("/target/bus", "bus_not_configured"), "{}", response.body);
    assert!(response.text("/errors/0/hint").contains("--bus"), "{}", response.body);
    let line = world.send("POST", "/v1/schedules:batch", &bus("")).await;
    assert_eq!(line.text("/problem/errors/0/code"), "bus_not_configured", "{}", line.body);
    assert_eq!(world.send("PUT", PATH, &body("")).await.status, 201);
    let patched = patch(&world, r#"{"target":{"bus":{"topic":"orders"}}}"#).await;
    assert_eq!(patched.errors(), error("/target/bus", "bus_not_configured"), "{}", patched.body);
    world.stop().await;
}

/// Topics that no policy can list, in several spellings.
const INTERNAL: [&str; 22] = [
    "__consumer_offsets",
    "__Consumer_Offsets",
    "__CONSUMER_OFFSETS",
    "__transaction_state",
    "__cluster_metadata",
    "__",
    "__orders",
    "orders-billing-retry-0",
    "orders-billing-retry-17",
    "orders-billing-RETRY-1",
    "Orders-Billing-Retry-1",
    "orders-billing-dead",
    "orders-billing-DEAD",
    "orders-billing-dead-letters",
    "orders-billing-control",
    "orders-billing-Control",
    "orders-leader",
    "orders-Leaders",
    "orders-elector",
    "ORDERS-ELECTOR",
    "reveille-elector.jobs",
    "Reveille-jobs",
];

#[tokio::test]
async fn no_policy_permits_an_internal_topic() {
    let world = World::start_with_bus(&["*", "orders*", "Orders-*", "ORDERS-*", "_*", "orders-billing-*"]).await;
    for name in INTERNAL {
        let response = world.send("POST", "/v1/schedules", &topic(name)).await;
        assert_eq!(response.errors(), error("/target/bus/topic", "egress_refused"), "{name}: {}", response.body);
        let policy = json!({ "egress": { "allow_topics": [name] } }).to_string();
        let patched = world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", &policy).await;
        assert_eq!((patched.status, patched.text("/code")), (422, "invalid_request".to_owned()), "{name}");
        assert!(patched.text("/detail").contains("internal"), "{}", patched.body);
    }
    for name in ["orders", "_orders", "orders-billing", "dead", "leader", "orders-retry-now", "orders-leaderboard"] {
        assert_eq!(world.send("POST", "/v1/schedules", &topic(name)).await.status, 201, "{name}");
    }
    world.stop().await;
}

#[tokio::test]
async fn tenant_writes_only_to_the_topics_that_an_operator_lists() {
    let world = World::start_with_bus(&["orders", "team.a-*"]).await;
    for name in ["orders", "team.a-", "team.a-refunds", "team.a-Refunds", "team.a-.."] {
        assert_eq!(world.send("POST", "/v1/schedules", &topic(name)).await.status, 201, "{name}");
    }
    // The names are valid, but the policy does not list them.
    for name in
        ["Orders", "ORDERS", "orders2", "order", "orders-eu", "orders.", "team.a", "Team.a-refunds", "teamXa-refunds"]
    {
        let response = world.send("POST", "/v1/schedules", &topic(name)).await;
        assert_eq!(response.errors(), error("/target/bus/topic", "egress_refused"), "{name}: {}", response.body);
        let put = world.send("PUT", PATH, &topic(name)).await;
        assert_eq!(put.errors(), error("/target/bus/topic", "egress_refused"), "{name}");
        let dry = world.send("POST", "/v1/schedules?dry_run=true", &topic(name)).await;
        assert_eq!(dry.errors(), error("/target/bus/topic", "egress_refused"), "{name}");
        let line = world.send("POST", "/v1/schedules:batch", &topic(name)).await;
        assert_eq!(line.text("/problem/errors/0/code"), "egress_refused", "{name}");
    }
    // A look-alike, a percent-encoded name, or a pattern is not a name.
    let look_alikes = [
        "\u{43e}rders",         // Cyrillic o
        "orde\u{433}s",         // Cyrillic letter that looks like r
        "\u{ff4f}rders",        // full-width o
        "o\u{301}rders",        // combining accent
        "orders\u{200b}",       // space without a width
        "\u{feff}orders",       // byte order mark
        "\u{202e}sredro",       // text from right to left
        "team.a\u{2010}orders", // hyphen of Unicode
        "team\u{ff0e}a-orders", // full-width dot
        "orders\u{17f}",        // long s
        "\u{212a}ey",           // Kelvin sign, whose lower case is k
        "\u{ff3f}\u{ff3f}consumer_offsets",
        "orders-dea\u{501}",
        "%6frders",
        "orders%00",
        "o%72ders",
        "%5f%5fconsumer_offsets",
        "&#111;rders",
        "orders*",
        "*",
        "team.a-*",
        "orders?",
        "[o]rders",
        "orders,team.a-b",
        " orders",
        "orders\n",
        "../orders",
        "orders\\u0000",
    ];
    for name in look_alikes {
        let response = world.send("POST", "/v1/schedules", &topic(name)).await;
        assert_eq!(response.errors(), error("/target/bus/topic", "invalid_topic"), "{name:?}: {}", response.body);
    }
    // An escape of JSON is another spelling of the same name.
    let escaped = r#"{"every":"1h","target":{"bus":{"topic":"\u005f\u005fconsumer_offsets"}}}"#;
    let response = world.send("POST", "/v1/schedules", escaped).await;
    assert_eq!(response.errors(), error("/target/bus/topic", "egress_refused"), "{}", response.body);
    let escaped = r#"{"every":"1h","target":{"bus":{"topic":"\u006frders"}}}"#;
    let response = world.send("POST", "/v1/schedules", escaped).await;
    assert_eq!(response.status, 201, "{}", response.body);

    // The list of one tenant permits nothing to another tenant.
    let other = world.send_as(FOREIGN_KEY, "POST", "/v1/schedules", &topic("orders")).await;
    assert_eq!(other.errors(), error("/target/bus/topic", "egress_refused"), "{}", other.body);
    world.stop().await;
}

#[tokio::test]
async fn only_an_operator_changes_the_topics_of_a_tenant() {
    let world = World::start_with_bus(&["orders"]).await;
    let policy = async || world.send("GET", "/v1/tenants/tenant-1", "").await.json()["egress"].clone();
    let send = async |key: &str, change: Value| {
        let body = json!({ "egress": change }).to_string();
        world.send_as(key, "PATCH", "/v1/tenants/tenant-1", &body).await
    };
    assert_eq!(policy().await["allow_topics"], json!(["orders"]));
    for (key, rejection) in [(KEY, (403, "role_forbidden")), (FOREIGN_KEY, (404, "tenant_not_found"))] {
        let rejected = send(key, json!({ "allow_topics": ["payments"] })).await;
        assert_eq!((rejected.status, &*rejected.text("/code")), rejection);
    }
    let rejected = send(OPERATOR_KEY, json!({ "allow_topics": ["payments", "pay ments"] })).await;
    assert_eq!(rejected.status, 422);
    assert!(rejected.text("/detail").contains("pay ments"), "{}", rejected.body);
    assert_eq!(policy().await["allow_topics"], json!(["orders"]), "rejected changes have no effect");

    let patterns: Vec<String> = (0..32).map(|n| format!("team-{n}-*")).collect();
    assert_eq!(send(OPERATOR_KEY, json!({ "allow_topics": patterns })).await.status, 200);
    assert_eq!(send(OPERATOR_KEY, json!({ "forbid_http": true })).await.status, 200);
    assert_eq!(policy().await["allow_topics"], json!(patterns), "a change of another field keeps the topics");
    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await;
    assert!(audit.body.contains("team-31-*"), "{}", audit.body);
    assert_eq!(send(OPERATOR_KEY, json!({ "allow_topics": null })).await.status, 200);
    assert_eq!((&policy().await["allow_topics"], &policy().await["forbid_http"]), (&json!([]), &json!(true)));
    assert_eq!(world.send("POST", "/v1/schedules", &bus("")).await.text("/errors/0/code"), "egress_refused");

    let created = r#"{"name":"shop","egress":{"allow_topics":["orders","orders-*"]}}"#;
    let created = world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", created).await;
    assert_eq!(created.json()["tenant"]["egress"]["allow_topics"], json!(["orders", "orders-*"]), "{}", created.body);
    world.stop().await;
}

#[tokio::test]
async fn patch_changes_single_fields_of_a_bus_target() {
    let world = World::start_with_bus(&["orders", "orders-*"]).await;
    let fields = r#","key":"a","headers":{"x-team":"red"},"cloud_event":{"mode":"binary","type":"t","source":"/s"}"#;
    assert_eq!(world.send("PUT", PATH, &bus(fields)).await.status, 201);
    let full = target(&world).await;
    for (change, pointer, value) in [
        (r#"{"labels":{"a":"b"}}"#, "/bus", full["bus"].clone()),
        (r#"{"target":{"bus":{"key":"b"}}}"#, "/bus/key", json!("b")),
        (r#"{"target":{"bus":{"timeout":"2s"}}}"#, "/bus/timeout", json!("2s")),
        (
            r#"{"target":{"bus":{"cloud_event":{"mode":"structured"}}}}"#,
            "/bus/cloud_event",
            json!({ "mode": "structured", "type": "t", "source": "/s" }),
        ),
        (
            r#"{"target":{"bus":{"headers":{"X-New":"1"}}}}"#,
            "/bus/headers",
            json!({ "x-team": "[redacted]", "x-new": "[redacted]" }),
        ),
        (r#"{"target":{"http":null}}"#, "/bus/key", json!("b")),
    ] {
        let patched = patch(&world, change).await;
        assert_eq!(patched.status, 200, "{change}: {}", patched.body);
        assert_eq!(target(&world).await.pointer(pointer), Some(&value), "{change}");
    }
    // A new topic must not receive the stored headers, which may be credentials.
    let moved = patch(&world, r#"{"target":{"bus":{"topic":"orders-eu"}}}"#).await;
    assert_eq!(moved.errors(), error("/target/bus/headers", "headers_not_named"), "{}", moved.body);
    assert!(moved.body.contains("another topic"), "{}", moved.body);
    let moved = patch(&world, r#"{"target":{"bus":{"topic":"orders-eu","headers":{"x-team":"red"}}}}"#).await;
    assert_eq!(moved.errors(), error("/target/bus/headers", "headers_not_named"), "the header x-new is not named");
    let refused = patch(&world, r#"{"target":{"bus":{"topic":"payments","headers":null}}}"#).await;
    assert_eq!(refused.errors(), error("/target/bus/topic", "egress_refused"), "{}", refused.body);
    let moved =
        patch(&world, r#"{"target":{"bus":{"topic":"orders-eu","headers":null,"key":null,"cloud_event":null}}}"#);
    assert_eq!(moved.await.status, 200);
    assert_eq!(target(&world).await, json!({ "bus": { "topic": "orders-eu", "headers": {}, "timeout": "2s" } }));
    assert_eq!(patch(&world, r#"{"target":{"bus":{"topic":"orders"}}}"#).await.status, 200, "no header is stored");
    let removed = patch(&world, r#"{"target":{"bus":{"topic":null}}}"#).await;
    assert_eq!(removed.errors(), error("/target/bus/topic", "missing_field"));
    world.stop().await;
}

#[tokio::test]
async fn patch_with_the_other_kind_of_target_replaces_the_target() {
    let world = World::start_with_bus(&["orders"]).await;
    let http = r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/","headers":{"authorization":"Bearer s3cret"},"timeout":"7s"}}}"#;
    assert_eq!(world.send("PUT", PATH, http).await.status, 201);
    let both = patch(&world, r#"{"target":{"http":{"url":"http://127.0.0.1:9/b"},"bus":{"topic":"orders"}}}"#).await;
    assert_eq!(both.errors(), error("/target", "conflicting_fields"), "{}", both.body);
    let partial = patch(&world, r#"{"target":{"bus":{"key":"a"}}}"#).await;
    assert_eq!(partial.errors(), error("/target/bus/topic", "missing_field"), "{}", partial.body);
    let patched = patch(&world, r#"{"target":{"bus":{"topic":"orders","key":"a"}}}"#).await;
    assert_eq!(patched.status, 200, "{}", patched.body);
    let expected = json!({ "bus": { "topic": "orders", "key": "a", "headers": {}, "timeout": "10s" } });
    assert_eq!(target(&world).await, expected, "the topic gets no header and no setting of the URL");

    let patched = patch(&world, r#"{"target":{"http":{"url":"http://127.0.0.1:9/c"},"bus":null}}"#).await;
    assert_eq!(patched.status, 200, "{}", patched.body);
    let url = json!({ "url": "http://127.0.0.1:9/c", "method": "POST", "headers": {}, "timeout": "10s" });
    assert_eq!(target(&world).await, json!({ "http": url }));
    let removed = patch(&world, r#"{"target":{"http":null}}"#).await;
    assert_eq!(removed.errors(), error("/target", "missing_field"), "{}", removed.body);
    world.stop().await;
}
