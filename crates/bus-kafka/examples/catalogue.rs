//! Several processes share the items of a large catalogue. Each process keeps its part of the items in memory. Start the
//! program on several hosts, each with another name:
//!
//! ```sh
//! cargo run -p bus-kafka --example catalogue -- kafka://127.0.0.1:9092 host-7
//! ```

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

use std::collections::HashMap;
use std::sync::Arc;

use bus::shards::{Shard, ShardOptions, ShardedJob};
use bus::{Bus as _, BusError, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use coordination_connect::stop_signal;
use runtime::Runtime;

/// Number of items in the catalogue.
const ITEMS: u32 = 100_000;

/// Lists the ids of all items, as the interface of a distributor does.
fn list_all_item_ids() -> impl Iterator<Item = String> {
    (0..ITEMS).map(|number| format!("item-{number}"))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name] = arguments.as_slice() else {
        anyhow::bail!("usage: catalogue URL NAME, for example: catalogue kafka://127.0.0.1:9092 host-7");
    };
    let (runtime, topic) = (Runtime::real(), TopicName::new("catalogue")?);
    let bus = Arc::new(KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?);
    match bus.create_topic(&topic, TopicOptions { is_compacted: true, ..TopicOptions::with_partitions(12) }).await {
        Ok(()) | Err(BusError::TopicExists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let job = ShardedJob::open(&runtime, bus, ShardOptions::new(topic, "catalogue", name)).await?;
    let work = async |shard: Shard| {
        let mut cache = HashMap::new();
        for id in list_all_item_ids() {
            if shard.closing.is_cancelled() {
                return;
            }
            if let Some(generation) = shard.generation(&id) {
                // Fetch the item here, and send the generation with each write.
                cache.insert(id, generation);
            }
        }
        println!("{name} has {} of {ITEMS} items", cache.len());
        // The job starts again with other items when members join or leave.
        shard.closing.cancelled().await;
    };
    // After SIGTERM or Ctrl-C, the process leaves the group at once.
    Ok(job.run(&stop_signal()?, work).await?)
}
