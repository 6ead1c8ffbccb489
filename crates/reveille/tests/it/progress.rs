//! Tests of the progress display of long commands, with and without a terminal.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::server::{BINARY, Server};

/// Runs a command that must succeed, with a terminal as its standard error. Returns the text that the command wrote to
/// the terminal.
fn run_on_terminal(arguments: &[&str], data: &Path, input: &Path) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other_end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut terminal = File::from(terminal);
    let reader = thread::spawn(move || {
        let mut message = Vec::new();
        // A read from a terminal returns an error when all writers have closed the terminal.
        let _hung_up = terminal.read_to_end(&mut message);
        String::from_utf8(message).unwrap()
    });
    let mut command = Command::new(BINARY);
    command.args(arguments).env("REVEILLE_DATA", data).stdin(File::open(input).unwrap());
    let status = command.stdout(Stdio::null()).stderr(other_end).status().unwrap();
    // The function drops the command value, because this value keeps the terminal open.
    drop(command);
    let message = reader.join().unwrap();
    assert!(status.success(), "{arguments:?}: {message}");
    message
}

#[test]
fn commands_show_progress_on_a_terminal_and_erase_it_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = path("data");
    let input = path("input");
    let request = r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/"}}}"#;
    std::fs::write(&input, format!("{request}\n{request}\n")).unwrap();
    let server = Server::start(&data);
    let (data_path, backup) = (data.to_str().unwrap(), path("backup"));
    let backup = backup.to_str().unwrap();
    let restored = path("restored");
    let cases: [(&[&str], &str); 4] = [
        (&["schedule", "create", "--file", "-"], "1 checked, 0 rejected"),
        (&["backup", "--data", data_path, "--to", backup], "copying: 0 s"),
        (&["check", "--data", data_path], "reading all data: 0 s"),
        (&["restore", "--from", backup, "--data", restored.to_str().unwrap()], "copying: 0 s"),
    ];
    for (arguments, progress) in cases {
        let message = run_on_terminal(arguments, &data, &input);
        assert!(message.contains(progress), "{arguments:?}: {message:?}");
        assert!(message.ends_with("\r\u{1b}[K"), "{arguments:?}: {message:?}");
    }
    let output = Command::new(BINARY).args(["check", "--data", data_path]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no progress on a pipe");
    assert!(server.stop().success());
}
