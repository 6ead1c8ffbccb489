//! Controls a child process by lines of text, which `tools/mixed-java/README.md` describes. The child process uses
//! Reveille's recipes or Curator.

use std::collections::VecDeque;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use runtime::{Monotonic, Runtime};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Longest wait for a response or an event. The limit is long because a busy machine may start a process slowly.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Program to start, with its command line.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Name of the program in error messages and node paths.
    pub(super) name: &'static str,
    command: Vec<String>,
    /// Value of the environment variable `REVEILLE_COORDINATION`. The bench passes the value in the environment because
    /// the value may contain a password.
    coordination: Option<String>,
}

impl Program {
    /// # Errors
    /// Returns an error if the path of the running executable is unknown or is not valid UTF-8.
    pub(super) fn reveille(url: &str, session_timeout: Duration) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("cannot determine the path of this program")?;
        let mut command =
            vec![this.into_os_string().into_string().ok().context("this program's path is not valid UTF-8")?];
        let millis = session_timeout.as_millis().to_string();
        command.extend(["bench", "election-candidate", "--session-millis", &millis].map(str::to_owned));
        Ok(Program { name: "reveille", command, coordination: Some(url.to_owned()) })
    }

    /// # Errors
    /// Returns an error if the URL does not name a ZooKeeper ensemble.
    pub(super) fn peer(command: &[String], url: &str, session_timeout: Duration) -> anyhow::Result<Self> {
        let addresses = url.strip_prefix("zookeeper://");
        let addresses = addresses
            .context("the peer program requires --coordination with a URL of ZooKeeper: zookeeper://HOST:PORT")?;
        let mut command = command.to_vec();
        command.extend([addresses.trim_end_matches('/').to_owned(), session_timeout.as_millis().to_string()]);
        Ok(Program { name: "peer", command, coordination: None })
    }
}

/// Running process. Dropping this value kills the process. The process also exits when the bench exits, because the
/// input of the process ends then.
pub(super) struct Peer {
    runtime: Runtime,
    pub(super) program: Program,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    commands: u64,
    /// Events that no call of [`Peer::event`] has returned yet.
    events: VecDeque<(String, Monotonic)>,
}

impl Peer {
    /// # Errors
    /// Returns an error if the process does not start or does not open a session in time.
    pub(super) async fn start(runtime: &Runtime, program: Program) -> anyhow::Result<Self> {
        let mut command = Command::new(&program.command[0]);
        command.args(&program.command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.envs(program.coordination.iter().map(|url| ("REVEILLE_COORDINATION", url.as_str())));
        // This log level hides the lines about the start and the end of sessions.
        command.env("RUST_LOG", "error");
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.command[0]))?;
        let input = child.stdin.take().context("the standard input of the child process is not a pipe")?;
        let output =
            BufReader::new(child.stdout.take().context("the standard output of the child process is not a pipe")?)
                .lines();
        let (runtime, events) = (runtime.clone(), VecDeque::new());
        let mut peer = Peer { runtime, program, child, input, output, commands: 0, events };
        peer.event("connected").await?;
        Ok(peer)
    }

    /// Sends a command and returns the values of its response.
    ///
    /// # Errors
    /// Returns an error if the response is an error or does not arrive.
    pub(super) async fn request(&mut self, command: &str) -> anyhow::Result<String> {
        self.commands += 1;
        let id = self.commands.to_string();
        self.input.write_all(format!("{id} {command}\n").as_bytes()).await.context("the child process has ended")?;
        loop {
            let (line, at) = self.line().await.with_context(|| format!("{}: `{command}`", self.program.name))?;
            match line.split_once(' ') {
                Some(("event", event)) => self.events.push_back((event.to_owned(), at)),
                Some((number, response)) if number == id => match response.split_once(' ').unwrap_or((response, "")) {
                    ("ok", values) => return Ok(values.to_owned()),
                    (_, error) => bail!("{}: `{command}`: {error}", self.program.name),
                },
                _ => {}
            }
        }
    }

    /// Waits for an event and returns the instant at which it arrived.
    ///
    /// # Errors
    /// Returns an error if the event does not arrive.
    pub(super) async fn event(&mut self, event: &str) -> anyhow::Result<Monotonic> {
        while let Some((received, at)) = self.events.pop_front() {
            if received == event {
                return Ok(at);
            }
        }
        loop {
            let (line, at) = self.line().await.with_context(|| format!("{}: `{event}`", self.program.name))?;
            if line.strip_prefix("event ") == Some(event) {
                return Ok(at);
            }
        }
    }

    async fn line(&mut self) -> anyhow::Result<(String, Monotonic)> {
        let line = self.runtime.timeout(TIMEOUT, self.output.next_line()).await;
        let line = line.with_context(|| format!("the child process wrote no line within {TIMEOUT:?}"))??;
        Ok((line.context("the child process has ended")?, self.runtime.monotonic()))
    }

    /// Kills the process with `kill -9` and returns the instant of the kill.
    ///
    /// # Errors
    /// Returns an error if the process has already ended.
    pub(super) async fn kill(mut self) -> anyhow::Result<Monotonic> {
        let killed = self.runtime.monotonic();
        self.child.start_kill().with_context(|| format!("cannot kill the child process {}", self.program.name))?;
        self.child.wait().await?;
        Ok(killed)
    }

    /// # Errors
    /// Returns an error if the process does not exit in time or exits with a failure.
    pub(super) async fn stop(self, runtime: &Runtime) -> anyhow::Result<()> {
        let Peer { mut child, input, program, .. } = self;
        drop(input);
        let ended = runtime.timeout(TIMEOUT, child.wait()).await.with_context(|| {
            format!("the child process {} did not exit within {TIMEOUT:?} after its input had ended", program.name)
        })??;
        ensure!(ended.success(), "{} ended with {ended}", program.name);
        Ok(())
    }
}
