//! Tests of the spans that the real binary sends to an OpenTelemetry collector, and of the binary's log in JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::one_shot;
use crate::now_millis;
use crate::receiver::{Hit, Receiver};
use crate::server::{Server, serve};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Span in a request to the collector, with ids in hexadecimal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    start_nanos: u64,
    end_nanos: u64,
    attributes: BTreeMap<String, String>,
    /// Trace id and span id of each span to which this span links.
    links: Vec<(String, String)>,
    is_error: bool,
}

const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// Value of a field in a Protocol Buffers message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            Field::Number(number) => panic!("expected a message, found the number {number}"),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Field::Number(number) => *number,
            Field::Bytes(bytes) => panic!("expected a number, found the bytes {bytes:?}"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Decodes the fields of a Protocol Buffers message. The function follows the specification of the format and uses no
/// code of Reveille, so that the tests find errors in Reveille's encoder.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().expect("a varint has a last byte");
            *bytes = rest;
            number |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return number;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(field)
            }
            other => panic!("unexpected wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

/// Returns the contents of all fields with this number. The fields must contain messages.
fn messages(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    fields(bytes).into_iter().filter(|(found, _)| *found == number).map(|(_, field)| field.bytes()).collect()
}

/// Decodes an attribute, which consists of a `key` and a `value`. The value contains a `string_value` or an
/// `int_value`.
fn attribute(bytes: &[u8]) -> (String, String) {
    let fields_of = fields(bytes);
    let [(1, key), (2, value)] = fields_of.as_slice() else { panic!("not an attribute") };
    let value = match fields(value.bytes()).first() {
        Some((1, text)) => text.text(),
        Some((3, number)) => number.number().to_string(),
        _ => panic!("not a value of an attribute"),
    };
    (key.text(), value)
}

/// Decodes a span with the field numbers of opentelemetry/proto/trace/v1/trace.proto.
fn span(bytes: &[u8]) -> Span {
    let mut span = Span::default();
    for (number, field) in fields(bytes) {
        match number {
            1 => span.trace = field.hex(),
            2 => span.id = field.hex(),
            4 => span.parent = field.hex(),
            5 => span.name = field.text(),
            6 => span.kind = field.number(),
            7 => span.start_nanos = field.number(),
            8 => span.end_nanos = field.number(),
            9 => span.attributes.extend([attribute(field.bytes())]),
            13 => {
                let link = fields(field.bytes());
                let [(1, trace), (2, id)] = link.as_slice() else { panic!("not a link") };
                span.links.push((trace.hex(), id.hex()));
            }
            15 => span.is_error = fields(field.bytes()).iter().any(|(number, code)| (*number, code.number()) == (3, 2)),
            other => panic!("unexpected field {other} of a span"),
        }
    }
    span
}

/// Returns the spans in the requests to a collector.
fn spans(requests: &[Hit]) -> Vec<Span> {
    let mut spans = Vec::new();
    for request in requests {
        assert_eq!(request.line, "POST /v1/traces HTTP/1.1");
        for resource_spans in messages(&request.bytes, 1) {
            let resource: Vec<_> = messages(messages(resource_spans, 1)[0], 1).into_iter().map(attribute).collect();
            assert_eq!(resource[0], ("service.name".to_owned(), "reveille".to_owned()));
            for scope_spans in messages(resource_spans, 2) {
                spans.extend(messages(scope_spans, 2).into_iter().map(span));
            }
        }
    }
    spans
}

fn traced(data: &Path, endpoint: &str) -> Command {
    let mut command = serve(data);
    command.args(["--otlp-endpoint", endpoint]);
    command
}

fn base(collector: &Receiver) -> String {
    collector.url().trim_end_matches("/hook").to_owned()
}

/// Sends a batch request of one line with `curl`. The tests' own client cannot read the response, because the response
/// has no declared length.
fn batch(server: &Server, line: &Value) {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "-H",
        "Content-Type: application/x-ndjson",
        "-H",
        &format!("Authorization: Bearer {}", server.key),
    ]);
    curl.args(["--data-binary", &line.to_string(), &format!("http://{}/v1/schedules:batch", server.address)]);
    let output = curl.output().expect("curl is installed");
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(message.contains(r#""status":201"#), "{message}");
}

#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str, matches: impl Fn(&Span) -> bool) -> &'a Span {
    let found: Vec<&Span> = spans.iter().filter(|span| matches(span)).collect();
    assert_eq!(found.len(), 1, "not exactly one span for {name} in {spans:#?}");
    found[0]
}

#[test]
fn trace_of_a_run_links_to_the_last_write_of_its_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (collector, receiver) = (Receiver::start(), Receiver::start());
    let server = Server::start_by(traced(&data, &base(&collector)), &data);
    let mut client = server.client().with_header("traceparent", CALLER);
    // The first request creates a schedule that is due in an hour. The PUT replaces this schedule, so the run of the
    // schedule must link to the PUT.
    let later = one_shot("once", now_millis() + 3_600_000, &receiver.url(), &json!("x"));
    assert_eq!(client.create(&later).status, 201);
    let soon = one_shot("once", now_millis() + 50, &receiver.url(), &json!("x")).to_string();
    assert_eq!(client.send("PUT", "/v1/schedules/once", &soon).unwrap().status, 200);
    let line = one_shot("line", now_millis() + 50, "http://127.0.0.1:1/secret/path", &json!("x"));
    let mut line = line.as_object().unwrap().clone();
    line.insert("retry".to_owned(), json!({ "attempts_max": 1 }));
    batch(&server, &Value::Object(line));
    let hits = receiver.wait(|hits| hits.len() == 1);
    let deadline = now_millis() + 30_000;
    while client.get("/v1/runs?dead_letter=true").json()["runs"].as_array().unwrap().is_empty() {
        assert!(now_millis() < deadline, "the schedule of the batch has no dead letter");
    }
    assert!(server.stop().success(), "the server sends the remaining spans before it exits");

    let spans = spans(&collector.hits());
    let put = one(&spans, "the PUT", |span| span.name == "PUT /v1/schedules/{id}");
    let post = one(&spans, "the POST", |span| span.name == "POST /v1/schedules");
    for request in [put, post] {
        assert_eq!((request.kind, request.parent.as_str()), (SERVER, ""));
        let parts: Vec<&str> = CALLER.split('-').collect();
        assert_eq!(request.links, [(parts[1].to_owned(), parts[2].to_owned())]);
    }
    assert_eq!((put.attributes["status"].as_str(), put.attributes["schedule"].as_str()), ("200", "once"));
    assert_ne!((&put.trace, &put.id), (&post.trace, &post.id));

    let fire = one(&spans, "the run after the PUT", |span| span.links == [(put.trace.clone(), put.id.clone())]);
    assert_eq!((fire.name.as_str(), fire.kind, fire.parent.as_str()), ("fire", INTERNAL, ""));
    assert_eq!(fire.attributes["run"], hits[0].run);
    assert_eq!((fire.attributes["result"].as_str(), fire.is_error), ("success", false));
    assert_ne!(fire.trace, put.trace, "a run has its own trace");
    let attempt = one(&spans, "the attempt of the run", |span| span.parent == fire.id && span.name == "attempt");
    assert_eq!((attempt.kind, &attempt.trace), (CLIENT, &fire.trace));
    assert_eq!(
        hits[0].traceparent,
        format!("00-{}-{}-01", attempt.trace, attempt.id),
        "the receiver's spans are children of the attempt"
    );
    assert_eq!((attempt.attributes["status"].as_str(), attempt.is_error), ("200", false));
    assert!(fire.start_nanos <= attempt.start_nanos && attempt.start_nanos <= attempt.end_nanos, "{attempt:?}");
    assert!(now_millis() * 1_000_000 - fire.start_nanos < 60_000_000_000, "{fire:?}");

    let line = one(&spans, "the line of the batch", |span| {
        span.attributes.get("schedule").is_some_and(|id| id == "line") && span.kind == SERVER
    });
    let fire = one(&spans, "the run of the line", |span| span.links == [(line.trace.clone(), line.id.clone())]);
    assert_eq!(fire.attributes["result"], "unreachable");
    let attempt = one(&spans, "the attempt of the line", |span| span.parent == fire.id);
    assert!(attempt.is_error && attempt.attributes["error"].contains("refused"), "{attempt:?}");
    assert!(spans.iter().all(|span| !format!("{span:?}").contains("secret")), "no span contains the path of a target");
    assert!(spans.iter().all(|span| !format!("{span:?}").contains(client.secret())), "no span contains a key");
}

#[test]
fn server_fires_schedules_without_a_reachable_trace_collector() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let receiver = Receiver::start();
    let server = Server::start_by(traced(&data, "http://127.0.0.1:1"), &data);
    let mut client = server.client();
    assert_eq!(client.create(&one_shot("once", now_millis() + 50, &receiver.url(), &json!("x"))).status, 201);
    receiver.wait(|hits| hits.len() == 1);
    let warning = server.log.wait(|line| line.contains("spans dropped").then(|| line.to_owned()));
    assert!(warning.is_some_and(|line| line.contains("http://127.0.0.1:1/v1/traces")));
    assert!(server.stop().success());
}

#[test]
fn json_log_has_one_object_per_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = serve(&data);
    command.args(["--log-format", "json"]);
    let server = Server::start_by(command, &data);
    let log = server.log.clone();
    let mut doomed = one_shot("doomed", now_millis() + 50, "http://127.0.0.1:1/m4rk/path", &json!("m4rk"));
    doomed["retry"] = json!({ "attempts_max": 2, "backoff": "1ms" });
    doomed["target"]["http"]["headers"] = json!({ "x-key": "m4rk" });
    assert_eq!(server.client().create(&doomed).status, 201);
    log.wait(|line| line.contains("dead letter").then_some(()));
    assert!(server.stop().success());
    assert!(!log.text().contains("m4rk"), "the log contains the path of a target, a header or a payload");
    let lines: Vec<Value> = log.text().lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let dead: Vec<&Value> =
        lines.iter().filter(|line| line["fields"]["message"] == "run became a dead letter").collect();
    assert_eq!(dead.len(), 1, "{dead:?}");
    let Value::Object(mut fields) = dead[0]["fields"].clone() else { panic!("{dead:?}") };
    assert!(fields.remove("run").is_some_and(|run| run.is_string()));
    fields.remove("tenant").expect("the line names the tenant");
    let known =
        json!({ "message": "run became a dead letter", "schedule": "doomed", "attempts": 2, "reason": "unreachable" });
    assert_eq!((Value::Object(fields), &dead[0]["level"]), (known, &json!("INFO")));
    let stopped = lines.last().expect("the log has a last line");
    assert_eq!((&stopped["level"], &stopped["fields"]["message"]), (&json!("INFO"), &json!("stopped")));
}
