//! Tests of power cuts and kills in a simulation. After a restart, the store must still have all acknowledged writes
//! and all states that it returned to a read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{DueKey, Incarnation, ScheduleId, Status, Term, Timestamp};
use runtime::{Runtime, TaskSet};
use simulator::{Faults, Incident, Simulation, run_seeds};
use store::{
    Cancellation, Change, DueBound, DueRead, Inserted, ListBy, ListRead, Order, OwnerWrite, Positions, Store,
    StoreError,
};
use store_embedded::{EmbeddedStore, IndexKind, Options};

use crate::support::{POLLER, TENANT, one_shot, small};

const DIR: &str = "/data";
const NAMES: u64 = 6;

/// Possible states of an id: no schedule, or an incarnation with a flag that is true if the schedule is cancelled.
type Possible = Vec<Option<(Incarnation, bool)>>;

/// Expected state of the store: the results that it returned, and the possible effects of calls without a response.
#[derive(Default)]
struct Expected {
    names: BTreeMap<ScheduleId, Possible>,
    /// Due rows of acknowledged writes, at positions after the poller's `done`.
    rows: Vec<DueKey>,
    closed: Timestamp,
    done: Timestamp,
    terms: Vec<Term>,
    numbers: u64,
}

#[derive(Clone, Default)]
struct Record(Arc<Mutex<Expected>>);

impl Record {
    fn expected(&self) -> MutexGuard<'_, Expected> {
        self.0.lock().unwrap()
    }

    fn number(&self) -> u64 {
        let mut expected = self.expected();
        expected.numbers += 1;
        expected.numbers
    }
}

impl Expected {
    fn possible(&mut self, id: &ScheduleId) -> &mut Possible {
        self.names.entry(id.clone()).or_insert_with(|| vec![None])
    }

    /// Records the state that a read or a response returned for an id.
    fn narrow(&mut self, id: &ScheduleId, found: Option<(Incarnation, bool)>) {
        let possible = self.possible(id);
        assert!(possible.contains(&found), "{id} is {found:?}, but only {possible:?} are possible");
        *possible = vec![found];
    }
}

fn options(seed: u64) -> Options {
    // Because the memtables are small, the store flushes the families of rows at different times. Checkpoints are
    // frequent or very rare, depending on the seed.
    let checkpoint_bytes = [2_000, 10_000, 1 << 30][usize::try_from(seed % 3).unwrap()];
    Options { memtable_bytes: 1_500, checkpoint_bytes, ..small(IndexKind::Map) }
}

async fn open(runtime: &Runtime, tasks: &TaskSet, options: Options) -> EmbeddedStore {
    EmbeddedStore::open(runtime, tasks, Path::new(DIR), options).await.expect("a crash damages no file")
}

/// Checks that the store has the expected state, and makes `rounds` rounds of calls. A crash may end the process before
/// the last round.
async fn live(runtime: Runtime, record: Record, options: Options, rounds: usize) {
    let tasks = TaskSet::new(&runtime);
    let store = open(&runtime, &tasks, options).await;
    check(&store, &record).await;
    for _ in 0..rounds {
        let _ignored = work(&runtime, &store, &record).await;
    }
    check(&store, &record).await;
    store.close().await;
    drop(store);
    tasks.join().await;
}

async fn check(store: &EmbeddedStore, record: &Record) {
    let names: Vec<ScheduleId> = record.expected().names.keys().cloned().collect();
    let found = store.get(names.iter().map(|id| (TENANT, id.clone())).collect()).await.unwrap();
    for (id, found) in names.iter().zip(found) {
        let found = found.map(|schedule| (schedule.incarnation, schedule.status == Status::Cancelled));
        record.expected().narrow(id, found);
    }
    let everything =
        DueRead { poller: POLLER, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 1_000_000 };
    let page = store.due(vec![everything]).await.unwrap().remove(0);
    let positions = store.positions(vec![POLLER]).await.unwrap()[0];
    let read = ListRead { tenant: TENANT, by: ListBy::All, order: Order::Oldest, after: None, limit: 1_000_000 };
    let listed = store.list(read).await.unwrap().incarnations;
    assert!(listed.is_sorted_by(|one, next| one < next), "each schedule is listed once, in order");
    let mut expected = record.expected();
    let unlisted = expected.rows.iter().find(|row| listed.binary_search(&row.occurrence.incarnation).is_err());
    assert_eq!(unlisted, None, "a schedule is missing from the listing");
    assert!(positions.closed >= expected.closed && positions.done >= expected.done, "a position decreased");
    expected.closed = positions.closed;
    expected.done = positions.done;
    let missing = expected.rows.iter().find(|row| row.position > positions.done && !page.keys.contains(row));
    assert_eq!(missing, None, "a due row is lost");
}

async fn work(runtime: &Runtime, store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let id = ScheduleId::new(&format!("name-{}", runtime.random() % NAMES)).unwrap();
    match runtime.random() % 8 {
        0..4 => insert(runtime, store, record, &id).await,
        4..6 => append_cancellations(store, record, &id).await,
        6 => own(store, record).await,
        _ => insert_unnamed(store, record).await,
    }
}

async fn insert_unnamed(store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let new = one_shot(record.number(), Timestamp::from_millis(1_800_000_000_000), None, b"made");
    let Inserted::Placed(placed) = store.insert(vec![new.clone()]).await?.remove(0) else {
        panic!("no schedule conflicts with a new incarnation");
    };
    record.expected().rows.push(DueKey { position: placed.position, ..new.due });
    assert_eq!(store.load(vec![new.schedule.incarnation]).await?, [Some(new.schedule)]);
    Ok(())
}

async fn insert(runtime: &Runtime, store: &EmbeddedStore, record: &Record, id: &ScheduleId) -> Result<(), StoreError> {
    let at = Timestamp::from_millis(1_800_000_000_000 + i64::try_from(runtime.random() % 5_000).unwrap());
    let requested = one_shot(record.number(), at, Some(id.as_str()), &[b'x'; 300]);
    let incarnation = requested.schedule.incarnation;
    {
        // If the id is free, the insert may take effect even if no response arrives. The test therefore accepts both
        // states of the id: with and without the new schedule.
        let mut expected = record.expected();
        let possible = expected.possible(id);
        if possible.iter().any(|known| known.is_none_or(|(_, cancelled)| cancelled)) {
            possible.push(Some((incarnation, false)));
        }
    }
    let response = store.insert(vec![requested.clone()]).await?.remove(0);
    let mut expected = record.expected();
    match response {
        Inserted::Placed(placed) => {
            expected.narrow(id, Some((incarnation, false)));
            expected.rows.push(DueKey { position: placed.position, ..requested.due });
        }
        Inserted::Exists(other) => expected.narrow(id, Some((other, false))),
    }
    Ok(())
}

async fn append_cancellations(store: &EmbeddedStore, record: &Record, id: &ScheduleId) -> Result<(), StoreError> {
    {
        let mut expected = record.expected();
        let possible = expected.possible(id);
        let cancelled: Possible = possible.iter().flatten().map(|(known, _)| Some((*known, true))).collect();
        possible.extend(cancelled);
    }
    let marked = store
        .append_cancellations(vec![Cancellation { tenant: TENANT, id: id.clone(), author: None }])
        .await?
        .remove(0);
    let found = marked.before.map(|before| (before.incarnation, true));
    record.expected().narrow(id, found);
    Ok(())
}

/// Takes the shard and advances the positions of its poller.
async fn own(store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let term = store.take(vec![POLLER.shard()]).await?[0];
    let to = {
        let mut expected = record.expected();
        assert!(expected.terms.last().is_none_or(|last| *last < term), "a term was minted twice");
        expected.terms.push(term);
        let done = expected.done.max(Timestamp::from_millis(1_799_999_999_990)) + Duration::from_millis(10);
        Positions { closed: done + Duration::from_millis(100), done }
    };
    let write = OwnerWrite { term, poller: POLLER, change: Change::Positions(to) };
    store.write(vec![write]).await?.remove(0).expect("the store accepts the newest term");
    let mut expected = record.expected();
    expected.closed = expected.closed.max(to.closed);
    expected.done = expected.done.max(to.done);
    Ok(())
}

/// Runs several processes with the same store, one after another. `cut` ends each process except the last at a random
/// time. The last process closes the store.
fn lives(sim: &Simulation, cut: impl Fn(&Simulation)) {
    let record = Record::default();
    sim.run_until(async {
        let mut a = sim.member("a");
        for _ in 0..5 {
            let worked = sim.call("a", live(a, record.clone(), options(sim.seed()), 100_000));
            let wait = Duration::from_micros(1 + sim.draw(|random| random.below(60_000)));
            let outcome = sim.outside().timeout(wait, worked).await;
            if sim.is_up("a") {
                assert!(outcome.is_none(), "a life ends only by `cut`");
                cut(sim);
            }
            a = sim.restart("a");
        }
        sim.set_faults(Faults::default());
        sim.call("a", live(a, record.clone(), options(sim.seed()), 20)).await.expect("no crash ends the last life");
        let expected = record.expected();
        assert!(expected.names.len() as u64 == NAMES || expected.numbers < 100, "most names were used");
    });
}

#[test]
fn acknowledged_writes_survive_power_cuts_and_process_kills() {
    let coverage = run_seeds("store-embedded-crashes", 0..60, |sim| {
        lives(sim, |sim| if sim.draw(simulator::Random::coin) { sim.kill("a") } else { sim.crash("a") });
    });
    coverage.assert_happened(&[Incident::Crash, Incident::Kill, Incident::TornWrite, Incident::LostName]);
}

#[test]
fn acknowledged_writes_survive_failed_and_slow_syncs() {
    let coverage = run_seeds("store-embedded-syncs", 0..60, |sim| {
        sim.set_faults(Faults { sync_fail: 0.002, sync_slow: 0.005, ..Faults::default() });
        let record = Record::default();
        sim.run_until(async {
            let mut a = sim.member("a");
            for _ in 0..4 {
                let opened = a.clone();
                let there = record.clone();
                let seed = sim.seed();
                // If a sync fails during the open, the open returns an error. If a later sync of the journal fails, the
                // process ends.
                let worked = async move {
                    let tasks = TaskSet::new(&opened);
                    let Ok(store) = EmbeddedStore::open(&opened, &tasks, Path::new(DIR), options(seed)).await else {
                        return;
                    };
                    for _ in 0..100_000 {
                        let _ignored = work(&opened, &store, &there).await;
                    }
                };
                let worked = sim.call("a", worked);
                let _cut = sim.outside().timeout(Duration::from_millis(200), worked).await;
                if sim.is_up("a") {
                    sim.kill("a");
                }
                a = sim.restart("a");
            }
            sim.set_faults(Faults::default());
            sim.call("a", live(a, record.clone(), options(sim.seed()), 20)).await.expect("no sync fails any more");
        });
    });
    coverage.assert_happened(&[Incident::FailedSync, Incident::SlowSync, Incident::Halt]);
}
