//! Tests of the isolation of tenants. They call every route with every key of another tenant and without a valid key.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, World};

/// Text in the data of the tenant `tenant-2`. The tenant `tenant-1` must never see this text.
const MARKER: &str = "m4rk-0f-th3-0th3r";
const SCHEDULE: &str = "theirs";
/// Routes that create a schedule in the caller's own tenant, even if another tenant has a schedule with the same id.
const CREATING: [&str; 3] = ["POST /v1/schedules", "PUT /v1/schedules/{id}", "POST /v1/schedules:batch"];

/// Lists the routes from the source code of the routing table. The server serves only the routes of this table.
fn routes() -> Vec<&'static str> {
    let table = concat!(include_str!("../../src/routes.rs"), include_str!("../../src/routes/run_routes.rs"));
    let names = table.split('"').filter(|text| {
        text.split_once(" /").is_some_and(|(method, _)| ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method))
    });
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 33, "{names:?}");
    names
}

/// Ids of one object of each kind that belongs to the tenant `tenant-2`.
struct OtherTenant {
    run: String,
    key: String,
    secret: String,
    /// Query of a report about the runs of this test.
    report: String,
}

impl OtherTenant {
    async fn create(world: &World) -> Self {
        let send = async |method: &str, path: &str, body: Value| {
            let response = world.send_as(FOREIGN_KEY, method, path, &body.to_string()).await;
            assert!(response.status < 300, "{}", response.body);
            response.json()
        };
        send("POST", "/v1/schedules", schedule(SCHEDULE, "2035-01-02T03:04:05Z", "200")).await;
        send("POST", "/v1/schedules", schedule("dead", &world.runtime.now().to_string(), "500")).await;
        let key = send("POST", "/v1/tenants/tenant-2/keys", json!({ "role": "writer", "name": MARKER })).await;
        let secret = send("POST", "/v1/tenants/tenant-2/signing-secrets", json!(null)).await;
        let run = loop {
            let dead = world.send_as(FOREIGN_KEY, "GET", "/v1/runs?dead_letter=true", "").await.json();
            if let Some(run) = dead["runs"][0]["id"].as_str() {
                break run.to_owned();
            }
            world.runtime.sleep(Duration::from_millis(10)).await;
        };
        let text = |value: &Value| value["id"].as_str().unwrap().to_owned();
        let (now, hour) = (world.runtime.now(), Duration::from_secs(3_600));
        let report = format!("?by=label&from={}&to={}", now - hour, now + hour);
        OtherTenant { run, key: text(&key), secret: text(&secret), report }
    }

    fn path(&self, route: &str) -> String {
        let id = match route {
            route if route.contains("/runs/") => &self.run,
            route if route.contains("/keys/") => &self.key,
            route if route.contains("/signing-secrets/") => &self.secret,
            _ => SCHEDULE,
        };
        let path = route.split_once(' ').unwrap().1.replace("{id}", id).replace("{tenant}", "tenant-2");
        // A request without these parameters is rejected before the server reads data. The explanation of this instant
        // does not depend on the present time.
        let query = match path.as_str() {
            "/v1/report" => self.report.as_str(),
            path if path.ends_with("/explain") => "?at=2034-01-01T00:00:00Z",
            _ => "",
        };
        path + query
    }

    /// Reads all data that the tenant `tenant-2` can see.
    async fn everything(&self, world: &World) -> Vec<(u16, String)> {
        let mut seen = Vec::new();
        for route in routes() {
            // Some routes reject a request without parameters. For a rejection, the test records only the status. The
            // result of the auditor contains the time of the last audit.
            if route.starts_with("GET /v1/") && route != "GET /v1/audit" {
                let path = self.path(route);
                let queries = match path.as_str() {
                    "/v1/runs" => &["?dead_letter=true", "?from=1970-01-01T00:00:00Z"][..],
                    _ => &[""],
                };
                for query in queries {
                    let response = world.send_as(FOREIGN_KEY, "GET", &format!("{path}{query}"), "").await;
                    let is_rejected = response.status >= 400;
                    seen.push((response.status, if is_rejected { String::new() } else { response.body }));
                }
            }
        }
        seen
    }
}

fn schedule(id: &str, at: &str, response: &str) -> Value {
    json!({
        "id": id, "at": at, "payload": MARKER, "labels": { "team": MARKER }, "retry": { "attempts_max": 1 },
        "target": { "http": { "url": format!("http://127.0.0.1:9/{MARKER}/{response}") } },
    })
}

/// Returns a valid body for a request to the route.
fn body(route: &str) -> String {
    let own = json!({ "at": "2035-01-02T03:04:05Z", "target": { "http": { "url": "http://127.0.0.1:9/mine" } } });
    match route {
        "PATCH /v1/schedules/{id}" => json!({ "payload": "changed" }).to_string(),
        "PATCH /v1/quotas" => json!({ "pending_max": 7 }).to_string(),
        "PATCH /v1/tenants/{tenant}" => json!({ "ceilings": { "pending_max": 7 } }).to_string(),
        "POST /v1/tenants/{tenant}/keys" => json!({ "role": "admin" }).to_string(),
        "POST /v1/tenants" => json!({ "name": "tenant-2" }).to_string(),
        "POST /v1/schedules/preview" => own.to_string(),
        route if CREATING.contains(&route) => own.to_string(),
        _ => String::new(),
    }
}

/// Returns one key of each role of the first tenant.
async fn own_keys(world: &World) -> Vec<String> {
    let mut keys = vec![KEY.to_owned()];
    for role in ["writer", "reader"] {
        let created = world.send("POST", "/v1/tenants/tenant-1/keys", &json!({ "role": role }).to_string()).await;
        assert_eq!(created.status, 201, "{}", created.body);
        keys.push(created.text("/secret"));
    }
    keys
}

#[tokio::test]
async fn no_route_shows_or_changes_data_of_another_tenant() {
    let world = World::start().await;
    let other_tenant = OtherTenant::create(&world).await;
    let keys = own_keys(&world).await;
    let before = other_tenant.everything(&world).await;
    assert!(before.iter().any(|(_, body)| body.contains(MARKER)), "the tenant sees its own data");

    let (creating, others): (Vec<&str>, Vec<&str>) = routes().into_iter().partition(|route| CREATING.contains(route));
    for route in others.into_iter().chain(creating) {
        let (method, path) = (route.split_once(' ').unwrap().0, other_tenant.path(route));
        for key in &keys {
            let response = world.send_as(key, method, &path, &body(route)).await;
            let is_named = route.contains('{') && !CREATING.contains(&route);
            assert!(
                !is_named || [403, 404].contains(&response.status),
                "{route}: {} {}",
                response.status,
                response.body
            );
            assert!(!response.body.contains(MARKER) && response.status < 500, "{route}: {}", response.body);
            let ids = [&other_tenant.key, &other_tenant.secret, &other_tenant.run];
            let leaked = ids.into_iter().find(|id| response.body.contains(id.as_str()));
            assert!(response.status >= 400 || leaked.is_none(), "{route}: {}", response.body);
        }
        // Operators have no schedules, and cannot see the schedules of tenants, except the ids in the result of the
        // auditor.
        if !route.contains("/v1/tenants") && route != "GET /v1/audit" && route.contains("/v1/") {
            let response = world.send_as(OPERATOR_KEY, method, &path, &body(route)).await;
            assert_eq!(response.status, 403, "{route}: {}", response.body);
        }
    }
    assert_eq!(other_tenant.everything(&world).await, before, "the other tenant's data is unchanged");
    world.stop().await;
}

#[tokio::test]
async fn every_user_route_rejects_requests_without_a_valid_key() {
    let world = World::start().await;
    let other_tenant = OtherTenant::create(&world).await;
    let before = other_tenant.everything(&world).await;
    let (id, _) = FOREIGN_KEY.split_once('.').unwrap();
    let wrong = ["", "missing.secret", &format!("{id}.wrong"), &format!("{id}."), id];
    for route in routes().into_iter().filter(|route| route.contains("/v1/")) {
        for key in wrong {
            let method = route.split_once(' ').unwrap().0;
            let response = world.send_as(key, method, &other_tenant.path(route), &body(route)).await;
            assert_eq!(response.status, 401, "{route} with {key:?}: {}", response.body);
        }
    }
    assert_eq!(other_tenant.everything(&world).await, before);
    world.stop().await;
}
