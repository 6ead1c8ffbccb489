//! Members that meet in a ZooKeeper.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use test_servers::zookeeper::{Zookeeper, shared};

use super::{Home, counts, kill_a_member, refusal, share_the_work};
use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::BINARY;
use crate::{now_millis, until};

#[test]
fn members_that_meet_in_a_zookeeper_share_the_work_and_a_polite_stop_doubles_nothing() {
    share_the_work(&Home::on_zookeeper(shared()));
}

#[test]
fn the_shards_of_a_killed_member_fire_again_where_members_meet_in_a_zookeeper() {
    kill_a_member(&Home::on_zookeeper(shared()));
}

#[test]
fn members_go_on_when_the_zookeeper_they_meet_in_is_back() {
    let servers = Zookeeper::start(1).unwrap();
    let home = Home::on_zookeeper(&servers);
    let receiver = Receiver::start();
    let (a, b) = (home.start("a"), home.start("b"));
    home.settle(&["a", "b"]);
    servers.kill(0).unwrap();
    let from = now_millis() + 3_000;
    let mut client = a.client();
    for n in 0..50_u64 {
        let schedule = one_shot(&format!("n{n}"), from, &receiver.url(), &json!(n));
        // Those whose owner is not known any more are refused, and asked for again.
        until("it is made", || matches!(client.create(&schedule).status, 201 | 409));
        if n == 25 {
            servers.restart(0).unwrap();
        }
    }
    let hits = receiver.wait(|hits| counts(hits).len() == 50);
    assert!(hits.iter().all(|hit| hit.at_millis >= from), "none is early");
    home.settle(&["a", "b"]);
    assert!(a.stop().success() && b.stop().success());
}

#[test]
fn strangers_cannot_touch_what_members_keep_in_a_zookeeper_and_another_place_is_refused() {
    let home = Home::on_zookeeper(shared());
    let server = home.start("a");
    home.settle(&["a"]);
    let there = home.coordination.clone().unwrap();
    for arguments in [
        &["tree", "ls", "/reveille/members"][..],
        &["tree", "get", "/reveille/id"],
        &["tree", "set", "/reveille/id", "mine"],
        &["tree", "rm", "/reveille/members", "--recursive"],
        &["tree", "set", "/reveille/claims/leader", "mine", "--create"],
    ] {
        let said = refusal(Command::new(BINARY).args(arguments).args(["--coordination", &there]));
        assert!(said.contains("closed to you"), "{arguments:?}: {said}");
    }
    let elsewhere = format!("{there}/elsewhere");
    let other = Home { folder: tempfile::tempdir().unwrap(), url: home.url.clone(), coordination: Some(elsewhere) };
    let mut member = other.serve_without_key("b");
    let said = refusal(member.arg("--store-key").arg(home.key_folder().join("store.key")));
    assert!(said.contains("meet elsewhere") && said.contains("--coordination"), "{said}");
    let mut status = Command::new(BINARY);
    let said = refusal(other.meeting(status.args(["cluster", "status", "--store", &other.url])));
    assert!(said.contains("meet elsewhere"), "{said}");
    let nobody = Home { coordination: Some("zookeeper://127.0.0.1:9".to_owned()), ..other };
    let began = Instant::now();
    let said = refusal(nobody.serve_without_key("c").arg("--store-key").arg(home.key_folder().join("store.key")));
    assert!(said.contains("127.0.0.1:9") && said.contains("coordinate"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(40), "it is told in time");
    assert!(server.stop().success());
}
