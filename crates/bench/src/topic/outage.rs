//! Trial of callbacks to a topic while a broker or the server fails.

use std::time::Duration;

use anyhow::{Context, ensure};
use bus::TopicName;
use clap::ValueEnum as _;
use domain::{Incarnation, Timestamp};
use futures_util::TryStreamExt as _;
use runtime::Runtime;

use super::broker::{Broker, Order};
use super::judge::{Seen, Verdict, judge};
use super::kafka::Topics;
use super::{BusUrl, Fault, OutageArguments, TOPICS};
use crate::fire::{self, Due};
use crate::message::Targets;
use crate::print;
use crate::report::Row;
use crate::server::Server;
use crate::tenant::{Tenant, unlimited_except};

/// Longest wait for the first quarter of the callbacks.
const QUARTER_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the last callback after the faults. The wait before a further attempt is at most 10 s.
const LATE_MAX: Duration = Duration::from_secs(300);
/// Time without a new record after which the trial reads the topic.
const QUIET: Duration = Duration::from_secs(5);
/// Interval between two checks of the number of records.
const PERIOD: Duration = Duration::from_millis(20);

/// # Errors
/// Returns an error if a trial fails, or if the verdict on a topic has a wrong callback.
pub(super) async fn run(runtime: &Runtime, arguments: &OutageArguments) -> anyhow::Result<()> {
    let OutageArguments { common, partitions, only, .. } = arguments;
    let broker = Broker::of(runtime, &arguments.broker);
    let broker = broker.context("this trial needs a broker; use `cargo xtask bench-bus bus-outage`")?;
    let BusUrl::Kafka { servers } = &broker.url else { anyhow::bail!("this trial needs --bus kafka://HOST:PORT") };
    let topics = Topics::open(runtime, servers, *partitions).await?;
    let url = broker.url.for_server();
    let mut server = Server::start_with(runtime, &arguments.server, &common.data, &["--bus", &url]).await?;
    let tenant = Tenant::create_with_topics(runtime, &server, "outage", unlimited_except(None), &[TOPICS]).await?;
    let faults = if only.is_empty() { Fault::value_variants() } else { only.as_slice() };
    let (mut shown, mut wrong) = (Vec::new(), Vec::new());
    for &fault in faults {
        let mut rows = Vec::new();
        for _ in 0..common.runs {
            let mut trial =
                Trial { runtime, server: &mut server, tenant: &tenant, topics: &topics, broker: &broker, arguments };
            let (row, of_run) = trial.run(fault).await?;
            rows.push(row);
            wrong.extend((of_run > 0).then(|| format!("{fault:?}: {of_run}")));
        }
        shown.push((rows, Vec::new()));
    }
    server.stop(runtime).await?;
    print(common, shown)?;
    ensure!(
        wrong.is_empty(),
        "callbacks failed, or were lost, early, incomplete, or duplicated without a further attempt: {}",
        wrong.join(", ")
    );
    Ok(())
}

struct Trial<'a> {
    runtime: &'a Runtime,
    server: &'a mut Server,
    tenant: &'a Tenant,
    topics: &'a Topics,
    broker: &'a Broker,
    arguments: &'a OutageArguments,
}

impl Trial<'_> {
    /// Runs the trial once. Returns its row and the number of wrong callbacks.
    async fn run(&mut self, fault: Fault) -> anyhow::Result<(Row, u64)> {
        let (runtime, count) = (self.runtime, self.arguments.count);
        let topic = self.topics.create().await?;
        let failed_before = self.dead_letters().await?;
        let due = Due::AtOnce { count };
        let first_at = runtime.now() + fire::lead(count);
        let head = self.tenant.head("application/x-ndjson");
        let targets = Targets::Topic(topic.to_string());
        let incarnations = fire::plan_from(runtime, head, due, first_at, targets).await?;
        runtime.sleep(first_at.since(runtime.now())).await;
        self.wait_for_quarter(&topic, first_at).await?;
        let began_at = runtime.now();
        self.inject(fault).await?;
        let over_at = runtime.now();
        let stored = self.topics.count(&topic).await?;
        let verdict = self.wait(&topic, &incarnations).await?;
        let failed = self.dead_letters().await?.saturating_sub(failed_before);

        let mut row = verdict.row(&format!("fire to a topic, {fault:?}").to_lowercase());
        row.failed = Some(failed);
        row.notes.push(format!(
            "the faults lasted from {:.1} s to {:.1} s after the due instant, when {stored} records were stored",
            began_at.since(first_at).as_secs_f64(),
            over_at.since(first_at).as_secs_f64()
        ));
        row.notes.push(verdict.duplicates());
        let sample = fire::sample_outcomes(&self.tenant.head("application/json"), &incarnations).await?;
        row.notes.push(sample);
        Ok((row, verdict.wrong() + failed))
    }

    async fn wait_for_quarter(&self, topic: &TopicName, first_at: Timestamp) -> anyhow::Result<()> {
        let quarter = self.arguments.count / 4;
        while self.topics.count(topic).await? < quarter {
            ensure!(
                self.runtime.now().since(first_at) < QUARTER_MAX,
                "fewer than {quarter} records were stored within {QUARTER_MAX:?}, so the trial injected no fault"
            );
            self.runtime.sleep(PERIOD).await;
        }
        Ok(())
    }

    async fn inject(&mut self, fault: Fault) -> anyhow::Result<()> {
        let (runtime, broker) = (self.runtime, self.broker);
        let outage = Duration::from_secs(self.arguments.outage);
        match fault {
            Fault::Paused => {
                broker.order(Order::Pause).await?;
                runtime.sleep(outage).await;
                broker.order(Order::Resume).await
            }
            Fault::Away => {
                broker.order(Order::Kill).await?;
                runtime.sleep(outage).await;
                broker.order(Order::Start).await
            }
            Fault::Killed => {
                broker.order(Order::Kill).await?;
                broker.order(Order::Start).await
            }
            Fault::Restarted => {
                broker.order(Order::Stop).await?;
                broker.order(Order::Start).await
            }
            Fault::Server => self.server.kill_and_restart(runtime).await.map(drop),
            Fault::All => {
                broker.order(Order::Pause).await?;
                runtime.sleep(outage / 2).await;
                self.server.kill_and_restart(runtime).await?;
                runtime.sleep(outage / 2).await;
                broker.order(Order::Resume).await?;
                broker.order(Order::Kill).await?;
                broker.order(Order::Start).await
            }
        }
    }

    /// Waits until the topic has a record of each schedule and gets no further record. Returns the verdict on the topic.
    async fn wait(&self, topic: &TopicName, incarnations: &[Incarnation]) -> anyhow::Result<Verdict> {
        let runtime = self.runtime;
        let deadline = runtime.monotonic() + LATE_MAX;
        let (mut known, mut changed) = (0, runtime.monotonic());
        loop {
            let count = self.topics.count(topic).await?;
            let now = runtime.monotonic();
            if count != known {
                (known, changed) = (count, now);
            }
            let is_late = now >= deadline;
            if is_late || (count >= self.arguments.count && now.since(changed) >= QUIET) {
                let mut seen = Vec::new();
                self.topics.read(topic, |record| seen.push(Seen::of(&record))).await?;
                let verdict = judge(seen, &[], incarnations);
                let in_flight = self.server.metric("reveille_in_flight").await?;
                if is_late || (verdict.arrivals.lost == 0 && in_flight == Some(0)) {
                    return Ok(verdict);
                }
                // Repeated records may hide that others are still missing.
                changed = runtime.monotonic();
            }
            runtime.sleep(PERIOD).await;
        }
    }

    /// Returns the number of failed runs of the trial's tenant.
    async fn dead_letters(&self) -> anyhow::Result<u64> {
        let runs = self.tenant.client.dead_letters();
        Ok(runs.try_fold(0, |count, _| async move { Ok(count + 1) }).await?)
    }
}
