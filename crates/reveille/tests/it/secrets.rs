//! Secrets searched for wherever they should not be: in the log at its most talkative, in every answer, in /metrics, in
//! each file of the store and of a backup, and in each file of a PostgreSQL server; as they are, in hex and in base64.
//!
//! Beside the secrets, a word that is none is searched for: if it is not found in the store's files, the search is blind.

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

/// In the URL of each target, and so in the store.
const NO_SECRET: &str = "Pu81icW0rdTh4tIsNoSecret";
const HEADER: &str = "Zx7qK2mWvT9bR4nLHeaderValueOfATarget";
const PUT_HEADER: &str = "Jd5sYc8pGh3kXa6eHeaderValueThatWasPut";
const PATCH_HEADER: &str = "Gw3oLq9zUy6mBv1kHeaderValueThatWasPatched";
const TENANT_HEADER: &str = "Nf2uQr7tBo9iEw4yHeaderOfAnotherTenant";

/// Files that are the home of a secret, which may be in that one.
const HOMES: [&str; 4] = ["admin.key", "operator.key", "signing.secret", "store.key"];

/// What is searched for, in all its spellings.
struct Secret {
    name: &'static str,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    fn new(name: &'static str, bytes: &[u8]) -> Self {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut forms = vec![bytes.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes()];
        // Whatever stands before and after it: what of its base64 depends on it alone, at each of three places.
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

/// All that was seen of a server from outside.
#[derive(Default)]
struct Seen(Vec<(String, Vec<u8>)>);

impl Seen {
    fn add(&mut self, place: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((place.into(), bytes.into()));
    }

    /// Every file in `folder`, and how many there are.
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

    fn ask(&mut self, client: &mut Client, method: &str, path: &str, body: &str) -> Value {
        let answer = client.send(method, path, body).unwrap();
        assert!(answer.status < 500, "{method} {path}: {}", answer.body);
        self.add(format!("the answer to {method} {path}"), answer.body.clone());
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }

    /// Where each secret was found; none of them should be anywhere.
    fn find(&self, secrets: &[Secret]) -> Vec<String> {
        let mut found = Vec::new();
        for (place, bytes) in &self.0 {
            let is_home = HOMES.iter().any(|home| place.ends_with(home));
            let there = secrets.iter().filter(|secret| !is_home && secret.is_in(bytes));
            found.extend(there.map(|secret| format!("{} in {place}", secret.name)));
        }
        found
    }
}

fn talkative(serve: &Command) -> Command {
    let mut command = Command::new("env");
    command.arg("RUST_LOG=trace").arg(serve.get_program()).args(serve.get_args());
    command
}

fn schedule(id: &str, at_millis: u64, url: &str, header: &str) -> Value {
    let headers = json!({ "Authorization": format!("Bearer {header}"), "x-plain": "1" });
    let target = json!({ "http": { "url": format!("{url}/{NO_SECRET}"), "headers": headers } });
    json!({ "id": id, "at": rfc3339(at_millis), "target": target, "retry": { "attempts_max": 2, "backoff": "10ms" } })
}

/// Uses a server in every way that touches a secret; what it makes beside is returned.
fn use_all(server: &Server, data: &Path, receiver: &Receiver, seen: &mut Seen) -> Vec<Secret> {
    let mut client = server.client();
    let far = now_millis() + 3_600_000;
    let soon = schedule("soon", now_millis() + 100, &receiver.url(), HEADER);
    seen.ask(&mut client, "POST", "/v1/schedules", &soon.to_string());
    let hits = receiver.wait(|hits| !hits.is_empty());
    assert_eq!(hits[0].authorization, format!("Bearer {HEADER}"), "the target is told");
    let nowhere = schedule("nowhere", now_millis(), "http://127.0.0.1:9", HEADER);
    seen.ask(&mut client, "POST", "/v1/schedules", &nowhere.to_string());
    let later = schedule("later", far, &receiver.url(), HEADER);
    seen.ask(&mut client, "POST", "/v1/schedules", &later.to_string());
    seen.ask(&mut client, "POST", "/v1/schedules", &later.to_string());
    let put = schedule("later", far, &receiver.url(), PUT_HEADER);
    seen.ask(&mut client, "PUT", "/v1/schedules/later", &put.to_string());
    let shown = seen.ask(&mut client, "GET", "/v1/schedules/later", "");
    let headers = json!({ "authorization": "[redacted]", "x-plain": "[redacted]" });
    assert_eq!(shown["target"]["http"]["headers"], headers);
    let again = json!({ "at": shown["at"], "target": shown["target"] }).to_string();
    let refused = seen.ask(&mut client, "PUT", "/v1/schedules/later", &again);
    assert_eq!(refused["errors"][0]["code"], "redacted_header", "what was read is not put back over the value");
    let change = json!({ "target": { "http": { "headers": { "authorization": format!("Bearer {PATCH_HEADER}") } } } });
    let patched = seen.ask(&mut client, "PATCH", "/v1/schedules/later", &change.to_string());
    assert_eq!(patched["revision"], 2, "{patched}");
    // What is wrong with it is told without its value.
    let broken = schedule("broken", far, &receiver.url(), &format!("{HEADER}\n"));
    seen.ask(&mut client, "POST", "/v1/schedules", &broken.to_string());
    until("the dead letter comes", || {
        let dead = seen.ask(&mut client, "GET", "/v1/runs?dead_letter=true", "");
        dead["runs"].as_array().is_some_and(|runs| !runs.is_empty())
    });
    for path in ["/v1/schedules/nowhere/runs", "/v1/schedules/soon/runs", "/metrics", "/readyz", "/healthz"] {
        seen.ask(&mut client, "GET", path, "");
    }

    let operator = std::fs::read_to_string(data.join("operator.key")).unwrap();
    let mut operator = Client::connect(server.address, operator.trim()).unwrap();
    let tenant = r#"{"name":"billing","egress":{"allow":["loopback"]}}"#;
    let made = operator.send("POST", "/v1/tenants", tenant).unwrap().json();
    let key = made["key"]["secret"].as_str().unwrap();
    let mut billing = Client::connect(server.address, key).unwrap();
    let theirs = schedule("theirs", far, &receiver.url(), TENANT_HEADER);
    seen.ask(&mut billing, "POST", "/v1/schedules", &theirs.to_string());
    let rotated = billing.send("POST", "/v1/tenants/billing/signing-secrets", "").unwrap().json();
    for path in ["", "/keys", "/signing-secrets", "/audit"] {
        seen.ask(&mut operator, "GET", &format!("/v1/tenants/billing{path}"), "");
    }
    seen.ask(&mut operator, "GET", "/v1/tenants", "");
    seen.ask(&mut operator, "GET", "/v1/tenants/operator/audit", "");
    vec![
        key_secret("the key of a tenant that was made", key),
        signing_secret("a tenant's first signing secret", made["signing_secret"]["secret"].as_str().unwrap()),
        signing_secret("a signing secret that was rotated in", rotated["secret"].as_str().unwrap()),
    ]
}

fn key_secret(name: &'static str, key: &str) -> Secret {
    Secret::new(name, key.trim().split_once('.').unwrap().1.as_bytes())
}

fn signing_secret(name: &'static str, text: &str) -> Secret {
    Secret::new(name, &STANDARD.decode(text.trim().strip_prefix("whsec_").unwrap()).unwrap())
}

/// Those that are known from the start, and those in the data folder.
fn secrets(data: &Path) -> Vec<Secret> {
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap();
    let key = read("store.key").lines().find_map(|line| line.strip_prefix("rvsk_").map(str::to_owned)).unwrap();
    vec![
        Secret::new("a header", HEADER.as_bytes()),
        Secret::new("a header that was put", PUT_HEADER.as_bytes()),
        Secret::new("a header that was patched", PATCH_HEADER.as_bytes()),
        Secret::new("a header of another tenant", TENANT_HEADER.as_bytes()),
        key_secret("the admin's key", &read("admin.key")),
        key_secret("the operator's key", &read("operator.key")),
        signing_secret("the signing secret", &read("signing.secret")),
        Secret::new("the store's key", &STANDARD.decode(key).unwrap()),
    ]
}

#[track_caller]
fn judge(seen: &Seen, mut secrets: Vec<Secret>, made: Vec<Secret>, store: &Path) {
    secrets.extend(made);
    assert_eq!(seen.find(&secrets), [] as [String; 0]);
    let is_seen = |(place, bytes): &(String, Vec<u8>)| {
        Path::new(place).starts_with(store) && Secret::new("no secret", NO_SECRET.as_bytes()).is_in(bytes)
    };
    assert!(seen.0.iter().any(is_seen), "what is no secret is found in the store's files, so the search sees");
}

#[test]
fn no_secret_is_in_a_log_an_answer_a_metric_or_a_file_of_the_embedded_store_or_of_its_backup() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let (receiver, mut seen) = (Receiver::start(), Seen::default());
    let start = || Server::start_by(talkative(&crate::server::serve(&data)), &data);

    let server = start();
    let made = use_all(&server, &data, &receiver, &mut seen);
    let mut command = Command::new(BINARY);
    let output = command.args(["backup", "--data"]).arg(&data).arg("--to").arg(&backup).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (log, stdout) = (server.log.clone(), server.stdout.clone());
    server.kill();
    seen.add("the log", log.text());
    seen.add("standard output", stdout.text());
    assert!(seen.add_files(&data) > 5, "as the crash left them");

    let server = start();
    seen.ask(&mut server.client(), "GET", "/v1/schedules/later", "");
    let log = server.log.clone();
    assert!(server.stop().success());
    seen.add("the log of the second start", log.text());
    seen.add_files(&data);
    assert!(seen.add_files(&backup) > 0);
    judge(&seen, secrets(&data), made, &data);
}

#[test]
fn no_secret_is_in_a_log_an_answer_a_metric_or_a_file_of_postgresql() {
    let folder = tempfile::tempdir().unwrap();
    let postgres = Postgres::start().unwrap();
    let url = postgres.create_database().unwrap();
    let (receiver, mut seen) = (Receiver::start(), Seen::default());
    let operator = folder.path().join("operator");
    let mut migrate = Command::new(BINARY);
    migrate.args(["store", "migrate", "--allow-egress", "loopback", "--store", &url, "--data"]).arg(&operator);
    let output = migrate.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    seen.add("what `store migrate` says", output.stdout);
    seen.add("what `store migrate` logs", output.stderr);
    let member = |name: &str| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--lease", "2", "--store", &url]);
        command.arg("--store-key").arg(operator.join("store.key"));
        command.args(["--name", name, "--data"]).arg(folder.path().join(name));
        Server::start_where(talkative(&command), |_| operator.clone())
    };

    let (a, b) = (member("a"), member("b"));
    let made = use_all(&a, &operator, &receiver, &mut seen);
    let logs = [a.log.clone(), b.log.clone()];
    a.kill();
    assert!(b.stop().success());
    for log in logs {
        seen.add("a member's log", log.text());
    }
    postgres.stop().unwrap();
    seen.add_files(folder.path());
    assert!(seen.add_files(postgres.folder()) > 100, "tables, the write-ahead log, and the server's own log");
    let store = postgres.folder().to_owned();
    judge(&seen, secrets(&operator), made, &store);
}

#[test]
fn a_member_without_the_clusters_key_or_with_another_is_refused_with_the_next_step() {
    let home = crate::cluster::Home::new();
    let refusal = |key: &dyn Fn(&mut Command) -> PathBuf| {
        let mut command = home.serve_without_key("a");
        let path = key(&mut command);
        let output = command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().unwrap();
        assert!(!output.status.success() && !path.with_extension("draft").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refusal(&|_| PathBuf::from("/nonexistent"));
    assert!(
        said.contains("store.key is not there") && said.contains("each member of a cluster has the same"),
        "{said}"
    );
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    assert!(server.stop().success());
    let another = folder.path().join("data/store.key");
    let said = refusal(&|command| {
        command.arg("--store-key").arg(&another);
        another.clone()
    });
    assert!(said.contains("sealed under the key") && said.contains("--store-key"), "{said}");
}

#[test]
fn a_crash_writes_no_core_file_unless_that_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let core_max = |arguments: &[&str]| {
        let data = folder.path().join("data");
        let serve = crate::server::serve(&data);
        // Where the limit is none, so that what is found is the server's own.
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
