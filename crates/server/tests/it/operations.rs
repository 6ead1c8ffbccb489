use store::Health;

use crate::support::{World, body};

#[tokio::test]
async fn server_with_full_disk_rejects_only_new_schedules() {
    let world = World::start().await;
    assert_eq!(world.send("PUT", "/v1/schedules/mine", &body("")).await.status, 201);
    assert_eq!(world.send("GET", "/readyz", "").await.body, r#"{"status":"ready"}"#);
    world.store.set_health(Health::Full);
    let rejected = world.send("POST", "/v1/schedules", &body("")).await;
    assert_eq!((rejected.status, rejected.text("/code").as_str()), (507, "storage_full"));
    assert_eq!(rejected.header("retry-after"), Some("30"));
    assert_eq!(world.send("GET", "/v1/schedules/mine", "").await.status, 200);
    assert_eq!(world.send("GET", "/readyz", "").await.body, r#"{"status":"storage_full"}"#);
    world.store.set_health(Health::Ready);
    assert_eq!(world.send("POST", "/v1/schedules", &body("")).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn server_with_a_closed_store_is_not_ready() {
    let world = World::start().await;
    world.store.set_health(Health::Closed);
    assert_eq!(world.send("GET", "/healthz", "").await.status, 200);
    let ready = world.send("GET", "/readyz", "").await;
    assert_eq!((ready.status, ready.text("/code").as_str()), (503, "store_unavailable"));
    let rejected = world.send("POST", "/v1/schedules", &body("")).await;
    assert_eq!((rejected.status, rejected.header("retry-after")), (503, Some("1")));
    world.stop().await;
}

#[tokio::test]
async fn stopping_server_serves_requests_while_it_reports_not_ready() {
    let world = World::start().await;
    let mut kept = world.connect().await;
    assert_eq!(kept.request("GET", "/readyz", "", b"").await.status, 200);
    world.readiness.withdraw();
    let ready = kept.request("GET", "/readyz", "", b"").await;
    assert_eq!((ready.status, ready.text("/code").as_str()), (503, "stopping"));
    assert_eq!(world.send("GET", "/healthz", "").await.status, 200);
    assert_eq!(world.send("POST", "/v1/schedules", &body("")).await.status, 201);
    world.stop().await;
}

#[tokio::test]
async fn metrics_contain_the_route_of_a_request_but_not_its_path() {
    let world = World::start().await;
    world.send("GET", "/v1/schedules/of-a-tenant", "").await;
    let metrics = world.send("GET", "/metrics", "").await;
    let wanted = r#"reveille_http_request_duration_seconds_count{route="GET /v1/schedules/{id}",status="404"} 1"#;
    assert!(metrics.body.contains(wanted), "{}", metrics.body);
    assert!(metrics.body.contains("reveille_start_lateness_seconds"), "the scheduler's families come first");
    assert!(!metrics.body.contains("of-a-tenant"));
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(!metrics.body.contains("# EOF"), "{}", metrics.body);
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3\r\n";
    let open = world.connect().await.request("GET", "/metrics", accept, b"").await;
    assert!(open.header("content-type").is_some_and(|media| media.starts_with("application/openmetrics-text")));
    assert_eq!(open.body.matches("# EOF").count(), 1);
    world.stop().await;
}
