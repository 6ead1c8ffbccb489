//! Tests that no two replicas hold a lease at the same time, and that terms rise, while connections fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use coordination::tree::NodePath;
use coordination::{Elector as _, Term};
use coordination_kafka::{LEASE_SHORTEST, TopicElector};
use runtime::{Monotonic, Runtime, TaskSet};
use simulator::Simulation;

const LEASE: Duration = LEASE_SHORTEST;

/// Lease that an elector granted to a replica.
#[derive(Clone, Copy, Debug)]
struct Lease {
    replica: &'static str,
    term: Term,
    from: Monotonic,
    to: Monotonic,
}

async fn elector(runtime: &Runtime, bus: Arc<MemoryBus>) -> TopicElector {
    let group = NodePath::new("/jobs").unwrap();
    TopicElector::open(runtime, bus, &group, LEASE).await.unwrap()
}

/// Calls the elector as a replica without end. Sometimes it resigns, and sometimes it calls too late.
async fn take_part(runtime: Runtime, elector: TopicElector, replica: &'static str, leases: Arc<Mutex<Vec<Lease>>>) {
    loop {
        let called = runtime.monotonic();
        match elector.is_leader(replica, LEASE).await {
            Ok(leadership) if leadership.leads => {
                let (from, to) = (runtime.monotonic(), called + LEASE);
                leases.lock().unwrap().push(Lease { replica, term: leadership.term, from, to });
            }
            Ok(_) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        match runtime.random() % 40 {
            0 => runtime.sleep(LEASE * 2).await,
            1 => {
                // The replica ends its lease itself.
                let now = runtime.monotonic();
                if let Some(last) = leases.lock().unwrap().iter_mut().rev().find(|lease| lease.replica == replica) {
                    last.to = last.to.min(now);
                }
                if let Err(error) = elector.resign(replica).await {
                    assert!(error.is_retryable(), "{error}");
                }
            }
            _ => runtime.sleep(LEASE / 4).await,
        }
    }
}

#[test]
fn at_most_one_replica_holds_a_lease_and_terms_rise() {
    for seed in 0..16 {
        let sim = Simulation::new(seed);
        sim.run_until(async {
            let runtime = sim.outside();
            let latency = Some(Duration::ZERO..=Duration::from_millis(20));
            let bus = MemoryBus::new(runtime.clone(), MemoryOptions { latency, ..MemoryOptions::default() });
            let leases = Arc::new(Mutex::new(Vec::<Lease>::new()));
            let tasks = TaskSet::new(&runtime);
            let mut handles = Vec::new();
            for replica in ["a", "b", "c"] {
                let handle = Arc::new(bus.reopen(runtime.clone()));
                let elector = elector(&runtime, handle.clone()).await;
                handles.push(handle);
                tasks.spawn("replica", take_part(runtime.clone(), elector, replica, leases.clone()));
            }
            for _ in 0..30 {
                let pause = Duration::from_millis(runtime.random() % 9_000);
                let handle = &handles[usize::try_from(runtime.random() % 3).unwrap()];
                if runtime.random().is_multiple_of(2) {
                    handle.cut(true);
                } else {
                    handle.cut_answers();
                }
                runtime.sleep(pause).await;
                handle.cut(false);
                runtime.sleep(pause / 2).await;
            }
            runtime.sleep(LEASE * 10).await;
            drop(tasks);
            let mut leases = leases.lock().unwrap().clone();
            leases.sort_by_key(|lease| lease.from);
            let mut terms: Vec<Term> = leases.iter().map(|lease| lease.term).collect();
            terms.dedup();
            assert!(terms.len() > 5, "seed {seed}: only {} leaderships", terms.len());
            for pair in leases.windows(2) {
                assert!(pair[0].term <= pair[1].term, "seed {seed}: a later term is smaller: {pair:?}");
                let is_same = pair[0].term == pair[1].term && pair[0].replica == pair[1].replica;
                assert!(is_same || pair[0].to < pair[1].from, "seed {seed}: two leases at the same time: {pair:?}");
            }
            let last = leases.last().unwrap();
            assert!(last.to > runtime.monotonic(), "seed {seed}: no replica leads without faults");
        });
    }
}
