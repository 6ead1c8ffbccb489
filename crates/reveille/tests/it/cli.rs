//! Tests of the commands that act as clients of a server.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::receiver::Receiver;
use crate::server::{BINARY, Server};

/// Exit status and output of a command.
pub(crate) struct Ran {
    pub(crate) code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the output is UTF-8");
        let code = output.status.code().expect("the command exits by itself");
        Ran { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self.stderr
    }
}

pub(crate) fn command(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    for name in ["REVEILLE_URL", "REVEILLE_KEY", "REVEILLE_KEY_FILE", "REVEILLE_TENANT", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(arguments).env("REVEILLE_DATA", data).stdin(Stdio::null());
    command
}

pub(crate) fn run(data: &Path, arguments: &[&str]) -> Ran {
    Ran::of(&command(data, arguments).output().expect("the binary starts"))
}

pub(crate) fn json(data: &Path, arguments: &[&str]) -> Value {
    let text = run(data, &[arguments, &["--json"]].concat()).done();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

pub(crate) fn with_input(data: &Path, arguments: &[&str], input: &str) -> Ran {
    let mut command = command(data, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Ran::of(&child.wait_with_output().unwrap())
}

const URL: &str = "http://127.0.0.1:9/hook";

#[test]
fn schedule_commands_use_the_local_server_and_key_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let created =
        run(&data, &["schedule", "create", "--id", "one", "--in", "10m", "--url", URL, "--label", "team: a"]).done();
    assert!(created.contains("state     active"), "{created}");
    let dry = ["schedule", "create", "--dry-run", "--every", "1h", "--url", URL];
    assert_eq!(json(&data, &dry)["upcoming"].as_array().unwrap().len(), 5);
    let text = run(&data, &[&dry[..], &["--id", "one", "--replace"]].concat()).done();
    assert!(text.contains("revision  1") && text.contains("did not create"), "{text}");
    assert_eq!(json(&data, &["schedule", "get", "one"])["revision"], 0);
    let flags = ["--payload", r#"{"b":1, "a":2}"#, "--header", "x-a:b", "--attempts-max", "2", "--backoff", "3s"];
    let cron = ["schedule", "create", "--id", "one", "--replace", "--cron", "0 9 * * 1", "--zone", "Europe/Berlin"];
    let replaced = json(&data, &[&cron[..], &["--url", URL, "--method", "PUT", "--timeout", "4s"], &flags].concat());
    assert_eq!(replaced["revision"], 1);
    let listed = run(&data, &["schedule", "list", "--state", "active"]).done();
    assert!(listed.starts_with("SCHEDULE  STATE") && listed.contains("\none       active"), "{listed}");
    assert_eq!(json(&data, &["schedule", "list", "--label", "team:b"])["schedules"], serde_json::json!([]));
    run(&data, &["schedule", "list", "--state", "active", "--label", "a:b"]).failed(2);
    let shown = json(&data, &["schedule", "get", "one"]);
    assert_eq!(shown["payload"].to_string(), r#"{"a":2,"b":1}"#);
    assert_eq!((&shown["target"]["http"]["method"], &shown["zone"]), (&"PUT".into(), &"Europe/Berlin".into()));
    assert_eq!((&shown["retry"]["attempts_max"], &shown["retry"]["backoff"]), (&2.into(), &"3s".into()));
    let text = run(&data, &["schedule", "get", "one"]).done();
    assert!(text.contains(r#"{"b":1, "a":2}"#) && text.contains(&format!("PUT {URL}")), "{text}");
    let payload = folder.path().join("payload.json");
    std::fs::write(&payload, "[1]\n").unwrap();
    let payload = payload.to_str().unwrap();
    let from_file = ["schedule", "create", "--every", "1h", "--url", URL, "--payload-file", payload];
    let id = json(&data, &from_file)["id"].as_str().unwrap().to_owned();
    assert_eq!(json(&data, &["schedule", "get", &id])["payload"].to_string(), "[1]");
    let cancelled = run(&data, &["schedule", "cancel", "one", &id]).done();
    assert_eq!(cancelled.matches("no callback will be sent").count(), 2, "{cancelled}");
    assert_eq!(json(&data, &["schedule", "cancel", "one"])["result"], "cancelled");
    assert!(server.stop().success());
}

#[test]
fn schedule_list_shows_active_schedules_with_the_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    for id in ["a", "b", "c", "d"] {
        run(&data, &["schedule", "create", "--id", id, "--in", "1h", "--url", URL, "--label", "team:x"]).done();
    }
    run(&data, &["schedule", "cancel", "c"]).done();
    let text = run(&data, &["schedule", "list"]).done();
    let head: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["SCHEDULE", "STATE", "NEXT", "WHEN", "TARGET", "LABELS"]);
    assert!(text.contains(&format!("once  POST {URL}  team:x\n")), "{text}");
    assert!(text.ends_with("\n\n3 active schedules\n"), "{text}");
    let ids = |more: &[&str]| {
        let page = json(&data, &[&["schedule", "list"], more].concat());
        let ids = page["schedules"].as_array().unwrap().iter().map(|schedule| schedule["id"].as_str().unwrap());
        ids.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ids(&[]), "d b a");
    assert_eq!(ids(&["--order", "oldest"]), "a b d");
    assert_eq!(ids(&["--state", "all"]), "d c b a");
    assert_eq!(ids(&["--label", "team:x", "--order", "newest"]), "d c b a");
    assert_eq!(ids(&["--order", "id"]), "a b d");
    assert_eq!(ids(&["--state", "all", "--order", "id"]), "a b c d");
    let text = run(&data, &["schedule", "list", "--label", "team:x", "--order", "id"]).failed(1);
    assert!(text.contains("a listing by label cannot be in the order of ids"), "{text}");
    let page = json(&data, &["schedule", "list", "--limit", "2"]);
    assert_eq!(ids(&["--page-token", page["next_page_token"].as_str().unwrap()]), "a");
    let due = ["schedule", "list", "--due-from", "2030-01-01T00:00:00Z", "--due-until", "2030-01-01T01:00:00Z"];
    run(&data, &due).done();
    run(&data, &[&due[..], &["--order", "newest"]].concat()).failed(2);
    assert!(server.stop().success());
}

#[test]
fn reschedule_command_changes_only_the_timing_and_checks_the_etag() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let create = ["schedule", "create", "--id", "one", "--in", "10m", "--url", URL, "--label", "team: a"];
    run(&data, &create).done();
    let text = run(&data, &["schedule", "get", "one"]).done();
    let tag = text.lines().find_map(|line| line.strip_prefix("tag")).unwrap().trim().to_owned();
    let cron = ["schedule", "reschedule", "one", "--cron", "0 9 * * 1", "--zone", "Europe/Berlin", "--if-match", &tag];
    assert_eq!(json(&data, &cron)["revision"], 1);
    let text = run(&data, &cron).failed(1);
    assert!(text.contains("another client changed") && text.contains("reveille schedule get"), "{text}");
    let shown = json(&data, &["schedule", "get", "one"]);
    assert_eq!((&shown["cron"], &shown["labels"]["team"], shown.get("at")), (&"0 9 * * 1".into(), &"a".into(), None));
    run(&data, &["schedule", "reschedule", "one", "--zone", "Asia/Tokyo"]).done();
    assert_eq!(json(&data, &["schedule", "get", "one"])["zone"], "Asia/Tokyo");
    let text = run(&data, &["schedule", "reschedule", "one", "--at", "2030-02-01T00:00:00Z"]).done();
    assert!(text.contains("next      2030-02-01T00:00:00.000Z"), "{text}");
    run(&data, &["schedule", "reschedule", "one", "--in", "1h"]).done();
    run(&data, &["schedule", "reschedule", "one", "--every", "2h"]).done();
    assert_eq!(json(&data, &["schedule", "get", "one"])["every"], "2h");
    assert!(run(&data, &["schedule", "reschedule", "one"]).failed(2).contains("--at"));
    let wrong = ["schedule", "reschedule", "one", "--in", "1h", "--if-match", "word"];
    assert!(run(&data, &wrong).failed(2).contains("quotes"));
    run(&data, &["schedule", "cancel", "one"]).done();
    let text = run(&data, &["schedule", "reschedule", "one", "--in", "1h"]).failed(1);
    assert!(text.contains("reveille schedule create"), "{text}");
    assert!(server.stop().success());
}

#[test]
fn cli_lists_dead_letters_and_redrives_one_or_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    for id in ["a", "b", "c"] {
        run(&data, &["schedule", "create", "--id", id, "--in", "0s", "--url", URL, "--attempts-max", "1"]).done();
    }
    let dead = || json(&data, &["run", "dead-letters"])["runs"].as_array().unwrap().clone();
    while dead().len() < 3 {}
    let text = run(&data, &["run", "dead-letters"]).done();
    assert!(text.starts_with("RUN") && text.contains("connection refused"), "{text}");
    let page = json(&data, &["run", "dead-letters", "--limit", "2"]);
    let token = page["next_page_token"].as_str().unwrap();
    let last = json(&data, &["run", "dead-letters", "--page-token", token]);
    assert_eq!(last["runs"].as_array().unwrap().len(), 1);

    let run_id = dead()[0]["id"].as_str().unwrap().to_owned();
    let shown = json(&data, &["run", "get", &run_id]);
    assert_eq!((&shown["id"], &shown["state"]), (&run_id.as_str().into(), &"failed".into()));
    let text = run(&data, &["run", "get", &run_id]).done();
    assert!(text.contains("state         failed") && text.contains("\nATTEMPT  STARTED AT"), "{text}");
    assert!(text.contains("connection refused"), "{text}");
    assert!(run(&data, &["run", "get", "nothing"]).failed(1).contains("webhook-id"));
    let again = json(&data, &["run", "redrive", &run_id]);
    assert_eq!(again["id"], run_id.as_str());
    let runs = json(&data, &["schedule", "runs", "a"]);
    assert!(runs["runs"].as_array().unwrap().iter().any(|run| run["state"] == "failed"), "{runs}");
    let text = run(&data, &["run", "redrive", &run_id]).failed(1);
    assert!(text.contains("is not redriven") && text.contains("reveille run dead-letters"), "{text}");
    while dead().len() < 3 {}
    assert_eq!(run(&data, &["run", "redrive", "--all"]).done(), "3 redriven\n");
    assert!(server.stop().success());
}

#[test]
fn cli_lists_runs_with_filters_and_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let create = |id: &str, label: &str| {
        let once = ["--in", "0s", "--url", URL, "--attempts-max", "1", "--label", label];
        run(&data, &[&["schedule", "create", "--id", id][..], &once].concat()).done();
    };
    create("a", "team:red");
    create("b", "team:blue");
    let listed = |more: &[&str]| {
        let page = json(&data, &[&["run", "list"], more].concat());
        let runs = page["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["schedule_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    while listed(&[]).len() < 2 {}
    let oldest = listed(&["--order", "oldest", "--last", "10m"]);
    assert_eq!(oldest.iter().rev().cloned().collect::<Vec<_>>(), listed(&["--state", "failed", "--host", "127.0.0.1"]));
    assert_eq!(listed(&["--label", "team:red"]), ["a"]);
    assert_eq!(listed(&["--schedule", "b"]), ["b"]);
    assert_eq!(listed(&["--late-by", "1h"]), [""; 0]);
    assert_eq!(listed(&["--status", "503"]), [""; 0]);
    assert_eq!(listed(&["--from", "2020-01-01T00:00:00Z", "--until", "2021-01-01T00:00:00Z"]), [""; 0]);
    let page = json(&data, &["run", "list", "--limit", "1"]);
    let token = page["next_page_token"].as_str().unwrap();
    let from = page["runs"][0]["scheduled_at"].as_str().unwrap();
    let text = run(&data, &["run", "list", "--limit", "1"]).done();
    assert!(text.starts_with("RUN") && text.contains("connection refused"), "{text}");
    for command in [&["--last", "24h"][..], &["--from", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"], &[]]
    {
        let text = run(&data, &[&["run", "list", "--limit", "1"], command].concat()).done();
        let (_, more) = text.split_once("\nmore: ").unwrap();
        let next = listed(&[command, &more.split_whitespace().collect::<Vec<_>>()].concat());
        assert_eq!(next, [oldest[0].clone()], "the printed option continues the list");
    }
    assert_eq!(listed(&["--page-token", token]), [oldest[0].clone()], "the token of a JSON page continues the list");
    for other in [["--from", from], ["--order", "oldest"]] {
        let rejected = run(&data, &[&["run", "list", "--page-token", token], &other[..]].concat()).failed(1);
        assert!(rejected.contains("--page-token") && rejected.contains("same filter"), "{rejected}");
    }
    let rejected = run(&data, &["run", "list", "--from", from, "--until", "2020-01-01T00:00:00Z"]).failed(1);
    assert!(rejected.contains("--until"), "{rejected}");
    assert!(run(&data, &["run", "list", "--state", "dead"]).failed(2).contains("failed"));
    assert!(run(&data, &["run", "list", "--limit", "0"]).failed(2).contains("1..=1000"));
    assert!(run(&data, &["run", "list", "--schedule", "missing"]).failed(1).contains("reveille schedule list"));
    assert!(run(&data, &["run", "list", "--follow", "--limit", "3"]).failed(2).contains("--limit"));
    assert!(server.stop().success());
}

#[test]
fn cli_explains_an_instant_in_sentences_and_as_json() {
    const AT: &str = "2030-02-01T00:00:00Z";
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    run(&data, &["schedule", "create", "--id", "one", "--at", AT, "--url", URL]).done();
    let explain = |at| run(&data, &["schedule", "explain", "one", "--at", at]);
    let text = explain(AT).done();
    assert!(text.starts_with("The schedule will fire at 2030-02-01T00:00:00"), "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("The occurrence is due in "), "{text}");
    run(&data, &["schedule", "cancel", "one"]).done();
    let text = explain(AT).done();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("The schedule will not fire at "), "{text}");
    let cause = lines.next().unwrap();
    assert!(cause.starts_with("The schedule was cancelled, at ") && cause.contains(", by "), "{text}");
    let explained = json(&data, &["schedule", "explain", "one", "--at", AT]);
    assert_eq!(
        (&explained["verdict"], &explained["causes"][0]["kind"]),
        (&Value::from("will_not_fire"), &Value::from("cancelled"))
    );
    assert!(explain("soon").failed(2).contains("2030-01-02T03:04:05Z"));
    assert!(run(&data, &["schedule", "explain", "one"]).failed(2).contains("--at"));
    let missing = run(&data, &["schedule", "explain", "two", "--at", AT]).failed(1);
    assert!(missing.contains("reveille schedule list"), "{missing}");
    assert!(server.stop().success());
}

#[test]
fn preview_command_lists_occurrences_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let preview = |more: &[&str]| run(&data, &[&["schedule", "preview"], more].concat());
    let cron = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--count", "2"];
    let spring = preview(&[&cron[..], &["--from", "2030-03-31T00:00:00Z"]].concat()).done();
    assert!(spring.contains("2030-03-31T03:00:00.000+02:00  moved: the clock skips 2030-03-31T02:30:00"), "{spring}");
    let autumn = preview(&[&cron[..], &["--from", "2030-10-27T00:00:00Z"]].concat()).done();
    let lines: Vec<&str> = autumn.lines().collect();
    assert!(lines[1].starts_with("2030-10-27T00:30:00.000Z  2030-10-27T02:30:00.000+02:00"), "{autumn}");
    assert!(lines[2].starts_with("-") && lines[2].contains("2030-10-27T02:30:00.000+01:00  "), "{autumn}");
    assert!(lines[2].contains("dropped: "), "{autumn}");
    let found = json(&data, &["schedule", "preview", "--every", "1h", "--url", URL]);
    assert_eq!((found["occurrences"].as_array().unwrap().len(), &found["zone"]), (10, &Value::from("UTC")));
    let body = format!("{{\"every\": \"1h\", \"target\": {{\"http\": {{\"url\": \"{URL}\"}}}}}}");
    let from_file = with_input(&data, &["schedule", "preview", "--file", "-", "--count", "1"], &body).done();
    assert_eq!(from_file.lines().count(), 3, "{from_file}");
    for (arguments, code, text) in [
        (&["--cron", "61 * * * *"][..], 1, "--cron: "),
        (&["--cron", "0 9 * * *", "--zone", "Mars"], 1, "--zone: "),
        (&["--every", "1h", "--url", "mailto:me"], 1, "--url: "),
        (&["--url", URL], 1, "cron"),
        (&["--every", "1h", "--count", "0"], 2, "--count"),
        (&["--every", "1h", "--count", "101"], 2, "--count"),
        (&["--every", "1h", "--from", "soon"], 2, "2030-01-02T03:04:05Z"),
        (&["--every", "1h", "--from", "1969-01-01T00:00:00Z"], 1, "--from"),
        (&["--every", "1h", "--file", "-"], 2, "--file"),
        (&["--file", "nowhere"], 1, "nowhere"),
    ] {
        let error = preview(arguments).failed(code);
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
    let large = folder.path().join("large.json");
    // White space after an object is valid JSON.
    std::fs::write(&large, body.clone() + &" ".repeat(256 * 1024 - body.len())).unwrap();
    let file = large.to_str().unwrap();
    preview(&["--file", file]).done();
    std::fs::write(&large, body.clone() + &" ".repeat(256 * 1024 + 1 - body.len())).unwrap();
    let error = preview(&["--file", file]).failed(1);
    assert!(error.contains("more than 262144 bytes"), "{error}");
    assert!(!data.exists(), "the command writes no file");
}

#[test]
fn preview_command_prints_the_response_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    for (timing, from) in [
        (r#""cron":"*/20 2 * * *","zone":"Europe/Berlin""#, "2030-03-30T12:00:00Z"),
        (r#""cron":"30 2 * * *","zone":"Europe/Berlin""#, "2030-10-27T00:00:00Z"),
        (r#""cron":"15 * * * *","zone":"Australia/Lord_Howe""#, "2030-10-05T12:00:00Z"),
        (r#""at":"2031-01-02T03:04:05Z""#, "2030-01-01T00:00:00Z"),
    ] {
        let body = format!(r#"{{{timing},"target":{{"http":{{"url":"{URL}"}}}}}}"#);
        let path = format!("/v1/schedules/preview?count=5&from={from}");
        let response = client.send("POST", &path, &body).expect("the server responds");
        assert_eq!(response.status, 200, "{}", response.body);
        assert_ne!(response.json()["occurrences"], serde_json::json!([]), "{timing}");
        let arguments = ["schedule", "preview", "--file", "-", "--count", "5", "--from", from, "--json"];
        let printed: Value = serde_json::from_str(&with_input(&data, &arguments, &body).done()).unwrap();
        assert_eq!(printed, response.json(), "{timing}");
    }
    assert!(server.stop().success());
}

#[test]
fn server_enforces_the_roles_of_the_keys_that_an_operator_creates() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let tenant = json(&data, &["tenant", "create", "billing"]);
    let text = run(&data, &["tenant", "list"]).done();
    assert!(text.contains("billing") && text.contains("default"), "{text}");
    assert_eq!(json(&data, &["tenant", "list"])["tenants"].as_array().unwrap().len(), 3);
    assert_eq!(json(&data, &["tenant", "get", "billing"])["keys"], 1);

    let create = ["key", "create", "--tenant", "billing", "--role", "reader", "--name", "board", "--expires-in", "90d"];
    let reader = json(&data, &create);
    let by = |key: &Value, arguments: &[&str]| {
        let mut command = command(&data, arguments);
        Ran::of(&command.env("REVEILLE_KEY", key.as_str().unwrap()).output().unwrap())
    };
    by(&reader["secret"], &["run", "dead-letters"]).done();
    let failed = by(&reader["secret"], &["schedule", "create", "--in", "1h", "--url", URL]).failed(1);
    assert!(failed.contains("role") && failed.contains("reveille key create"), "{failed}");
    let elsewhere = "https://example.org/hook";
    by(&tenant["key"]["secret"], &["schedule", "create", "--in", "1h", "--url", elsewhere]).done();
    let keys = run(&data, &["key", "list", "--tenant", "billing"]).done();
    assert!(keys.contains("board") && keys.contains("reader"), "{keys}");
    assert!(
        run(&data, &["key", "revoke", "--tenant", "billing", reader["id"].as_str().unwrap()])
            .done()
            .contains("revoked")
    );
    let failed = by(&reader["secret"], &["run", "dead-letters"]).failed(1);
    assert!(failed.contains("REVEILLE_KEY"), "{failed}");

    let secret = json(&data, &["secret", "create", "--tenant", "billing"]);
    let listed = json(&data, &["secret", "list", "--tenant", "billing"]);
    assert_eq!(listed["signing_secrets"][0]["id"], secret["id"]);
    assert!(!listed.to_string().contains("whsec_"));
    run(&data, &["secret", "delete", "--tenant", "billing", listed["signing_secrets"][1]["id"].as_str().unwrap()])
        .done();
    let audit = run(&data, &["tenant", "audit", "billing"]).done();
    assert!(audit.contains("key.revoke") && audit.contains("signing_secret.delete"), "{audit}");
    assert_eq!(json(&data, &["tenant", "audit", "billing"])["entries"].as_array().unwrap().len(), 5);
    assert!(server.stop().success());
}

#[test]
fn key_options_override_the_environment_variables_of_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.key");
    std::fs::write(&file, "no-key").unwrap();
    let file = file.to_str().unwrap();
    let get = |more: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["schedule", "get", "one", "--server", "http://127.0.0.1:9"], more].concat();
        Ran::of(&command(folder.path(), &arguments).envs(variables.iter().copied()).output().unwrap())
    };
    let (by_file, by_text) = (("REVEILLE_KEY_FILE", file), ("REVEILLE_KEY", "a.b"));
    let taken = |ran: Ran| ran.failed(1);
    assert!(taken(get(&[], &[by_text])).contains("cannot be reached"));
    assert!(
        !taken(get(&["--key-file", file], &[by_text])).contains("cannot be reached"),
        "the file contains no valid key"
    );
    assert!(taken(get(&["--key", "a.b"], &[by_file])).contains("cannot be reached"));
    for both in [get(&["--key", "a.b", "--key-file", file], &[]), get(&[], &[by_file, by_text])] {
        let text = both.failed(2);
        assert!(text.contains("--key-file") && text.contains("REVEILLE_KEY") && !text.contains("a.b"), "{text}");
    }
}

#[test]
fn quota_commands_show_quotas_and_reject_values_above_the_ceiling() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let text = run(&data, &["quota", "get"]).done();
    assert!(text.starts_with("QUOTA") && text.contains("pending_max"), "{text}");
    let ceiling = ["quota", "set", "--tenant", "default", "--ceiling", "pending_max=1", "horizon_days=none"];
    assert_eq!(json(&data, &ceiling)["ceilings"]["pending_max"], 1);
    let text = run(&data, &["quota", "set", "pending_max=2"]).failed(1);
    assert!(text.contains("--ceiling"), "{text}");
    let set = json(&data, &["quota", "set", "pending_max=1", "payload_bytes_max=3"]);
    assert_eq!((&set["quotas"]["pending_max"], &set["quotas"]["payload_bytes_max"]), (&1.into(), &3.into()));
    assert_eq!(json(&data, &["quota", "get", "--tenant", "default"]), set);
    let large = ["schedule", "create", "--in", "1h", "--url", URL, "--payload", "[1, 2, 3]"];
    assert!(run(&data, &large).failed(1).contains("reveille quota get"));
    for (setting, step) in
        [("pending=1", "pending_max"), ("pending_max", "QUOTA=NUMBER"), ("pending_max=-1", "nor a number")]
    {
        let text = run(&data, &["quota", "set", setting]).failed(2);
        assert!(text.contains(step), "{text}");
    }
    assert!(run(&data, &["quota", "set", "--ceiling", "pending_max=1"]).failed(2).contains("--tenant"));
    assert!(server.stop().success());
}

#[test]
fn create_command_checks_whole_file_and_creates_each_schedule_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let create = ["schedule", "create", "--file", "-"];
    let with = |more: &[&str], input: &str| with_input(&data, &[&create[..], more].concat(), input);
    let good = format!("{{\"every\": \"1h\",\n \"target\": {{\"http\": {{\"url\": \"{URL}\"}}}}}}\n");
    assert_eq!(with(&["--dry-run"], &good.repeat(3)).done(), "valid requests: 3; no schedule was created\n");
    assert_eq!(with(&[], &good.repeat(500)).done(), "500 created\n");
    assert_eq!(with(&[], &good.repeat(501)).done(), "1 created, 500 created before\n");
    assert_eq!(with(&["--new"], &good.repeat(2)).done(), "2 created\n");
    assert_eq!(with(&["--idempotency-key", "monday"], &good.repeat(2)).done(), "2 created\n");
    assert_eq!(with(&["--idempotency-key", "monday"], &good.repeat(2)).done(), "0 created, 2 created before\n");
    let named = good.replacen('{', "{\"id\": \"named\", ", 1);
    assert_eq!(with(&[], &named).done(), "1 created\n");
    let ran = with(&[], &named);
    assert!(ran.stdout.contains("line 1 (named) is rejected") && ran.stdout.contains("1 with an existing id"));

    let lines = with(&["--json"], &format!("{named}{}", good.repeat(2))).done();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!((&lines[0]["id"], &lines[0]["problem"]["code"]), (&"named".into(), &"schedule_exists".into()));
    assert_eq!((&lines[1]["status"], &lines[1]["replayed"]), (&201.into(), &true.into()));

    let before = json(&data, &["schedule", "list", "--limit", "1000"])["schedules"].as_array().unwrap().len();
    let bad = r#"{"every":"soon","target":{"http":{"url":"http://a"}}}"#;
    let ran = with(&[], &format!("{}{bad}{{\"evry\":1}}\n{{oops", good.repeat(600)));
    for text in
        ["line 1201 is rejected: /every: ", "line 1201 is rejected: unknown field `evry`", "line 1202 is rejected"]
    {
        assert!(ran.stdout.contains(text), "{text} in {}", ran.stdout);
    }
    let text = ran.failed(1);
    assert!(text.contains("3 of 603 requests are invalid, and no schedule was created"), "{text}");
    let after = json(&data, &["schedule", "list", "--limit", "1000"])["schedules"].as_array().unwrap().len();
    assert_eq!(after, before, "an invalid file creates no schedule");
    assert!(run(&data, &["schedule", "create", "--file", "nowhere"]).failed(1).contains("nowhere"));
    assert!(server.stop().success());
}

#[test]
fn command_error_names_the_invalid_flag_and_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let bad =
        ["schedule", "create", "--cron", "99 * * * *", "--url", "mailto:me", "--header", "host:a", "--backoff", "no"];
    let text = run(&data, &bad).failed(1);
    for flag in ["--cron: ", "--url: ", "--header: ", "--backoff: "] {
        assert!(text.contains(flag), "{flag} in {text}");
    }
    run(&data, &["schedule", "create", "--id", "one", "--in", "1h", "--url", URL]).done();
    let cases: [(&[&str], i32, &str); 12] = [
        (&["schedule", "get", "nothing"], 1, "reveille schedule list"),
        (&["schedule", "create", "--id", "one", "--in", "1h", "--url", URL], 1, "--replace"),
        (&["schedule", "create", "--url", URL], 1, "cron"),
        (&["schedule", "create", "--in", "soon", "--url", URL], 2, "30s"),
        (&["schedule", "create", "--in", "1h", "--at", "2030-01-01T00:00:00Z", "--url", URL], 2, "--at"),
        (&["schedule", "create", "--in", "1h"], 2, "--url"),
        (&["schedule", "create", "--in", "1h", "--url", URL, "--payload", "word"], 1, r#"'"word"'"#),
        (&["schedule", "create", "--in", "1h", "--url", URL, "--label", "word"], 2, "NAME:VALUE"),
        (&["tenant", "get", "nobody"], 1, "reveille tenant list"),
        (&["tenant", "create", "default"], 1, "another name"),
        (&["key", "revoke", "nothing"], 1, "reveille key list"),
        (&["schedule", "get", "one", "--server", "nowhere"], 1, "http://"),
    ];
    for (arguments, code, step) in cases {
        let text = run(&data, arguments).failed(code);
        assert!(text.contains(step), "{arguments:?}: {text}");
    }
    let odd = run(&data, &["schedule", "cancel", "\u{1b}[2J"]).failed(1);
    assert!(!odd.contains('\u{1b}'), "{odd:?}");

    let left = data.join("server.url");
    let url = std::fs::read_to_string(&left).unwrap();
    assert_eq!(url, format!("http://{}\n", server.address));
    assert!(server.stop().success());
    assert!(!left.exists(), "the file remains after the server has stopped");
    assert!(run(&data, &["schedule", "get", "one"]).failed(1).contains("reveille serve"));
    let away = ["schedule", "get", "one", "--server", url.trim()];
    let text = run(&data, &away).failed(1);
    assert!(text.contains("cannot be reached") && text.contains("reveille serve"), "{text}");
    let without_key = run(folder.path(), &["schedule", "get", "one", "--server", url.trim()]).failed(1);
    assert!(without_key.contains("--key-file"), "{without_key}");
}

#[test]
fn command_fails_if_the_server_is_not_reveille() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("admin.key"), "a.b\n").unwrap();
    let receiver = Receiver::start();
    let text =
        run(folder.path(), &["schedule", "get", "one", "--server", receiver.url().trim_end_matches('/')]).failed(1);
    assert!(text.contains("--server"), "{text}");
}

#[test]
fn man_command_writes_a_page_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    run(Path::new("data"), &["man", "--to", pages.to_str().unwrap()]).done();
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page("reveille.1").contains("reveille\\-serve(1)"));
    assert!(page("reveille-run-redrive.1").contains("dead"));
    let create = page("reveille-schedule-create.1");
    let source = concat!("\"Reveille ", env!("CARGO_PKG_VERSION"), "\" \"Reveille manual\"");
    assert!(create.lines().any(|line| line.starts_with(".TH reveille-schedule-create 1 ") && line.ends_with(source)));
    assert!(create.contains(".SH EXAMPLES\n  reveille schedule create"), "{create}");
    for entry in std::fs::read_dir(&pages).unwrap() {
        let path = entry.unwrap().path();
        let has_extra = std::fs::read_to_string(&path).unwrap().contains(".SH EXTRA");
        assert!(!has_extra, "{}: the text after the options does not start with `Examples:`", path.display());
    }
    let serve = page("reveille-serve.1");
    assert!(serve.contains("\\-\\-in\\-flight\\-max") && serve.contains("REVEILLE_LISTEN"));
    let options = ["data", "listen", "store"].map(|option| serve.find(&format!("\n\\fB\\-\\-{option}\\fR")));
    assert!(options.is_sorted() && options[0].is_some(), "the most frequent options come first: {options:?}");
    for hidden in ["ends\\-with\\-parent", "history\\-seconds"] {
        assert!(!serve.contains(hidden), "the page lists {hidden}");
    }
    assert!(run(Path::new("data"), &["man", "--to", "/dev/null/pages"]).failed(1).contains("/dev/null/pages"));
}

#[test]
fn error_of_an_unknown_schedule_command_names_the_right_command() {
    for (name, hint) in [("delete", "schedule cancel"), ("update", "--replace"), ("edit", "schedule reschedule")] {
        let error = run(Path::new("data"), &["schedule", name, "order-17"]).failed(2);
        assert!(error.contains(name) && error.contains(hint), "{name}: {error}");
    }
    let of_tenant = run(Path::new("data"), &["tenant", "delete", "shop"]).failed(2);
    assert!(of_tenant.contains("delete") && !of_tenant.contains("schedule"), "{of_tenant}");
}

#[test]
fn completion_command_prints_a_script_for_every_shell() {
    let shells = [
        ("bash", "complete -F"),
        ("zsh", "#compdef reveille"),
        ("fish", "complete -c reveille"),
        ("elvish", "edit:completion:arg-completer[reveille]"),
        ("powershell", "Register-ArgumentCompleter -Native -CommandName 'reveille'"),
    ];
    for (shell, sign) in shells {
        let script = run(Path::new("data"), &["completions", shell]).done();
        assert!(script.contains(sign) && script.contains("redrive"), "{shell}");
        for hidden in ["ends-with-parent", "history-seconds", "history_seconds"] {
            assert!(!script.contains(hidden), "{shell} completes {hidden}");
        }
    }
    let help = run(Path::new("data"), &["schedule", "list", "--help"]).done();
    assert!(!help.contains("--threads"), "a client command has an option of the server");
    assert!(run(Path::new("data"), &["completions", "cmd"]).failed(2).contains("bash"));
}
