use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bus::{BusError, NewRecord, TopicName};
use bus_buffer::{Accepted, BufferError, BufferOptions, BufferedProducer, OpenError, WhenFull};
use runtime::{Runtime, TaskSet};

use crate::support::{assert_order, count, create_topic, new_bus, open, options, record, simulate, stored};

const SECOND: Duration = Duration::from_secs(1);

/// Sends records one after the other, each of which must be accepted within a second.
async fn send(runtime: &Runtime, producer: &BufferedProducer, numbers: std::ops::Range<u64>) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    for number in numbers {
        let sending = producer.send(vec![record(number)]);
        accepted.push(runtime.timeout(SECOND, sending).await.expect("the buffer responds").remove(0).unwrap());
    }
    accepted
}

async fn until(runtime: &Runtime, event: &str, mut holds: impl FnMut() -> bool) {
    let looking = async {
        while !holds() {
            runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(runtime.timeout(60 * SECOND, looking).await.is_some(), "timed out waiting until {event}");
}

#[test]
fn records_are_accepted_while_the_bus_is_away_and_arrive_in_order() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        let mut accepted = send(&runtime, &producer, 0..20).await;
        own.cut(true);
        accepted.extend(send(&runtime, &producer, 20..400).await);
        assert!(producer.backlog().is_buffering);
        own.cut(false);
        accepted.extend(send(&runtime, &producer, 400..500).await);
        for one in accepted {
            one.stored().await.unwrap();
        }
        until(&runtime, "the producer returns to the direct way", || !producer.backlog().is_buffering).await;
        let backlog = producer.backlog();
        assert_eq!((backlog.records, backlog.bytes), (0, 0));
        let stored = stored(&sim.outside(), &bus).await;
        assert_order(&stored, |_| true);
        assert_eq!(count(&stored), 500, "no record is stored twice while the process lives");
        assert_eq!(producer.close(SECOND).await, 0);
    });
}

#[test]
fn records_pass_without_the_disk_while_the_bus_responds() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, BufferOptions { patience: 60 * SECOND, ..options() }).await;
        for one in send(&runtime, &producer, 0..100).await {
            one.stored().await.unwrap();
        }
        let (operations, before) = (sim.volume("a").operations(), producer.backlog());
        assert!(!before.is_buffering);
        send(&runtime, &producer, 100..200).await;
        assert_eq!(sim.volume("a").operations(), operations);
        producer.close(SECOND).await;
    });
}

#[test]
fn next_producer_sends_the_records_that_remain_on_disk() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        own.cut(true);
        send(&runtime, &producer, 0..200).await;
        assert_eq!(producer.close(SECOND).await, 200);

        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        assert!(producer.backlog().records >= 200);
        send(&runtime, &producer, 200..210).await;
        assert_eq!(producer.close(60 * SECOND).await, 0);

        // The journal names the finished records, so they are not sent again.
        let producer = open(&runtime, &own, options()).await;
        assert_eq!(producer.backlog().records, 0);
        assert!(!producer.backlog().is_buffering);
        producer.close(SECOND).await;
        let stored = stored(&sim.outside(), &bus).await;
        assert_order(&stored, |_| true);
        assert_eq!(count(&stored), 210);
    });
}

#[test]
fn close_returns_soon_after_the_last_record() {
    simulate(async |sim| {
        for wait in 0..20 {
            let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
            let own = bus.reopen(runtime.clone());
            let folder = format!("/data/buffer-{wait}");
            let producer = open(&runtime, &own, BufferOptions { folder: folder.into(), ..options() }).await;
            own.cut(true);
            send(&runtime, &producer, 0..5).await;
            own.cut(false);
            until(&runtime, "the producer returns to the direct way", || !producer.backlog().is_buffering).await;
            runtime.sleep(Duration::from_millis(5 * wait)).await;
            // The caller does not wait for the outcome of the next record.
            runtime.timeout(Duration::from_millis(1), producer.send(vec![record(5)])).await;
            let began = runtime.monotonic();
            assert_eq!(producer.close(60 * SECOND).await, 0);
            let took = runtime.monotonic().since(began);
            assert!(took < 10 * SECOND, "{took:?}");
        }
    });
}

#[test]
fn dropped_producer_leaves_its_records_to_the_next_one() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        own.cut(true);
        send(&runtime, &producer, 0..200).await;
        drop(producer);
        runtime.sleep(5 * SECOND).await;
        let producer = open(&runtime, &bus.reopen(runtime.clone()), options()).await;
        assert_eq!(producer.close(60 * SECOND).await, 0);
        let stored = stored(&sim.outside(), &bus).await;
        assert_order(&stored, |_| true);
        assert_eq!(count(&stored), 200);
    });
}

#[test]
fn full_buffer_rejects_records_or_waits_for_the_bus() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let small = BufferOptions { bytes_max: 600_000, ..options() };
        let producer = open(&runtime, &own, BufferOptions { when_full: WhenFull::Reject, ..small.clone() }).await;
        own.cut(true);
        let (mut accepted, mut number) = (0, 0);
        let rejected = loop {
            match producer.send(vec![record(number), record(number + 1)]).await.as_slice() {
                [Ok(_), Ok(_)] => accepted += 2,
                [Ok(_), Err(error)] => {
                    accepted += 1;
                    break error.clone();
                }
                [Err(first), Err(second)] => {
                    assert_eq!(first, second);
                    break first.clone();
                }
                other => panic!("{other:?}"),
            }
            number += 2;
        };
        assert_eq!(rejected, BufferError::Full);
        // Each call writes at least two blocks of 4,096 bytes.
        assert!((50..200).contains(&accepted), "{accepted} records need 600,000 bytes");
        let used = sim.volume("a").used_bytes();
        assert!(used <= small.bytes_max + 3 * small.segment_bytes, "the files have {used} bytes");
        assert_eq!(producer.close(SECOND).await, accepted);

        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, small).await;
        own.cut(true);
        let mut next = accepted;
        while runtime.timeout(30 * SECOND, producer.send(vec![record(next)])).await.is_some() {
            next += 1;
            assert!(next < accepted + 200, "a full buffer accepts no record");
        }
        own.cut(false);
        // The buffer accepts the record of the call that has been dropped, too.
        until(&runtime, "the record is accepted", || !producer.backlog().is_buffering).await;
        assert_eq!(producer.close(60 * SECOND).await, 0);
        let stored = stored(&sim.outside(), &bus).await;
        assert_order(&stored, |_| true);
        assert_eq!(count(&stored) as u64, next + 1);
    });
}

#[test]
fn call_that_is_larger_than_the_buffer_continues_when_the_bus_responds() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, BufferOptions { bytes_max: 20_000, ..options() }).await;
        own.cut(true);
        {
            let mut sending = std::pin::pin!(producer.send((0..3_000).map(record).collect()));
            assert!(runtime.timeout(5 * SECOND, &mut sending).await.is_none());
            own.cut(false);
            let outcomes = runtime.timeout(60 * SECOND, sending).await.expect("the call continues");
            assert!(outcomes.iter().all(Result::is_ok));
        }
        assert_eq!(producer.close(60 * SECOND).await, 0);
        assert_eq!(count(&stored(&sim.outside(), &bus).await), 3_000);
    });
}

#[test]
fn producer_returns_to_the_direct_way_under_load() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = Arc::new(open(&runtime, &own, options()).await);
        own.cut(true);
        // Four senders send more records than the bus acknowledges at once.
        let next = Arc::new(AtomicU64::new(0));
        let tasks = TaskSet::new(&runtime);
        for _ in 0..4 {
            let (producer, next, runtime_of_sender) = (producer.clone(), next.clone(), runtime.clone());
            tasks.spawn("sender", async move {
                loop {
                    let outcomes = producer.send(vec![record(next.fetch_add(1, Ordering::Relaxed))]).await;
                    assert!(outcomes[0].is_ok(), "{outcomes:?}");
                    runtime_of_sender.sleep(Duration::from_millis(10)).await;
                }
            });
        }
        runtime.sleep(SECOND).await;
        assert!(producer.backlog().is_buffering);
        own.cut(false);
        until(&runtime, "the producer returns to the direct way", || !producer.backlog().is_buffering).await;
        drop(tasks);
        runtime.sleep(SECOND).await;
        let producer = Arc::into_inner(producer).expect("no sender has the producer");
        assert_eq!(producer.close(60 * SECOND).await, 0);
        assert_order(&stored(&sim.outside(), &bus).await, |_| true);
    });
}

#[test]
fn record_that_the_bus_rejects_is_reported() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        let unknown = TopicName::new("unknown").unwrap();
        let large = NewRecord { value: Some(vec![0; 2_000].into()), ..record(0) };
        let outcomes = producer.send(vec![large, NewRecord::new(&unknown, "key", "value"), record(0)]).await;
        assert!(matches!(outcomes[0], Err(BufferError::Bus(BusError::RecordTooLarge { .. }))), "{outcomes:?}");
        assert_eq!(outcomes[1].as_ref().err(), Some(&BufferError::Bus(BusError::UnknownTopic(unknown))));
        assert!(outcomes[2].is_ok(), "{outcomes:?}");
        producer.close(SECOND).await;
    });
}

#[test]
fn accepted_record_waits_until_its_topic_exists() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        own.cut(true);
        let late = TopicName::new("late").unwrap();
        let waiting = producer.send(vec![NewRecord::new(&late, "key", "value")]).await.remove(0).unwrap();
        send(&runtime, &producer, 0..100).await;
        own.cut(false);
        runtime.sleep(10 * SECOND).await;
        let mut waiting = std::pin::pin!(waiting.stored());
        assert!(runtime.timeout(SECOND, &mut waiting).await.is_none());
        create_topic(&bus, &late, 1).await;
        waiting.await.unwrap();
        assert_eq!(producer.close(60 * SECOND).await, 0);
        assert_order(&stored(&sim.outside(), &bus).await, |_| true);
    });
}

#[test]
fn folder_of_another_producer_is_rejected() {
    simulate(async |sim| {
        let (bus, runtime) = (new_bus(sim).await, sim.member("a"));
        let own = bus.reopen(runtime.clone());
        let producer = open(&runtime, &own, options()).await;
        let second = BufferedProducer::open(&runtime, &own, options()).await;
        assert!(matches!(second, Err(OpenError::Journal(journal::OpenError::Locked { .. }))));
        producer.close(SECOND).await;
        for options in [
            BufferOptions { bytes_max: 0, ..options() },
            BufferOptions { in_flight_max: 0, ..options() },
            BufferOptions { patience: Duration::ZERO, ..options() },
        ] {
            assert!(matches!(BufferedProducer::open(&runtime, &own, options).await, Err(OpenError::Options)));
        }
    });
}
