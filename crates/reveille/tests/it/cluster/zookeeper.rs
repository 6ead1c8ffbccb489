//! Tests of members that use a ZooKeeper ensemble for coordination.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use test_servers::zookeeper::{USERS, Zookeeper, shared, shared_secure};

use super::{TestCluster, counts, failure, kill_a_member, run, share_the_work};
use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::{BINARY, Server};
use crate::{now_millis, until};

#[test]
fn schedules_fire_exactly_once_with_zookeeper_coordination() {
    share_the_work(&TestCluster::on_zookeeper(shared()));
}

#[test]
fn schedules_of_killed_member_fire_with_zookeeper_coordination() {
    kill_a_member(&TestCluster::on_zookeeper(shared()));
}

#[test]
fn members_recover_after_a_zookeeper_outage() {
    let servers = Zookeeper::start(1).unwrap();
    let cluster = TestCluster::on_zookeeper(&servers);
    let receiver = Receiver::start();
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);
    servers.kill(0).unwrap();
    let from = now_millis() + 3_000;
    let mut client = a.client();
    for n in 0..50_u64 {
        let schedule = one_shot(&format!("n{n}"), from, &receiver.url(), &json!(n));
        // The server rejects a schedule while the owner of its shard is unknown, so the client sends the request again.
        until("the schedule is created", || matches!(client.create(&schedule).status, 201 | 409));
        if n == 25 {
            servers.restart(0).unwrap();
        }
    }
    let hits = receiver.wait(|hits| counts(hits).len() == 50);
    assert!(hits.iter().all(|hit| hit.at_millis >= from), "no callback is early");
    cluster.wait_until_balanced(&["a", "b"]);
    assert!(a.stop().success() && b.stop().success());
}

/// All connections to this ensemble use TLS, and each one needs a user and its password.
#[test]
fn members_and_commands_use_zookeeper_over_tls() {
    let servers = shared_secure();
    let (user, password) = USERS[0];
    let url = |user: &str, root: &str| {
        let (port, roots) = (servers.secure_port(), servers.certificate("root.crt").display().to_string());
        format!("zookeeper+tls://{user}@localhost:{port}/{root}?sslrootcert={roots}")
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (right, wrong) = (file("right", &format!("{password}\n")), file("wrong", "wrong"));

    let in_url = format!("{user}:{}", password.replace(' ', "%20"));
    let cluster = TestCluster::with_coordination(Some(url(&in_url, "cluster")));
    let server = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    assert!(server.stop().success());
    // A file replaces a password in the URL. The password of the store stays the one in its URL.
    let without = TestCluster { coordination: Some(url(&format!("{user}:wrong"), "cluster")), ..cluster };
    let mut member = without.serve("b");
    member.arg("--coordination-password-file").arg(&right);
    let server = Server::start_where(member, |_| without.key_folder());
    let mut status = Command::new(BINARY);
    status.args(["cluster", "status", "--store", &without.url, "--coordination-password-file"]).arg(&right);
    without.add_coordination(&mut status);
    until("the member owns all shards", || run(&mut status).status.success());
    let began = Instant::now();
    let message = failure(&mut without.serve("c"));
    assert!(message.contains("rejected the user in the URL or its password"), "{message}");
    assert!(server.stop().success());

    let credentials = folder.path().join("credentials");
    assert!(run(Command::new(BINARY).arg("credentials").arg(&credentials)).status.success());
    let command = |arguments: &[&str], password: &Path| {
        let mut command = Command::new(BINARY);
        command.args(&arguments[..2]).args(["--coordination", &url(user, "cli"), "--password-file"]).arg(password);
        command.arg("--credentials").arg(&credentials).args(&arguments[2..]);
        command
    };
    let output = |arguments: &[&str]| {
        let output = run(&mut command(arguments, &right));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    output(&["tree", "set", "/a", "one", "--create"]);
    assert_eq!(output(&["tree", "get", "/a"]), "one\n");
    let term = output(&["elect", "--group=/jobs", "--", "sh", "-c", "echo $REVEILLE_TERM"]);
    assert!(term.trim().parse::<u64>().is_ok_and(|term| term > 0), "{term}");
    for arguments in [&["tree", "get", "/a"][..], &["elect", "--group=/jobs", "--", "true"]] {
        let message = failure(&mut command(arguments, &wrong));
        assert!(message.contains("rejected the user in the URL or its password"), "{message}");
        assert!(!message.contains("wrong"), "{message}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "the errors arrive in time");
}

#[test]
fn members_restrict_access_to_their_zookeeper_nodes() {
    let cluster = TestCluster::on_zookeeper(shared());
    let server = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    let there = cluster.coordination.clone().unwrap();
    for arguments in [
        &["tree", "ls", "/reveille/members"][..],
        &["tree", "get", "/reveille/id"],
        &["tree", "set", "/reveille/id", "mine"],
        &["tree", "rm", "/reveille/members", "--recursive"],
        &["tree", "set", "/reveille/claims/leader", "mine", "--create", "--open"],
    ] {
        let message = failure(Command::new(BINARY).args(arguments).args(["--coordination", &there]));
        assert!(message.contains("denied"), "{arguments:?}: {message}");
    }
    let elsewhere = format!("{there}/elsewhere");
    let other =
        TestCluster { folder: tempfile::tempdir().unwrap(), url: cluster.url.clone(), coordination: Some(elsewhere) };
    let mut member = other.serve_without_key("b");
    let message = failure(member.arg("--store-key").arg(cluster.key_folder().join("store.key")));
    assert!(message.contains("another coordination engine") && message.contains("--coordination"), "{message}");
    let mut status = Command::new(BINARY);
    let message = failure(other.add_coordination(status.args(["cluster", "status", "--store", &other.url])));
    assert!(message.contains("another coordination engine"), "{message}");
    let unreachable = TestCluster { coordination: Some("zookeeper://127.0.0.1:9".to_owned()), ..other };
    let began = Instant::now();
    let mut status = Command::new(BINARY);
    let message =
        failure(unreachable.add_coordination(status.args(["cluster", "status", "--store", &unreachable.url])));
    assert!(message.contains("127.0.0.1:9") && message.contains("coordinate"), "{message}");
    assert!(began.elapsed() < Duration::from_secs(40), "the command fails in time");
    assert!(server.stop().success());
}
