//! Tests of the configuration of the real binary by a file, environment variables and flags.

use std::path::Path;
use std::process::{Command, Output};

use crate::server::{BINARY, Server};

fn serve(file: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.env("NO_COLOR", "1").env_remove("RUST_LOG");
    command.args(["serve", "--config"]).arg(file).args(more);
    command
}

fn code_and_text(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn flags_override_the_environment_and_the_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reveille.toml");
    let text =
        "drain = \"11s\"\nin-flight-max = 11\nlease = 11\nthreads = 3\nstore = \"postgres://me:hunter2@db/reveille\"\n";
    std::fs::write(&file, text).unwrap();
    let mut command = serve(&file, &["--print-config", "--lease", "33"]);
    command.env("REVEILLE_IN_FLIGHT_MAX", "22").env("REVEILLE_LEASE", "22");
    let (code, shown) = code_and_text(&command.output().unwrap());
    assert_eq!(code, Some(0), "{shown}");
    let file = file.display();
    for line in [
        format!("drain = \"11s\"  # {file}:1"),
        "in-flight-max = 22  # REVEILLE_IN_FLIGHT_MAX".to_owned(),
        "lease = 33  # flag".to_owned(),
        format!("threads = 3  # {file}:4"),
        format!("store = \"postgres://me:***@db/reveille\"  # {file}:5"),
        "history-days = 30  # default".to_owned(),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn server_rejects_an_invalid_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reveille.toml");
    let data = folder.path().join("data");
    for (text, expected) in [
        ("drian = '1s'", ":1: unknown option `drian`: did you mean `drain`?"),
        ("\nin-flight-max = 0", ":2: invalid value of `in-flight-max`: 0 is not in 1..=1000000"),
    ] {
        std::fs::write(&file, format!("{text}\ndata = {:?}", data.display().to_string())).unwrap();
        let (code, message) = code_and_text(&serve(&file, &[]).output().unwrap());
        assert_eq!((code, message.contains(expected)), (Some(2), true), "{message}");
    }
    let (code, message) = code_and_text(&serve(&folder.path().join("none.toml"), &[]).output().unwrap());
    assert_eq!((code, message.contains("cannot read the configuration file")), (Some(2), true), "{message}");
    assert!(!data.exists());
}

#[test]
fn server_applies_the_settings_in_its_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reveille.toml");
    let data = folder.path().join("data");
    let text = format!(
        "listen = '127.0.0.1:0'\nno-receiver = true\nbody-bytes-max = 131072\ndata = {:?}\n",
        data.display().to_string()
    );
    std::fs::write(&file, text).unwrap();
    let server = Server::start_by(serve(&file, &[]), &data);
    let large = format!(r#"{{"payload":"{}"}}"#, "x".repeat(132_000));
    let rejected = server.client().send("POST", "/v1/schedules", &large).unwrap();
    assert_eq!(rejected.status, 413, "{}", rejected.body);
    assert!(rejected.body.contains("131072"), "{}", rejected.body);
    assert!(server.stop().success());
}

#[test]
fn startup_error_names_the_file_with_invalid_root_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, "no certificate").unwrap();
    let file = folder.path().join("reveille.toml");
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let text = format!("callback-roots = {}\ndata = {}\n", quoted(&roots), quoted(&folder.path().join("data")));
    std::fs::write(&file, text).unwrap();
    let (code, message) = code_and_text(&serve(&file, &[]).output().unwrap());
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("roots.pem") && message.contains("no certificate in PEM"), "{message}");
}
