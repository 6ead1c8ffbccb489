//! Commands of `cargo xtask` that consist of one step each.

use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::stage::{self, CARGO};
use crate::suites::{self, Suite};
use crate::tidy;

/// # Errors
/// Returns an error if git or cargo cannot list the checkout's contents.
pub(crate) fn tidy() -> anyhow::Result<ExitCode> {
    let findings = tidy::findings(&stage::root())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// # Errors
/// Returns an error if the checkout cannot be read, or a document cannot be written.
pub(crate) fn index() -> anyhow::Result<ExitCode> {
    for (path, text) in tidy::generated(&stage::root())? {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// Returns an error if cargo does not start.
pub(crate) fn simulate(arguments: &[String]) -> anyhow::Result<ExitCode> {
    // The scenario `paxos` has a separate simulator, which builds and runs quickly.
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

/// Runs `reveille bench election` with an ensemble of three ZooKeeper servers, and with Curator as the peer.
///
/// # Errors
/// Returns an error if the ensemble, the peer or the benchmark does not start.
pub(crate) fn election(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let peer = test_servers::mixed::curator_command()?;
    let ensemble = test_servers::zookeeper::Zookeeper::start(3)?;
    let coordination = format!("zookeeper://{}", ensemble.addresses());
    bench(&["election", "--coordination", &coordination], arguments, &peer)
}

/// Runs `reveille bench consume` with one Kafka broker, and with the contestants in Java.
///
/// # Errors
/// Returns an error if the broker or the benchmark does not start.
pub(crate) fn consume(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let java = test_servers::kafka::bench_command()?;
    let kafka = test_servers::kafka::Kafka::start(1)?;
    bench(&["consume", "--brokers", &kafka.addresses()], arguments, &java)
}

/// Starts a Kafka broker and a ZooKeeper server, and waits for a line of input.
///
/// # Errors
/// Returns an error if one of the servers does not start.
pub(crate) fn engines() -> anyhow::Result<ExitCode> {
    let kafka = test_servers::kafka::Kafka::start(1)?;
    let zookeeper = test_servers::zookeeper::Zookeeper::start(1)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "kafka://{}", kafka.addresses())?;
    writeln!(output, "zookeeper://{}", zookeeper.addresses())?;
    writeln!(output, "Press Enter to end both servers and to delete their data.")?;
    std::io::stdin().read_line(&mut String::new()).context("cannot read the input")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a benchmark with the command of a peer.
fn bench(words: &[&str], arguments: &[String], peer: &[String]) -> anyhow::Result<ExitCode> {
    let mut command = bench_command();
    let status = command.args(words).args(arguments).arg("--").args(peer).status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the command that builds the profile `dist` and runs a benchmark. The caller adds arguments.
pub(crate) fn bench_command() -> Command {
    let mut command = Command::new(CARGO);
    command
        .current_dir(stage::root())
        .args(["run", "--quiet", "--profile", "dist", "--package", "reveille", "--bin", "reveille"])
        .args(["--", "bench"])
        // The log level `error` hides the log lines about the start and the end of sessions.
        .env("RUST_LOG", "error");
    command
}

/// Each entry names a package and a part that the names of its fuzz tests contain. Most fuzz tests are property tests,
/// which generate new cases on each run. The journal's test uses the seeds from 0 to `REVEILLE_FUZZ_RUNS`. The function
/// `fuzz` increases this variable in each round, so that later rounds cover more seeds.
const FUZZED: [(&str, &str); 9] = [
    ("domain", "any_text"),
    ("domain", "accepts_only_usable"),
    ("server", "parser_and_serde_agree"),
    ("paxos", "bytes_that_the_decoder_accepts"),
    ("journal", "parser_never_panics"),
    ("journal", "corrupted_files_never"),
    ("store-embedded", "arbitrary_or_truncated_entry"),
    ("stored", "decoding_arbitrary_bytes_never_panics"),
    ("scheduler", "every_operation_decodes"),
];
const CASES: u32 = 5_000;

/// # Errors
/// Returns an error if a test fails, or if a package has no fuzz test.
#[expect(clippy::disallowed_methods, reason = "a development command measures time with the clock of its machine")]
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
            ensure!(
                counts.passed > 0,
                "{package} has no fuzz test with `{filter}` in its name; update FUZZED in xtask/src/chores.rs"
            );
            ensure!(counts.failed == 0, "a fuzz test of {package} failed; its output shows how to replay the failure");
            if Instant::now() >= end {
                eprintln!("the fuzz tests found no failure in {round} rounds; each round runs {CASES} cases per test");
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    unreachable!("the loop over the rounds ends only with a return");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prose::{self, Kind};

    #[test]
    fn each_fuzz_filter_matches_a_test_of_its_package() {
        let files = tidy::read_files(&stage::root()).unwrap();
        for (package, filter) in FUZZED {
            let folder = format!("crates/{package}/");
            let of_package = files.iter().filter(|file| file.path().starts_with(&folder));
            let mut pieces = of_package.flat_map(|file| prose::of_file(file.path(), file.text()));
            let is_match = pieces.any(|piece| piece.kind == Kind::TestName && piece.text.contains(filter));
            assert!(is_match, "no test of {package} has `{filter}` in its name; update FUZZED");
        }
    }
}
