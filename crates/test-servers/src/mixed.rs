//! Processes in other languages that share groups with ours over one ZooKeeper: `tools/mixed-java`, with Curator, and `tools/mixed-python`,
//! with kazoo. Their READMEs tell what is said.

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

/// A command is answered within this, what it waits for included.
const LIMIT: Duration = Duration::from_secs(40);

/// One process. Dropped, it is killed; it ends by itself, too, soon after this process.
#[derive(Debug)]
pub struct Mixed {
    process: Child,
    stdin: Mutex<(ChildStdin, u64)>,
    said: Arc<Said>,
}

#[derive(Debug, Default)]
struct Said {
    heard: Mutex<Heard>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    answers: BTreeMap<u64, String>,
    /// That nobody took yet, in their order.
    events: Vec<String>,
    is_over: bool,
}

/// A command that was given, and may have been answered.
#[derive(Debug)]
#[must_use = "its answer says whether it was done"]
pub struct Asked {
    id: u64,
    command: String,
    said: Arc<Said>,
}

/// With Curator, at ZooKeeper's `addresses`; `digest` is `USER:PASSWORD` of whom alone its nodes belong to.
///
/// # Errors
/// If it cannot be built or started; what is missing is then named.
pub fn curator(addresses: &str, timeout: Duration, digest: Option<&str>) -> anyhow::Result<Mixed> {
    let [classes, jars] = curator_folders()?;
    let mut command = java::command(&[&classes, &jars]);
    command.arg("Mixed").arg(addresses).arg(timeout.as_millis().to_string()).args(digest);
    Mixed::start(command)
}

/// What starts the same, without its arguments and as Java is by itself: for benches.
///
/// # Errors
/// As [`curator`].
pub fn curator_command() -> anyhow::Result<Vec<String>> {
    let [classes, jars] = curator_folders()?;
    let path = format!("{}:{}/*", classes.display(), jars.display());
    Ok(["java", "-cp", &path, "Mixed"].map(str::to_owned).to_vec())
}

/// Of its classes, and of its jars.
fn curator_folders() -> anyhow::Result<[PathBuf; 2]> {
    let jars = java::jars("mixed-java", &tool("mixed-java/pom.xml"))?;
    let classes = java::classes("mixed-java-classes", &jars, &tool("mixed-java/Mixed.java"))?;
    Ok([classes, jars])
}

/// With kazoo, at ZooKeeper's `addresses`.
///
/// # Errors
/// As [`curator`].
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
        let stdin = process.stdin.take().context("its input is a pipe")?;
        let stdout = process.stdout.take().context("its output is a pipe")?;
        let said = Arc::<Said>::default();
        let heard = said.clone();
        thread::spawn(move || heard.hear(stdout));
        let mixed = Mixed { process, stdin: Mutex::new((stdin, 0)), said };
        mixed.event("connected")?;
        Ok(mixed)
    }

    /// Gives a command, and does not wait.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn begin(&self, command: &str) -> anyhow::Result<Asked> {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        stdin.1 += 1;
        let id = stdin.1;
        writeln!(stdin.0, "{id} {command}").context("the process has ended")?;
        stdin.0.flush()?;
        Ok(Asked { id, command: command.to_owned(), said: self.said.clone() })
    }

    /// What a command answers.
    ///
    /// # Errors
    /// If it is an error, or does not come.
    pub fn ask(&self, command: &str) -> anyhow::Result<String> {
        self.begin(command)?.answer()
    }

    /// Waits for this event, and takes it.
    ///
    /// # Errors
    /// If it does not come.
    pub fn event(&self, event: &str) -> anyhow::Result<()> {
        let told = self.said.wait(LIMIT, |heard| {
            let at = heard.events.iter().position(|told| told == event)?;
            Some(heard.events.remove(at))
        });
        told.map(drop).with_context(|| format!("`event {event}` never came; told was {:?}", self.said.lock().events))
    }

    /// The events that nobody took yet.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.said.lock().events.clone()
    }

    /// Stops it where it is; [`Mixed::resume`] lets it go on.
    ///
    /// # Errors
    /// If it has ended.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// # Errors
    /// If it has ended.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(rustix::process::kill_process(Pid::from_child(&self.process), signal)?)
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        // It has ended if it cannot be killed.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Asked {
    /// Whether it was answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.said.lock().answers.contains_key(&self.id)
    }

    /// Waits for the answer: its values.
    ///
    /// # Errors
    /// If it is an error, or does not come.
    pub fn answer(self) -> anyhow::Result<String> {
        let answer = self.said.wait(LIMIT, |heard| heard.answers.remove(&self.id));
        let answer = answer.with_context(|| format!("`{}` was not answered", self.command))?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", values) => Ok(values.to_owned()),
            (_, error) => bail!("`{}`: {error}", self.command),
        }
    }
}

impl Said {
    fn hear(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let mut heard = self.lock();
            match line.split_once(' ') {
                Some(("event", event)) => heard.events.push(event.to_owned()),
                Some((id, answer)) if id.parse::<u64>().is_ok() => {
                    heard.answers.insert(id.parse().unwrap_or(0), answer.to_owned());
                }
                _ => heard.events.push(format!("said {line}")),
            }
            drop(heard);
            self.more.notify_all();
        }
        self.lock().is_over = true;
        self.more.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(&self, limit: Duration, mut take: impl FnMut(&mut Heard) -> Option<T>) -> anyhow::Result<T> {
        let end = Instant::now() + limit;
        let mut heard = self.lock();
        loop {
            if let Some(taken) = take(&mut heard) {
                return Ok(taken);
            }
            ensure!(!heard.is_over, "the process has ended");
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "it took more than {limit:?}");
            heard = self.more.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
