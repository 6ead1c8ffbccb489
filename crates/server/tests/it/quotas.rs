//! Tests of the quotas of tenants: their changes, their ceilings, and the rejection of requests above a quota.

use serde_json::json;
use store::Store;

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, World, body};

fn body_with_id(id: &str) -> String {
    body(&format!(r#","id":"{id}""#))
}

async fn set(world: &World, quotas: &str) -> (u16, String) {
    let response = world.send("PATCH", "/v1/quotas", quotas).await;
    let code = if response.status < 400 { String::new() } else { response.text("/code") };
    (response.status, code)
}

#[tokio::test]
async fn admin_sets_quotas_up_to_the_operators_ceilings() {
    let world = World::start().await;
    let sheet = world.send("GET", "/v1/quotas", "").await.json();
    assert_eq!(sheet["quotas"]["callbacks_per_minute"], json!(null), "an existing tenant has no quotas");

    let ceilings = json!({"ceilings": {"callbacks_per_minute": 2_000, "pending_max": 10}}).to_string();
    let tenant = world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", &ceilings).await;
    assert_eq!(tenant.status, 200, "{}", tenant.body);
    let tenant = tenant.json();
    assert_eq!(tenant["ceilings"]["callbacks_per_minute"], 2_000);
    assert_eq!(tenant["quotas"]["callbacks_per_minute"], 2_000, "a quota above its new ceiling is lowered to it");
    assert_eq!(tenant["quotas"]["creates_per_second"], json!(null), "other quotas stay unchanged");

    assert_eq!(set(&world, r#"{"callbacks_per_minute":1999,"in_flight_max":3}"#).await, (200, String::new()));
    assert_eq!(set(&world, r#"{"callbacks_per_minute":2001}"#).await, (403, "quota_ceiling".to_owned()));
    assert_eq!(set(&world, r#"{"callbacks_per_minute":null}"#).await, (403, "quota_ceiling".to_owned()));
    let sheet = world.send("GET", "/v1/quotas", "").await.json();
    assert_eq!(
        (&sheet["quotas"]["callbacks_per_minute"], &sheet["quotas"]["in_flight_max"]),
        (&json!(1_999), &json!(3))
    );

    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await.json();
    let entries = audit["entries"].as_array().unwrap();
    let last = entries.last().unwrap();
    assert_eq!(last["action"], "quotas.update");
    assert_eq!(last["subject"], "callbacks_per_minute 2000 -> 1999, in_flight_max none -> 3");
    world.stop().await;
}

#[tokio::test]
async fn admin_chooses_a_retention_that_costs_at_most_its_ceiling() {
    let world = World::start().await;
    for days in [1, 7, 30] {
        assert_eq!(set(&world, &format!(r#"{{"retention_days":{days}}}"#)).await, (200, String::new()));
    }
    let above_default = set(&world, r#"{"retention_days":90}"#).await;
    assert_eq!(above_default, (403, "quota_ceiling".to_owned()), "without a ceiling, the server's option is the limit");
    for days in [0, 2, 31, 91] {
        let rejected = set(&world, &format!(r#"{{"retention_days":{days}}}"#)).await;
        assert_eq!(rejected, (422, "invalid_request".to_owned()), "{days}");
    }
    let operator = async |settings: serde_json::Value| {
        world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", &settings.to_string()).await
    };
    let invalid = operator(json!({"ceilings": {"retention_days": 60}})).await;
    assert_eq!((invalid.status, invalid.text("/code")), (422, "invalid_request".to_owned()));

    assert_eq!(operator(json!({"ceilings": {"retention_days": 90}})).await.status, 200);
    assert_eq!(set(&world, r#"{"retention_days":90}"#).await, (200, String::new()));
    let lowered = operator(json!({"ceilings": {"retention_days": 7}})).await.json();
    assert_eq!(lowered["quotas"]["retention_days"], 7);
    assert_eq!(set(&world, r#"{"retention_days":30}"#).await, (403, "quota_ceiling".to_owned()));
    assert_eq!(set(&world, r#"{"retention_days":null}"#).await, (200, String::new()));
    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await.json();
    assert_eq!(audit["entries"].as_array().unwrap().last().unwrap()["subject"], "retention_days 7 -> none");
    world.stop().await;
}

/// The class stays after an operator has removed the ceiling. An admin can send it back, but cannot choose it again.
#[tokio::test]
async fn class_above_the_option_outlives_its_ceiling() {
    let world = World::start().await;
    let ceiling = async |days: serde_json::Value| {
        let settings = json!({"ceilings": {"retention_days": days}}).to_string();
        world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", &settings).await
    };
    assert_eq!(ceiling(json!(90)).await.status, 200);
    assert_eq!(set(&world, r#"{"retention_days":90}"#).await, (200, String::new()));
    let removed = ceiling(json!(null)).await.json();
    assert_eq!(
        (&removed["ceilings"]["retention_days"], &removed["quotas"]["retention_days"]),
        (&json!(null), &json!(90))
    );

    let mut quotas = world.send("GET", "/v1/quotas", "").await.json()["quotas"].clone();
    quotas["in_flight_max"] = json!(3);
    assert_eq!(set(&world, &quotas.to_string()).await, (200, String::new()), "the class is unchanged");
    let sheet = world.send("GET", "/v1/quotas", "").await.json();
    assert_eq!((&sheet["quotas"]["retention_days"], &sheet["quotas"]["in_flight_max"]), (&json!(90), &json!(3)));
    assert_eq!(set(&world, r#"{"retention_days":30}"#).await, (200, String::new()));
    assert_eq!(set(&world, r#"{"retention_days":90}"#).await, (403, "quota_ceiling".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_an_invalid_or_unauthorized_quota_change() {
    let world = World::start().await;
    for wrong in
        ["{\"callbacks\":1}", "{\"pending_max\":-1}", "{\"pending_max\":\"1\"}", "{\"pending_max\":5e9}", "[1]"]
    {
        assert_eq!(set(&world, wrong).await, (422, "invalid_request".to_owned()), "{wrong}");
    }
    assert_eq!(set(&world, "{").await, (400, "malformed_json".to_owned()));
    let created = world.send("POST", "/v1/tenants/tenant-1/keys", r#"{"role":"writer"}"#).await;
    let writer = created.text("/secret");
    assert_eq!(world.send_as(&writer, "GET", "/v1/quotas", "").await.status, 200);
    for (key, method, path) in [
        (&*writer, "PATCH", "/v1/quotas"),
        (OPERATOR_KEY, "PATCH", "/v1/quotas"),
        (OPERATOR_KEY, "GET", "/v1/quotas"),
        (KEY, "PATCH", "/v1/tenants/tenant-1"),
    ] {
        let rejected = world.send_as(key, method, path, "{}").await;
        assert_eq!((rejected.status, rejected.text("/code")), (403, "role_forbidden".to_owned()), "{method} {path}");
    }
    for (key, path) in [(OPERATOR_KEY, "/v1/tenants/missing"), (FOREIGN_KEY, "/v1/tenants/tenant-1")] {
        let unknown = world.send_as(key, "PATCH", path, "{}").await;
        assert_eq!((unknown.status, unknown.text("/code")), (404, "tenant_not_found".to_owned()), "{path}");
    }
    let operators = world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/operator", "{}").await;
    assert_eq!(operators.text("/code"), "invalid_request");
    world.stop().await;
}

#[tokio::test]
async fn request_that_exceeds_a_quota_is_rejected_and_has_no_effect() {
    let world = World::start().await;
    assert_eq!(set(&world, r#"{"creates_per_second":0}"#).await.0, 200);
    let rejected = world.send("POST", "/v1/schedules", &body_with_id("a")).await;
    assert_eq!((rejected.status, rejected.text("/code")), (429, "rate_exceeded".to_owned()));
    assert_eq!(rejected.text("/quota"), "creates_per_second");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(world.send("GET", "/v1/schedules/a", "").await.status, 404);
    let line = world.send("POST", "/v1/schedules:batch", &body_with_id("a")).await.json();
    assert_eq!((&line["status"], &line["problem"]["code"]), (&json!(429), &json!("rate_exceeded")));
    assert_eq!(
        world.send_as(FOREIGN_KEY, "POST", "/v1/schedules", &body_with_id("a")).await.status,
        201,
        "other tenants are not affected"
    );

    assert_eq!(set(&world, r#"{"creates_per_second":1000}"#).await.0, 200);
    assert_eq!(
        world.send("POST", "/v1/schedules", &body_with_id("a")).await.status,
        201,
        "the new quota applies without a restart"
    );
    assert_eq!(set(&world, r#"{"payload_bytes_max":11,"horizon_days":30}"#).await.0, 200);
    let target = r#""target":{"http":{"url":"http://127.0.0.1:9/200"}}"#;
    for (when, quota, pointer) in [
        (r#""every":"1h","payload":"0123456789""#, "payload_bytes_max", "/payload"),
        (r#""every":"721h""#, "horizon_days", "/every"),
        (r#""at":"2035-01-02T03:04:05Z""#, "horizon_days", "/at"),
    ] {
        let body = format!("{{{when},{target}}}");
        let rejected = world.send("PUT", "/v1/schedules/b", &body).await;
        assert_eq!((rejected.status, rejected.text("/code")), (403, "quota_exceeded".to_owned()), "{}", rejected.body);
        assert_eq!(
            (rejected.text("/quota"), rejected.text("/errors/0/pointer")),
            (quota.to_owned(), pointer.to_owned())
        );
    }
    assert_eq!(world.send("GET", "/v1/schedules/b", "").await.status, 404);
    let within = format!(r#"{{"every":"720h","payload":"012345678",{target}}}"#);
    assert_eq!(world.send("PUT", "/v1/schedules/b", &within).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn requests_with_invalid_bodies_count_toward_the_create_rate_quota() {
    let world = World::start().await;
    assert_eq!(world.send("PUT", "/v1/schedules/a", &body("")).await.status, 201);
    assert_eq!(set(&world, r#"{"creates_per_second":10}"#).await.0, 200);
    for (method, path, sent) in [
        ("POST", "/v1/schedules", "{"),
        ("POST", "/v1/schedules", r#"{"at":7}"#),
        ("PUT", "/v1/schedules/a", r#"{"at":7}"#),
        ("PATCH", "/v1/schedules/a", r#"{"every":7}"#),
        ("PATCH", "/v1/schedules/a", "["),
    ] {
        let mut sends = 0;
        while world.send(method, path, sent).await.status != 429 {
            sends += 1;
            assert!(sends < 1_000, "{method} {path} {sent} counts toward the rate");
        }
    }
    for line in ["{}", "x"] {
        let batch = world.send("POST", "/v1/schedules:batch", &format!("{line}\n").repeat(1_000)).await;
        let codes: Vec<String> = batch.body.lines().map(problem_code).collect();
        let throttled = codes.iter().filter(|code| *code == "rate_exceeded").count();
        assert!(codes.len() == 1_000 && throttled > 500, "{throttled} lines {line} are above the rate");
    }
    let keyed = [("idempotency-key", "key-1")];
    let mut sends = 0;
    while world.send_if("POST", "/v1/schedules", &keyed, "{}").await.status != 429 {
        sends += 1;
        assert!(sends < 1_000, "a request with a key counts toward the rate");
    }
    world.stop().await;
}

#[tokio::test]
async fn cancellation_frees_capacity_of_the_pending_quota() {
    let world = World::start().await;
    let create = async |id: &str| {
        let response = world.send("POST", "/v1/schedules", &body_with_id(id)).await;
        let quota = if response.status == 403 { response.text("/quota") } else { String::new() };
        (response.status, quota)
    };
    let rejected = || (403, "pending_max".to_owned());
    let created = || (201, String::new());
    assert_eq!(create("a").await, created());
    assert_eq!(set(&world, r#"{"pending_max":2}"#).await, (200, String::new()));
    assert_eq!(create("b").await, created());
    assert_eq!(create("c").await, rejected(), "schedules from before the quota count");

    assert_eq!(
        world.send("PUT", "/v1/schedules/b", &body("")).await.status,
        200,
        "a replacement does not increase the count"
    );
    assert_eq!(world.send("PUT", "/v1/schedules/c", &body("")).await.status, 403);
    let batch = world.send("POST", "/v1/schedules:batch", &body_with_id("d")).await.json();
    assert_eq!((&batch["status"], &batch["problem"]["quota"]), (&json!(403), &json!("pending_max")));
    let others = world.send_as(FOREIGN_KEY, "POST", "/v1/schedules", &body_with_id("c")).await;
    assert_eq!(others.status, 201, "each tenant has its own quota: {}", others.body);

    assert_eq!(world.send("DELETE", "/v1/schedules/a", "").await.status, 200);
    let mut tries = 0;
    while create("c").await != created() {
        tries += 1;
        assert!(tries < 100, "a cancellation frees capacity");
        world.runtime.sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(create("e").await, rejected());
    world.stop().await;
}

#[tokio::test]
async fn request_that_creates_no_schedule_keeps_no_quota_reservation() {
    let world = World::start().await;
    assert_eq!(set(&world, r#"{"pending_max":2}"#).await, (200, String::new()));
    assert_eq!(world.send("POST", "/v1/schedules", &body_with_id("a")).await.status, 201);
    for (method, path, key, sent, status) in [
        ("POST", "/v1/schedules", None, body_with_id("a"), 409),
        ("POST", "/v1/schedules?dry_run=true", None, body(""), 200),
        ("POST", "/v1/schedules?dry_run=true", Some("key-1"), body(""), 200),
        ("PUT", "/v1/schedules/a", None, body(""), 200),
        ("PUT", "/v1/schedules/b?dry_run=true", None, body(""), 200),
        ("PATCH", "/v1/schedules/a", None, r#"{"labels":{"a":"1"}}"#.to_owned(), 200),
        ("PATCH", "/v1/schedules/a?dry_run=true", None, "{}".to_owned(), 200),
    ] {
        for _ in 0..3 {
            let key = key.map(|key| ("idempotency-key", key));
            let response = world.send_if(method, path, &Vec::from_iter(key), &sent).await;
            assert_eq!(response.status, status, "{method} {path}: {}", response.body);
        }
    }
    for (header, status) in [(("if-none-match", "*"), 412), (("if-match", "*"), 200)] {
        for _ in 0..3 {
            let response = world.send_if("PUT", "/v1/schedules/a", &[header], &body("")).await;
            assert_eq!(response.status, status, "{}", response.body);
        }
    }
    let batch = world.send("POST", "/v1/schedules:batch", &[body_with_id("a"), body_with_id("a")].join("\n")).await;
    // If the server checks the second line before it has released the reservation of the first line, this reservation
    // uses up the quota.
    let codes: Vec<String> = batch.body.lines().map(problem_code).collect();
    assert_eq!(codes[0], "schedule_exists", "{}", batch.body);
    assert!(["schedule_exists", "quota_exceeded"].contains(&&*codes[1]), "{}", batch.body);
    assert_eq!(
        world.send("POST", "/v1/schedules", &body_with_id("b")).await.status,
        201,
        "one more schedule is allowed"
    );
    assert_eq!(world.send("POST", "/v1/schedules", &body_with_id("c")).await.text("/quota"), "pending_max");
    world.stop().await;
}

#[tokio::test]
async fn quota_of_stored_bytes_rejects_new_rows_but_no_cancellation() {
    const PAYLOAD: u64 = 60_000;
    let world = World::start().await;
    let large = |id: &str| {
        let payload = "x".repeat(usize::try_from(PAYLOAD).unwrap());
        body(&format!(r#","id":"{id}","payload":"{payload}""#))
    };
    let create = async |id: &str| world.send("POST", "/v1/schedules", &large(id)).await;
    let usage = async || world.send("GET", "/v1/quotas", "").await.json()["usage"].clone();
    let nothing = json!({"active": 0, "ended": 0, "cancelled": 0, "stored_bytes": 0});
    assert_eq!(usage().await, nothing);
    assert_eq!(set(&world, r#"{"stored_mib_max":1}"#).await, (200, String::new()));
    let mut created = 0;
    let rejected = loop {
        let response = create(&format!("large-{created}")).await;
        if response.status != 201 {
            break response;
        }
        created += 1;
        assert!(created * PAYLOAD <= 1 << 20, "the quota limits the stored bytes");
    };
    assert_eq!((rejected.status, rejected.text("/quota")), (403, "stored_mib_max".to_owned()), "{}", rejected.body);
    let used = usage().await;
    assert_eq!(used["active"], created);
    assert!(used["stored_bytes"].as_u64().unwrap() >= created * PAYLOAD, "{used}");
    assert!(created * PAYLOAD > (1 << 20) - 2 * PAYLOAD, "the quota allows nearly 1 MiB: {created} schedules");

    // A replacement of a schedule by the same spec adds no bytes, so the server accepts it. A small new schedule fits
    // into the quota. A larger spec and a large batch line do not.
    let put = async |id: &str| world.send("PUT", &format!("/v1/schedules/{id}"), &large(id)).await;
    assert_eq!(put("large-0").await.status, 200);
    assert_eq!(world.send("POST", "/v1/schedules", &body_with_id("small")).await.status, 201);
    let grown = put("small").await;
    assert_eq!((grown.status, grown.text("/quota")), (403, "stored_mib_max".to_owned()), "{}", grown.body);
    let line = world.send("POST", "/v1/schedules:batch", &large("line")).await.json();
    assert_eq!(line["problem"]["quota"], "stored_mib_max", "{line}");
    let other = world.send_as(FOREIGN_KEY, "POST", "/v1/schedules", &large("other")).await;
    assert_eq!(other.status, 201, "each tenant has its own quota: {}", other.body);

    // The bytes of a cancelled schedule still count toward the quota.
    assert_eq!(world.send("DELETE", "/v1/schedules/large-0", "").await.status, 200);
    let after = usage().await;
    assert_eq!((&after["active"], &after["cancelled"]), (&json!(created), &json!(1)));
    assert_eq!(create("again").await.status, 403);
    let tenants = world.send_as(OPERATOR_KEY, "GET", "/v1/tenants", "").await.json();
    let of_all = tenants["tenants"].as_array().unwrap().iter().map(|tenant| tenant["usage"].clone());
    assert!(of_all.collect::<Vec<_>>().contains(&after), "{tenants}");
    world.stop().await;
}

#[tokio::test]
async fn new_tenant_gets_default_quotas_and_enough_pollers_for_them() {
    let world = World::start().await;
    let create_tenant = async |body: &str| world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", body).await;
    assert_eq!(create_tenant(r#"{"name":"billing"}"#).await.status, 201);
    let small = create_tenant(
        r#"{"name":"small","quotas":{"callbacks_per_minute":1000},"ceilings":{"pending_max":5},"egress":{"allow":["loopback"]}}"#,
    ).await;
    assert_eq!(small.json()["tenant"]["quotas"]["pending_max"], 5, "{}", small.body);
    let above = create_tenant(r#"{"name":"above","quotas":{"pending_max":6},"ceilings":{"pending_max":5}}"#).await;
    assert_eq!(above.text("/code"), "quota_ceiling");

    let generations = async |name: &str| {
        let tenants = world.store.tenants().await.unwrap();
        tenants.into_iter().find(|tenant| tenant.name == name).unwrap().generations
    };
    assert_eq!((generations("billing").await, generations("small").await), (vec![64], vec![2]));
    let admin = small.text("/key/secret");
    for (quota, expected) in
        [(10_000, vec![2, 16]), (1_000, vec![2, 16]), (14_000, vec![2, 16]), (500_000, vec![2, 16, 1_024])]
    {
        let patch = json!({"callbacks_per_minute": quota}).to_string();
        let patched = world.send_as(&admin, "PATCH", "/v1/quotas", &patch).await;
        assert_eq!(patched.status, 200, "{}", patched.body);
        assert_eq!(generations("small").await, expected, "after {quota}");
        let created = world.send_as(&admin, "POST", "/v1/schedules", &body_with_id(&format!("at-{quota}"))).await;
        assert_eq!(created.status, 201, "{}", created.body);
    }
    world.stop().await;
}

/// Returns the problem code in the result of a batch line.
fn problem_code(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["problem"]["code"].as_str().unwrap().to_owned()
}
