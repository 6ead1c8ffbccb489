//! `cargo xtask chaos`: runs a cluster of real processes under load, injects every kind of fault that Reveille promises
//! to survive, and checks Reveille's guarantees in the logs of clients and of an external receiver.
//!
//! Non-goal: exact repetition of a run. The seed determines the faults and the requests. The timing depends on the
//! machine.
//!
//! docs/decisions/0073-run-chaos-in-network-namespaces.md gives the reasons for the design.

// A development command may sleep, read a clock and start threads. Only product code has to use the crate `runtime` for
// these operations.
#![expect(clippy::disallowed_methods, reason = "only a development command uses this module")]

mod application;
mod build;
pub(crate) mod bus;
mod clients;
mod database;
mod faults;
mod instant;
mod judge;
mod log;
mod member;
mod network;
mod plan;
mod random;
mod receiver;
pub(crate) mod recipes;
mod rotation;
mod topic;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

use application::Application;
use clients::{Client, Workload, connect};
use database::Database;
use faults::{Cluster, wait_until};
use judge::{Records, judge};
use log::{Log, Placement, RunRecord};
use member::{Member, MemberConfig};
use network::Network;
use plan::{GUEST, MEMBERS, Plan};
use random::Random;
use receiver::Receiver;
use rotation::{rotate_at_the_end, rotate_repeatedly};
use test_servers::zookeeper::Zookeeper;
use topic::Topic;

#[derive(Args, Debug)]
pub(crate) struct ChaosArguments {
    /// Minutes of load and faults
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Seed for the faults and the requests [default: from the clock; printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Requests per second of all clients together
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Engine that holds the members and their claims
    #[arg(long, value_enum, default_value_t = Coordination::Postgres)]
    coordination: Coordination,
    /// Start of a Kafka broker whose topic is the target of some schedules, and which is subject to faults, too; needs
    /// Java and Maven
    #[arg(long)]
    bus: bool,
    /// Existing binary to use instead of a build of this checkout
    #[arg(long, conflicts_with = "mutant")]
    binary: Option<PathBuf>,
    /// Deliberate bug in the built binary, which the check must find
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
    /// Folder for the logs [default: a temporary folder, retained only after a violation of a guarantee]
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Folder with the logs of an earlier run to check again, without a new run
    #[arg(long)]
    judge: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Coordination {
    /// The database of the store
    Postgres,
    /// A ZooKeeper ensemble, which is subject to faults, too
    Zookeeper,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mutant {
    /// Bug: the store accepts an old owner's writes, and an owner continues its work after the end of its lease
    Unfenced,
    /// Bug: an owner that releases shards neither hands over the attempts in flight nor waits for the writes of
    /// outcomes
    NoDrain,
    /// Bug: the store does not notice that the database lost commits, so owners continue from their positions in memory
    NoEpoch,
}

const CLIENTS: u32 = 24;
/// Minimum length of a normal run, in minutes. A shorter run uses short faults, little time between faults, and
/// callbacks that are due soon.
const HURRY_MINUTES: u64 = 5;
/// Longest wait for outstanding callbacks after the end of all faults and after the last due instant.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(60);
/// Time without a callback after which the command stops waiting for callbacks that violate a guarantee.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait for three audits after the load.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum number of schedules whose runs the command queries after the load.
const QUESTIONS_MAX: usize = 2_000;
/// Time between two rotations of the certificate authority.
const ROTATION_PERIOD: Duration = Duration::from_secs(60);
/// Time without faults before the first fault and after the last fault.
const CALM: Duration = Duration::from_secs(5);

/// # Errors
/// Returns an error if the run does not start or does not complete.
pub(crate) fn run(arguments: &ChaosArguments) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &arguments.judge {
        return print_verdict(folder, &[]);
    }
    let seed = arguments.seed.unwrap_or_else(log::now_millis);
    let (minutes, rate) = (arguments.minutes, arguments.rate);
    let coordination = match arguments.coordination {
        Coordination::Postgres => "postgres",
        Coordination::Zookeeper => "zookeeper",
    };
    let bus = if arguments.bus { " --bus" } else { "" };
    eprintln!(
        "chaos: seed {seed}, {minutes} minutes, {rate} requests per second; repeat the test with --seed {seed} \
         --minutes {minutes} --coordination {coordination}{bus}"
    );
    let binary = match &arguments.binary {
        Some(binary) => binary.canonicalize().with_context(|| format!("cannot find {}", binary.display()))?,
        None => build::build(arguments.mutant)?,
    };
    let temporary = tempfile::Builder::new().prefix("reveille-chaos-").tempdir()?;
    let folder = arguments.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    // A folder with files may contain the cluster identity of an earlier run. Members would then reject the new
    // cluster, so the folder must be empty.
    let is_empty = std::fs::read_dir(&folder)?.next().is_none();
    ensure!(
        is_empty,
        "the folder {} is not empty; choose another folder for the logs, or check its logs with --judge",
        folder.display()
    );
    let failures = run_cluster(arguments, seed, binary, &folder)?;
    let code = print_verdict(&folder, &failures)?;
    if code != ExitCode::SUCCESS {
        let _kept = temporary.keep();
        eprintln!("the logs are in {}; check them again with --judge", folder.display());
    }
    Ok(code)
}

/// Checks the logs in `folder` and prints the verdict.
fn print_verdict(folder: &Path, failures: &[String]) -> anyhow::Result<ExitCode> {
    let records = Records::read(folder)?;
    ensure!(!records.histories.is_empty(), "the logs contain no requests to check");
    let verdict = judge(&records);
    let text = verdict.text(&records);
    std::fs::write(folder.join("verdict.txt"), &text)?;
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes())?;
    for failure in failures {
        writeln!(output, "failed: {failure}")?;
    }
    let is_good = verdict.is_good() && failures.is_empty();
    writeln!(output, "\n{}", if is_good { "all guarantees hold" } else { "guarantees VIOLATED" })?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts a cluster, runs it under load and faults, and writes the logs of the run to `folder`. Returns the failures
/// other than violated guarantees.
fn run_cluster(arguments: &ChaosArguments, seed: u64, binary: PathBuf, folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut random = Random::new(seed);
    let hurry = arguments.minutes < HURRY_MINUTES;
    let names: Vec<&'static str> = MEMBERS.into_iter().chain([GUEST]).collect();
    let network = Network::create(&names)?;
    let database = Database::start(&network)?;
    let ensemble = match arguments.coordination {
        Coordination::Postgres => None,
        Coordination::Zookeeper => Some(Zookeeper::start_on(network.ensemble(), 1)?),
    };
    let coordination = ensemble.as_ref().map(|ensemble| format!("zookeeper://{}/chaos", ensemble.addresses()));
    let topic = arguments.bus.then(|| Topic::create(&network)).transpose()?;
    let key = member::migrate(&binary, &database.url(), folder)?;
    let callbacks = Log::create(&folder.join(log::CALLBACKS))?;
    let receiver = Receiver::start(network.receiver(), callbacks, random.fork())?;
    let workload = Arc::new(Workload {
        log: Log::create(&folder.join(log::REQUESTS))?,
        key,
        receiver: format!("http://{}/", receiver.address),
        topic: topic.as_ref().map(|_| topic::NAME.to_owned()),
        members: Mutex::default(),
        ahead_ms: if hurry { 15_000 } else { 60_000 },
        is_over: AtomicBool::new(false),
        requests: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        failovers: AtomicU64::new(0),
    });
    let member_url = database.member_url();
    let (folder_of_members, bus) = (folder.to_owned(), topic.as_ref().map(Topic::url));
    let member_config =
        MemberConfig { binary, folder: folder_of_members, database: member_url, coordination, bus, network };
    let member_config = Arc::new(member_config);
    let members: Vec<Member> =
        names.into_iter().enumerate().map(|(index, name)| Member::new(&member_config, name, index)).collect();
    let cluster = Cluster {
        database,
        ensemble,
        topic,
        members,
        workload: workload.clone(),
        log: Log::create(&folder.join(log::FAULTS))?,
        began: Instant::now(),
        count: AtomicUsize::new(0),
        failures: Mutex::default(),
    };
    for member in &cluster.members[..MEMBERS.len()] {
        member.start()?;
        cluster.show(member);
        if cluster.topic.is_some() && member.name == MEMBERS[0] {
            // The other members start with this policy.
            topic::allow(&member_config, member)?;
        }
    }
    let clients = start_clients(&workload, arguments.rate, &mut random);
    let mut application = Application::new(&workload, &cluster.database, random.fork())?;
    let mut plan = Plan::new(random.fork(), hurry, cluster.ensemble.is_some(), cluster.topic.is_some());
    let period = if hurry { Duration::from_secs(10) } else { ROTATION_PERIOD };
    let rotate = || rotate_repeatedly(&cluster.database, &member_config, period, &workload.is_over);
    let rotations = thread::scope(|scope| {
        scope.spawn(|| application.run(&cluster.database));
        let rotating = scope.spawn(rotate);
        disturb(&cluster, &mut plan, 60 * arguments.minutes, &receiver);
        workload.is_over.store(true, Ordering::Relaxed);
        rotating.join()
    });
    let rotations = rotations.map_err(|_| anyhow::anyhow!("the rotation of the authority panicked"))?;
    eprintln!("{} rotations of the certificate authority were complete", rotations.complete);
    rotations.failures.into_iter().for_each(|failure| cluster.fail(failure));
    if rotations.complete == 0 && !hurry {
        cluster.fail("no rotation of the certificate authority was complete".to_owned());
    }
    for client in clients {
        ensure!(client.join().is_ok(), "a client panicked");
    }
    application.finish(&cluster.database)?;
    wait_for_callbacks(&cluster, folder, &receiver)?;
    query_runs(&cluster, folder)?;
    wait_for_audit(&cluster)?;
    log_placements(&cluster.database, folder)?;
    if let Err(error) = rotate_at_the_end(&cluster.database, &member_config) {
        cluster.fail(format!("the last rotation of the certificate authority: {error:#}"));
    }
    for member in &cluster.members[..MEMBERS.len()] {
        member.stop()?;
    }
    let mut failures = cluster.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    failures.extend(application.check(&cluster.database, folder)?);
    let (unexpected, first) = receiver.unexpected();
    if unexpected > 0 {
        failures.push(format!(
            "{unexpected} callbacks were malformed; the first malformed callback: {}",
            first.unwrap_or_default()
        ));
    }
    Ok(failures)
}

fn start_clients(workload: &Arc<Workload>, rate: u32, random: &mut Random) -> Vec<thread::JoinHandle<()>> {
    let per_second = f64::from(rate) / f64::from(CLIENTS);
    let start = |number| {
        let client = Client::new(workload, number, random.fork());
        thread::spawn(move || client.run(per_second))
    };
    (0..CLIENTS as usize).map(start).collect()
}

/// Injects faults for `seconds`, and prints the progress every 30 seconds.
fn disturb(cluster: &Cluster, plan: &mut Plan, seconds: u64, receiver: &Receiver) {
    let end = cluster.began + Duration::from_secs(seconds);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !wait_until(Duration::from_secs(30), || is_done.load(Ordering::Relaxed)) {
                let at = cluster.began.elapsed().as_secs_f64();
                let (requests, unknown) = (&cluster.workload.requests, &cluster.workload.unknown);
                let (requests, unknown) = (requests.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
                let callbacks = receiver.count();
                eprintln!("{at:7.1} s  {requests} requests, {unknown} without a response; {callbacks} callbacks");
            }
        });
        thread::sleep(CALM);
        cluster.run(plan, end - CALM);
        thread::sleep(end.saturating_duration_since(Instant::now()).max(CALM));
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Waits for all outstanding callbacks, and then for callbacks that violate a guarantee.
fn wait_for_callbacks(cluster: &Cluster, folder: &Path, receiver: &Receiver) -> anyhow::Result<()> {
    eprintln!(
        "{:7.1} s  the last client request has ended; waiting for outstanding callbacks",
        cluster.began.elapsed().as_secs_f64()
    );
    thread::sleep(Duration::from_millis(cluster.workload.ahead_ms));
    let deadline = Instant::now() + OUTCOME_TIMEOUT;
    read_topic(cluster, folder)?;
    while Records::read(folder)?.lost() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_secs(2));
        read_topic(cluster, folder)?;
    }
    let mut count = receiver.count();
    let mut since = Instant::now();
    wait_until(OUTCOME_TIMEOUT, || {
        if receiver.count() != count {
            (count, since) = (receiver.count(), Instant::now());
        }
        since.elapsed() >= QUIET
    });
    read_topic(cluster, folder)?;
    cluster.restart_dead_members();
    Ok(())
}

/// Logs the present records of the topic, if the cluster has a message bus.
fn read_topic(cluster: &Cluster, folder: &Path) -> anyhow::Result<()> {
    match &cluster.topic {
        Some(topic) => topic.read(cluster.members[0].config(), folder),
        None => Ok(()),
    }
}

/// Waits for an audit that began after the last fault. Reports its differences as failures.
fn wait_for_audit(cluster: &Cluster) -> anyhow::Result<()> {
    let mut completed = Vec::new();
    let deadline = Instant::now() + AUDIT_TIMEOUT;
    loop {
        let mut connection = connect(cluster.members[0].address())?;
        let audit = connection.exchange(&cluster.workload.request("GET", "/v1/audit", ""))?.json();
        if let Some(completed_at) = audit["completed_at"].as_str().map(str::to_owned)
            && completed.last() != Some(&completed_at)
        {
            completed.push(completed_at);
        }
        // The first audit may have ended before this function, and the second one may have begun before it.
        if completed.len() == 3 {
            if audit["unaccounted"] != 0 || audit["truncated"] != false || audit["incomplete"] != false {
                cluster.fail(format!("the audit found differences: {audit}"));
            }
            return Ok(());
        }
        if Instant::now() >= deadline {
            cluster.fail(format!("no audit was complete {} s after the load", AUDIT_TIMEOUT.as_secs()));
            return Ok(());
        }
        thread::sleep(Duration::from_secs(2));
    }
}

/// Queries the service for the runs of the schedules whose callbacks are missing from the logs, and logs these runs.
fn query_runs(cluster: &Cluster, folder: &Path) -> anyhow::Result<()> {
    let log = Log::create(&folder.join(log::RUNS))?;
    let questions = Records::read(folder)?.questions();
    let mut connection = connect(cluster.members[0].address())?;
    for (token, id) in questions.into_iter().take(QUESTIONS_MAX) {
        let path = format!("/v1/schedules/{id}/runs?limit=1000");
        let response = connection.exchange(&cluster.workload.request("GET", &path, ""))?.json();
        for run in response["runs"].as_array().into_iter().flatten() {
            let instant_of = |name: &str| instant::parse(run[name].as_str()?);
            log.write(&RunRecord {
                token: token.clone(),
                id: id.clone(),
                state: run["state"].as_str().unwrap_or("?").to_owned(),
                nominal_ms: instant_of("scheduled_at").unwrap_or(0),
                missed_last_ms: instant_of("missed_last"),
                attempt_possible: run["attempt_possible"] == true,
                attempts: run["attempts"].as_array().map_or(0, Vec::len),
            });
        }
    }
    Ok(())
}

/// Reads the poller of each schedule from the schedule's row, and logs the poller. The payload in the row contains the
/// schedule's token.
fn log_placements(database: &Database, folder: &Path) -> anyhow::Result<()> {
    // PostgreSQL writes a space after the colon in the payload of a schedule that the application requested.
    let select =
        r#"select substring(encode(spec, 'escape') from '"token": ?"([^"]*)"'), poller from reveille.schedule"#;
    let rows = database.sql(select)?;
    let log = Log::create(&folder.join(log::PLACES))?;
    let mut pollers: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows.lines() {
        let (token, poller) =
            row.split_once('|').with_context(|| format!("a row of reveille.schedule has no poller: {row}"))?;
        pollers.insert(token, poller.parse()?);
    }
    ensure!(!pollers.is_empty(), "the table reveille.schedule contains no schedules");
    for (token, poller) in pollers {
        log.write(&Placement { token: token.to_owned(), poller });
    }
    Ok(())
}
