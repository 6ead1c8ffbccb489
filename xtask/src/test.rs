//! `cargo xtask test`: runs every stage, even after a failed one, so that one run reports all failures.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::stage::{self, CARGO, Counts, run_check};
use crate::suites::{self, Suite};
use crate::{needs, packages, tidy};

type Stage = fn() -> anyhow::Result<Counts>;

/// # Errors
/// Returns an error if a program that the tests require is missing.
#[expect(clippy::disallowed_methods, reason = "the output reports the duration of the stages")]
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    needs::provide(&needs::TESTS)?;
    let mut total = Counts::default();
    let mut failed = Vec::new();
    let stages: [(&str, Stage); 5] = [
        ("format", format),
        ("tidy", tidied),
        ("lints and tests", tests),
        ("containerfile", containerfile),
        ("packages", packages::check),
    ];
    for (name, stage) in stages {
        let counts = stage().unwrap_or_else(|error| {
            eprintln!("{name}: {error:#}");
            Counts { passed: 0, failed: 1 }
        });
        total.add(counts);
        if counts.failed > 0 {
            failed.push(name);
        }
        eprintln!("== {name}: {} passed, {} failed, at {} s", counts.passed, counts.failed, began.elapsed().as_secs());
    }
    if !failed.is_empty() {
        eprintln!("\nfailed: {}", failed.join(", "));
    }
    writeln!(std::io::stdout(), "\n{} passed, {} failed", total.passed, total.failed)?;
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reports the counts of a suite that runs as a separate process, in the form that [`Counts::of_text`] parses.
///
/// # Errors
/// Returns an error if the suite did not run to its end, or if the process cannot write the counts.
pub(crate) fn alone(counts: anyhow::Result<Counts>) -> anyhow::Result<ExitCode> {
    let counts = counts?;
    writeln!(std::io::stdout(), "test result: {} passed; {} failed", counts.passed, counts.failed)?;
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn format() -> anyhow::Result<Counts> {
    run_check(Command::new(CARGO).args(["fmt", "--all", "--check"]))
}

fn tidied() -> anyhow::Result<Counts> {
    eprintln!("\n== tidy");
    let findings = tidy::findings(&stage::root())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    let failed = u64::from(!findings.is_empty());
    Ok(Counts { passed: 1 - failed, failed })
}

/// Builds and lints the workspace. Then concurrently runs the test binaries and doc tests of the workspace, the tests
/// of the Python receiver, Schemathesis, and the tests with generated clients.
fn tests() -> anyhow::Result<Counts> {
    let suites::Build { mut suites, lints } = suites::build()?;
    eprintln!("== lints: {} passed, {} failed", lints.passed, lints.failed);
    // Schemathesis takes long and uses few resources, so it starts first. It tests the server binary that the build
    // above created. A build of only the server's package would have other features and would compile dozens of crates
    // again.
    let mut schemathesis = Command::new(std::env::current_exe()?);
    schemathesis.args(["schemathesis", "--binary"]).arg(stage::debug_binary()?);
    suites.insert(0, Suite { name: "schemathesis".to_owned(), command: schemathesis });
    let mut generators = Command::new(std::env::current_exe()?);
    generators.args(["generators", "--binary"]).arg(stage::debug_binary()?);
    suites.insert(1, Suite { name: "generators".to_owned(), command: generators });
    suites.push(receiver_python()?);
    let mut documentation = Command::new(CARGO);
    documentation.args(["test", "--workspace", "--all-features", "--doc"]).current_dir(stage::root());
    documentation.envs(suites::BUILD);
    suites.push(Suite { name: "doc tests".to_owned(), command: documentation });
    for suite in &mut suites {
        // Property tests draw the same cases on every run, so that only a change of the code can fail them.
        // `cargo xtask fuzz` draws new cases.
        suite.command.env("PROPTEST_RNG_SEED", "1");
        // Some tests panic on purpose, thousands of times. With `RUST_BACKTRACE=0`, each panic prints its message and
        // its location, but no backtrace.
        suite.command.env("RUST_BACKTRACE", "0");
    }
    let mut counts = suites::run(suites);
    counts.add(lints);
    Ok(counts)
}

/// Returns the suite of the Python receiver, which runs in its own environment.
fn receiver_python() -> anyhow::Result<Suite> {
    let folder = Path::new("tools/receiver-python");
    let requirements = stage::root().join(folder).join("requirements.txt");
    let programs = test_servers::python::environment("receiver-python", &requirements)?;
    let mut command = Command::new(stage::root().join(programs).join("python"));
    command.args(["-m", "unittest", "discover", "--start-directory"]).arg(folder).current_dir(stage::root());
    Ok(Suite { name: "receiver-python".to_owned(), command })
}

/// Checks the Containerfile with hadolint; this check does not build the image.
fn containerfile() -> anyhow::Result<Counts> {
    let programs = test_servers::python::environment("deploy", &stage::root().join("deploy/requirements.txt"))?;
    run_check(Command::new(programs.join("hadolint")).arg("deploy/Containerfile"))
}
