//! Code examples of docs/bus.md. `cargo xtask index` copies each part of this file between `// [NAME]` and `// [end]` to
//! the page.

use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bus::leader::{LeaderCandidate, LeaderOptions, Leading};
use bus::memory::{MemoryBus, MemoryOptions};
use bus::processor::Operator;
use bus::shards::{Generation, Shard, ShardOptions, ShardedJob};
use bus::{Bus as _, Offset, TopicName, TopicOptions};
use runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::processor::simulate;

const SECOND: Duration = Duration::from_secs(1);

/// Runs an example on a bus that has the topic, and stops it after some time.
fn run(topic: &str, example: impl AsyncFn(Runtime, Arc<MemoryBus>, CancellationToken) -> Result<(), Box<dyn Error>>) {
    simulate(async |sim| {
        let (runtime, stop) = (sim.outside(), CancellationToken::new());
        let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
        bus.create_topic(&TopicName::new(topic).unwrap(), TopicOptions::with_partitions(1)).await.unwrap();
        let stopping = async {
            runtime.sleep(SECOND * 19 / 2).await;
            stop.cancel();
        };
        let (outcome, ()) = futures_util::join!(example(runtime.clone(), bus, stop.clone()), stopping);
        outcome.unwrap();
    });
}

#[test]
fn operator_page_works() {
    run("orders-control", async |runtime, bus, _| {
        // [operator]
        let mut operator = Operator::open(&runtime, bus, &"orders-control".parse()?).await?;
        for blocked in operator.blocked().await? {
            println!("{} failed {} times: {}", blocked.position, blocked.calls, blocked.reason);
        }
        operator.skip(&"orders/3/17".parse()?).await?; // Skips one record.
        operator.skip_all(&"orders".parse()?).await?; // Skips each failing record from now on,
        operator.resume(&"orders".parse()?).await?; // until this command.
        // [end]
        assert_eq!(operator.skipped_topics().await?, []);
        Ok(())
    });
}

#[test]
fn leader_page_works() {
    run("leaders", async |runtime, bus, stop| {
        let mails = Cell::new(0);
        let send_mail = async |_term: Offset| {
            mails.set(mails.get() + 1);
            runtime.sleep(SECOND).await;
        };
        // [leader]
        let options = LeaderOptions::new("leaders".parse()?, "mail", "host-7");
        let candidate = LeaderCandidate::open(&runtime, bus, options).await?;
        let work = async |leading: Leading| {
            while leading.is_valid() && !leading.closing.is_cancelled() {
                send_mail(leading.term).await; // The receiver rejects terms that are smaller than the last one.
            }
        };
        candidate.run(&stop, work).await?;
        // [end]
        assert_eq!(mails.get(), 10, "one mail in each second");
        Ok(())
    });
}

#[test]
fn shared_job_page_works() {
    run("catalogue", async |runtime, bus, stop| {
        let items = Cell::new(0);
        let list_all_ids = async || vec!["item-1".to_owned(), "item-2".to_owned()];
        let fetch_item = async |_: &str, _: Generation| items.set(items.get() + 1);
        // [shards]
        let options = ShardOptions::new("catalogue".parse()?, "cache", "host-7");
        let job = ShardedJob::open(&runtime, bus, options).await?;
        let work = async |shard: Shard| {
            for id in list_all_ids().await {
                if let Some(generation) = shard.generation(&id) {
                    fetch_item(&id, generation).await; // Send the generation with each write.
                }
            }
            shard.closing.cancelled().await; // The job starts again with other ids.
        };
        job.run(&stop, work).await?;
        // [end]
        assert_eq!(items.get(), 2);
        Ok(())
    });
}
