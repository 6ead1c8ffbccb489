use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, Response, World};

/// Earliest instant of the runs in these tests. The instant is in the past.
const RANGE: &str = "from=2020-01-01T00:00:00Z";

/// Creates a schedule that is due now and whose target responds with `status`. The schedule has the label
/// `team=STATUS`.
async fn create(world: &World, id: &str, host: &str, status: u16) {
    let body = json!({
        "id": id,
        "at": world.runtime.now().to_string(),
        "target": {"http": {"url": format!("http://{host}/{status}")}},
        "labels": {"team": status.to_string()},
        "retry": {"attempts_max": 1},
    });
    let created = world.send("POST", "/v1/schedules", &body.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

async fn list(world: &World, query: &str) -> Response {
    world.send("GET", &format!("/v1/runs?{query}"), "").await
}

fn ids(page: &Response) -> Vec<String> {
    let runs = page.json()["runs"].as_array().cloned().unwrap_or_else(|| panic!("{}", page.body));
    runs.iter().map(|run| run["schedule_id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the ids of the schedules of all runs that match, from all pages.
async fn all(world: &World, query: &str) -> Vec<String> {
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(world, &format!("{query}{token}")).await;
        found.extend(ids(&page));
        match &page.json()["next_page_token"] {
            Value::String(next) => token = format!("&page_token={next}"),
            _ => return found,
        }
    }
}

/// Starts a server and creates five schedules, each of which has a run. Waits for the runs.
async fn world_with_runs() -> World {
    let world = World::start().await;
    for (id, host, status) in [
        ("a", "127.0.0.1:9", 204),
        ("b", "127.0.0.2:9", 503),
        ("c", "127.0.0.1:9", 503),
        ("d", "127.0.0.1:9", 404),
        ("e", "127.0.0.2:9", 204),
    ] {
        create(&world, id, host, status).await;
    }
    let wait = async { while all(&world, RANGE).await.len() < 5 {} };
    world.runtime.timeout(std::time::Duration::from_secs(20), wait).await.expect("each schedule has a run");
    world
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn runs_are_listed_with_each_filter() {
    let world = world_with_runs().await;
    for (query, expected) in [
        ("", &["a", "b", "c", "d", "e"][..]),
        ("&state=failed", &["b", "c", "d"]),
        ("&state=succeeded", &["a", "e"]),
        ("&state=retrying", &[]),
        ("&status=503", &["b", "c"]),
        ("&status=204", &["a", "e"]),
        ("&status=500", &[]),
        ("&host=127.0.0.2", &["b", "e"]),
        ("&host=shop.example", &[]),
        ("&label=team%3D404", &["d"]),
        ("&label=team=", &[]),
        ("&schedule=c", &["c"]),
        ("&state=failed&host=127.0.0.1&label=team%3D503&schedule=c&status=503", &["c"]),
        ("&late_by=0s", &["a", "b", "c", "d", "e"]),
        ("&late_by=1h", &[]),
        ("&until=2020-01-01T00:00:00Z", &[]),
        ("&until=2999-01-01T00:00:00%2B01:00", &["a", "b", "c", "d", "e"]),
    ] {
        for order in ["", "&order=oldest&limit=1", "&order=newest&limit=2"] {
            let found = all(&world, &format!("{RANGE}{query}{order}")).await;
            assert_eq!(found.len(), expected.len(), "{query}{order}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), set(expected), "{query}{order}");
        }
    }
    let oldest = all(&world, &format!("{RANGE}&order=oldest&limit=2")).await;
    let mut newest = all(&world, RANGE).await;
    newest.reverse();
    assert_eq!(newest, oldest);
    assert_eq!(all(&world, "schedule=b").await, ["b"], "a listing of one schedule needs no range");
    assert_eq!(all(&world, "from=2999-01-01T00:00:00Z").await, [""; 0]);
    world.stop().await;
}

#[tokio::test]
async fn attempt_has_a_duration_and_an_error_class() {
    let world = world_with_runs().await;
    let classes = |page: Response| {
        let json = page.json();
        let attempt = json.pointer("/runs/0/attempts/0").unwrap();
        assert!(attempt["duration_ms"].is_u64(), "{attempt}");
        attempt["error_class"].as_str().map(str::to_owned)
    };
    assert_eq!(classes(list(&world, "schedule=b").await).as_deref(), Some("status_5xx"));
    assert_eq!(classes(list(&world, "schedule=d").await).as_deref(), Some("status_4xx"));
    assert_eq!(classes(list(&world, "schedule=a").await), None);
    world.stop().await;
}

#[tokio::test]
async fn runs_of_another_tenant_are_not_listed() {
    let world = world_with_runs().await;
    let token = list(&world, &format!("{RANGE}&limit=1")).await.text("/next_page_token");
    for query in [format!("{RANGE}&limit=1"), format!("{RANGE}&limit=1&page_token={token}")] {
        let theirs = world.send_as(FOREIGN_KEY, "GET", &format!("/v1/runs?{query}"), "").await;
        assert_eq!(ids(&theirs), [""; 0]);
    }
    let theirs = world.send_as(FOREIGN_KEY, "GET", "/v1/runs?schedule=a", "").await;
    assert_eq!((theirs.status, theirs.text("/code")), (404, "schedule_not_found".to_owned()));
    world.stop().await;
}

#[tokio::test]
async fn invalid_query_of_runs_is_rejected() {
    let world = world_with_runs().await;
    let token = list(&world, &format!("{RANGE}&limit=1")).await.text("/next_page_token");
    let long = "a".repeat(254);
    for (query, parameter, code) in [
        ("", "from", "missing_parameter"),
        ("state=failed", "from", "missing_parameter"),
        ("until=2030-01-01T00:00:00Z", "from", "missing_parameter"),
        ("from=yesterday", "from", "invalid_time"),
        ("from=2030-01-01T00:00:00", "from", "invalid_time"),
        ("from=1969-01-01T00:00:00Z", "from", "invalid_time"),
        ("from=2030-01-02T00:00:00Z&until=2030-01-01T00:00:00Z", "until", "out_of_range"),
        ("FROM&state=dead", "state", "out_of_range"),
        ("FROM&state=", "state", "out_of_range"),
        ("FROM&schedule=a.b", "schedule", "invalid_id"),
        ("FROM&label=team", "label", "invalid_label"),
        ("FROM&label==red", "label", "invalid_label"),
        ("FROM&host=", "host", "invalid_host"),
        ("FROM&host=http://shop.example", "host", "invalid_host"),
        ("FROM&host=shop.example:443", "host", "invalid_host"),
        ("FROM&host=[::1", "host", "invalid_host"),
        ("FROM&host=::1]", "host", "invalid_host"),
        ("FROM&host=[[::1]]", "host", "invalid_host"),
        (&format!("FROM&host={long}"), "host", "invalid_host"),
        ("FROM&status=99", "status", "out_of_range"),
        ("FROM&status=1000", "status", "out_of_range"),
        ("FROM&status=5xx", "status", "out_of_range"),
        ("FROM&late_by=soon", "late_by", "invalid_duration"),
        ("FROM&late_by=-5s", "late_by", "invalid_duration"),
        ("FROM&order=id", "order", "out_of_range"),
        ("FROM&limit=0", "limit", "out_of_range"),
        ("FROM&limit=1001", "limit", "out_of_range"),
        ("FROM&limit=1&limit=2", "limit", "conflicting_parameters"),
        ("FROM&host=%FF", "host", "wrong_type"),
        ("FROM&colour=red", "colour", "unknown_parameter"),
        ("FROM&page_token=x", "page_token", "invalid_token"),
        ("page_token=x", "page_token", "invalid_token"),
        (&format!("state=failed&page_token={token}"), "page_token", "invalid_token"),
        (&format!("FROM&state=failed&page_token={token}"), "page_token", "invalid_token"),
        (&format!("FROM&order=oldest&page_token={token}"), "page_token", "invalid_token"),
        (&format!("FROM&until=2999-01-01T00:00:00Z&page_token={token}"), "page_token", "invalid_token"),
        ("FROM&dead_letter=true", "from", "unknown_parameter"),
        ("dead_letter=false", "dead_letter", "missing_parameter"),
    ] {
        let response = list(&world, &query.replace("FROM", RANGE)).await;
        assert_eq!((response.status, response.text("/code").as_str()), (400, "invalid_parameter"), "{query}");
        let errors = response.json()["errors"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> = errors.iter().map(|error| (error["parameter"].clone(), error["code"].clone())).collect();
        assert_eq!(found, [(json!(parameter), json!(code))], "{query}");
    }
    let missing = list(&world, "schedule=missing").await;
    assert_eq!((missing.status, missing.text("/code").as_str()), (404, "schedule_not_found"));
    for range in [RANGE, "limit=1000"] {
        let rest = list(&world, &format!("{range}&page_token={token}")).await;
        assert_eq!(ids(&rest).len(), 4, "a request with a token need not contain the range");
    }
    world.stop().await;
}
