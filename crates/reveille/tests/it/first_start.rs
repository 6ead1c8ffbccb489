//! Test of the first steps of a new user, who starts the server, runs the printed command line and sees the callback.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::server::{BINARY, Server};

#[test]
fn curl_command_that_the_server_prints_causes_a_callback() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--receiver", "127.0.0.1:0", "--data"]).arg(&data);
    let server = Server::start_by(command, &data);

    let line = server.stdout.wait(|line| line.starts_with("curl ").then(|| line.to_owned()));
    let line = line.expect("the server prints a curl line");
    let pasted = Command::new("bash").args(["-c", &line]).output().expect("bash and curl are installed");
    let message = String::from_utf8_lossy(&pasted.stdout).into_owned();
    assert!(
        pasted.status.success() && message.contains(r#""state":"active""#),
        "{line}\n{message}\n{}",
        server.log.text()
    );

    server
        .stdout
        .wait(|line| line.contains(r#"{"hello":"world"}"#).then_some(()))
        .expect("the receiver prints the callback");
    let mode = std::fs::metadata(data.join("admin.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!server.stdout.text().contains(&server.key) && !server.log.text().contains(&server.key));
    assert!(server.stop().success());

    let again = Server::start(&data);
    assert_eq!(
        again.client().get("/v1/runs?dead_letter=true").status,
        200,
        "the key of the first start is still valid"
    );
}
