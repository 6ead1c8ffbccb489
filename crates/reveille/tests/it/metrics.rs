//! Tests that the exported metrics agree with their table in the documents, and with the dashboard and the alerts that
//! use the metrics.
//!
//! docs/decisions/0083-test-that-alert-rules-match-the-metrics.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::client::one_shot;
use crate::cluster::TestCluster;
use crate::now_millis;
use crate::receiver::Receiver;
use crate::server::Server;

const OPERATING: &str = include_str!("../../../../docs/operating.md");
const BOARD: &str = include_str!("../../../../deploy/grafana/reveille.json");
const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yaml");

/// Kinds of servers that export a metric: a single process, a member of a cluster, or both kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Where {
    alone: bool,
    member: bool,
}

/// Names of metrics, each with the kinds of servers that export the metric. A histogram has one entry, under its name
/// without a suffix.
type Metrics = BTreeMap<String, Where>;

/// Returns the metrics in the table of docs/operating.md.
fn documented() -> Metrics {
    let rows = OPERATING.lines().filter_map(|line| line.strip_prefix("| `reveille_"));
    let metric = |row: &str| {
        let mut cells = row.split(" | ");
        let name = cells.next().expect("a row has a first cell").trim_end_matches('`');
        let place = match cells.nth(1).expect("the third cell names the kinds of servers") {
            "both" => Where { alone: true, member: true },
            "single process" => Where { alone: true, member: false },
            "member" => Where { alone: false, member: true },
            other => panic!("unknown kind of server for {name}: {other:?}"),
        };
        (format!("reveille_{name}"), place)
    };
    rows.map(metric).collect()
}

/// Returns the metric families in a response of `/metrics`.
fn families(text: &str) -> BTreeSet<String> {
    let family = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some(match kind {
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
    };
    text.lines().filter_map(family).collect()
}

/// Returns the metrics of a single process after a request, a successful run, a retry and a failed run.
fn of_one_process() -> (BTreeSet<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let server = Server::start(&folder.path().join("data"));
    let mut client = server.client();
    let fired = one_shot("fired", now_millis() + 50, &receiver.url(), &json!("x"));
    let mut dead = one_shot("dead", now_millis() + 50, "http://127.0.0.1:1/", &json!("x"));
    dead["retry"] = json!({ "attempts_max": 2, "backoff": "1ms" });
    for schedule in [fired, dead] {
        assert_eq!(client.create(&schedule).status, 201);
    }
    receiver.wait(|hits| hits.len() == 1);
    let deadline = now_millis() + 30_000;
    loop {
        let text = client.get("/metrics").body;
        let is_there = |sample: &str| text.lines().any(|line| line == sample);
        if is_there(r#"reveille_occurrences_total{outcome="failed"} 1"#)
            && is_there(r#"reveille_occurrences_total{outcome="succeeded"} 1"#)
        {
            return (families(&text), text);
        }
        assert!(now_millis() < deadline, "{text}");
        std::thread::yield_now();
    }
}

/// Returns the metrics of two members of a cluster.
fn of_members() -> BTreeSet<String> {
    let cluster = TestCluster::new();
    let members = [cluster.start("a"), cluster.start("b")];
    cluster.wait_until_balanced(&["a", "b"]);
    let texts = members.iter().map(|member| {
        let mut client = member.client();
        client.get("/healthz");
        families(&client.get("/metrics").body)
    });
    texts.flatten().collect()
}

#[test]
fn operating_document_lists_exactly_the_exported_metrics() {
    let (alone, text) = of_one_process();
    let members = of_members();
    let mut exported: Metrics = BTreeMap::new();
    for name in alone {
        exported.entry(name).or_default().alone = true;
    }
    for name in members {
        exported.entry(name).or_default().member = true;
    }
    assert_eq!(exported, documented());
    for sample in [
        r#"reveille_callback_attempts_total{protocol="http",result="success"} 1"#,
        r#"reveille_callback_attempts_total{protocol="http",result="unreachable"} 2"#,
        "reveille_retries_total 1",
        r#"reveille_dead_letters_total{reason="unreachable"} 1"#,
        r#"reveille_dead_letters_total{reason="status_4xx"} 0"#,
        r#"reveille_missed_total{reason="overdue"} 0"#,
        "reveille_start_lateness_seconds_count 2",
        "reveille_shards_owned 256",
        "reveille_callback_connections_opened_total 1",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample} is not in\n{text}");
    }
    assert!(!text.contains("reveille_log_commit_duration_seconds_count 0\n"), "commits are not measured");
    assert!(!text.contains("127.0.0.1") && !text.contains("default"), "the metrics contain data of a tenant");
}

/// Returns the names of the metrics in a Prometheus expression, without the suffixes `_bucket`, `_count` and `_sum`.
fn named(expression: &str) -> Vec<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metric = |word: &str| {
        let word = ["_bucket", "_count", "_sum"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word);
        word.to_owned()
    };
    words.filter(|word| word.starts_with("reveille_")).map(metric).collect()
}

/// Adds the text values of all fields `key` to `found`, at any depth of `value`.
fn values_of<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| values_of(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| values_of(value, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn dashboard_and_alerts_use_only_documented_metrics() {
    let known = documented();
    let is_known = |expression: &str| {
        let named = named(expression);
        assert!(!named.is_empty() || expression.starts_with("up{"), "{expression:?} names no metric");
        for name in named {
            assert!(known.contains_key(&name), "unknown metric {name} in {expression:?}");
        }
    };

    let board: Value = serde_json::from_str(BOARD).expect("the dashboard is JSON");
    let mut expressions = Vec::new();
    values_of(&board["panels"], "expr", &mut expressions);
    assert!(expressions.len() > 20, "{}", expressions.len());
    expressions.into_iter().for_each(is_known);
    let variable =
        board["templating"]["list"][1]["query"]["query"].as_str().expect("the dashboard has a variable for members");
    is_known(variable);

    let alerts: Value = serde_saphyr::from_str(ALERTS).expect("the rules are YAML");
    let rules = alerts["groups"][0]["rules"].as_array().expect("the first group has rules");
    let mut names = BTreeSet::new();
    for rule in rules {
        let text = |value: &Value| {
            value.as_str().unwrap_or_else(|| panic!("a text is missing in the rule {rule:?}")).to_owned()
        };
        assert!(names.insert(text(&rule["alert"])), "duplicate rule {rule:?}");
        is_known(&text(&rule["expr"]));
        assert!(["critical", "warning"].contains(&text(&rule["labels"]["severity"]).as_str()));
        for annotation in ["summary", "next"] {
            assert!(!text(&rule["annotations"][annotation]).is_empty());
        }
    }
    assert!(names.len() >= 10, "{names:?}");
}
