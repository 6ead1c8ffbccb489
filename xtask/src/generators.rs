//! Test of the OpenAPI documents with client generators. Each generator generates a client from a document of a real
//! server, and a short program uses the client for the main operations of the API.
//!
//! The programs are also examples for users: `tools/generators/README.md` shows how to run them by hand.
//!
//! docs/decisions/0077-use-generated-clients-in-the-tests.md gives the reasons for the choice of the generators.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use test_servers::http::{self, Connection};
use test_servers::{go, java, node, python};

use crate::schemathesis::Server;
use crate::stage::{self, Counts};

const FOLDER: &str = "tools/generators";
/// Time limit for one read of a document.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Name of the generated package in Python.
const PACKAGE: &str = "reveille_client";

type Test = fn(&Session) -> anyhow::Result<()>;

/// Generators. Each entry has the name of the generator's folder and the function that tests the generator.
const TESTS: [(&str, Test); 4] = [
    ("openapi-python-client", openapi_python_client),
    ("openapi-generator", openapi_generator),
    ("oapi-codegen", oapi_codegen),
    ("openapi-typescript", openapi_typescript),
];

/// Tests `binary`, or a debug build of the sources if the caller names no binary.
///
/// # Errors
/// Returns an error if the creation of the Python environment fails, or if the server does not start.
pub(crate) fn run(binary: Option<PathBuf>) -> anyhow::Result<Counts> {
    let sources = stage::root().join(FOLDER);
    let programs = python::environment("generators", &sources.join("requirements.txt"))?;
    let binary = stage::server_binary(binary)?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&binary, &data, &[])?;
    let key = fs::read_to_string(data.join("admin.key"))?.trim().to_owned();
    let session = Session { sources, programs, work: folder.path().to_owned(), url: server.url.clone(), key };
    for document in ["openapi.json", "openapi-3.0.json"] {
        session.fetch(document)?;
    }
    let mut counts = Counts::default();
    for (name, test) in TESTS {
        eprintln!("\n== {name}");
        match test(&session) {
            Ok(()) => counts.passed += 1,
            Err(error) => {
                eprintln!("{name}: {error:#}");
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}

fn openapi_python_client(session: &Session) -> anyhow::Result<()> {
    let output = session.work.join("openapi-python-client");
    fs::create_dir(&output)?;
    let mut generator = Command::new(session.programs.join("openapi-python-client"));
    generator.args(["generate", "--meta", "none", "--path"]).arg(session.document("openapi.json"));
    generator.arg("--output-path").arg(output.join(PACKAGE));
    let report = finish(generator)?;
    ensure!(
        !report.contains("will not be generated"),
        "openapi-python-client generated no code for an operation; its report:\n{report}"
    );
    session.run_python("openapi-python-client", &output)
}

fn openapi_generator(session: &Session) -> anyhow::Result<()> {
    let jars = java::jars("openapi-generator", &session.sources.join("openapi-generator/pom.xml"))?;
    let output = session.work.join("openapi-generator");
    let mut generator = java::command(&[&jars]);
    generator.args(["org.openapitools.codegen.OpenAPIGenerator", "generate", "-g", "python", "-i"]);
    generator.arg(session.document("openapi.json")).arg("-o").arg(&output).args(["--package-name", PACKAGE]);
    finish(generator)?;
    session.run_python("openapi-generator", &output)
}

fn oapi_codegen(session: &Session) -> anyhow::Result<()> {
    let output = session.copy("oapi-codegen")?;
    fs::create_dir(output.join("reveille"))?;
    let go = |arguments: &[&str]| -> anyhow::Result<Command> {
        let mut go = go::command(&session.programs)?;
        go.args(arguments).current_dir(&output);
        Ok(go)
    };
    let mut generator = go(&["tool", "oapi-codegen", "-generate", "types,client,skip-prune", "-package", "reveille"])?;
    generator.args(["-o", "reveille/reveille.go"]).arg(session.document("openapi-3.0.json"));
    finish(generator)?;
    session.run_client(go(&["run", "."])?)
}

fn openapi_typescript(session: &Session) -> anyhow::Result<()> {
    let output = session.copy("openapi-typescript")?;
    let modules = node::modules("openapi-typescript", &output)?;
    std::os::unix::fs::symlink(&modules, output.join("node_modules"))?;
    let program = |name: &str| {
        let mut command = Command::new(modules.join(".bin").join(name));
        command.current_dir(&output);
        command
    };
    let mut generator = program("openapi-typescript");
    generator.arg(session.document("openapi.json")).args(["-o", "reveille.d.ts"]);
    finish(generator)?;
    finish(program("tsc"))?;
    let mut client = Command::new("node");
    client.arg("client.js").current_dir(&output);
    session.run_client(client)
}

/// A running server, and the folders and programs for the generators.
struct Session {
    /// Folder that contains one folder of source files for each generator.
    sources: PathBuf,
    /// Folder with the programs of the Python environment.
    programs: PathBuf,
    /// Temporary folder for the documents and the clients.
    work: PathBuf,
    url: String,
    key: String,
}

impl Session {
    fn document(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Fetches a document from the server into the temporary folder.
    fn fetch(&self, name: &str) -> anyhow::Result<()> {
        let address = self.url.strip_prefix("http://").context("the server's URL does not start with http://")?;
        let mut connection = Connection::new(TcpStream::connect(address)?)?.with_timeout(TIMEOUT)?;
        let response = connection.exchange(&http::request("GET", &format!("/{name}"), "", b""))?;
        ensure!(
            response.status() == Some(200),
            "the server did not return the document {name}; status line: {}",
            response.first_line
        );
        Ok(fs::write(self.document(name), response.body)?)
    }

    /// Copies the files of a generator into the temporary folder, and returns the new folder.
    fn copy(&self, name: &str) -> anyhow::Result<PathBuf> {
        let output = self.work.join(name);
        fs::create_dir(&output)?;
        for entry in fs::read_dir(self.sources.join(name))? {
            let entry = entry?;
            // This function copies only files, because an earlier run of the generator by hand may have created folders
            // beside the files.
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), output.join(entry.file_name()))?;
            }
        }
        Ok(output)
    }

    fn run_python(&self, name: &str, packages: &Path) -> anyhow::Result<()> {
        let mut client = Command::new(self.programs.join("python"));
        client.arg(self.sources.join(name).join("client.py")).env("PYTHONPATH", packages);
        self.run_client(client)
    }

    /// Runs a program that uses a generated client. The program prints a line for each step.
    fn run_client(&self, mut client: Command) -> anyhow::Result<()> {
        client.env("REVEILLE_URL", &self.url).env("REVEILLE_KEY", &self.key).stdin(Stdio::null());
        let status = client.status().with_context(|| format!("cannot start {:?}", client.get_program()))?;
        ensure!(status.success(), "the client failed: {status}");
        Ok(())
    }
}

/// Runs a generator or a compiler, and returns its output. If the command fails, the error contains the output.
fn finish(mut command: Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{:?} failed:\n{text}", command.get_program());
    Ok(text)
}
