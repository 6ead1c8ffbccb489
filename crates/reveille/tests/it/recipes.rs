//! Tests of the commands for the coordination tree and its recipes, with a real ZooKeeper and a real PostgreSQL.

mod elect;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Returns a ZooKeeper URL with a root that no other test uses.
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
fn stdout_of(url: &str, arguments: &[&str]) -> String {
    let output = run(url, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn failure(url: &str, arguments: &[&str]) -> String {
    let output = run(url, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
fn json_of(url: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(url, arguments)).unwrap()
}

#[test]
fn tree_commands_show_and_change_nodes() {
    for url in [&zookeeper(), &postgres()] {
        assert!(failure(url, &["tree", "get", "/a/b"]).contains("reveille tree ls"));
        assert!(failure(url, &["tree", "set", "/a/b", "1"]).contains("--create"));
        assert_eq!(stdout_of(url, &["tree", "set", "/a/b", "one", "--create", "--open"]), "/a/b has version 0\n");
        assert_eq!(stdout_of(url, &["tree", "set", "/a/b", "two", "--version", "0"]), "/a/b has version 1\n");
        assert!(failure(url, &["tree", "set", "/a/b", "three", "--version", "0"]).contains("another version: 1"));
        assert_eq!(stdout_of(url, &["tree", "get", "/a/b"]), "two\n");

        let mut piped = reveille(url, &["tree", "set", "/a/c", "--create", "--open", "--json"]);
        let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        piped.stdin.take().unwrap().write_all(b"\x00\xff").unwrap();
        let created: Value = serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!((&created["path"], &created["bytes"], &created["owner"]), (&json!("/a/c"), &json!(2), &Value::Null));
        assert_eq!(stdout_of(url, &["tree", "get", "/a/c"]), "base64:AP8=\n");
        assert_eq!(run(url, &["tree", "get", "/a/c", "--raw"]).stdout, b"\x00\xff");
        assert_eq!(json_of(url, &["tree", "get", "/a/c", "--json"])["base64"], "AP8=");

        let names = |arguments: &[&str]| -> Vec<String> {
            let all = json_of(url, arguments);
            all.as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&["tree", "ls", "/a", "--json"]), ["/a/b", "/a/c"]);
        assert!(names(&["tree", "ls", "/", "--recursive", "--json"]).contains(&"/a/b".to_owned()));
        let table = stdout_of(url, &["tree", "ls", "/a"]);
        assert!(table.starts_with("NODE  BYTES  CHILDREN  VERSION") && table.contains("\nb     3"), "{table}");

        let mut watching = reveille(url, &["tree", "watch", "/a", "--json"]);
        let mut watching = watching.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = watching.stdout.take().unwrap();
        let (sender, events) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            use std::io::BufRead as _;

            for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        // The watch does not report changes before its start, so the test repeats the changes until the first event
        // arrives.
        let mut count = 0;
        let first = loop {
            count += 1;
            stdout_of(url, &["tree", "set", "/a/b", &count.to_string()]);
            if let Ok(line) = events.recv_timeout(Duration::from_millis(200)) {
                break line;
            }
            assert!(count < 200, "no event arrives");
        };
        assert_eq!(serde_json::from_str::<Value>(&first).unwrap(), json!({"event": "changed", "path": "/a/b"}));
        assert!(failure(url, &["tree", "rm", "/a"]).contains("--recursive"));
        assert_eq!(stdout_of(url, &["tree", "rm", "/a", "--recursive"]), "nodes deleted: 3\n");
        let is_last = |line: &String| line.contains("deleted") && line.contains("\"/a\"");
        assert!(events.iter().take(50).any(|line| is_last(&line)), "deletions are reported");
        watching.kill().unwrap();
        watching.wait().unwrap();
    }
    let unknown = failure("redis://127.0.0.1", &["tree", "ls", "/"]);
    assert!(unknown.contains("zookeeper://") && unknown.contains("postgres://"), "{unknown}");
    let path = failure(&zookeeper(), &["tree", "ls", "a//b"]);
    assert!(path.contains("it must start with"), "{path}");
}

#[test]
fn access_to_nodes_requires_the_credentials_of_their_creator() {
    let (url, folder) = (zookeeper(), tempfile::tempdir().unwrap());
    let credentials = folder.path().join("credentials");
    let file = credentials.to_str().unwrap();
    for command in [&["tree", "set", "/mail", "mine", "--create"][..], &["elect", "--group", "/mail", "--", "true"]] {
        let error = failure(&url, command);
        assert!(error.contains("`reveille credentials FILE`") && error.contains("--open"), "{error}");
    }
    assert!(failure(&url, &["tree", "ls", "/"]).contains("check the URL"), "a read created the root");
    assert!(stdout_of("", &["credentials", file]).contains("copy it to every host"));
    let created = fs::read_to_string(&credentials).unwrap();
    assert_eq!(fs::metadata(&credentials).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(created.starts_with("reveille:") && created.len() > 50, "{} bytes", created.len());
    assert!(failure("", &["credentials", file]).contains("exists"));
    assert_eq!(fs::read_to_string(&credentials).unwrap(), created);
    let other = folder.path().join("other");
    assert!(failure("", &["credentials", "--name", "a:b", other.to_str().unwrap()]).contains("--name"));
    stdout_of(&url, &["tree", "set", "/mail", "mine", "--create", "--credentials", file]);
    assert!(failure(&url, &["tree", "get", "/mail"]).contains("--credentials"));
    assert_eq!(stdout_of(&url, &["tree", "get", "/mail", "--credentials", file]), "mine\n");
    stdout_of(&url, &["tree", "set", "/mail/box", "", "--create", "--credentials", file]);
    assert!(failure(&url, &["tree", "ls", "/"]).contains("--credentials"), "the root belongs to the credentials");
    stdout_of(&url, &["tree", "set", "/public", "", "--create", "--open", "--credentials", file]);
    assert_eq!(stdout_of(&url, &["tree", "get", "/public"]), "\n");
    assert!(failure(&url, &["elect", "--open", "--group", "/mail", "--", "true"]).contains("--credentials"));
    let elect = ["elect", "--group", "/mail/lead", "--credentials", file, "--", "true"];
    assert!(run(&url, &elect).status.success());
    fs::write(&credentials, "\n").unwrap();
    assert!(failure(&url, &["tree", "ls", "/", "--credentials", file]).contains("has no line NAME:PASSWORD"));
    fs::write(&credentials, "no password\n").unwrap();
    let error = failure(&url, &["tree", "get", "/mail", "--credentials", file]);
    assert!(error.contains("line 1: expected the form NAME:PASSWORD") && !error.contains("no password"), "{error}");
}

#[test]
fn discover_and_roles_commands_show_the_contents_of_the_tree() {
    let url = zookeeper();
    let yaml = "header: {service_class: kestrel}\nhost: 10.0.0.1\n";
    stdout_of(&url, &["tree", "set", "/discovery/kestrel/platform/one", yaml, "--create", "--open"]);
    let found = json_of(&url, &["discover", "kestrel", "platform", "--json"]);
    assert_eq!(found["source"], "engine");
    assert_eq!(found["instances"][0]["payload"]["host"], "10.0.0.1");
    let table = stdout_of(&url, &["discover", "kestrel"]);
    assert!(table.contains("platform") && table.contains("10.0.0.1"), "{table}");

    let empty = json_of(&url, &["roles", "/roles", "--json"]);
    assert_eq!(empty, json!({"jobs": [], "waiting": []}));
    stdout_of(&url, &["tree", "set", "/roles/jobs/item/item0000000000", "sweep", "--create", "--open"]);
    stdout_of(&url, &["tree", "set", "/roles/assignment/assignment0000000000", "ann", "--create", "--open"]);
    stdout_of(&url, &["tree", "set", "/roles/queue/candidate/candidate0000000003", "bob", "--create", "--open"]);
    let table = stdout_of(&url, &["roles", "/roles"]);
    assert!(table.contains("sweep") && table.contains("ann") && table.contains("waiting for a job: 1"), "{table}");
}
