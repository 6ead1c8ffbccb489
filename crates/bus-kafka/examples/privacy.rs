//! Collects, or deletes, the data of a person in several services, as privacy laws require.
//!
//! ```sh
//! cargo run -p bus-kafka --example privacy -- kafka://127.0.0.1:9092 coordinator
//! cargo run -p bus-kafka --example privacy -- kafka://127.0.0.1:9092 service mail
//! cargo run -p bus-kafka --example privacy -- kafka://127.0.0.1:9092 service shop
//! cargo run -p bus-kafka --example privacy -- kafka://127.0.0.1:9092 ask mail,shop access ann
//! ```
//!
//! The coordinator prints each answer and each outcome, after the time since the start of the machine in nanoseconds. `ask` has
//! two optional arguments: the number of requests, and the seconds until their deadline.

#![expect(clippy::print_stdout, reason = "the output is the effect of the example")]

// [example]
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bus::gather::{
    Answerer, Answers, GatherAnswer, GatherCoordinator, GatherOptions, GatherOutcome, GatherRequest, GatherService,
    GatherServiceOptions, Gatherer,
};
use bus::processor::HandlerError;
use bus::{Bus as _, BusError, ProducerOptions, TopicName, TopicOptions};
use bus_kafka::{KafkaBus, KafkaUrl};
use bytes::Bytes;
use coordination_connect::stop_signal;
use futures_util::future::BoxFuture;
use runtime::Runtime;

const USAGE: &str = "usage: privacy URL coordinator, privacy URL service NAME, or \
                     privacy URL ask NAME,NAME access|delete PERSON [COUNT [SECONDS]]";

/// Code of the coordinators.
struct Report(Runtime);

impl Gatherer for Report {
    fn answer(&self, answer: GatherAnswer) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let (GatherAnswer { id, service, number, value }, time) = (answer, self.0.monotonic().since_start());
            println!("{} answer {id} {service} {number} {}", time.as_nanos(), String::from_utf8_lossy(&value));
            Ok(())
        })
    }

    fn outcome(&self, outcome: GatherOutcome) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let (time, missing) = (self.0.monotonic().since_start().as_nanos(), outcome.missing);
            let missing = missing.into_iter().map(|name| format!("missing:{name}")).collect::<Vec<_>>().join(",");
            println!("{time} outcome {} {}", outcome.id, if missing.is_empty() { "complete" } else { &missing });
            Ok(())
        })
    }
}

/// Code of a service.
struct Data;

impl Answerer for Data {
    fn answer<'a>(
        &'a self,
        request: &'a GatherRequest,
        answers: &'a mut Answers,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            // Read or delete the data of the person here.
            if request.value.starts_with(b"delete ") {
                return answers.send("deleted").await;
            }
            for part in ["name", "address", "orders"] {
                answers.send(part).await?;
            }
            Ok(())
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let (runtime, arguments) = (Runtime::real(), std::env::args().skip(1).collect::<Vec<_>>());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (requests, answers) = (TopicName::new("privacy-requests")?, TopicName::new("privacy-answers")?);
    let (url, command) = arguments.split_first().context(USAGE)?;
    let bus = KafkaBus::open(runtime.clone(), KafkaUrl::parse(url)?).await?;
    for topic in [&requests, &answers] {
        match bus.create_topic(topic, TopicOptions::with_partitions(12)).await {
            Ok(()) | Err(BusError::TopicExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match *command {
        ["coordinator"] => {
            let options = GatherOptions::new(requests, answers, "privacy");
            let report = Arc::new(Report(runtime.clone()));
            let coordinator = GatherCoordinator::start(&runtime, &bus, options, report).await?;
            stop_signal()?.cancelled().await;
            coordinator.stop().await?;
        }
        ["service", name] => {
            let options = GatherServiceOptions::new(name, requests, answers);
            let service = GatherService::start(&runtime, &bus, options, Arc::new(Data)).await?;
            stop_signal()?.cancelled().await;
            service.stop().await?;
        }
        ["ask", services, action @ ("access" | "delete"), person, ref rest @ ..] => {
            let count: u64 = rest.first().map_or(Ok(1), |count| count.parse()).context("COUNT is not a number")?;
            let seconds = rest.get(1).map_or(Ok(60), |seconds| seconds.parse()).context("SECONDS is not a number")?;
            let services: BTreeSet<String> = services.split(',').map(str::to_owned).collect();
            let producer = bus.producer(ProducerOptions::default()).await?;
            let request = |number: u64| GatherRequest {
                id: format!("{action}-{person}-{number}"),
                services: services.clone(),
                deadline: runtime.now() + Duration::from_secs(seconds),
                value: Bytes::from(format!("{action} {person}-{number}")),
            };
            let records: Result<_, BusError> = (0..count).map(|number| request(number).record(&answers)).collect();
            producer.send(records?).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            println!("asked; a coordinator prints the answers");
        }
        _ => bail!(USAGE),
    }
    Ok(())
}
// [end]
