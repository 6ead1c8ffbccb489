//! Processes of the test.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use test_servers::kafka::{Kafka, java_member};

use crate::chaos::faults::wait_until;

/// Longest time of a graceful stop.
const STOP_MAX: Duration = Duration::from_secs(120);
/// Number of units of processor time in `/proc` per second (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    Rust,
    Java,
}

/// Parts of a run that all processes share.
pub(super) struct Harness {
    pub(super) kafka: &'static Kafka,
    /// Path of the example `bus_recipes`.
    pub(super) binary: PathBuf,
    /// Folder of the logs.
    pub(super) folder: PathBuf,
    pub(super) began: Instant,
}

impl Harness {
    /// Returns a command of a process without input. `servers` is the address of the broker.
    pub(super) fn command(
        &self,
        language: Language,
        name: &str,
        servers: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Command> {
        let mut command = match language {
            Language::Rust => Command::new(&self.binary),
            Language::Java => java_member()?,
        };
        let output = File::options().create(true).append(true).open(self.output())?;
        command.arg(name);
        match language {
            Language::Rust => command.arg(format!("kafka://{servers}")),
            Language::Java => command.arg(servers),
        };
        command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(command)
    }

    /// Creates a topic, or changes its number of partitions.
    ///
    /// # Errors
    /// Returns an error if the broker does not accept the request.
    pub(super) fn topic(&self, name: &str, topic: &str, partitions: u32) -> anyhow::Result<()> {
        let mut command =
            self.command(Language::Rust, name, &self.kafka.addresses(), &[topic, &partitions.to_string()])?;
        let done = command.status().context("cannot start the example bus_recipes")?;
        ensure!(done.success(), "cannot {name} the topic {topic}; see {}", self.output().display());
        Ok(())
    }

    /// Returns the path of the file with the output of all processes.
    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("output.txt")
    }

    pub(super) fn print(&self, event: &str) {
        eprintln!("{:7.1} s  {event}", self.began.elapsed().as_secs_f64());
    }
}

/// Process of the test. A drop of this value kills the process.
pub(super) struct Process(pub(super) Child);

impl Process {
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Process> {
        Ok(Process(command.spawn().context("cannot start a process of the test")?))
    }

    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Waits for the end of a process after a request to stop.
    pub(super) fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let has_ended = wait_until(STOP_MAX, || !matches!(self.0.try_wait(), Ok(None)));
        ensure!(has_ended, "a process did not stop within {STOP_MAX:?}");
        Ok(self.0.wait()?)
    }

    /// Returns the processor time of the process in seconds.
    pub(super) fn processor_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name of the program may contain spaces. The fields after it begin with the state, which is field 3.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3).and_then(|field| field.parse::<u32>().ok());
        let (user, system) = ticks(14).zip(ticks(15)).context("/proc has no processor time of a process")?;
        Ok(f64::from(user + system) / TICKS_PER_SECOND)
    }

    /// Returns the anonymous resident memory of the process in MiB.
    pub(super) fn memory_mib(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u32>().ok());
        Ok(f64::from(kib.context("/proc has no memory of a process")?) / 1_024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
