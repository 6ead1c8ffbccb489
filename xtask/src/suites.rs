//! Runs test programs concurrently. Most suites wait for servers, timeouts and disks, so several of them share two
//! cores well.
//!
//! This module prints the output of a suite as a whole when the suite ends, so that the lines of two suites do not mix.
//!
//! docs/decisions/0180-run-test-suites-side-by-side.md and docs/decisions/0181-lint-in-the-build-of-the-tests.md give the
//! reasons for the design.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::stage::{self, CARGO, Counts};

/// Number of suites that run at the same time.
const LANES: usize = 3;

/// Names of the suites that take longest. These suites start first, so that no long suite runs alone at the end.
const LONGEST: [&str; 10] = [
    "reveille it",
    "bus-kafka it",
    "coordination-kafka it",
    "coordination-postgres it",
    "paxos-simulator model",
    "coordination-zookeeper it",
    "coordination it",
    "store-postgres it",
    "coordination faults",
    "simulator",
];

pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// Test binaries of the workspace, and the result of the lints.
pub(crate) struct Build {
    /// Suites in the order in which they should start.
    pub(crate) suites: Vec<Suite>,
    /// Counts of the lints. Each warning of the compiler or of clippy is one failed check. If there are no warnings,
    /// the lints count as one passed check.
    pub(crate) lints: Counts,
}

/// Environment variables of every build for the tests. Cargo compiles the crates of the workspace with clippy, which
/// lints the code and generates the same binaries as rustc. A separate run of clippy would check every dependency a
/// second time. The build is not incremental, because it usually starts without the results of an earlier build.
pub(crate) const BUILD: [(&str, &str); 2] = [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("CARGO_INCREMENTAL", "0")];

/// Builds and lints the programs and tests of the workspace.
///
/// # Errors
/// Returns an error if cargo cannot be started, or a binary does not compile.
pub(crate) fn build() -> anyhow::Result<Build> {
    let mut command = Command::new(CARGO);
    command.args(["test", "--workspace", "--all-features", "--no-run", "--message-format=json"]).envs(BUILD);
    stage::announce(&command);
    let output = command.current_dir(stage::root()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let (mut suites, mut warnings) = (Vec::new(), 0);
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message = serde_json::from_slice(line).context("cannot parse a JSON message of cargo")?;
        if let Some(diagnostic) = &message.message {
            eprint!("{}", diagnostic.rendered);
            warnings += 1;
        }
        suites.extend(message.suite());
    }
    ensure!(output.status.success(), "the tests do not compile");
    suites.sort_by_key(|suite| LONGEST.iter().position(|name| *name == suite.name).unwrap_or(LONGEST.len()));
    Ok(Build { suites, lints: Counts { passed: u64::from(warnings == 0), failed: warnings } })
}

/// The part of cargo's messages that describes a test binary or a diagnostic.
#[derive(Deserialize)]
struct Message {
    message: Option<Diagnostic>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

/// Warning or error that the compiler reports for a crate of the workspace. Cargo hides the warnings for other crates.
#[derive(Deserialize)]
struct Diagnostic {
    rendered: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Message {
    /// Returns the suite if this message describes a test binary. Like cargo, the suite runs the binary in the folder
    /// of its package.
    fn suite(self) -> Option<Suite> {
        let (executable, target) = (self.executable?, self.target?);
        let folder = self.manifest_path?.parent()?.to_owned();
        if !self.profile?.test {
            return None;
        }
        let package = folder.file_name()?.to_string_lossy().into_owned();
        let name = match target.kind.first()?.as_str() {
            "test" => format!("{package} {}", target.name),
            "bin" => format!("{package} bin {}", target.name),
            _ => package,
        };
        let mut command = Command::new(executable);
        command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
        Some(Suite { name, command })
    }
}

/// Runs all suites and prints the output of each suite. Then prints the duration of each suite. Returns the sum of the
/// suites' counts.
pub(crate) fn run(suites: Vec<Suite>) -> Counts {
    let queue = Mutex::new(VecDeque::from(suites));
    let ended = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(suite) = next(&queue) {
                    let name = suite.name.clone();
                    let (counts, took) = run_one(suite);
                    let mut ended = ended.lock().expect("no thread panics while it holds this lock");
                    ended.0.add(counts);
                    ended.1.push((took, name, counts));
                }
            });
        }
    });
    let (total, mut times) = ended.into_inner().expect("no thread panics while it holds this lock");
    times.sort_by_key(|(took, ..)| std::cmp::Reverse(*took));
    eprintln!("\n== suites, longest first");
    for (took, name, counts) in times {
        eprintln!("{:>5} s  {name}: {} passed, {} failed", took.as_secs(), counts.passed, counts.failed);
    }
    total
}

fn next(queue: &Mutex<VecDeque<Suite>>) -> Option<Suite> {
    queue.lock().expect("no thread panics while it holds this lock").pop_front()
}

/// Runs a suite and prints its output. Returns its counts and its duration.
#[expect(clippy::disallowed_methods, reason = "the output reports the duration of each suite")]
pub(crate) fn run_one(suite: Suite) -> (Counts, Duration) {
    let began = Instant::now();
    let name = suite.name.clone();
    let counts = try_suite(suite).unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        Counts { passed: 0, failed: 1 }
    });
    (counts, began.elapsed())
}

fn try_suite(suite: Suite) -> anyhow::Result<Counts> {
    let Suite { name, mut command } = suite;
    let mut output = tempfile::tempfile().context("cannot create a temporary file for a suite's output")?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let status =
        command.status().with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))?;
    output.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    output.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    print(&format!("\n== {name}\n{text}\n"));
    Ok(Counts::of_text(&text).with_end(status.success()))
}

/// Prints with `print!`, because the test harness captures the output of this macro. Without the capture, the suite of
/// this crate would count the result lines that its own tests print.
#[expect(clippy::print_stdout, reason = "the suites write to the output of this xtask command")]
fn print(text: &str) {
    print!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(script: &str) -> Suite {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Suite { name: script.to_owned(), command }
    }

    #[test]
    fn runner_adds_the_test_counts_of_all_suites() {
        let counts = run(vec![
            suite("echo 'test result: ok. 5 passed; 0 failed'"),
            suite("echo 'test result: FAILED. 1 passed; 2 failed' >&2; exit 101"),
            suite("kill -9 $$"),
            suite("true"),
        ]);
        assert_eq!(counts, Counts { passed: 6, failed: 3 });
    }

    #[test]
    fn suite_that_cannot_start_counts_as_one_failure() {
        let counts = run(vec![Suite { name: "none".to_owned(), command: Command::new("/nowhere/none") }]);
        assert_eq!(counts, Counts { passed: 0, failed: 1 });
    }

    #[test]
    fn cargo_message_describes_a_suite_only_if_it_names_a_test_binary() {
        let read =
            |json: &str| serde_json::from_str::<Message>(json).expect("a message").suite().map(|suite| suite.name);
        let artifact = |kind: &str, is_test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","executable":"/t/it-1","manifest_path":"/c/crates/store/Cargo.toml",
                "profile":{{"test":{is_test}}},"target":{{"name":"it","kind":["{kind}"]}}}}"#
            )
        };
        assert_eq!(read(&artifact("test", true)).as_deref(), Some("store it"));
        assert_eq!(read(&artifact("lib", true)).as_deref(), Some("store"));
        assert_eq!(read(&artifact("bin", false)), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
