//! Runs a command and counts the tests that it reports.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Name of the program cargo. A command that starts cargo by this name uses the toolchain that the checkout pins.
pub(crate) const CARGO: &str = "cargo";

/// Returns the root of the checkout.
pub(crate) fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// Returns cargo's target folder.
///
/// # Errors
/// Returns an error if `cargo metadata` fails.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root());
    Ok(serde_json::from_str::<Metadata>(&output_of(&mut command)?)?.target_directory)
}

/// Returns the path of the debug binary. A build of the tests also creates this binary.
///
/// # Errors
/// Returns an error if `cargo metadata` fails.
pub(crate) fn debug_binary() -> anyhow::Result<PathBuf> {
    Ok(target()?.join("debug/reveille"))
}

/// Returns `binary`, or the path of a debug build of the sources if the caller names no binary.
///
/// # Errors
/// Returns an error if the server does not build.
pub(crate) fn server_binary(binary: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(binary) = binary {
        return Ok(binary);
    }
    let mut build = Command::new(CARGO);
    let built = run_check(build.args(["build", "--quiet", "--package", "reveille", "--bin", "reveille"]))?;
    ensure!(built.failed == 0, "cargo could not build the server; its output shows the error");
    debug_binary()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Counts one failure if a command fails without a failed test, for example because the code does not compile.
    pub(crate) fn with_end(self, is_success: bool) -> Counts {
        let failed = if is_success { self.failed } else { self.failed.max(1) };
        Counts { failed, ..self }
    }

    /// Returns the sum of the counts in all result lines of `text`.
    pub(crate) fn of_text(text: &str) -> Counts {
        let mut counts = Counts::default();
        for more in text.lines().filter_map(Counts::of_line) {
            counts.add(more);
        }
        counts
    }

    /// Parses a result line of Rust's libtest or of Python's unittest.
    fn of_line(line: &str) -> Option<Counts> {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                let (before, _) = rest.split_once(word)?;
                before.rsplit(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?.parse().ok()
            };
            return Some(Counts { passed: count(" passed")?, failed: count(" failed")? });
        }
        let ran = line.strip_prefix("Ran ")?.split_once(" test")?.0.parse().ok()?;
        Some(Counts { passed: ran, failed: 0 })
    }
}

/// Runs a command and counts it as one check.
///
/// # Errors
/// Returns an error if the command does not start.
pub(crate) fn run_check(command: &mut Command) -> anyhow::Result<Counts> {
    announce(command);
    let status = command.current_dir(root()).status().with_context(|| cannot_start(command))?;
    Ok(if status.success() { Counts { passed: 1, failed: 0 } } else { Counts { passed: 0, failed: 1 } })
}

/// Runs a command and returns the text that it writes to standard output.
///
/// # Errors
/// Returns an error if the command does not start, fails, or writes text that is not UTF-8.
pub(crate) fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed with {}: {}", output.status, error.trim());
    String::from_utf8(output.stdout).with_context(|| format!("the output of {command:?} is not UTF-8"))
}

pub(crate) fn announce(command: &Command) {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().map_or_else(|| program.to_string_lossy(), |name| name.to_string_lossy());
    eprintln!("\n== {name} {}", arguments.join(" "));
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", command.get_program().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parser_reads_test_counts_only_from_result_lines_of_test_runners() {
        let line =
            "test result: FAILED. 41 passed; 3 failed; 0 ignored; 0 measured; 16 filtered out; finished in 0.35s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 41, failed: 3 }));
        assert_eq!(Counts::of_line("Ran 12 tests in 0.041s"), Some(Counts { passed: 12, failed: 0 }));
        assert_eq!(Counts::of_line("test result of mine ... ok"), None);
        assert_eq!(Counts::of_line("5 passed, 0 failed"), None);
    }

    #[test]
    fn parser_adds_the_test_counts_of_several_result_lines() {
        let output = "running 1 test\ntest result: ok. 5 passed; 0 failed\n\ntest result: FAILED. 2 passed; 1 failed\n";
        assert_eq!(Counts::of_text(output), Counts { passed: 7, failed: 1 });
    }

    #[test]
    fn command_that_fails_without_a_failed_test_counts_as_one_failure() {
        let counts = |failed| Counts { passed: 5, failed };
        assert_eq!(counts(0).with_end(false), counts(1));
        assert_eq!(counts(3).with_end(false), counts(3));
        assert_eq!(counts(0).with_end(true), counts(0));
    }
}
