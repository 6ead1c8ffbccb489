//! Programs of PostgreSQL: their folder, and the user that runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

const FOLDER: &str = "/usr/lib/postgresql";
/// User that runs the server if the tests run as root. PostgreSQL does not run as root, and its package creates this
/// user.
const USER: &str = "postgres";

#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
    is_root: bool,
}

impl Programs {
    /// Finds the programs of the newest PostgreSQL version in the folder in which Debian installs PostgreSQL. If that
    /// folder contains no server, finds the programs in the folder that `pg_config` prints.
    pub(super) fn find() -> anyhow::Result<Programs> {
        let folder = newest_in(Path::new(FOLDER)).or_else(folder_from_pg_config);
        let folder = folder.context(
            "the PostgreSQL server is not installed; install it, on Debian with `sudo apt-get install postgresql`",
        )?;
        Ok(Programs { folder, is_root: rustix::process::geteuid().is_root() })
    }

    /// Returns a command that runs a program as a user that PostgreSQL accepts. `program` is the name of a program of
    /// PostgreSQL, or the absolute path of another program.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = self.folder.join(program);
        let mut command = if self.is_root {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--init-groups"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir("/");
        command
    }

    /// Returns the same command as [`Programs::command`], but the command first mounts a separate disk of `bytes` bytes
    /// at `disk`. The disk is in a mount namespace that ends with the process.
    pub(super) fn command_on_disk(&self, name: &str, disk: &Path, bytes: u64) -> anyhow::Result<Command> {
        std::fs::create_dir_all(disk)?;
        let mut command = Command::new("unshare");
        let owner = if self.is_root {
            USER
        } else {
            command.args(["--user", "--map-root-user"]);
            "root"
        };
        let script =
            format!(r#"mount -t tmpfs -o size={bytes},mode=0700 tmpfs "$0" && chown {owner} "$0" && exec "$@""#);
        command.args(["--mount", "sh", "-c", &script]).arg(disk).current_dir("/");
        if !self.is_root {
            // The user that mounts the disk is root in the first user namespace. PostgreSQL must not run as root, so a
            // second user namespace maps the user to another id.
            command.args(["unshare", "--user", "--map-user=1000"]);
        }
        let program = self.command(name);
        command.arg(program.get_program()).args(program.get_args());
        Ok(command)
    }

    /// Makes the server's user the owner of the folder, and removes all access of other users.
    pub(super) fn set_owner(&self, folder: &Path) -> anyhow::Result<()> {
        if self.is_root {
            run(Command::new("chown").args(["-R", USER]).arg(folder))?;
        }
        run(Command::new("chmod").args(["-R", "go="]).arg(folder)).map(drop)
    }

    /// Creates the data of a new PostgreSQL server in `folder/data`.
    pub(super) fn create_cluster(&self, folder: &Path, password: &str) -> anyhow::Result<()> {
        let password_file = folder.join("password");
        std::fs::write(&password_file, password)?;
        self.set_owner(folder)?;
        let mut command = self.command("initdb");
        command.args(["--no-sync", "--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]);
        command.arg("--pwfile").arg(&password_file).arg("-D").arg(folder.join("data"));
        run(&mut command)?;
        std::fs::remove_file(password_file)?;
        Ok(())
    }

    /// Creates the data of a standby in `folder/data`, as a copy of the data of the server on `port`.
    pub(super) fn create_standby(&self, folder: &Path, port: u16, password: &str) -> anyhow::Result<()> {
        self.set_owner(folder)?;
        let mut command = self.command("pg_basebackup");
        command.args(["--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--username=postgres"]);
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-D"]).arg(folder.join("data"));
        command.env("PGPASSWORD", password);
        run(&mut command).map(drop)
    }

    /// Copies the data of the database at the URL `from` to the database at the URL `to`.
    pub(super) fn dump_and_restore(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let dump = tempfile::NamedTempFile::new()?;
        let program = |name: &str| Command::new(self.folder.join(name));
        run(program("pg_dump").args(["--format=custom", "--dbname", from, "--file"]).arg(dump.path()))?;
        run(program("pg_restore").args(["--dbname", to]).arg(dump.path())).map(drop)
    }

    pub(super) fn psql(&self, port: u16, database: &str, password: &str, statements: &str) -> anyhow::Result<String> {
        let mut command = Command::new(self.folder.join("psql"));
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]);
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-d", database, "-c", statements]);
        command.env("PGPASSWORD", password).env("PGCONNECT_TIMEOUT", "10");
        run(&mut command)
    }
}

fn newest_in(folder: &Path) -> Option<PathBuf> {
    let version = |name: &str| name.parse::<u32>().ok();
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let versions = entries.filter_map(|entry| version(entry.file_name().to_str()?).map(|found| (found, entry.path())));
    let with_server = versions.map(|(version, path)| (version, path.join("bin"))).filter(|(_, bin)| has_server(bin));
    with_server.max().map(|(_, bin)| bin)
}

fn folder_from_pg_config() -> Option<PathBuf> {
    let bin_folder = run(Command::new("pg_config").arg("--bindir")).ok()?;
    Some(PathBuf::from(bin_folder.trim())).filter(|bin| has_server(bin))
}

fn has_server(bin: &Path) -> bool {
    bin.join("postgres").exists()
}

/// Runs a command and returns its standard output.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed ({}): {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
