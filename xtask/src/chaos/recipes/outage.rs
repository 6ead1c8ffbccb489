//! Buffered producer while the broker is dead for a minute. In this time, the producing process is killed and starts again.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;

use super::Outcome;
use super::processes::{Harness, Language, Process};
use crate::chaos::faults::wait_until;
use crate::stage::output_of;

const TOPIC: &str = "outage";
const PARTITIONS: u32 = 6;
/// Records that a process offers to the buffer per second.
const PER_SECOND: u32 = 120_000;
/// Least number of records that the buffer must accept per second.
const PER_SECOND_MIN: f64 = 100_000.0;
/// Time before the outage, and after it until the producer stops.
const CALM: Duration = Duration::from_secs(5);
/// Time from the death of the broker until the kill of the process.
const FIRST_PART: Duration = Duration::from_secs(30);
/// Time from the death of the broker until its restart.
const OUTAGE: Duration = Duration::from_secs(60);
/// Longest time until a new process has accepted a record.
const START_MAX: Duration = Duration::from_secs(30);
/// Number of records that a process may have in flight when it is killed.
const IN_FLIGHT_MAX: u64 = 10_000;

/// Process that sends numbered records through a buffer.
struct Sender {
    process: Process,
    /// All records from the first one to the one before this number are accepted.
    accepted: Arc<AtomicU64>,
    /// Thread that reads the output. It returns the number of records that remain on disk after a graceful stop.
    reading: JoinHandle<Option<u64>>,
}

/// # Errors
/// Returns an error if a process or the broker does not start, or if a process does not stop.
pub(super) fn run(harness: &Harness) -> anyhow::Result<Outcome> {
    harness.topic("create", TOPIC, PARTITIONS)?;
    let first = Sender::start(harness, 0)?;
    thread::sleep(CALM);
    harness.kafka.kill(0)?;
    let (died, before) = (Instant::now(), first.accepted());
    harness.print("the broker is dead");
    thread::sleep(FIRST_PART.saturating_sub(died.elapsed()));
    let first_end = first.kill()?;
    let next = first_end + IN_FLIGHT_MAX;
    harness.print("the producing process is killed, and starts again");
    let second = Sender::start(harness, next)?;
    thread::sleep(OUTAGE.saturating_sub(died.elapsed()));
    let (outage, during) = (died.elapsed(), second.accepted());
    harness.print("the broker starts");
    harness.kafka.restart(0)?;
    thread::sleep(CALM);
    let stopping = Instant::now();
    let (second_end, remaining) = second.stop()?;
    let drained = stopping.elapsed();

    let ranges = [0, first_end, next, second_end].map(|number| number.to_string());
    let mut arguments = vec![TOPIC];
    arguments.extend(ranges.iter().map(String::as_str));
    let mut command = harness.command(Language::Rust, "check", &harness.kafka.addresses(), &arguments)?;
    let counts = output_of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let counts = counts.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
    let counts = counts.context("the check of the records printed no numbers")?;
    let [lost, repeated, inverted, stored] = counts[..] else { anyhow::bail!("the check printed {counts:?}") };

    let rate = ((first_end - before) + (during - next)) as f64 / outage.as_secs_f64();
    let mut failures = Vec::new();
    for (name, count) in
        [("lost", lost), ("not in the order of their key", inverted), ("on disk at the end", remaining)]
    {
        if count > 0 {
            failures.push(format!("outage: {count} records are {name}"));
        }
    }
    if rate < PER_SECOND_MIN {
        failures
            .push(format!("outage: the buffer accepted {rate:.0} records a second; the target is {PER_SECOND_MIN}"));
    }
    let mut text = String::new();
    writeln!(
        text,
        "{:>10}  records a second accepted in an outage of {:.0} s, of {PER_SECOND} offered",
        rate.round(),
        outage.as_secs_f64()
    )?;
    writeln!(text, "{:>10}  records accepted", first_end + second_end - next)?;
    writeln!(text, "{stored:>10}  records stored, {repeated} of them repeated")?;
    writeln!(text, "{lost:>10}  records lost")?;
    writeln!(text, "{inverted:>10}  records not in the order of their key")?;
    writeln!(
        text,
        "{:>10.1}  seconds until the stop of the producer, {CALM:?} after the restart",
        drained.as_secs_f64()
    )?;
    Ok(Outcome { text, failures })
}

impl Sender {
    /// Starts a process. Returns after it has accepted a record.
    fn start(harness: &Harness, first: u64) -> anyhow::Result<Sender> {
        let folder = harness.folder.join("buffer").display().to_string();
        let (first_text, rate) = (first.to_string(), PER_SECOND.to_string());
        let arguments = [TOPIC, &folder, &first_text, &rate];
        let mut command = harness.command(Language::Rust, "buffer", &harness.kafka.addresses(), &arguments)?;
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = BufReader::new(process.0.stdout.take().context("the output of the process is a pipe")?);
        let accepted = Arc::new(AtomicU64::new(first));
        let counter = accepted.clone();
        let reading = thread::spawn(move || {
            let mut remaining = None;
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix("remaining ") {
                    Some(count) => remaining = count.parse().ok(),
                    None => counter.store(line.parse().unwrap_or(first), Ordering::Relaxed),
                }
            }
            remaining
        });
        let sender = Sender { process, accepted, reading };
        let has_started = wait_until(START_MAX, || sender.accepted() > first);
        ensure!(has_started, "a buffer accepted no record; see {}", harness.output().display());
        Ok(sender)
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Kills the process. Returns the number after its last accepted record.
    fn kill(self) -> anyhow::Result<u64> {
        self.process.signal(Signal::KILL)?;
        self.end().map(|(accepted, _)| accepted)
    }

    /// Stops the process. Returns the number after its last accepted record, and the number of records that remain on disk.
    fn stop(mut self) -> anyhow::Result<(u64, u64)> {
        drop(self.process.0.stdin.take());
        let status = self.process.ended()?;
        ensure!(status.success(), "the buffered producer failed: {status}");
        let (accepted, remaining) = self.end()?;
        Ok((accepted, remaining.context("the buffered producer printed no number of remaining records")?))
    }

    fn end(self) -> anyhow::Result<(u64, Option<u64>)> {
        let Sender { process, accepted, reading } = self;
        drop(process);
        let remaining = reading.join().map_err(|_| anyhow::anyhow!("a thread that reads an output panicked"))?;
        Ok((accepted.load(Ordering::Relaxed), remaining))
    }
}
