//! Processes that run programs in other languages and use the same ZooKeeper nodes as Reveille. The programs are
//! `tools/mixed-java` with Curator and `tools/mixed-python` with kazoo. The README of each program describes the
//! protocol between a test and the process.

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

/// Longest wait for an event or for the response to a command. If a command itself waits, for example for a lock, this
/// time includes that wait.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Running process of a program in another language. A drop of this value kills the process. The process also exits
/// soon after the end of the process that started it.
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
    /// Events that no caller has taken yet, in the order of arrival.
    events: Vec<String>,
    is_over: bool,
}

/// Command that the test has sent. Its response may have arrived.
#[derive(Debug)]
#[must_use = "the response reports whether the command succeeded"]
pub struct Asked {
    id: u64,
    command: String,
    output: Arc<Output>,
}

/// Starts the process with Curator and connects it to the ZooKeeper servers at `addresses`. `digest` is `USER:PASSWORD`
/// of the only user that may access the nodes of the process.
///
/// # Errors
/// Returns an error if this function cannot build or start the process. If a program is missing, the error names it.
pub fn curator(addresses: &str, timeout: Duration, digest: Option<&str>) -> anyhow::Result<Mixed> {
    let [classes, jars] = curator_folders()?;
    let mut command = java::command(&[&classes, &jars]);
    command.arg("Mixed").arg(addresses).arg(timeout.as_millis().to_string()).args(digest);
    Mixed::start(command)
}

/// Returns the command with which benchmarks start the same program as [`curator`]. The command contains no arguments
/// for the program and uses Java's default settings.
///
/// # Errors
/// Returns the same errors as [`curator`].
pub fn curator_command() -> anyhow::Result<Vec<String>> {
    let [classes, jars] = curator_folders()?;
    let path = format!("{}:{}/*", classes.display(), jars.display());
    Ok(["java", "-cp", &path, "Mixed"].map(str::to_owned).to_vec())
}

/// Returns the folders with the classes and the jars that the process with Curator needs.
fn curator_folders() -> anyhow::Result<[PathBuf; 2]> {
    let jars = java::jars("mixed-java", &tool("mixed-java/pom.xml"))?;
    let classes = java::classes("mixed-java-classes", &jars, &tool("mixed-java/Mixed.java"))?;
    Ok([classes, jars])
}

/// Starts the process with kazoo and connects it to the ZooKeeper servers at `addresses`.
///
/// # Errors
/// Returns the same errors as [`curator`].
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
        let stdin = process.stdin.take().context("the standard input of the child process is not a pipe")?;
        let stdout = process.stdout.take().context("the standard output of the child process is not a pipe")?;
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
        writeln!(stdin.0, "{id} {command}").context("the child process has ended")?;
        stdin.0.flush()?;
        Ok(Asked { id, command: command.to_owned(), output: self.output.clone() })
    }

    /// Sends a command and returns the values of its response.
    ///
    /// # Errors
    /// Returns an error if the response is an error, or if no response arrives.
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

    /// Returns the events that no caller has taken yet.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.output.lock().events.clone()
    }

    /// Pauses the process with SIGSTOP. [`Mixed::resume`] resumes the process.
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
    /// Returns whether the response to the command has arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.output.lock().answers.contains_key(&self.id)
    }

    /// Waits for the response to the command and returns the values of the response.
    ///
    /// # Errors
    /// Returns an error if the response is an error, or if no response arrives.
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
            ensure!(!received.is_over, "the child process has ended");
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no answer within {limit:?}");
            received = self.more.wait_timeout(received, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
