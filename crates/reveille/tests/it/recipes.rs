//! The tree and the recipes from the command line, on a real ZooKeeper and a real PostgreSQL.

mod elect;

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// ZooKeeper, below a root of the test's own.
pub(crate) fn zookeeper() -> String {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("zookeeper://{}/cli-{}-{next}", test_servers::zookeeper::shared().addresses(), std::process::id())
}

fn postgres() -> String {
    let (url, folder) = (test_servers::postgres::shared().create_database().unwrap(), tempfile::tempdir().unwrap());
    let mut migrate = Command::new(env!("CARGO_BIN_EXE_reveille"));
    let migrated = migrate.args(["store", "migrate", "--store", &url, "--data"]).arg(folder.path()).output().unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    url
}

fn reveille(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reveille"));
    command.args(arguments).env("REVEILLE_COORDINATION", url).stdin(Stdio::null());
    command
}

fn run(url: &str, arguments: &[&str]) -> Output {
    reveille(url, arguments).output().unwrap()
}

#[track_caller]
fn said(url: &str, arguments: &[&str]) -> String {
    let output = run(url, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(url: &str, arguments: &[&str]) -> String {
    let output = run(url, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn json_of(url: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&said(url, arguments)).unwrap()
}

#[test]
fn nodes_are_looked_at_and_changed() {
    for url in [&zookeeper(), &postgres()] {
        assert!(refused(url, &["tree", "get", "/a/b"]).contains("reveille tree ls"));
        assert!(refused(url, &["tree", "set", "/a/b", "1"]).contains("--create"));
        assert_eq!(said(url, &["tree", "set", "/a/b", "one", "--create"]), "/a/b has version 0\n");
        assert_eq!(said(url, &["tree", "set", "/a/b", "two", "--version", "0"]), "/a/b has version 1\n");
        assert!(refused(url, &["tree", "set", "/a/b", "three", "--version", "0"]).contains("another version: 1"));
        assert_eq!(said(url, &["tree", "get", "/a/b"]), "two\n");

        let mut piped = reveille(url, &["tree", "set", "/a/c", "--create", "--json"]);
        let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        piped.stdin.take().unwrap().write_all(b"\x00\xff").unwrap();
        let made: Value = serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!((&made["path"], &made["bytes"], &made["owner"]), (&json!("/a/c"), &json!(2), &Value::Null));
        assert_eq!(said(url, &["tree", "get", "/a/c"]), "base64:AP8=\n");
        assert_eq!(run(url, &["tree", "get", "/a/c", "--raw"]).stdout, b"\x00\xff");
        assert_eq!(json_of(url, &["tree", "get", "/a/c", "--json"])["base64"], "AP8=");

        let names = |arguments: &[&str]| -> Vec<String> {
            let all = json_of(url, arguments);
            all.as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&["tree", "ls", "/a", "--json"]), ["/a/b", "/a/c"]);
        assert!(names(&["tree", "ls", "/", "--recursive", "--json"]).contains(&"/a/b".to_owned()));
        let table = said(url, &["tree", "ls", "/a"]);
        assert!(table.starts_with("NODE  BYTES  CHILDREN  VERSION") && table.contains("\nb     3"), "{table}");

        let mut watching = reveille(url, &["tree", "watch", "/a", "--json"]);
        let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = watching.stdout.take().unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            use std::io::BufRead as _;

            for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
                drop(told.send(line));
            }
        });
        // Until it watches, nothing is told.
        let mut count = 0;
        let first = loop {
            count += 1;
            said(url, &["tree", "set", "/a/b", &count.to_string()]);
            if let Ok(line) = heard.recv_timeout(Duration::from_millis(200)) {
                break line;
            }
            assert!(count < 200, "nothing is told");
        };
        assert_eq!(serde_json::from_str::<Value>(&first).unwrap(), json!({"event": "changed", "path": "/a/b"}));
        assert!(refused(url, &["tree", "rm", "/a"]).contains("--recursive"));
        assert_eq!(said(url, &["tree", "rm", "/a", "--recursive"]), "nodes deleted: 3\n");
        let is_last = |line: &String| line.contains("deleted") && line.contains("\"/a\"");
        assert!(heard.iter().take(50).any(|line| is_last(&line)), "what goes is told");
        watching.kill().unwrap();
        watching.wait().unwrap();
    }
    let unknown = refused("redis://127.0.0.1", &["tree", "ls", "/"]);
    assert!(unknown.contains("zookeeper://") && unknown.contains("postgres://"), "{unknown}");
    let path = refused(&zookeeper(), &["tree", "ls", "a//b"]);
    assert!(path.contains("a path begins with"), "{path}");
}

/// A group of processes that is closed to those who do not give its password.
#[test]
fn who_says_who_it_is_has_nodes_of_its_own() {
    let (url, folder) = (zookeeper(), tempfile::tempdir().unwrap());
    let credentials = folder.path().join("credentials");
    fs::write(&credentials, "mail:of the postman\n").unwrap();
    let file = credentials.to_str().unwrap();
    said(&url, &["tree", "set", "/mail", "mine", "--create", "--credentials-file", file]);
    assert!(refused(&url, &["tree", "get", "/mail"]).contains("--credentials-file"));
    assert_eq!(said(&url, &["tree", "get", "/mail", "--credentials-file", file]), "mine\n");
    said(&url, &["tree", "set", "/mail/box", "", "--create", "--credentials-file", file]);
    let names = said(&url, &["tree", "ls", "/", "--recursive"]);
    assert!(names.contains("/mail ") && !names.contains("/mail/box"), "{names}");
    assert!(refused(&url, &["elect", "--group", "/mail", "--", "true"]).contains("--credentials-file"));
    fs::write(&credentials, "\n").unwrap();
    assert!(refused(&url, &["tree", "ls", "/", "--credentials-file", file]).contains("has no line NAME:PASSWORD"));
    fs::write(&credentials, "no password\n").unwrap();
    let told = refused(&url, &["tree", "get", "/mail", "--credentials-file", file]);
    assert!(told.contains("line 1: a line is NAME:PASSWORD") && !told.contains("no password"), "{told}");
}

#[test]
fn instances_and_roles_are_shown() {
    let url = zookeeper();
    let yaml = "header: {service_class: kestrel}\nhost: 10.0.0.1\n";
    said(&url, &["tree", "set", "/discovery/kestrel/platform/one", yaml, "--create"]);
    let found = json_of(&url, &["discover", "kestrel", "platform", "--json"]);
    assert_eq!(found["source"], "engine");
    assert_eq!(found["instances"][0]["payload"]["host"], "10.0.0.1");
    let table = said(&url, &["discover", "kestrel"]);
    assert!(table.contains("platform") && table.contains("10.0.0.1"), "{table}");

    let empty = json_of(&url, &["roles", "/roles", "--json"]);
    assert_eq!(empty, json!({"jobs": [], "waiting": []}));
    said(&url, &["tree", "set", "/roles/jobs/item/item0000000000", "sweep", "--create"]);
    said(&url, &["tree", "set", "/roles/assignment/assignment0000000000", "ann", "--create"]);
    said(&url, &["tree", "set", "/roles/queue/candidate/candidate0000000003", "bob", "--create"]);
    let table = said(&url, &["roles", "/roles"]);
    assert!(table.contains("sweep") && table.contains("ann") && table.contains("1 wait for a job"), "{table}");
}
