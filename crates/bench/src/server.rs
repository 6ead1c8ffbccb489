//! Server that a trial measures: a process of this binary with its data in the trial's folder, or a server that already
//! runs at a given URL.

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
    /// URL of a running server to measure, `http://host:port`; without this option, the trial starts a server
    #[arg(long, requires = "key_file")]
    url: Option<String>,
    /// File with the API key for the server at `--url`
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Database of the started server, postgres://…; without it, the server stores its data in the trial's folder
    #[arg(long, conflicts_with = "url")]
    pub(crate) store: Option<Url>,
    /// Number of threads of the server that run tasks [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    server_threads: Option<u16>,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    key: String,
    /// Process of the server; `None` if the trial did not start it.
    process: Option<Process>,
    folder: PathBuf,
    threads: Option<u16>,
    store: Option<Url>,
    /// Further arguments of `serve`.
    arguments: Vec<String>,
}

/// Longest wait until a server is ready. A server takes time to open a large data folder.
const READY_MAX: Duration = Duration::from_secs(120);
/// Longest wait until a server stops. A stopping server flushes its memory to disk.
const STOP_MAX: Duration = Duration::from_secs(60);

impl Server {
    /// # Errors
    /// Returns an error if no server starts in `folder`. For a given URL, returns an error if the host name does not
    /// resolve or the key file is unreadable.
    pub(crate) async fn start(runtime: &Runtime, arguments: &ServerArguments, folder: &Path) -> anyhow::Result<Self> {
        Server::start_with(runtime, arguments, folder, &[]).await
    }

    /// Works like [`Server::start`], but passes the arguments `more` to a server that the trial starts.
    ///
    /// # Errors
    /// Returns the same errors as [`Server::start`].
    pub(crate) async fn start_with(
        runtime: &Runtime,
        arguments: &ServerArguments,
        folder: &Path,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
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
        server.restart(runtime).await?;
        server.key = read_key(&data(folder).join("admin.key"))?;
        Ok(server)
    }

    /// Returns the parts of the request head that are equal in every request to this server.
    pub(crate) fn head(&self, content_type: &'static str) -> Head {
        Head { host: self.address, key: self.key.clone(), content_type }
    }

    /// Returns the operators' API key for a server that the trial started.
    ///
    /// # Errors
    /// Returns an error if the trial did not start the server.
    pub(crate) fn operator_key(&self) -> anyhow::Result<String> {
        ensure!(self.process.is_some(), "the trial can create tenants only on a server that it started; omit --url");
        read_key(&data(&self.folder).join("operator.key"))
    }

    /// Returns the value of a metric without labels, as `/metrics` reports it; `None` if the metric is missing.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<Option<u64>> {
        Ok(self.metrics().await?.one(name))
    }

    /// Reads the server's metrics.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub(crate) async fn metrics(&self) -> anyhow::Result<Metrics> {
        Metrics::read(&self.head("application/json")).await
    }

    /// Returns the id of the process to measure; `None` if the trial did not start the server.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid)
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        disk_bytes(&data(&self.folder))
    }

    /// Kills the server with `kill -9`, then restarts it with the same port and data. Returns the time from the restart
    /// until the server is ready.
    ///
    /// # Errors
    /// Returns an error if the trial did not start the server, or if the server does not become ready.
    pub(crate) async fn kill_and_restart(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        self.kill().await?;
        self.restart(runtime).await
    }

    /// Works like [`Server::kill_and_restart`], but stops the server gracefully.
    pub(crate) async fn stop_and_restart(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        self.stop_process(runtime).await?;
        self.restart(runtime).await
    }

    /// Starts a server as one of several members that share a database, and creates the database's schema if it is
    /// missing. `folder` contains the tenant's key and the member's own folder `name`.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub(crate) async fn start_member(
        runtime: &Runtime,
        store: &Url,
        folder: &Path,
        name: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let own = folder.join(name);
        fs::create_dir_all(&own).with_context(|| format!("cannot create the folder {}", own.display()))?;
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
        server.restart(runtime).await?;
        Ok(server)
    }

    /// Starts the server with its address and data. Returns the time until the server is ready.
    ///
    /// # Errors
    /// Returns an error if the server is not ready in time.
    pub(crate) async fn restart(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        let started = runtime.monotonic();
        let data = data(&self.folder);
        let threads = self.threads.map(|threads| threads.to_string());
        let mut arguments = vec![
            "serve",
            "--no-receiver",
            "--data",
            data.to_str().with_context(|| {
                format!("the path {} is not valid UTF-8; choose another folder with --data", data.display())
            })?,
        ];
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

    /// Kills the server with `kill -9`.
    ///
    /// # Errors
    /// Returns an error if the trial did not start the server.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.take().context("the trial can kill only a server that it started; omit --url")?.kill().await
    }

    /// Stops the server gracefully.
    ///
    /// # Errors
    /// Returns an error if the trial did not start the server, or if the server does not stop by itself.
    pub(crate) async fn stop_process(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let process = self.process.take().context("the trial can stop only a server that it started; omit --url")?;
        ensure!(
            process.stop(runtime, STOP_MAX).await?,
            "the server did not stop gracefully within {STOP_MAX:?}; see the log {}",
            self.folder.join("serve.log").display()
        );
        Ok(())
    }

    /// Stops the server, if the trial started it.
    pub(crate) async fn stop(self, runtime: &Runtime) -> anyhow::Result<()> {
        if let Some(process) = self.process
            && !process.stop(runtime, STOP_MAX).await?
        {
            let log = self.folder.join("serve.log");
            tracing::warn!("server did not stop gracefully within {STOP_MAX:?}; see the log {}", log.display());
        }
        Ok(())
    }
}

/// Values of all metrics at one moment, as `/metrics` reports them.
pub(crate) struct Metrics(String);

impl Metrics {
    /// # Errors
    /// Returns an error if the server does not respond.
    pub(crate) async fn read(head: &Head) -> anyhow::Result<Self> {
        let connection = Connection::open(head.host).await;
        let mut connection = connection.with_context(|| format!("cannot connect to the server {}", head.host))?;
        let mut request = Vec::new();
        write_request("GET", "/metrics", head, b"", &mut request);
        connection.exchange(&request).await?;
        Ok(Metrics(String::from_utf8_lossy(connection.body()).into_owned()))
    }

    /// Returns the value of a metric with the given name and labels; `None` if the metric is missing.
    pub(crate) fn one(&self, name: &str) -> Option<u64> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok())
    }

    /// Returns the sum of a metric's values for all labels that contain `label`.
    pub(crate) fn sum(&self, name: &str, label: &str) -> u64 {
        let labelled = self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
        labelled.filter(|(labels, _)| labels.contains(label)).filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
    }
}

/// Returns the server's data folder within the trial's folder.
pub(crate) fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Creates the schema and the first tenant in a database if they are missing. Checks that the folder `data` contains
/// the tenant's key.
async fn migrate(store: &Url, data: &Path) -> anyhow::Result<()> {
    let mut command =
        tokio::process::Command::new(std::env::current_exe().context("cannot determine the path of this program")?);
    command
        .args(["store", "migrate", "--allow-egress", "loopback", "--data"])
        .arg(data)
        .env("REVEILLE_STORE", store.as_str());
    let output = command.output().await.context("cannot start `reveille store migrate`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let key = data.join("admin.key");
    ensure!(
        key.exists(),
        "the database has a tenant whose key is not in {}; pass with --data the folder of \
         the trial that created the tenant, or use another database",
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
    let mut addresses = authority.to_socket_addrs().with_context(|| format!("cannot resolve {authority}"))?;
    addresses.next().with_context(|| format!("{authority} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_name_and_summed_by_label() {
        let metrics = Metrics("# TYPE a counter\na_total{kind=\"x\",b=\"1\"} 2\na_total{kind=\"x\",b=\"2\"} 3\na_total{kind=\"y\"} 4\nc 7\ncd 8\n".to_owned());
        assert_eq!(
            (metrics.one("c"), metrics.one("a_total"), metrics.one("a_total{kind=\"y\"}")),
            (Some(7), None, Some(4))
        );
        assert_eq!((metrics.sum("a_total", "kind=\"x\""), metrics.sum("c", "kind")), (5, 0));
    }
}
