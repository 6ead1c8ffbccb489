//! Members of the test cluster. Each member is a process of the binary in its own network namespace.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::network::Network;

/// Duration of a member's lease in seconds. A dead member loses its shards when its lease expires.
pub(super) const LEASE_SECONDS: u64 = 2;
const READY_TIME: Duration = Duration::from_secs(60);
/// Maximum time for which the harness waits for a member to stop. A graceful stop waits up to 10 s for attempts in
/// flight and up to 20 s for requests in progress.
const STOP_TIME: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const API_PORT: u16 = 8080;
const PEER_PORT: u16 = 7070;

/// Configuration that all members share.
pub(super) struct MemberConfig {
    pub(super) binary: PathBuf,
    pub(super) folder: PathBuf,
    /// URL of the database for the members.
    pub(super) database: String,
    /// URL of the ensemble, if the members use one for coordination.
    pub(super) coordination: Option<String>,
    /// URL of the message bus, if the members use one.
    pub(super) bus: Option<String>,
    pub(super) network: Network,
}

impl MemberConfig {
    /// Returns the path of the operator's key.
    pub(super) fn operator_key(&self) -> PathBuf {
        self.folder.join(OPERATOR_DATA).join("operator.key")
    }

    pub(super) fn store_key(&self) -> PathBuf {
        self.folder.join(OPERATOR_DATA).join("store.key")
    }
}

pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) ip: Ipv4Addr,
    config: Arc<MemberConfig>,
    child: Mutex<Option<Child>>,
}

impl Member {
    pub(super) fn new(config: &Arc<MemberConfig>, name: &'static str, index: usize) -> Self {
        Member { name, ip: config.network.member(index), config: config.clone(), child: Mutex::new(None) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.ip, API_PORT))
    }

    pub(super) fn config(&self) -> &MemberConfig {
        &self.config
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.config.folder.join(format!("member-{}.log", self.name))
    }

    /// Starts the member and waits until its log states that it is ready. Repeats a failed start for up to 60 s,
    /// because the database may be unavailable.
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_TIME;
        loop {
            match self.try_start(deadline) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn try_start(&self, deadline: Instant) -> anyhow::Result<()> {
        let path = self.log_path();
        let log = File::options().create(true).append(true).open(&path)?;
        let old_bytes = usize::try_from(log.metadata()?.len())?;
        let mut command = self.config.network.command(self.name, &self.config.binary);
        command.args(["serve", "--no-receiver", "--name", self.name, "--store", &self.config.database]);
        command.args(self.config.coordination.iter().flat_map(|url| ["--coordination", url]));
        command.args(self.config.bus.iter().flat_map(|url| ["--bus", url]));
        command.args(["--insecure", "--listen", &self.address().to_string(), "--lease", &LEASE_SECONDS.to_string()]);
        command.arg("--store-key").arg(self.config.store_key());
        command.args(["--peer-listen", &format!("{}:{PEER_PORT}", self.ip), "--data"]);
        command.arg(self.config.folder.join(format!("data-{}", self.name)));
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().context("cannot start ip (iproute2)")?;
        loop {
            let log_text = std::fs::read(&path)?;
            if String::from_utf8_lossy(&log_text[old_bytes..]).contains(" ready ") {
                *self.lock() = Some(child);
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                bail!("member {} exited ({status}); see its log {}", self.name, path.display());
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("member {} is not ready after {READY_TIME:?}; see its log {}", self.name, path.display());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the process and waits until it has exited.
    pub(super) fn kill(&self) -> anyhow::Result<()> {
        let mut child = self.lock().take().with_context(|| format!("member {} is not running", self.name))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.lock();
        let child = child.as_ref().with_context(|| format!("member {} is not running", self.name))?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// Sends SIGTERM and waits until the process has exited.
    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let mut child = self.lock().take().context("the member is no longer running after the test sent SIGTERM")?;
        let deadline = Instant::now() + STOP_TIME;
        loop {
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "member {} failed during its graceful stop: {status}", self.name);
                return Ok(());
            }
            if Instant::now() >= deadline {
                child.kill()?;
                child.wait()?;
                bail!("member {} did not exit within {STOP_TIME:?} after SIGTERM", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns true if the process has exited by itself.
    pub(super) fn has_died(&self) -> bool {
        self.lock().as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }
}

/// Folder with the keys that `reveille store migrate` creates.
const OPERATOR_DATA: &str = "data-operator";

/// Creates the database schema and the keys with `reveille store migrate`, and returns the tenant's key.
pub(super) fn migrate(binary: &Path, url: &str, folder: &Path) -> anyhow::Result<String> {
    let data = folder.join(OPERATOR_DATA);
    let mut command = Command::new(binary);
    command
        .args(["store", "migrate", "--allow-egress", "private", "--store", url, "--data"])
        .arg(&data)
        .env("NO_COLOR", "1");
    let output = command.output().with_context(|| format!("cannot start {}", binary.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`reveille store migrate` failed: {}", errors.trim());
    let key = std::fs::read_to_string(data.join("admin.key"))
        .context("cannot read admin.key, which `reveille store migrate` creates")?;
    Ok(key.trim().to_owned())
}
