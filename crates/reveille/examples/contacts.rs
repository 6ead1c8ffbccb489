//! Importer of contacts. A leader puts each occurrence of a cron expression into a topic of Kafka, and a member of a group
//! calls a service for it, until the call succeeds. Start several replicas:
//!
//! ```sh
//! cargo run --example contacts -- zookeeper://127.0.0.1:2181 kafka://127.0.0.1:9092 http://127.0.0.1:8080/import
//! ```
//!
//! - The replicas elect the leader by ZooKeeper, or by PostgreSQL with a URL `postgres://…`. A new leader also puts the
//!   occurrences into the topic that were due while no replica led.
//! - The calls are in the order of the occurrences. While the service is away, the later occurrences wait.
//! - The header `idempotency-key` contains the name of the job and the instant of the occurrence, in milliseconds since
//!   1970-01-01 00:00 UTC. After a crash, the same occurrence may be in the topic twice, and a call may be repeated. The
//!   service must ignore a key that it knows.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the example reports its progress")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bus::processor::{Delivery, Handler, HandlerError, Processor, ProcessorOptions, Retry};
use bus::{Bus, BusError, ConsumerOptions, NewRecord, Producer, ProducerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use bytes::Bytes;
use clap::Parser;
use coordination::recipes::{Candidate, Client, LeaderSelector, Leading};
use coordination::tree::{CreateMode, Expected, NodePath, Op, Tree, TreeError};
use coordination_connect::{Access, connect, stop_signal};
use domain::{Cron, Timestamp};
use futures_util::future::BoxFuture;
use http_body_util::Empty;
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runtime::Runtime;

/// Name of the job. It is the key of the records, so they are in one partition, in their order.
const JOB: &str = "contacts";

#[derive(Parser)]
struct Arguments {
    /// Engine of the leader's election: zookeeper://HOST:PORT,HOST:PORT/ROOT or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    /// Cluster with the topic: kafka://HOST:PORT,HOST:PORT
    bus: String,
    /// URL that the importer calls by POST for each occurrence
    service: Uri,
    /// Cron expression: second, minute, hour, day of the month, month, day of the week
    #[arg(long, default_value = "0 * * * * *")]
    cron: String,
    /// Name of this replica
    #[arg(long, default_value_t = format!("replica-{}", std::process::id()))]
    replica: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cron = Cron::parse(&arguments.cron, "UTC").context("--cron")?;
    let is_http = arguments.service.scheme_str() == Some("http");
    ensure!(is_http, "the service must be an http:// URL, for example http://127.0.0.1:8080/import");
    let (runtime, topic) = (Runtime::real(), TopicName::new("contacts-occurrences")?);
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(&arguments.bus)?).await?;
    match bus.create_topic(&topic, TopicOptions::with_partitions(1)).await {
        Ok(()) | Err(BusError::TopicExists(_)) => {}
        Err(error) => return Err(error.into()),
    }

    // All replicas are members of the group that calls the service. One of them owns the partition.
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let import = Import { runtime: runtime.clone(), service: arguments.service, http };
    let retry =
        Retry::Blocking { first_wait: Duration::from_millis(200), wait_max: Duration::from_secs(5), calls_max: None };
    let consumer = ConsumerOptions {
        name: arguments.replica.clone(),
        ..ConsumerOptions::new("contacts-importers", vec![topic.clone()])
    };
    let options = ProcessorOptions { retry, ..ProcessorOptions::new(consumer) };
    let processor = Processor::start(&runtime, &bus, options, Arc::new(import)).await?;

    // One replica leads, and puts the occurrences into the topic.
    let client = connect(&arguments.coordination, Access::Open).await?;
    let selector = LeaderSelector::new(&client, "/contacts/leader".parse()?, Candidate::new(&arguments.replica));
    let producer = bus.producer(ProducerOptions::default()).await?;
    let last = "/contacts/last".parse()?;
    let schedule =
        Schedule { runtime, replica: arguments.replica, cron, client: client.clone(), last, producer, topic };
    selector.run(&stop_signal()?, |leading| schedule.take_leadership(leading)).await?;
    client.close().await?;
    Ok(processor.stop().await?)
}

struct Schedule {
    runtime: Runtime,
    replica: String,
    cron: Cron,
    client: Client,
    /// Node with the instant of the last occurrence that is in the topic.
    last: NodePath,
    producer: Arc<dyn Producer>,
    topic: TopicName,
}

impl Schedule {
    async fn take_leadership(&self, leading: Leading) {
        println!("{} leads", self.replica);
        if let Err(error) = self.produce(&leading).await {
            eprintln!("{} no longer leads: {error:#}", self.replica);
            // The next leader may succeed.
            self.runtime.sleep(Duration::from_millis(200)).await;
        }
    }

    /// Puts each occurrence into the topic when it is due, until the leadership ends.
    async fn produce(&self, leading: &Leading) -> anyhow::Result<()> {
        let tree = self.client.session().await?;
        let mut last = self.last(&*tree, leading).await?;
        while let Some(next) = self.cron.next_after(last) {
            tokio::select! {
                biased;
                () = leading.over.cancelled() => return Ok(()),
                () = self.wait_for(next) => {}
            }
            // This process may have been paused, and another replica may lead now.
            if !leading.is_valid() {
                return Ok(());
            }
            let record = NewRecord::new(&self.topic, JOB, format!("{JOB}/{}", next.as_millis()));
            self.producer.send(vec![record]).await.into_iter().try_for_each(|one| one.map(drop))?;
            // If this process dies before this write, the next leader sends the same occurrence again. The fence rejects
            // the write of a process that has lost its leadership without noticing it.
            let store = Op::Set { path: self.last.clone(), data: text(next), expected: Expected::Any };
            tree.multi([leading.fence.clone(), vec![store]].concat()).await.context("cannot store the occurrence")?;
            last = next;
        }
        Ok(())
    }

    /// Returns the instant of the last occurrence that is in the topic. The first leader begins at the present instant.
    async fn last(&self, tree: &dyn Tree, leading: &Leading) -> anyhow::Result<Timestamp> {
        let acl = self.client.default_acl();
        let first =
            Op::Create { path: self.last.clone(), data: text(self.runtime.now()), mode: CreateMode::Persistent, acl };
        match tree.multi([leading.fence.clone(), vec![first]].concat()).await {
            Err(TreeError::Multi { source, .. }) if *source == TreeError::NodeExists => {}
            created => drop(created.context("cannot create the node of the last occurrence")?),
        }
        let stored = tree.get(&self.last).await?.data;
        let millis = std::str::from_utf8(&stored).ok().and_then(|text| text.parse().ok());
        match millis {
            Some(millis) => Ok(Timestamp::from_millis(millis)),
            None => bail!("the node {} does not contain an instant in milliseconds; delete the node", self.last),
        }
    }

    async fn wait_for(&self, instant: Timestamp) {
        loop {
            let now = self.runtime.now();
            if now >= instant {
                return;
            }
            self.runtime.sleep(instant.since(now)).await;
        }
    }
}

fn text(instant: Timestamp) -> Bytes {
    instant.as_millis().to_string().into()
}

/// Handler that calls the service.
struct Import {
    runtime: Runtime,
    service: Uri,
    http: hyper_util::client::legacy::Client<HttpConnector, Empty<Bytes>>,
}

impl Handler for Import {
    fn handle(&self, delivery: Delivery) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let key = delivery.record.value.ok_or_else(|| HandlerError::not_retriable("the record is empty"))?;
            let called = self.call(&key).await;
            called.map_err(|error| {
                eprintln!("the call for {} failed; retrying: {error:#}", String::from_utf8_lossy(&key));
                HandlerError::retriable(error)
            })
        })
    }
}

impl Import {
    async fn call(&self, key: &[u8]) -> anyhow::Result<()> {
        let request = Request::post(&self.service).header("idempotency-key", key).body(Empty::new())?;
        let response = self.runtime.timeout(Duration::from_secs(5), self.http.request(request)).await;
        let status = response.context("the service did not respond within 5 s")??.status();
        ensure!(status.is_success(), "the service returned {status}");
        Ok(())
    }
}
