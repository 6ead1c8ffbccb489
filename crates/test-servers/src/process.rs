//! Process of a Java server in a folder of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

const START_MAX: Duration = Duration::from_secs(60);
/// Interval between two checks of a condition.
const PERIOD: Duration = Duration::from_millis(20);

/// Process of a server that a test can stop and start again.
#[derive(Debug)]
pub(crate) struct Process {
    /// Name of the server in error texts.
    name: &'static str,
    folder: PathBuf,
    /// `None` while the server is stopped.
    child: Mutex<Option<Child>>,
}

impl Process {
    pub(crate) fn new(name: &'static str, folder: PathBuf) -> Process {
        Process { name, folder, child: Mutex::default() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the command in the folder. Appends the output to the file `server.log`.
    pub(crate) fn spawn(&self, mut command: Command) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.folder.join("server.log"))?;
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start java; install the package `default-jdk-headless`")?;
        fs::write(self.folder.join("pid"), child.id().to_string())?;
        *self.child() = Some(child);
        Ok(())
    }

    /// Returns the output of the server since the first start.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("server.log")).unwrap_or_default()).into_owned()
    }

    /// Waits until `is_ready` returns true. The error contains the log of the server.
    pub(crate) fn wait_until(&self, is_ready: impl Fn() -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !is_ready() {
            let has_ended = self.child().as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended || start.elapsed() > START_MAX {
                bail!("{} did not start; its log:\n{}", self.name, self.log());
            }
            std::thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// Kills the server with SIGKILL. Does nothing if the server is stopped.
    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child().take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends the server gracefully with SIGTERM, and waits for its end. Does nothing if the server is stopped.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child().take() {
            rustix::process::kill_process(Pid::from_child(&child), Signal::TERM)?;
            child.wait()?;
        }
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child();
        let child = child.as_ref().with_context(|| format!("the process of {} is not running", self.name))?;
        let pid = Pid::from_child(child);
        rustix::process::kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))?;
        wait_if_stopping(pid, signal)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

/// Waits until the process has stopped or ended, but only if the signal is SIGSTOP. The function polls the process's
/// state, because the kernel sends no event to the test process when the child of another process stops.
pub(crate) fn wait_if_stopping(pid: Pid, signal: Signal) -> anyhow::Result<()> {
    let start = Instant::now();
    while signal == Signal::STOP && is_running(pid) && state_of(pid) != Some('T') {
        ensure!(start.elapsed() < START_MAX, "the process {pid:?} did not stop within {START_MAX:?} after SIGSTOP");
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

/// Returns whether the process exists and is not a zombie.
pub(crate) fn is_running(pid: Pid) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z')
}

/// Returns the letter of the process's state (see proc_pid_status(5)), or `None` if the process does not exist.
fn state_of(pid: Pid) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    status.lines().find_map(|line| line.strip_prefix("State:")?.trim().chars().next())
}

/// Starts servers with `start`. Another process may take a port between the check of the port and the start of the
/// server. In this case, the function tries other ports.
pub(crate) fn start_on_free_ports<T>(start: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut attempts_left = 3;
    loop {
        attempts_left -= 1;
        match start() {
            Err(error) if attempts_left > 0 && format!("{error:#}").contains("Address already in use") => {}
            outcome => return outcome,
        }
    }
}

/// Guard script that kills the servers that are still running in the folder.
pub(crate) const GUARD: &str = r#"
for file in "$1"/*/pid; do
  pid=$(cat "$file") && [ "$(readlink "/proc/$pid/cwd")" = "$(dirname "$file")" ] && kill -KILL "$pid"
done
"#;
