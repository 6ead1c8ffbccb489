//! Tests that run the commands of `reveille bench` for a short time and check their results.

use std::process::Command;

use crate::server::BINARY;

/// Runs a benchmark that starts a server and must succeed. Returns its output.
fn run_with_server(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    run(&[arguments, &["--data", data]].concat())
}

fn run(arguments: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(arguments).env("NO_COLOR", "1").env_remove("RUST_LOG");
    let output = command.output().expect("the binary starts");
    let message = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{message}");
    message
}

#[test]
fn soak_bench_finds_no_lost_or_duplicate_callback() {
    let message = run_with_server(&["soak", "--minutes", "6", "--minute-seconds", "2", "--rate", "100"]);
    assert!(message.contains("0 lost, 0 duplicated, 0 early, 0 unwanted"), "{message}");
}

#[test]
fn quota_change_bench_finds_no_lost_or_duplicate_callback() {
    let message = run_with_server(&["quota-change", "--pending", "3000"]);
    assert!(message.contains("the trial removed the quota"), "{message}");
}

#[test]
fn runs_bench_lists_loaded_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = ["--data", folder.path().to_str().unwrap()];
    let run_on_data = |arguments: &[&str]| run(&[arguments, &data].concat());
    run_on_data(&["create", "--duration", "1", "--connections", "1"]);
    let message = run_on_data(&["load-runs", "--count", "20000"]);
    assert!(message.contains("loaded 20000 runs"), "{message}");
    let message = run_on_data(&["runs", "--repetitions", "2"]);
    for filter in ["all newest", "state=failed oldest", "host=h7.example newest", "late_by=30s oldest"] {
        assert!(message.contains(filter), "{filter}: {message}");
    }
    assert!(message.contains("the first page has 100 runs, and more pages follow"), "{message}");
}

#[test]
fn election_bench_compares_reveille_to_curator() {
    let url = format!("zookeeper://{}", test_servers::zookeeper::shared().addresses());
    let sizes = ["--rounds", "1", "--warm-up", "0", "--session-millis", "2000"];
    let requests = ["--replicas", "2,6", "--rest", "1", "--period-millis", "100", "--counted", "1"];
    let peer = test_servers::mixed::curator_command().unwrap();
    let peer: Vec<&str> = ["--"].into_iter().chain(peer.iter().map(String::as_str)).collect();
    let message = run(&[&["election", "--coordination", &url], &sizes[..], &requests, &peer].concat());
    for row in
        ["graceful: Reveille", "graceful: peer", "crash, beyond 2000 ms: Reveille", "crash, beyond 2000 ms: peer"]
    {
        let row = message.lines().find_map(|line| line.strip_prefix(row)).unwrap_or_else(|| panic!("{row}: {message}"));
        assert_eq!(row.split_whitespace().next(), Some("1"), "not one measurement: {message}");
    }
    for (replicas, form) in [("2", "polling"), ("2", "watching"), ("6", "polling"), ("6", "watching")] {
        let is_row = |line: &str| line.split_whitespace().take(2).eq([replicas, form]);
        assert!(message.lines().any(is_row), "{replicas} {form}: {message}");
    }
}

#[test]
fn fire_bench_sends_each_callback_to_a_topic_once() {
    let message = run_with_server(&["fire", "--bus", "memory", "--count", "300"]);
    let columns: Vec<&str> = row(&message, "fire to a topic in memory");
    assert_eq!(columns[1..3], ["300", "0"], "{message}");

    let brokers = format!("kafka://{}", test_servers::kafka::shared().addresses());
    let arguments = ["--bus", &brokers, "--partitions", "2", "--count", "300", "--with-limit"];
    let message = run_with_server(&[&["fire"], &arguments[..]].concat());
    assert_eq!(row(&message, "bare librdkafka producer").len(), 14, "{message}");
    // The columns from the number of records on: failed, lost, doubled, early.
    assert_eq!(row(&message, "fire to a topic of Kafka")[6..11], ["300", "0", "0", "0", "0"], "{message}");
}

/// Returns the figures of a row.
fn row<'a>(table: &'a str, trial: &str) -> Vec<&'a str> {
    let figures = table.lines().find_map(|line| line.strip_prefix(trial));
    figures.unwrap_or_else(|| panic!("no row {trial}: {table}")).split_whitespace().collect()
}

#[test]
fn consume_bench_compares_reveille_to_other_consumers() {
    let brokers = test_servers::kafka::shared().addresses();
    let sizes = ["--rounds", "1", "--records", "2000", "--slow-records", "2000", "--sequential-records", "100"];
    let topics = ["--partitions", "2", "--keys", "100", "--concurrency", "50", "--rate", "100", "--duration", "1"];
    let java = test_servers::kafka::bench_command().unwrap();
    let java: Vec<&str> = ["--"].into_iter().chain(java.iter().map(String::as_str)).collect();
    let message = run(&[&["consume", "--brokers", &brokers], &sizes[..], &topics, &java].concat());
    for part in ["empty handler", "handler of 1 ms", "latency"] {
        for name in ["rdkafka", "java", "parallel", "reveille"] {
            let row = format!("{part}: {name} ");
            assert!(message.lines().any(|line| line.starts_with(&row)), "{row}: {message}");
        }
    }
}
