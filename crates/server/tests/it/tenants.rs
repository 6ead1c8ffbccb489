//! Tests of tenants, keys and roles. Each role has exactly its permissions, and only in its own tenant.

use std::time::Duration;

use domain::{ApiKey, Audit, Role, Tenant};
use serde_json::{Value, json};
use store::Store;

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, Response, World, body};

/// Creates a key of tenant 1 and returns its secret.
async fn key(world: &World, body: &Value) -> String {
    let created = world.send("POST", "/v1/tenants/tenant-1/keys", &body.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    created.text("/secret")
}

const NEW_TENANT: &str = r#"{"name":"billing","egress":{"allow":["loopback"]}}"#;

fn body_with_id(id: &str) -> String {
    body(&format!(r#","id":"{id}""#))
}

async fn code(world: &World, key: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let response: Response = world.send_as(key, method, path, body).await;
    let code = if response.status < 400 { String::new() } else { response.text("/code") };
    (response.status, code)
}

#[tokio::test]
async fn operator_creates_a_tenant_with_a_working_key() {
    let world = World::start().await;
    let created = world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", NEW_TENANT).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert!(created.text("/signing_secret/secret").starts_with("whsec_"));
    let admin = created.text("/key/secret");
    assert_eq!(code(&world, &admin, "POST", "/v1/schedules", &body_with_id("a")).await.0, 201);
    assert_eq!(code(&world, KEY, "GET", "/v1/schedules/a", "").await, (404, "schedule_not_found".to_owned()));

    let again = code(&world, OPERATOR_KEY, "POST", "/v1/tenants", r#"{"name":"billing"}"#).await;
    assert_eq!(again, (409, "tenant_exists".to_owned()));
    let reserved = code(&world, OPERATOR_KEY, "POST", "/v1/tenants", r#"{"name":"operator"}"#).await;
    assert_eq!(reserved, (409, "tenant_exists".to_owned()));
    for body in [r#"{"name":"a b"}"#, r#"{"name":""}"#, r#"{"nmae":"x"}"#, r#"{}"#, r#"{"name":7}"#, "[]"] {
        let rejected = code(&world, OPERATOR_KEY, "POST", "/v1/tenants", body).await;
        assert_eq!(rejected, (422, "invalid_request".to_owned()), "{body}");
    }
    assert_eq!(code(&world, OPERATOR_KEY, "POST", "/v1/tenants", "{").await.1, "malformed_json");

    let listed = world.send_as(OPERATOR_KEY, "GET", "/v1/tenants", "").await.json();
    let names: Vec<&str> =
        listed["tenants"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["billing", "operator", "tenant-1", "tenant-2"]);
    world.stop().await;
}

#[tokio::test]
async fn concurrently_created_tenants_are_distinct() {
    let world = World::start().await;
    let names: Vec<String> = (0..8).map(|n| json!({"name": format!("t{}", n / 2)}).to_string()).collect();
    let created = names.iter().map(|body| world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", body));
    let created = futures_util::future::join_all(created).await;
    let mut statuses: Vec<u16> = created.iter().map(|response| response.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 201, 201, 409, 409, 409, 409], "each name is used once");
    let tenants = world.store.tenants().await.unwrap();
    assert_eq!(tenants.len(), 3 + 4);
    world.stop().await;
}

/// Returns the method, path and body of one request for each route about a tenant. An admin may send each request.
fn routes_of(tenant: &str) -> Vec<(&'static str, String, String)> {
    let of = |rest: &str| format!("/v1/tenants/{tenant}{rest}");
    vec![
        ("GET", of(""), String::new()),
        ("GET", of("/keys"), String::new()),
        ("POST", of("/keys"), r#"{"role":"writer"}"#.to_owned()),
        ("DELETE", of("/keys/missing"), String::new()),
        ("GET", of("/signing-secrets"), String::new()),
        ("POST", of("/signing-secrets"), String::new()),
        ("DELETE", of("/signing-secrets/missing"), String::new()),
        ("GET", of("/audit"), String::new()),
    ]
}

#[tokio::test]
async fn tenant_is_visible_only_to_its_admins_and_operators() {
    let world = World::start().await;
    let not_found = (404, "tenant_not_found".to_owned());
    let forbidden = (403, "role_forbidden".to_owned());
    let writer = key(&world, &json!({"role": "writer"})).await;
    let reader = key(&world, &json!({"role": "reader"})).await;
    for tenant in ["tenant-1", "operator", "unknown"] {
        for (method, path, body) in routes_of(tenant) {
            assert_eq!(code(&world, FOREIGN_KEY, method, &path, &body).await, not_found, "{method} {path}");
        }
    }
    for (method, path, body) in routes_of("tenant-1") {
        for low in [&writer, &reader] {
            assert_eq!(code(&world, low, method, &path, &body).await, forbidden, "{method} {path}");
        }
        for high in [KEY, OPERATOR_KEY] {
            let (status, code) = code(&world, high, method, &path, &body).await;
            let expected = if path.ends_with("missing") { 404 } else { status };
            assert!(status == expected && code != "tenant_not_found", "{method} {path}: {status} {code}");
            assert!(status < 500 && status != 403, "{method} {path}: {status} {code}");
        }
    }
    for key in [KEY, &writer, &reader] {
        assert_eq!(code(&world, key, "GET", "/v1/tenants", "").await, forbidden);
        assert_eq!(code(&world, key, "POST", "/v1/tenants", r#"{"name":"mine"}"#).await, forbidden);
    }
    world.stop().await;
}

#[tokio::test]
async fn each_role_permits_only_its_own_operations() {
    let world = World::start().await;
    let forbidden = (403, "role_forbidden".to_owned());
    let writer = key(&world, &json!({"role": "writer", "name": "the night shift's"})).await;
    let reader = key(&world, &json!({"role": "reader"})).await;
    let body = body_with_id("a");
    let writes = [
        ("POST", "/v1/schedules"),
        ("PUT", "/v1/schedules/a"),
        ("POST", "/v1/schedules:batch"),
        ("POST", "/v1/schedules/preview"),
        ("DELETE", "/v1/schedules/a"),
        ("POST", "/v1/runs/x/redrive"),
    ];
    let reads = [("GET", "/v1/schedules/a"), ("GET", "/v1/schedules/a/runs"), ("GET", "/v1/runs?dead_letter=true")];
    for (method, path) in writes {
        assert_eq!(code(&world, &reader, method, path, &body).await, forbidden, "{method} {path}");
        assert_eq!(code(&world, OPERATOR_KEY, method, path, &body).await, forbidden, "{method} {path}");
    }
    assert_eq!(code(&world, &writer, "POST", "/v1/schedules", &body).await.0, 201);
    for (method, path) in reads {
        assert_eq!(code(&world, OPERATOR_KEY, method, path, "").await, forbidden, "{method} {path}");
        for key in [&*reader, &*writer, KEY] {
            assert_eq!(code(&world, key, method, path, "").await.0, 200, "{method} {path}");
        }
    }
    assert_eq!(code(&world, &writer, "DELETE", "/v1/schedules/a", "").await.0, 200);
    for (tenant, role) in [("tenant-1", "operator"), ("operator", "admin"), ("operator", "reader")] {
        let body = json!({"role": role}).to_string();
        let rejected = code(&world, OPERATOR_KEY, "POST", &format!("/v1/tenants/{tenant}/keys"), &body).await;
        assert_eq!(rejected, (422, "invalid_request".to_owned()), "{role} of {tenant}");
    }
    world.stop().await;
}

#[tokio::test]
async fn api_key_is_invalid_after_its_revocation_or_expiry() {
    let world = World::start().await;
    let invalid = (401, "invalid_credentials".to_owned());
    let revoked = key(&world, &json!({"role": "reader"})).await;
    assert_eq!(code(&world, &revoked, "GET", "/v1/runs?dead_letter=true", "").await.0, 200);
    let id = revoked.split_once('.').unwrap().0;
    let path = format!("/v1/tenants/tenant-1/keys/{id}");
    assert_eq!(code(&world, KEY, "DELETE", &path, "").await.0, 200);
    assert_eq!(code(&world, &revoked, "GET", "/v1/runs?dead_letter=true", "").await, invalid);
    assert_eq!(code(&world, KEY, "DELETE", &path, "").await, (404, "key_not_found".to_owned()));

    let end = world.runtime.now() + Duration::from_millis(400);
    let end = jiff::Timestamp::from_millisecond(end.as_millis()).unwrap().to_string();
    let expiring = key(&world, &json!({"role": "reader", "expires_at": end})).await;
    assert_eq!(code(&world, &expiring, "GET", "/v1/runs?dead_letter=true", "").await.0, 200);
    world.runtime.sleep(Duration::from_millis(450)).await;
    assert_eq!(code(&world, &expiring, "GET", "/v1/runs?dead_letter=true", "").await, invalid);
    let past = json!({"role": "reader", "expires_at": "2020-01-01T00:00:00Z"}).to_string();
    let rejected = code(&world, KEY, "POST", "/v1/tenants/tenant-1/keys", &past).await;
    assert_eq!(rejected, (422, "invalid_request".to_owned()));

    let operators = world.send_as(OPERATOR_KEY, "GET", "/v1/tenants/operator/keys", "").await;
    let last = format!("/v1/tenants/operator/keys/{}", operators.text("/keys/0/id"));
    assert_eq!(code(&world, OPERATOR_KEY, "DELETE", &last, "").await, (409, "last_one".to_owned()));
    let keys = "/v1/tenants/operator/keys";
    let expiring = r#"{"role":"operator","expires_at":"2035-01-01T00:00:00Z"}"#;
    assert_eq!(code(&world, OPERATOR_KEY, "POST", keys, expiring).await.0, 201);
    assert_eq!(code(&world, OPERATOR_KEY, "DELETE", &last, "").await, (409, "last_one".to_owned()));
    assert_eq!(code(&world, OPERATOR_KEY, "POST", keys, r#"{"role":"operator"}"#).await.0, 201);
    assert_eq!(code(&world, OPERATOR_KEY, "DELETE", &last, "").await.0, 200);
    world.stop().await;
}

/// Another member has revoked the key, and this member does not know of the revocation yet.
#[tokio::test]
async fn key_that_another_member_has_revoked_cannot_change_a_tenant() {
    let world = World::start().await;
    let admin = key(&world, &json!({"role": "admin"})).await;
    let mut tenant = world.store.tenants().await.unwrap().remove(1);
    tenant.version += 1;
    tenant.keys.retain(|key| !admin.starts_with(&key.id));
    let entry = Audit::of(&tenant, world.runtime.now(), "test", "key.revoke", "");
    world.store.put_tenant(tenant, entry).await.unwrap().unwrap();
    let rejected = code(&world, &admin, "POST", "/v1/tenants/tenant-1/keys", r#"{"role":"admin"}"#).await;
    assert_eq!(rejected, (401, "invalid_credentials".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn store_contains_all_concurrently_created_api_keys() {
    let world = World::start().await;
    let reader = json!({"role": "reader"});
    let keys = futures_util::future::join_all((0..12).map(|_| key(&world, &reader))).await;
    for key in &keys {
        assert_eq!(code(&world, key, "GET", "/v1/runs?dead_letter=true", "").await.0, 200);
    }
    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await.json();
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1 + 12);
    world.stop().await;
}

#[tokio::test]
async fn tenant_has_one_or_two_signing_secrets_during_a_rotation() {
    let world = World::start().await;
    let path = "/v1/tenants/tenant-1/signing-secrets";
    let old = world.send("GET", path, "").await.text("/signing_secrets/0/id");
    let last = code(&world, KEY, "DELETE", &format!("{path}/{old}"), "").await;
    assert_eq!(last, (409, "last_one".to_owned()));
    let new = world.send("POST", path, "").await;
    assert_eq!(new.status, 201);
    assert_eq!(code(&world, KEY, "POST", path, "").await, (409, "too_many".to_owned()));
    let listed = world.send("GET", path, "").await.json();
    let ids: Vec<&str> =
        listed["signing_secrets"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&*new.text("/id"), &*old], "the newest secret comes first");
    assert_eq!(code(&world, KEY, "DELETE", &format!("{path}/{old}"), "").await.0, 200);
    assert_eq!(world.store.tenants().await.unwrap()[1].signing_secrets.len(), 1);
    let operators = code(&world, OPERATOR_KEY, "POST", "/v1/tenants/operator/signing-secrets", "").await;
    assert_eq!(operators, (422, "invalid_request".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn audit_log_has_every_change_with_its_actor_and_no_secret() {
    let world = World::start().await;
    let created = world.send("POST", "/v1/tenants/tenant-1/keys", r#"{"role":"writer","name":"ci"}"#).await;
    let (id, bearer) = (created.text("/id"), created.text("/secret"));
    world.send_as(OPERATOR_KEY, "DELETE", &format!("/v1/tenants/tenant-1/keys/{id}"), "").await;
    let secret = world.send("POST", "/v1/tenants/tenant-1/signing-secrets", "").await;

    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await;
    let actions: Vec<[String; 3]> = (0..4)
        .map(|at| ["actor", "action", "subject"].map(|field| audit.text(&format!("/entries/{at}/{field}"))))
        .collect();
    let us = KEY.split_once('.').unwrap().0;
    let operator = OPERATOR_KEY.split_once('.').unwrap().0;
    let expected = [
        ["test", "tenant.create", ""],
        [us, "key.create", &id],
        [operator, "key.revoke", &id],
        [us, "signing_secret.create", &secret.text("/id")],
    ];
    assert_eq!(actions, expected.map(|action| action.map(str::to_owned)));
    let keys = world.send("GET", "/v1/tenants/tenant-1/keys", "").await;
    let secrets = world.send("GET", "/v1/tenants/tenant-1/signing-secrets", "").await;
    for response in [&audit, &keys, &secrets] {
        assert!(!response.body.contains(bearer.split_once('.').unwrap().1), "{}", response.body);
        assert!(!response.body.contains(&secret.text("/secret")), "{}", response.body);
    }

    let first = world.send("GET", "/v1/tenants/tenant-1/audit?limit=3", "").await;
    assert_eq!(first.json()["entries"].as_array().unwrap().len(), 3);
    let token = first.text("/next_page_token");
    let rest = world.send("GET", &format!("/v1/tenants/tenant-1/audit?limit=3&page_token={token}"), "").await;
    assert_eq!(rest.text("/entries/0/action"), "signing_secret.create");
    assert_eq!(rest.json()["next_page_token"], Value::Null);
    let bad = code(&world, KEY, "GET", "/v1/tenants/tenant-1/audit?page_token=x", "").await;
    assert_eq!(bad, (400, "invalid_parameter".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn server_limits_the_number_of_api_keys_of_a_tenant() {
    let world = World::start().await;
    let mut tenant = world.store.tenants().await.unwrap().remove(1);
    let spare = ApiKey { role: Role::Reader, ..ApiKey::admin("spare", [0; 32], world.runtime.now()) };
    tenant.keys.extend((1..1_000).map(|n| ApiKey { id: format!("spare{n}"), ..spare.clone() }));
    let tenant = Tenant { version: tenant.version + 1, ..tenant };
    let entry = Audit::of(&tenant, world.runtime.now(), "test", "key.create", "spare");
    world.store.put_tenant(tenant, entry).await.unwrap().unwrap();
    let rejected = code(&world, KEY, "POST", "/v1/tenants/tenant-1/keys", r#"{"role":"reader"}"#).await;
    assert_eq!(rejected, (409, "too_many".to_owned()));
    world.stop().await;
}

const TENANT: &str = "/v1/tenants/tenant-1";

#[tokio::test]
async fn operator_sets_the_egress_policy_of_a_tenant() {
    let world = World::start().await;
    let get = async || world.send("GET", TENANT, "").await.json();
    let before = get().await;
    let some = json!({"allow": ["loopback"], "allow_networks": [], "allow_topics": [], "forbid_http": false});
    assert_eq!((&before["egress"], &before["version"]), (&some, &json!(1)));

    let patch = async |body: Value| world.send_as(OPERATOR_KEY, "PATCH", TENANT, &body.to_string()).await;
    let patched = patch(json!({"egress": {"allow_networks": ["10.1.0.0/16", "192.0.2.7"]}})).await;
    let networks = ["10.1.0.0/16", "192.0.2.7/32"];
    let more = json!({"allow": ["loopback"], "allow_networks": networks, "allow_topics": [], "forbid_http": false});
    assert_eq!((patched.status, &patched.json()["egress"]), (200, &more), "{}", patched.body);
    assert_eq!(patched.json(), get().await, "the response contains the new state");
    let patched = patch(json!({"egress": {"allow": null, "forbid_http": true}})).await.json();
    let other = json!({"allow": [], "allow_networks": networks, "allow_topics": [], "forbid_http": true});
    assert_eq!((&patched["egress"], &patched["version"]), (&other, &json!(3)));
    assert_eq!(patch(json!({"egress": null})).await.json()["egress"], none());
    assert_eq!(patch(json!({})).await.status, 200);

    let audit = world.send("GET", "/v1/tenants/tenant-1/audit", "").await;
    let subject = format!("egress {some} -> {more}");
    assert_eq!((audit.text("/entries/1/action"), audit.text("/entries/1/subject")), ("tenant.update".into(), subject));

    let body = r#"{"name":"inside","egress":{"allow":["private","shared"]}}"#;
    let created = world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", body).await;
    assert_eq!(created.json()["tenant"]["egress"]["allow"], json!(["private", "shared"]), "{}", created.body);
    let created = world.send_as(OPERATOR_KEY, "POST", "/v1/tenants", r#"{"name":"outside"}"#).await;
    assert_eq!(created.json()["tenant"]["egress"], none());
    world.stop().await;
}

fn none() -> Value {
    json!({"allow": [], "allow_networks": [], "allow_topics": [], "forbid_http": false})
}

#[tokio::test]
async fn rejected_setting_does_not_change_the_tenant() {
    let world = World::start().await;
    let many: Vec<String> = (0..33).map(|n| format!("10.{n}.0.0/16")).collect();
    let many_topics: Vec<String> = (0..33).map(|n| format!("team-{n}-*")).collect();
    for wrong in [
        json!({"egres": {}}),
        json!({"egres": null}),
        json!({"egress": {"allow": ["public"]}}),
        json!({"egress": {"allow": ["Loopback"]}}),
        json!({"egress": {"allow": "loopback"}}),
        json!({"egress": {"deny": []}}),
        json!({"egress": {"deny": null}}),
        json!({"egress": {"forbid_http": 1}}),
        json!({"egress": {"allow_networks": ["10.0.0.1/8"]}}),
        json!({"egress": {"allow_networks": ["example.org"]}}),
        json!({"egress": {"allow_networks": many}}),
        json!({"egress": {"allow_topics": many_topics}}),
        json!({"egress": {"allow_topics": "orders"}}),
        json!({"egress": {"allow_topics": [7]}}),
        json!({"egress": {"allow_topics": [""]}}),
        json!({"egress": {"allow_topics": ["orders", "ord*ers"]}}),
        json!({"egress": {"allow_topics": ["ordérs"]}}),
        json!({"egress": {"allow_topics": ["__consumer_offsets"]}}),
        json!({"egress": {"allow_topics": ["__*"]}}),
        json!({"egress": {"allow_topics": ["orders-DEAD"]}}),
        json!({"egress": []}),
        json!({"name": "other"}),
        json!([]),
        json!(null),
    ] {
        let rejected = code(&world, OPERATOR_KEY, "PATCH", TENANT, &wrong.to_string()).await;
        assert_eq!(rejected, (422, "invalid_request".to_owned()), "{wrong}");
    }
    assert_eq!(code(&world, OPERATOR_KEY, "PATCH", TENANT, "{").await.1, "malformed_json");
    let operators = code(&world, OPERATOR_KEY, "PATCH", "/v1/tenants/operator", r#"{"egress":{}}"#).await;
    assert_eq!(operators, (422, "invalid_request".to_owned()));
    let unknown = code(&world, OPERATOR_KEY, "PATCH", "/v1/tenants/missing", r#"{"egress":{}}"#).await;
    assert_eq!(unknown, (404, "tenant_not_found".to_owned()));
    for (key, expected) in [(KEY, (403, "role_forbidden")), (FOREIGN_KEY, (404, "tenant_not_found"))] {
        for opened in [r#"{"egress":{"allow":["private"]}}"#, r#"{"egress":{"allow_topics":["orders"]}}"#] {
            let rejected = code(&world, key, "PATCH", TENANT, opened).await;
            let rejected = (rejected.0, rejected.1.as_str());
            assert_eq!(rejected, expected, "an admin cannot open the operator's network");
        }
    }
    assert_eq!(world.send("GET", TENANT, "").await.json()["version"], 1);
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_schedule_with_a_forbidden_target() {
    let world = World::start().await;
    let at = |url: &str| format!(r#"{{"every":"1h","target":{{"http":{{"url":"{url}"}}}}}}"#);
    let rejected = async |url: &str| {
        let response = world.send("POST", "/v1/schedules", &at(url)).await;
        assert_eq!(response.status, 422, "{url}: {}", response.body);
        assert_eq!(response.text("/errors/0/pointer"), "/target/http/url");
        response.text("/errors/0/code")
    };
    for url in
        ["http://10.0.0.1/", "https://[fd00::1]/", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]:8/"]
    {
        assert_eq!(rejected(url).await, "egress_refused", "{url}");
        let put = world.send("PUT", "/v1/schedules/a", &at(url)).await;
        assert_eq!((put.status, &*put.text("/errors/0/code")), (422, "egress_refused"));
        let line = world.send("POST", "/v1/schedules:batch", &at(url)).await;
        assert_eq!(line.text("/problem/errors/0/code"), "egress_refused", "{}", line.body);
    }
    for url in ["http://127.0.0.1/", "http://8.8.8.8/", "http://name.example/"] {
        assert_eq!(world.send("POST", "/v1/schedules", &at(url)).await.status, 201, "{url}");
    }
    let strict = r#"{"egress":{"forbid_http":true,"allow":["private"]}}"#;
    assert_eq!(world.send_as(OPERATOR_KEY, "PATCH", TENANT, strict).await.status, 200);
    for url in ["http://8.8.8.8/", "http://name.example/", "https://127.0.0.1/"] {
        assert_eq!(rejected(url).await, "egress_refused", "{url}");
    }
    assert_eq!(world.send("POST", "/v1/schedules", &at("https://10.0.0.1/")).await.status, 201);
    world.stop().await;
}
