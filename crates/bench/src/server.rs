//! The Reveille that is measured: a process of this binary with its data in the trial's folder, or one that runs.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use cli_support::Url;
use cli_support::http1::Connection;
use runtime::Runtime;

use crate::message::{Head, write_request};
use crate::process::{Process, disk_bytes, free_address};

#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArguments {
    /// A server that runs, `http://host:port`; without it one is started for the trial
    #[arg(long, requires = "key_file")]
    url: Option<String>,
    /// The file with the key for `--url`
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// The database of the server that is started, postgres://…, instead of the trial's folder
    #[arg(long, conflicts_with = "url")]
    pub(crate) store: Option<Url>,
    /// The server's threads that run tasks [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    server_threads: Option<u16>,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    key: String,
    /// `None` if it was there before the trial.
    process: Option<Process>,
    folder: PathBuf,
    threads: Option<u16>,
    store: Option<Url>,
    /// Further arguments of `serve`.
    arguments: Vec<String>,
}

/// A large data folder takes its time to open; more than this is a failure.
const READY_MAX: Duration = Duration::from_secs(120);
/// A stop flushes what is in memory.
const STOP_MAX: Duration = Duration::from_secs(60);

impl Server {
    /// # Errors
    /// If no server can be started in `folder`, or none answers where the arguments say.
    pub(crate) async fn start(runtime: &Runtime, arguments: &ServerArguments, folder: &Path) -> anyhow::Result<Self> {
        Server::start_told(runtime, arguments, folder, &[]).await
    }

    /// As [`Server::start`]; one that is started is told `more`.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub(crate) async fn start_told(
        runtime: &Runtime,
        arguments: &ServerArguments,
        folder: &Path,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        if let (Some(url), Some(key_file)) = (&arguments.url, &arguments.key_file) {
            return Ok(Server {
                address: resolve(url)?,
                key: read_key(key_file)?,
                process: None,
                folder: folder.to_owned(),
                threads: None,
                store: None,
                arguments: Vec::new(),
            });
        }
        let address = free_address()?;
        if let Some(store) = &arguments.store {
            migrate(store, &data(folder)).await?;
        }
        let mut server = Server {
            address,
            key: String::new(),
            process: None,
            folder: folder.to_owned(),
            threads: arguments.server_threads,
            store: arguments.store.clone(),
            arguments: more.iter().map(|argument| (*argument).to_owned()).collect(),
        };
        server.start_again(runtime).await?;
        server.key = read_key(&data(folder).join("admin.key"))?;
        Ok(server)
    }

    /// What goes into every request to it.
    pub(crate) fn head(&self, content_type: &'static str) -> Head {
        Head { host: self.address, key: self.key.clone(), content_type }
    }

    /// Of the operators of a server of the trial's making.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn operator_key(&self) -> anyhow::Result<String> {
        ensure!(self.process.is_some(), "tenants are made on a server that the trial has started; leave --url out");
        read_key(&data(&self.folder).join("operator.key"))
    }

    /// A metric without labels, as `/metrics` tells it; `None` if it is not there.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<Option<u64>> {
        let mut connection = Connection::open(self.address).await.context("the server does not answer")?;
        let mut request = Vec::new();
        write_request("GET", "/metrics", &self.head("application/json"), b"", &mut request);
        connection.exchange(&request).await?;
        let text = String::from_utf8_lossy(connection.body()).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.and_then(|value| value.trim().parse().ok()))
    }

    /// The process to measure; without one, this process stands in, and its figures are left out.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        disk_bytes(&data(&self.folder))
    }

    /// `kill -9`, then starts it again on the same port and data. How long it took from the start to ready.
    ///
    /// # Errors
    /// If the server is not of this trial's making, or does not come back.
    pub(crate) async fn kill_and_restart(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        self.kill().await?;
        self.start_again(runtime).await
    }

    /// As [`Server::kill_and_restart`], with a polite stop.
    pub(crate) async fn stop_and_restart(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        self.end(runtime).await?;
        self.start_again(runtime).await
    }

    /// As one member of several over a database, whose schema is made if it is not there; its own folder is within
    /// `folder`, where the key is.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) async fn start_member(
        runtime: &Runtime,
        store: &Url,
        folder: &Path,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let own = folder.join(name);
        fs::create_dir_all(&own).with_context(|| format!("cannot make the folder {}", own.display()))?;
        migrate(store, &data(folder)).await?;
        let mut server = Server {
            address: free_address()?,
            key: read_key(&data(folder).join("admin.key"))?,
            process: None,
            folder: own,
            threads: None,
            store: Some(store.clone()),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        };
        server.start_again(runtime).await?;
        Ok(server)
    }

    /// Starts it where it was; how long until it was ready.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub(crate) async fn start_again(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        let started = runtime.monotonic();
        let data = data(&self.folder);
        let threads = self.threads.map(|threads| threads.to_string());
        let mut arguments =
            vec!["serve", "--no-receiver", "--data", data.to_str().context("the data folder's path is not text")?];
        if let Some(threads) = &threads {
            arguments.extend(["--threads", threads]);
        }
        arguments.extend(self.arguments.iter().map(String::as_str));
        let environment: Vec<(&str, &str)> =
            self.store.iter().map(|store| ("REVEILLE_STORE", store.as_str())).collect();
        let log = self.folder.join("serve.log");
        let process = Process::start(runtime, &arguments, &environment, self.address, "/readyz", &log, READY_MAX);
        self.process = Some(process.await?);
        Ok(runtime.monotonic().since(started))
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If it is not of this trial's making.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.take().context("only a server that the trial has started can be killed")?.kill().await
    }

    /// A polite stop.
    ///
    /// # Errors
    /// If it is not of this trial's making, or does not stop by itself.
    pub(crate) async fn end(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let process = self.process.take().context("only a server that the trial has started can be stopped")?;
        ensure!(process.stop(runtime, STOP_MAX).await?, "the server did not stop by itself within {STOP_MAX:?}");
        Ok(())
    }

    /// Stops it, if it is of this trial's making.
    pub(crate) async fn stop(self, runtime: &Runtime) -> anyhow::Result<()> {
        if let Some(process) = self.process
            && !process.stop(runtime, STOP_MAX).await?
        {
            tracing::warn!("the server did not stop by itself; see {}", self.folder.join("serve.log").display());
        }
        Ok(())
    }
}

/// The server's data folder within the trial's.
pub(crate) fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Makes the schema in a database, and the tenant with its key in the trial's folder.
async fn migrate(store: &Url, data: &Path) -> anyhow::Result<()> {
    let mut command = tokio::process::Command::new(std::env::current_exe().context("cannot find this program")?);
    command
        .args(["store", "migrate", "--allow-egress", "loopback", "--data"])
        .arg(data)
        .env("REVEILLE_STORE", store.as_str());
    let output = command.output().await.context("cannot start `reveille store migrate`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let key = data.join("admin.key");
    ensure!(
        key.exists(),
        "the database has a tenant, whose key is not in {}: name the folder of the trial that made it with --data, or another database",
        key.display()
    );
    Ok(())
}

fn read_key(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the key in {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn resolve(url: &str) -> anyhow::Result<SocketAddr> {
    let authority = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let authority = authority.with_context(|| format!("{url} is not http://host:port"))?;
    let mut addresses = authority.to_socket_addrs().with_context(|| format!("cannot find {authority}"))?;
    addresses.next().with_context(|| format!("{authority} has no address"))
}
