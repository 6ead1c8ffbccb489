//! Tests that acknowledged writes survive a restart, no matter which parts of the index the store has flushed.

use std::time::Duration;

use domain::Timestamp;
use futures_util::FutureExt as _;
use runtime::Runtime;
use simulator::Faults;
use store::{DueBound, DueRead, Store};
use store_embedded::{IndexKind, Options};

use crate::support::{Home, POLLER, TENANT, on_real, one_shot, small};

const EVERYTHING: DueRead =
    DueRead { poller: POLLER, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 1_000_000 };

#[test]
fn acknowledged_writes_survive_a_restart_with_lsm_index() {
    on_real(async |runtime| restarts(&runtime, small(IndexKind::Lsm)).await);
}

#[test]
fn acknowledged_writes_survive_a_restart_with_map_index() {
    on_real(async |runtime| restarts(&runtime, small(IndexKind::Map)).await);
}

#[test]
fn writes_survive_a_restart_with_a_partly_flushed_index() {
    // The store flushes the family `rows` many times and the other families never. When a replay applies an entry, the
    // index may therefore already contain rows of later entries.
    let options = Options { memtable_bytes: 20_000, checkpoint_bytes: 1 << 30, ..small(IndexKind::Lsm) };
    on_real(async |runtime| restarts(&runtime, options).await);
}

async fn restarts(runtime: &Runtime, options: Options) {
    let dir = tempfile::tempdir().unwrap();
    let mut inserts = Vec::new();
    for round in 0..4 {
        let home = Home::open(runtime, dir.path(), options.clone()).await;
        for number in 0..100 {
            let at = Timestamp::from_millis(1_800_000_000_000 + number * 37 % 50);
            let number = u64::try_from(round * 100 + number).unwrap();
            let name = format!("named-{number}");
            let id = number.is_multiple_of(3).then_some(name.as_str());
            let insert = one_shot(number, at, id, &vec![b'x'; 700]);
            home.store.insert(vec![insert.clone()]).await.unwrap();
            inserts.push(insert);
        }
        if round == 2 {
            home.store.checkpoint().await.unwrap();
        }
        home.close().await;

        let home = Home::open(runtime, dir.path(), options.clone()).await;
        let names = inserts.iter().map(|insert| (TENANT, insert.schedule.id.clone())).collect();
        let found = home.store.get(names).await.unwrap();
        for (insert, found) in inserts.iter().zip(found) {
            assert_eq!(found.as_ref(), Some(&insert.schedule));
        }
        let page = home.store.due(vec![EVERYTHING]).await.unwrap().remove(0);
        let mut expected: Vec<_> = inserts.iter().map(|insert| insert.due).collect();
        expected.sort();
        assert_eq!(page.keys, expected);
        home.close().await;
    }
}

#[test]
fn store_opens_if_no_journal_entry_wrote_a_row() {
    let sim = simulator::Simulation::new(1);
    sim.run_until(async {
        let runtime = sim.member("a");
        let dir = std::path::Path::new("/data");
        for _ in 0..3 {
            let home = Home::open(&runtime, dir, small(IndexKind::Map)).await;
            let unknown =
                store::Cancellation { tenant: TENANT, id: domain::ScheduleId::new("unknown").unwrap(), author: None };
            let marked = home.store.append_cancellations(vec![unknown]).await.unwrap();
            assert!(marked[0].before.is_none());
            home.close().await;
        }
    });
}

/// A look-up that waits for a busy disk would stop the thread that sends callbacks, and delay the callback.
#[test]
fn look_ups_leave_their_caller_and_due_schedules_load_ahead_while_the_disk_is_busy() {
    let sim = simulator::Simulation::new(1);
    sim.run_until(async {
        let runtime = sim.member("a");
        let home = Home::open(&runtime, std::path::Path::new("/data"), small(IndexKind::Map)).await;
        let insert = |number| one_shot(number, Timestamp::from_millis(1_800_000_000_000), None, b"x");
        let look_up = || home.store.get(vec![(TENANT, insert(1).schedule.id.clone())]);
        home.store.insert(vec![insert(1)]).await.unwrap();
        assert!(look_up().now_or_never().is_some(), "the row is in memory");

        sim.set_faults(Faults { sync_slow: 1.0, ..Faults::default() });
        home.store.insert(vec![insert(2)]).await.unwrap();
        sim.set_faults(Faults::default());
        let mut looking = look_up();
        assert!((&mut looking).now_or_never().is_none(), "a reader thread looks up the row");
        assert_eq!(looking.await.unwrap(), [Some(insert(1).schedule)]);
        home.store.due(vec![EVERYTHING]).await.unwrap();
        runtime.sleep(Duration::from_millis(1)).await;
        assert_eq!(home.store.stats().preloaded, 2, "the schedules of both due rows");

        runtime.sleep(Duration::from_secs(11)).await;
        assert!(look_up().now_or_never().is_some(), "the disk is no longer busy");
        home.store.due(vec![EVERYTHING]).await.unwrap();
        runtime.sleep(Duration::from_millis(1)).await;
        assert_eq!(home.store.stats().preloaded, 2);
        home.close().await;
    });
}
