//! Tests of schedules whose target is a topic, with the real binary and a real Kafka broker.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use standardwebhooks::Webhook;
use test_servers::kafka::{self, Kafka};

use crate::bus::{self, stdout_of};
use crate::client::{Client, one_shot, rfc3339};
use crate::process::failure;
use crate::receiver::Receiver;
use crate::server::{BINARY, Server, serve};
use crate::{now_millis, until};

/// Server with a bus, whose tenant `default` may write to the topics that start with `target-`.
struct Scene {
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

impl Scene {
    fn start(bus: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut command = serve(&data);
        command.args(["--bus", bus]).args(more);
        let server = Server::start_by(command, &data);
        let scene = Scene { client: server.client(), server, folder };
        let allowed = scene.run(&["tenant", "egress", "default", "--allow", "loopback", "--allow-topic", "target-*"]);
        let allowed = stdout_of(allowed);
        assert!(allowed.contains("target-*"), "{allowed}");
        scene
    }

    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// Runs a command that acts as a client of this server.
    fn run(&self, arguments: &[&str]) -> Output {
        run(&self.data(), arguments)
    }

    fn create(&mut self, schedule: &Value) {
        let created = self.client.create(schedule);
        assert_eq!(created.status, 201, "{}", created.body);
    }

    /// Returns the newest run of a schedule, or `null` if no attempt has ended.
    fn newest_run(&mut self, schedule: &str) -> Value {
        self.client.get(&format!("/v1/schedules/{schedule}/runs")).json()["runs"][0].clone()
    }

    /// Waits until the run of a schedule has succeeded, and returns the run.
    fn succeeded(&mut self, schedule: &str) -> Value {
        until("the run succeeds", || self.newest_run(schedule)["state"] == "succeeded");
        self.newest_run(schedule)
    }

    fn signing_secret(&self) -> Webhook {
        Webhook::new(fs::read_to_string(self.data().join("signing.secret")).unwrap().trim()).unwrap()
    }

    fn stop(self) {
        assert!(self.server.stop().success());
    }
}

fn run(data: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    for name in ["REVEILLE_URL", "REVEILLE_KEY", "REVEILLE_KEY_FILE", "REVEILLE_TENANT", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(arguments).env("REVEILLE_DATA", data).stdin(Stdio::null()).output().unwrap()
}

/// Returns a schedule that is due now, with the fields `target` of its bus target.
fn due(id: &str, target: Value, payload: &Value) -> Value {
    json!({ "id": id, "at": rfc3339(now_millis()), "target": { "bus": target }, "payload": payload })
}

fn create_topic(url: &str, topic: &str, partitions: &str) {
    let create = ["topics", "create", topic, "--partitions", partitions, "--replicas", "1"];
    stdout_of(bus::command(url, &create).output().unwrap());
}

/// Returns all records of a topic as JSON.
fn records(url: &str, topic: &str) -> Vec<Value> {
    let consume = ["consume", topic, "--until-end", "--json"];
    let text = stdout_of(bus::command(url, &consume).output().unwrap());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the value of the only header with this name.
#[track_caller]
fn header<'a>(record: &'a Value, name: &str) -> Option<&'a str> {
    let headers = record["headers"].as_array().unwrap();
    let found: Vec<&Value> = headers.iter().filter(|header| header["name"] == name).collect();
    assert!(found.len() <= 1, "the header {name} is repeated: {record}");
    found.first().map(|header| header["value"].as_str().unwrap())
}

#[track_caller]
fn verify(webhook: &Webhook, record: &Value) {
    let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| {
        (name.parse().unwrap(), header(record, name).expect("every record has this header").parse().unwrap())
    });
    let value = record["value"].as_str().unwrap();
    webhook.verify(value.as_bytes(), &headers.into_iter().collect()).unwrap();
    let changed = format!("{value} ");
    let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .map(|name| (name.parse().unwrap(), header(record, name).unwrap().parse().unwrap()));
    assert!(webhook.verify(changed.as_bytes(), &headers.into_iter().collect()).is_err());
}

/// Returns the records of a topic, as Kafka's Java client reads them, in the form of `reveille bus consume --json`.
fn records_in_java(topic: &str, count: usize) -> Vec<Value> {
    let mut command = kafka::java_peer().unwrap();
    command.args(["consume", &kafka::shared().addresses(), topic, &count.to_string()]);
    let text = |hex: &str| {
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        Value::from(String::from_utf8(bytes).unwrap())
    };
    let field = |hex: &str| if hex == "-" { Value::Null } else { text(hex) };
    let lines = stdout_of(command.stdin(Stdio::null()).output().unwrap());
    let record = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let headers = fields[2].split(',').map(|header| {
            let (name, value) = header.split_once(':').unwrap();
            json!({ "name": text(name), "value": field(value) })
        });
        json!({ "key": field(fields[0]), "value": field(fields[1]), "headers": headers.collect::<Vec<_>>() })
    };
    lines.lines().map(record).collect()
}

#[test]
fn record_of_a_bus_target_has_key_headers_and_signature() {
    let url = bus::kafka();
    create_topic(&url, "target-shop", "3");
    let mut scene = Scene::start(&url, &[]);
    let plain = json!({ "topic": "target-shop", "key": "customer-7", "headers": { "X-Team": "payments" } });
    scene.create(&due("plain", plain, &json!({ "order": 17 })));
    let event = json!({ "mode": "structured", "type": "com.example.due", "source": "/shop" });
    scene.create(&due("structured", json!({ "topic": "target-shop", "cloud_event": event }), &json!({ "order": 18 })));
    let binary =
        ["--topic", "target-shop", "--record-key", "customer-9", "--cloud-event", "binary", "--header", "x-team:red"];
    let create = ["schedule", "create", "--id", "binary", "--in", "0s", "--payload", r#"{"order":19}"#];
    stdout_of(scene.run(&[&create[..], &binary].concat()));
    let shown = stdout_of(scene.run(&["schedule", "get", "binary"]));
    assert!(shown.contains("topic target-shop (binary CloudEvents)") && shown.contains("customer-9"), "{shown}");

    let runs = ["plain", "structured", "binary"].map(|id| scene.succeeded(id));
    let records = records(&url, "target-shop");
    assert_eq!(records.len(), 3, "{records:?}");
    let in_java = records_in_java("target-shop", 3);
    let webhook = scene.signing_secret();
    for run in &runs {
        let (id, schedule) = (run["id"].as_str(), run["schedule_id"].as_str());
        let record = records.iter().find(|record| header(record, "webhook-id") == id).unwrap();
        verify(&webhook, record);
        let attempt = &run["attempts"][0];
        assert_eq!((&record["partition"], &record["offset"]), (&attempt["partition"], &attempt["offset"]), "{run}");
        assert_eq!((header(record, "reveille-schedule-id"), header(record, "reveille-attempt")), (schedule, Some("1")));
        assert_eq!(header(record, "reveille-scheduled-at"), run["scheduled_at"].as_str());
        assert!(header(record, "reveille-term").is_some_and(|term| term.parse::<u64>().is_ok()), "{record}");
        assert!(header(record, "traceparent").is_some(), "{record}");
        let other = in_java.iter().find(|record| header(record, "webhook-id") == id).unwrap();
        verify(&webhook, other);
        for field in ["key", "value", "headers"] {
            assert_eq!(other[field], record[field], "Kafka's Java client reads the same {field}");
        }
        let shown = stdout_of(scene.run(&["run", "get", id.unwrap()]));
        let position = format!("partition {}, offset {}", record["partition"], record["offset"]);
        assert!(shown.contains(&position), "{position} is not in {shown}");
    }

    let [plain, structured, binary] = runs
        .each_ref()
        .map(|run| records.iter().find(|record| header(record, "webhook-id") == run["id"].as_str()).unwrap());
    assert_eq!((&plain["key"], &plain["value"]), (&json!("customer-7"), &json!(r#"{"order":17}"#)));
    assert_eq!((header(plain, "x-team"), header(plain, "ce_id")), (Some("payments"), None));
    assert_eq!((&binary["key"], &binary["value"]), (&json!("customer-9"), &json!(r#"{"order":19}"#)));
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", runs[2]["id"].as_str().unwrap()),
        ("ce_type", "reveille.callback"),
        ("ce_source", "/v1/schedules/binary"),
        ("ce_subject", "binary"),
        ("ce_time", runs[2]["scheduled_at"].as_str().unwrap()),
        ("content-type", "application/json"),
        ("x-team", "red"),
    ] {
        assert_eq!(header(binary, name), Some(value), "{name}");
    }
    assert_eq!(structured["key"], Value::Null);
    assert_eq!(header(structured, "content-type"), Some("application/cloudevents+json; charset=UTF-8"));
    let event: Value = serde_json::from_str(structured["value"].as_str().unwrap()).unwrap();
    let expected = json!({
        "specversion": "1.0", "id": runs[1]["id"], "source": "/shop", "type": "com.example.due",
        "subject": "structured", "time": runs[1]["scheduled_at"], "datacontenttype": "application/json",
        "data": { "order": 18 },
    });
    assert_eq!(event, expected);
    scene.stop();
}

/// Returns the number of the codec of the first batch in a partition, from the file of the broker. It is in the three
/// lowest bits of the attributes of a record batch of Kafka.
fn codec(topic: &str) -> u8 {
    let folder = kafka::shared().root_certificate();
    let log = folder.parent().unwrap().join(format!("data/{topic}-0/00000000000000000000.log"));
    fs::read(log).unwrap()[22] & 7
}

#[test]
fn bus_compression_sets_the_codec_of_the_records() {
    let url = bus::kafka();
    for (number, codec_name) in [(4, None), (0, Some("none")), (1, Some("gzip")), (2, Some("snappy")), (3, Some("lz4"))]
    {
        let topic = format!("target-codec-{number}");
        create_topic(&url, &topic, "1");
        let flags: Vec<&str> = codec_name.into_iter().flat_map(|name| ["--bus-compression", name]).collect();
        let mut scene = Scene::start(&url, &flags);
        let payload = json!("reveille ".repeat(500));
        scene.create(&due("large", json!({ "topic": topic }), &payload));
        let attempt = scene.succeeded("large")["attempts"][0].clone();
        assert_eq!((&attempt["partition"], &attempt["offset"]), (&json!(0), &json!(0)));
        assert_eq!(codec(&topic), number, "{codec_name:?}");
        let records = records(&url, &topic);
        assert_eq!(records[0]["value"], payload.to_string());
        verify(&scene.signing_secret(), &records[0]);
        scene.stop();
    }
}

#[test]
fn run_succeeds_under_its_id_after_an_outage_of_the_broker() {
    let broker = Kafka::start(1).unwrap();
    let url = format!("kafka://{}", broker.addresses());
    create_topic(&url, "target-outage", "1");
    let mut scene = Scene::start(&url, &[]);
    scene.create(&due("before", json!({ "topic": "target-outage" }), &json!("before")));
    let before = scene.succeeded("before");
    broker.kill(0).unwrap();

    // The attempts and the waits between them last longer than a slow start of the broker.
    let mut during = due("during", json!({ "topic": "target-outage", "timeout": "2s" }), &json!("during"));
    during["retry"] = json!({ "attempts_max": 20, "backoff": "500ms", "backoff_max": "5s" });
    scene.create(&during);
    let mut lost = due("lost", json!({ "topic": "target-outage", "timeout": "1s" }), &json!("lost"));
    lost["retry"] = json!({ "attempts_max": 2, "backoff": "100ms", "backoff_max": "100ms" });
    scene.create(&lost);
    until("two attempts have failed", || {
        scene.newest_run("during")["attempts"].as_array().is_some_and(|attempts| attempts.len() >= 2)
    });
    let run = scene.newest_run("during");
    assert_eq!(run["state"], "retrying", "{run}");
    for attempt in run["attempts"].as_array().unwrap() {
        let error = attempt["error"].as_str().unwrap();
        assert!(error.starts_with("the bus did not acknowledge the record in time"), "{run}");
        assert!(attempt.get("partition").is_none() && attempt["duration_ms"].as_u64().unwrap() <= 3_000, "{run}");
    }
    // The outage of the bus delays no HTTP callback.
    let receiver = Receiver::start();
    scene.create(&one_shot("http", now_millis(), &receiver.url(), &json!("x")));
    receiver.wait(|hits| hits.len() == 1);
    until("the run has failed", || scene.newest_run("lost")["state"] == "failed");
    let lost = scene.newest_run("lost")["id"].as_str().unwrap().to_owned();
    assert!(stdout_of(scene.run(&["run", "dead-letters"])).contains(&lost));

    broker.restart(0).unwrap();
    let after = scene.succeeded("during");
    assert_eq!(after["id"], run["id"]);
    assert!(after["attempts"].as_array().unwrap().len() >= 3, "{after}");
    stdout_of(scene.run(&["run", "redrive", &lost]));
    until("the dead letter has succeeded", || {
        scene.client.get("/v1/schedules/lost/runs").body.contains(r#""state":"succeeded""#)
    });
    let stored = records(&url, "target-outage");
    let id_of = |record: &Value| header(record, "webhook-id").unwrap().to_owned();
    let of = |id: &Value| stored.iter().find(|record| Some(id_of(record).as_str()) == id.as_str());
    assert_eq!(of(&before["id"]).unwrap()["value"], r#""before""#);
    let last = after["attempts"].as_array().unwrap().last().unwrap();
    let during = stored.iter().find(|record| record["offset"] == last["offset"]).unwrap();
    assert_eq!((Some(id_of(during).as_str()), &during["value"]), (run["id"].as_str(), &json!(r#""during""#)));
    assert_eq!(header(during, "reveille-attempt"), Some(last["number"].to_string().as_str()));
    let ids: BTreeSet<String> = stored.iter().map(id_of).collect();
    assert_eq!(ids.len(), 3, "{stored:?}");
    scene.stop();
}

#[test]
fn server_rejects_a_topic_that_no_operator_has_listed() {
    let mut scene = Scene::start("memory:target-a,other", &[]);
    scene.create(&due("listed", json!({ "topic": "target-a" }), &json!(1)));
    let attempt = scene.succeeded("listed")["attempts"][0].clone();
    assert_eq!((attempt["offset"].as_u64(), attempt["partition"].is_u64()), (Some(0), true), "{attempt}");
    for (topic, expected) in [
        ("other", "--topic: the tenant's policy does not list the topic (an operator can add it to `allow_topics`)"),
        ("Target-a", "--topic: the tenant's policy does not list the topic"),
        ("target-a-dead", "--topic: the tenant's policy does not list the topic"),
        ("__consumer_offsets", "--topic: the tenant's policy does not list the topic"),
        ("target a", "--topic: \"target a\" is not the name of a topic"),
    ] {
        let create = ["schedule", "create", "--in", "0s", "--topic", topic];
        let output = scene.run(&create);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(expected), "{topic}: {error}");
    }
    // The policy also applies to schedules that exist when an operator changes it.
    let mut later = due("later", json!({ "topic": "target-a" }), &json!(2));
    later["at"] = json!(rfc3339(now_millis() + 3_000));
    later["retry"] = json!({ "attempts_max": 1 });
    scene.create(&later);
    stdout_of(scene.run(&["tenant", "egress", "default", "--no-topics"]));
    until("the attempt has failed", || scene.newest_run("later")["state"] == "failed");
    let error = scene.newest_run("later")["attempts"][0]["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("egress_refused: "), "{error}");
    let listed = ["tenant", "egress", "default", "--allow-topic", "__*"];
    let output = scene.run(&listed);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("internal"), "{output:?}");
    scene.stop();
}

#[test]
fn server_without_a_bus_rejects_topics() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let create = ["schedule", "create", "--in", "0s", "--topic", "target-a", "--url", "http://127.0.0.1:9/"];
    assert_eq!(run(&data, &create).status.code(), Some(2), "a schedule has one target");
    let output = run(&data, &create[..6]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("--topic: this server has no message bus") && error.contains("--bus"), "{error}");
    assert!(server.stop().success());

    let error = failure(serve(&data).args(["--bus", "redis://ann:secret@host"]), 1);
    assert!(error.contains("--bus") && error.contains("kafka://") && !error.contains("secret"), "{error}");
    let error = failure(serve(&data).args(["--bus", "memory:a", "--bus-compression", "brotli"]), 2);
    assert!(error.contains("--bus-compression") && error.contains("zstd, lz4, gzip, snappy, none"), "{error}");
}

#[test]
fn server_starts_while_the_brokers_are_away() {
    let mut scene = Scene::start("kafka://127.0.0.1:1", &[]);
    let receiver = Receiver::start();
    scene.create(&one_shot("http", now_millis(), &receiver.url(), &json!("x")));
    receiver.wait(|hits| hits.len() == 1);
    assert_eq!(scene.client.get("/readyz").status, 200);
    scene.stop();
}
