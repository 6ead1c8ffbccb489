//! Tests of terms after a fail-over that lost commits, after a restored dump, and after moves between the engines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use test_servers::postgres::{Postgres, shared};

use super::{TestCluster, failure, migrate, run};
use crate::client::{Client, one_shot};
use crate::receiver::{Hit, Receiver};
use crate::server::{BINARY, Server};
use crate::{now_millis, until};

fn term_of(hit: &Hit) -> u64 {
    let header = hit.headers.iter().find(|(name, _)| name == "reveille-term");
    header.expect("every callback has a term").1.parse().unwrap()
}

fn highest_term(hits: &[Hit]) -> u64 {
    hits.iter().map(term_of).max().unwrap_or(0)
}

/// Returns the number of callbacks of each schedule.
fn counts<'a>(hits: impl Iterator<Item = &'a Hit>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    hits.for_each(|hit| *counts.entry(hit.schedule.as_str()).or_default() += 1);
    counts
}

/// Fires a schedule, and returns the term of the callback.
fn fire(client: &mut Client, receiver: &Receiver, id: &str) -> u64 {
    let created = client.create(&one_shot(id, now_millis() + 50, &receiver.url(), &json!({})));
    assert_eq!(created.status, 201, "{}", created.body);
    let hits = receiver.wait(|hits| hits.iter().any(|hit| hit.schedule == id));
    term_of(hits.iter().find(|hit| hit.schedule == id).unwrap())
}

#[test]
fn members_continue_after_a_failover_that_lost_commits() {
    let primary = Postgres::start().unwrap();
    let url = primary.create_database().unwrap();
    let standby = primary.start_standby().unwrap();
    let port = format!("127.0.0.1:{}", primary.port());
    let url = url.replace(&port, &format!("{port},127.0.0.1:{}", standby.port()));
    let cluster = TestCluster::on_database(url, None);
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);
    let receiver = Receiver::start();
    let mut client = a.client();
    let recurring: BTreeSet<String> = (0..40).map(|n| format!("every{n}")).collect();
    for id in &recurring {
        let every = json!({ "id": id, "every": "1s", "target": { "http": { "url": receiver.url() } } });
        assert_eq!(client.create(&every).status, 201);
    }
    let later: BTreeSet<String> = (0..40).map(|n| format!("later{n}")).collect();
    let due = now_millis() + 8_000;
    for id in &later {
        assert_eq!(client.create(&one_shot(id, due, &receiver.url(), &json!({}))).status, 201);
    }
    let all_fired = |hits: &[Hit], ids: &BTreeSet<String>, times: usize, from: u64| {
        let counts = counts(hits.iter().filter(|hit| term_of(hit) >= from));
        ids.iter().all(|id| counts.get(id.as_str()).is_some_and(|count| *count >= times))
    };
    receiver.wait(|hits| all_fired(hits, &recurring, 1, 0));

    standby.wait_until_replayed(&primary).unwrap();
    standby.disconnect_from_primary().unwrap();
    let before = receiver.hits().len();
    let lost = one_shot("lost", now_millis() + 600_000, &receiver.url(), &json!({}));
    assert_eq!(client.create(&lost).status, 201);
    // The positions that the members write now are missing in the standby.
    receiver.wait(|hits| all_fired(&hits[before..], &recurring, 3, 0));
    primary.kill().unwrap();
    standby.promote().unwrap();

    let highest = highest_term(&receiver.hits());
    let hits = receiver.wait(|hits| all_fired(hits, &recurring, 2, highest + 1) && all_fired(hits, &later, 1, 0));
    let terms: BTreeMap<&str, Vec<u64>> = recurring
        .iter()
        .map(|id| (id.as_str(), hits.iter().filter(|hit| hit.schedule == *id).map(term_of).collect()))
        .collect();
    assert!(terms.values().all(|terms| terms.is_sorted()), "{terms:?}");
    for member in [&a, &b] {
        until("the member is ready", || member.client().get("/readyz").status == 200);
        assert_eq!(member.client().get("/v1/schedules/lost").status, 404);
        assert_eq!(member.client().get("/v1/schedules/every7").json()["state"], "active");
    }
    assert!(fire(&mut b.client(), &receiver, "new") > highest);
    let started = |member: &Server| {
        let metrics = member.client().get("/metrics").body;
        let value = metrics.lines().find_map(|line| line.strip_prefix("reveille_store_epochs_started_total "));
        value.unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(started(&a) + started(&b), 1, "one of the members starts the epoch");
    assert!(a.stop().success() && b.stop().success());
}

#[test]
fn restored_dump_is_rejected_until_the_command_starts_an_epoch() {
    let mut cluster = TestCluster::new();
    let receiver = Receiver::start();
    let member = cluster.start("a");
    let before = fire(&mut member.client(), &receiver, "before");
    assert!(member.stop().success());
    let restored = shared().create_database().unwrap();
    shared().dump_and_restore(&cluster.url, &restored).unwrap();
    cluster.url = restored;
    for command in [&mut cluster.serve("a"), &mut migrate(&cluster.url, &cluster.key_folder())] {
        let message = failure(command);
        assert!(message.contains("reveille store new-epoch"), "{message}");
    }
    let started = run(Command::new(BINARY).args(["store", "new-epoch", "--store", &cluster.url]));
    let message = String::from_utf8_lossy(&started.stdout);
    assert!(started.status.success() && message.contains("started epoch"), "{message}");
    let member = cluster.start("a");
    let after = fire(&mut member.client(), &receiver, "after");
    assert!(after >> 20 > before >> 20, "{after}, {before}");
    assert!(member.stop().success());
}

#[test]
fn terms_rise_when_schedules_move_between_the_engines() {
    let folder = tempfile::tempdir().unwrap();
    let (data, back) = (folder.path().join("data"), folder.path().join("back"));
    let receiver = Receiver::start();
    let url = shared().create_database().unwrap();
    let transfer = |direction: &str, data: &Path| {
        let output = run(Command::new(BINARY).args([direction, "--store", &url, "--data"]).arg(data));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // A folder that an earlier server has used may have a lower epoch than the database.
    assert!(Server::start(&back).stop().success());
    let server = Server::start(&data);
    let mut terms = vec![fire(&mut server.client(), &receiver, "embedded")];
    let far = one_shot("far", now_millis() + 600_000, &receiver.url(), &json!({}));
    assert_eq!(server.client().create(&far).status, 201);
    assert!(server.stop().success());

    transfer("export", &data);
    let mut member = Command::new(BINARY);
    member.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &url, "--data"]);
    member.arg(folder.path().join("member")).arg("--store-key").arg(data.join("store.key"));
    let member = Server::start_where(member, |_| data.clone());
    terms.push(fire(&mut member.client(), &receiver, "postgres"));
    assert!(member.stop().success());

    std::fs::copy(data.join("store.key"), back.join("store.key")).unwrap();
    transfer("import", &back);
    let server = Server::start_where(crate::server::serve(&back), |_| data.clone());
    terms.push(fire(&mut server.client(), &receiver, "back"));
    assert!(server.stop().success());
    let epochs: Vec<u64> = terms.iter().map(|term| term >> 20).collect();
    assert!(epochs.is_sorted_by(|one, other| one < other), "{epochs:?}");
}
