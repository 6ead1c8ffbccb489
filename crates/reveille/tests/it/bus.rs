//! Tests of the commands `reveille bus` with a real Kafka broker.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::server::{BINARY, Lines};
use crate::until;

/// Returns the URL of the broker that all tests of this process share.
pub(crate) fn kafka() -> String {
    format!("kafka://{}", test_servers::kafka::shared().addresses())
}

/// Returns the command `reveille bus` with the bus at `url`.
pub(crate) fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("bus").args(arguments).env("REVEILLE_BUS", url).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(&kafka(), arguments).output().unwrap()
}

fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = command(&kafka(), arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
pub(crate) fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn done(arguments: &[&str]) -> String {
    stdout_of(run(arguments))
}

#[track_caller]
fn json_of(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(&[arguments, &["--json"]].concat())).unwrap()
}

/// Returns the standard error of a command that fails.
#[track_caller]
fn error_of(output: &Output, code: i32) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    error
}

#[track_caller]
fn failed(arguments: &[&str]) -> String {
    error_of(&run(arguments), 1)
}

#[track_caller]
fn produce(topic: &str, more: &[&str], input: &str) -> Vec<String> {
    let output = run_with_input(&[&["produce", topic], more].concat(), input.as_bytes());
    stdout_of(output).lines().map(str::to_owned).collect()
}

/// Returns the records of a topic as JSON, ordered by partition and offset.
#[track_caller]
fn records(topic: &str) -> Vec<Value> {
    let text = done(&["consume", topic, "--until-end", "--json"]);
    let mut records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.sort_by_key(|record| (record["partition"].as_u64(), record["offset"].as_u64()));
    records
}

/// Returns the keys and values of the records of a topic.
#[track_caller]
fn contents(topic: &str) -> Vec<(Value, Value)> {
    records(topic).into_iter().map(|record| (record["key"].clone(), record["value"].clone())).collect()
}

/// Member of a group that prints the records of a topic.
struct Member {
    child: Child,
    lines: Lines,
}

impl Member {
    fn start(topic: &str, group: &str, more: &[&str]) -> Self {
        let arguments = [&["consume", topic, "--group", group], more].concat();
        let mut child = command(&kafka(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Lines::follow(child.stdout.take().unwrap());
        Member { child, lines }
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        assert!(self.lines.wait(|line| line.contains(text).then_some(())).is_some(), "{}", self.lines.text());
    }

    /// Interrupts the member, which must end with success.
    #[track_caller]
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn bus_topics_are_created_listed_and_grown() {
    let created = json_of(&["topics", "create", "cli-topics", "--partitions", "2", "--replicas", "1", "--compacted"]);
    let partition = |index: u64, end: u64| json!({ "partition": index, "first": 0, "end": end });
    let empty = json!({ "topic": "cli-topics", "replicas": 1, "partitions": [partition(0, 0), partition(1, 0)] });
    assert_eq!(created, empty);
    assert!(failed(&["topics", "create", "cli-topics", "--partitions", "2"]).contains("`reveille bus topics grow`"));
    let topics = json_of(&["topics", "list"])["topics"].as_array().unwrap().clone();
    assert!(topics.contains(&json!("cli-topics")) && !topics.contains(&json!("__consumer_offsets")), "{topics:?}");
    assert!(done(&["topics", "list"]).lines().any(|line| line == "cli-topics"));
    produce("cli-topics", &["--key", "ann", "--partition", "1"], "a\nb\n");
    let shown = done(&["topics", "show", "cli-topics"]);
    assert!(shown.contains("PARTITION  FIRST  END\n0          0      0\n1          0      2\n"), "{shown}");

    let grow = ["topics", "grow", "cli-topics", "--partitions", "3"];
    let error = failed(&grow);
    assert!(error.contains("keep their order only within one number of partitions"), "{error}");
    // Each check describes all groups of the broker, which other tests share. A failure requires only one check.
    let drain = |timeout: &'static str, group: Option<&'static str>| -> Vec<&str> {
        let drain = ["--quiet", "300ms", "--timeout", timeout, "--drain"];
        grow.into_iter().chain(drain).chain(group).collect()
    };
    let error = failed(&drain("2s", Some("cli-topics-group")));
    assert!(error.contains("the group cli-topics-group has a lag of 2"), "{error}");
    // The group commits one record.
    done(&["consume", "cli-topics", "--group", "cli-topics-group", "--count", "1"]);
    assert!(failed(&drain("2s", None)).contains("the group cli-topics-group has a lag of 1"));
    assert_eq!(json_of(&["topics", "show", "cli-topics"])["partitions"].as_array().unwrap().len(), 2);
    done(&["consume", "cli-topics", "--group", "cli-topics-group", "--count", "1"]);
    let grown = json_of(&drain("60s", None));
    assert_eq!(grown["arrivals"], 0);
    assert_eq!(grown["partitions"], json!([partition(0, 0), partition(1, 2), partition(2, 0)]));
    assert!(failed(&[&grow[..], &["--unkeyed"]].concat()).contains("already has 3 partitions"));
}

#[test]
fn bus_records_are_produced_and_consumed() {
    done(&["topics", "create", "cli-records", "--partitions", "3"]);
    let sent = produce("cli-records", &["--key-separator", ":", "--header", "color=red"], "ann:1\nbob:2\nann:3\n");
    assert!(sent.iter().all(|position| position.starts_with("cli-records/")), "{sent:?}");
    assert_eq!(sent[0].rsplit_once('/').unwrap().0, sent[2].rsplit_once('/').unwrap().0);
    let sent = json_of(&["produce", "cli-records", "--key", "ann", "--value", "4 → 5"]);
    let output = run_with_input(&["produce", "cli-records", "--partition", "0"], b"\xff\n\n");
    assert_eq!(stdout_of(output).lines().count(), 2);

    let all = records("cli-records");
    let of_ann: Vec<&Value> = all.iter().filter(|record| record["key"] == "ann").collect();
    assert_eq!(of_ann.iter().map(|record| &record["value"]).collect::<Vec<_>>(), ["1", "3", "4 → 5"]);
    assert_eq!(of_ann[0]["headers"], json!([{ "name": "color", "value": "red" }]));
    assert_eq!((&of_ann[2]["partition"], &of_ann[2]["offset"]), (&sent["partition"], &sent["offset"]));
    assert!(all.iter().any(|record| record["value_base64"] == "/w==" && record["key"].is_null()), "{all:?}");
    assert!(all.iter().any(|record| record["value"] == ""), "{all:?}");
    let lines = done(&["consume", "cli-records", "--from-start", "--until-end"]);
    assert!(
        lines.lines().any(|line| line.starts_with("cli-records/") && line.ends_with("  ann  1  color=red")),
        "{lines}"
    );
    assert_eq!(done(&["consume", "cli-records", "--count", "2"]).lines().count(), 2);

    let output = run_with_input(&["produce", "cli-records", "--key-separator", ":"], b"ann:6\nann\nann:7\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    assert!(
        error_of(&output, 1).contains("line 2 was not sent, and the command sends no further lines: the line does")
    );
    let output = run_with_input(&["produce", "cli-records", "--partition", "9"], b"a\n");
    let error = error_of(&output, 1);
    assert!(error.contains("has 3 partitions, so it has no partition 9"), "{error}");
}

#[test]
fn bus_group_commits_the_records_that_it_prints() {
    done(&["topics", "create", "cli-groups", "--partitions", "2"]);
    produce("cli-groups", &["--key", "ann"], "1\n2\n3\n");
    assert_eq!(done(&["consume", "cli-groups", "--group", "cli-late", "--latest", "--until-end"]), "");
    let consume = ["consume", "cli-groups", "--group", "cli-groups-group"];
    assert_eq!(done(&[&consume[..], &["--count", "1"]].concat()).lines().count(), 1);
    let described = json_of(&["groups", "show", "cli-groups-group"]);
    assert_eq!((&described["lag"], &described["members"]), (&json!(2), &json!([])));
    assert_eq!(done(&[&consume[..], &["--until-end"]].concat()).lines().count(), 2);

    let member = Member::start("cli-groups", "cli-groups-group", &["--json"]);
    until("the member has both partitions", || {
        let members = json_of(&["groups", "show", "cli-groups-group"])["members"].clone();
        members[0]["partitions"].as_array().is_some_and(|partitions| partitions.len() == 2)
    });
    produce("cli-groups", &["--key", "ann"], "4\n");
    member.wait_for(r#""value":"4""#);
    until("the member has committed the record", || json_of(&["groups", "show", "cli-groups-group"])["lag"] == 0);
    let shown = done(&["groups", "show", "cli-groups-group"]);
    assert!(shown.contains("reveille-bus-consume") && shown.contains("cli-groups-0 cli-groups-1"), "{shown}");
    member.interrupt();
    let described = json_of(&["groups", "show", "cli-groups-group"]);
    assert_eq!((&described["lag"], &described["members"]), (&json!(0), &json!([])));
    let groups = json_of(&["groups", "list"])["groups"].as_array().unwrap().clone();
    assert!(groups.contains(&json!("cli-groups-group")) && groups.contains(&json!("cli-late")), "{groups:?}");
    assert!(done(&["groups", "list"]).lines().any(|line| line == "cli-late"));
    assert!(failed(&["groups", "show", "cli-unknown"]).contains("`reveille bus groups list`"));

    // The reader of the output ends after the first line, so the rest is not committed.
    let lines: String = (0..100).map(|number| format!("{number}\n")).collect();
    produce("cli-groups", &["--partition", "0"], &lines);
    let mut command = command(&kafka(), &["consume", "cli-groups", "--group", "cli-pipe"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert!(json_of(&["groups", "show", "cli-pipe"])["lag"].as_u64().unwrap() > 100);
}

/// Kafka stores the mark of a transaction at an offset without a record.
#[test]
fn bus_consume_ends_after_the_mark_of_a_transaction() {
    done(&["topics", "create", "cli-transaction", "--partitions", "1"]);
    test_servers::kafka::shared().send_transaction("cli-transaction", 3).unwrap();
    let consume = ["consume", "cli-transaction", "--group", "cli-transaction-group", "--until-end"];
    let output = run(&consume);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    let error = error_of(&output, 1);
    assert!(error.contains("the offsets from 3 to the end 4 of the partition 0 may have no records"), "{error}");
    assert!(error.contains("--accept-gaps"), "{error}");
    let output = run(&[&consume[..], &["--accept-gaps"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stdout_of(output), "");
    assert!(error.contains("the offsets from 3 to the end 4"), "{error}");
    assert_eq!(json_of(&["groups", "show", "cli-transaction-group"])["lag"], 1);
    let drain = ["--quiet", "300ms", "--timeout", "60s", "--drain", "cli-transaction-group"];
    let grown = json_of(&[&["topics", "grow", "cli-transaction", "--partitions", "2"], &drain[..]].concat());
    assert_eq!(grown["partitions"].as_array().unwrap().len(), 2);
}

#[test]
fn bus_retries_are_listed_skipped_and_redriven() {
    let control = ["--control", "cli-control"];
    done(&["topics", "create", "cli-control", "--partitions", "1", "--compacted"]);
    for topic in ["cli-shop", "cli-shop-dead"] {
        done(&["topics", "create", topic, "--partitions", "2"]);
    }
    // A member of a group writes this entry.
    let entry = r#"{"version":1,"key":"YW5u","calls":4,"reason":"no route","blocked_since_ms":1600000000000,"failed_at_ms":1700000000000,"next_call_at_ms":4100000000000}"#;
    done(&["produce", "cli-control", "--key", "blocked/cli-shop/0/17", "--value", entry]);
    let list = || json_of(&[&["retries", "list"], &control[..]].concat());
    let blocked = json!({
        "record": { "topic": "cli-shop", "partition": 0, "offset": 17 },
        "key": "ann",
        "calls": 4,
        "reason": "no route",
        "blocked_since": "2020-09-13T12:26:40.000Z",
        "failed_at": "2023-11-14T22:13:20.000Z",
        "next_call_at": "2099-12-03T16:53:20.000Z",
    });
    assert_eq!(list(), json!({ "blocked": [blocked], "skipped_topics": [] }));
    let skip = |words: &[&str]| done(&[&["retries"], words, &control[..]].concat());
    assert!(skip(&["skip", "cli-shop/0/17"]).contains("the group skips the record cli-shop/0/17\n"));
    assert!(skip(&["skip", "cli-shop/0/18"]).contains("no record at this position blocks its key now"));
    skip(&["skip-all", "cli-shop"]);
    assert_eq!(list()["skipped_topics"], json!(["cli-shop"]));
    let shown = skip(&["list"]);
    assert!(
        shown.contains("2099-12-03T16:53:20.000Z  no route") && shown.contains("skipped topics: cli-shop"),
        "{shown}"
    );
    skip(&["resume", "cli-shop"]);
    assert_eq!(list()["skipped_topics"], json!([]));
    let keys: Vec<Value> = contents("cli-control").into_iter().map(|(key, _)| key).collect();
    let expected = ["skip/cli-shop/0/17", "skip/cli-shop/0/18", "skip-all/cli-shop", "skip-all/cli-shop"];
    assert_eq!(keys[1..], expected);
    let malformed = run(&[&["retries", "skip", "cli-shop/0"], &control[..]].concat());
    assert!(error_of(&malformed, 2).contains("TOPIC/PARTITION/OFFSET"));
    for (words, expected) in [
        (["skip", "cli-shop/2/0"], "so it has no record cli-shop/2/0"),
        (["skip", "cli-missing/0/0"], "unknown topic cli-missing"),
        (["skip-all", "cli-missing"], "unknown topic cli-missing"),
    ] {
        let error = failed(&[&["retries"], &words[..], &control[..]].concat());
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(contents("cli-control").len(), 5);

    let letters = |more: &[&str], lines: &str| {
        let headers = ["--header", "reveille-retry-calls=3", "--header", "color=red", "--key-separator", ":"];
        produce("cli-shop-dead", &[&headers[..], more].concat(), lines)
    };
    let origin = ["--header", "reveille-retry-origin=cli-shop/0/1"];
    letters(&origin, "ann:1\nbob:1\nann:2\n");
    let redrive = |more: &[&str]| {
        let target: &[&str] = if more.contains(&"--to") { &[] } else { &["--from", "cli-shop"] };
        run(&[&["retries", "redrive", "cli-shop-dead", "--json"], target, more].concat())
    };
    let counts = |output: Output| serde_json::from_str::<Value>(&stdout_of(output)).unwrap();
    let redriven = |redriven: u64, earlier: u64| json!({ "redriven": redriven, "redriven_earlier": earlier, "skipped": 0, "without_value": 0 });
    assert_eq!(counts(redrive(&["--key", "ann"])), redriven(2, 0));
    assert_eq!(counts(redrive(&[])), redriven(1, 2));
    assert_eq!(counts(redrive(&[])), redriven(0, 0));
    let all = records("cli-shop");
    let of_ann: Vec<&Value> =
        all.iter().filter(|record| record["key"] == "ann").map(|record| &record["value"]).collect();
    assert_eq!((of_ann, all.len()), (vec![&json!("1"), &json!("2")], 3));
    for record in &all {
        let headers = record["headers"].as_array().unwrap();
        assert_eq!((headers.len(), &headers[0]), (2, &json!({ "name": "color", "value": "red" })), "{record}");
        assert_eq!(headers[1]["name"], "reveille-retry-time");
    }
    // The topic is not a control topic, so the command does not write to it.
    let error = failed(&["retries", "skip-all", "cli-shop", "--control", "cli-shop"]);
    assert!(
        error.contains("the topic cli-shop contains records") && error.contains("name the control topic"),
        "{error}"
    );
    assert_eq!(records("cli-shop").len(), 3);
    letters(&[&origin[..], &["--header", "reveille-retry-value-omitted=true"]].concat(), "ann:\n");
    letters(&[], "ann:4\n");
    let error = error_of(&redrive(&[]), 1);
    assert!(error.contains("has no value, because a copy of cli-shop/0/1 was too large"), "{error}");
    assert!(error.contains("name the topic") && error.contains("--to TOPIC"), "{error}");
    assert_eq!(counts(redrive(&["--to", "cli-shop"])), redriven(1, 0));
    assert_eq!(records("cli-shop").len(), 4);
}

#[test]
fn bus_errors_name_the_next_step() {
    for arguments in [
        &["topics", "show", "cli-missing"][..],
        &["topics", "grow", "cli-missing", "--partitions", "2", "--unkeyed"],
        &["produce", "cli-missing"],
        &["consume", "cli-missing"],
        &["consume", "cli-missing", "--group", "cli-missing-group"],
        &["retries", "list", "--control", "cli-missing"],
        &["retries", "redrive", "cli-missing", "--from", "cli-other"],
    ] {
        let error = failed(arguments);
        assert!(error.contains("unknown topic cli-missing: `reveille bus topics list`"), "{arguments:?}: {error}");
    }
    // No process listens on this port.
    let mut away = command("kafka://127.0.0.1:1", &["topics", "list"]);
    let error = error_of(&away.output().unwrap(), 1);
    assert!(error.contains("check --bus or REVEILLE_BUS, and that the brokers are running"), "{error}");
    let error = error_of(&command("redis://secret@host", &["topics", "list"]).output().unwrap(), 1);
    assert!(error.contains("does not start with kafka://") && !error.contains("secret"), "{error}");
    for invalid in [
        &["consume", "cli-records", "--latest"][..],
        &["consume", "cli-records", "--group", ""],
        &["consume", "cli-records", "--accept-gaps"],
        &["retries", "redrive", "cli-records"],
        &["retries", "redrive", "cli-records", "--from", "a", "--to", "b"],
        &["retries", "redrive", "cli-records", "--from", "a", "--skip", "cli-records/0"],
        &["produce", "cli-records", "--key", "a", "--key-separator", ":"],
        &["produce", "cli records"],
        &["topics", "create", "cli-records", "--partitions", "0"],
    ] {
        let error = error_of(&command("kafka://127.0.0.1:1", invalid).output().unwrap(), 2);
        assert!(error.contains("error:"), "{invalid:?}: {error}");
    }
}

#[test]
fn bus_produce_ends_at_a_failure_while_its_input_is_open() {
    done(&["topics", "create", "cli-open", "--partitions", "1"]);
    let mut command = command(&kafka(), &["produce", "cli-open", "--key-separator", ":"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"no separator\n").unwrap();
    let mut status = None;
    until("the command ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(1));
    drop(input);
}
