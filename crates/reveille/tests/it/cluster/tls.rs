//! Tests of TLS between members and of its certificate authority.

use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use membership::{Member, MemberId};
use peers::{Authority, HttpPeers, Identity, PeersOptions};
use runtime::Runtime;
use rustix::process::Signal;
use serde_json::json;

use super::{TestCluster, run};
use crate::client::{Client, one_shot};
use crate::server::{BINARY, signal};
use crate::{TIMEOUT, now_millis};

/// Creates a schedule that becomes due in an hour. Half of the schedules belong to shards of another member.
fn create(client: &mut Client, id: &str) -> (u16, String) {
    let created = client.create(&one_shot(id, now_millis() + 3_600_000, "http://127.0.0.1:9/", &json!(0)));
    (created.status, created.body)
}

#[test]
fn rotation_of_the_authority_disturbs_no_request_between_members() {
    let cluster = TestCluster::new();
    let (a, b, frozen) = (cluster.start("a"), cluster.start("b"), cluster.start("frozen"));
    cluster.wait_until_balanced(&["a", "b", "frozen"]);
    // This member loses its session, and it learns of the rotation only afterwards.
    signal(frozen.pid(), Signal::STOP);
    cluster.wait_until_balanced(&["a", "b"]);

    let mut rotate = Command::new(BINARY);
    rotate.args(["cluster", "rotate", "--store", &cluster.url, "--data"]).arg(cluster.key_folder());
    let (ended, rotated) = mpsc::channel();
    std::thread::spawn(move || ended.send(run(&mut rotate)).unwrap());
    let mut clients = [a.client(), b.client()];
    let mut count = 0;
    let rotated = loop {
        let (status, body) = create(&mut clients[count % 2], &format!("n{count}"));
        assert_eq!(status, 201, "{body}");
        count += 1;
        match rotated.recv_timeout(Duration::from_millis(5)) {
            Ok(output) => break output,
            Err(error) => assert_eq!(error, RecvTimeoutError::Timeout),
        }
    };
    let output = String::from_utf8_lossy(&rotated.stdout).into_owned();
    assert!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    assert!(output.contains("created a new") && output.contains("no longer trust the old one"), "{output}");
    assert_eq!(cluster.sql("select number from reveille.authority").trim(), "2");
    for number in 0..20 {
        let (status, body) = create(&mut clients[number % 2], &format!("after-{number}"));
        assert_eq!(status, 201, "{body}");
    }

    signal(frozen.pid(), Signal::CONT);
    cluster.wait_until_balanced(&["a", "b", "frozen"]);
    let (mut client, deadline) = (frozen.client(), Instant::now() + TIMEOUT);
    let mut in_a_row = 0;
    while in_a_row < 20 {
        let (status, body) = create(&mut client, &format!("thawed-{}", now_millis()));
        in_a_row = if status == 201 { in_a_row + 1 } else { 0 };
        assert!(Instant::now() < deadline, "{status}: {body}");
    }
    assert!(a.stop().success() && b.stop().success() && frozen.stop().success());
}

#[test]
fn process_of_another_cluster_is_rejected_with_one_log_line() {
    let cluster = TestCluster::new();
    let member = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    let status = cluster.status();
    let found = &status["members"][0];
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    let to = Member {
        id: MemberId(u128::from_str_radix(&text("id"), 16).unwrap()),
        name: text("name"),
        address: text("address"),
        owns: true,
        build: text("build"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let identity = Identity::new(&Runtime::real(), Authority::generate().unwrap(), &[]).unwrap();
        let foreign = HttpPeers::new(&Runtime::real(), identity, "foreign", PeersOptions::default());
        for _ in 0..5 {
            let error = foreign.check(&to).await.unwrap_err().to_string();
            assert!(error.contains("no authority of this cluster issued the peer's certificate"), "{error}");
        }
    });
    let line = "TLS between members failed: the peer rejected this member's certificate";
    assert!(member.log.wait(|text| text.contains(line).then_some(())).is_some(), "{}", member.log.text());
    let log = member.log.clone();
    assert!(member.stop().success());
    assert_eq!(log.text().matches("TLS between members failed").count(), 1, "{}", log.text());
}

#[test]
fn key_of_the_authority_follows_the_first_line_of_the_key_file() {
    let cluster = TestCluster::new();
    let key_id = || cluster.sql("select encode(substring(key from 2 for 8), 'hex') from reveille.authority");
    let first = key_id();
    let path = cluster.key_folder().join("store.key");
    let old = std::fs::read_to_string(&path).unwrap();
    let new = format!("rvsk_{}\n", "QUFB".repeat(10) + "QUE=");
    std::fs::write(&path, new + &old).unwrap();
    let migrated = run(&mut cluster.migrate());
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    let second = key_id();
    assert_ne!(first, second);
    std::fs::write(&path, old.clone() + &format!("rvsk_{}\n", "QUFB".repeat(10) + "QUE=")).unwrap();
    // A member that starts encrypts the key again, too.
    let member = cluster.start("a");
    assert_eq!(key_id(), first);
    assert!(member.stop().success());
}
