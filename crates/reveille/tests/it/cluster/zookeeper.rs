//! Tests of members that use a ZooKeeper ensemble for coordination.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use test_servers::zookeeper::{USERS, Zookeeper, shared, shared_secure};

use super::{TestCluster, counts, failure, kill_a_member, run, share_the_work};
use crate::client::{Response, one_shot};
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
    let mut is_down = true;
    for n in 0..50_u64 {
        let schedule = one_shot(&format!("n{n}"), from, &receiver.url(), &json!(n));
        // A member accepts schedules until its lease ends. From then on it rejects them until the ensemble is back.
        until(&format!("schedule n{n} is created"), || {
            let is_created = matches!(client.create(&schedule).status, 201 | 409);
            if is_down && (n == 25 || !is_created) {
                servers.restart(0).unwrap();
                is_down = false;
            }
            is_created
        });
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

/// Checks that a response names the coordination engine, and returns the response's detail.
#[track_caller]
fn check_outage(response: &Response, engine: &str) {
    let problem = response.json();
    assert_eq!((response.status, &problem["code"]), (503, &json!("coordination_unavailable")), "{}", response.body);
    let detail = problem["detail"].as_str().unwrap();
    let expected = format!("the coordination engine at {engine} has not responded for ");
    assert!(detail.starts_with(&expected), "{detail}");
}

#[test]
fn members_name_the_coordination_engine_during_its_outage() {
    let servers = Zookeeper::start(1).unwrap();
    let (cluster, engine) = (TestCluster::on_zookeeper(&servers), servers.addresses());
    let members = [cluster.start("a"), cluster.start("b")];
    cluster.wait_until_balanced(&["a", "b"]);
    let logged_before = members.each_ref().map(|member| member.log.text().len());
    servers.kill(0).unwrap();
    for member in &members {
        let mut client = member.client();
        let mut ready = None;
        until("the member is not ready", || {
            let response = client.send("GET", "/readyz", "").unwrap();
            let is_ready = response.status == 200;
            ready = Some(response);
            !is_ready
        });
        check_outage(&ready.unwrap(), &engine);
    }
    // As long as one member has a valid lease, it also serves the requests that the other member forwards.
    for member in &members {
        let mut client = member.client();
        let schedule = one_shot("during", now_millis() + 60_000, "http://127.0.0.1:9/", &json!(1));
        check_outage(&client.create(&schedule), &engine);
        check_outage(&client.send("PUT", "/v1/schedules/during", &schedule.to_string()).unwrap(), &engine);
    }
    servers.restart(0).unwrap();
    for member in &members {
        let mut client = member.client();
        until("the member is ready", || client.send("GET", "/readyz", "").unwrap().json()["status"] == "ready");
    }
    cluster.wait_until_balanced(&["a", "b"]);
    for (member, before) in members.iter().zip(logged_before) {
        let log = member.log.text()[before..].to_owned();
        assert_eq!(log.matches("the coordination engine responds again").count(), 1, "{log}");
        assert_eq!(log.matches("the coordination engine does not respond").count(), 1, "{log}");
        // No other part of the member that uses the ensemble logs a line for an operator.
        let is_about_engine = |line: &&str| line.contains(" membership") || line.contains("zookeeper");
        let warnings = log.lines().filter(|line| line.contains(" WARN ")).filter(is_about_engine).count();
        assert_eq!((warnings, log.matches(" ERROR ").count()), (1, 0), "{log}");
        assert!(!log.contains("cannot assign shards") && !log.contains("cannot claim shards"), "{log}");
    }
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
