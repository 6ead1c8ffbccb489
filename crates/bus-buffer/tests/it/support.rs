//! Bus, records and checks of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, Capabilities, NewRecord, TopicName, TopicOptions};
use bus_buffer::{BufferOptions, BufferedProducer};
use runtime::Runtime;
use simulator::Simulation;

pub(crate) const PARTITIONS: u32 = 3;
/// Longest duration of a scenario, in simulated time.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

/// Returns options with small segments: some hundred records fill a segment.
pub(crate) fn options() -> BufferOptions {
    BufferOptions { segment_bytes: 32 * 4_096, in_flight_max: 50, ..BufferOptions::new("/data/buffer") }
}

pub(crate) async fn new_bus(sim: &Simulation) -> MemoryBus {
    let latency = Some(Duration::ZERO..=Duration::from_millis(20));
    let defaults = MemoryOptions::default();
    let capabilities = Capabilities { record_bytes_max: 1_000, ..defaults.capabilities };
    let bus = MemoryBus::new(sim.outside(), MemoryOptions { capabilities, latency, fail_one_in: Some(20) });
    create_topic(&bus, &topic(), PARTITIONS).await;
    bus
}

pub(crate) async fn create_topic(bus: &MemoryBus, topic: &TopicName, partitions: u32) {
    // A repetition fails if the bus has created the topic and the response was lost.
    while bus
        .create_topic(topic, TopicOptions::with_partitions(partitions))
        .await
        .is_err_and(|error| error.is_retryable())
    {}
}

pub(crate) async fn open(runtime: &Runtime, bus: &MemoryBus, options: BufferOptions) -> BufferedProducer {
    BufferedProducer::open(runtime, bus, options).await.unwrap()
}

/// Returns the record with this number. Its key is one of seven.
pub(crate) fn record(number: u64) -> NewRecord {
    NewRecord::new(&topic(), format!("key-{}", number % 7), number.to_string())
}

/// Returns the numbers of each key in the topic, in their order.
pub(crate) async fn stored(runtime: &Runtime, bus: &MemoryBus) -> BTreeMap<String, Vec<u64>> {
    let bus = bus.reopen(runtime.clone());
    let count = async {
        loop {
            if let Ok(found) = bus.describe_topic(&topic()).await {
                return found.offsets.iter().map(|(_, end)| end.0).sum::<u64>();
            }
        }
    };
    let count = count.await;
    let reader = loop {
        if let Ok(reader) = bus.reader(&topic()).await {
            break reader;
        }
    };
    let (mut keys, mut found) = (BTreeMap::<String, Vec<u64>>::new(), 0);
    while found < count {
        let Some(Ok(batch)) = runtime.timeout(LIMIT, reader.next()).await else {
            panic!("only {found} of {count} records arrive")
        };
        for record in batch.records {
            found += 1;
            let text = |bytes: Option<bytes::Bytes>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
            keys.entry(text(record.key)).or_default().push(text(record.value).parse().unwrap());
        }
    }
    keys
}

/// Asserts the order per key: the first copies of the records are in order, and so are the last copies of the accepted
/// records.
pub(crate) fn assert_order(stored: &BTreeMap<String, Vec<u64>>, is_accepted: impl Fn(&u64) -> bool) {
    for (key, numbers) in stored {
        let mut seen = BTreeSet::new();
        let first: Vec<u64> = numbers.iter().copied().filter(|number| seen.insert(*number)).collect();
        seen.clear();
        let accepted = numbers.iter().copied().filter(&is_accepted);
        let mut last: Vec<u64> = accepted.rev().filter(|number| seen.insert(*number)).collect();
        last.reverse();
        for (copies, order) in [("first", first), ("last", last)] {
            let inverted = order.windows(2).find(|pair| pair[0] > pair[1]);
            assert_eq!(inverted, None, "the {copies} copies of {key} are not in order: {numbers:?}");
        }
    }
}

/// Returns the number of copies of all records.
pub(crate) fn count(stored: &BTreeMap<String, Vec<u64>>) -> usize {
    stored.values().map(Vec::len).sum()
}

pub(crate) fn simulate(test: impl AsyncFn(&Simulation)) {
    for seed in 0..8 {
        let sim = Simulation::new(seed);
        sim.set_time_limit(LIMIT);
        sim.run_until(test(&sim));
    }
}
