//! A command that runs only while its process leads: leadership for shell scripts.
//!
//! Beside the command stands a supervisor ([`super::supervise`]), which ends it at the leadership's deadline though this process stands still,
//! and when this process is gone. While this process runs, it ends the command itself, and all of its group, before it gives the
//! leadership back.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use coordination::recipes::{Candidate, Held, LeaderSelector, Trust};
use coordination::tree::NodePath;
use runtime::{Monotonic, Runtime};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::supervise::signal;
use super::{Engine, path, told};
use crate::stop::Signals;

/// Between two words on how long the leadership lasts.
const PERIOD: Duration = Duration::from_millis(200);
/// Between two looks whether what was told to end has ended.
const LOOK: Duration = Duration::from_millis(10);
const CANNOT: &str = "cannot start the command";
/// What was killed is waited for so long once nothing is held any more.
const DYING_MAX: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The group: a node under which all candidates stand
    #[arg(long, value_parser = path)]
    group: NodePath,
    /// What the others see [default: this machine's name]
    #[arg(long)]
    id: Option<String>,
    /// Whose nodes the group has
    #[arg(long, value_enum, default_value_t = Layout::Selector)]
    layout: Layout,
    /// Seconds from SIGTERM to SIGKILL for the command, when this process is told to stop, and at most a part of the session when the engine is not
    /// heard of [0 to 3600]
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3_600))]
    grace: u64,
    #[command(flatten)]
    engine: Engine,
    /// What is run while this process leads, with REVEILLE_TERM in its environment
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Layout {
    /// Curator's LeaderSelector
    Selector,
    /// Curator's LeaderLatch
    Latch,
}

/// Ends with the command's own end, as the command did. When the leadership is lost, the command is stopped, and this stands again.
pub(super) async fn obey(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let client = arguments.engine.client(runtime).await?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let candidate = Candidate {
        acl: arguments.engine.acl(),
        layout: match arguments.layout {
            Layout::Selector => coordination::recipes::Layout::Selector,
            Layout::Latch => coordination::recipes::Layout::Latch,
        },
        // A connection that is lost for a moment stops no command.
        trust: Trust::UntilLost,
        ..Candidate::new(arguments.id.as_deref().unwrap_or(&name))
    };
    let selector = LeaderSelector::new(&client, arguments.group.clone(), candidate);
    let code = loop {
        tracing::info!(group = %arguments.group, "stands for leader");
        let held = tokio::select! {
            biased;
            () = signals.next() => break 0,
            held = selector.lead() => held.map_err(told(&arguments.group)).context("cannot stand for leader")?,
        };
        tracing::info!(group = %arguments.group, term = held.term().0, "leads");
        let ended = lead(runtime, &held, arguments, &mut signals).await;
        held.release().await;
        match ended? {
            Ended::Itself(code) => break code,
            Ended::Told => break 0,
            Ended::Lost => tracing::warn!(group = %arguments.group, "the leadership is lost"),
            Ended::Unwatched => bail!("something has ended the command's supervisor, so the command was ended, too"),
        }
    };
    if let Err(error) = client.close().await {
        tracing::warn!(%error, "the session ends by itself");
    }
    std::process::exit(code)
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    /// With this code.
    Itself(i32),
    /// This process was told to stop.
    Told,
    Lost,
    /// The supervisor has ended.
    Unwatched,
}

/// Nothing of the command is left when it answers.
async fn lead(runtime: &Runtime, held: &Held, arguments: &Arguments, signals: &mut Signals) -> anyhow::Result<Ended> {
    let mut led = Led::start(runtime, held, arguments).await?;
    let grace = Duration::from_secs(arguments.grace);
    // Of what the session has, which may be less than what was asked for: the engine answers several times in half of that.
    let farewell = grace.min(held.deadline().since(runtime.monotonic()) / 2);
    let Led { command, supervisor, words, until, .. } = &mut led;
    let keeping = async {
        while runtime.monotonic() + farewell < held.deadline() {
            *until = held.deadline();
            tell(words, *until).await;
            runtime.sleep(PERIOD).await;
        }
    };
    let (ended, grace) = tokio::select! {
        biased;
        () = held.cancelled() => (Ended::Lost, Duration::ZERO),
        status = command.wait() => (Ended::Itself(code_of(status?)), grace),
        _ = supervisor.wait() => (Ended::Unwatched, Duration::ZERO),
        () = signals.next() => (Ended::Told, grace),
        () = keeping => (Ended::Lost, farewell),
    };
    let is_in_time = runtime.monotonic() < led.until;
    tracing::info!(?ended, ?grace, "ends what is left of the command");
    led.end(held, grace, signals).await;
    // Later, the supervisor may have ended it.
    Ok(if matches!(ended, Ended::Itself(_)) && !is_in_time { Ended::Lost } else { ended })
}

/// A command, in a group of processes of its own, and its supervisor.
struct Led {
    runtime: Runtime,
    command: Child,
    group: Pid,
    supervisor: Child,
    words: ChildStdin,
    /// What the supervisor was told last.
    until: Monotonic,
}

impl Led {
    /// The command begins once it has a supervisor.
    async fn start(runtime: &Runtime, held: &Held, arguments: &Arguments) -> anyhow::Result<Self> {
        let (until, term) = (held.deadline(), held.term().0.to_string());
        let mut command = this_program();
        command.args(["--ends-with-parent", "become", "--"]).args(&arguments.command);
        let mut command = command.env("REVEILLE_TERM", term).stdin(Stdio::piped()).spawn().context(CANNOT)?;
        let group = command.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).context(CANNOT)?;
        let nanos = until.since_start().as_nanos().to_string();
        let mut supervisor = this_program();
        supervisor.args(["supervise", "--group", &group.as_raw_nonzero().to_string(), "--until", &nanos]);
        // What is read on its input is said by this process alone.
        let mut supervisor = supervisor.stdin(Stdio::piped()).spawn().context(CANNOT)?;
        let (mut go, words) = command.stdin.take().zip(supervisor.stdin.take()).context(CANNOT)?;
        go.write_all(b"go\n").await.context(CANNOT)?;
        Ok(Led { runtime: runtime.clone(), command, group, supervisor, words, until })
    }

    /// Ends all of the group: asked to, and after so much time made to; at once when nothing is held any more, and at a second signal.
    async fn end(mut self, held: &Held, grace: Duration, signals: &mut Signals) {
        let mut kill_at = self.runtime.monotonic() + grace;
        let mut is_there = grace.is_zero() || signal(self.group, Signal::TERM);
        let mut is_killed = false;
        while is_there {
            if !is_killed && (self.runtime.monotonic() >= kill_at || !held.is_valid()) {
                signal(self.group, Signal::KILL);
                is_killed = true;
                kill_at = self.runtime.monotonic() + DYING_MAX;
            }
            if is_killed && !held.is_valid() && self.runtime.monotonic() >= kill_at {
                tracing::error!(group = ?self.group, "processes of the command are still there");
                break;
            }
            if !is_killed {
                self.runtime.timeout(LOOK, tell(&mut self.words, held.deadline())).await;
            }
            tokio::select! {
                biased;
                () = signals.next(), if !is_killed => kill_at = self.runtime.monotonic(),
                () = self.runtime.sleep(LOOK) => {}
            }
            is_there = self.is_there();
        }
        // Not by the end of its input, which would have it end a group that is not there any more.
        drop(self.supervisor.kill().await);
    }

    /// Whether there are processes of the group; those that were left to this one, as they are to the first of a container, are buried.
    fn is_there(&mut self) -> bool {
        if !matches!(self.command.try_wait(), Ok(None)) {
            while let Ok(Some(_)) = rustix::process::waitpgid(self.group, WaitOptions::NOHANG) {}
        }
        rustix::process::test_kill_process_group(self.group) != Err(Errno::SRCH)
    }
}

/// As it runs, though its file may have been replaced.
fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("reveille").process_group(0);
    command
}

/// A supervisor that has ended, or stands still, is of no use; its words are.
async fn tell(words: &mut ChildStdin, until: Monotonic) {
    let line = format!("{}\n", until.since_start().as_nanos());
    let _has_ended = words.write_all(line.as_bytes()).await;
}

/// As a shell has it.
fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;

    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
