use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{FOREIGN_KEY, Response, World};

/// Number of runs in [`world_with_runs`].
const RUNS: usize = 6;

/// Creates a schedule that is due now and whose target responds with `status`. The schedule has the label `team`.
async fn create(world: &World, host: &str, team: &str, status: u16) {
    let body = json!({
        "at": world.runtime.now().to_string(),
        "target": {"http": {"url": format!("http://{host}/{status}")}},
        "labels": {"team": team},
        "retry": {"attempts_max": 1},
    });
    let created = world.send("POST", "/v1/schedules", &body.to_string()).await;
    assert_eq!(created.status, 201, "{}", created.body);
}

/// Start of a range that contains all runs of these tests, a day before the present time.
fn from(world: &World) -> String {
    format!("from={}", world.runtime.now() - Duration::from_secs(24 * 3_600))
}

async fn report(world: &World, query: &str) -> Response {
    world.send("GET", &format!("/v1/report?{query}"), "").await
}

async fn runs(world: &World) -> Vec<Value> {
    let page = world.send("GET", &format!("/v1/runs?{}&limit=1000", from(world)), "").await;
    page.json()["runs"].as_array().cloned().unwrap_or_else(|| panic!("{}", page.body))
}

async fn world_with_runs() -> World {
    let world = World::start().await;
    for (host, team, status) in [
        ("127.0.0.1:9", "blue", 204),
        ("127.0.0.2:9", "red", 503),
        ("127.0.0.1:9", "red", 503),
        ("127.0.0.1:9", "=1+1", 404),
        ("127.0.0.2:9", "blue", 204),
        ("127.0.0.1:9", "a,\"b\"", 204),
    ] {
        create(&world, host, team, status).await;
    }
    let wait = async { while runs(&world).await.len() < RUNS {} };
    world.runtime.timeout(Duration::from_secs(20), wait).await.expect("each schedule has a run");
    world
}

/// Returns the number of runs of each row.
fn numbers(report: &Response) -> BTreeMap<String, u64> {
    let rows = report.json()["rows"].as_array().cloned().unwrap_or_else(|| panic!("{}", report.body));
    rows.iter().map(|row| (row["value"].as_str().unwrap_or("-").to_owned(), row["runs"].as_u64().unwrap())).collect()
}

fn expected(numbers: &[(&str, u64)]) -> BTreeMap<String, u64> {
    numbers.iter().map(|(name, runs)| ((*name).to_owned(), *runs)).collect()
}

#[tokio::test]
async fn report_agrees_with_the_list_of_runs() {
    let world = world_with_runs().await;
    let from = from(&world);
    let listed = runs(&world).await;
    let mut by_state: BTreeMap<String, u64> = BTreeMap::new();
    let mut by_hour: BTreeMap<String, u64> = BTreeMap::new();
    for run in &listed {
        *by_state.entry(run["state"].as_str().unwrap().to_owned()).or_default() += 1;
        // An instant begins with its date and hour.
        let hour = format!("{}:00:00.000Z", &run["scheduled_at"].as_str().unwrap()[..13]);
        *by_hour.entry(hour).or_default() += 1;
    }
    assert_eq!(by_state, expected(&[("failed", 3), ("succeeded", 3)]));
    assert_eq!(numbers(&report(&world, &from).await), by_state);
    assert_eq!(numbers(&report(&world, &format!("{from}&by=hour")).await), by_hour);
    let hosts = report(&world, &format!("{from}&by=host")).await;
    assert_eq!(numbers(&hosts), expected(&[("127.0.0.1", 4), ("127.0.0.2", 2)]));
    assert_eq!(hosts.text("/rows/0/value"), "127.0.0.1", "the host with the most runs is first");
    let labels = report(&world, &format!("{from}&by=label")).await;
    assert_eq!(numbers(&labels), expected(&[("blue", 2), ("red", 2), ("=1+1", 1), ("a,\"b\"", 1)]));
    assert_eq!(labels.text("/rows/0/name"), "team");
    let failed = report(&world, &format!("{from}&by=label&state=failed")).await;
    assert_eq!(numbers(&failed), expected(&[("red", 2), ("=1+1", 1)]));
    assert_eq!(failed.json()["rows"][0]["states"], json!({"succeeded": 0, "failed": 2, "missed": 0, "cancelled": 0}));

    let mut lateness: Vec<i64> = Vec::new();
    for run in listed.iter().filter(|run| run["state"] == "failed") {
        let instant = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
        lateness.push(instant(&run["attempts"][0]["started_at"]) - instant(&run["scheduled_at"]));
    }
    let row = &report(&world, &format!("{from}&state=failed")).await.json()["rows"][0];
    assert_eq!(row["lateness_ms"]["count"], 3);
    assert_eq!(row["lateness_ms"]["max"].as_i64(), lateness.iter().max().copied());
    world.stop().await;
}

#[tokio::test]
async fn report_as_csv_contains_no_formula() {
    let world = world_with_runs().await;
    let path = format!("/v1/report?{}&by=label", from(&world));
    for accept in ["text/csv", "text/csv, application/json;q=0.1"] {
        let csv = world.send_if("GET", &path, &[("accept", accept)], "").await;
        assert_eq!(csv.status, 200, "{}", csv.body);
        assert!(csv.header("content-type").is_some_and(|media| media.starts_with("text/csv")));
        let lines: Vec<&str> = csv.body.split("\r\n").collect();
        assert_eq!((lines.len(), lines[5]), (6, ""), "{}", csv.body);
        assert!(lines[0].starts_with("group,name,value,runs,"), "{}", csv.body);
        assert!(csv.body.contains("value,\"team\",\"'=1+1\",1,0,1,0,0,1,"), "{}", csv.body);
        assert!(csv.body.contains("value,\"team\",\"a,\"\"b\"\"\",1,1,0,0,0,1,"), "{}", csv.body);
    }
    world.stop().await;
}

#[tokio::test]
async fn report_of_another_tenant_is_empty() {
    let world = world_with_runs().await;
    let path = format!("/v1/report?{}&by=host", from(&world));
    let theirs = world.send_as(FOREIGN_KEY, "GET", &path, "").await;
    assert_eq!((theirs.status, &theirs.json()["rows"]), (200, &json!([])));
    let csv = world.send_if("GET", &format!("{path}&state=missed"), &[("accept", "text/csv")], "").await;
    assert_eq!(csv.body.lines().count(), 1, "a report without rows has only the line of column names");
    world.stop().await;
}

#[tokio::test]
async fn range_of_a_report_consists_of_whole_hours() {
    let world = World::start().await;
    let range = "from=2030-01-01T05:59:59.999Z&to=2030-01-01T07:00:00.001Z";
    let rounded = report(&world, range).await;
    assert_eq!(
        (rounded.text("/from"), rounded.text("/to")),
        ("2030-01-01T05:00:00.000Z".to_owned(), "2030-01-01T08:00:00.000Z".to_owned())
    );
    assert_eq!(rounded.json().get("counted_from"), None, "{}", rounded.body);
    let empty = report(&world, "from=2030-01-01T05:00:00Z&to=2030-01-01T05:00:00Z").await;
    assert_eq!((empty.status, &empty.json()["rows"]), (200, &json!([])));
    // The store deletes the counts together with the runs, after 30 days.
    let old = report(&world, "from=2020-01-01T00:00:00Z&to=2020-02-01T00:00:00Z").await;
    let counted_from: jiff::Timestamp = old.text("/counted_from").parse().unwrap();
    let kept = world.runtime.now() - Duration::from_secs(30 * 86_400);
    assert!(counted_from.as_millisecond() - kept.as_millis() <= 3_600_000, "{}", old.body);
    world.stop().await;
}

#[tokio::test]
async fn invalid_query_of_a_report_is_rejected() {
    let world = World::start().await;
    for (query, parameter, code) in [
        ("", "from", "missing_parameter"),
        ("to=2030-01-01T00:00:00Z", "from", "missing_parameter"),
        ("from=yesterday", "from", "invalid_time"),
        ("from=1969-01-01T00:00:00Z", "from", "invalid_time"),
        ("FROM&to=tomorrow", "to", "invalid_time"),
        ("FROM&to=2029-12-31T00:00:00Z", "to", "out_of_range"),
        ("FROM&to=2030-04-03T01:00:00.001Z", "from", "out_of_range"),
        ("FROM&to=9999-12-30T22:00:00Z", "from", "out_of_range"),
        ("FROM&by=colour", "by", "out_of_range"),
        ("FROM&by=", "by", "out_of_range"),
        ("FROM&state=retrying", "state", "out_of_range"),
        ("FROM&state=dead", "state", "out_of_range"),
        ("FROM&by=host&by=label", "by", "conflicting_parameters"),
        ("FROM&until=2030-01-02T00:00:00Z", "until", "unknown_parameter"),
        ("FROM&label=%FF", "label", "unknown_parameter"),
    ] {
        let query = query.replace("FROM", "from=2030-01-01T00:00:00Z&to=2030-01-02T00:00:00Z");
        // A second `to` replaces the one of the placeholder.
        let query = match query.rmatch_indices("&to=").next() {
            Some((at, _)) if query.matches("&to=").count() == 2 => {
                format!("from=2030-01-01T00:00:00Z{}", &query[at..])
            }
            _ => query,
        };
        let response = report(&world, &query).await;
        assert_eq!((response.status, response.text("/code").as_str()), (400, "invalid_parameter"), "{query}");
        let errors = response.json()["errors"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> = errors.iter().map(|error| (error["parameter"].clone(), error["code"].clone())).collect();
        assert_eq!(found, [(json!(parameter), json!(code))], "{query}");
    }
    // A range of 92 days may begin within an hour.
    for start in ["00:00", "00:30"] {
        let longest = report(&world, &format!("from=2030-01-01T{start}:00Z&to=2030-04-03T{start}:00Z")).await;
        assert_eq!(longest.status, 200, "{}", longest.body);
    }
    world.stop().await;
}
