//! The trials of `reveille bench` that hold what they find to a bound, with little of everything.

use std::process::Command;

use crate::server::BINARY;

/// What a trial of a server says that finds nothing wrong.
fn passes(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    says(&[arguments, &["--data", data]].concat())
}

fn says(arguments: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(arguments).env("NO_COLOR", "1").env_remove("RUST_LOG");
    let output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn carts_that_are_made_moved_and_called_off_fire_once_or_not_at_all() {
    let said = passes(&["soak", "--minutes", "6", "--minute-seconds", "2", "--rate", "100"]);
    assert!(said.contains("0 lost, 0 doubled, 0 early, 0 not wanted"), "{said}");
}

#[test]
fn a_quota_changed_while_much_is_pending_misses_and_doubles_nothing() {
    let said = passes(&["quota-change", "--pending", "3000"]);
    assert!(said.contains("no quota, when"), "{said}");
}

#[test]
fn leaders_resign_and_die_beside_curators_and_those_who_watch_ask_no_more_when_they_are_more() {
    let url = format!("zookeeper://{}", test_servers::zookeeper::shared().addresses());
    let sizes = ["--rounds", "1", "--warm-up", "0", "--session-millis", "2000"];
    let requests = ["--replicas", "2,6", "--rest", "1", "--period-millis", "100", "--counted", "1"];
    let peer = test_servers::mixed::curator_command().unwrap();
    let peer: Vec<&str> = ["--"].into_iter().chain(peer.iter().map(String::as_str)).collect();
    let said = says(&[&["election", "--coordination", &url], &sizes[..], &requests, &peer].concat());
    for row in ["graceful: ours", "graceful: the peer", "crash, 2000 ms and: ours", "crash, 2000 ms and: the peer"] {
        let row = said.lines().find_map(|line| line.strip_prefix(row)).unwrap_or_else(|| panic!("{row}: {said}"));
        assert_eq!(row.split_whitespace().next(), Some("1"), "both count: {said}");
    }
    for (replicas, form) in [("2", "polling"), ("2", "watching"), ("6", "polling"), ("6", "watching")] {
        let is_told = |line: &str| line.split_whitespace().take(2).eq([replicas, form]);
        assert!(said.lines().any(is_told), "{replicas} {form}: {said}");
    }
}
