//! Tests that a server with few file descriptors continues to serve clients and to send callbacks.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::{BINARY, Server};
use crate::{now_millis, until};

/// Returns a command that starts the server with `limits`, which are arguments of `ulimit`.
fn limited(limits: &[&str], data: &std::path::Path) -> Command {
    let mut command = Command::new("bash");
    let limits: String = limits.iter().map(|limit| format!("ulimit {limit} && ")).collect();
    command.args(["-c", &format!("{limits} exec \"$0\" \"$@\""), BINARY, "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--no-receiver", "--debuggable", "--data"]).arg(data);
    command
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

#[test]
fn server_raises_its_limit_of_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_by(limited(&["-Sn 256", "-Hn 4096"], &data), &data);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(limit.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["4096", "4096"], "{limit}");
    assert!(server.stop().success());
}

#[test]
fn server_with_few_file_descriptors_sends_all_callbacks() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_by(limited(&["-n 128"], &data), &data);
    let strangers = connect(server.address, 300);
    let receiver = Receiver::start();
    receiver.hold();
    let mut client = server.client();
    for number in 0..200 {
        let schedule = one_shot(&format!("n{number}"), now_millis(), &receiver.url(), &json!("x"));
        assert_eq!(client.create(&schedule).status, 201);
    }
    receiver.wait(|hits| hits.len() >= 10);
    assert!(open_files(server.pid()) < 120, "{} files are open", open_files(server.pid()));
    assert_eq!(server.client().get("/v1/schedules:count").status, 200);
    receiver.release();
    receiver.wait(|hits| hits.len() >= 200);
    drop(strangers);
    let log = server.log.text();
    assert!(log.contains("raise the hard limit") && log.contains("connections_max=21"), "{log}");
    assert!(!log.contains("cannot accept a connection; if"), "{log}");
    assert!(server.stop().success());
}

#[test]
fn server_serves_clients_despite_a_lack_of_file_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start_by(limited(&["-n 4096"], &data), &data);
    assert_eq!(server.client().get("/readyz").status, 200);
    let few = open_files(server.pid()) as u64 + 8;
    let pid = Pid::from_raw(server.pid().try_into().unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(few), maximum: Some(few) }).unwrap();
    let strangers = connect(server.address, 40);
    until("the log reports the failed accept", || server.log.text().contains("cannot accept a connection; if"));
    for _ in 0..3 {
        assert_eq!(server.client().get("/v1/schedules:count").status, 200);
    }
    drop(strangers);
    let log = server.log.text();
    assert_eq!(log.matches("cannot accept a connection; if").count(), 1, "{log}");
    assert!(server.stop().success());
}
