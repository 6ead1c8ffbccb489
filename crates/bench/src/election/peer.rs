//! A process that is told what to do by lines, as `tools/mixed-java/README.md` has them: ours, or one with Curator.

use std::collections::VecDeque;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use runtime::{Monotonic, Runtime};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// What is said to a command, or by itself, comes within this: a machine with much to do may start a process slowly.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is started.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// In the tables.
    pub(super) name: &'static str,
    command: Vec<String>,
    /// As the environment has it: it may hold a password.
    coordination: Option<String>,
}

impl Program {
    /// # Errors
    /// If this program's file is not to be found.
    pub(super) fn ours(url: &str, session_timeout: Duration) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("cannot tell the path of this program")?;
        let mut command = vec![this.into_os_string().into_string().ok().context("this program's path is no text")?];
        let millis = session_timeout.as_millis().to_string();
        command.extend(["bench", "election-candidate", "--session-millis", &millis].map(str::to_owned));
        Ok(Program { name: "ours", command, coordination: Some(url.to_owned()) })
    }

    /// # Errors
    /// If the URL is none of a ZooKeeper.
    pub(super) fn peer(command: &[String], url: &str, session_timeout: Duration) -> anyhow::Result<Self> {
        let addresses = url.strip_prefix("zookeeper://").context("a peer needs a ZooKeeper: zookeeper://HOST:PORT")?;
        let mut command = command.to_vec();
        command.extend([addresses.trim_end_matches('/').to_owned(), session_timeout.as_millis().to_string()]);
        Ok(Program { name: "peer", command, coordination: None })
    }
}

/// Dropped, it is killed; it ends by itself, too, when this process does, as its input ends then.
pub(super) struct Peer {
    runtime: Runtime,
    pub(super) program: Program,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    commands: u64,
    /// That were not waited for yet.
    events: VecDeque<(String, Monotonic)>,
}

impl Peer {
    /// # Errors
    /// If it does not start, or has no session in time.
    pub(super) async fn start(runtime: &Runtime, program: Program) -> anyhow::Result<Self> {
        let mut command = Command::new(&program.command[0]);
        command.args(&program.command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.envs(program.coordination.iter().map(|url| ("REVEILLE_COORDINATION", url.as_str())));
        // That sessions come and go is no news here.
        command.env("RUST_LOG", "error");
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.command[0]))?;
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
        let (runtime, events) = (runtime.clone(), VecDeque::new());
        let mut peer = Peer { runtime, program, child, input, output, commands: 0, events };
        peer.event("connected").await?;
        Ok(peer)
    }

    /// What a command answers.
    ///
    /// # Errors
    /// If it is an error, or does not come.
    pub(super) async fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.commands += 1;
        let id = self.commands.to_string();
        self.input.write_all(format!("{id} {command}\n").as_bytes()).await.context("the process has ended")?;
        loop {
            let (line, at) = self.line().await.with_context(|| format!("{}: `{command}`", self.program.name))?;
            match line.split_once(' ') {
                Some(("event", event)) => self.events.push_back((event.to_owned(), at)),
                Some((told, answer)) if told == id => match answer.split_once(' ').unwrap_or((answer, "")) {
                    ("ok", values) => return Ok(values.to_owned()),
                    (_, error) => bail!("{}: `{command}`: {error}", self.program.name),
                },
                _ => {}
            }
        }
    }

    /// Waits for it: when it was told.
    ///
    /// # Errors
    /// If it does not come.
    pub(super) async fn event(&mut self, event: &str) -> anyhow::Result<Monotonic> {
        while let Some((told, at)) = self.events.pop_front() {
            if told == event {
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
        let line = self.runtime.timeout(PATIENCE, self.output.next_line()).await;
        let line = line.with_context(|| format!("nothing was said for {PATIENCE:?}"))??;
        Ok((line.context("the process has ended")?, self.runtime.monotonic()))
    }

    /// `kill -9`: when.
    ///
    /// # Errors
    /// If it has ended before.
    pub(super) async fn kill(mut self) -> anyhow::Result<Monotonic> {
        let killed = self.runtime.monotonic();
        self.child.start_kill().context("cannot kill a process")?;
        self.child.wait().await?;
        Ok(killed)
    }

    /// # Errors
    /// If it does not end well.
    pub(super) async fn stop(self, runtime: &Runtime) -> anyhow::Result<()> {
        let Peer { mut child, input, program, .. } = self;
        drop(input);
        let ended =
            runtime.timeout(PATIENCE, child.wait()).await.context("a process does not end with its input")??;
        ensure!(ended.success(), "{} ended with {ended}", program.name);
        Ok(())
    }
}
