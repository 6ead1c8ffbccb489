//! Tenants apart: every route there is, tried with every key of another tenant, and with none.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, World};

/// In all that the one tenant has, and in nothing that the other may see.
const MARK: &str = "m4rk-0f-th3-0th3r";
const SCHEDULE: &str = "theirs";
/// What makes something of one's own under whatever id, as ids are a tenant's.
const MAKING: [&str; 3] = ["POST /v1/schedules", "PUT /v1/schedules/{id}", "POST /v1/schedules:batch"];

/// Each entry of the table of routes: a handler without one is not served.
fn routes() -> Vec<&'static str> {
    let names = include_str!("../../src/routes.rs").split('"').filter(|text| {
        text.split_once(" /").is_some_and(|(method, _)| ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method))
    });
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 25, "{names:?}");
    names
}

/// What the tenant `tenant-2` has of each kind.
struct Theirs {
    run: String,
    key: String,
    secret: String,
}

impl Theirs {
    async fn make(world: &World) -> Self {
        let ask = async |method: &str, path: &str, body: Value| {
            let answer = world.send_as(FOREIGN_KEY, method, path, &body.to_string()).await;
            assert!(answer.status < 300, "{}", answer.body);
            answer.json()
        };
        ask("POST", "/v1/schedules", schedule(SCHEDULE, "2035-01-02T03:04:05Z", "200")).await;
        ask("POST", "/v1/schedules", schedule("dead", &world.runtime.now().to_string(), "500")).await;
        let key = ask("POST", "/v1/tenants/tenant-2/keys", json!({ "role": "writer", "name": MARK })).await;
        let secret = ask("POST", "/v1/tenants/tenant-2/signing-secrets", json!(null)).await;
        let run = loop {
            let dead = world.send_as(FOREIGN_KEY, "GET", "/v1/runs?dead_letter=true", "").await.json();
            if let Some(run) = dead["runs"][0]["id"].as_str() {
                break run.to_owned();
            }
            world.runtime.sleep(Duration::from_millis(10)).await;
        };
        let text = |value: &Value| value["id"].as_str().unwrap().to_owned();
        Theirs { run, key: text(&key), secret: text(&secret) }
    }

    fn path(&self, route: &str) -> String {
        let id = match route {
            route if route.contains("/runs/") => &self.run,
            route if route.contains("/keys/") => &self.key,
            route if route.contains("/signing-secrets/") => &self.secret,
            _ => SCHEDULE,
        };
        route.split_once(' ').unwrap().1.replace("{id}", id).replace("{tenant}", "tenant-2")
    }

    /// All that they can see of themselves.
    async fn everything(&self, world: &World) -> Vec<(u16, String)> {
        let mut seen = Vec::new();
        for route in routes() {
            // The page of what is due and the like come with parameters; those without are told.
            if route.starts_with("GET /v1/") {
                let mut path = self.path(route);
                if path == "/v1/runs" {
                    path.push_str("?dead_letter=true");
                }
                let answer = world.send_as(FOREIGN_KEY, "GET", &path, "").await;
                let is_refused = answer.status >= 400;
                seen.push((answer.status, if is_refused { String::new() } else { answer.body }));
            }
        }
        seen
    }
}

fn schedule(id: &str, at: &str, answer: &str) -> Value {
    json!({
        "id": id, "at": at, "payload": MARK, "labels": { "team": MARK }, "retry": { "attempts_max": 1 },
        "target": { "http": { "url": format!("http://127.0.0.1:9/{MARK}/{answer}") } },
    })
}

/// One that would be taken if it came from them.
fn body(route: &str) -> String {
    let mine = json!({ "at": "2035-01-02T03:04:05Z", "target": { "http": { "url": "http://127.0.0.1:9/mine" } } });
    match route {
        "PATCH /v1/schedules/{id}" => json!({ "payload": "changed" }).to_string(),
        "PATCH /v1/quotas" => json!({ "pending_max": 7 }).to_string(),
        "PATCH /v1/tenants/{tenant}" => json!({ "ceilings": { "pending_max": 7 } }).to_string(),
        "POST /v1/tenants/{tenant}/keys" => json!({ "role": "admin" }).to_string(),
        "POST /v1/tenants" => json!({ "name": "tenant-2" }).to_string(),
        route if MAKING.contains(&route) => mine.to_string(),
        _ => String::new(),
    }
}

/// Our keys: one of each role.
async fn ours(world: &World) -> Vec<String> {
    let mut keys = vec![KEY.to_owned()];
    for role in ["writer", "reader"] {
        let made = world.send("POST", "/v1/tenants/tenant-1/keys", &json!({ "role": role }).to_string()).await;
        assert_eq!(made.status, 201, "{}", made.body);
        keys.push(made.text("/secret"));
    }
    keys
}

#[tokio::test]
async fn no_route_shows_or_changes_anything_of_another_tenant_whatever_the_keys_role() {
    let world = World::start().await;
    let theirs = Theirs::make(&world).await;
    let keys = ours(&world).await;
    let before = theirs.everything(&world).await;
    assert!(before.iter().any(|(_, body)| body.contains(MARK)), "they see it themselves");

    let (making, others): (Vec<&str>, Vec<&str>) = routes().into_iter().partition(|route| MAKING.contains(route));
    for route in others.into_iter().chain(making) {
        let (method, path) = (route.split_once(' ').unwrap().0, theirs.path(route));
        for key in &keys {
            let answer = world.send_as(key, method, &path, &body(route)).await;
            let is_named = route.contains('{') && !MAKING.contains(&route);
            assert!(!is_named || [403, 404].contains(&answer.status), "{route}: {} {}", answer.status, answer.body);
            assert!(!answer.body.contains(MARK) && answer.status < 500, "{route}: {}", answer.body);
            let ids = [&theirs.key, &theirs.secret, &theirs.run];
            let tells = ids.into_iter().find(|id| answer.body.contains(id.as_str()));
            assert!(answer.status >= 400 || tells.is_none(), "{route}: {}", answer.body);
        }
        // Operators have no schedules, and see nobody's.
        if !route.contains("/v1/tenants") && route.contains("/v1/") {
            let answer = world.send_as(OPERATOR_KEY, method, &path, &body(route)).await;
            assert_eq!(answer.status, 403, "{route}: {}", answer.body);
        }
    }
    assert_eq!(theirs.everything(&world).await, before, "nothing of theirs has changed");
    world.stop().await;
}

#[tokio::test]
async fn no_route_of_users_answers_without_a_key_that_is_known() {
    let world = World::start().await;
    let theirs = Theirs::make(&world).await;
    let before = theirs.everything(&world).await;
    let (id, _) = FOREIGN_KEY.split_once('.').unwrap();
    let wrong = ["", "nobody.secret", &format!("{id}.wrong"), &format!("{id}."), id];
    for route in routes().into_iter().filter(|route| route.contains("/v1/")) {
        for key in wrong {
            let method = route.split_once(' ').unwrap().0;
            let answer = world.send_as(key, method, &theirs.path(route), &body(route)).await;
            assert_eq!(answer.status, 401, "{route} with {key:?}: {}", answer.body);
        }
    }
    assert_eq!(theirs.everything(&world).await, before);
    world.stop().await;
}
