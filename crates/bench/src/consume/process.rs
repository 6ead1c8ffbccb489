//! Process of a contestant. It reports its progress in lines of text, which `tools/kafka-java/README.md` describes.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use runtime::Runtime;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{ContestantArguments, Name};
use crate::process::{cpu, memory_peak};

/// Longest wait for the next line. The slowest part takes 2 ms for each record.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Longest wait for the end of the process. It leaves its group before.
const STOP_MAX: Duration = Duration::from_secs(60);

/// Running contestant. A drop of this value kills the process. The process also ends after the bench, because its input
/// ends then.
pub(super) struct Contestant {
    runtime: Runtime,
    name: Name,
    child: Child,
    pid: u32,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Results of a contestant after the warm-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Results {
    pub(super) records: u64,
    pub(super) took: Duration,
    /// Mean duration of a call of the handler; zero if the handler does nothing.
    pub(super) handler: Duration,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// Processor time in user and kernel mode.
    pub(super) cpu: Duration,
    /// Largest resident memory since the start of the process, in bytes.
    pub(super) memory_peak: u64,
}

impl Contestant {
    /// # Errors
    /// Returns an error if the process does not start.
    pub(super) fn start(runtime: &Runtime, java: &[String], arguments: &ContestantArguments) -> anyhow::Result<Self> {
        let mut command = match arguments.name {
            Name::Java | Name::Parallel => {
                let (program, words) = java.split_first().context("the command of the Java contestants is missing")?;
                let mut command = Command::new(program);
                command.args(words);
                command
            }
            Name::Rdkafka | Name::Reveille => {
                let program = std::env::current_exe().context("cannot determine the path of this program")?;
                let mut command = Command::new(program);
                command.args(["bench", "consume-contestant", "--ends-with-parent"]);
                command
            }
        };
        command.args(words(arguments)).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let input = child.stdin.take().context("the standard input of the child process is not a pipe")?;
        let output = child.stdout.take().context("the standard output of the child process is not a pipe")?;
        let pid = child.id().context("the process exited immediately after its start")?;
        let output = BufReader::new(output).lines();
        Ok(Contestant { runtime: runtime.clone(), name: arguments.name, child, pid, input, output })
    }

    /// Waits until the contestant has handled its first record.
    ///
    /// # Errors
    /// Returns an error if the contestant fails.
    pub(super) async fn first(&mut self) -> anyhow::Result<()> {
        self.line("first").await.map(drop)
    }

    /// Waits for the results, and for the end of the process.
    ///
    /// # Errors
    /// Returns an error if the contestant fails.
    pub(super) async fn results(mut self, records: u64) -> anyhow::Result<Results> {
        self.line("warm").await?;
        let before = cpu(self.pid);
        let line = self.line("finished").await?;
        let (cpu, memory_peak) = (cpu(self.pid).saturating_sub(before), memory_peak(self.pid));
        let micros: Vec<Duration> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).map(Duration::from_micros).collect();
        let &[took, handler, p50, p99] = micros.as_slice() else {
            bail!("{:?} reported invalid results: {line}", self.name);
        };
        self.stop().await?;
        Ok(Results { records, took, handler, p50, p99, cpu, memory_peak })
    }

    /// Waits for a line that starts with `word`, and returns the rest of the line.
    async fn line(&mut self, word: &str) -> anyhow::Result<String> {
        loop {
            let line = self.runtime.timeout(TIMEOUT, self.output.next_line()).await;
            let line = line.with_context(|| format!("{:?} wrote no line within {TIMEOUT:?}", self.name))??;
            let line = line.with_context(|| format!("{:?} ended before the line `{word}`", self.name))?;
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.to_owned());
            }
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        let Contestant { runtime, name, mut child, input, .. } = self;
        drop(input);
        let ended = runtime.timeout(STOP_MAX, child.wait()).await;
        let ended = ended.with_context(|| format!("{name:?} did not end within {STOP_MAX:?} after its input"))??;
        ensure!(ended.success(), "{name:?} ended with {ended}");
        Ok(())
    }
}

/// Returns the command line of the contestant, which is the same in Rust and in Java.
fn words(arguments: &ContestantArguments) -> [String; 8] {
    let ContestantArguments { name, brokers, topic, group, part, records, warm_up, concurrency } = arguments;
    [
        text(name),
        brokers.clone(),
        topic.clone(),
        group.clone(),
        text(part),
        records.to_string(),
        warm_up.to_string(),
        concurrency.to_string(),
    ]
}

/// Returns the name of a value on the command line.
pub(super) fn text(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
