//! Supervisor of the command that `elect` runs. The supervisor kills the command when the deadline of the leadership
//! has passed, or when `elect` has ended.

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
    /// Process group to kill
    #[arg(long, value_parser = group)]
    group: Pid,
    /// First deadline of the leadership in nanoseconds since the machine started; `elect` writes later deadlines to
    /// standard input
    #[arg(long)]
    until: u64,
}

fn group(text: &str) -> Result<Pid, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 1).and_then(Pid::from_raw);
    pid.ok_or_else(|| "the value is not the id of a process group".to_owned())
}

/// Reads the deadlines that `elect` writes to standard input. Kills the process group when the last deadline has passed
/// or the input has ended. `elect` kills the supervisor after the end of the command.
pub(super) async fn supervise(runtime: &Runtime, arguments: &SuperviseArguments) -> anyhow::Result<()> {
    // A service manager sends its signal to stop to all processes of a unit at once. The supervisor must live as long
    // as `elect`, so it ignores these signals.
    let _ignored = Signals::listen()?;
    let mut until = Monotonic::from_start(Duration::from_nanos(arguments.until));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            biased;
            line = lines.next_line() => {
                let Some(line) = line.ok().flatten() else { break };
                if let Ok(nanos) = line.parse() {
                    until = until.max(Monotonic::from_start(Duration::from_nanos(nanos)));
                }
            }
            () = runtime.sleep_until(until) => break,
        }
    }
    signal(arguments.group, Signal::KILL);
    Ok(())
}

/// Sends the signal to the process group. Returns `false` if the process group has no process.
pub(super) fn signal(group: Pid, signal: Signal) -> bool {
    match rustix::process::kill_process_group(group, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => {
            tracing::error!(
                %error,
                ?group,
                "cannot send a signal to the processes of the command; the command may run as another user"
            );
            true
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct BecomeArguments {
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Waits for a line on standard input, and then replaces this process by the command. The command has an empty standard
/// input. The function returns only if it cannot start the command.
pub(super) fn become_command(arguments: &BecomeArguments) -> anyhow::Error {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => {}
        Ok(0) => return anyhow::anyhow!("`elect` has ended"),
        Err(error) => return error.into(),
    }
    let (program, others) =
        arguments.command.split_first().expect("clap accepts only a command with at least one word");
    let error = std::process::Command::new(program).args(others).stdin(std::process::Stdio::null()).exec();
    let next = match error.kind() {
        ErrorKind::NotFound => ": check that the program is in PATH",
        ErrorKind::PermissionDenied => ": check that the program is executable",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot run {}{next}", program.display()))
}
