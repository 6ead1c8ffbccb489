//! Tests that search for secrets in all places that must not contain secrets. The places are the log at level `trace`,
//! every response, /metrics, each file of the store and of a backup, and each file of a PostgreSQL server. The search
//! covers plain text, hex and base64.
//!
//! The tests also search for a word that is not secret. The store's files must contain this word, which proves that the
//! search works.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::client::{Client, rfc3339};
use crate::receiver::Receiver;
use crate::server::{BINARY, Server};
use crate::{now_millis, until};

/// Word that is not secret. It is in the URL of each target, and therefore in the store.
const NO_SECRET: &str = "Pu81icW0rdTh4tIsNoSecret";
const HEADER: &str = "Zx7qK2mWvT9bR4nLHeaderValueOfATarget";
const PUT_HEADER: &str = "Jd5sYc8pGh3kXa6eHeaderValueThatWasPut";
const PATCH_HEADER: &str = "Gw3oLq9zUy6mBv1kHeaderValueThatWasPatched";
const TENANT_HEADER: &str = "Nf2uQr7tBo9iEw4yHeaderOfAnotherTenant";

const EXCERPT: &str = "Lk6vDx1sWq0fHj5nExcerptOfAResponse";

/// Names of the files that may contain secrets.
const SECRET_FILES: [&str; 4] = ["admin.key", "operator.key", "signing.secret", "store.key"];

/// Secret for which a test searches, in all its encodings.
struct Secret {
    name: &'static str,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    fn new(name: &'static str, bytes: &[u8]) -> Self {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut forms = vec![bytes.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes()];
        // In base64 text, the characters of a secret depend on the offset of its first byte modulo 3. For each of the
        // three remainders, the test searches only for the characters that do not depend on the bytes before and after
        // the secret.
        for before in 0..3 {
            let padded = [&[0; 2][..before], bytes].concat();
            for engine in [&STANDARD, &URL_SAFE_NO_PAD] {
                let text = engine.encode(&padded);
                let whole = padded.len() / 3 * 4;
                forms.push(text.as_bytes()[(before * 8).div_ceil(6)..whole].to_vec());
            }
        }
        Secret { name, forms }
    }

    fn is_in(&self, haystack: &[u8]) -> bool {
        self.forms.iter().any(|form| memchr::memmem::find(haystack, form).is_some())
    }
}

/// Outputs and files of a server. Each entry contains the name of the output or the file, and the bytes.
#[derive(Default)]
struct Captured(Vec<(String, Vec<u8>)>);

impl Captured {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    /// Adds every file in `folder` to the captured data. Returns the number of files.
    fn add_files(&mut self, folder: &Path) -> usize {
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
            if kind.is_dir() {
                count += self.add_files(&path);
            } else if kind.is_file() {
                self.add(path.display().to_string(), std::fs::read(&path).unwrap());
                count += 1;
            }
        }
        count
    }

    fn request(&mut self, client: &mut Client, method: &str, path: &str, body: &str) -> Value {
        let response = client.send(method, path, body).unwrap();
        assert!(response.status < 500, "{method} {path}: {}", response.body);
        self.add(format!("the response to {method} {path}"), response.body.clone());
        serde_json::from_str(&response.body).unwrap_or(Value::Null)
    }

    /// Returns a text for each secret that the search found. The text names the secret and the place.
    fn find(&self, secrets: &[Secret]) -> Vec<String> {
        let mut found = Vec::new();
        for (place, bytes) in &self.0 {
            let is_secret_file = SECRET_FILES.iter().any(|file| place.ends_with(file));
            let present = secrets.iter().filter(|secret| !is_secret_file && secret.is_in(bytes));
            found.extend(present.map(|secret| format!("{} in {place}", secret.name)));
        }
        found
    }
}

fn with_trace_log(serve: &Command) -> Command {
    let mut command = Command::new("env");
    command.arg("RUST_LOG=trace").arg(serve.get_program()).args(serve.get_args());
    command
}

fn schedule(id: &str, at_millis: u64, url: &str, header: &str) -> Value {
    let headers = json!({ "Authorization": format!("Bearer {header}"), "x-plain": "1" });
    let target = json!({ "http": { "url": format!("{url}/{NO_SECRET}"), "headers": headers } });
    json!({ "id": id, "at": rfc3339(at_millis), "target": target, "retry": { "attempts_max": 2, "backoff": "10ms" } })
}

/// Sends every kind of request that involves a secret. Returns the secrets that the server creates for these requests.
fn send_all_requests(server: &Server, data: &Path, receiver: &Receiver, captured: &mut Captured) -> Vec<Secret> {
    let mut client = server.client();
    let far = now_millis() + 3_600_000;
    let soon = schedule("soon", now_millis() + 100, &receiver.url(), HEADER);
    captured.request(&mut client, "POST", "/v1/schedules", &soon.to_string());
    let hits = receiver.wait(|hits| !hits.is_empty());
    assert_eq!(hits[0].authorization, format!("Bearer {HEADER}"), "the target receives the header");
    let nowhere = schedule("nowhere", now_millis(), "http://127.0.0.1:9", HEADER);
    captured.request(&mut client, "POST", "/v1/schedules", &nowhere.to_string());
    let later = schedule("later", far, &receiver.url(), HEADER);
    captured.request(&mut client, "POST", "/v1/schedules", &later.to_string());
    captured.request(&mut client, "POST", "/v1/schedules", &later.to_string());
    let put = schedule("later", far, &receiver.url(), PUT_HEADER);
    captured.request(&mut client, "PUT", "/v1/schedules/later", &put.to_string());
    let shown = captured.request(&mut client, "GET", "/v1/schedules/later", "");
    let headers = json!({ "authorization": "[redacted]", "x-plain": "[redacted]" });
    assert_eq!(shown["target"]["http"]["headers"], headers);
    let again = json!({ "at": shown["at"], "target": shown["target"] }).to_string();
    let rejected = captured.request(&mut client, "PUT", "/v1/schedules/later", &again);
    assert_eq!(rejected["errors"][0]["code"], "redacted_header", "a redacted value cannot replace the real one");
    let change = json!({ "target": { "http": { "headers": { "authorization": format!("Bearer {PATCH_HEADER}") } } } });
    let patched = captured.request(&mut client, "PATCH", "/v1/schedules/later", &change.to_string());
    assert_eq!(patched["revision"], 2, "{patched}");
    // The error about an invalid header must not contain the value of the header.
    let broken = schedule("broken", far, &receiver.url(), &format!("{HEADER}\n"));
    captured.request(&mut client, "POST", "/v1/schedules", &broken.to_string());
    until("the dead letter appears", || {
        let dead = captured.request(&mut client, "GET", "/v1/runs?dead_letter=true", "");
        dead["runs"].as_array().is_some_and(|runs| !runs.is_empty())
    });
    for path in ["/v1/schedules/nowhere/runs", "/v1/schedules/soon/runs", "/metrics", "/readyz", "/healthz"] {
        captured.request(&mut client, "GET", path, "");
    }

    send_requests_with_excerpts(&mut client);

    let operator = std::fs::read_to_string(data.join("operator.key")).unwrap();
    let mut operator = Client::connect(server.address, operator.trim()).unwrap();
    let tenant = r#"{"name":"billing","egress":{"allow":["loopback"]}}"#;
    let created = operator.send("POST", "/v1/tenants", tenant).unwrap().json();
    let key = created["key"]["secret"].as_str().unwrap();
    let mut billing = Client::connect(server.address, key).unwrap();
    let theirs = schedule("theirs", far, &receiver.url(), TENANT_HEADER);
    captured.request(&mut billing, "POST", "/v1/schedules", &theirs.to_string());
    let rotated = billing.send("POST", "/v1/tenants/billing/signing-secrets", "").unwrap().json();
    for path in ["", "/keys", "/signing-secrets", "/audit"] {
        captured.request(&mut operator, "GET", &format!("/v1/tenants/billing{path}"), "");
    }
    captured.request(&mut operator, "GET", "/v1/tenants", "");
    captured.request(&mut operator, "GET", "/v1/tenants/operator/audit", "");
    vec![
        key_secret("the key of a new tenant", key),
        signing_secret("a tenant's first signing secret", created["signing_secret"]["secret"].as_str().unwrap()),
        signing_secret("a tenant's second signing secret", rotated["secret"].as_str().unwrap()),
    ]
}

/// Records an excerpt of a response, reads it, and checks that excerpts are off by default. The test does not search
/// the responses to these requests, which show the excerpt.
fn send_requests_with_excerpts(client: &mut Client) {
    let answering = Receiver::start_with(TcpListener::bind("127.0.0.1:0").unwrap(), EXCERPT);
    let mut excerpt_of = |id: &str, setting: &str| {
        let patched = client.send("PATCH", "/v1/tenants/default", setting).unwrap();
        assert_eq!(patched.status, 200, "{}", patched.body);
        // Another member may receive the new setting within a few seconds.
        let mut last = Value::Null;
        until("the run has an excerpt", || {
            let id = format!("{id}-{}", now_millis());
            let target = json!({ "http": { "url": answering.url() } });
            let created = json!({ "id": id, "at": rfc3339(now_millis()), "target": target }).to_string();
            client.send("POST", "/v1/schedules", &created).unwrap();
            until("the run succeeds", || {
                let runs = client.send("GET", &format!("/v1/schedules/{id}/runs"), "").unwrap().json();
                last = runs["runs"][0].clone();
                last["state"] == "succeeded"
            });
            setting == "{\"excerpts\":false}" || last["attempts"][0]["excerpt"] == EXCERPT
        });
        last["attempts"][0]["excerpt"].clone()
    };
    assert_eq!(excerpt_of("plain", "{\"excerpts\":false}"), Value::Null);
    assert_eq!(excerpt_of("excerpt", "{\"excerpts\":true}"), EXCERPT);
}

fn key_secret(name: &'static str, key: &str) -> Secret {
    Secret::new(name, key.trim().split_once('.').unwrap().1.as_bytes())
}

fn signing_secret(name: &'static str, text: &str) -> Secret {
    Secret::new(name, &STANDARD.decode(text.trim().strip_prefix("whsec_").unwrap()).unwrap())
}

/// Returns the secrets in the requests of the test and in the files of the data folder.
fn secrets(data: &Path) -> Vec<Secret> {
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap();
    let key = read("store.key").lines().find_map(|line| line.strip_prefix("rvsk_").map(str::to_owned)).unwrap();
    vec![
        Secret::new("a header", HEADER.as_bytes()),
        Secret::new("a header that was put", PUT_HEADER.as_bytes()),
        Secret::new("a header that was patched", PATCH_HEADER.as_bytes()),
        Secret::new("a header of another tenant", TENANT_HEADER.as_bytes()),
        Secret::new("an excerpt of a response", EXCERPT.as_bytes()),
        key_secret("the admin's key", &read("admin.key")),
        key_secret("the operator's key", &read("operator.key")),
        signing_secret("the signing secret", &read("signing.secret")),
        Secret::new("the store's key", &STANDARD.decode(key).unwrap()),
    ]
}

#[track_caller]
fn check(captured: &Captured, mut secrets: Vec<Secret>, created: Vec<Secret>, store: &Path) {
    secrets.extend(created);
    assert_eq!(captured.find(&secrets), [] as [String; 0]);
    let has_word = |(place, bytes): &(String, Vec<u8>)| {
        Path::new(place).starts_with(store) && Secret::new("no secret", NO_SECRET.as_bytes()).is_in(bytes)
    };
    assert!(captured.0.iter().any(has_word), "the search does not find a word that is in the store's files");
}

#[test]
fn embedded_store_exposes_no_secret_outside_its_key_files() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let (receiver, mut captured) = (Receiver::start(), Captured::default());
    let start = || Server::start_by(with_trace_log(&crate::server::serve(&data)), &data);

    let server = start();
    let created = send_all_requests(&server, &data, &receiver, &mut captured);
    let mut command = Command::new(BINARY);
    let output = command.args(["backup", "--data"]).arg(&data).arg("--to").arg(&backup).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (log, stdout) = (server.log.clone(), server.stdout.clone());
    server.kill();
    captured.add("the log", log.text());
    captured.add("standard output", stdout.text());
    assert!(captured.add_files(&data) > 5, "the crash leaves files");

    let server = start();
    captured.request(&mut server.client(), "GET", "/v1/schedules/later", "");
    let log = server.log.clone();
    assert!(server.stop().success());
    captured.add("the log of the second start", log.text());
    captured.add_files(&data);
    assert!(captured.add_files(&backup) > 0);
    check(&captured, secrets(&data), created, &data);
}

#[test]
fn cluster_exposes_no_secret_outside_its_key_files() {
    let folder = tempfile::tempdir().unwrap();
    let postgres = Postgres::start().unwrap();
    let url = postgres.create_database().unwrap();
    let (receiver, mut captured) = (Receiver::start(), Captured::default());
    let operator = folder.path().join("operator");
    let mut migrate = Command::new(BINARY);
    migrate.args(["store", "migrate", "--allow-egress", "loopback", "--store", &url, "--data"]).arg(&operator);
    let output = migrate.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    captured.add("the standard output of `store migrate`", output.stdout);
    captured.add("the standard error of `store migrate`", output.stderr);
    let member = |name: &str| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--lease", "2", "--store", &url]);
        command.arg("--store-key").arg(operator.join("store.key"));
        command.args(["--name", name, "--data"]).arg(folder.path().join(name));
        Server::start_where(with_trace_log(&command), |_| operator.clone())
    };

    let (a, b) = (member("a"), member("b"));
    let created = send_all_requests(&a, &operator, &receiver, &mut captured);
    let logs = [a.log.clone(), b.log.clone()];
    a.kill();
    assert!(b.stop().success());
    for log in logs {
        captured.add("a member's log", log.text());
    }
    postgres.stop().unwrap();
    captured.add_files(folder.path());
    assert!(
        captured.add_files(postgres.folder()) > 100,
        "the server has many files: tables, the write-ahead log and its own log"
    );
    let store = postgres.folder().to_owned();
    check(&captured, secrets(&operator), created, &store);
}

#[test]
fn member_without_the_cluster_key_fails_to_start() {
    let cluster = crate::cluster::TestCluster::new();
    let failure = |key: &dyn Fn(&mut Command) -> PathBuf| {
        let mut command = cluster.serve_without_key("a");
        let path = key(&mut command);
        let output = command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().unwrap();
        assert!(!output.status.success() && !path.with_extension("draft").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = failure(&|_| PathBuf::from("/nonexistent"));
    assert!(
        message.contains("missing key file") && message.contains("all members of a cluster have the same"),
        "{message}"
    );
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    assert!(server.stop().success());
    let another = folder.path().join("data/store.key");
    let message = failure(&|command| {
        command.arg("--store-key").arg(&another);
        another.clone()
    });
    assert!(message.contains("encrypted with the key") && message.contains("--store-key"), "{message}");
}

#[test]
fn server_disables_core_files_unless_the_flag_debuggable_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let core_max = |arguments: &[&str]| {
        let data = folder.path().join("data");
        let serve = crate::server::serve(&data);
        // The shell removes its own limit on core files, so that any limit of the server process comes from the server.
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -c unlimited && exec \"$@\"", "bash"]);
        command.arg(serve.get_program()).args(serve.get_args()).args(arguments);
        let server = Server::start_by(command, &data);
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
        assert!(server.stop().success());
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        line.split_ascii_whitespace().skip(4).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(core_max(&[]), ["0", "0"]);
    assert_eq!(core_max(&["--debuggable"]), ["unlimited", "unlimited"]);
}
