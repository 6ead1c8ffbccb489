//! Soak trial that simulates a shop. At a steady rate, the trial creates a callback for each cart, moves the callbacks
//! and cancels half of them. It checks that the server's memory, disk space and latencies do not grow from the middle
//! to the end of the trial.
//!
//! Each minute, the trial creates new carts. It moves the callbacks of the carts that it created one minute earlier. It
//! cancels half of the callbacks of the carts that it created two minutes earlier, and the other half fire. Invariants:
//! the trial expects exactly the callbacks that the server acknowledged, and counts exactly the callbacks that the
//! receiver received.

mod carts;
mod flat;

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use cli_support::console;
use cli_support::receiver::Options;
use hdrhistogram::Histogram;
use runtime::Runtime;
use serde::Serialize;

use crate::Common;
use crate::fire;
use crate::load::{self, LoadReport, Pace, Plan};
use crate::process::rss_anon;
use crate::report::mebibytes;
use crate::server::{Server, ServerArguments};
use carts::{CartRequests, Carts, Counts, RequestKind};
use flat::Figure;

#[derive(Args, Debug)]
pub struct SoakArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Duration in minutes; callbacks arrive from the fourth minute on, and the trial judges the second half
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(4..=10_080))]
    minutes: u64,
    /// Requests per second; of five requests, two create a schedule, two reschedule a schedule, and one cancels a
    /// schedule
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(5..=100_000))]
    rate: u64,
    /// Minutes for which the server retains ended schedules; a low value makes the server remove schedules during the
    /// trial
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    history_minutes: u64,
    /// Seconds that one minute of the trial takes
    #[arg(long, hide = true, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=60))]
    minute_seconds: u64,
}

/// Minutes from a cart's last move to its callback. The trial cancels a cart about one minute after the move, so that
/// the cancellation precedes the callback.
const DUE_MINUTES: u32 = 2;
/// Fewest samples per minute for a 99th percentile. With fewer samples the percentile is random, so the trial neither
/// reports nor judges it.
const SAMPLES_MIN: u64 = 1_000;
/// Longest wait for callbacks after the last due instant.
const LATE_MAX: Duration = Duration::from_secs(60);

/// # Errors
/// Returns an error if the trial fails, if a callback is lost, duplicated, early or unwanted, or if memory, disk or
/// lateness grows.
pub(crate) async fn run(runtime: &Runtime, arguments: &SoakArguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let history = (arguments.history_minutes * arguments.minute_seconds).to_string();
    let server = Server::start_with(runtime, &arguments.server, &common.data, &["--history-seconds", &history]).await?;
    let carts = Arc::new(Carts::new(runtime.random()));
    let receiver = fire::receive(runtime, Options::default(), carts.clone()).await?;
    let shop = Shop {
        runtime,
        server: &server,
        carts: &carts,
        target_url: fire::url_of(receiver.address),
        connections: common.connections().div_ceil(3),
        rate: arguments.rate,
        minute: Duration::from_secs(arguments.minute_seconds),
    };
    let mut minutes = Vec::new();
    for number in 0..arguments.minutes {
        let minute = shop.minute(number).await?;
        minute.print(common.json, number == 0)?;
        minutes.push(minute);
    }
    shop.wait_for_the_rest().await;
    let counts = carts.counts(runtime.now());
    drop(receiver);
    server.stop(runtime).await?;
    console::line(&counts.summary())?;
    let mut faults: Vec<String> = counts.faults();
    for figure in figures(&minutes) {
        console::line(&figure.to_text())?;
        faults.extend(figure.fault());
    }
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(())
}

struct Shop<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    carts: &'a Arc<Carts>,
    target_url: String,
    connections: usize,
    rate: u64,
    minute: Duration,
}

impl Shop<'_> {
    async fn minute(&self, number: u64) -> anyhow::Result<Minute> {
        let carts = self.rate * 2 / 5 * self.minute.as_secs();
        let before = |minutes: u64| number.checked_sub(minutes).map(|number| number * carts);
        let (created, moved, cancelled) = futures_util::join!(
            self.send(RequestKind::Create, Some(number * carts), carts),
            self.send(RequestKind::Move, before(1), carts),
            self.send(RequestKind::Cancel, before(2), carts / 2),
        );
        let (created, moved, cancelled) = (created?, moved?, cancelled?);
        let troubles = [("create", &created), ("move", &moved), ("cancel", &cancelled)]
            .into_iter()
            .filter(|(_, outcome)| outcome.failed() > 0)
            .map(|(kind, outcome)| format!("{kind}: {}", outcome.failure_summary()))
            .collect();
        let accepted = created.accepted + moved.accepted + cancelled.accepted;
        let lateness = self.carts.take_lateness();
        Ok(Minute {
            minute: number + 1,
            requests: accepted,
            failed: created.failed() + moved.failed() + cancelled.failed(),
            create_p99_ms: p99_ms(&created.latency),
            change_p99_ms: p99_ms(&moved.latency),
            callbacks: lateness.len(),
            lateness_p99_ms: p99_ms(&lateness),
            memory_mib: self.server.pid().map(|pid| mebibytes(rss_anon(pid))),
            disk_mib: mebibytes(self.server.disk_bytes()),
            counts: self.carts.counts(self.runtime.now()),
            troubles,
        })
    }

    /// Sends `count` requests of one kind within a minute, for the carts from `first` on. Sends no request if `first`
    /// is `None`.
    async fn send(&self, kind: RequestKind, first: Option<u64>, count: u64) -> anyhow::Result<LoadReport> {
        let requests = CartRequests {
            kind,
            first: first.unwrap_or(0),
            carts: self.carts.clone(),
            head: self.server.head("application/json"),
            target_url: self.target_url.clone(),
            runtime: self.runtime.clone(),
            due_in: self.minute * if kind == RequestKind::Create { DUE_MINUTES + 1 } else { DUE_MINUTES },
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate is at most 100,000 requests per second")]
        let per_second = count as f64 / self.minute.as_secs_f64();
        let plan = Plan {
            address: self.server.address,
            connections: self.connections,
            pace: Pace::Open { per_second },
            duration: self.minute,
            requests_max: if first.is_some() { count } else { 0 },
        };
        load::run(self.runtime, plan, Arc::new(requests)).await
    }

    /// Waits until all callbacks have arrived, or until [`LATE_MAX`] has passed.
    async fn wait_for_the_rest(&self) {
        const PERIOD: Duration = Duration::from_millis(100);
        let last_at = self.carts.last_due();
        while self.runtime.now().since(last_at) < LATE_MAX {
            let all_due = self.runtime.now().since(last_at) > PERIOD;
            if all_due && self.carts.counts(self.runtime.now()).lost == 0 {
                // The trial waits another second, because a duplicate may still follow.
                return self.runtime.sleep(Duration::from_secs(1)).await;
            }
            self.runtime.sleep(PERIOD).await;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "latencies stay far below 2^52 microseconds")]
fn p99_ms(micros: &Histogram<u64>) -> Option<f64> {
    (micros.len() >= SAMPLES_MIN).then(|| micros.value_at_quantile(0.99) as f64 / 1_000.0)
}

#[derive(Clone, Debug, Serialize)]
struct Minute {
    minute: u64,
    requests: u64,
    failed: u64,
    create_p99_ms: Option<f64>,
    change_p99_ms: Option<f64>,
    callbacks: u64,
    lateness_p99_ms: Option<f64>,
    memory_mib: Option<f64>,
    disk_mib: f64,
    #[serde(flatten)]
    counts: Counts,
    /// Summaries of the failed requests, one for each kind of request that failed.
    troubles: Vec<String>,
}

impl Minute {
    fn print(&self, json: bool, is_first: bool) -> anyhow::Result<()> {
        if json {
            return Ok(console::line(&serde_json::to_string(self)?)?);
        }
        if is_first {
            console::line(
                "minute  requests  failed  create p99 ms  change p99 ms  callbacks  late p99 ms  anon MiB  disk MiB  lost  doubled  \
                 early  unwanted",
            )?;
        }
        let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let whole = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
        let Counts { lost, doubled, early, unwanted, .. } = self.counts;
        let text = format!(
            "{:>6}  {:>8}  {:>6}  {:>13}  {:>13}  {:>9}  {:>11}  {:>8}  {:>8.0}  {lost:>4}  {doubled:>7}  {early:>5}  {unwanted:>8}",
            self.minute,
            self.requests,
            self.failed,
            or_dash(self.create_p99_ms),
            or_dash(self.change_p99_ms),
            self.callbacks,
            or_dash(self.lateness_p99_ms),
            whole(self.memory_mib),
            self.disk_mib,
        );
        console::line(&text)?;
        self.troubles.iter().try_for_each(|trouble| console::line(&format!("        {trouble}")))?;
        Ok(())
    }
}

/// Returns the figures that must not grow in the second half of the trial.
fn figures(minutes: &[Minute]) -> Vec<Figure> {
    let half = &minutes[minutes.len() / 2..];
    let of = |figure: fn(&Minute) -> Option<f64>| half.iter().filter_map(figure).collect::<Vec<f64>>();
    let levels = [
        Figure { name: "memory", unit: "MiB", slack: 32.0, values: of(|minute| minute.memory_mib) },
        Figure { name: "disk", unit: "MiB", slack: 64.0, values: of(|minute| Some(minute.disk_mib)) },
    ];
    let percentiles = [
        Figure { name: "lateness p99", unit: "ms", slack: 5.0, values: of(|minute| minute.lateness_p99_ms) },
        Figure { name: "create p99", unit: "ms", slack: 5.0, values: of(|minute| minute.create_p99_ms) },
    ];
    levels.into_iter().chain(percentiles.into_iter().filter(|figure| !figure.values.is_empty())).collect()
}
