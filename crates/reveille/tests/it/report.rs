//! Tests of `reveille report` and `reveille run export` with a real server, whose receiver keeps a log of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::cli::{json, run, with_input};
use crate::receiver::Receiver;
use crate::server::Server;
use crate::until;

/// Number of schedules whose callbacks succeed. Two pages of an export contain their runs.
const SUCCEEDING: usize = 1_150;
/// Number of schedules whose target does not respond.
const FAILING: usize = 20;

/// Creates one-shot schedules that are due now.
fn create(data: &Path, url: &str, label: &str, count: usize) {
    let now = run(data, &["schedule", "create", "--dry-run", "--in", "0s", "--url", url, "--json"]).done();
    let now: Value = serde_json::from_str(&now).unwrap();
    let at = &now["schedule"]["next"];
    let line = format!(
        r#"{{"at":{at},"target":{{"http":{{"url":"{url}"}}}},"labels":{{"team":"{label}"}},"retry":{{"attempts_max":1}}}}"#
    );
    with_input(data, &["schedule", "create", "--file", "-"], &format!("{line}\n").repeat(count)).done();
}

/// Returns the number of runs in each row of a report of the last hours.
fn report(data: &Path, by: &str) -> BTreeMap<String, u64> {
    let text = run(data, &["report", "--last", "6h", "--by", by, "--format", "json"]).done();
    let report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["value"].as_str().unwrap().to_owned(), row["runs"].as_u64().unwrap())).collect()
}

fn is_ended(data: &Path) -> bool {
    let runs: u64 = report(data, "state").values().sum();
    runs == (SUCCEEDING + FAILING) as u64
}

/// Returns the ids of the runs in a file, one for each line.
fn exported(file: &Path) -> Vec<(String, String)> {
    let zcat = std::process::Command::new("gzip").args(["--decompress", "--stdout"]).arg(file).output().unwrap();
    assert!(zcat.status.success(), "{}", String::from_utf8_lossy(&zcat.stderr));
    let text = String::from_utf8(zcat.stdout).unwrap();
    let text_of = |value: &Value| value.as_str().unwrap().to_owned();
    let runs = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    runs.map(|run| (text_of(&run["id"]), text_of(&run["state"]))).collect()
}

#[test]
fn reports_and_exports_agree_with_the_receivers_log() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let receiver = Receiver::start();
    create(&data, &receiver.url(), "blue", SUCCEEDING);
    create(&data, "http://127.0.0.2:9/", "=red", FAILING);
    until("all runs have ended", || is_ended(&data));
    let received: BTreeSet<String> = receiver.hits().into_iter().map(|hit| hit.run).collect();
    assert_eq!(received.len(), SUCCEEDING);

    let counted = |rows: &[(&str, usize)]| -> BTreeMap<String, u64> {
        rows.iter().map(|(name, runs)| ((*name).to_owned(), *runs as u64)).collect()
    };
    let check = || {
        assert_eq!(report(&data, "state"), counted(&[("succeeded", received.len()), ("failed", FAILING)]));
        assert_eq!(report(&data, "host"), counted(&[("127.0.0.1", received.len()), ("127.0.0.2", FAILING)]));
        assert_eq!(report(&data, "label"), counted(&[("blue", received.len()), ("=red", FAILING)]));
        assert_eq!(report(&data, "hour").values().sum::<u64>(), (received.len() + FAILING) as u64);
    };
    check();
    // After a crash, the counts still equal the runs.
    server.kill();
    let server = Server::start(&data);
    check();

    let plot = folder.path().join("plot.svg");
    let csv = ["report", "--last", "6h", "--by", "label", "--format", "csv", "--plot", plot.to_str().unwrap()];
    let csv = run(&data, &csv).done();
    assert!(csv.starts_with("group,name,value,runs,") && csv.contains(r#""'=red""#), "{csv}");
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg "));
    let table = run(&data, &["report", "--last", "6h", "--by", "host"]).done();
    assert!(table.contains("127.0.0.2") && table.starts_with("GROUP"), "{table}");

    let whole = folder.path().join("whole.ndjson.gz");
    let export =
        |file: &Path, more: &[&str]| run(&data, &[&["run", "export", "--out", file.to_str().unwrap()], more].concat());
    let text = export(&whole, &["--last", "6h"]).done();
    assert_eq!(text, format!("{} runs\n", SUCCEEDING + FAILING));
    let runs = exported(&whole);
    let succeeded: BTreeSet<String> =
        runs.iter().filter(|(_, state)| state == "succeeded").map(|(id, _)| id.clone()).collect();
    assert_eq!((runs.len(), &succeeded), (SUCCEEDING + FAILING, &received));

    // An interrupted export continues without a repetition or a gap, wherever the file ends.
    let bytes = std::fs::read(&whole).unwrap();
    let first = (1..bytes.len()).find(|at| bytes[*at..].starts_with(&[0x1f, 0x8b, 8, 16])).expect("two members");
    for len in [first, first + 1, first + 30, bytes.len() - 1, bytes.len()] {
        let cut = folder.path().join(format!("cut-{len}.ndjson.gz"));
        std::fs::write(&cut, &bytes[..len]).unwrap();
        export(&cut, &["--resume"]).done();
        assert_eq!(exported(&cut), runs, "{len} bytes");
    }
    let none = folder.path().join("none.ndjson.gz");
    std::fs::write(&none, &bytes[..first - 1]).unwrap();
    assert!(export(&none, &["--resume"]).failed(1).contains("without --resume"));
    assert_eq!(std::fs::read(&none).unwrap().len(), first - 1, "the command changes no file without a complete page");
    assert!(export(&whole, &["--last", "6h"]).failed(1).contains("--resume"));
    assert!(export(&whole, &["--resume", "--last", "6h"]).failed(2).contains("--last"));
    let cut = folder.path().join(format!("cut-{first}.ndjson.gz"));
    std::fs::write(&cut, &bytes[..first]).unwrap();
    assert!(export(&cut, &["--resume", "--state", "failed"]).failed(1).contains("page-token"));
    let key = std::fs::read_to_string(data.join("admin.key")).unwrap();
    let other = format!("other.{}", key.trim().split_once('.').unwrap().1);
    assert!(export(&cut, &["--resume", "--key", &other]).failed(1).contains("another server or with another key"));
    assert_eq!(std::fs::read(&cut).unwrap(), &bytes[..first], "a rejected call changes nothing");
    // An export without its first page leaves no file, so a repeated call can begin.
    let unbegun = folder.path().join("unbegun.ndjson.gz");
    let rejected = export(&unbegun, &["--key", &other]).failed(1);
    assert!(!rejected.contains("--resume") && !unbegun.exists(), "{rejected}");
    assert!(server.stop().success());
}

#[test]
fn invalid_reports_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let empty = json(&data, &["run", "list"]);
    assert_eq!(empty["runs"], serde_json::json!([]));
    assert!(run(&data, &["report"]).done().starts_with("GROUP"), "an empty report has the names of the columns");
    for (arguments, text) in [
        (&["--from", "2030-01-02T00:00:00Z", "--to", "2030-01-01T00:00:00Z"][..], "exchange the two instants"),
        (&["--from", "2029-01-01T00:00:00Z", "--to", "2030-01-01T00:00:00Z"], "at most 92 days"),
    ] {
        let rejected = run(&data, &[&["report"], arguments].concat()).failed(1);
        assert!(rejected.contains(text), "{rejected}");
    }
    assert!(run(&data, &["report", "--by", "colour"]).failed(2).contains("host"));
    let nowhere = folder.path().join("missing/plot.svg");
    assert!(run(&data, &["report", "--plot", nowhere.to_str().unwrap()]).failed(1).contains("choose another file"));
    assert!(server.stop().success());
}
