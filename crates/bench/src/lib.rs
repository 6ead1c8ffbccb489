//! Benchmarks of the command `reveille bench`. The command measures, on the user's machine, every figure that
//! Reveille's documents claim.
//!
//! Invariants: the bench sends load only to this machine, unless the caller passes a URL. Every trial limits its
//! duration and the number of its operations. A trial counts lost, duplicated and early callbacks from the receiver's
//! log or the records of a topic, never from a report of the server.
//!
//! docs/decisions/0185-keep-benchmarks-in-a-library.md gives the reasons for the design.

mod arrivals;
mod batch;
mod buffer;
mod cluster;
mod consume;
mod create;
mod election;
mod fairness;
mod fire;
mod limit;
mod limit_database;
mod limit_handler;
mod load;
mod message;
mod overdue;
mod process;
mod quota_change;
mod report;
mod runs;
mod server;
mod soak;
mod tenant;
mod topic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use cli_support::Url;
use cli_support::console;
use runtime::Runtime;

use buffer::BufferArguments;
use consume::{ConsumeArguments, ContestantArguments};
use create::Load;
use election::ElectionArguments;
use election::candidate::{self, CandidateArguments};
use fairness::FairnessArguments;
use fire::{Due, ExternalReceiver, SlowTrial, Trial};
use limit::Part;
use limit_database::Size;
use limit_handler::Durable;
use load::Pace;
use quota_change::QuotaChangeArguments;
use report::Row;
use runs::RunsArguments;
use server::{Server, ServerArguments};
use soak::SoakArguments;
use topic::{BusArguments, OutageArguments};

pub use runs::{LoadRunsArguments, load as load_runs};

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure the limits of this machine: bare handler, bare durable handler, bare client and bare database
    Limit(LimitArguments),
    /// Create schedules by single requests
    Create(CreateArguments),
    /// Create schedules by NDJSON batches
    Batch(BatchArguments),
    /// Reschedule, then cancel schedules by single requests
    Change(ChangeArguments),
    /// Measure callbacks to a receiver or a topic: rate, lateness, and the numbers of lost, duplicated and early callbacks
    Fire(FireArguments),
    /// Stop, kill and restart a Kafka broker, or kill the server, in the midst of callbacks to a topic; fail if a callback is
    /// lost, or duplicated without a further attempt
    BusOutage(OutageArguments),
    /// Measure memory, restart time and lateness of callbacks while many schedules are pending
    Pending(PendingArguments),
    /// Measure how much attacks of a tenant delay another tenant's callbacks; fail if the delay exceeds a bound
    Fairness(FairnessArguments),
    /// Raise and lower a tenant's quota while many schedules are pending; fail if a callback is missed or duplicated
    QuotaChange(QuotaChangeArguments),
    /// Create, reschedule and cancel schedules with 1 KB payloads for an hour, and report memory, disk and lateness
    /// each minute; fail if a figure grows in the second half or a callback is lost
    Soak(SoakArguments),
    /// Measure a cluster over one database: the callback rate of one, two and three members, and the lateness when one
    /// member stops
    Cluster(ClusterArguments),
    /// Compare leader elections, graceful and after a crash, with those of a program that uses Curator, and count the
    /// requests of polling and watching electors; fail if Reveille is slower, or if the requests per hand-over grow
    /// with the number of watching replicas
    Election(ElectionArguments),
    /// Compare consumers of a Kafka topic: Reveille's processor, rdkafka, Kafka's Java consumer, and Confluent's Parallel
    /// Consumer; fail if Reveille is slower than its targets
    Consume(ConsumeArguments),
    /// Measure how many records per second a buffered producer accepts while the bus is away, and sends afterwards; fail if a
    /// record is lost or duplicated
    Buffer(BufferArguments),
    /// Write runs into the store of a stopped server, for `bench runs`
    LoadRuns(LoadRunsArguments),
    /// Measure the time until the first page of runs arrives, for each filter, with the runs that `bench load-runs` wrote
    Runs(RunsArguments),
    /// Run the child process of `consume` that consumes a topic
    #[command(hide = true)]
    ConsumeContestant(ContestantArguments),
    /// Run the child process of `election` that is a candidate
    #[command(hide = true)]
    ElectionCandidate(CandidateArguments),
    /// Run the child process of `limit` that replaces the server
    #[command(hide = true)]
    LimitHandler {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        journal: Option<PathBuf>,
        /// Store rows in the database instead of the journal
        #[arg(long, requires = "store")]
        database: bool,
        #[arg(long, env = "REVEILLE_STORE", hide_env_values = true)]
        store: Option<Url>,
    },
    /// Run the child process of `limit` that posts requests
    #[command(hide = true)]
    LimitClient {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: usize,
    },
}

/// Arguments of every trial.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Folder for the trial's data; the trial creates a missing folder, and the next trial uses the same folder
    #[arg(long, default_value = "bench-data")]
    data: PathBuf,
    /// Number of runs of the trial; the output has every run and the median
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Number of keep-alive connections of the load generator and of the bare client
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Common {
    fn connections(&self) -> usize {
        usize::try_from(self.connections).unwrap_or(1)
    }
}

#[derive(Args, Debug)]
pub struct LimitArguments {
    #[command(flatten)]
    common: Common,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Limits to measure [default: all]
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Database to measure, postgres://…
    #[arg(long, required_if_eq("only", "database"))]
    store: Option<Url>,
}

#[derive(Args, Debug)]
pub struct CreateArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Requests per second, due at fixed instants [default: as many as the server can handle]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Seconds of each run
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Number of schedules that are pending before the first run
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    preload: u64,
    /// Measure the bare durable handler before and after each run, and report the ratio of the run's rate to the
    /// handler's rate; with --store also measure the bare database
    #[arg(long)]
    with_limit: bool,
}

#[derive(Args, Debug)]
pub struct ClusterArguments {
    #[command(flatten)]
    common: Common,
    /// Empty database, postgres://…
    #[arg(long, env = "REVEILLE_STORE", hide_env_values = true)]
    store: Url,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    members: u64,
    /// Number of callbacks in flight per member
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    in_flight: u64,
}

#[derive(Args, Debug)]
pub struct BatchArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of schedules that each run creates
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
    /// Number of schedules that are pending before the first run
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    preload: u64,
}

#[derive(Args, Debug)]
pub struct ChangeArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of schedules of each run; the run reschedules and then cancels each schedule
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Requests per second, due at fixed instants [default: as many as the server can handle]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Number of schedules that are pending before the first run
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    preload: u64,
}

#[derive(Args, Debug)]
pub struct FireArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of callbacks, which are all due at one instant
    #[arg(long, default_value_t = 100_000, conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Callbacks per second at evenly spaced instants, instead of all callbacks at one instant
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Seconds of each run, with `--rate`
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Number of schedules that stay pending while other schedules fire
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pending: u64,
    /// Seconds in which the trial creates the schedules before the first schedule falls due [default: derived from the
    /// number of schedules]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    lead: Option<u64>,
    /// Kill the server with `kill -9` when a quarter of the callbacks have arrived, and restart it at once
    #[arg(long)]
    kill: bool,
    /// Measure the rate of `--count` callbacks for `--targets` targets: first while the server runs, then after a restart
    /// at which all callbacks are overdue
    #[arg(long, conflicts_with_all = ["rate", "kill", "with_limit", "slow_target", "receiver_url"])]
    overdue: bool,
    /// Number of fast targets, with `--overdue`
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    targets: u16,
    /// Add `--slow-count` callbacks, due within one second, for a target that takes three seconds to respond, while a
    /// fast target receives `--rate` callbacks per second (default 1,000)
    #[arg(long, conflicts_with_all = ["kill", "with_limit", "receiver_url"])]
    slow_target: bool,
    /// Number of callbacks for the slow target
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    slow_count: u64,
    /// URL of a running receiver to use instead of the built-in one; see `tools/receiver-python`
    #[arg(long, requires = "receiver_log")]
    receiver_url: Option<String>,
    /// Log file that the receiver of `--receiver-url` writes
    #[arg(long, requires = "receiver_url")]
    receiver_log: Option<PathBuf>,
    /// Measure the bare client before and after each run, and report the ratio of the run's rate to the client's rate;
    /// with --store also measure the bare database. With --bus kafka://…, measure a bare producer of librdkafka instead,
    /// which sends the records of each run after it
    #[arg(long, conflicts_with = "rate")]
    with_limit: bool,
    #[command(flatten)]
    bus: BusArguments,
}

#[derive(Args, Debug)]
pub struct PendingArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    server: ServerArguments,
    /// Number of schedules that are pending
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
    /// Callbacks per second that fire while the schedules are pending
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
}

/// Runs a trial, except [`Command::LoadRuns`], whose store the caller opens. `store_connections` is the number of connections on which a PostgreSQL store writes. The measurement
/// of the bare database uses the same number.
///
/// # Errors
/// Returns an error if a trial fails, or if a figure exceeds the trial's bound.
pub async fn run(runtime: &Runtime, command: Command, store_connections: usize) -> anyhow::Result<()> {
    match command {
        Command::Limit(arguments) => run_limit(runtime, &arguments, store_connections).await,
        Command::Create(arguments) => run_create(runtime, &arguments, store_connections).await,
        Command::Batch(arguments) => run_batch(runtime, &arguments).await,
        Command::Change(arguments) => run_change(runtime, &arguments).await,
        Command::Cluster(arguments) => run_cluster(runtime, &arguments).await,
        Command::Fire(arguments) => run_fire(runtime, &arguments, store_connections).await,
        Command::BusOutage(arguments) => Box::pin(topic::outage(runtime, &arguments)).await,
        Command::Pending(arguments) => run_pending(runtime, &arguments).await,
        Command::QuotaChange(arguments) => quota_change::run(runtime, &arguments).await,
        Command::Soak(arguments) => soak::run(runtime, &arguments).await,
        Command::Fairness(arguments) => fairness::run(runtime, &arguments).await,
        Command::Election(arguments) => Box::pin(election::run(runtime, &arguments)).await,
        Command::Buffer(arguments) => Box::pin(buffer::run(runtime, &arguments)).await,
        Command::Consume(arguments) => Box::pin(consume::run(runtime, &arguments)).await,
        Command::LoadRuns(_) => anyhow::bail!("the caller opens the store, and then calls `load_runs`"),
        Command::Runs(arguments) => Box::pin(runs::run(runtime, &arguments)).await,
        Command::ConsumeContestant(arguments) => Box::pin(consume::run_contestant(runtime, &arguments)).await,
        Command::ElectionCandidate(arguments) => Box::pin(candidate::run(runtime, &arguments)).await,
        Command::LimitHandler { listen, journal, database, store } => {
            let durable = match (journal, store.filter(|_| database)) {
                (Some(folder), _) => Durable::Journal(folder),
                (None, Some(store)) => Durable::Database(store, store_connections),
                (None, None) => Durable::None,
            };
            limit_handler::serve(runtime, listen, durable).await
        }
        Command::LimitClient { listen, target, connections } => {
            limit::serve_client(runtime, target, connections, listen).await
        }
    }
}

async fn run_limit(runtime: &Runtime, arguments: &LimitArguments, store_connections: usize) -> anyhow::Result<()> {
    let folder = &arguments.common.data;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let location = limit::Location { folder, store: arguments.store.as_ref(), store_connections };
    let size = Size { connections: arguments.common.connections(), duration: Duration::from_secs(arguments.duration) };
    let mut parts = if arguments.only.is_empty() { Part::ALL.to_vec() } else { arguments.only.clone() };
    parts.retain(|part| *part != Part::Database || location.store.is_some());
    let mut runs = vec![Vec::new(); parts.len()];
    for _ in 0..arguments.common.runs {
        for (part, rows) in parts.iter().zip(&mut runs) {
            rows.push(limit::measure(runtime, *part, size, location).await?);
        }
    }
    print(&arguments.common, runs.into_iter().map(|rows| (rows, Vec::new())).collect())
}

async fn run_create(runtime: &Runtime, arguments: &CreateArguments, store_connections: usize) -> anyhow::Result<()> {
    let common = &arguments.common;
    let server = filled_server(runtime, common, &arguments.server, arguments.preload).await?;
    let duration = Duration::from_secs(arguments.duration);
    let load = Load { connections: common.connections(), pace: pace(arguments.rate), duration };
    let part = arguments.with_limit.then_some(Part::Durable);
    let mut baseline = Baseline::new(part, common.connections(), common, &arguments.server, store_connections);
    let mut rows = Vec::new();
    for _ in 0..common.runs {
        baseline.measure(runtime).await?;
        let row = create::trial(runtime, &server, load).await?;
        rows.push(baseline.compare(runtime, row).await?);
    }
    server.stop(runtime).await?;
    print(common, vec![(rows, baseline.all())])
}

async fn run_cluster(runtime: &Runtime, arguments: &ClusterArguments) -> anyhow::Result<()> {
    let ClusterArguments { common, store, members, in_flight } = arguments;
    let trial = cluster::Trial { members: *members, in_flight: *in_flight };
    let mut runs: Vec<Vec<Row>> = Vec::new();
    for _ in 0..common.runs {
        for (at, row) in cluster::run(runtime, store, &common.data, trial).await?.into_iter().enumerate() {
            match runs.get_mut(at) {
                Some(rows) => rows.push(row),
                None => runs.push(vec![row]),
            }
        }
    }
    print(common, runs.into_iter().map(|rows| (rows, Vec::new())).collect())
}

async fn run_batch(runtime: &Runtime, arguments: &BatchArguments) -> anyhow::Result<()> {
    const CONNECTIONS_MAX: usize = 8;
    let common = &arguments.common;
    let server = filled_server(runtime, common, &arguments.server, arguments.preload).await?;
    let first_at = create::schedules_far(runtime).first_at;
    let mut rows = Vec::new();
    for _ in 0..common.runs {
        let connections = common.connections().min(CONNECTIONS_MAX);
        rows.push(batch::trial(runtime, &server, arguments.count, connections, first_at).await?);
    }
    server.stop(runtime).await?;
    print(common, vec![(rows, Vec::new())])
}

async fn run_change(runtime: &Runtime, arguments: &ChangeArguments) -> anyhow::Result<()> {
    const DURATION_MAX: Duration = Duration::from_secs(600);
    let common = &arguments.common;
    let server = filled_server(runtime, common, &arguments.server, arguments.preload).await?;
    let load = Load { connections: common.connections(), pace: pace(arguments.rate), duration: DURATION_MAX };
    let (mut rescheduled, mut cancelled) = (Vec::new(), Vec::new());
    for _ in 0..common.runs {
        let schedules = create::schedules_far(runtime);
        let of = batch::create_all(runtime, server.head("application/x-ndjson"), schedules, arguments.count).await?;
        let [reschedule, cancel] = create::change_trial(runtime, &server, load, of).await?;
        rescheduled.push(reschedule);
        cancelled.push(cancel);
    }
    server.stop(runtime).await?;
    print(common, vec![(rescheduled, Vec::new()), (cancelled, Vec::new())])
}

async fn run_fire(runtime: &Runtime, arguments: &FireArguments, store_connections: usize) -> anyhow::Result<()> {
    let common = &arguments.common;
    if let Some(url) = &arguments.bus.bus {
        return Box::pin(topic::fire(runtime, arguments, url)).await;
    }
    let mut server = filled_server(runtime, common, &arguments.server, arguments.pending).await?;
    let duration = Duration::from_secs(arguments.duration);
    if arguments.slow_target {
        let per_second = arguments.rate.unwrap_or(1_000);
        let slow =
            SlowTrial { slow_count: arguments.slow_count, answer_after: Duration::from_secs(3), per_second, duration };
        let rows = fire::slow_trial(runtime, &mut server, slow).await?;
        server.stop(runtime).await?;
        return print(common, rows.into_iter().map(|row| (vec![row], Vec::new())).collect());
    }
    if arguments.overdue {
        let mut rows = (Vec::new(), Vec::new());
        for _ in 0..common.runs {
            let (before, after) = overdue::trial(runtime, &mut server, arguments.count, arguments.targets).await?;
            rows.0.push(before);
            rows.1.push(after);
        }
        server.stop(runtime).await?;
        return print(common, vec![(rows.0, Vec::new()), (rows.1, Vec::new())]);
    }
    let due = match arguments.rate {
        Some(per_second) => Due::Evenly { per_second, duration },
        None => Due::AtOnce { count: arguments.count },
    };
    let external = arguments.receiver_url.clone().zip(arguments.receiver_log.clone());
    let trial = Trial {
        due,
        lead: arguments.lead.map_or_else(|| fire::lead(due.count()), Duration::from_secs),
        kill: arguments.kill,
        external: external.map(|(url, log)| ExternalReceiver { url, log }),
    };
    let in_flight = scheduler::Options::default().in_flight_per_target;
    let part = arguments.with_limit.then_some(Part::Client);
    let mut baseline = Baseline::new(part, in_flight, common, &arguments.server, store_connections);
    let mut rows = Vec::new();
    for _ in 0..common.runs {
        baseline.measure(runtime).await?;
        let row = fire::trial(runtime, &mut server, &trial).await?;
        rows.push(baseline.compare(runtime, row).await?);
    }
    server.stop(runtime).await?;
    print(common, vec![(rows, baseline.all())])
}

async fn run_pending(runtime: &Runtime, arguments: &PendingArguments) -> anyhow::Result<()> {
    let common = &arguments.common;
    let mut server = filled_server(runtime, common, &arguments.server, arguments.count).await?;
    let stopped = fire::restart(runtime, &mut server, false).await?;
    let killed = fire::restart(runtime, &mut server, true).await?;
    let idle = fire::idle(runtime, &server).await?;
    let due = Due::Evenly { per_second: arguments.rate, duration: Duration::from_secs(arguments.duration) };
    let trial = Trial { due, lead: fire::lead(due.count()), kill: false, external: None };
    let mut rows = Vec::new();
    for _ in 0..common.runs {
        rows.push(fire::trial(runtime, &mut server, &trial).await?);
    }
    server.stop(runtime).await?;
    print(
        common,
        vec![(vec![stopped], Vec::new()), (vec![killed], Vec::new()), (vec![idle], Vec::new()), (rows, Vec::new())],
    )
}

fn pace(rate: Option<u64>) -> Pace {
    #[expect(clippy::cast_precision_loss, reason = "a rate is at most a million requests per second")]
    rate.map_or(Pace::Closed, |rate| Pace::Open { per_second: rate as f64 })
}

async fn filled_server(
    runtime: &Runtime,
    common: &Common,
    arguments: &ServerArguments,
    pending: u64,
) -> anyhow::Result<Server> {
    let server = Server::start(runtime, arguments, &common.data).await?;
    batch::fill(runtime, &server, &common.data, pending).await?;
    Ok(server)
}

/// Measurements of the limit with which the bench compares a trial. The bench measures the limit before the first run
/// and after each run. Because the machine's speed varies, the bench compares each run with the measurements before and
/// after it.
struct Baseline<'a> {
    part: Option<Part>,
    connections: usize,
    /// Number of rows that the load writes to the database concurrently.
    outstanding: usize,
    location: limit::Location<'a>,
    rows: Vec<Row>,
    /// Measurements of the bare database, if the trial uses a database. The report contains these measurements, but no
    /// ratio uses them.
    database: Vec<Row>,
}

impl<'a> Baseline<'a> {
    fn new(
        part: Option<Part>,
        outstanding: usize,
        common: &'a Common,
        server: &'a ServerArguments,
        store_connections: usize,
    ) -> Self {
        let location = limit::Location { folder: &common.data, store: server.store.as_ref(), store_connections };
        let connections = common.connections();
        Baseline { part, connections, outstanding, location, rows: Vec::new(), database: Vec::new() }
    }

    /// Measures the limit before the first run. A later run uses the measurement after the preceding run.
    async fn measure(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        if self.rows.is_empty() { self.measure_again(runtime).await } else { Ok(()) }
    }

    async fn measure_again(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        const DURATION: Duration = Duration::from_secs(10);
        let Some(part) = self.part else { return Ok(()) };
        let size = Size { connections: self.connections, duration: DURATION };
        self.rows.push(limit::measure(runtime, part, size, self.location).await?);
        if self.location.store.is_some() {
            let size = Size { connections: self.outstanding, duration: DURATION };
            self.database.push(limit::measure(runtime, Part::Database, size, self.location).await?);
        }
        Ok(())
    }

    fn all(self) -> Vec<Row> {
        [self.rows, self.database].concat()
    }

    /// Measures the limit again. Returns the row of a run with the ratio of its rate to the mean of two limits: the
    /// limit before the run and the limit after the run.
    async fn compare(&mut self, runtime: &Runtime, mut row: Row) -> anyhow::Result<Row> {
        self.measure_again(runtime).await?;
        if let [.., before, after] = self.rows.as_slice() {
            let limit = before.per_second.zip(after.per_second).map(|(before, after)| f64::midpoint(before, after));
            row.ratio = row.per_second.zip(limit).map(|(rate, limit)| rate / limit);
        }
        Ok(row)
    }
}

/// Prints the runs of each trial, their median if a trial has several runs, and the measured limits.
fn print(common: &Common, trials: Vec<(Vec<Row>, Vec<Row>)>) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (runs, limits) in trials {
        rows.extend(limits);
        let summary = runs.first().filter(|_| runs.len() > 1).map(|first| report::summary(&first.trial, &runs));
        rows.extend(runs);
        rows.extend(summary);
    }
    let text = if common.json { serde_json::to_string_pretty(&rows)? } else { report::table(&rows) };
    console::line(text.trim_end()).context("cannot write the result to standard output")
}
