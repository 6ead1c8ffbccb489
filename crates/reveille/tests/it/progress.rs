//! Long work, watched at a terminal and not.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::server::{BINARY, Server};

/// What a command that goes well writes to a standard error that is a terminal.
fn watched(arguments: &[&str], data: &Path, input: &Path) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other_end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut terminal = File::from(terminal);
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        // A terminal that nobody holds open any more ends with an error.
        let _hung_up = terminal.read_to_end(&mut said);
        String::from_utf8(said).unwrap()
    });
    let mut command = Command::new(BINARY);
    command.args(arguments).env("REVEILLE_DATA", data).stdin(File::open(input).unwrap());
    let status = command.stdout(Stdio::null()).stderr(other_end).status().unwrap();
    // It holds the other end, too.
    drop(command);
    let said = reader.join().unwrap();
    assert!(status.success(), "{arguments:?}: {said}");
    said
}

#[test]
fn long_work_tells_how_far_it_is_where_somebody_watches_and_wipes_it_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let data = path("data");
    let input = path("input");
    let request = r#"{"every":"1h","target":{"http":{"url":"http://127.0.0.1:9/"}}}"#;
    std::fs::write(&input, format!("{request}\n{request}\n")).unwrap();
    let server = Server::start(&data);
    let (data_said, backup) = (data.to_str().unwrap(), path("backup"));
    let backup = backup.to_str().unwrap();
    let restored = path("restored");
    let cases: [(&[&str], &str); 4] = [
        (&["schedule", "create", "--file", "-"], "1 made, 0 refused"),
        (&["backup", "--data", data_said, "--to", backup], "copying: 0 s"),
        (&["check", "--data", data_said], "reading all of it: 0 s"),
        (&["restore", "--from", backup, "--data", restored.to_str().unwrap()], "copying: 0 s"),
    ];
    for (arguments, progress) in cases {
        let said = watched(arguments, &data, &input);
        assert!(said.contains(progress), "{arguments:?}: {said:?}");
        assert!(said.ends_with("\r\u{1b}[K"), "{arguments:?}: {said:?}");
    }
    let output = Command::new(BINARY).args(["check", "--data", data_said]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nobody watches a pipe");
    assert!(server.stop().success());
}
