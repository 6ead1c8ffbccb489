//! Runs the conformance suite on a real broker.

use std::sync::Arc;
use std::time::Duration;

use bus::{
    Admin, Answer, Bus, Capabilities, Consumer, ConsumerOptions, GroupDescription, Offset, Producer, ProducerOptions,
    Reader, TopicDescription, TopicName, TopicOptions,
};
use bus_conformance::{Case, Process, Subject};
use bus_kafka::{KafkaBus, KafkaUrl};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use test_servers::kafka::{Door, shared};

bus_conformance::conformance_tests!(run);

fn run(case: Case) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(async { case.run(&Kafka(Runtime::real())).await });
}

struct Kafka(Runtime);

/// Process that reaches the broker only through its proxy.
struct Remote {
    bus: KafkaBus,
    door: Door,
}

impl Subject for Kafka {
    fn runtime(&self) -> Runtime {
        self.0.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        async {
            let door = tokio::task::block_in_place(|| shared().door());
            let url = KafkaUrl::parse(&format!("kafka://{}", door.address())).unwrap();
            let bus = KafkaBus::open(self.0.clone(), url).await.unwrap();
            Arc::new(Remote { bus, door }) as Arc<dyn Process>
        }
        .boxed()
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_secs(3)
    }
}

impl Process for Remote {
    fn cut(&self, is_cut: bool) {
        self.door.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.door.cut_answers();
    }
}

impl Bus for Remote {
    fn capabilities(&self) -> Capabilities {
        self.bus.capabilities()
    }

    fn create_topic(&self, topic: &TopicName, options: TopicOptions) -> Answer<'_, ()> {
        self.bus.create_topic(topic, options)
    }

    fn describe_topic(&self, topic: &TopicName) -> Answer<'_, TopicDescription> {
        self.bus.describe_topic(topic)
    }

    fn grow_topic(&self, topic: &TopicName, partitions: u32) -> Answer<'_, ()> {
        self.bus.grow_topic(topic, partitions)
    }

    fn producer(&self, options: ProducerOptions) -> Answer<'_, Arc<dyn Producer>> {
        self.bus.producer(options)
    }

    fn consumer(&self, options: ConsumerOptions) -> Answer<'_, Arc<dyn Consumer>> {
        self.bus.consumer(options)
    }

    fn reader(&self, topic: &TopicName) -> Answer<'_, Arc<dyn Reader>> {
        self.bus.reader(topic)
    }
}

impl Admin for Remote {
    fn topics(&self) -> Answer<'_, Vec<TopicName>> {
        self.bus.topics()
    }

    fn stored_ends(&self, topic: &TopicName) -> Answer<'_, Vec<Offset>> {
        self.bus.stored_ends(topic)
    }

    fn has_records(&self, topic: &TopicName, from: &[Offset]) -> Answer<'_, bool> {
        self.bus.has_records(topic, from)
    }

    fn groups(&self) -> Answer<'_, Vec<String>> {
        self.bus.groups()
    }

    fn describe_group(&self, group: &str) -> Answer<'_, GroupDescription> {
        self.bus.describe_group(group)
    }
}
