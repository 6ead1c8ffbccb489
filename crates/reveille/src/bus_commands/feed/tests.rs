use bus::memory::{MemoryBus, MemoryOptions};
use bus::{Bus as _, NewRecord, ProducerOptions, TopicOptions};
use simulator::Simulation;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Bus with the topic `orders`, which has two partitions.
struct Scene {
    runtime: Runtime,
    bus: Arc<MemoryBus>,
    topic: TopicName,
}

impl Scene {
    async fn new(sim: &Simulation) -> Self {
        let (runtime, topic) = (sim.outside(), TopicName::new("orders").unwrap());
        let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
        bus.create_topic(&topic, TopicOptions::with_partitions(2)).await.unwrap();
        Scene { runtime, bus, topic }
    }

    async fn send(&self, partition: u32, count: usize) {
        let producer = self.bus.producer(ProducerOptions::default()).await.unwrap();
        let record = NewRecord { partition: Some(partition), ..NewRecord::new(&self.topic, "a", "1") };
        assert!(producer.send(vec![record; count]).await.iter().all(Result::is_ok));
    }

    /// Opens a feed up to the present end of the topic, as a member of a group or without a group.
    async fn feed(&self, is_member: bool) -> Feed {
        let (bus, stop) = (self.bus.clone(), std::future::pending().boxed());
        if !is_member {
            return Feed::read(&self.runtime, bus, &self.topic, true, stop).await.unwrap();
        }
        let options = ConsumerOptions::new("audit", vec![self.topic.clone()]);
        Feed::join(&self.runtime, bus, &self.topic, options, true, stop).await.unwrap()
    }

    /// Sends a record to the partition 0 each second, while `work` runs.
    async fn while_partition_0_is_live<T>(&self, work: impl Future<Output = T>) -> T {
        let sending = async {
            loop {
                self.send(0, 1).await;
                self.runtime.sleep(SECOND).await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = sending => unreachable!("the producer never stops"),
        }
    }
}

#[test]
fn records_after_the_end_are_not_received() {
    for is_member in [false, true] {
        let sim = Simulation::new(0);
        sim.run_until(async {
            let scene = Scene::new(&sim).await;
            scene.send(0, 2).await;
            scene.send(1, 1).await;
            let mut feed = scene.feed(is_member).await;
            let mut received = [0; 2];
            // Each received record causes a new one, as a dead letter that fails again at once.
            for _ in 0..100 {
                let Next::Records(batch) = feed.next().await.unwrap() else { break };
                let index = batch.partition.index;
                received[index as usize] += batch.records.len();
                scene.send(index, batch.records.len()).await;
            }
            assert_eq!(received, [2, 1]);
            feed.close().await;
        });
    }
}

/// Kafka stores the mark of a transaction at an offset without a record.
#[test]
fn feed_ends_at_a_gap_while_another_partition_is_live() {
    for is_member in [false, true] {
        let sim = Simulation::new(0);
        sim.run_until(async {
            let scene = Scene::new(&sim).await;
            scene.send(1, 3).await;
            let mut feed = scene.feed(is_member).await;
            feed.ends = Some(vec![Offset(0), Offset(4)]);
            let missing = async {
                loop {
                    match feed.next().await.unwrap() {
                        Next::Records(batch) => assert_eq!(batch.partition.index, 1),
                        Next::Missing(text) => break text,
                        Next::End | Next::Stopped => panic!("the feed ended without its last offset"),
                    }
                }
            };
            let missing = scene.runtime.timeout(20 * SECOND, scene.while_partition_0_is_live(missing)).await;
            let missing = missing.expect("the feed ends");
            assert!(
                missing.contains("the offsets from 3 to the end 4 of the partition 1 may have no records"),
                "{missing}"
            );
        });
    }
}

#[test]
fn partitions_that_are_added_later_belong_to_no_feed() {
    let sim = Simulation::new(0);
    sim.run_until(async {
        let scene = Scene::new(&sim).await;
        scene.send(0, 1).await;
        let mut feed = scene.feed(true).await;
        scene.bus.grow_topic(&scene.topic, 3).await.unwrap();
        scene.send(2, 1).await;
        let mut received = 0;
        while let Next::Records(batch) = feed.next().await.unwrap() {
            assert_eq!(batch.partition.index, 0);
            received += batch.records.len();
        }
        assert_eq!(received, 1);
    });
}
