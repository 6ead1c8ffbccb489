//! Child processes that run this binary, and measurements of their CPU time, memory and disk space.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use cli_support::http1::Connection;
use runtime::{Runtime, TaskSet};
use tokio::process::{Child, Command};
use tokio::sync::watch;

/// Child process that runs this binary and serves HTTP. A drop of this value kills the child process. The child process
/// also ends when its parent process ends.
pub(crate) struct Process {
    child: Child,
    pub(crate) pid: u32,
    pub(crate) address: SocketAddr,
}

impl Process {
    /// Starts `reveille <arguments> --listen <address>` and waits until the process responds with 200 to a GET request
    /// for `path`. The process receives the variables `environment`, which may contain secrets. It appends its output
    /// to the file `log`.
    ///
    /// # Errors
    /// Returns an error if the process exits or is not ready within `limit`. The error contains the end of the
    /// process's log.
    pub(crate) async fn start(
        runtime: &Runtime,
        arguments: &[&str],
        environment: &[(&str, &str)],
        address: SocketAddr,
        path: &str,
        log: &Path,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot determine the path of this program")?;
        let output = fs::OpenOptions::new().create(true).append(true).open(log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let listen = address.to_string();
        let mut child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .args(["--listen", &listen, "--ends-with-parent"])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start `reveille {}`", arguments.join(" ")))?;
        let pid = child.id().context("the process exited immediately after its start")?;
        let started = runtime.monotonic();
        while !answers(address, path).await {
            if let Some(status) = child.try_wait()? {
                bail!(
                    "`reveille {}` exited with {status}; the end of its log:\n{}",
                    arguments.join(" "),
                    log_tail(log)
                );
            }
            let waited = runtime.monotonic().since(started);
            ensure!(
                waited < limit,
                "`reveille {}` was not ready within {limit:?}; see the log {}",
                arguments.join(" "),
                log.display()
            );
            runtime.sleep(Duration::from_millis(2)).await;
        }
        Ok(Process { child, pid, address })
    }

    /// Kills the process with `kill -9` and waits until it has exited.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill the process {}", self.pid))
    }

    /// Sends SIGTERM to the process and kills it if it does not exit within `limit`. Returns true if the process exited
    /// by itself and reported success.
    pub(crate) async fn stop(mut self, runtime: &Runtime, limit: Duration) -> anyhow::Result<bool> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.context("no such process")?, rustix::process::Signal::TERM)?;
        match runtime.timeout(limit, self.child.wait()).await {
            Some(status) => Ok(status?.success()),
            None => self.kill().await.map(|()| false),
        }
    }
}

/// Returns a local address on which no process listens yet.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port of 127.0.0.1")?;
    Ok(listener.local_addr()?)
}

async fn answers(address: SocketAddr, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let Ok(mut connection) = Connection::open(address).await else { return false };
    connection.exchange(request.as_bytes()).await.is_ok_and(|status| status.0 == 200)
}

fn log_tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(12).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Returns the user and system time of a process since its start; zero if the process does not exist.
pub(crate) fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field of `/proc/<pid>/stat` is the process's name in parentheses. The name may contain blanks and ends
    // with the last parenthesis (see proc_pid_stat(5)).
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_micros(ticks.saturating_mul(1_000_000) / per_second)
}

/// Returns the anonymous resident memory of a process in bytes; zero if the process does not exist.
pub(crate) fn rss_anon(pid: u32) -> u64 {
    memory(pid, "RssAnon:")
}

/// Returns the largest resident memory of a process since its start, in bytes; zero if the process does not exist.
#[cfg(feature = "kafka")]
pub(crate) fn memory_peak(pid: u32) -> u64 {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Returns the number of open file descriptors; zero if the process does not exist.
pub(crate) fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Returns the bytes that a folder and its contents occupy on disk.
pub(crate) fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Meter of the CPU time and memory of a measured process, and of the CPU time of this process.
pub(crate) struct Meter {
    pid: Option<u32>,
    cpu_before: Duration,
    own_cpu_before: Duration,
    memory_peak: Arc<AtomicU64>,
    tasks: TaskSet,
    stop: watch::Sender<()>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU time of the measured process; `None` without a measured process.
    pub(crate) cpu: Option<Duration>,
    pub(crate) own_cpu: Duration,
    pub(crate) memory_peak_bytes: Option<u64>,
}

impl Meter {
    /// Starts to measure the process `pid` and this process. Without a `pid`, the meter measures only this process.
    pub(crate) fn start(runtime: &Runtime, pid: Option<u32>) -> Self {
        const PERIOD: Duration = Duration::from_millis(200);
        let memory_peak = Arc::new(AtomicU64::new(pid.map_or(0, rss_anon)));
        let tasks = TaskSet::new(runtime);
        let (stop, mut stopped) = watch::channel(());
        let (peak, clock) = (memory_peak.clone(), runtime.clone());
        tasks.spawn("bench-meter", async move {
            while clock.timeout(PERIOD, stopped.changed()).await.is_none() {
                peak.fetch_max(pid.map_or(0, rss_anon), Ordering::Relaxed);
            }
        });
        Meter {
            pid,
            cpu_before: pid.map_or(Duration::ZERO, cpu),
            own_cpu_before: cpu(std::process::id()),
            memory_peak,
            tasks,
            stop,
        }
    }

    pub(crate) async fn stop(self) -> Cost {
        drop(self.stop);
        self.tasks.join().await;
        Cost {
            cpu: self.pid.map(|pid| cpu(pid).saturating_sub(self.cpu_before)),
            own_cpu: cpu(std::process::id()).saturating_sub(self.own_cpu_before),
            memory_peak_bytes: self.pid.map(|pid| self.memory_peak.load(Ordering::Relaxed).max(rss_anon(pid))),
        }
    }
}
