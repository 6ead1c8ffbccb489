//! Tests of the start and the stop of the server: flags, a folder in use, and a graceful stop.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};

use serde_json::json;

use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::{BINARY, Server, serve};
use crate::{TIMEOUT, now_millis};

fn run(command: &mut Command) -> Output {
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().expect("the binary starts")
}

/// Runs a command that must exit with `code`. Returns its standard error.
pub(crate) fn failure(command: &mut Command, code: i32) -> String {
    let output = run(command);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{}: {message}", output.status);
    message
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn second_process_on_the_same_data_folder_fails_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let message = failure(&mut serve(&data), 1);
    assert!(message.contains("in use by another Reveille") && message.contains(&server.pid().to_string()), "{message}");
    assert_eq!(server.client().get("/readyz").status, 200);
    assert!(server.stop().success());
}

#[test]
fn graceful_stop_waits_for_callbacks_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let server = Server::start(&data);
    receiver.hold();
    let created = server.client().create(&one_shot("held", now_millis() + 100, &receiver.url(), &json!("x")));
    assert_eq!(created.status, 201, "{}", created.body);
    receiver.wait(|hits| hits.len() == 1);
    server.terminate();
    server.log.wait(|line| line.contains("stopping").then_some(())).expect("the log reports the stop");
    receiver.release();
    assert!(server.wait().success());

    let server = Server::start(&data);
    let runs = server.client().get("/v1/schedules/held/runs").json();
    assert_eq!(runs["runs"][0]["state"], "succeeded", "{runs}");
    assert_eq!(server.client().get("/v1/schedules/held").json()["state"], "ended");
    assert!(server.stop().success());
    let attempts: Vec<String> = receiver.hits().into_iter().map(|hit| hit.attempt).collect();
    assert_eq!(attempts, ["1"]);
}

#[test]
fn second_sigterm_ends_the_notice_period_of_a_stopping_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let mut command = serve(&data);
    command.args(["--stop-notice", "5m"]);
    let server = Server::start_by(command, &data);
    receiver.hold();
    assert_eq!(server.client().create(&one_shot("held", now_millis(), &receiver.url(), &json!("x"))).status, 201);
    receiver.wait(|hits| hits.len() == 1);
    server.terminate();
    let mut client = server.client();
    while client.get("/readyz").status == 200 {}
    assert_eq!(client.get("/readyz").json()["code"], "stopping");
    let taken = server.client().create(&one_shot("late", now_millis(), &receiver.url(), &json!("y")));
    assert_eq!(taken.status, 201, "{}", taken.body);
    receiver.wait(|hits| hits.len() == 2);

    server.terminate();
    server.log.wait(|line| line.contains("stopping").then_some(())).expect("the second signal ends the notice");
    receiver.release();
    assert!(server.wait().success());
    assert_eq!(receiver.hits().len(), 2);
}

#[test]
fn server_notifies_service_manager_of_readiness_and_stop_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let receive = || {
        let mut notification = [0; 256];
        let length = manager.recv(&mut notification).expect("a notification arrives");
        String::from_utf8(notification[..length].to_vec()).unwrap()
    };
    let mut command = serve(&data);
    command.env("NOTIFY_SOCKET", &path).args(["--drain", "20s", "--request-drain", "3s", "--stop-notice", "1s"]);
    let server = Server::start_by(command, &data);
    assert_eq!(receive(), "READY=1\n");
    assert_eq!(server.client().get("/readyz").status, 200);
    assert!(server.stop().success());
    assert_eq!(receive(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=39000000\n");
}

#[test]
fn server_reports_a_change_as_too_late_for_a_callback_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let server = Server::start(&data);
    receiver.hold();
    let due = now_millis() + 100;
    for id in ["replaced", "cancelled"] {
        assert_eq!(server.client().create(&one_shot(id, due, &receiver.url(), &json!("x"))).status, 201);
    }
    receiver.wait(|hits| hits.len() == 2);
    let later = one_shot("replaced", due + 3_600_000, &receiver.url(), &json!("y")).to_string();
    let mut client = server.client();
    let put = client.send("PUT", "/v1/schedules/replaced", &later).unwrap();
    assert_eq!((put.status, &put.json()["too_late"]), (200, &json!(true)), "{}", put.body);
    let cancelled = client.send("DELETE", "/v1/schedules/cancelled", "").unwrap();
    assert_eq!((cancelled.status, cancelled.body.as_str()), (200, r#"{"result":"too_late"}"#));
    receiver.release();
    assert!(server.stop().success(), "the server waits for callbacks in flight");

    let server = Server::start(&data);
    let mut client = server.client();
    let put = client.send("PUT", "/v1/schedules/replaced", &later).unwrap();
    assert_eq!((put.status, put.json().get("too_late")), (200, None), "{}", put.body);
    let cancelled = client.send("DELETE", "/v1/schedules/cancelled", "").unwrap();
    assert_eq!((cancelled.status, cancelled.body.as_str()), (200, r#"{"result":"cancelled"}"#));
    assert!(server.stop().success());
    assert_eq!(receiver.hits().len(), 2);
}

#[test]
fn server_names_an_invalid_flag_in_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for (flag, value) in
        [("--listen", "everywhere"), ("--in-flight-max", "many"), ("--in-flight-max", "0"), ("--colour", "blue")]
    {
        let message = failure(serve(&data).args([flag, value]), 2);
        assert!(message.contains(flag), "{message}");
    }
    assert!(!data.exists());
    let message = failure(&mut Command::new(BINARY), 2);
    assert!(message.contains("serve"), "{message}");
}

#[test]
fn server_rejects_a_port_in_use_and_a_file_as_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let other = folder.path().join("other");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--no-receiver", "--listen", &server.address.to_string(), "--data"]).arg(&other);
    let message = failure(&mut command, 1);
    assert!(message.contains(&format!("{} is in use", server.address)), "{message}");

    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let message = failure(&mut serve(&file), 1);
    assert!(message.contains(&file.display().to_string()), "{message}");
}
