//! The trials of `reveille bench` that hold what they find to a bound, with little of everything.

use std::process::Command;

use crate::server::BINARY;

/// What a trial says that finds nothing wrong.
fn passes(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(BINARY);
    command.arg("bench").args(arguments).arg("--data").arg(folder.path()).env("NO_COLOR", "1").env_remove("RUST_LOG");
    let output = command.output().expect("the binary starts");
    let said = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn carts_that_are_made_moved_and_called_off_fire_once_or_not_at_all() {
    let said = passes(&["soak", "--minutes", "6", "--minute-seconds", "2", "--rate", "100"]);
    assert!(said.contains("0 lost, 0 doubled, 0 early, 0 not wanted"), "{said}");
}

#[test]
fn a_quota_changed_while_much_is_pending_misses_and_doubles_nothing() {
    let said = passes(&["quota-change", "--pending", "3000"]);
    assert!(said.contains("no quota, when"), "{said}");
}
