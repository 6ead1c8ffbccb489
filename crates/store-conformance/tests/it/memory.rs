//! Tests of properties of the in-memory engine: its weak form, its failures and its assertions.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use domain::{DueKey, ScheduleId, Term};
use futures_util::FutureExt as _;
use futures_util::future::{join, poll_immediate};
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Cancellation, Change, Cursor, Health, Insert, Inserted, OwnerWrite, Positions, Store, StoreError};

use crate::support::{POLLER, TENANT, has_row, has_schedule, insert, minute, on_real, weak_and_slow};

#[test]
fn non_atomic_memory_store_can_show_a_due_row_before_its_schedule() {
    let mut rows_alone = 0;
    for seed in 0..40 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let store = MemoryStore::new(sim.member("a"), weak_and_slow());
            let insert = insert(1, None);
            let watch = async {
                while !has_schedule(&store, &insert).await {
                    // The test reads the due row first and the schedule second. If it finds only the row, the row was
                    // visible without its schedule.
                    rows_alone += u32::from(has_row(&store, &insert).await && !has_schedule(&store, &insert).await);
                }
                assert!(has_row(&store, &insert).await, "a schedule exists without its row");
            };
            let (inserted, ()) = join(store.insert(vec![insert.clone()]), watch).await;
            assert!(inserted.is_ok());
        });
    }
    assert!(rows_alone > 0, "the steps of the weak engine are never observed separately");
}

#[test]
fn atomic_memory_store_shows_due_row_and_schedule_together() {
    for seed in 0..40 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let store = MemoryStore::new(sim.member("a"), MemoryOptions { atomic: true, ..weak_and_slow() });
            let insert = insert(1, None);
            let watch = async {
                while !has_schedule(&store, &insert).await {
                    assert!(!has_row(&store, &insert).await || has_schedule(&store, &insert).await);
                }
            };
            let (inserted, ()) = join(store.insert(vec![insert.clone()]), watch).await;
            assert!(inserted.is_ok());
        });
    }
}

#[test]
fn insert_whose_future_is_dropped_keeps_its_completed_steps() {
    let mut left = Vec::new();
    for (polls, seed) in (0..8).flat_map(|polls| (0..8).map(move |seed| (polls, seed))) {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let store = MemoryStore::new(sim.member("a"), MemoryOptions::weak());
            let insert = insert(1, Some("invoice-7"));
            let mut call = store.insert(vec![insert.clone()]);
            for _ in 0..polls {
                if poll_immediate(&mut call).await.is_some() {
                    return; // The insert has already ended, so the test cannot interrupt it.
                }
            }
            drop(call);
            left.push((has_row(&store, &insert).await, has_schedule(&store, &insert).await));
            let again = store.insert(vec![insert.clone()]).await.expect("the store accepts inserts");
            assert!(matches!(again[..], [Inserted::Placed(_)] | [Inserted::Exists(_)]));
            assert!(has_row(&store, &insert).await && has_schedule(&store, &insert).await);
        });
    }
    left.sort_unstable();
    left.dedup();
    assert_eq!(left, [(false, false), (true, false), (true, true)], "each pair is (row, schedule)");
}

#[test]
fn injected_failure_can_occur_after_any_step_of_an_insert() {
    let mut left = Vec::new();
    for seed in 0..60 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let flaky = MemoryStore::new(sim.member("a"), MemoryOptions { fail_one_in: Some(2), ..weak_and_slow() });
            let insert = insert(1, None);
            if flaky.insert(vec![insert.clone()]).await.is_ok() {
                return;
            }
            let flaky = flaky.reopen(sim.member("b")).with_options(MemoryOptions::weak());
            left.push((has_row(&flaky, &insert).await, has_schedule(&flaky, &insert).await));
        });
    }
    left.sort_unstable();
    left.dedup();
    assert_eq!(left.len(), 3, "failures must leave nothing, the row, or both: {left:?}");
}

#[test]
fn memory_store_repeats_results_and_times_for_the_same_seed() {
    let history = |seed| {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let options = MemoryOptions { fail_one_in: Some(3), ..weak_and_slow() };
            let store = MemoryStore::new(sim.member("a"), options);
            let mut results = Vec::new();
            for number in 0..20 {
                let insert = insert(number, None);
                let one = async { format!("{:?} at {:?}", store.insert(vec![insert]).await, sim.elapsed()) };
                let other = async { format!("{:?} at {:?}", store.closed(vec![POLLER]).await, sim.elapsed()) };
                results.push(join(one, other).await);
            }
            results
        })
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}

#[test]
fn reopened_memory_store_keeps_data_after_a_member_crash() {
    let sim = Simulation::new(1);
    sim.run_until(async {
        let first = MemoryStore::new(sim.member("a"), weak_and_slow());
        let insert = insert(1, None);
        first.insert(vec![insert.clone()]).await.expect("the store accepts inserts");
        sim.crash("a");
        let second = first.reopen(sim.restart("a"));
        assert!(has_row(&second, &insert).await && has_schedule(&second, &insert).await);
    });
}

#[test]
fn full_store_rejects_user_writes_and_closed_store_rejects_reads() {
    on_real(async |runtime| {
        let store = MemoryStore::new(runtime, MemoryOptions::default());
        let insert = insert(1, Some("invoice-7"));
        let term = store.take(vec![POLLER.shard()]).await.expect("the store assigns a new term")[0];
        store.set_health(Health::Full);
        assert_eq!(store.health(), Health::Full);
        let rejected = store.insert(vec![insert.clone()]).await;
        assert!(matches!(rejected, Err(StoreError::Full { .. })), "{rejected:?}");
        let mark = Cancellation { tenant: TENANT, id: insert.schedule.id.clone(), author: None };
        assert!(matches!(store.append_cancellations(vec![mark]).await, Err(StoreError::Full { .. })));
        let positions = Change::Positions(Positions { closed: minute(1), done: minute(1) });
        let written = store.write(vec![OwnerWrite { term, poller: POLLER, change: positions }]).await;
        assert!(written.is_ok_and(|responses| responses[0].is_ok()));
        assert!(!has_schedule(&store, &insert).await);

        store.set_health(Health::Closed);
        assert!(matches!(store.closed(vec![POLLER]).await, Err(StoreError::Unavailable(_))));
        store.set_health(Health::Ready);
        assert!(store.insert(vec![insert]).await.is_ok(), "the store accepts writes again");
    });
}

/// Returns whether the model accepts the call without a panic. The model panics if a call breaks a rule of the store
/// port.
async fn keeps_the_rules<T>(call: impl Future<Output = T>) -> bool {
    AssertUnwindSafe(call).catch_unwind().await.is_ok()
}

#[test]
fn memory_store_panics_if_a_call_breaks_a_rule_of_the_store_port() {
    let breaks = |what: &str, changes: &dyn Fn(&Insert) -> Vec<Change>, term: Option<Term>| {
        on_real(async |runtime| {
            let store = MemoryStore::new(runtime, MemoryOptions::default());
            let insert = insert(1, None);
            store.insert(vec![insert.clone()]).await.expect("the store accepts inserts");
            let minted = store.take(vec![POLLER.shard()]).await.expect("the store assigns a new term")[0];
            let write = |change| OwnerWrite { term: term.unwrap_or(minted), poller: POLLER, change };
            let writes = changes(&insert).into_iter().map(write).collect();
            assert!(!keeps_the_rules(store.write(writes)).await, "{what}");
        });
    };
    let positions = |closed, done| Change::Positions(Positions { closed: minute(closed), done: minute(done) });
    breaks("done is beyond closed", &|_| vec![positions(1, 2)], None);
    breaks("a term was never minted", &|_| vec![positions(1, 1)], Some(Term(99)));
    breaks("a row is where its poller is done", &|it| vec![positions(5, 5), Change::Defer(it.due)], None);
    let early = |it: &Insert| DueKey { position: minute(0), ..it.due };
    breaks("a row is before its nominal instant", &|it| vec![Change::Defer(early(it))], None);
    let retry_without_row = |it: &Insert| {
        let run = domain::occurrence::Run {
            tenant: TENANT,
            occurrence: it.due.occurrence,
            state: domain::RunState::Retrying,
            attempts: Vec::new(),
        };
        vec![Change::Run { run, then: None, ends: false, origin: None }]
    };
    breaks("a retry has no row", &retry_without_row, None);
    let same_row_twice = |it: &Insert| vec![Change::Redrive { of: it.due.occurrence, due: it.due }];
    breaks("a redrive is not the next replay", &same_row_twice, None);
    let stolen = |it: &Insert| {
        let mut put = it.clone();
        std::sync::Arc::make_mut(&mut put.schedule).id = ScheduleId::new("another").expect("the id is valid");
        vec![Change::Put(put)]
    };
    breaks("an incarnation has two names", &stolen, None);
}

#[test]
fn memory_store_draws_latency_from_its_configured_range() {
    let sim = Simulation::new(3);
    sim.run_until(async {
        let latency = Duration::from_millis(5)..=Duration::from_millis(10);
        let options = MemoryOptions { latency: Some(latency), ..MemoryOptions::default() };
        let store = MemoryStore::new(sim.member("a"), options);
        for _ in 0..50 {
            let before = sim.elapsed();
            let shards: std::sync::Arc<[_]> = std::sync::Arc::new([POLLER.shard()]);
            store.cancellations(shards, Cursor::default()).await.expect("the store accepts reads");
            let took = sim.elapsed() - before;
            assert!((10..=21).contains(&took.as_millis()), "a call takes two latencies: {took:?}");
        }
    });
}
