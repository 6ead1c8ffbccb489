//! Tests of a job that members share by the partitions of a topic, in simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::memory::{MemoryBus, MemoryOptions};
use bus::shards::{Generation, ShardHash, ShardOptions, ShardedJob};
use bus::{Bus as _, TopicName, TopicOptions};
use instants::Monotonic;
use runtime::{Runtime, TaskSet};
use simulator::Simulation;
use tokio_util::sync::CancellationToken;

use crate::processor::simulate;

const SESSION: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
const IDS: usize = 60;

fn topic() -> TopicName {
    TopicName::new("catalogue").unwrap()
}

/// Times in which a member worked on an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Work {
    member: &'static str,
    generation: Generation,
    from: Monotonic,
    to: Monotonic,
}

struct Scene {
    runtime: Runtime,
    bus: MemoryBus,
    ids: Vec<String>,
    /// Works on each id.
    works: Arc<Mutex<BTreeMap<String, Vec<Work>>>>,
}

/// Member that runs the job until the caller drops it, or stops it with the token.
struct Member {
    bus: Arc<MemoryBus>,
    stop: CancellationToken,
    tasks: TaskSet,
}

impl Scene {
    async fn new(sim: &Simulation, partitions: u32) -> Self {
        let latency = Some(Duration::ZERO..=Duration::from_millis(20));
        let bus = MemoryBus::new(sim.outside(), MemoryOptions { latency, ..MemoryOptions::default() });
        bus.create_topic(&topic(), TopicOptions::with_partitions(partitions)).await.unwrap();
        let ids = (0..IDS).map(|number| format!("item-{number}")).collect();
        Scene { runtime: sim.outside(), bus, ids, works: Arc::default() }
    }

    /// Starts a member whose job works on its ids until it must stop.
    fn start(&self, name: &'static str) -> Member {
        let (bus, stop, tasks) =
            (Arc::new(self.bus.reopen(self.runtime.clone())), CancellationToken::new(), TaskSet::new(&self.runtime));
        let (runtime, ids, works) = (self.runtime.clone(), self.ids.clone(), self.works.clone());
        let (opened, stopping) = (bus.clone(), stop.clone());
        tasks.spawn("member", async move {
            let options = ShardOptions {
                hash: ShardHash::JavaString,
                session_timeout: SESSION,
                margin: SESSION / 10,
                grace: SESSION / 4,
                ..ShardOptions::new(topic(), "cache", name)
            };
            let job = loop {
                match ShardedJob::open(&runtime, opened.clone(), options.clone()).await {
                    Ok(job) => break job,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                runtime.sleep(STEP).await;
            };
            let work = |shard: bus::shards::Shard| {
                let (runtime, ids, works) = (runtime.clone(), ids.clone(), works.clone());
                async move {
                    let own: Vec<(&String, Generation)> =
                        ids.iter().filter_map(|id| Some((id, shard.generation(id)?))).collect();
                    let from = runtime.monotonic();
                    while shard.is_valid() && !shard.closing.is_cancelled() {
                        let to = runtime.monotonic();
                        for (id, generation) in &own {
                            let mut works = works.lock().unwrap();
                            let of_id = works.entry((*id).clone()).or_default();
                            match of_id.iter_mut().rev().find(|work| work.member == name && work.from == from) {
                                Some(work) => work.to = to,
                                None => of_id.push(Work { member: name, generation: *generation, from, to }),
                            }
                        }
                        runtime.sleep(STEP).await;
                    }
                }
            };
            job.run(&stopping, work).await.unwrap();
        });
        Member { bus, stop, tasks }
    }

    /// Returns the members that worked on each id within the last second. Asserts that each id has exactly one.
    fn owners(&self) -> BTreeMap<&'static str, usize> {
        let since = self.runtime.monotonic();
        let works = self.works.lock().unwrap();
        let mut owners = BTreeMap::new();
        for id in &self.ids {
            let current: Vec<Work> = works[id].iter().filter(|work| since.since(work.to) < STEP * 3).copied().collect();
            assert_eq!(current.len(), 1, "{id} has the works {current:?}");
            *owners.entry(current[0].member).or_default() += 1;
        }
        owners
    }

    /// Asserts that a later work on an id has a greater generation. Without growth, no two works overlap.
    fn check(&self, has_grown: bool) {
        for (id, works) in &*self.works.lock().unwrap() {
            let mut works = works.clone();
            works.sort_by_key(|work| work.generation);
            for pair in works.windows(2) {
                assert!(pair[0].generation < pair[1].generation, "{id}: {pair:?}");
                assert!(has_grown || pair[0].to < pair[1].from, "{id} has two members at the same time: {pair:?}");
            }
        }
    }

    async fn settle(&self) {
        self.runtime.sleep(SESSION * 4).await;
    }
}

#[test]
fn members_share_all_ids_and_each_id_has_one_member() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 8).await;
        let first = scene.start("a");
        scene.settle().await;
        assert_eq!(scene.owners(), BTreeMap::from([("a", IDS)]));
        let second = scene.start("b");
        scene.settle().await;
        let owners = scene.owners();
        assert!(owners["a"] + owners["b"] == IDS && owners["a"].abs_diff(owners["b"]) < IDS / 3, "{owners:?}");
        first.stop.cancel();
        scene.settle().await;
        assert_eq!(scene.owners(), BTreeMap::from([("b", IDS)]));
        scene.check(false);
        drop((first.tasks, second));
    });
}

#[test]
fn growing_topic_gives_ids_to_further_members() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 1).await;
        let members = [scene.start("a"), scene.start("b")];
        scene.settle().await;
        assert_eq!(scene.owners().len(), 1);
        scene.bus.grow_topic(&topic(), 8).await.unwrap();
        scene.settle().await;
        let owners = scene.owners();
        assert!(owners["a"].abs_diff(owners["b"]) < IDS / 3, "{owners:?}");
        scene.check(true);
        drop(members);
    });
}

#[test]
fn no_id_has_two_members_while_connections_fail() {
    simulate(async |sim| {
        let scene = Scene::new(sim, 6).await;
        let members = ["a", "b", "c"].map(|name| scene.start(name));
        for _ in 0..12 {
            let member = &members[usize::try_from(scene.runtime.random() % 3).unwrap()];
            if scene.runtime.random().is_multiple_of(2) {
                member.bus.cut(true)
            } else {
                member.bus.cut_answers()
            }
            scene.runtime.sleep(Duration::from_millis(scene.runtime.random() % 4_000)).await;
            member.bus.cut(false);
            scene.runtime.sleep(Duration::from_millis(scene.runtime.random() % 2_000)).await;
        }
        scene.settle().await;
        assert_eq!(scene.owners().len(), 3);
        scene.check(false);
        drop(members);
    });
}
