//! Tests that the current build opens the data of an earlier build and fires its schedules.
//! tests/fixtures/before-relayout/README.md describes the data.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use axum::http::{HeaderMap, HeaderName};
use reveille_receiver::{Options, Verifier};
use serde_json::{Value, json};
use test_servers::postgres;
use tokio_postgres::NoTls;

use crate::client::{Client, rfc3339};
use crate::receiver::{Hit, Receiver};
use crate::server::{BINARY, Server, serve};
use crate::{now_millis, until};

/// Address of the targets in the fixture. Only one test at a time may receive callbacks at this address.
const TARGET: &str = "127.77.22.1:22022";

#[test]
fn server_fires_schedules_in_data_folder_of_earlier_build() {
    let (receiver, _alone) = receiver();
    let folder = tempfile::tempdir().unwrap();
    let data = unpack("data", folder.path());
    opens_and_fires(&data, &receiver);
}

#[test]
fn server_fires_schedules_in_restored_backup_of_earlier_build() {
    let (receiver, _alone) = receiver();
    let folder = tempfile::tempdir().unwrap();
    let backup = unpack("backup", folder.path());
    let data = folder.path().join("restored");
    run(Command::new(BINARY).arg("restore").arg("--from").arg(&backup).arg("--data").arg(&data));
    // A backup contains only the hashes of keys, so the test copies the key files, as an operator would do.
    let original = unpack("data", folder.path());
    for name in ["admin.key", "store.key"] {
        std::fs::copy(original.join(name), data.join(name)).unwrap();
    }
    opens_and_fires(&data, &receiver);
}

fn opens_and_fires(data: &Path, receiver: &Receiver) {
    let recorded = Recorded::read("embedded");
    let from = receiver.hits().len();
    run(Command::new(BINARY).arg("check").arg("--data").arg(data));
    let server = Server::start(data);
    recorded.compare(&server, Firing::Underway);
    recorded.fires(&server, receiver, from);
    assert!(server.stop().success());
    run(Command::new(BINARY).arg("check").arg("--data").arg(data));
}

#[test]
fn server_fires_schedules_in_database_of_earlier_build() {
    let (receiver, _alone) = receiver();
    let recorded = Recorded::read("postgres");
    let database = Database::load("postgres", &recorded);
    database.is_read_without_change(&recorded);
    let from = receiver.hits().len();
    let server = database.start(&[]);
    recorded.fires(&server, &receiver, from);
    let hits = receiver.wait(|hits| hits[from..].iter().any(|hit| hit.schedule == "inbox-created"));
    assert!(hits[from..].iter().all(|hit| hit.schedule != "to-be-cancelled-by-record"));
    let mut client = recorded.client(&server, "default_reader");
    until("the inbox cancels a schedule", || {
        client.get("/v1/schedules/inbox-cancelled").json()["state"] == "cancelled"
    });
    assert!(server.stop().success());
}

#[test]
fn server_fires_schedules_in_export_of_earlier_build() {
    let (receiver, _alone) = receiver();
    let recorded = Recorded::read("exported");
    let database = Database::load("exported", &recorded);
    database.is_read_without_change(&recorded);
    let from = receiver.hits().len();
    let server = database.start(&[]);
    recorded.fires(&server, &receiver, from);
    assert!(server.stop().success());
}

#[test]
fn header_of_an_earlier_build_is_rejected_after_the_migration() {
    let (receiver, _alone) = receiver();
    let recorded = Recorded::read("postgres");
    let spec = sql(&dumped("postgres"), "select encode(spec, 'hex') from reveille.schedule where id = 'later'");
    let database = Database::load("postgres", &recorded);
    let from = receiver.hits().len();
    let plant = format!("update reveille.schedule set spec = decode('{}', 'hex') where id = 'later'", spec.trim());
    sql(&database.url, &plant);
    let server = database.start(&[]);
    let mut writer = recorded.client(&server, "default_writer");
    let now = json!({ "at": rfc3339(now_millis()), "retry": { "attempts_max": 1 } }).to_string();
    assert_eq!(writer.send("PATCH", "/v1/schedules/later", &now).unwrap().status, 200);
    let mut run = json!(null);
    until("the run of the schedule fails", || {
        run = writer.get("/v1/schedules/later/runs").json()["runs"][0].clone();
        run["state"] == "failed"
    });
    let error = run["attempts"][0]["error"].as_str().unwrap();
    assert!(error.contains("not bound to a target") && error.contains("send the schedule's headers again"), "{error}");
    assert!(receiver.hits()[from..].iter().all(|hit| hit.schedule != "later"));

    let headers = json!({ "authorization": "Bearer again" });
    let again = json!({ "at": rfc3339(now_millis()), "target": { "http": { "headers": headers } } }).to_string();
    assert_eq!(writer.send("PATCH", "/v1/schedules/later", &again).unwrap().status, 200);
    receiver.wait(|hits| hits[from..].iter().any(|hit| hit.authorization == "Bearer again"));
    assert!(server.stop().success());
}

/// Returns the receiver that all tests of this file share, with a guard. Only one test at a time has the guard.
fn receiver() -> (Receiver, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    static RECEIVER: OnceLock<Receiver> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let receiver = RECEIVER.get_or_init(|| {
        let mut listener = None;
        // The loop repeats the bind, because another test process on this machine may be using the address.
        until("the address of the targets becomes free", || {
            listener = TcpListener::bind(TARGET).ok();
            listener.is_some()
        });
        Receiver::start_on(listener.unwrap())
    });
    (receiver.clone(), alone)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/before-relayout").join(name)
}

#[track_caller]
fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn unpack(name: &str, parent: &Path) -> PathBuf {
    let folder = parent.join(name);
    std::fs::create_dir(&folder).unwrap();
    let archive = fixture(&format!("{name}.tar.gz"));
    run(Command::new("tar")
        .args(["--extract", "--gzip", "--no-same-owner", "--file"])
        .arg(archive)
        .arg("-C")
        .arg(&folder));
    folder
}

fn uncompressed(name: &str) -> String {
    String::from_utf8(run(Command::new("gzip").args(["-dc"]).arg(fixture(name)))).expect("the fixture is text")
}

/// Database that the test fills from an earlier build's dump, and a folder with the keys of that build.
struct Database {
    folder: tempfile::TempDir,
    url: String,
    store_key: PathBuf,
}

/// Creates a database from an earlier build's dump, and returns its URL.
fn dumped(name: &str) -> String {
    let url = postgres::shared().create_database().unwrap();
    let statements = uncompressed(&format!("{name}.sql.gz"));
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(&statements).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    });
    url
}

/// Runs statements in a database of the shared server, and returns their output.
fn sql(url: &str, statements: &str) -> String {
    let database = url.rsplit('/').next().expect("the URL names a database");
    postgres::shared().sql(database, statements).unwrap()
}

impl Database {
    fn load(name: &str, recorded: &Recorded) -> Self {
        let url = dumped(name);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("admin.key"), recorded.key("admin")).unwrap();
        let store_key = folder.path().join("store.key");
        std::fs::copy(fixture(&format!("{name}.store.key")), &store_key).unwrap();
        // Git does not record all file modes, so the test makes the key file readable only for its owner.
        std::fs::set_permissions(&store_key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut migrate = Command::new(BINARY);
        migrate.args(["store", "migrate", "--store", &url, "--data"]).arg(folder.path());
        run(migrate.arg("--store-key").arg(&store_key));
        Database { folder, url, store_key }
    }

    fn start(&self, more: &[&str]) -> Server {
        let mut command = serve(&self.folder.path().join("member"));
        command.args(["--store", &self.url, "--lease", "2"]).args(more);
        command.arg("--store-key").arg(&self.store_key);
        Server::start_where(command, |_| self.folder.path().to_owned())
    }

    /// Checks that a member that owns no shard returns the recorded responses. Such a member sends no callbacks, so
    /// overdue rows have no outcome. While overdue rows have no outcome, no member removes history, even if the history
    /// is very old.
    fn is_read_without_change(&self, recorded: &Recorded) {
        let server = self.start(&["--roles", "api"]);
        recorded.compare(&server, Firing::Paused);
        assert!(server.stop().success());
    }
}

/// Fields of responses that the earlier build did not have.
const NEW_FIELDS: [&str; 11] = [
    "allow_topics",
    "bus_callbacks_per_second",
    "bus_in_flight_max",
    "error_class",
    "excerpts",
    "http_callbacks_per_second",
    "http_in_flight_max",
    "retention_days",
    "stored_mib_max",
    "unreadable",
    "usage",
];

/// Removes the fields of [`NEW_FIELDS`] from a response. All other fields must equal the recorded fields.
fn leave_out_new_fields(response: &mut Value) {
    match response {
        Value::Object(fields) => {
            fields.retain(|name, _| !NEW_FIELDS.contains(&name.as_str()));
            fields.values_mut().for_each(leave_out_new_fields);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_new_fields),
        _ => {}
    }
}

/// Subtracts the two changes of the operator tenant by which the migration of the headers recorded its progress.
fn subtract_header_migration(response: &mut Value) {
    for tenant in response.get_mut("tenants").and_then(Value::as_array_mut).into_iter().flatten() {
        if tenant["name"] == "operator" {
            tenant["version"] = json!(tenant["version"].as_u64().unwrap() - 2);
        }
    }
}

/// State of the active schedules during a comparison. In the state `Paused`, no schedule has fired since the earlier
/// build recorded its responses. In the state `Underway`, schedules may have fired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Firing {
    Paused,
    Underway,
}

/// Keys, secrets and responses of the build that created the fixture.
struct Recorded(Value);

impl Recorded {
    fn read(name: &str) -> Self {
        Recorded(serde_json::from_str(&uncompressed(&format!("{name}.json.gz"))).unwrap())
    }

    fn key(&self, name: &str) -> &str {
        self.0["keys"][name].as_str().expect("the key was recorded")
    }

    fn client(&self, server: &Server, key: &str) -> Client {
        Client::connect(server.address, self.key(key)).unwrap()
    }

    fn responses(&self) -> impl Iterator<Item = &Value> {
        self.0["answers"].as_array().into_iter().flatten()
    }

    fn body<'a>(&'a self, path: &str) -> Option<&'a Value> {
        self.responses().find(|response| response["path"] == path).map(|response| &response["body"])
    }

    /// Sends all recorded requests again, and compares the new responses with the recorded responses.
    fn compare(&self, server: &Server, firing: Firing) {
        assert!(self.responses().count() > 40, "the record has responses");
        for recorded in self.responses() {
            let (path, key) = (recorded["path"].as_str().unwrap(), recorded["key"].as_str().unwrap());
            if path.contains("/inbox-") {
                continue;
            }
            let response = self.client(server, key).get(path);
            assert_eq!(recorded["status"], response.status, "{path} by {key}: {}", response.body);
            assert_eq!(recorded.get("etag").and_then(Value::as_str), response.etag.as_deref(), "{path}");
            let mut expected = recorded["body"].clone();
            let mut present = response.json();
            if let Some(problem) = present.as_object_mut() {
                problem.remove("request_id");
            }
            // A later build may change the title and the detail of a problem, but not the problem code.
            if response.status >= 400 {
                for problem in [&mut expected, &mut present] {
                    let problem = problem.as_object_mut().expect("a problem is an object");
                    assert!(problem.contains_key("code"), "{path}: {problem:?}");
                    problem.remove("title");
                    problem.remove("detail");
                }
            }
            self.leave_out_moving(&mut expected, &mut present, firing);
            leave_out_new_fields(&mut present);
            subtract_header_migration(&mut present);
            assert_eq!(expected, present, "{path} by {key}");
        }
    }

    /// Removes the parts of the responses that may differ even if the build is correct. These parts are the schedules
    /// that inbox requests create or cancel, and the progress of active schedules that may have fired.
    fn leave_out_moving(&self, expected: &mut Value, present: &mut Value, firing: Firing) {
        if expected["state"] == "active" && firing == Firing::Underway {
            for body in [&mut *expected, &mut *present] {
                body.as_object_mut().unwrap().retain(|name, _| !["state", "next"].contains(&name.as_str()));
            }
        }
        if let (Some(expected), Some(present)) =
            (expected["schedules"].as_array_mut(), present["schedules"].as_array_mut())
        {
            for list in [&mut *expected, &mut *present] {
                list.retain(|schedule| !schedule["id"].as_str().unwrap().starts_with("inbox-"));
            }
            let ids: BTreeSet<String> = expected.iter().map(|schedule| schedule["id"].to_string()).collect();
            if firing == Firing::Underway {
                present.retain(|schedule| ids.contains(&schedule["id"].to_string()));
            }
            for (expected, present) in expected.iter_mut().zip(present) {
                self.leave_out_moving(expected, present, firing);
            }
        } else if let (Some(expected), Some(present)) =
            (expected["runs"].as_array_mut(), present["runs"].as_array_mut())
            && firing == Firing::Underway
        {
            let ids: BTreeSet<String> = expected.iter().map(|run| run["id"].to_string()).collect();
            present.retain(|run| ids.contains(&run["id"].to_string()));
            for (expected, present) in expected.iter_mut().zip(present) {
                if expected["state"] == "retrying" {
                    present["state"] = json!("retrying");
                    present["attempts"]
                        .as_array_mut()
                        .unwrap()
                        .truncate(expected["attempts"].as_array().unwrap().len());
                }
            }
        }
    }

    /// Checks that overdue, recurring and future schedules fire. `from` is the number of callbacks that belong to
    /// earlier tests.
    fn fires(&self, server: &Server, receiver: &Receiver, from: usize) {
        let waits = |id: &str| self.body(&format!("/v1/schedules/{id}")).is_some_and(|body| body["state"] == "active");
        let overdue = ["overdue", "overdue-of-billing", "retrying"].into_iter().filter(|id| waits(id));
        let overdue: Vec<&str> = overdue.collect();
        assert!(overdue.contains(&"overdue-of-billing"));
        let mut writer = self.client(server, "default_writer");
        let later = json!({ "at": rfc3339(now_millis()) }).to_string();
        let patched = writer.send("PATCH", "/v1/schedules/later", &later).unwrap();
        assert_eq!(patched.status, 200, "{}", patched.body);
        let dead = self.body("/v1/runs?dead_letter=true").unwrap()["runs"][0]["id"].as_str().unwrap();
        let redriven = writer.send("POST", &format!("/v1/runs/{dead}/redrive"), "").unwrap();
        assert_eq!(redriven.status, 200, "{}", redriven.body);

        let runs = |hits: &[Hit], id: &str| -> BTreeSet<String> {
            hits.iter().filter(|hit| hit.schedule == id).map(|hit| hit.run.clone()).collect()
        };
        let hits = receiver.wait(|hits| {
            let has = |id: &str, count| runs(&hits[from..], id).len() >= count;
            ["later", "dead"].iter().chain(&overdue).all(|id| has(id, 1))
                && ["ticking-every", "ticking-cron"].iter().all(|id| has(id, 3))
        });
        let hits = &hits[from..];
        self.verify(hits);
        let first = |id: &str| hits.iter().find(|hit| hit.schedule == id).expect("the callback has arrived");
        assert_eq!(
            (first("later").authorization.as_str(), &*first("later").body),
            ("Bearer of-the-target", r#"{"later": true}"#)
        );
        if overdue.contains(&"overdue") {
            let token = ("x-token".to_owned(), "of the overdue".to_owned());
            assert!(first("overdue").headers.contains(&token));
            assert_eq!(first("overdue").body, r#"{"overdue": true}"#);
        }
        if overdue.contains(&"retrying") {
            let path = "/v1/schedules/retrying/runs?limit=1000";
            let recorded = &self.body(path).unwrap()["runs"][0];
            assert_eq!(
                (first("retrying").run.as_str(), first("retrying").attempt.as_str()),
                (recorded["id"].as_str().unwrap(), "2")
            );
            until("the retry succeeds", || writer.get(path).json()["runs"][0]["state"] == "succeeded");
            let mut attempt = writer.get(path).json()["runs"][0]["attempts"][0].clone();
            leave_out_new_fields(&mut attempt);
            assert_eq!(attempt, recorded["attempts"][0]);
        }
        let daily = writer.get("/v1/schedules/daily").json();
        assert!(daily["next"].as_str().unwrap() > rfc3339(now_millis()).as_str(), "{daily}");

        let idempotent = &self.0["idempotent"];
        let mut again = self.client(server, "default_writer").with_header("idempotency-key", "order-4711");
        let again = again.send("POST", "/v1/schedules", idempotent["body"].as_str().unwrap()).unwrap();
        assert_eq!((again.status, again.body.as_str()), (201, idempotent["answer"].as_str().unwrap()));
        assert_eq!(again.etag.as_deref(), idempotent["etag"].as_str());
    }

    /// Checks that every callback has a valid signature for each signing secret of its tenant.
    fn verify(&self, hits: &[Hit]) {
        for hit in hits {
            let tenant = if hit.schedule.ends_with("-of-billing") { "billing" } else { "default" };
            let headers: HeaderMap = (hit.headers.iter())
                .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
                .collect();
            let secrets = self.0["signing_secrets"][tenant].as_array().unwrap();
            for secret in secrets {
                let verifier = Verifier::new(secret.as_str().unwrap().parse().unwrap(), Options::default());
                let verified = verifier.verify(&headers, hit.bytes.clone().into(), SystemTime::now());
                assert_eq!(verified.expect("the signature is valid").id, hit.run);
            }
            assert_eq!(headers["webhook-signature"].to_str().unwrap().split(' ').count(), secrets.len());
        }
    }
}
