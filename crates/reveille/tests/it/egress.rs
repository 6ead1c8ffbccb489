//! Tests of the egress policy of callbacks, with the real resolver of this machine.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::client::{Client, one_shot};
use crate::receiver::Receiver;
use crate::server::{BINARY, Server, serve};
use crate::{now_millis, until};

#[test]
fn server_ignores_proxy_variables_when_it_sends_callbacks() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let mut command = serve(&data);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    command.env_remove("no_proxy").env_remove("NO_PROXY");
    let server = Server::start_by(command, &data);
    let created = server.client().create(&one_shot("straight", now_millis() + 50, &receiver.url(), &json!("x")));
    assert_eq!(created.status, 201, "{}", created.body);
    receiver.wait(|hits| hits.len() == 1);
    assert!(server.stop().success());
}

#[test]
fn server_on_a_public_address_sends_no_callbacks_to_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let port = receiver.url().rsplit(':').next().unwrap().split('/').next().unwrap().to_owned();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "0.0.0.0:0", "--insecure", "--no-receiver", "--data"]).arg(&data);
    let mut server = Server::start_by(command, &data);
    server.address.set_ip([127, 0, 0, 1].into());
    let mut client = server.client();
    let rejected = client.create(&one_shot("literal", now_millis(), &receiver.url(), &json!("x")));
    assert_eq!((rejected.status, &rejected.json()["errors"][0]["code"]), (422, &json!("egress_refused")));

    // The server applies the egress policy to a host name at each attempt, when it resolves the name.
    let url = format!("http://localhost:{port}/");
    let mut named = one_shot("named", now_millis(), &url, &json!("x"));
    named["retry"] = json!({"backoff": "200ms", "backoff_max": "200ms", "attempts_max": 20});
    assert_eq!(client.create(&named).status, 201);
    until("the metrics count the rejected attempt", || {
        server.client().get("/metrics").body.contains(r#"result="egress_refused""#)
    });
    // The server updates the metric before the outcome is durable, so the test waits for the outcome.
    let mut first = || client.get("/v1/schedules/named/runs").json()["runs"][0]["attempts"][0]["error"].clone();
    until("the run shows the error", || !first().is_null());
    let expected = "egress_refused: the host is at a loopback address, which the tenant's policy does not allow; an operator \
                    can change the policy";
    assert_eq!(first(), expected);

    let operator = fs::read_to_string(data.join("operator.key")).unwrap();
    let mut operator = Client::connect(server.address, operator.trim()).unwrap();
    let permission = r#"{"egress":{"allow":["loopback"]}}"#;
    assert_eq!(operator.send("PATCH", "/v1/tenants/default", permission).unwrap().status, 200);
    receiver.wait(|hits| hits.len() == 1);
    assert!(server.stop().success());
}
