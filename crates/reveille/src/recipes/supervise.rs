//! What stands between `elect` and its command: it ends the command when it is told to, when the leadership's deadline has passed, and when
//! `elect` is gone.

use std::io::ErrorKind;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use runtime::{Monotonic, Runtime};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};
use tokio::process::{Child, Command};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Seconds from being told to stop to being killed
    #[arg(long)]
    grace: u64,
    /// Nanoseconds of the machine's clock since it was started, at which the leadership ends if nothing else is said
    #[arg(long)]
    until: u64,
    /// Become the command, which is then killed when the process that started this one ends
    #[arg(long)]
    exec: bool,
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(super) async fn obey(runtime: &Runtime, arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.exec {
        return Err(become_it(&arguments.command));
    }
    let mut command = start(arguments)?;
    let status = Supervisor {
        runtime: runtime.clone(),
        group: command.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)),
        until: Monotonic::from_start(Duration::from_nanos(arguments.until)),
        grace: Duration::from_secs(arguments.grace),
        words: Some(BufReader::new(tokio::io::stdin()).lines()),
        kill_at: None,
    }
    .watch(&mut command)
    .await?;
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    std::process::exit(code.unwrap_or(1))
}

/// In a group of its own. It goes with this process, however that ends.
fn start(arguments: &Arguments) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(this);
    let (grace, until) = (arguments.grace.to_string(), arguments.until.to_string());
    command.args(["--ends-with-parent", "supervise", "--exec", "--grace", &grace, "--until", &until, "--"]);
    command.args(&arguments.command).stdin(Stdio::null()).process_group(0);
    command.spawn().context("cannot start the command")
}

/// Answers only if it cannot.
fn become_it(command: &[String]) -> anyhow::Error {
    use std::os::unix::process::CommandExt as _;

    let (program, arguments) =
        command.split_first().map_or(("", [].as_slice()), |(first, rest)| (first.as_str(), rest));
    let error = std::process::Command::new(program).args(arguments).exec();
    let next = match error.kind() {
        ErrorKind::NotFound => ": is it in PATH?",
        ErrorKind::PermissionDenied => ": may it be executed?",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot run {program}{next}"))
}

struct Supervisor {
    runtime: Runtime,
    /// Of the command.
    group: Option<Pid>,
    until: Monotonic,
    grace: Duration,
    words: Option<Lines<BufReader<Stdin>>>,
    /// When its grace is over, once it was told to stop.
    kill_at: Option<Monotonic>,
}

impl Supervisor {
    /// Until it has ended.
    async fn watch(mut self, command: &mut Child) -> anyhow::Result<ExitStatus> {
        loop {
            let runtime = self.runtime.clone();
            let end = self.kill_at.map_or(self.until, |kill_at| kill_at.min(self.until));
            tokio::select! {
                biased;
                status = command.wait() => return Ok(status?),
                word = next_word(&mut self.words) => match word.as_deref() {
                    None => {
                        // Nobody is there any more who could say that it may go on.
                        self.signal(Signal::KILL);
                        self.words = None;
                    }
                    Some("stop") => {
                        self.signal(Signal::TERM);
                        self.kill_at = Some(runtime.monotonic() + self.grace);
                    }
                    Some(word) => {
                        if let Some(until) = word.strip_prefix("until ").and_then(|until| until.parse().ok()) {
                            self.until = self.until.max(Monotonic::from_start(Duration::from_nanos(until)));
                        }
                    }
                },
                () = runtime.sleep_until(end) => {
                    self.signal(Signal::KILL);
                    return Ok(command.wait().await?);
                }
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ended_by_itself = rustix::process::kill_process_group(group, signal);
        }
    }
}

/// `None` once, at the end.
async fn next_word(words: &mut Option<Lines<BufReader<Stdin>>>) -> Option<String> {
    match words {
        Some(words) => words.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}
