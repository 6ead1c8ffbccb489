//! What stands beside `elect` and its command: it ends the command when the leadership's deadline has passed, and when `elect` is gone.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use clap::Args;
use runtime::{Monotonic, Runtime};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::stop::Signals;

#[derive(Args, Debug)]
pub(crate) struct SuperviseArguments {
    /// The group of processes that is ended
    #[arg(long, value_parser = group)]
    group: Pid,
    /// Nanoseconds of the machine's clock since it was started, at which the leadership ends if nothing else is said
    #[arg(long)]
    until: u64,
}

fn group(text: &str) -> Result<Pid, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 1).and_then(Pid::from_raw);
    pid.ok_or_else(|| "this is no process".to_owned())
}

/// Until `elect`, which writes to it each deadline, ends it.
pub(super) async fn supervise(runtime: &Runtime, arguments: &SuperviseArguments) -> anyhow::Result<()> {
    // A service manager tells all processes of a unit to end: this one lasts as long as `elect`.
    let _unheard = Signals::listen()?;
    let mut until = Monotonic::from_start(Duration::from_nanos(arguments.until));
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            biased;
            word = words.next_line() => {
                let Some(word) = word.ok().flatten() else { break };
                if let Ok(nanos) = word.parse() {
                    until = until.max(Monotonic::from_start(Duration::from_nanos(nanos)));
                }
            }
            () = runtime.sleep_until(until) => break,
        }
    }
    signal(arguments.group, Signal::KILL);
    Ok(())
}

/// Whether anything of the group was there to get it.
pub(super) fn signal(group: Pid, signal: Signal) -> bool {
    match rustix::process::kill_process_group(group, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => {
            tracing::error!(%error, ?group, "the command cannot be ended from here: was it started as another user?");
            true
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct BecomeArguments {
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Waits for a line on standard input; then this process is the command, without that input. Answers only if it cannot be.
pub(super) fn become_it(arguments: &BecomeArguments) -> anyhow::Error {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => {}
        Ok(0) => return anyhow::anyhow!("`elect` has ended"),
        Err(error) => return error.into(),
    }
    let (program, others) = arguments.command.split_first().expect("clap asks for one");
    let error = std::process::Command::new(program).args(others).stdin(std::process::Stdio::null()).exec();
    let next = match error.kind() {
        ErrorKind::NotFound => ": is it in PATH?",
        ErrorKind::PermissionDenied => ": may it be executed?",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot run {}{next}", program.display()))
}
