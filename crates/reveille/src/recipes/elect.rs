//! Command `elect`, which runs another command only while this process is the leader. It provides leader election for
//! shell scripts.
//!
//! A supervisor process ([`super::supervise`]) kills the other command at the deadline of the leadership, even if this
//! process is paused. The supervisor also kills the command when this process has ended. While this process runs, it
//! ends the whole process group of the command before it releases the leadership.
//!
//! docs/decisions/0149-end-commands-with-a-supervisor.md gives the reasons for the design.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use coordination::recipes::{Candidate, Held, LeaderSelector, Trust};
use coordination::tree::{NodePath, TreeError};
use runtime::{Monotonic, Runtime};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::supervise::signal;
use super::{Engine, explain, path};
use crate::stop::Signals;

/// Time between two messages that send the current deadline of the leadership to the supervisor.
const PERIOD: Duration = Duration::from_millis(200);
/// Time between two checks whether the processes of a stopped command have ended.
const CHECK_PERIOD: Duration = Duration::from_millis(10);
const CANNOT_START: &str = "cannot start the command";
/// Time after SIGKILL for which this process waits until the processes end. While the leadership is valid, the process
/// waits longer.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest time for which this process waits for the engine after its command has ended. If the engine responds later,
/// the next candidate leads only when the session of this process has expired.
const LEAVE_WAIT_MAX: Duration = Duration::from_millis(700);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Path of the group's node; each candidate has a node below it
    #[arg(long, value_parser = path)]
    group: NodePath,
    /// Name of this candidate that other candidates see [default: this machine's name]
    #[arg(long)]
    id: Option<String>,
    /// Layout of the group's nodes; all candidates must use the same layout
    #[arg(long, value_enum, default_value_t = Layout::Selector)]
    layout: Layout,
    /// Seconds between SIGTERM and SIGKILL for the command when this process stops; at most half of the session if the
    /// engine is unreachable [0 to 3600]
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3_600))]
    grace: u64,
    #[command(flatten)]
    engine: Engine,
    /// Create nodes that every client of the engine can access and delete
    #[arg(long)]
    open: bool,
    /// Command to run while this process leads, with REVEILLE_TERM in its environment
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Layout {
    /// Layout of Curator's LeaderSelector
    Selector,
    /// Layout of Curator's LeaderLatch
    Latch,
}

/// Runs the command whenever this process leads. When the command ends by itself, this process exits with the exit code
/// of the command. After a loss of the leadership, this process stops the command and becomes a candidate again.
pub(super) async fn execute(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<()> {
    let acl = arguments.engine.acl(arguments.open)?;
    let mut signals = Signals::listen()?;
    let client = tokio::select! {
        biased;
        () = signals.next() => return Ok(()),
        client = arguments.engine.client_when_reachable(runtime) => client?,
    };
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let candidate = Candidate {
        acl: Some(acl),
        layout: match arguments.layout {
            Layout::Selector => coordination::recipes::Layout::Selector,
            Layout::Latch => coordination::recipes::Layout::Latch,
        },
        // A short loss of the connection to the engine does not stop the command.
        trust: Trust::UntilLost,
        ..Candidate::new(arguments.id.as_deref().unwrap_or(&name))
    };
    let selector = LeaderSelector::new(&client, arguments.group.clone(), candidate);
    let (code, leave_by) = loop {
        tracing::info!(group = %arguments.group, "waiting to become the leader");
        let leadership = tokio::select! {
            biased;
            () = signals.next() => break (0, runtime.monotonic() + LEAVE_WAIT_MAX),
            leadership = selector.lead() => {
                leadership.map_err(explain(&arguments.group)).context("cannot become a candidate")?
            }
        };
        tracing::info!(group = %arguments.group, term = leadership.term().0, "became the leader");
        let ended = lead(runtime, &leadership, arguments, &mut signals).await;
        let leave_by = runtime.monotonic() + LEAVE_WAIT_MAX;
        runtime.timeout(LEAVE_WAIT_MAX, leadership.release()).await;
        match ended? {
            Ended::Exited(code) => break (code, leave_by),
            Ended::Signalled => break (0, leave_by),
            Ended::LeadershipLost => tracing::warn!(group = %arguments.group, "lost the leadership"),
            Ended::Unsupervised => {
                bail!("the supervisor of the command ended unexpectedly, so `elect` killed the command")
            }
        }
    };
    let left = leave_by.since(runtime.monotonic());
    let closed = runtime.timeout(left, client.close()).await;
    if let Err(error) = closed.unwrap_or_else(|| Err(TreeError::Disconnected("no response in time".to_owned()))) {
        tracing::warn!(%error, "cannot close the session; another candidate can lead when the session has expired");
    }
    std::process::exit(code)
}

/// Reason why the command ends.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// The command exited with this code.
    Exited(i32),
    /// This process received a signal to stop.
    Signalled,
    LeadershipLost,
    Unsupervised,
}

/// Runs the command until one of the reasons in [`Ended`] occurs. Before this function returns, it ends all processes
/// of the command.
async fn lead(
    runtime: &Runtime,
    leadership: &Held,
    arguments: &Arguments,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let mut running = Running::start(runtime, leadership, arguments).await?;
    let grace = Duration::from_secs(arguments.grace);
    // The engine may grant a shorter session timeout than this process requested. Therefore the grace period after a
    // loss of contact is at most half of the granted timeout. While the engine is reachable, this process renews the
    // session several times within this half.
    let loss_grace = grace.min(leadership.deadline().since(runtime.monotonic()) / 2);
    let Running { command, supervisor, deadlines, until, .. } = &mut running;
    let renewing = async {
        while runtime.monotonic() + loss_grace < leadership.deadline() {
            *until = leadership.deadline();
            send_deadline(deadlines, *until).await;
            runtime.sleep(PERIOD).await;
        }
    };
    let (ended, grace) = tokio::select! {
        biased;
        () = leadership.cancelled() => (Ended::LeadershipLost, Duration::ZERO),
        status = command.wait() => (Ended::Exited(code_of(status?)), grace),
        _ = supervisor.wait() => (Ended::Unsupervised, Duration::ZERO),
        () = signals.next() => (Ended::Signalled, grace),
        () = renewing => (Ended::LeadershipLost, loss_grace),
    };
    let is_in_time = runtime.monotonic() < running.until;
    tracing::info!(?ended, ?grace, "ending the processes of the command");
    running.end(leadership, grace, signals).await;
    // After the deadline, the supervisor may have killed the command, so the exit code of the command has no meaning.
    Ok(if matches!(ended, Ended::Exited(_)) && !is_in_time { Ended::LeadershipLost } else { ended })
}

/// Running command in its own process group, with its supervisor process.
struct Running {
    runtime: Runtime,
    command: Child,
    group: Pid,
    supervisor: Child,
    /// Standard input of the supervisor, to which this process writes the deadlines of the leadership.
    deadlines: ChildStdin,
    /// Last deadline that this process sent to the supervisor.
    until: Monotonic,
}

impl Running {
    /// Starts the supervisor, and then lets the command begin.
    async fn start(runtime: &Runtime, leadership: &Held, arguments: &Arguments) -> anyhow::Result<Self> {
        let (until, term) = (leadership.deadline(), leadership.term().0.to_string());
        let mut command = this_program();
        command.args(["--ends-with-parent", "become", "--"]).args(&arguments.command);
        let mut command = command.env("REVEILLE_TERM", term).stdin(Stdio::piped()).spawn().context(CANNOT_START)?;
        let group = command.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).context(CANNOT_START)?;
        let nanos = until.since_start().as_nanos().to_string();
        let mut supervisor = this_program();
        supervisor.args(["supervise", "--group", &group.as_raw_nonzero().to_string(), "--until", &nanos]);
        // Only this process has the other end of the supervisor's input pipe, so no other process can send deadlines.
        let mut supervisor = supervisor.stdin(Stdio::piped()).spawn().context(CANNOT_START)?;
        let (mut go, deadlines) = command.stdin.take().zip(supervisor.stdin.take()).context(CANNOT_START)?;
        go.write_all(b"go\n").await.context(CANNOT_START)?;
        Ok(Running { runtime: runtime.clone(), command, group, supervisor, deadlines, until })
    }

    /// Ends all processes of the command's process group. The processes receive SIGTERM first, and SIGKILL after
    /// `grace`. They receive SIGKILL immediately if the leadership has expired, or if this process receives another
    /// signal.
    async fn end(mut self, leadership: &Held, grace: Duration, signals: &mut Signals) {
        let mut kill_at = self.runtime.monotonic() + grace;
        let mut is_there = grace.is_zero() || signal(self.group, Signal::TERM);
        let mut is_killed = false;
        while is_there {
            if !is_killed && (self.runtime.monotonic() >= kill_at || !leadership.is_valid()) {
                signal(self.group, Signal::KILL);
                is_killed = true;
                kill_at = self.runtime.monotonic() + KILL_WAIT_MAX;
            }
            if is_killed && !leadership.is_valid() && self.runtime.monotonic() >= kill_at {
                tracing::error!(group = ?self.group, "processes of the command are still running after SIGKILL");
                break;
            }
            if !is_killed {
                self.runtime.timeout(CHECK_PERIOD, send_deadline(&mut self.deadlines, leadership.deadline())).await;
            }
            tokio::select! {
                biased;
                () = signals.next(), if !is_killed => kill_at = self.runtime.monotonic(),
                () = self.runtime.sleep(CHECK_PERIOD) => {}
            }
            is_there = self.has_processes();
        }
        // The supervisor sends SIGKILL to the command's process group when its input ends. This group does not exist
        // any more, so this function kills the supervisor first.
        drop(self.supervisor.kill().await);
    }

    /// Returns `true` if the command's process group has processes. The function also reaps the ended processes of this
    /// group that this process has adopted. For example, the first process of a container adopts orphaned processes.
    fn has_processes(&mut self) -> bool {
        if !matches!(self.command.try_wait(), Ok(None)) {
            while let Ok(Some(_)) = rustix::process::waitpgid(self.group, WaitOptions::NOHANG) {}
        }
        rustix::process::test_kill_process_group(self.group) != Err(Errno::SRCH)
    }
}

/// Returns a command that runs the same program as this process, even if another file has replaced the program's file.
fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("reveille").process_group(0);
    command
}

/// Sends a deadline to the supervisor. The function ignores errors, because the caller separately waits for the end of
/// the supervisor.
async fn send_deadline(deadlines: &mut ChildStdin, until: Monotonic) {
    let line = format!("{}\n", until.since_start().as_nanos());
    let _has_ended = deadlines.write_all(line.as_bytes()).await;
}

/// Returns the exit code that a shell would report for a process with this exit status.
fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;

    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
