//! Test of the API against its own OpenAPI document. Schemathesis runs in its own Python environment and tests a real
//! server in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::stage::{self, Counts};

const FOLDER: &str = "tools/schemathesis";
/// Maximum number of examples for each operation and kind of data. The test has no time limit. Therefore its requests
/// do not depend on the speed of the machine, and only a change of the code can fail the test.
const EXAMPLES_MAX: &str = "100";
const START: Duration = Duration::from_secs(30);

/// Runs of Schemathesis. Each entry has the role of the key, the paths that the role may use, and an excluded
/// operation. Without the exclusion of `revokeKey`, a run could revoke its own key, and could not continue without the
/// key.
const RUNS: [(&str, &str, &str); 3] = [
    ("writer", r"^/(v1/schedules|v1/runs|healthz|readyz|metrics)", "revokeKey"),
    ("admin", r"^/v1/(quotas|tenants/\{tenant\}/)", "revokeKey"),
    ("operator", r"^/v1/tenants", "getQuotas"),
];

/// Tests `binary`, or a debug build of the sources if the caller names no binary.
///
/// # Errors
/// Returns an error if the creation of the Python environment fails, or if the server does not start.
pub(crate) fn run(binary: Option<PathBuf>) -> anyhow::Result<Counts> {
    let programs =
        test_servers::python::environment("schemathesis", &stage::root().join(FOLDER).join("requirements.txt"))?;
    let binary = stage::server_binary(binary)?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&binary, &data, &[])?;
    let keys = [
        ("admin", std::fs::read_to_string(data.join("admin.key"))?),
        ("operator", std::fs::read_to_string(data.join("operator.key"))?),
        ("writer", create_key(&binary, &data)?),
    ];
    let mut counts = Counts::default();
    for (role, paths, without) in RUNS {
        let key = keys.iter().find(|(of, _)| *of == role).map_or("", |(_, key)| key.trim());
        counts.add(run_role(&programs, &server.url, key, paths, without)?);
    }
    Ok(counts)
}

/// Runs Schemathesis with one key.
fn run_role(programs: &Path, url: &str, key: &str, paths: &str, without: &str) -> anyhow::Result<Counts> {
    let mut command = Command::new(stage::root().join(programs).join("schemathesis"));
    command.env("REVEILLE_KEY", key).current_dir(stage::root().join(FOLDER));
    command.args(["--config-file", "schemathesis.toml", "run", &format!("{url}/openapi.json"), "--no-color"]);
    command.args(["--include-path-regex", paths, "--exclude-operation-id", without]);
    command.args(["--phases", "examples,coverage,fuzzing"]);
    command.args(["--max-examples", EXAMPLES_MAX, "--generation-deterministic"]);
    eprintln!("\n== schemathesis {paths}");
    let status = command.status().context("cannot start schemathesis")?;
    Ok(if status.success() { Counts { passed: 1, failed: 0 } } else { Counts { passed: 0, failed: 1 } })
}

fn create_key(binary: &Path, data: &Path) -> anyhow::Result<String> {
    #[derive(serde::Deserialize)]
    struct CreatedKey {
        secret: String,
    }
    let mut command = Command::new(binary);
    command.args(["key", "create", "--tenant", "default", "--role", "writer", "--json", "--data"]).arg(data);
    let output = command.output().context("cannot start the server's binary")?;
    ensure!(output.status.success(), "cannot create an API key: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(serde_json::from_slice::<CreatedKey>(&output.stdout)?.secret)
}

/// Server process. A drop of this value kills the process.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "a development command measures time with the clock of its machine")]
    pub(crate) fn start(binary: &Path, data: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(more);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start the server")?;
        let mut server = Server { process, url: String::new() };
        let until = Instant::now() + START;
        while Instant::now() < until {
            if let Ok(url) = std::fs::read_to_string(data.join("server.url")) {
                server.url = url.trim().to_owned();
                return Ok(server);
            }
            ensure!(server.process.try_wait()?.is_none(), "the server exited before it was ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        anyhow::bail!("the server is not ready {} s after its start", START.as_secs());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This function ignores errors, because the process may already have exited.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
