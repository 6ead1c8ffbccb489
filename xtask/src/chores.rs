//! The chores that are one command each.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::stage::{self, CARGO};
use crate::suites::{self, Suite};
use crate::tidy;

/// # Errors
/// If the checkout cannot be read.
pub(crate) fn tidy() -> anyhow::Result<ExitCode> {
    let findings = tidy::findings(&stage::root())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// # Errors
/// If the checkout cannot be read, or the index not written.
pub(crate) fn index() -> anyhow::Result<ExitCode> {
    let (path, text) = tidy::index(&stage::root())?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// If cargo cannot be started.
pub(crate) fn simulate(arguments: &[String]) -> anyhow::Result<ExitCode> {
    // Paxos groups have a simulator of their own, which builds and runs quickly.
    let one = arguments.iter().position(|word| word == "--scenario=paxos").map(|at| at..at + 1);
    let two = arguments.windows(2).position(|pair| pair == ["--scenario", "paxos"]).map(|at| at..at + 2);
    let mut arguments = arguments.to_vec();
    let package: &[&str] = match one.or(two) {
        Some(words) => {
            arguments.drain(words);
            &["paxos-simulator"]
        }
        None => &["simulator", "--features", "scenarios"],
    };
    let status = Command::new(CARGO)
        .current_dir(stage::root())
        .args(["run", "--quiet", "--release", "--package"])
        .args(package)
        .arg("--")
        .args(&arguments)
        .status()
        .context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `reveille bench election`, with an ensemble of three servers and with Curator.
///
/// # Errors
/// If one of these cannot be started.
pub(crate) fn election(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let peer = test_servers::mixed::curator_command()?;
    let ensemble = test_servers::zookeeper::Zookeeper::start(3)?;
    let status = Command::new(CARGO)
        .current_dir(stage::root())
        .args(["run", "--quiet", "--profile", "dist", "--package", "reveille", "--bin", "reveille"])
        .args(["--", "bench", "election"])
        .args(["--coordination", &format!("zookeeper://{}", ensemble.addresses())])
        .args(arguments)
        .arg("--")
        .args(peer)
        // That sessions come and go is no news here.
        .env("RUST_LOG", "error")
        .status()
        .context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A package, and what the names of its fuzz tests have in common. Most are property tests: each run of them draws new
/// cases. The journal's takes seeds from 0 to `REVEILLE_FUZZ_RUNS`, so each round goes further.
const FUZZED: [(&str, &str); 9] = [
    ("domain", "any_text"),
    ("domain", "what_is_found_good"),
    ("server", "as_the_wire_types_do"),
    ("paxos", "any_bytes_are"),
    ("journal", "no_bytes"),
    ("journal", "whatever_happened_to_its_files"),
    ("store-embedded", "cut_or_strange_bytes"),
    ("stored", "arbitrary_bytes_never_panic"),
    ("scheduler", "every_operation_decodes"),
];
const CASES: u32 = 5_000;

/// # Errors
/// If a test fails, or if a package has no test of that name.
#[expect(clippy::disallowed_methods, reason = "a chore ends by the clock of the machine it runs on")]
pub(crate) fn fuzz(minutes: u32) -> anyhow::Result<ExitCode> {
    let end = Instant::now() + Duration::from_secs(60 * u64::from(minutes));
    for round in 1_u32.. {
        for (package, filter) in FUZZED {
            let mut command = Command::new(CARGO);
            command
                .args(["test", "--quiet", "--release", "--package", package, "--", filter])
                .current_dir(stage::root());
            command.env("PROPTEST_CASES", CASES.to_string());
            command.env("REVEILLE_FUZZ_RUNS", round.saturating_mul(CASES).to_string());
            let (counts, _) = suites::run_one(Suite { name: format!("{package} {filter}"), command });
            ensure!(counts.passed > 0, "{package} has no fuzz test whose name has `{filter}` in it");
            ensure!(counts.failed == 0, "{package}: a fuzz test failed; what it printed replays it");
            if Instant::now() >= end {
                eprintln!("{round} rounds of {CASES} cases for each test, nothing found");
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    unreachable!("a round follows every round");
}
