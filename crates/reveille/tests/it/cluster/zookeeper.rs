//! Tests of members that use a ZooKeeper ensemble for coordination.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use test_servers::zookeeper::{Zookeeper, shared};

use super::{TestCluster, counts, failure, kill_a_member, share_the_work};
use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::BINARY;
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
