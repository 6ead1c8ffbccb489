//! PostgreSQL: the newest version that is installed.

mod programs;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

use programs::Programs;

use crate::guard::Guard;
use crate::port::free_port;

/// The super-user's password. Its characters try whether a URL's are decoded.
pub const PASSWORD: &str = "p@ss:word/1";
const PASSWORD_IN_URL: &str = "p%40ss%3Aword%2F1";
const START_MAX: Duration = Duration::from_secs(60);
/// Of a look whether something has happened.
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Offers TLS, with a certificate of `localhost` (not of 127.0.0.1) that [`Postgres::root_certificate`] has signed.
    pub tls: bool,
    /// Where its folder is made; the system's temporary folder if not given.
    pub parent: Option<PathBuf>,
    /// Gives it a disk of so many bytes, at `disk` in its folder, for a tablespace that gets full. Only its own processes see
    /// it, and a restart empties it.
    pub disk_bytes: Option<u64>,
    /// Further settings, as in `postgresql.conf`.
    pub settings: Vec<(String, String)>,
}

/// A server of this process's own. Dropping it stops it and deletes its folder.
#[derive(Debug)]
pub struct Postgres {
    programs: Programs,
    folder: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    disk_bytes: Option<u64>,
    /// The postmaster; `None` while it is stopped.
    server: Mutex<Option<Child>>,
    guard: Guard,
}

/// The server of this process, started by whoever asks first. It ends soon after the process.
///
/// # Panics
/// If it cannot be started: no test that asks for it could go on.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| Postgres::start().expect("PostgreSQL is installed and starts"))
}

impl Postgres {
    /// # Errors
    /// If PostgreSQL is not installed, or does not start; its log is then part of the error.
    pub fn start() -> anyhow::Result<Postgres> {
        Postgres::start_with(Options::default())
    }

    /// # Errors
    /// As [`Postgres::start`].
    pub fn start_with(options: Options) -> anyhow::Result<Postgres> {
        let programs = Programs::find()?;
        let parent = options.parent.unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("reveille-postgres-").tempdir_in(&parent);
        let folder = made.with_context(|| format!("cannot make a folder in {}", parent.display()))?.keep();
        let guard = Guard::start(&folder, GUARD)?;
        programs.make_cluster(&folder, PASSWORD)?;
        let mut settings = options.settings;
        if options.tls {
            crate::certificate::write(&folder)?;
            programs.give(&folder)?;
            let path = |name: &str| folder.join(name).display().to_string();
            settings.push(("ssl".to_owned(), "on".to_owned()));
            settings.push(("ssl_cert_file".to_owned(), path("server.crt")));
            settings.push(("ssl_key_file".to_owned(), path("server.key")));
        }
        let disk_bytes = options.disk_bytes;
        let server = Mutex::new(None);
        let mut postgres = Postgres { programs, folder, port: 0, settings, disk_bytes, server, guard };
        // The port may be taken by somebody else between the look and the start.
        let mut attempts_left = 5;
        loop {
            postgres.port = free_port()?;
            attempts_left -= 1;
            match postgres.restart() {
                Ok(()) => return Ok(postgres),
                Err(error) if attempts_left == 0 => return Err(error),
                Err(error) if !format!("{error:#}").contains("Address already in use") => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// The super-user's URL of this database, password included.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All of its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Who signed the certificate of a server with [`Options::tls`]; a file in PEM.
    #[must_use]
    pub fn root_certificate(&self) -> PathBuf {
        self.folder.join("root.crt")
    }

    /// The URL of a new, empty database.
    ///
    /// # Errors
    /// If the server does not make it.
    pub fn create_database(&self) -> anyhow::Result<String> {
        self.copy_database("template1")
    }

    /// The URL of a new database that is a copy of `template`, to which nobody may be connected.
    ///
    /// # Errors
    /// If the server does not make it.
    pub fn copy_database(&self, template: &str) -> anyhow::Result<String> {
        let name = format!("test_{:016x}", getrandom::u64().context("no randomness")?);
        self.sql("postgres", &format!("create database {name} template {template}"))?;
        Ok(self.url(&name))
    }

    /// What `psql` says to these statements: rows as lines, fields with `|` between them. Each on a connection of its own.
    ///
    /// # Errors
    /// If the server is away, or refuses one.
    pub fn sql(&self, database: &str, statements: &str) -> anyhow::Result<String> {
        self.programs.psql(self.port, database, PASSWORD, statements)
    }

    /// What the server has logged so far.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.folder.join("server.log"))?).into_owned())
    }

    /// Ends it in order, sessions broken off ("fast"); [`Postgres::restart`] starts it again. Harmless if it is stopped.
    ///
    /// # Errors
    /// If it cannot be told to.
    pub fn stop(&self) -> anyhow::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = server.take() {
            // A paused one hears nothing.
            signal_all(&child, Signal::CONT)?;
            rustix::process::kill_process(pid_of(&child), Signal::INT).context("cannot end PostgreSQL")?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends all of its processes by SIGKILL. Harmless if it is stopped.
    ///
    /// # Errors
    /// If it cannot.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = server.take() {
            // Stopped, it can start no other while these are listed.
            rustix::process::kill_process(pid_of(&child), Signal::STOP)?;
            let children = children_of(&child);
            signal_all(&child, Signal::KILL)?;
            child.wait()?;
            // They hold the shared memory until they are gone, and a new server refuses to start beside it.
            let start = Instant::now();
            while children.iter().any(|child| is_running(*child)) {
                ensure!(start.elapsed() < START_MAX, "PostgreSQL's processes outlive SIGKILL");
                std::thread::sleep(PERIOD);
            }
        }
        Ok(())
    }

    /// Stops all of its processes where they are: connections stay open, and nothing answers.
    ///
    /// # Errors
    /// If it is not running.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`Postgres::pause`].
    ///
    /// # Errors
    /// If it is not running.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        signal_all(server.as_ref().context("PostgreSQL is stopped")?, signal)
    }

    /// Starts it, on the same data and port, stopping it first if it runs; answers once it does.
    ///
    /// # Errors
    /// If it does not start; its log is then part of the error.
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
        for (name, value) in self.own_settings().iter().chain(&self.settings) {
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
                bail!("PostgreSQL does not start: {error:#}; its log:\n{}", self.log()?);
            }
            std::thread::sleep(PERIOD);
        }
        *server = Some(child);
        Ok(())
    }

    fn own_settings(&self) -> [(String, String); 7] {
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
        self.guard.end();
        if let Some(mut child) = child {
            // The guard has seen it end, or killed it.
            drop(child.wait());
        }
    }
}

/// Ends the server, in order if it can.
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

/// To the postmaster and its children.
fn signal_all(postmaster: &Child, signal: Signal) -> anyhow::Result<()> {
    for child in children_of(postmaster) {
        // One that has ended meanwhile needs none.
        let _ended = rustix::process::kill_process(child, signal);
    }
    rustix::process::kill_process(pid_of(postmaster), signal).context("cannot signal PostgreSQL")
}

fn children_of(postmaster: &Child) -> Vec<Pid> {
    let pid = postmaster.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

/// Not one that has ended and that nobody has waited for yet.
fn is_running(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    status.is_ok_and(|status| !status.lines().any(|line| line.starts_with("State:") && line.contains('Z')))
}
