//! The tree of a coordination engine and the recipes on it, from the command line: for people who look, and for shell scripts.

mod discover;
mod elect;
mod roles;
mod supervise;
mod tree;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use cli_support::Url;
use coordination::recipes::Client;
use coordination::tree::{Acl, Credentials, NodePath, SessionOptions, TreeError};
use runtime::Runtime;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Look at the nodes of a coordination engine, and change them
    #[command(subcommand)]
    Tree(tree::Command),
    /// List the instances of a service, as they come and go with `--watch`
    Discover(discover::Arguments),
    /// Show the jobs of a role match, who has each, and who waits
    Roles(At),
    /// Run a command while this process leads its group, and only then
    Elect(elect::Arguments),
    /// What ends the command of `elect` when `elect` cannot
    #[command(hide = true)]
    Supervise(supervise::SuperviseArguments),
    /// What the command of `elect` begins as
    #[command(hide = true)]
    Become(supervise::BecomeArguments),
}

pub(crate) async fn obey(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Tree(command) => Box::pin(tree::obey(runtime, command)).await,
        Command::Discover(arguments) => Box::pin(discover::obey(runtime, &arguments)).await,
        Command::Roles(arguments) => Box::pin(roles::obey(runtime, &arguments)).await,
        Command::Elect(arguments) => Box::pin(elect::obey(runtime, &arguments)).await,
        Command::Supervise(arguments) => supervise::supervise(runtime, &arguments).await,
        Command::Become(arguments) => Err(supervise::become_it(&arguments)),
    }
}

/// Which engine, and who asks.
#[derive(Args, Clone, Debug)]
struct Engine {
    /// The engine: zookeeper://HOST:PORT,HOST:PORT/ROOT or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    /// A file with the password of the database, instead of one in the URL
    #[arg(long, env = "REVEILLE_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// A file with lines NAME:PASSWORD: who this is, for nodes that are closed to others
    #[arg(long, env = "REVEILLE_COORDINATION_CREDENTIALS")]
    credentials_file: Option<PathBuf>,
    /// Seconds until the engine ends the session of a process that is not heard of any more [2 to 300]
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=300))]
    session_seconds: u64,
}

impl Engine {
    async fn client(&self, runtime: &Runtime) -> anyhow::Result<Client> {
        let options =
            SessionOptions { timeout: Duration::from_secs(self.session_seconds), credentials: self.credentials()? };
        let password = self.password_file.as_deref().map(crate::engine::read_password).transpose()?;
        let trees = coordination_connect::trees(runtime, self.coordination.as_str(), password).await;
        let client = Client::new(runtime, trees.context("--coordination")?, options);
        client.session().await.context("cannot open a session: is the engine there, and reachable from here?")?;
        Ok(client)
    }

    fn credentials(&self) -> anyhow::Result<Vec<Credentials>> {
        let Some(path) = &self.credentials_file else { return Ok(Vec::new()) };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(at, line): (usize, &str)| match line.split_once(':') {
            Some((name, password)) => Ok(Credentials { name: name.to_owned(), password: password.to_owned() }),
            None => bail!("{}, line {}: a line is NAME:PASSWORD", path.display(), at + 1),
        };
        let all = lines.map(read).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(!all.is_empty(), "{} has no line NAME:PASSWORD", path.display());
        Ok(all)
    }

    /// Of nodes that are made: its own, if it says who it is.
    fn acl(&self) -> Acl {
        if self.credentials_file.is_some() { Acl::Creator } else { Acl::Open }
    }
}

/// Where a command looks, and how it tells.
#[derive(Args, Debug)]
pub(crate) struct At {
    /// Which node
    #[arg(value_parser = path)]
    path: NodePath,
    #[command(flatten)]
    engine: Engine,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// With the next step.
fn told(path: &NodePath) -> impl Fn(TreeError) -> anyhow::Error {
    move |error| match error {
        TreeError::NoNode => anyhow::anyhow!("there is no node {path}: `reveille tree ls` shows what is above it"),
        TreeError::NotEmpty => anyhow::anyhow!("{path} has children: `--recursive` deletes them, too"),
        TreeError::Forbidden => {
            anyhow::anyhow!("{path} is closed to you: --credentials-file says who you are")
        }
        error => anyhow::Error::new(error).context(path.to_string()),
    }
}

/// As clap reads it.
fn path(text: &str) -> Result<NodePath, String> {
    NodePath::new(text).map_err(|error| error.to_string())
}
