//! `cargo xtask test`: every stage runs, whatever became of the others, so that one run tells all that is wrong.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::stage::{self, CARGO, Counts, run_check, run_tests};
use crate::{needs, schemathesis, tidy};

type Stage = fn() -> anyhow::Result<Counts>;

/// # Errors
/// If something that the tests need is missing.
#[expect(clippy::disallowed_methods, reason = "the time that the stages took is for the person who waits")]
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    needs::provide()?;
    let mut total = Counts::default();
    let mut failed = Vec::new();
    let stages: [(&str, Stage); 7] = [
        ("format", format),
        ("tidy", tidied),
        ("clippy", clippy),
        ("tests", tests),
        ("receiver-python", receiver_python),
        ("schemathesis", schemathesis::run),
        ("containerfile", containerfile),
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

/// # Errors
/// If it cannot be run.
pub(crate) fn schemathesis_alone() -> anyhow::Result<ExitCode> {
    let counts = schemathesis::run()?;
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

fn clippy() -> anyhow::Result<Counts> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"];
    run_check(Command::new(CARGO).args(arguments))
}

/// All of Rust's, the black box (`crates/reveille/tests`) among them.
fn tests() -> anyhow::Result<Counts> {
    let mut command = Command::new(CARGO);
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    // Properties draw the same cases on every run, so that only a change can turn it red; `fuzz` looks for new ones.
    command.env("PROPTEST_RNG_SEED", "1");
    // Some tests panic on purpose, thousands of times; where is told without the whole stack.
    run_tests(command.env("RUST_BACKTRACE", "0"))
}

/// The receiver in Python has tests of its own, in an environment of its own.
fn receiver_python() -> anyhow::Result<Counts> {
    let folder = Path::new("tools/receiver-python");
    let requirements = stage::root().join(folder).join("requirements.txt");
    let programs = test_servers::python::environment("receiver-python", &requirements)?;
    // unittest tells its count on stderr.
    let script =
        format!("exec {}/python -m unittest discover --start-directory {} 2>&1", programs.display(), folder.display());
    run_tests(Command::new("sh").args(["-c", &script]))
}

/// The container's file is looked over; it is not built.
fn containerfile() -> anyhow::Result<Counts> {
    let programs = test_servers::python::environment("deploy", &stage::root().join("deploy/requirements.txt"))?;
    run_check(Command::new(programs.join("hadolint")).arg("deploy/Containerfile"))
}
