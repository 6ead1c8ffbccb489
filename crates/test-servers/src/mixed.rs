//! Processes in other languages that share groups with Reveille over one ZooKeeper: `tools/mixed-java`, with Curator,
//! and `tools/mixed-python`, with kazoo. Their READMEs describe the protocol.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::{java, python};

/// Longest wait for the response to a command, including the waits of the command itself.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Running process. It is killed when this value is dropped, and exits soon after this process ends.
#[derive(Debug)]
pub struct Mixed {
    process: Child,
    stdin: Mutex<(ChildStdin, u64)>,
    output: Arc<Output>,
}

#[derive(Debug, Default)]
struct Output {
    received: Mutex<Received>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Received {
    answers: BTreeMap<u64, String>,
    /// Events that have not been taken yet, in order.
    events: Vec<String>,
    is_over: bool,
}

/// Command that was sent and may have been answered.
#[derive(Debug)]
#[must_use = "the response reports whether the command succeeded"]
pub struct Asked {
    id: u64,
    command: String,
    output: Arc<Output>,
}

/// Starts the process with Curator, connected to ZooKeeper's `addresses`. `digest` is `USER:PASSWORD` of the only user
/// that may access its nodes.
///
/// # Errors
/// Returns an error if the process cannot be built or started. The error names the missing program.
pub fn curator(addresses: &str, timeout: Duration, digest: Option<&str>) -> anyhow::Result<Mixed> {
    let [classes, jars] = curator_folders()?;
    let mut command = java::command(&[&classes, &jars]);
    command.arg("Mixed").arg(addresses).arg(timeout.as_millis().to_string()).args(digest);
    Mixed::start(command)
}

/// Returns the command that starts the same process, without its arguments and with Java's default settings, for
/// benches.
///
/// # Errors
/// Same errors as [`curator`].
pub fn curator_command() -> anyhow::Result<Vec<String>> {
    let [classes, jars] = curator_folders()?;
    let path = format!("{}:{}/*", classes.display(), jars.display());
    Ok(["java", "-cp", &path, "Mixed"].map(str::to_owned).to_vec())
}

/// Returns the folders of the classes and of the jars.
fn curator_folders() -> anyhow::Result<[PathBuf; 2]> {
    let jars = java::jars("mixed-java", &tool("mixed-java/pom.xml"))?;
    let classes = java::classes("mixed-java-classes", &jars, &tool("mixed-java/Mixed.java"))?;
    Ok([classes, jars])
}

/// Starts the process with kazoo, connected to ZooKeeper's `addresses`.
///
/// # Errors
/// Same errors as [`curator`].
pub fn kazoo(addresses: &str, timeout: Duration) -> anyhow::Result<Mixed> {
    let programs = python::environment("mixed-python", &tool("mixed-python/requirements.txt"))?;
    let mut command = Command::new(programs.join("python"));
    command.arg(tool("mixed-python/mixed.py")).arg(addresses).arg(timeout.as_secs_f64().to_string());
    Mixed::start(command)
}

fn tool(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools").join(path)
}

impl Mixed {
    fn start(mut command: Command) -> anyhow::Result<Mixed> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().context("the child's input was not piped")?;
        let stdout = process.stdout.take().context("the child's output was not piped")?;
        let output = Arc::<Output>::default();
        let reader_output = output.clone();
        thread::spawn(move || reader_output.read(stdout));
        let mixed = Mixed { process, stdin: Mutex::new((stdin, 0)), output };
        mixed.event("connected")?;
        Ok(mixed)
    }

    /// Sends a command without waiting for its response.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn begin(&self, command: &str) -> anyhow::Result<Asked> {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        stdin.1 += 1;
        let id = stdin.1;
        writeln!(stdin.0, "{id} {command}").context("the process has ended")?;
        stdin.0.flush()?;
        Ok(Asked { id, command: command.to_owned(), output: self.output.clone() })
    }

    /// Sends a command and returns the values of its response.
    ///
    /// # Errors
    /// Returns an error if the response is an error or does not arrive.
    pub fn ask(&self, command: &str) -> anyhow::Result<String> {
        self.begin(command)?.answer()
    }

    /// Waits for an event and removes it from the received events.
    ///
    /// # Errors
    /// Returns an error if the event does not arrive.
    pub fn event(&self, event: &str) -> anyhow::Result<()> {
        let taken = self.output.wait(TIMEOUT, |received| {
            let at = received.events.iter().position(|received| received == event)?;
            Some(received.events.remove(at))
        });
        taken.map(drop).with_context(|| {
            format!("`event {event}` did not arrive; received events: {:?}", self.output.lock().events)
        })
    }

    /// Returns the events that have not been taken yet.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.output.lock().events.clone()
    }

    /// Pauses the process with SIGSTOP; [`Mixed::resume`] continues it.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// # Errors
    /// Returns an error if the process has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(rustix::process::kill_process(Pid::from_child(&self.process), signal)?)
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        // If the kill fails, the process has already ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Asked {
    /// Returns true if the response has arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.output.lock().answers.contains_key(&self.id)
    }

    /// Waits for the response and returns its values.
    ///
    /// # Errors
    /// Returns an error if the response is an error or does not arrive.
    pub fn answer(self) -> anyhow::Result<String> {
        let answer = self.output.wait(TIMEOUT, |received| received.answers.remove(&self.id));
        let answer = answer.with_context(|| format!("`{}` was not answered", self.command))?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", values) => Ok(values.to_owned()),
            (_, error) => bail!("`{}`: {error}", self.command),
        }
    }
}

impl Output {
    fn read(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let mut received = self.lock();
            match line.split_once(' ') {
                Some(("event", event)) => received.events.push(event.to_owned()),
                Some((id, answer)) if id.parse::<u64>().is_ok() => {
                    received.answers.insert(id.parse().unwrap_or(0), answer.to_owned());
                }
                _ => received.events.push(format!("said {line}")),
            }
            drop(received);
            self.more.notify_all();
        }
        self.lock().is_over = true;
        self.more.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(&self, limit: Duration, mut take: impl FnMut(&mut Received) -> Option<T>) -> anyhow::Result<T> {
        let end = Instant::now() + limit;
        let mut received = self.lock();
        loop {
            if let Some(taken) = take(&mut received) {
                return Ok(taken);
            }
            ensure!(!received.is_over, "the process has ended");
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no answer within {limit:?}");
            received = self.more.wait_timeout(received, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
