//! Power cuts and kills in a simulated world: what was answered, or read once, stays so.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{DueKey, Incarnation, ScheduleId, Status, Term, Timestamp};
use runtime::{Runtime, TaskSet};
use simulator::{Faults, Incident, Simulation, run_seeds};
use store::{Change, DueBound, DueRead, Inserted, ListBy, ListRead, Mark, OwnerWrite, Positions, Store, StoreError};
use store_embedded::{EmbeddedStore, IndexKind, Options};

use crate::support::{POLLER, TENANT, one_shot, small};

const DIR: &str = "/data";
const NAMES: u64 = 6;

/// What a name may stand for: nothing, or an incarnation that is cancelled or not.
type Possible = Vec<Option<(Incarnation, bool)>>;

/// What the store has told, and what it may be since calls that were not answered.
#[derive(Default)]
struct Told {
    names: BTreeMap<ScheduleId, Possible>,
    /// Rows that were answered, at positions where no poller was done yet.
    rows: Vec<DueKey>,
    closed: Timestamp,
    done: Timestamp,
    terms: Vec<Term>,
    numbers: u64,
}

#[derive(Clone, Default)]
struct Record(Arc<Mutex<Told>>);

impl Record {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap()
    }

    fn number(&self) -> u64 {
        let mut told = self.told();
        told.numbers += 1;
        told.numbers
    }
}

impl Told {
    fn possible(&mut self, id: &ScheduleId) -> &mut Possible {
        self.names.entry(id.clone()).or_insert_with(|| vec![None])
    }

    /// A read or an answer has told what a name stands for.
    fn narrow(&mut self, id: &ScheduleId, found: Option<(Incarnation, bool)>) {
        let possible = self.possible(id);
        assert!(possible.contains(&found), "{id} is {found:?}, and can only be one of {possible:?}");
        *possible = vec![found];
    }
}

fn options(seed: u64) -> Options {
    // Families are flushed at different moments; checkpoints come often, or hardly ever.
    let checkpoint_bytes = [2_000, 10_000, 1 << 30][usize::try_from(seed % 3).unwrap()];
    Options { memtable_bytes: 1_500, checkpoint_bytes, ..small(IndexKind::Map) }
}

async fn open(runtime: &Runtime, tasks: &TaskSet, options: Options) -> EmbeddedStore {
    EmbeddedStore::open(runtime, tasks, Path::new(DIR), options).await.expect("a crash damages nothing")
}

/// Checks everything that was told, then works until it is cut.
async fn live(runtime: Runtime, record: Record, options: Options, rounds: usize) {
    let tasks = TaskSet::new(&runtime);
    let store = open(&runtime, &tasks, options).await;
    check(&store, &record).await;
    for _ in 0..rounds {
        let _unanswered = work(&runtime, &store, &record).await;
    }
    check(&store, &record).await;
    store.close().await;
    drop(store);
    tasks.join().await;
}

async fn check(store: &EmbeddedStore, record: &Record) {
    let names: Vec<ScheduleId> = record.told().names.keys().cloned().collect();
    let found = store.get(names.iter().map(|id| (TENANT, id.clone())).collect()).await.unwrap();
    for (id, found) in names.iter().zip(found) {
        let found = found.map(|schedule| (schedule.incarnation, schedule.status == Status::Cancelled));
        record.told().narrow(id, found);
    }
    let everything =
        DueRead { poller: POLLER, after: DueBound::Instant(Timestamp::MIN), until: Timestamp::MAX, limit: 1_000_000 };
    let page = store.due(vec![everything]).await.unwrap().remove(0);
    let positions = store.positions(vec![POLLER]).await.unwrap()[0];
    let read = ListRead { tenant: TENANT, by: ListBy::All, after: None, limit: 1_000_000 };
    let listed = store.list(read).await.unwrap().incarnations;
    assert!(listed.is_sorted_by(|one, next| one < next), "each is listed once, in order");
    let mut told = record.told();
    let unlisted = told.rows.iter().find(|row| listed.binary_search(&row.occurrence.incarnation).is_err());
    assert_eq!(unlisted, None, "a schedule is not listed");
    assert!(positions.closed >= told.closed && positions.done >= told.done, "positions went back");
    told.closed = positions.closed;
    told.done = positions.done;
    let missing = told.rows.iter().find(|row| row.position > positions.done && !page.keys.contains(row));
    assert_eq!(missing, None, "a due row is lost");
}

async fn work(runtime: &Runtime, store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let id = ScheduleId::new(&format!("name-{}", runtime.random() % NAMES)).unwrap();
    match runtime.random() % 8 {
        0..4 => insert(runtime, store, record, &id).await,
        4..6 => mark(store, record, &id).await,
        6 => own(store, record).await,
        _ => insert_made(store, record).await,
    }
}

async fn insert_made(store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let made = one_shot(record.number(), Timestamp::from_millis(1_800_000_000_000), None, b"made");
    let Inserted::Placed(placed) = store.insert(vec![made.clone()]).await?.remove(0) else {
        panic!("a new incarnation is in nobody's way");
    };
    record.told().rows.push(DueKey { position: placed.position, ..made.due });
    assert_eq!(store.load(vec![made.schedule.incarnation]).await?, [Some(made.schedule)]);
    Ok(())
}

async fn insert(runtime: &Runtime, store: &EmbeddedStore, record: &Record, id: &ScheduleId) -> Result<(), StoreError> {
    let at = Timestamp::from_millis(1_800_000_000_000 + i64::try_from(runtime.random() % 5_000).unwrap());
    let asked = one_shot(record.number(), at, Some(id.as_str()), &[b'x'; 300]);
    let incarnation = asked.schedule.incarnation;
    {
        // Until it is answered it may take effect, where the name is free.
        let mut told = record.told();
        let possible = told.possible(id);
        if possible.iter().any(|known| known.is_none_or(|(_, cancelled)| cancelled)) {
            possible.push(Some((incarnation, false)));
        }
    }
    let answer = store.insert(vec![asked.clone()]).await?.remove(0);
    let mut told = record.told();
    match answer {
        Inserted::Placed(placed) => {
            told.narrow(id, Some((incarnation, false)));
            told.rows.push(DueKey { position: placed.position, ..asked.due });
        }
        Inserted::Exists(other) => told.narrow(id, Some((other, false))),
    }
    Ok(())
}

async fn mark(store: &EmbeddedStore, record: &Record, id: &ScheduleId) -> Result<(), StoreError> {
    {
        let mut told = record.told();
        let possible = told.possible(id);
        let cancelled: Possible = possible.iter().flatten().map(|(known, _)| Some((*known, true))).collect();
        possible.extend(cancelled);
    }
    let marked = store.mark(vec![Mark { tenant: TENANT, id: id.clone() }]).await?.remove(0);
    let found = marked.before.map(|before| (before.incarnation, true));
    record.told().narrow(id, found);
    Ok(())
}

/// Takes the shard and moves its poller's positions.
async fn own(store: &EmbeddedStore, record: &Record) -> Result<(), StoreError> {
    let term = store.take(vec![POLLER.shard()]).await?[0];
    let to = {
        let mut told = record.told();
        assert!(told.terms.last().is_none_or(|last| *last < term), "a term was minted twice");
        told.terms.push(term);
        let done = told.done.max(Timestamp::from_millis(1_799_999_999_990)) + Duration::from_millis(10);
        Positions { closed: done + Duration::from_millis(100), done }
    };
    let write = OwnerWrite { term, poller: POLLER, change: Change::Positions(to) };
    store.write(vec![write]).await?.remove(0).expect("the newest term is obeyed");
    let mut told = record.told();
    told.closed = told.closed.max(to.closed);
    told.done = told.done.max(to.done);
    Ok(())
}

/// Cuts each life of a store somewhere, then lets one end in peace.
fn lives(sim: &Simulation, cut: impl Fn(&Simulation)) {
    let record = Record::default();
    sim.run_until(async {
        let mut a = sim.member("a");
        for _ in 0..5 {
            let worked = sim.call("a", live(a, record.clone(), options(sim.seed()), 100_000));
            let wait = Duration::from_micros(1 + sim.draw(|random| random.below(60_000)));
            let outcome = sim.outside().timeout(wait, worked).await;
            if sim.is_up("a") {
                assert!(outcome.is_none(), "it works until it is cut");
                cut(sim);
            }
            a = sim.restart("a");
        }
        sim.set_faults(Faults::default());
        sim.call("a", live(a, record.clone(), options(sim.seed()), 20)).await.expect("nothing cuts the last life");
        let told = record.told();
        assert!(told.names.len() as u64 == NAMES || told.numbers < 100, "most names were used");
    });
}

#[test]
fn what_was_answered_outlives_power_cuts_and_kills() {
    let coverage = run_seeds("store-embedded-crashes", 0..60, |sim| {
        lives(sim, |sim| if sim.draw(simulator::Random::coin) { sim.kill("a") } else { sim.crash("a") });
    });
    coverage.assert_happened(&[Incident::Crash, Incident::Kill, Incident::TornWrite, Incident::LostName]);
}

#[test]
fn what_was_answered_outlives_failing_and_slow_syncs() {
    let coverage = run_seeds("store-embedded-syncs", 0..60, |sim| {
        sim.set_faults(Faults { sync_fail: 0.002, sync_slow: 0.005, ..Faults::default() });
        let record = Record::default();
        sim.run_until(async {
            let mut a = sim.member("a");
            for _ in 0..4 {
                let opened = a.clone();
                let there = record.clone();
                let seed = sim.seed();
                // A failure while opening is told; later, one in the journal ends the process.
                let worked = async move {
                    let tasks = TaskSet::new(&opened);
                    let Ok(store) = EmbeddedStore::open(&opened, &tasks, Path::new(DIR), options(seed)).await else {
                        return;
                    };
                    for _ in 0..100_000 {
                        let _unanswered = work(&opened, &store, &there).await;
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
            sim.call("a", live(a, record.clone(), options(sim.seed()), 20)).await.expect("nothing fails any more");
        });
    });
    coverage.assert_happened(&[Incident::FailedSync, Incident::SlowSync, Incident::Halt]);
}
