//! Trials of callbacks. Each trial measures their rate and lateness, and checks that each callback arrives exactly
//! once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use cli_support::http1::Connection;
use cli_support::receiver::{Options, Receiver, Sink};
use domain::{Incarnation, ScheduleId, Timestamp};
use runtime::{Monotonic, Runtime};

use crate::arrivals::{Arrivals, Verdict};
use crate::batch;
use crate::message::{Head, Schedules, Targets, write_request};
use crate::process::{Meter, rss_anon};
use crate::report::{Row, mebibytes};
use crate::server::Server;

/// Due instants of a trial's schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// All schedules are due at one instant.
    AtOnce { count: u64 },
    /// Spread evenly over `duration`.
    Evenly { per_second: u64, duration: Duration },
}

impl Due {
    pub(crate) fn count(self) -> u64 {
        match self {
            Due::AtOnce { count } => count,
            Due::Evenly { per_second, duration } => per_second * duration.as_secs(),
        }
    }

    fn gap_micros(self) -> u64 {
        match self {
            Due::AtOnce { .. } => 0,
            Due::Evenly { per_second, .. } => 1_000_000 / per_second.max(1),
        }
    }

    pub(crate) fn lasts(self) -> Duration {
        Duration::from_micros(self.gap_micros() * self.count())
    }
}

/// Receiver outside this process: the receiver's URL, and the log that the receiver writes.
#[derive(Clone, Debug)]
pub(crate) struct ExternalReceiver {
    pub(crate) url: String,
    pub(crate) log: PathBuf,
}

#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) due: Due,
    /// Time from the start of the creation of schedules to the first due instant. The trial creates all schedules in
    /// this time.
    pub(crate) lead: Duration,
    /// True if the trial kills the server with `kill -9` when a quarter of the callbacks have arrived.
    pub(crate) kill: bool,
    pub(crate) external: Option<ExternalReceiver>,
}

/// Longest wait for callbacks after the last due instant.
const LATE_MAX: Duration = Duration::from_secs(300);
/// Time without a new callback after which the trial stops waiting for callbacks. The time starts at the last due
/// instant at the earliest.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// Returns the default time from the start of the creation of `count` schedules to the first due instant. The time
/// suffices if the server creates 25,000 schedules per second.
pub(crate) fn lead(count: u64) -> Duration {
    Duration::from_secs(4 + count / 25_000)
}

pub(crate) async fn trial(runtime: &Runtime, server: &mut Server, trial: &Trial) -> anyhow::Result<Row> {
    let arrivals = Arc::new(match &trial.external {
        None => Arrivals::logging(),
        Some(external) => Arrivals::following(&external.log)?,
    });
    let (receiver, target_url) = match &trial.external {
        None => {
            let receiver = receive(runtime, Options::default(), arrivals.clone()).await?;
            let url = url_of(receiver.address);
            (Some(receiver), url)
        }
        Some(external) => (None, external.url.clone()),
    };
    let planned = plan(runtime, server, trial.due, trial.lead, vec![target_url]).await?;
    runtime.sleep(planned.first_at.since(runtime.now())).await;
    let meter = Meter::start(runtime, server.pid());
    let reads = Reads::start(runtime, server).await?;
    let mut notes = Vec::new();
    if trial.kill {
        notes.push(kill_in_the_middle(runtime, server, &arrivals, trial.due).await?);
    }
    wait(runtime, &arrivals, trial.due, planned.first_at).await?;
    let cost = meter.stop().await;
    let reads_per_minute = reads.per_minute(runtime, server).await?;
    let verdict = arrivals.verdict(&planned.incarnations)?;
    notes.push(sample_outcomes(&server.head("application/json"), &planned.incarnations).await?);
    drop(receiver);

    let mut row = row("fire", trial.due, planned.first_at, &verdict);
    if !trial.kill {
        // A killed process loses its counters of CPU time and reads, so a trial that kills the server does not report
        // these figures.
        row = row.with_cost(&cost, verdict.arrived);
        row.reads_per_minute = reads_per_minute;
    }
    row.notes.extend(notes);
    Ok(row)
}

/// Measurement of the server's counter of reads from the store's database. A server with an embedded store has no such
/// counter.
struct Reads {
    since: Monotonic,
    before: Option<u64>,
}

impl Reads {
    async fn start(runtime: &Runtime, server: &Server) -> anyhow::Result<Self> {
        Ok(Reads { since: runtime.monotonic(), before: server.metric(Reads::NAME).await? })
    }

    const NAME: &str = "reveille_store_reads_total";

    #[expect(clippy::cast_precision_loss, reason = "counts of reads stay far below 2^52")]
    async fn per_minute(self, runtime: &Runtime, server: &Server) -> anyhow::Result<Option<f64>> {
        let minutes = runtime.monotonic().since(self.since).as_secs_f64() / 60.0;
        let reads = server.metric(Reads::NAME).await?.zip(self.before);
        Ok(reads.map(|(now, before)| now.saturating_sub(before) as f64 / minutes))
    }
}

/// Measures the server's memory and its reads from the store's database while no schedule is due.
pub(crate) async fn idle(runtime: &Runtime, server: &Server) -> anyhow::Result<Row> {
    const WATCHED: Duration = Duration::from_secs(15);
    let reads = Reads::start(runtime, server).await?;
    let meter = Meter::start(runtime, server.pid());
    runtime.sleep(WATCHED).await;
    let cost = meter.stop().await;
    let mut row = Row::new("nothing due");
    row.reads_per_minute = reads.per_minute(runtime, server).await?;
    row.rss_anon_mib = cost.memory_peak_bytes.map(mebibytes);
    Ok(row)
}

pub(crate) struct Planned {
    pub(crate) first_at: Timestamp,
    pub(crate) incarnations: Vec<Incarnation>,
}

/// Creates schedules, the first of which falls due when the time `lead` has passed. Checks that the server created all
/// schedules within this time.
pub(crate) async fn plan(
    runtime: &Runtime,
    server: &Server,
    due: Due,
    lead: Duration,
    targets: impl Into<Targets>,
) -> anyhow::Result<Planned> {
    let first_at = runtime.now() + lead;
    let head = server.head("application/x-ndjson");
    Ok(Planned { first_at, incarnations: plan_from(runtime, head, due, first_at, targets).await? })
}

/// Creates schedules for the tenant whose key is in `head`. The schedules fall due from `first_at` on. Checks that the
/// server created all schedules before `first_at`.
///
/// # Errors
/// Returns an error if the server does not create all schedules before `first_at`.
pub(crate) async fn plan_from(
    runtime: &Runtime,
    head: Head,
    due: Due,
    first_at: Timestamp,
    targets: impl Into<Targets>,
) -> anyhow::Result<Vec<Incarnation>> {
    let lead = first_at.since(runtime.now());
    let schedules = Schedules { targets: targets.into(), first_at, gap_micros: due.gap_micros() };
    let incarnations = batch::create_all(runtime, head, schedules, due.count()).await?;
    let left = first_at.since(runtime.now());
    ensure!(
        left > Duration::from_millis(500),
        "creating {} schedules took longer than the lead of {lead:?}; choose a longer --lead",
        due.count()
    );
    Ok(incarnations)
}

pub(crate) async fn receive(runtime: &Runtime, options: Options, sink: Arc<dyn Sink>) -> anyhow::Result<Receiver> {
    Receiver::start(runtime, SocketAddr::from(([127, 0, 0, 1], 0)), options, sink).await
}

pub(crate) fn url_of(address: SocketAddr) -> String {
    format!("http://{address}/callback")
}

/// Waits until all callbacks have arrived, or until no more callbacks arrive.
pub(crate) async fn wait(runtime: &Runtime, arrivals: &Arrivals, due: Due, first_at: Timestamp) -> anyhow::Result<()> {
    wait_for(runtime, arrivals, due.count(), first_at + due.lasts()).await
}

/// Works like [`wait`], but waits for `expected` callbacks, of which the last is due at `last_at`.
pub(crate) async fn wait_for(
    runtime: &Runtime,
    arrivals: &Arrivals,
    expected: u64,
    last_at: Timestamp,
) -> anyhow::Result<()> {
    const PERIOD: Duration = Duration::from_millis(50);
    let (mut seen, mut changed_at) = (0, runtime.now());
    loop {
        let count = arrivals.progress()?;
        let now = runtime.now();
        if count != seen {
            (seen, changed_at) = (count, now);
        }
        let all = count >= expected && now > last_at;
        // After all expected callbacks have arrived, the trial waits another second, because a duplicate may still
        // arrive.
        let quiet = if all { Duration::from_secs(1) } else { QUIET_MAX };
        let over = now.since(changed_at) > quiet && now.since(last_at) > quiet;
        if over || now.since(last_at) > LATE_MAX {
            return Ok(());
        }
        runtime.sleep(PERIOD).await;
    }
}

async fn kill_in_the_middle(
    runtime: &Runtime,
    server: &mut Server,
    arrivals: &Arrivals,
    due: Due,
) -> anyhow::Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let started = runtime.monotonic();
    while arrivals.progress()? < due.count() / 4 {
        ensure!(
            runtime.monotonic().since(started) < TIMEOUT + due.lasts(),
            "fewer than a quarter of the {} callbacks arrived within {:?}, so the trial did not kill the server",
            due.count(),
            TIMEOUT + due.lasts()
        );
        runtime.sleep(Duration::from_millis(1)).await;
    }
    let back_after = server.kill_and_restart(runtime).await?;
    let count = arrivals.progress()?;
    Ok(format!(
        "the trial killed the server; it was ready again after {} ms, when {count} callbacks had arrived",
        back_after.as_millis()
    ))
}

/// Queries the runs of a sample of schedules of the tenant whose key is in `head`. Returns a note that states for how many
/// of these schedules the server has recorded a succeeded run.
///
/// # Errors
/// Returns an error if the server does not respond.
pub(crate) async fn sample_outcomes(head: &Head, of: &[Incarnation]) -> anyhow::Result<String> {
    const SAMPLES: usize = 200;
    let mut connection = Connection::open(head.host).await.context("cannot connect to the server after the trial")?;
    let (mut queried, mut recorded) = (0, 0);
    for incarnation in of.iter().step_by((of.len() / SAMPLES).max(1)) {
        let path = format!("/v1/schedules/{}/runs", ScheduleId::from_incarnation(*incarnation));
        let mut request = Vec::new();
        write_request("GET", &path, head, b"", &mut request);
        let status = connection.exchange(&request).await?;
        queried += 1;
        let text = String::from_utf8_lossy(connection.body());
        recorded += u32::from(status.0 == 200 && text.contains("\"succeeded\""));
    }
    Ok(format!("the server recorded a succeeded run for {recorded} of {queried} sampled schedules"))
}

/// Creates schedules with the due instants of `due`. Calls `during` with the first due instant while the schedules
/// fire. Returns the verdict on the callbacks that arrived, and the first due instant.
///
/// # Errors
/// Returns an error if the server does not create the schedules in time, or if `during` fails.
pub(crate) async fn observe(
    runtime: &Runtime,
    server: &Server,
    due: Due,
    options: Options,
    during: impl AsyncFnOnce(Timestamp) -> anyhow::Result<()>,
) -> anyhow::Result<(Verdict, Timestamp)> {
    let arrivals = Arc::new(Arrivals::logging());
    let receiver = receive(runtime, options, arrivals.clone()).await?;
    let planned = plan(runtime, server, due, lead(due.count()), vec![url_of(receiver.address)]).await?;
    runtime.sleep(planned.first_at.since(runtime.now())).await;
    during(planned.first_at).await?;
    wait(runtime, &arrivals, due, planned.first_at).await?;
    let verdict = arrivals.verdict(&planned.incarnations)?;
    drop(receiver);
    Ok((verdict, planned.first_at))
}

pub(crate) fn row(name: &str, due: Due, first_at: Timestamp, verdict: &Verdict) -> Row {
    let mut row = Row::new(name).with_latency(&verdict.lateness);
    row.count = Some(verdict.arrived);
    row.lost = Some(verdict.lost);
    row.doubled = Some(verdict.doubled);
    row.early = Some(verdict.early);
    if let Due::AtOnce { count } = due
        && let Some(seconds) = seconds_to_share(verdict, first_at, count, 0.95)
    {
        #[expect(clippy::cast_precision_loss, reason = "counts of callbacks stay far below 2^52")]
        let per_second = 0.95 * count as f64 / seconds;
        row.per_second = Some(per_second);
        row.notes.push(format!(
            "the column `per s` shows the rate of the first 95 % of the callbacks, which arrived within {seconds:.3} s \
             after their due instant"
        ));
    }
    if let Some(unverified) = verdict.unverified {
        row.notes.push(format!("the receiver checked each signature; {unverified} signatures were invalid"));
    }
    if verdict.unmatched > 0 {
        row.notes.push(format!("{} arrivals belonged to no schedule of this trial", verdict.unmatched));
    }
    row
}

/// Returns the seconds from `first_at` until the fraction `share` of `count` callbacks had arrived; `None` if fewer
/// callbacks arrived.
#[expect(clippy::cast_precision_loss, reason = "counts of callbacks and microseconds stay far below 2^52")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`share` is between 0 and 1")]
pub(crate) fn seconds_to_share(verdict: &Verdict, first_at: Timestamp, count: u64, share: f64) -> Option<f64> {
    let needed = (count as f64 * share).ceil() as usize;
    let (at, _) = *verdict.first_micros.get(needed.checked_sub(1)?)?;
    Some(((at - first_at.as_millis() * 1_000) as f64 / 1e6).max(1e-6))
}

/// Restarts the server, and measures the time until it is ready and its memory afterwards.
pub(crate) async fn restart(runtime: &Runtime, server: &mut Server, kill: bool) -> anyhow::Result<Row> {
    const MEMORY_WATCHED: Duration = Duration::from_secs(5);
    let after = match kill {
        true => server.kill_and_restart(runtime).await?,
        false => server.stop_and_restart(runtime).await?,
    };
    let meter = Meter::start(runtime, server.pid());
    runtime.sleep(MEMORY_WATCHED).await;
    let cost = meter.stop().await;
    let mut row = Row::new(if kill { "restart after kill -9" } else { "restart after a graceful stop" });
    row.rss_anon_mib = cost.memory_peak_bytes.map(mebibytes);
    row.disk_mib = Some(mebibytes(server.disk_bytes()));
    row.notes.push(format!("ready after {:.2} s", after.as_secs_f64()));
    Ok(row)
}

/// Trial of callbacks to a fast target. The first run calls only the fast target. The second run also calls a slow
/// target, for which callbacks fall due faster than it responds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowTrial {
    /// Number of callbacks for the slow target. All these callbacks are due within one second.
    pub(crate) slow_count: u64,
    /// Response time of the slow target.
    pub(crate) answer_after: Duration,
    /// Callbacks per second for the fast target.
    pub(crate) per_second: u64,
    pub(crate) duration: Duration,
}

pub(crate) async fn slow_trial(runtime: &Runtime, server: &mut Server, slow: SlowTrial) -> anyhow::Result<Vec<Row>> {
    let due = Due::Evenly { per_second: slow.per_second, duration: slow.duration };
    let alone = Trial { due, lead: lead(due.count()), kill: false, external: None };
    let mut alone = trial(runtime, server, &alone).await?;
    alone.trial = "fire, alone".to_owned();

    let slow_arrivals = Arc::new(Arrivals::counting());
    let slow_receiver = receive(runtime, Options { answer_after: slow.answer_after }, slow_arrivals.clone()).await?;
    let arrivals = Arc::new(Arrivals::logging());
    let receiver = receive(runtime, Options::default(), arrivals.clone()).await?;
    let slow_due = Due::Evenly { per_second: slow.slow_count, duration: Duration::from_secs(1) };
    let lead = lead(slow_due.count() + due.count());
    let meter = Meter::start(runtime, server.pid());
    let slow_planned = plan(runtime, server, slow_due, lead, vec![url_of(slow_receiver.address)]).await?;
    let rest = slow_planned.first_at.since(runtime.now());
    let planned = plan(runtime, server, due, rest, vec![url_of(receiver.address)]).await?;
    wait(runtime, &arrivals, due, planned.first_at).await?;
    let verdict = arrivals.verdict(&planned.incarnations)?;
    let memory_at_end = server.pid().map_or(0, rss_anon);
    let cost = meter.stop().await;
    let mut beside = row("fire, while another target is slow", due, planned.first_at, &verdict);
    beside.rss_anon_mib = cost.memory_peak_bytes.map(mebibytes);
    beside.notes.push(format!(
        "{} callbacks were due within a second at a target that responds after {} ms; {} of them arrived in the {} s \
         of the trial; anonymous memory at the end: {:.0} MiB",
        slow.slow_count,
        slow.answer_after.as_millis(),
        slow_arrivals.count(),
        slow.duration.as_secs(),
        mebibytes(memory_at_end)
    ));
    Ok(vec![alone, beside])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_instants_of_a_plan_are_evenly_spaced_or_all_equal() {
        let due = Due::Evenly { per_second: 10_000, duration: Duration::from_secs(300) };
        assert_eq!((due.count(), due.gap_micros(), due.lasts()), (3_000_000, 100, Duration::from_secs(300)));
        let at_once = Due::AtOnce { count: 100_000 };
        assert_eq!((at_once.count(), at_once.gap_micros(), at_once.lasts()), (100_000, 0, Duration::ZERO));
    }
}
