//! Trial of the rate or the lateness of callbacks to a topic.

use std::time::Duration;

use anyhow::ensure;
use domain::Incarnation;
use runtime::Runtime;

use super::progress::{Finished, Outcomes};
use super::{BusUrl, MEMORY_TOPIC, TOPICS};
use crate::fire::{self, Due};
use crate::message::Targets;
use crate::process::Meter;
use crate::report::Row;
use crate::server::Server;
use crate::tenant::{Tenant, unlimited_except};
use crate::{FireArguments, batch, print};

/// Time from the first due instant plus the duration of a run until the trial stops waiting for outcomes.
const LATE_MAX: Duration = Duration::from_secs(300);
/// Time until the warm-up callback is due.
const WARM_UP: Duration = Duration::from_secs(1);

/// # Errors
/// Returns an error if a trial fails, or if a callback is lost, duplicated or early.
pub(super) async fn run(runtime: &Runtime, arguments: &FireArguments, url: &BusUrl) -> anyhow::Result<()> {
    let (common, bus) = (&arguments.common, &arguments.bus);
    let due = match arguments.rate {
        Some(per_second) => Due::Evenly { per_second, duration: Duration::from_secs(arguments.duration) },
        None => Due::AtOnce { count: arguments.count },
    };
    let engine = Engine::open(runtime, url, bus.partitions, arguments.with_limit).await?;
    let mut more = vec!["--bus".to_owned(), url.for_server()];
    if let Some(in_flight) = bus.in_flight {
        more.extend(["--in-flight-per-target".to_owned(), in_flight.to_string()]);
    }
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let server = Server::start_with(runtime, &arguments.server, &common.data, &more).await?;
    batch::fill(runtime, &server, &common.data, arguments.pending).await?;
    let tenant = Tenant::create_with_topics(runtime, &server, "bus", unlimited_except(None), &[TOPICS]).await?;
    let lead = arguments.lead.map_or_else(|| fire::lead(due.count()), Duration::from_secs);
    let trial = Trial { runtime, server: &server, tenant: &tenant, engine: &engine, due, lead };
    let (mut rows, mut peers, mut wrong) = (Vec::new(), Vec::new(), 0);
    for _ in 0..common.runs {
        let Run { mut row, peer, wrong: of_run } = trial.run(arguments.with_limit).await?;
        if let Some(peer) = peer {
            row.ratio = row.per_second.zip(peer.per_second).map(|(ours, theirs)| ours / theirs);
            peers.push(peer);
        }
        rows.push(row);
        wrong += of_run;
    }
    server.stop(runtime).await?;
    print(common, vec![(rows, peers)])?;
    ensure!(wrong == 0, "{wrong} callbacks failed, or were lost, duplicated, early or incomplete");
    Ok(())
}

struct Trial<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    tenant: &'a Tenant,
    engine: &'a Engine,
    due: Due,
    lead: Duration,
}

struct Run {
    row: Row,
    /// Result of the bare producer that sent the same records after this run.
    peer: Option<Row>,
    /// Number of callbacks that failed, or were lost, duplicated, early or incomplete.
    wrong: u64,
}

impl Trial<'_> {
    async fn run(&self, with_peer: bool) -> anyhow::Result<Run> {
        let Trial { runtime, server, tenant, engine, due, lead } = *self;
        let topic = engine.topic().await?;
        let head = || tenant.head("application/x-ndjson");
        let plan = async |due: Due, lead: Duration| {
            let first_at = runtime.now() + lead;
            let targets = Targets::Topic(topic.clone());
            anyhow::Ok((first_at, fire::plan_from(runtime, head(), due, first_at, targets).await?))
        };
        // The first callback to a topic opens connections.
        let before = Outcomes::read(server).await?;
        let (warm_at, warm_up) = plan(Due::AtOnce { count: 1 }, WARM_UP).await?;
        before.wait(runtime, server, 1, warm_at, LATE_MAX).await?;

        let before = Outcomes::read(server).await?;
        let (first_at, incarnations) = plan(due, lead).await?;
        runtime.sleep(first_at.since(runtime.now())).await;
        let meter = Meter::start(runtime, server.pid());
        let limit = due.lasts() + LATE_MAX;
        let finished = before.wait(runtime, server, due.count(), first_at, limit).await?;
        let cost = meter.stop().await;
        let Reading { mut row, peer, wrong } = engine.read(runtime, &topic, &warm_up, &incarnations, with_peer).await?;
        row = row.with_cost(&cost, finished.outcomes.succeeded);
        row.count = Some(row.count.unwrap_or(finished.outcomes.succeeded));
        row.failed = Some(finished.outcomes.failed);
        describe(&mut row, due, &finished);
        row.notes.push(fire::sample_outcomes(&tenant.head("application/json"), &incarnations).await?);
        Ok(Run { row, peer, wrong: wrong + finished.outcomes.failed })
    }
}

/// Adds the rate to the row of a run whose callbacks are due at one instant.
fn describe(row: &mut Row, due: Due, finished: &Finished) {
    let Finished { attempted, durable, .. } = finished;
    if let Due::AtOnce { count } = due {
        #[expect(clippy::cast_precision_loss, reason = "counts of callbacks stay far below 2^52")]
        let per_second = count as f64 / durable.as_secs_f64().max(1e-3);
        row.per_second = Some(per_second);
    }
    row.notes.push(format!(
        "all attempts had ended {:.2} s after the first due instant, and the metrics, which are up to 1 s old, \
         showed {:.2} s after it that all outcomes were durable; the column `per s` uses the later time",
        attempted.as_secs_f64(),
        durable.as_secs_f64()
    ));
}

/// Message bus, as the bench reaches it.
enum Engine {
    Memory,
    #[cfg(feature = "kafka")]
    Kafka(Box<super::kafka::Topics>),
}

/// Result of the reading of a topic.
struct Reading {
    row: Row,
    peer: Option<Row>,
    wrong: u64,
}

impl Engine {
    async fn open(runtime: &Runtime, url: &BusUrl, partitions: u32, with_peer: bool) -> anyhow::Result<Self> {
        match url {
            BusUrl::Memory => {
                ensure!(!with_peer, "the bus in memory has no bare producer to compare; omit --with-limit");
                Ok(Engine::Memory)
            }
            #[cfg(feature = "kafka")]
            BusUrl::Kafka { servers } => {
                Ok(Engine::Kafka(Box::new(super::kafka::Topics::open(runtime, servers, partitions).await?)))
            }
            #[cfg(not(feature = "kafka"))]
            BusUrl::Kafka { servers } => {
                let _ = (runtime, servers, partitions);
                anyhow::bail!(super::WITHOUT_ENGINE)
            }
        }
    }

    /// Returns the topic of the next run.
    async fn topic(&self) -> anyhow::Result<String> {
        match self {
            Engine::Memory => Ok(MEMORY_TOPIC.to_owned()),
            #[cfg(feature = "kafka")]
            Engine::Kafka(topics) => Ok(topics.create().await?.to_string()),
        }
    }

    /// Reads the topic of a run, and then sends its records with the peer.
    #[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "only Kafka has another reader"))]
    async fn read(
        &self,
        runtime: &Runtime,
        topic: &str,
        warm_up: &[Incarnation],
        incarnations: &[Incarnation],
        with_peer: bool,
    ) -> anyhow::Result<Reading> {
        match self {
            Engine::Memory => {
                let mut row = Row::new("fire to a topic in memory");
                row.notes.push("the server's metrics supplied the counts".to_owned());
                Ok(Reading { row, peer: None, wrong: 0 })
            }
            #[cfg(feature = "kafka")]
            Engine::Kafka(topics) => {
                let topic = bus::TopicName::new(topic)?;
                let (mut seen, mut records) = (Vec::new(), Vec::new());
                let take = |record| {
                    seen.push(super::judge::Seen::of(&record));
                    records.extend(with_peer.then_some(record));
                };
                topics.read(&topic, take).await?;
                let verdict = super::judge::judge(seen, warm_up, incarnations);
                let wrong = verdict.wrong() + verdict.arrivals.doubled;
                let mut row = verdict.row("fire to a topic of Kafka");
                row.notes.push(
                    "the lateness is the time at which the broker appended the record minus the due instant, rounded up \
                     to a millisecond"
                        .to_owned(),
                );
                let peer = match with_peer {
                    true => {
                        Some(super::peer::measure(runtime, &topics.servers, &topics.create().await?, records).await?)
                    }
                    false => None,
                };
                Ok(Reading { row, peer, wrong })
            }
        }
    }
}
