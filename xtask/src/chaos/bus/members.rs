//! Members of the group, each a process in its own network namespace, and their faults.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::log::Process;
use super::{MEMBERS, TOPIC};
use crate::chaos::faults::wait_until;
use crate::chaos::network::Network;
use crate::chaos::random::Random;

/// Extension of the log of a process.
const LOG: &str = "log";
/// Extension of the list of a process's pauses. Each line has the start and the end of a pause.
const PAUSES: &str = "pauses";
/// Longest time of a graceful stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Range of the times between two faults, in milliseconds.
const CALM: (u64, u64) = (1_000, 8_000);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Killed,
    Paused,
    CutOff,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Killed => "killed and restarted",
            Kind::Paused => "paused beyond their session",
            Kind::CutOff => "cut off",
        }
    }

    /// Returns the range of the times for which a fault lasts, in milliseconds. A session lasts 10 s. Some cuts are shorter
    /// than a session.
    fn millis(self) -> (u64, u64) {
        match self {
            Kind::Killed => (0, 5_000),
            Kind::Paused => (12_000, 16_000),
            Kind::CutOff => (2_000, 16_000),
        }
    }
}

/// Parts of a run that all processes share.
pub(super) struct Harness {
    pub(super) network: Network,
    pub(super) binary: PathBuf,
    pub(super) url: String,
    /// Folder of the logs.
    pub(super) folder: PathBuf,
    pub(super) began: Instant,
}

impl Harness {
    /// Returns a command of the example in a namespace.
    pub(super) fn command(&self, namespace: &str, name: &str, arguments: &[String]) -> anyhow::Result<Command> {
        let output = File::options().create(true).append(true).open(self.output())?;
        let mut command = self.network.command(namespace, &self.binary);
        command.args([name, &self.url, TOPIC]).args(arguments);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(command)
    }

    /// Returns the path of the file with the output of all processes.
    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("output.txt")
    }

    pub(super) fn print(&self, event: &str) {
        eprintln!("{:7.1} s  {event}", self.began.elapsed().as_secs_f64());
    }
}

pub(super) struct Members<'a> {
    harness: &'a Harness,
    random: Random,
    running: Vec<Member>,
    /// Number of faults of each kind.
    pub(super) faults: BTreeMap<&'static str, usize>,
    /// Failures other than violated guarantees. For example, a member exited by itself.
    pub(super) failures: Vec<String>,
}

struct Member {
    name: &'static str,
    /// Number of processes of this member so far.
    starts: usize,
    child: Child,
}

impl Member {
    fn log(&self, harness: &Harness, extension: &str) -> PathBuf {
        harness.folder.join(format!("{}-{}.{extension}", self.name, self.starts))
    }

    fn start(harness: &Harness, name: &'static str, starts: usize) -> anyhow::Result<Member> {
        let log = harness.folder.join(format!("{name}-{starts}.{LOG}"));
        let mut command = harness.command(name, "consume", &[log.display().to_string()])?;
        // The process stops at the end of its input.
        let child = command.stdin(Stdio::piped()).spawn().context("cannot start a member")?;
        Ok(Member { name, starts, child })
    }

    fn restart(&mut self, harness: &Harness) -> anyhow::Result<()> {
        *self = Member::start(harness, self.name, self.starts + 1)?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let has_stopped = wait_until(STOP_MAX, || !matches!(self.child.try_wait(), Ok(None)));
        ensure!(has_stopped, "the member {} did not stop within {STOP_MAX:?}", self.name);
        let status = self.child.wait()?;
        ensure!(status.success(), "the member {} failed during its graceful stop: {status}", self.name);
        Ok(())
    }
}

impl<'a> Members<'a> {
    pub(super) fn start(harness: &'a Harness, random: Random) -> anyhow::Result<Self> {
        let running = MEMBERS.map(|name| Member::start(harness, name, 1)).into_iter().collect::<anyhow::Result<_>>()?;
        Ok(Members { harness, random, running, faults: BTreeMap::new(), failures: Vec::new() })
    }

    /// Injects one fault after the other until `is_over` is true. When this function returns, all faults have ended.
    pub(super) fn disturb(&mut self, is_over: &AtomicBool) -> anyhow::Result<()> {
        let mut bag = Vec::new();
        while !wait_until(self.millis(CALM), || is_over.load(Ordering::Relaxed)) {
            if bag.is_empty() {
                bag = [Kind::Killed, Kind::Paused, Kind::CutOff].repeat(MEMBERS.len());
                self.random.shuffle(&mut bag);
            }
            let Some(kind) = bag.pop() else { continue };
            let lasts = self.millis(kind.millis());
            let last = self.running.len() as u64 - 1;
            let at = usize::try_from(self.random.between(0, last))?;
            self.restart_if_dead(at)?;
            let member = &mut self.running[at];
            self.harness.print(&format!("member {} is {}, {} ms", member.name, kind.name(), lasts.as_millis()));
            inject(self.harness, member, kind, lasts)?;
            *self.faults.entry(kind.name()).or_default() += 1;
        }
        Ok(())
    }

    fn millis(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_millis(self.random.between(low, high))
    }

    fn restart_if_dead(&mut self, at: usize) -> anyhow::Result<()> {
        let member = &mut self.running[at];
        if let Some(status) = member.child.try_wait()? {
            let text = format!("the member {} exited by itself: {status}; see output.txt", member.name);
            self.harness.print(&text);
            self.failures.push(text);
            member.restart(self.harness)?;
        }
        Ok(())
    }

    /// Stops all members.
    pub(super) fn stop(&mut self) {
        for member in &mut self.running {
            if let Err(error) = member.stop() {
                self.failures.push(format!("{error:#}"));
            }
        }
    }
}

fn inject(harness: &Harness, member: &mut Member, kind: Kind, lasts: Duration) -> anyhow::Result<()> {
    match kind {
        Kind::Killed => {
            member.child.kill()?;
            member.child.wait()?;
            thread::sleep(lasts);
            member.restart(harness)?;
        }
        Kind::Paused => {
            let start = now();
            member.signal(Signal::STOP)?;
            thread::sleep(lasts);
            member.signal(Signal::CONT)?;
            let mut pauses = File::options().create(true).append(true).open(member.log(harness, PAUSES))?;
            std::io::Write::write_all(&mut pauses, format!("{start} {}\n", now()).as_bytes())?;
        }
        Kind::CutOff => {
            harness.network.cut_off(member.name)?;
            thread::sleep(lasts);
            harness.network.rejoin(member.name)?;
        }
    }
    Ok(())
}

/// Returns the time of the clock that the members' logs use, in nanoseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Returns the paths of all logs in the folder.
pub(super) fn logs(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = files.map(|file| Ok(file?.path())).collect::<anyhow::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == LOG));
    paths.sort();
    Ok(paths)
}

/// Reads the log of a process and its pauses.
pub(super) fn read(path: &Path) -> anyhow::Result<Process> {
    let mut process = Process::read(path)?;
    process.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let pauses = path.with_extension(PAUSES);
    if pauses.exists() {
        for line in std::fs::read_to_string(&pauses)?.lines() {
            let (start, end) = line.split_once(' ').context("a line of a list of pauses has no two numbers")?;
            process.pauses.push((start.parse()?, end.parse()?));
        }
    }
    Ok(process)
}
