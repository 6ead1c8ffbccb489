//! Starting and stopping: flags, a folder in use, a polite stop.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};

use serde_json::json;

use crate::client::one_shot;
use crate::receiver::Receiver;
use crate::server::{BINARY, Server, serve};
use crate::{PATIENCE, now_millis};

fn run(command: &mut Command) -> Output {
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().expect("the binary starts")
}

/// What a process that ended by itself, with `code`, said.
fn refusal(command: &mut Command, code: i32) -> String {
    let output = run(command);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{}: {said}", output.status);
    said
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_process_on_the_same_data_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let said = refusal(&mut serve(&data), 1);
    assert!(said.contains("in use by another Reveille") && said.contains(&server.pid().to_string()), "{said}");
    assert_eq!(server.client().get("/readyz").status, 200);
    assert!(server.stop().success());
}

#[test]
fn a_polite_stop_waits_for_the_callback_in_flight_and_none_comes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let server = Server::start(&data);
    receiver.hold();
    let created = server.client().create(&one_shot("held", now_millis() + 100, &receiver.url(), &json!("x")));
    assert_eq!(created.status, 201, "{}", created.body);
    receiver.wait(|hits| hits.len() == 1);
    server.terminate();
    server.log.wait(|line| line.contains("stopping").then_some(())).expect("it says that it stops");
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
fn a_stop_is_announced_for_as_long_as_it_was_told_to_or_until_the_second_word() {
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
    server.log.wait(|line| line.contains("stopping").then_some(())).expect("the second word ends the notice");
    receiver.release();
    assert!(server.wait().success());
    assert_eq!(receiver.hits().len(), 2);
}

#[test]
fn the_service_manager_hears_when_requests_are_taken_and_how_long_a_stop_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut said = [0; 256];
        let length = manager.recv(&mut said).expect("something is said");
        String::from_utf8(said[..length].to_vec()).unwrap()
    };
    let mut command = serve(&data);
    command.env("NOTIFY_SOCKET", &path).args(["--drain", "20s", "--request-drain", "3s", "--stop-notice", "1s"]);
    let server = Server::start_by(command, &data);
    assert_eq!(hear(), "READY=1\n");
    assert_eq!(server.client().get("/readyz").status, 200);
    assert!(server.stop().success());
    assert_eq!(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=39000000\n");
}

#[test]
fn a_change_made_while_a_callback_is_in_flight_is_told_that_it_is_too_late() {
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
    assert!(server.stop().success(), "it waits for what is in flight");

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
fn a_flag_that_is_wrong_is_named_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for (flag, value) in
        [("--listen", "everywhere"), ("--in-flight-max", "many"), ("--in-flight-max", "0"), ("--colour", "blue")]
    {
        let said = refusal(serve(&data).args([flag, value]), 2);
        assert!(said.contains(flag), "{said}");
    }
    assert!(!data.exists());
    let said = refusal(&mut Command::new(BINARY), 2);
    assert!(said.contains("serve"), "{said}");
}

#[test]
fn a_port_in_use_and_a_folder_that_is_a_file_are_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let other = folder.path().join("other");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--no-receiver", "--listen", &server.address.to_string(), "--data"]).arg(&other);
    let said = refusal(&mut command, 1);
    assert!(said.contains(&format!("{} is taken", server.address)), "{said}");

    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let said = refusal(&mut serve(&file), 1);
    assert!(said.contains(&file.display().to_string()), "{said}");
}
