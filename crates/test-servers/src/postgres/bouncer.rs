//! PgBouncer, a pooler between clients and a PostgreSQL server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use super::{PASSWORD, PASSWORD_IN_URL, PERIOD, Postgres, START_MAX};
use crate::guard::Guard;
use crate::port::free_port;

/// Folders that contain the program if the search path of the user does not.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/bin"];

/// PgBouncer that forwards each session of a client to one session of a server (its mode "session"). As many operators
/// configure it, it accepts the startup parameter `options` and does not forward it. A drop of this value stops the
/// pooler and deletes its folder.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    pooler: Child,
    guard: Guard,
}

impl PgBouncer {
    /// Starts a pooler in front of `server`.
    ///
    /// # Errors
    /// Returns an error if PgBouncer is not installed or does not start. If it does not start, the error contains its
    /// log.
    pub fn start(server: &Postgres) -> anyhow::Result<PgBouncer> {
        PgBouncer::start_with(server, "ignore_startup_parameters = options")
    }

    /// Starts a pooler in front of `server`. `settings` is further text for the section `pgbouncer` of its
    /// configuration.
    ///
    /// # Errors
    /// Returns the same errors as [`PgBouncer::start`].
    pub fn start_with(server: &Postgres, settings: &str) -> anyhow::Result<PgBouncer> {
        let program = program()?;
        let folder = tempfile::Builder::new().prefix("reveille-pgbouncer-").tempdir()?.keep();
        let guard = Guard::start(&folder, GUARD)?;
        // Another process may take the port between the check of the port and the start of the pooler. In this case,
        // this function tries another port.
        let mut attempts_left = 5;
        loop {
            let port = free_port()?;
            attempts_left -= 1;
            match spawn(&program, server, &folder, port, settings) {
                Ok(pooler) => return Ok(PgBouncer { port, pooler, guard }),
                Err(error) if attempts_left == 0 => return Err(error),
                Err(error) if !format!("{error:#}").contains("in use") => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Returns the URL of a database through the pooler.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // The kill fails if the pooler has already ended. This failure is harmless.
        drop(self.pooler.kill());
        drop(self.pooler.wait());
        self.guard.stop();
    }
}

/// Guard script that kills the pooler.
const GUARD: &str = r#"
pid=$(cat "$1/pgbouncer.pid")
if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$1" ]; then kill -KILL "$pid"; fi
"#;

/// Starts PgBouncer in `folder`, and returns when it forwards a query.
fn spawn(program: &Path, server: &Postgres, folder: &Path, port: u16, settings: &str) -> anyhow::Result<Child> {
    let text = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={} user=postgres password='{PASSWORD}'\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = session\n\
         pidfile = {}\n\
         {settings}\n",
        server.port(),
        folder.join("pgbouncer.pid").display()
    );
    let (file, log) = (folder.join("pgbouncer.ini"), folder.join("pgbouncer.log"));
    std::fs::write(&file, text)?;
    let output = File::create(&log)?;
    server.programs.set_owner(folder)?;
    let mut command = server.programs.command(program);
    command.arg(&file).current_dir(folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut pooler = command.spawn().context("cannot start pgbouncer")?;
    let start = Instant::now();
    while let Err(error) = server.programs.psql(port, "postgres", PASSWORD, "select 1") {
        if pooler.try_wait()?.is_some() || start.elapsed() > START_MAX {
            // The kill fails if the pooler has already ended. This failure is harmless.
            drop(pooler.kill());
            pooler.wait()?;
            bail!("PgBouncer did not start: {error:#}; its log:\n{}", std::fs::read_to_string(log)?);
        }
        std::thread::sleep(PERIOD);
    }
    Ok(pooler)
}

fn program() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.iter().map(|folder| Path::new(folder).to_owned()));
    let mut programs = folders.map(|folder| folder.join("pgbouncer"));
    programs
        .find(|program| program.exists())
        .context("PgBouncer is not installed; install it, on Debian with `sudo apt-get install pgbouncer`")
}
