//! Tests of cron schedules around clock changes, from the request to the callback. The test sets the wall clock of the
//! server, and an oracle that shares no code with the server computes the expected instants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cron_oracle::{Expression, Zone};
use domain::Timestamp;
use server::Options;
use tokio::sync::mpsc;

use crate::set_clock::{Report, with_clock};
use crate::support::World;

const HOUR_SECS: i64 = 3_600;
/// Timeout of each wait for a callback, so that a missing callback fails the test.
const TIMEOUT: Duration = Duration::from_secs(20);

fn instant(unix_secs: i64) -> Timestamp {
    Timestamp::from_millis(unix_secs * 1_000)
}

/// Creates cron schedules two hours before a clock change. Sets the clock to each expected instant in turn, until three
/// hours after the change, and checks that exactly the expected schedules fire for this instant.
async fn check(change: i64, crons: &[(Expression, &str)]) {
    let (start, end) = (change - 2 * HOUR_SECS, change + 3 * HOUR_SECS);
    let unix_secs = Arc::new(AtomicI64::new(start));
    let reading = unix_secs.clone();
    let runtime = with_clock(move |_| instant(reading.load(Ordering::SeqCst)));
    let (sender, mut callbacks) = mpsc::unbounded_channel();
    let world = World::start_on(runtime, Arc::new(Report(sender)), Options::default()).await;
    let mut expected: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for (number, (expression, zone)) in crons.iter().enumerate() {
        let instants = expression.instants(Zone::named(zone).unwrap(), start, end);
        let body = serde_json::json!({
            "id": format!("cron-{number}"),
            "cron": expression.to_string(),
            "zone": zone,
            "target": { "http": { "url": "http://127.0.0.1:9/hook" } },
        });
        let created = world.send("POST", "/v1/schedules", &body.to_string()).await;
        assert_eq!(created.status, 201, "{}", created.body);
        assert_eq!(created.text("/next"), instant(instants[0]).to_string(), "{expression} in {zone}");
        for unix in instants {
            expected.entry(unix).or_default().insert(format!("cron-{number}"));
        }
    }
    for (unix, ids) in &expected {
        unix_secs.store(*unix, Ordering::SeqCst);
        let mut fired = BTreeSet::new();
        for _ in ids {
            let callback = world.runtime.timeout(TIMEOUT, callbacks.recv()).await;
            let (id, nominal) = callback.expect("the schedule fires in time").expect("the target is connected");
            assert_eq!(nominal, instant(*unix), "{id} fires for this instant");
            fired.insert(id);
        }
        assert_eq!(fired, *ids, "schedules that fire at {}", instant(*unix));
    }
    assert!(callbacks.try_recv().is_err(), "no schedule fires a second time");
    world.stop().await;
}

fn at(minutes: &[u8], hours: &[u8]) -> Expression {
    Expression::new(&[0], minutes, hours)
}

fn every_hour_at(minute: u8) -> Expression {
    at(&[minute], &(0..24).collect::<Vec<u8>>())
}

#[tokio::test]
async fn cron_schedules_fire_in_local_time_when_summer_time_begins() {
    let change = Zone::named("Europe/Berlin").unwrap().changes().next().unwrap();
    let crons = [
        (at(&[30], &[2]), "Europe/Berlin"),
        (at(&[0], &[2, 3]), "Europe/Berlin"),
        (at(&[15], &[1, 2, 3, 4]), "Europe/Berlin"),
        (every_hour_at(30), "Europe/Berlin"),
        (at(&[0, 45], &[0, 2]), "Atlantic/Azores"),
        (at(&[45], &[5, 6, 7, 8]), "Asia/Kathmandu"),
    ];
    check(change, &crons).await;
}

#[tokio::test]
async fn cron_schedules_fire_in_local_time_when_summer_time_ends() {
    let change = Zone::named("Europe/Berlin").unwrap().changes().nth(1).unwrap();
    let crons = [
        (at(&[30], &[2]), "Europe/Berlin"),
        (at(&[0], &[2, 3]), "Europe/Berlin"),
        (at(&[15], &[1, 2, 3, 4]), "Europe/Berlin"),
        (every_hour_at(30), "Europe/Berlin"),
        (at(&[0, 45], &[0, 1]), "Atlantic/Azores"),
        (at(&[45], &[5, 6, 7, 8]), "Asia/Kathmandu"),
    ];
    check(change, &crons).await;
}
