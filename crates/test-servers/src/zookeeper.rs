//! ZooKeeper for tests: one server, or an ensemble of several servers.

mod security;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;

use crate::guard::Guard;
use crate::java;
use crate::port::free_port;
use crate::process::{GUARD, Process, start_on_free_ports};
pub use security::{Security, USERS};

/// Length of a tick, the unit of time of the servers. The timeout of a session is between two and 600 ticks.
pub const TICK: Duration = Duration::from_millis(100);

/// ZooKeeper servers that belong to this process. A drop of this value stops the servers and deletes their folder.
#[derive(Debug)]
pub struct Zookeeper {
    jars: PathBuf,
    folder: PathBuf,
    servers: Vec<Server>,
    guard: Guard,
}

#[derive(Debug)]
struct Server {
    process: Process,
    /// Address on which the server listens for clients.
    address: Ipv4Addr,
    port: u16,
    /// Port for TLS of a server with a [`Security`].
    secure_port: Option<u16>,
}

/// Returns the shared single server of this process. The first caller starts the server. The server ends soon after the
/// process.
///
/// # Panics
/// Panics if the server does not start, because no test that needs the server can run.
pub fn shared() -> &'static Zookeeper {
    static SHARED: OnceLock<Zookeeper> = OnceLock::new();
    SHARED.get_or_init(|| Zookeeper::start(1).expect("Java and Maven are installed, and ZooKeeper starts"))
}

/// Returns the shared single server of this process that requires a user of every client. The first caller starts the
/// server.
///
/// # Panics
/// Panics if the server does not start, because no test that needs the server can run.
pub fn shared_secure() -> &'static Zookeeper {
    static SHARED: OnceLock<Zookeeper> = OnceLock::new();
    let security = Security { requires_user: true, ..Security::default() };
    SHARED
        .get_or_init(|| Zookeeper::start_secure(security).expect("Java and Maven are installed, and ZooKeeper starts"))
}

impl Zookeeper {
    /// Starts an ensemble of `count` servers. Returns when the ensemble serves requests.
    ///
    /// # Errors
    /// Returns an error if Java or Maven is not installed, or if ZooKeeper does not start. If a server does not start,
    /// the error contains its log.
    pub fn start(count: usize) -> anyhow::Result<Zookeeper> {
        Zookeeper::start_on(Ipv4Addr::LOCALHOST, count)
    }

    /// Starts an ensemble whose servers listen for clients on `address`.
    ///
    /// # Errors
    /// Returns the same errors as [`Zookeeper::start`].
    pub fn start_on(address: Ipv4Addr, count: usize) -> anyhow::Result<Zookeeper> {
        Zookeeper::start_of("zookeeper", address, count, None)
    }

    /// Starts one server with TLS and authentication.
    ///
    /// # Errors
    /// Returns the same errors as [`Zookeeper::start`].
    pub fn start_secure(security: Security) -> anyhow::Result<Zookeeper> {
        Zookeeper::start_of("zookeeper", Ipv4Addr::LOCALHOST, 1, Some(security))
    }

    /// Starts one server of version 3.5, which Reveille does not support.
    ///
    /// # Errors
    /// Returns the same errors as [`Zookeeper::start`].
    pub fn start_outdated() -> anyhow::Result<Zookeeper> {
        Zookeeper::start_of("zookeeper-3.5", Ipv4Addr::LOCALHOST, 1, None)
    }

    /// Starts `count` servers with the jars of the folder `java/NAME`.
    fn start_of(name: &str, address: Ipv4Addr, count: usize, security: Option<Security>) -> anyhow::Result<Zookeeper> {
        let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("java").join(name).join("pom.xml");
        let jars = java::jars(name, &pom)?;
        start_on_free_ports(|| Zookeeper::try_start(&jars, address, count, security))
    }

    fn try_start(
        jars: &Path,
        address: Ipv4Addr,
        count: usize,
        security: Option<Security>,
    ) -> anyhow::Result<Zookeeper> {
        let folder = tempfile::Builder::new().prefix("reveille-zookeeper-").tempdir()?.keep();
        let guard = Guard::start(&folder, GUARD)?;
        let mut ports = Vec::new();
        for _ in 0..count {
            ports.push((free_port()?, free_port()?, free_port()?));
        }
        let members: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(at, (_, peer, election))| format!("server.{}=127.0.0.1:{peer}:{election}", at + 1))
            .collect();
        let mut servers = Vec::new();
        for (at, (port, ..)) in ports.iter().enumerate() {
            let own = folder.join((at + 1).to_string());
            fs::create_dir_all(own.join("data"))?;
            fs::write(own.join("data/myid"), (at + 1).to_string())?;
            let members = if count > 1 { members.join("\n") } else { String::new() };
            let secure_port = security.map(|_| free_port()).transpose()?;
            let secure = match (security, secure_port) {
                (Some(security), Some(port)) => security.prepare(&own, port)?,
                _ => String::new(),
            };
            fs::write(own.join("zoo.cfg"), configuration(&own, address, *port, &members) + &secure)?;
            servers.push(Server { process: Process::new("ZooKeeper", own), address, port: *port, secure_port });
        }
        let zookeeper = Zookeeper { jars: jars.to_owned(), folder, servers, guard };
        zookeeper.servers.iter().try_for_each(|server| server.spawn(&zookeeper.jars))?;
        zookeeper.servers.iter().try_for_each(Server::wait)?;
        Ok(zookeeper)
    }

    /// Returns the `HOST:PORT` of each server, separated by commas.
    #[must_use]
    pub fn addresses(&self) -> String {
        let addresses: Vec<String> =
            self.servers.iter().map(|server| format!("{}:{}", server.address, server.port)).collect();
        addresses.join(",")
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Returns the port of the server with the index `at`. The first index is 0.
    #[must_use]
    pub fn port(&self, at: usize) -> u16 {
        self.servers[at].port
    }

    /// Returns the port for TLS of a server with a [`Security`].
    ///
    /// # Panics
    /// Panics if the servers have no TLS.
    #[must_use]
    pub fn secure_port(&self) -> u16 {
        self.servers[0].secure_port.expect("the server was started with `start_secure`")
    }

    /// Returns the path of a file of a server with a [`Security`]: `root.crt`, `client.crt` or `client.key`.
    #[must_use]
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.servers[0].process.folder().join(name)
    }

    /// Returns the folder with all files of the servers.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sends a four-letter command, such as `srvr`, to the server with the index `at` and returns the response.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub fn ask(&self, at: usize, command: &str) -> anyhow::Result<String> {
        self.servers[at].ask(command)
    }

    /// Returns the index of the server that currently leads the ensemble.
    ///
    /// # Errors
    /// Returns an error if no server reports that it leads the ensemble.
    pub fn leader(&self) -> anyhow::Result<usize> {
        let leads = |at: &usize| self.ask(*at, "srvr").is_ok_and(|text| text.contains("Mode: leader"));
        (0..self.count()).find(leads).context("no server leads")
    }

    /// Kills the server with the index `at` with SIGKILL. Does nothing if the server is stopped.
    ///
    /// # Errors
    /// Returns an error if this method cannot kill the server.
    pub fn kill(&self, at: usize) -> anyhow::Result<()> {
        self.servers[at].process.kill()
    }

    /// Starts the server with the index `at` with the same data and port. Kills the server first if it is running.
    /// Returns when the server serves requests.
    ///
    /// # Errors
    /// Returns an error if the server does not start. The error contains the server's log.
    pub fn restart(&self, at: usize) -> anyhow::Result<()> {
        self.kill(at)?;
        self.servers[at].spawn(&self.jars)?;
        self.servers[at].wait()
    }

    /// Kills all servers with SIGKILL and starts them with the same data and ports. Returns when all servers serve
    /// requests.
    ///
    /// # Errors
    /// Returns the same errors as [`Zookeeper::restart`].
    pub fn restart_all(&self) -> anyhow::Result<()> {
        (0..self.count()).try_for_each(|at| self.kill(at))?;
        self.servers.iter().try_for_each(|server| server.spawn(&self.jars))?;
        self.servers.iter().try_for_each(Server::wait)
    }

    /// Pauses the server with the index `at`. Connections stay open, and the server does not respond.
    ///
    /// # Errors
    /// Returns an error if the server is not running.
    pub fn pause(&self, at: usize) -> anyhow::Result<()> {
        self.servers[at].process.signal(Signal::STOP)
    }

    /// Resumes the server after [`Zookeeper::pause`].
    ///
    /// # Errors
    /// Returns an error if the server is not running.
    pub fn resume(&self, at: usize) -> anyhow::Result<()> {
        self.servers[at].process.signal(Signal::CONT)
    }
}

impl Server {
    fn spawn(&self, jars: &Path) -> anyhow::Result<()> {
        let mut command = java::command(&[jars]);
        // With the option `checkIntervalMs`, the server looks for empty container nodes every 500 ms instead of once a
        // minute.
        command.args(["-Dznode.container.checkIntervalMs=500", "-Dzookeeper.admin.enableServer=false"]);
        if self.secure_port.is_some() {
            let users = self.process.folder().join("jaas.conf");
            command.arg(format!("-Djava.security.auth.login.config={}", users.display()));
        }
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.process.folder().join("zoo.cfg"));
        self.process.spawn(command)
    }

    /// Waits until the server serves requests. The method uses the command `srvr`, because a server responds to `ruok`
    /// before it serves requests.
    fn wait(&self) -> anyhow::Result<()> {
        self.process.wait_until(|| self.ask("srvr").is_ok_and(|text| text.contains("Mode:")))
    }

    fn ask(&self, command: &str) -> anyhow::Result<String> {
        let address = (self.address, self.port).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(command.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(!text.is_empty(), "ZooKeeper returned no response to the command {command}");
        Ok(text)
    }
}

impl Drop for Zookeeper {
    fn drop(&mut self) {
        for server in &self.servers {
            drop(server.process.kill());
        }
        self.guard.stop();
    }
}

fn configuration(folder: &Path, address: Ipv4Addr, port: u16, members: &str) -> String {
    format!(
        "tickTime={tick}\ninitLimit=100\nsyncLimit=50\nminSessionTimeout={least}\nmaxSessionTimeout={most}\n\
         dataDir={data}\nclientPort={port}\nclientPortAddress={address}\nmaxClientCnxns=0\nadmin.enableServer=false\n\
         4lw.commands.whitelist=*\n{members}\n",
        tick = TICK.as_millis(),
        least = 2 * TICK.as_millis(),
        most = 600 * TICK.as_millis(),
        data = folder.join("data").display(),
    )
}
