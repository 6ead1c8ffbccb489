//! A command that runs only while its process leads: leadership for shell scripts.
//!
//! The command is not this process's child but that of a supervisor ([`super::supervise`]), which ends it at the leadership's deadline though this
//! process stands still, and when this process is gone.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use coordination::recipes::{Candidate, Held, LeaderSelector, Trust};
use coordination::tree::NodePath;
use runtime::Runtime;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::{Engine, path};
use crate::stop::Signals;

/// Between two words on how long the leadership lasts.
const PERIOD: Duration = Duration::from_millis(200);

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
    /// Seconds that the command has to end by itself once it is told to [0 to 3600]
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3_600))]
    grace: u64,
    #[command(flatten)]
    engine: Engine,
    /// What is run while this process leads, with REVEILLE_TERM in its environment
    #[arg(last = true, required = true)]
    command: Vec<String>,
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
    loop {
        let held = tokio::select! {
            biased;
            () = signals.next() => break,
            held = selector.lead() => held.context("cannot stand for leader")?,
        };
        tracing::info!(group = %arguments.group, term = held.term().0, "leads");
        let ended = lead(runtime, &held, arguments, &mut signals).await;
        held.release().await;
        match ended? {
            Ended::Itself(code) => {
                client.close().await?;
                std::process::exit(code);
            }
            Ended::Told => break,
            Ended::Lost => tracing::warn!(group = %arguments.group, "the leadership is lost: stands again"),
        }
    }
    Ok(client.close().await?)
}

enum Ended {
    /// With this code.
    Itself(i32),
    /// This process was told to stop.
    Told,
    Lost,
}

async fn lead(runtime: &Runtime, held: &Held, arguments: &Arguments, signals: &mut Signals) -> anyhow::Result<Ended> {
    let (mut supervisor, mut words) = start(held, arguments)?;
    let keeping = async {
        while held.is_valid() {
            tell(&mut words, held).await;
            runtime.sleep(PERIOD).await;
        }
    };
    let ended = tokio::select! {
        biased;
        status = supervisor.wait() => {
            let code = code_of(status?);
            // Not by itself, if this process stood still and the supervisor did not.
            return Ok(if held.is_valid() { Ended::Itself(code) } else { Ended::Lost });
        }
        () = signals.next() => Ended::Told,
        () = held.cancelled() => Ended::Lost,
        () = keeping => Ended::Lost,
    };
    // It has its grace, but none beyond the leadership's deadline.
    let _has_ended = words.write_all(b"stop\n").await;
    let status = loop {
        tokio::select! {
            biased;
            status = supervisor.wait() => break status?,
            () = runtime.sleep(PERIOD) => if held.is_valid() {
                tell(&mut words, held).await;
            }
        }
    };
    tracing::debug!(code = code_of(status), "the command was stopped");
    Ok(ended)
}

/// A supervisor that has ended is waited for elsewhere.
async fn tell(words: &mut ChildStdin, held: &Held) {
    let until = held.deadline().since_start().as_nanos();
    let _has_ended = words.write_all(format!("until {until}\n").as_bytes()).await;
}

fn start(held: &Held, arguments: &Arguments) -> anyhow::Result<(Child, ChildStdin)> {
    let this = std::env::current_exe().context("cannot find this program's file")?;
    let until = held.deadline().since_start().as_nanos().to_string();
    let mut command = Command::new(this);
    command.args(["supervise", "--grace", &arguments.grace.to_string(), "--until", &until, "--"]);
    command.args(&arguments.command).env("REVEILLE_TERM", held.term().0.to_string());
    // What ends this process from a terminal does not end the supervisor, which is told.
    let mut supervisor =
        command.stdin(Stdio::piped()).process_group(0).spawn().context("cannot start the supervisor")?;
    match supervisor.stdin.take() {
        Some(words) => Ok((supervisor, words)),
        None => bail!("the supervisor has no input"),
    }
}

/// As a shell has it.
fn code_of(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;

    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
