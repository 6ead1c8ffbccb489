//! Test that damages a block of due rows on the disk. Every acknowledged schedule must still fire.

use std::collections::BTreeMap;

use serde_json::json;

use crate::client::one_shot;
use crate::now_millis;
use crate::receiver::Receiver;
use crate::server::Server;

const SCHEDULES: usize = 600;

#[test]
fn every_schedule_fires_once_after_damage_to_a_block_of_due_rows() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let server = Server::start(&data);
    let mut client = server.client();
    let create = |client: &mut crate::client::Client, number: usize, ahead_millis: u64| {
        let id = format!("schedule-{number}");
        let schedule = one_shot(&id, now_millis() + ahead_millis, &receiver.url(), &json!({ "number": number }));
        assert_eq!(client.create(&schedule).status, 201);
    };
    (0..SCHEDULES).for_each(|number| create(&mut client, number, 4_000));
    assert!(server.stop().success());

    let tables = std::fs::read_dir(data.join("store/index/due/tables")).unwrap();
    let largest = tables.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    std::fs::write(&largest, bytes).unwrap();

    let server = Server::start(&data);
    let mut client = server.client();
    (SCHEDULES..2 * SCHEDULES).for_each(|number| create(&mut client, number, 100));
    let hits = receiver.wait(|hits| hits.len() >= 2 * SCHEDULES);
    let metrics = client.get("/metrics").body;
    // The block contains rows of several pollers, and the server reports it once.
    assert!(metrics.contains("reveille_store_unreadable_ranges_total 1\n"), "{metrics}");
    assert!(server.stop().success());
    let mut fired: BTreeMap<String, usize> = BTreeMap::new();
    hits.into_iter().for_each(|hit| *fired.entry(hit.schedule).or_default() += 1);
    assert_eq!(fired.len(), 2 * SCHEDULES);
    assert!(fired.values().all(|count| *count == 1));
}
