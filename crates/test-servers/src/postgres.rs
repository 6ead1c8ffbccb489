//! PostgreSQL server for tests. The server has the newest installed version.

mod bouncer;
mod programs;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

pub use bouncer::PgBouncer;
use programs::Programs;

use crate::certificate::Authority;
use crate::guard::Guard;
use crate::port::free_port;
use crate::process::{is_running, wait_if_stopping};

/// Password of the superuser. Its special characters test whether Reveille decodes the password in a database URL.
pub const PASSWORD: &str = "p@ss:word/1";
const PASSWORD_IN_URL: &str = "p%40ss%3Aword%2F1";
const START_MAX: Duration = Duration::from_secs(60);
/// Interval between two checks of a condition that the crate waits for.
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// True if the server offers TLS. Its certificate is for `localhost` (not 127.0.0.1). The file at
    /// [`Postgres::root_certificate`] contains the certificate of the authority that signed the server's certificate.
    pub tls: bool,
    /// Parent of the server's folder. The default is the system's folder for temporary files.
    pub parent: Option<PathBuf>,
    /// Size in bytes of a separate disk for tests with a full tablespace. The disk is mounted at `disk` in the server's
    /// folder. Only the server's processes can access this disk, and a restart empties it.
    pub disk_bytes: Option<u64>,
    /// Additional settings as names and values of `postgresql.conf`.
    pub settings: Vec<(String, String)>,
    /// Port of the server. The default is a free port.
    pub port: Option<u16>,
}

/// PostgreSQL server that belongs to this process. A drop of this value stops the server and deletes its folder.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    folder: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    disk_bytes: Option<u64>,
    /// Postmaster process. `None` while the server is stopped.
    server: Mutex<Option<Child>>,
    guard: Guard,
}

/// Returns the shared server of this process. The first caller starts the server. The server ends soon after the
/// process.
///
/// # Panics
/// Panics if the server does not start, because no test that needs the server can run.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| Postgres::start().expect("PostgreSQL is installed and starts"))
}

impl Postgres {
    /// # Errors
    /// Returns an error if PostgreSQL is not installed or does not start. If the server does not start, the error
    /// contains its log.
    pub fn start() -> anyhow::Result<Postgres> {
        Postgres::start_with(Options::default())
    }

    /// # Errors
    /// Returns the same errors as [`Postgres::start`].
    pub fn start_with(options: Options) -> anyhow::Result<Postgres> {
        Postgres::start_on_data(options, |programs, folder| programs.create_cluster(folder, PASSWORD))
    }

    /// Starts a server whose data `create` writes to the folder `data` in the server's folder.
    fn start_on_data(
        options: Options,
        create: impl FnOnce(&Programs, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Postgres> {
        let programs = Programs::find()?;
        let parent = options.parent.unwrap_or_else(std::env::temp_dir);
        let created = tempfile::Builder::new().prefix("reveille-postgres-").tempdir_in(&parent);
        let folder = created.with_context(|| format!("cannot create a folder in {}", parent.display()))?.keep();
        let guard = Guard::start(&folder, GUARD)?;
        create(&programs, &folder)?;
        let mut settings = options.settings;
        if options.tls {
            Authority::create(&folder)?.issue(&folder, "server")?;
            programs.set_owner(&folder)?;
            let path = |name: &str| folder.join(name).display().to_string();
            settings.push(("ssl".to_owned(), "on".to_owned()));
            settings.push(("ssl_cert_file".to_owned(), path("server.crt")));
            settings.push(("ssl_key_file".to_owned(), path("server.key")));
        }
        let disk_bytes = options.disk_bytes;
        let server = Mutex::new(None);
        let mut postgres = Postgres { programs, folder, port: 0, settings, disk_bytes, server, guard };
        // Another process may take the port between the check of the port and the start of the server. In this case,
        // this function tries another port.
        let mut attempts_left = 5;
        loop {
            postgres.port = options.port.map_or_else(free_port, Ok)?;
            attempts_left -= 1;
            match postgres.restart() {
                Ok(()) => return Ok(postgres),
                Err(error) if attempts_left == 0 || options.port.is_some() => return Err(error),
                Err(error) if !format!("{error:#}").contains("Address already in use") => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Starts an asynchronous standby of this server. The standby accepts reads, and writes after [`Postgres::promote`].
    ///
    /// # Errors
    /// Returns the same errors as [`Postgres::start`], and an error if the copy of the data fails.
    pub fn start_standby(&self) -> anyhow::Result<Postgres> {
        self.start_standby_with(Options::default())
    }

    /// Starts a standby as [`Postgres::start_standby`] does.
    ///
    /// # Errors
    /// Returns the same errors as [`Postgres::start_standby`].
    pub fn start_standby_with(&self, options: Options) -> anyhow::Result<Postgres> {
        Postgres::start_on_data(options, |programs, folder| programs.create_standby(folder, self.port, PASSWORD))
    }

    /// Disconnects this standby from its primary. From then on the standby receives no further commits.
    ///
    /// # Errors
    /// Returns an error if the standby rejects a statement.
    pub fn disconnect_from_primary(&self) -> anyhow::Result<()> {
        self.sql("postgres", "alter system set primary_conninfo = ''")?;
        self.sql("postgres", "select pg_reload_conf()")?;
        let start = Instant::now();
        while self.sql("postgres", "select count(*) from pg_stat_wal_receiver")? != "0" {
            ensure!(start.elapsed() < START_MAX, "the standby is still connected to its primary after {START_MAX:?}");
            std::thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// Waits until this standby has replayed all commits of `primary`.
    ///
    /// # Errors
    /// Returns an error if a server rejects a statement, or if the standby does not make progress.
    pub fn wait_until_replayed(&self, primary: &Postgres) -> anyhow::Result<()> {
        let end = primary.sql("postgres", "select pg_current_wal_lsn()")?;
        let start = Instant::now();
        while self.sql("postgres", &format!("select pg_last_wal_replay_lsn() >= '{end}'"))? != "t" {
            ensure!(start.elapsed() < START_MAX, "the standby has not replayed the commits after {START_MAX:?}");
            std::thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// Makes this standby a primary. Returns when it accepts writes.
    ///
    /// # Errors
    /// Returns an error if the standby rejects the statement.
    pub fn promote(&self) -> anyhow::Result<()> {
        let promoted = self.sql("postgres", "select pg_promote()")?;
        ensure!(promoted == "t", "the standby was not promoted; its log:\n{}", self.log()?);
        Ok(())
    }

    /// Copies the data of the database at the URL `from` to the database at the URL `to`, with `pg_dump` and
    /// `pg_restore`.
    ///
    /// # Errors
    /// Returns an error if one of the programs fails.
    pub fn dump_and_restore(&self, from: &str, to: &str) -> anyhow::Result<()> {
        self.programs.dump_and_restore(from, to)
    }

    /// Returns the URL of a database, with the name and the password of the superuser.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder with all files of the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the PEM file with the certificate of the authority that signed the server's certificate. The
    /// file exists only with [`Options::tls`].
    #[must_use]
    pub fn root_certificate(&self) -> PathBuf {
        self.folder.join("root.crt")
    }

    /// Creates an empty database and returns its URL.
    ///
    /// # Errors
    /// Returns an error if the server cannot create the database.
    pub fn create_database(&self) -> anyhow::Result<String> {
        self.copy_database("template1")
    }

    /// Creates a database as a copy of `template` and returns its URL. The caller ensures that no session is connected
    /// to `template`.
    ///
    /// # Errors
    /// Returns an error if the server cannot create the database.
    pub fn copy_database(&self, template: &str) -> anyhow::Result<String> {
        let name = format!("test_{:016x}", getrandom::u64().context("the operating system returned no random number")?);
        self.sql("postgres", &format!("create database {name} template {template}"))?;
        Ok(self.url(&name))
    }

    /// Runs statements with `psql` and returns the output of `psql`: one line for each row, with `|` between fields.
    /// Each call opens a new connection.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached or rejects a statement.
    pub fn sql(&self, database: &str, statements: &str) -> anyhow::Result<String> {
        self.programs.psql(self.port, database, PASSWORD, statements)
    }

    /// Returns the content of the server's log.
    ///
    /// # Errors
    /// Returns an error if the log file cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.folder.join("server.log"))?).into_owned())
    }

    /// Stops the server gracefully and ends its sessions (PostgreSQL's mode "fast"). [`Postgres::restart`] starts the
    /// server again. Does nothing if the server is stopped.
    ///
    /// # Errors
    /// Returns an error if this method cannot send a signal to the server.
    pub fn stop(&self) -> anyhow::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = server.take() {
            // This method resumes the server first, because a paused process handles no signal.
            signal_all(&child, Signal::CONT)?;
            rustix::process::kill_process(pid_of(&child), Signal::INT).context("cannot end PostgreSQL")?;
            child.wait()?;
        }
        Ok(())
    }

    /// Kills all processes of the server with SIGKILL. Does nothing if the server is stopped.
    ///
    /// # Errors
    /// Returns an error if this method cannot send a signal to the server, or if the processes do not end.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = server.take() {
            // This method pauses the postmaster first, so that the postmaster starts no process while this method lists
            // its children.
            rustix::process::kill_process(pid_of(&child), Signal::STOP)?;
            let children = children_of(&child);
            signal_all(&child, Signal::KILL)?;
            child.wait()?;
            // A new server cannot start while a process of the killed server still uses the shared memory. Therefore
            // this method waits until all processes have ended.
            let start = Instant::now();
            while children.iter().any(|child| is_running(*child)) {
                ensure!(
                    start.elapsed() < START_MAX,
                    "processes of PostgreSQL are still running {START_MAX:?} after SIGKILL"
                );
                std::thread::sleep(PERIOD);
            }
        }
        Ok(())
    }

    /// Pauses all processes of the server. Connections stay open, and the server does not respond.
    ///
    /// # Errors
    /// Returns an error if the server is not running.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes the server after [`Postgres::pause`].
    ///
    /// # Errors
    /// Returns an error if the server is not running.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        signal_all(server.as_ref().context("PostgreSQL is stopped")?, signal)
    }

    /// Starts the server with the same data and port. Stops the server first if it is running. Returns when the server
    /// responds to a query.
    ///
    /// # Errors
    /// Returns an error if the server does not start. The error contains the server's log.
    pub fn restart(&self) -> anyhow::Result<()> {
        self.stop()?;
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let log = File::options().create(true).append(true).open(self.folder.join("server.log"))?;
        let disk = self.folder.join("disk");
        let mut command = match self.disk_bytes {
            Some(bytes) => self.programs.command_on_disk("postgres", &disk, bytes)?,
            None => self.programs.command("postgres"),
        };
        command.arg("-D").arg(data_of(&self.folder));
        for (name, value) in self.default_settings().iter().chain(&self.settings) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().context("cannot start postgres")?;
        let start = Instant::now();
        while let Err(error) = self.sql("postgres", "select 1") {
            let has_ended = child.try_wait()?.is_some();
            if has_ended || start.elapsed() > START_MAX {
                if !has_ended {
                    signal_all(&child, Signal::KILL)?;
                    child.wait()?;
                }
                bail!("PostgreSQL did not start: {error:#}; its log:\n{}", self.log()?);
            }
            std::thread::sleep(PERIOD);
        }
        *server = Some(child);
        Ok(())
    }

    fn default_settings(&self) -> [(String, String); 7] {
        [
            ("listen_addresses", "127.0.0.1"),
            ("port", &self.port.to_string()),
            ("unix_socket_directories", ""),
            ("max_connections", "200"),
            ("shared_buffers", "128MB"),
            ("fsync", "on"),
            ("synchronous_commit", "on"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let child = self.server.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.guard.stop();
        if let Some(mut child) = child {
            // This wait is short, because the guard has already waited for the end of the server or killed the server.
            drop(child.wait());
        }
    }
}

/// Guard script that stops the server. It kills the server if the server does not stop in time.
const GUARD: &str = r#"
is_running() { [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$1/data" ] && ! grep -q '^State:.*Z' "/proc/$pid/status"; }
pid=$(head -n 1 "$1/data/postmaster.pid")
if is_running "$1"; then kill -QUIT "$pid"; kill -CONT "$pid" $(cat "/proc/$pid/task/$pid/children"); fi
for _ in $(seq 500); do is_running "$1" || break; sleep 0.02; done
if is_running "$1"; then kill -KILL "$pid"; fi
"#;

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Sends a signal to the postmaster and its children. If the signal is SIGSTOP, waits until all these processes have
/// stopped.
fn signal_all(postmaster: &Child, signal: Signal) -> anyhow::Result<()> {
    // The postmaster receives the signal first, because a stopped postmaster starts no further child.
    rustix::process::kill_process(pid_of(postmaster), signal).context("cannot signal PostgreSQL")?;
    wait_if_stopping(pid_of(postmaster), signal)?;
    for child in children_of(postmaster) {
        // This call fails if the child ended after this function read the list of children. This failure is harmless.
        let _ended = rustix::process::kill_process(child, signal);
        wait_if_stopping(child, signal)?;
    }
    Ok(())
}

fn children_of(postmaster: &Child) -> Vec<Pid> {
    let pid = postmaster.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}
