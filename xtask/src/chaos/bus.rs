//! `cargo xtask chaos-bus`: checks the consumer runtime of the crate `bus` on three real Kafka brokers, while its members
//! and the brokers fail. The processes of the test are the example `bus_chaos` of the crate `bus-kafka`.
//!
//! Non-goal: exact repetition of a run. The seed determines the faults. The timing depends on the machine.

mod judge;
mod log;
mod members;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use test_servers::kafka::Kafka;

use self::judge::{Sent, judge};
use self::log::Process;
use self::members::{Harness, Members};
use super::build::build_example;
use super::faults::wait_until;
use super::log::{log_folder, now_millis};
use super::network::Network;
use super::random::Random;

#[derive(Args, Debug)]
pub(crate) struct BusArguments {
    /// Number of records of 100 bytes
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    records: u32,
    /// Number of keys of the records
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Records that the producer sends per second
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Seed for the faults [default: from the clock; printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Folder for the logs [default: a temporary folder, retained only after a failure]
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Folder with the logs of an earlier run of as many records and keys to check again, without a new run
    #[arg(long)]
    judge: Option<PathBuf>,
}

const BROKERS: usize = 3;
const PARTITIONS: &str = "12";
const TOPIC: &str = "chaos";
/// Namespaces of the members, and of the producer.
const MEMBERS: [&str; 3] = ["a", "b", "c"];
const PRODUCER: &str = "p";
/// Time without an entry in a log after which all members are idle. It is longer than a session and a rebalance.
const QUIET: Duration = Duration::from_secs(20);
/// Longest time until all members are idle.
const QUIET_MAX: Duration = Duration::from_secs(300);
/// Interval between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(30);
/// Range of the times between two faults of brokers, in milliseconds. The least time is long enough for a broker to copy
/// the records that it lacks.
const BROKER_CALM: (u64, u64) = (6_000, 15_000);
/// Range of the times for which a broker is dead, in milliseconds.
const BROKER_DEAD: (u64, u64) = (0, 8_000);

/// # Errors
/// Returns an error if the run does not start or does not complete.
pub(crate) fn run(arguments: &BusArguments) -> anyhow::Result<ExitCode> {
    let sent = Sent { records: arguments.records, keys: arguments.keys };
    if let Some(folder) = &arguments.judge {
        return print_verdict(folder, sent, &[]);
    }
    let seed = arguments.seed.unwrap_or_else(now_millis);
    eprintln!("chaos-bus: seed {seed}, {} records, {} per second", arguments.records, arguments.rate);
    let binary = build_example("bus_chaos")?;
    let folder = log_folder(arguments.keep.as_deref(), "reveille-chaos-bus-");
    let folder = folder.context("cannot keep the logs (--judge checks existing logs)")?;
    let failures = run_cluster(arguments, Random::new(seed), binary, &folder)?;
    let code = print_verdict(&folder, sent, &failures)?;
    if code == ExitCode::SUCCESS && arguments.keep.is_none() {
        std::fs::remove_dir_all(&folder)?;
    } else {
        eprintln!("the logs are in {}; check them again with --judge", folder.display());
    }
    Ok(code)
}

/// Sends all records while members and brokers fail, and waits until the members are idle. Returns the failures other
/// than violated guarantees.
fn run_cluster(
    arguments: &BusArguments,
    mut random: Random,
    binary: PathBuf,
    folder: &Path,
) -> anyhow::Result<Vec<String>> {
    let network = Network::create(&[&MEMBERS[..], &[PRODUCER]].concat())?;
    let kafka = Kafka::start_on(network.ensemble(), BROKERS)?;
    let url = format!("kafka://{}", kafka.addresses());
    let harness = Harness { network, binary, url, folder: folder.to_owned(), began: Instant::now() };
    let created = harness.command(PRODUCER, "create", &[PARTITIONS.to_owned()])?.status()?;
    ensure!(created.success(), "the test could not create the topic; see {}", harness.output().display());
    let mut members = Members::start(&harness, random.fork())?;
    let load = [arguments.records, arguments.keys, arguments.rate].map(|number| number.to_string());
    let mut producer = harness.command(PRODUCER, "produce", &load)?.spawn().context("cannot start the producer")?;
    let is_over = AtomicBool::new(false);
    let (sent, kills) = thread::scope(|scope| {
        let brokers = scope.spawn(|| disturb_brokers(&harness, &kafka, random.fork(), &is_over));
        let disturbed = scope.spawn(|| members.disturb(&is_over));
        while !wait_until(PROGRESS, || !matches!(producer.try_wait(), Ok(None))) {
            harness.print(&format!("{} bytes of logs", log_bytes(folder)));
        }
        let sent = producer.wait().context("cannot wait for the producer");
        harness.print("the producer has ended");
        is_over.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow::anyhow!("a thread that injects faults panicked");
        disturbed.join().map_err(panicked)??;
        anyhow::Ok((sent?, brokers.join().map_err(panicked)??))
    })?;
    ensure!(sent.success(), "the brokers did not acknowledge all records; see {}", harness.output().display());
    let seconds = harness.began.elapsed().as_secs_f64();
    wait_until_quiet(folder);
    members.stop();
    let mut output = std::io::stdout().lock();
    let per_second = f64::from(arguments.records) / seconds;
    writeln!(output, "{:>10}  records sent in {seconds:.0} s, {per_second:.0} per second", arguments.records)?;
    writeln!(output, "{:>10}  keys", arguments.keys)?;
    writeln!(output, "{kills:>10}  kills of brokers")?;
    for (kind, count) in &members.faults {
        writeln!(output, "{count:>10}  members {kind}")?;
    }
    Ok(members.failures)
}

/// Kills and restarts brokers, one at a time, until `is_over` is true. Returns the number of kills.
fn disturb_brokers(
    harness: &Harness,
    kafka: &Kafka,
    mut random: Random,
    is_over: &AtomicBool,
) -> anyhow::Result<usize> {
    let mut kills = 0;
    let mut millis = |(low, high)| Duration::from_millis(random.between(low, high));
    while !wait_until(millis(BROKER_CALM), || is_over.load(Ordering::Relaxed)) {
        let (broker, dead) = (kills % BROKERS, millis(BROKER_DEAD));
        harness.print(&format!("broker {broker} is killed for {} ms", dead.as_millis()));
        kafka.kill(broker)?;
        thread::sleep(dead);
        kafka.restart(broker)?;
        kills += 1;
    }
    Ok(kills)
}

/// Waits until the members write nothing to their logs.
fn wait_until_quiet(folder: &Path) {
    let (mut bytes, mut since) = (0, Instant::now());
    wait_until(QUIET_MAX, || {
        let now = log_bytes(folder);
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
        since.elapsed() >= QUIET
    });
}

/// Returns the size of all files in the folder.
fn log_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Checks the logs in `folder` and prints the verdict.
fn print_verdict(folder: &Path, sent: Sent, failures: &[String]) -> anyhow::Result<ExitCode> {
    let logs = members::logs(folder)?;
    ensure!(!logs.is_empty(), "the folder {} contains no logs of members", folder.display());
    let processes = logs.iter().map(|path| members::read(path)).collect::<anyhow::Result<Vec<Process>>>()?;
    let verdict = judge(&processes, sent);
    let mut output = std::io::stdout().lock();
    write!(output, "{verdict}")?;
    for failure in failures {
        writeln!(output, "failed: {failure}")?;
    }
    let is_good = verdict.broken.is_empty() && failures.is_empty();
    writeln!(output, "\n{}", if is_good { "all guarantees hold" } else { "guarantees VIOLATED" })?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
