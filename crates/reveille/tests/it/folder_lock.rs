//! Tests of the lock of a data folder while an operator deletes, moves or replaces files of a running server.
//!
//! The tests pause the running server, so that it cannot notice the change before a second process starts.

use std::fs::{self, DirEntry};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::client::one_shot;
use crate::cluster::TestCluster;
use crate::process::failure;
use crate::server::{BINARY, Server, serve, signal};
use crate::{now_millis, until};

const URL: &str = "http://127.0.0.1:9/";
const DAY_MILLIS: u64 = 86_400_000;

/// Starts a server, creates a schedule, and pauses the server while it is idle.
fn start_paused(data: &Path) -> Server {
    let server = Server::start(data);
    let created = server.client().create(&one_shot("kept", now_millis() + DAY_MILLIS, URL, &json!(1)));
    assert_eq!(created.status, 201, "{}", created.body);
    let next_segment = data.join("store/journal/segment-00000000000000000002.journal");
    until("the journal has prepared its next segment", || next_segment.exists());
    signal(server.pid(), Signal::STOP);
    // A thread that runs on another processor stops a moment after the signal.
    let threads = format!("/proc/{}/task", server.pid());
    until("all threads of the server are paused", || {
        let state = |task: std::io::Result<DirEntry>| fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        fs::read_dir(&threads).unwrap().all(|task| state(task).contains("State:\tT"))
    });
    server
}

/// Resumes a paused server, and waits until it stops with an error. Returns its log.
fn stops(server: Server) -> String {
    signal(server.pid(), Signal::CONT);
    let log = server.log.clone();
    assert!(!server.wait().success());
    log.text()
}

fn assert_has_the_schedule(data: &Path) {
    let server = Server::start(data);
    assert_eq!(server.client().get("/v1/schedules/kept").json()["state"], "active");
    assert!(server.stop().success());
}

#[test]
fn deleted_lock_file_admits_no_second_process_and_stops_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = start_paused(&data);
    let lock = data.join("store/journal/lock");
    fs::remove_file(&lock).unwrap();
    let message = failure(&mut serve(&data), 1);
    assert!(message.contains("in use by another Reveille") && message.contains(&server.pid().to_string()), "{message}");
    assert!(!lock.exists(), "the second process creates no lock file");

    let log = stops(server);
    assert!(log.contains("the lock of the data is lost") && log.contains(lock.to_str().unwrap()), "{log}");
    assert_has_the_schedule(&data);
}

#[test]
fn server_stops_if_its_data_folder_is_moved_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [data, moved] = ["data", "moved"].map(|name| folder.path().join(name));
    let server = start_paused(&data);
    fs::rename(&data, &moved).unwrap();
    let message = failure(&mut serve(&moved), 1);
    assert!(message.contains("in use by another Reveille") && message.contains(&server.pid().to_string()), "{message}");
    let other = Server::start(&data);

    let log = stops(server);
    assert!(log.contains("was replaced"), "{log}");
    assert_eq!(other.client().get("/readyz").status, 200);
    let other_log = other.log.clone();
    assert!(other.stop().success(), "{}", other_log.text());
    let check = Command::new(BINARY).args(["check", "--data"]).arg(&data).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    assert_has_the_schedule(&moved);
}

#[test]
fn member_stops_if_its_lock_file_is_deleted() {
    let cluster = TestCluster::new();
    let member = cluster.start("a");
    signal(member.pid(), Signal::STOP);
    let lock = cluster.data_folder("a").join("member.lock");
    fs::remove_file(&lock).unwrap();
    let message = failure(&mut cluster.serve("a"), 1);
    assert!(message.contains("in use by another member"), "{message}");

    let log = stops(member);
    assert!(log.contains("its data folder is lost") && log.contains(lock.to_str().unwrap()), "{log}");
    assert!(log.contains("then start the member again"), "{log}");
    assert!(cluster.start("a").stop().success());
}
