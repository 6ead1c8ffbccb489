use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::MemoryBus;
use runtime::Runtime;
use simulator::{Incident, Simulation, run_seeds};

use crate::support::{assert_order, new_bus, open, options, record, stored};

const LIMIT: Duration = Duration::from_secs(600);

/// Numbers of the records that the buffer has accepted, and the number of the next record.
type Log = Arc<Mutex<(BTreeSet<u64>, u64)>>;

/// Sends batches of records one after the other, until the process ends.
async fn send(runtime: Runtime, bus: Arc<MemoryBus>, log: Log) {
    let producer = open(&runtime, &bus, options()).await;
    loop {
        let batch: Vec<u64> = {
            let mut log = log.lock().unwrap();
            let first = log.1;
            log.1 += 1 + runtime.random() % 20;
            (first..log.1).collect()
        };
        let outcomes = producer.send(batch.iter().map(|number| record(*number)).collect()).await;
        let accepted = batch.into_iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok());
        log.lock().unwrap().0.extend(accepted.map(|(number, _)| number));
        if runtime.random().is_multiple_of(4) {
            runtime.sleep(Duration::from_millis(runtime.random() % 100)).await;
        }
    }
}

#[test]
fn accepted_records_survive_crashes_and_cut_connections_in_their_order() {
    let coverage = run_seeds("bus-buffer", 0..120, |sim: &Simulation| {
        sim.set_time_limit(LIMIT);
        sim.run_until(async {
            let bus = new_bus(sim).await;
            let log = Log::default();
            let outside = sim.outside();
            for round in 0..6 {
                let runtime = if round == 0 { sim.member("a") } else { sim.restart("a") };
                let own = Arc::new(bus.reopen(runtime.clone()));
                let sending = send(runtime.clone(), own.clone(), log.clone());
                drop(runtime.spawn("sender", sending));
                for _ in 0..sim.draw(|random| random.below(4)) {
                    outside.sleep(Duration::from_millis(sim.draw(|random| random.below(1_500)))).await;
                    match sim.draw(|random| random.below(3)) {
                        0 => own.cut(true),
                        1 => own.cut_answers(),
                        _ => own.cut(false),
                    }
                }
                outside.sleep(Duration::from_millis(sim.draw(|random| random.below(1_500)))).await;
                if sim.draw(|random| random.below(2)) == 0 { sim.crash("a") } else { sim.kill("a") }
            }
            let runtime = sim.restart("a");
            let producer = open(&runtime, &bus.reopen(runtime.clone()), options()).await;
            assert_eq!(producer.close(LIMIT / 2).await, 0);
            let stored = stored(&outside, &bus).await;
            let accepted = std::mem::take(&mut log.lock().unwrap().0);
            assert_order(&stored, |number| accepted.contains(number));
            let found: BTreeSet<u64> = stored.into_values().flatten().collect();
            let lost: Vec<u64> = accepted.difference(&found).copied().collect();
            assert!(lost.is_empty(), "the bus has not stored the accepted records {lost:?}");
        });
    });
    coverage.assert_happened(&[Incident::Crash, Incident::Kill]);
}
