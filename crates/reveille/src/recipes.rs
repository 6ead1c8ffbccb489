//! Commands with which people and shell scripts use the tree of a coordination engine and the coordination recipes.

mod credentials;
mod discover;
mod elect;
mod roles;
mod supervise;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use cli_support::Url;
use coordination::recipes::Client;
use coordination::tree::{Acl, Credentials, NodePath, SessionOptions, TreeError, Trees};
use coordination_connect::OpenError;
use runtime::Runtime;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Show and change the nodes of a coordination engine
    #[command(subcommand)]
    Tree(tree::Command),
    /// List the instances of a service; with `--watch`, list them again after each change
    Discover(discover::Arguments),
    /// Show the jobs of a role match, their holders, and the number of waiting candidates
    Roles(NodeArguments),
    /// Create a file with credentials for the nodes of a group
    Credentials(credentials::Arguments),
    /// Run a command only while this process is the leader of a group
    Elect(elect::Arguments),
    /// Kill the command of `elect` at the deadline of the leadership, or when `elect` has ended
    #[command(hide = true)]
    Supervise(supervise::SuperviseArguments),
    /// Wait for a line from `elect`, then replace this process by the command
    #[command(hide = true)]
    Become(supervise::BecomeArguments),
}

pub(crate) async fn execute(runtime: &Runtime, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Tree(command) => Box::pin(tree::execute(runtime, command)).await,
        Command::Discover(arguments) => Box::pin(discover::execute(runtime, &arguments)).await,
        Command::Roles(arguments) => Box::pin(roles::execute(runtime, &arguments)).await,
        Command::Credentials(arguments) => credentials::execute(runtime, &arguments),
        Command::Elect(arguments) => Box::pin(elect::execute(runtime, &arguments)).await,
        Command::Supervise(arguments) => supervise::supervise(runtime, &arguments).await,
        Command::Become(arguments) => Err(supervise::become_command(&arguments)),
    }
}

const NO_SESSION: &str = "cannot open a session: check that the engine is running and reachable";

/// Options for the coordination engine and its credentials.
#[derive(Args, Clone, Debug)]
struct Engine {
    /// URL of the coordination engine: zookeeper://HOST:PORT,HOST:PORT/ROOT, with TLS
    /// zookeeper+tls://USER@HOST:PORT/ROOT?sslrootcert=FILE, or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    /// File with the password of the user in the URL, as an alternative to a password in the URL
    #[arg(long, env = "REVEILLE_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// File with credentials in lines NAME:PASSWORD, which `reveille credentials` creates; only clients with the same
    /// credentials can access the nodes that this command creates
    #[arg(long, value_name = "FILE", env = "REVEILLE_COORDINATION_CREDENTIALS")]
    credentials: Option<PathBuf>,
    /// Seconds without contact after which the engine ends the session of this process [2 to 300]
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=300))]
    session_seconds: u64,
}

impl Engine {
    async fn client(&self, runtime: &Runtime) -> anyhow::Result<Client> {
        let (password, options) = (self.password()?, self.session_options()?);
        let trees = self.trees(runtime, password).await;
        let client = Client::new(runtime, trees.context("--coordination")?, options);
        client.session().await.context(NO_SESSION)?;
        Ok(client)
    }

    /// Opens a session like [`Engine::client`], but waits while the engine is unreachable. A command that runs for long
    /// may start before its engine.
    async fn client_when_reachable(&self, runtime: &Runtime) -> anyhow::Result<Client> {
        let (password, options) = (self.password()?, self.session_options()?);
        let open = async || self.trees(runtime, password.clone()).await;
        let trees = runtime.open_when_reachable(open, OpenError::is_retryable).await;
        let client = Client::new(runtime, trees.context("--coordination")?, options);
        let open = async || client.session().await;
        runtime.open_when_reachable(open, TreeError::is_retryable).await.context(NO_SESSION)?;
        Ok(client)
    }

    async fn trees(&self, runtime: &Runtime, password: Option<String>) -> Result<Arc<dyn Trees>, OpenError> {
        coordination_connect::trees(runtime, self.coordination.as_str(), password).await
    }

    fn password(&self) -> anyhow::Result<Option<String>> {
        self.password_file.as_deref().map(crate::engine::read_password).transpose()
    }

    fn session_options(&self) -> anyhow::Result<SessionOptions> {
        Ok(SessionOptions { timeout: Duration::from_secs(self.session_seconds), credentials: self.credentials()? })
    }

    fn credentials(&self) -> anyhow::Result<Vec<Credentials>> {
        let Some(path) = &self.credentials else { return Ok(Vec::new()) };
        Ok(coordination_connect::read_credentials(path)?)
    }

    /// Returns the access list for new nodes: with `open`, all clients have access, and otherwise only clients with the
    /// credentials of this process.
    ///
    /// # Errors
    /// Returns an error if the user gives neither credentials nor `open`.
    fn acl(&self, open: bool) -> anyhow::Result<Acl> {
        match &self.credentials {
            _ if open => Ok(Acl::Open),
            Some(_) => Ok(Acl::Creator),
            None => bail!(
                "this command creates nodes, and no credentials are given: create a file with `reveille credentials \
                 FILE` and give it with --credentials FILE, or let every client of the engine access the nodes with \
                 --open"
            ),
        }
    }
}

/// Options for the node to which a command applies, and for the format of the output.
#[derive(Args, Debug)]
pub(crate) struct NodeArguments {
    /// Path of the node
    #[arg(value_parser = path)]
    path: NodePath,
    #[command(flatten)]
    engine: Engine,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns a function that explains an error of an operation on this node and names the next step.
fn explain(path: &NodePath) -> impl Fn(TreeError) -> anyhow::Error {
    move |error| match error {
        TreeError::NoNode if *path == NodePath::root() => anyhow::anyhow!(
            "the engine has no nodes at the path of the coordination URL: check the URL; the first node that a command \
             creates also creates this path"
        ),
        TreeError::NoNode => anyhow::anyhow!("no such node: {path}; `reveille tree ls` shows the existing nodes"),
        TreeError::NotEmpty => anyhow::anyhow!("{path} has children: `--recursive` also deletes the children"),
        TreeError::Forbidden => {
            anyhow::anyhow!("access to {path} denied: give the credentials of its creator with --credentials FILE")
        }
        error => anyhow::Error::new(error).context(path.to_string()),
    }
}

/// Parses a path of a node for clap.
fn path(text: &str) -> Result<NodePath, String> {
    NodePath::new(text).map_err(|error| error.to_string())
}
