//! Tests of `reveille run list --follow`.

use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::TIMEOUT;
use crate::cli::{command, run};
use crate::server::{Lines, Server};

/// Process that follows runs. The drop of this value kills the process.
struct Follower {
    child: Child,
    runs: Receiver<Value>,
    warnings: Lines,
}

impl Follower {
    fn start(data: &Path, more: &[&str]) -> Self {
        let mut command = command(data, &[&["run", "list", "--follow", "--json"], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let warnings = Lines::follow(child.stderr.take().unwrap());
        let output = child.stdout.take().unwrap();
        let (sender, runs) = channel();
        thread::spawn(move || {
            let runs = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
            for run in runs.map_while(Result::ok) {
                let _ended = sender.send(run);
            }
        });
        Follower { child, runs, warnings }
    }

    /// Waits for the next printed run, and returns the id of its schedule.
    #[track_caller]
    fn next(&self) -> String {
        let run = self.runs.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("no run: {}", self.warnings.text()));
        run["schedule_id"].as_str().unwrap().to_owned()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn create(data: &Path, id: &str) {
    let once = ["--in", "0s", "--url", "http://127.0.0.1:9/", "--attempts-max", "1"];
    run(data, &[&["schedule", "create", "--id", id][..], &once].concat()).done();
}

#[test]
fn follower_prints_each_run_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    create(&data, "a");
    let old = Follower::start(&data, &["--last", "10m", "--window", "10m"]);
    assert_eq!(old.next(), "a");
    // This window is searched after each second.
    let narrow = Follower::start(&data, &["--last", "10m", "--window", "5s", "--state", "failed"]);
    assert_eq!(narrow.next(), "a");
    for id in ["b", "c", "d"] {
        create(&data, id);
        assert_eq!((old.next(), narrow.next()), (id.to_owned(), id.to_owned()));
    }
    for follower in [&old, &narrow] {
        assert_eq!(follower.warnings.text(), "");
    }
    let other = Follower::start(&data, &["--host", "localhost", "--last", "10m"]);
    let once = ["--in", "0s", "--url", "http://localhost:9/", "--attempts-max", "1"];
    run(&data, &[&["schedule", "create", "--id", "e"][..], &once].concat()).done();
    assert_eq!(other.next(), "e", "the follower does not print the runs of another host");
    assert_eq!(other.warnings.text(), "");
    assert!(server.stop().success());
}

#[test]
fn follower_continues_after_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let follow = ["run", "list", "--follow"];
    let server = Server::start(&data);
    let url = format!("http://{}", server.address);
    create(&data, "a");
    let follower = Follower::start(&data, &["--last", "10m"]);
    assert_eq!(follower.next(), "a");
    assert!(server.stop().success());
    let is_away = |line: &str| line.contains("continues when the server responds").then(|| line.to_owned());
    let warning = follower.warnings.wait(is_away).expect("the command does not end");
    assert!(warning.starts_with("reveille: warning: ") && warning.contains("cannot be reached"), "{warning}");
    let away = run(&data, &[&follow[..], &["--server", &url]].concat()).failed(1);
    assert!(away.contains("reveille serve"), "a first request that fails ends the command: {away}");
    let server = Server::start(&data);
    create(&data, "b");
    assert_eq!(follower.next(), "b");
    server.kill();
    let server = Server::start(&data);
    create(&data, "c");
    assert_eq!(follower.next(), "c");
    assert!(server.stop().success());
}

#[test]
fn follower_ends_if_the_server_rejects_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let rejected = run(&data, &["run", "list", "--follow", "--schedule", "missing"]).failed(1);
    assert!(rejected.contains("reveille schedule list"), "{rejected}");
    let rejected = run(&data, &["run", "list", "--follow", "--host", "http://shop.example/"]).failed(1);
    assert!(rejected.contains("--host"), "{rejected}");
    assert!(server.stop().success());
}
