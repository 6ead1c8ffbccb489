//! Test that acknowledged schedules are durable. It observes the system calls of the server with `strace`. The server
//! must send each response 201 after an `fdatasync` that began after the write of the schedule's bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::process::Signal;
use serde_json::json;

use crate::client::{Client, one_shot};
use crate::now_millis;
use crate::server::{self, Server, serve};

const CLIENTS: usize = 4;
const CREATED_PER_CLIENT: usize = 30;
const CALLS: &str =
    "trace=write,writev,pwrite64,pwritev,pwritev2,fdatasync,fsync,sendto,sendmsg,sendmmsg,io_uring_enter";

#[test]
fn server_acknowledges_a_schedule_only_after_its_bytes_are_synced() {
    let folder = tempfile::tempdir().unwrap();
    let (data, trace) = (folder.path().join("data"), folder.path().join("trace"));
    let mut command = Command::new("strace");
    command.args(["--follow-forks", "--decode-fds=path", "--string-limit=32768", "-e", CALLS, "--output"]);
    let plain = serve(&data);
    command.arg(&trace).arg(plain.get_program()).args(plain.get_args());
    let server = Server::start_by(command, &data);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = server.client();
            thread::spawn(move || create(client, number))
        })
        .collect();
    let marks: Vec<String> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    // The process `strace` ends when the server that it traces has ended.
    server::signal(child_of(server.pid()), Signal::TERM);
    assert!(server.wait().success());

    let trace = std::fs::read_to_string(trace).unwrap();
    assert_eq!(marks.len(), CLIENTS * CREATED_PER_CLIENT);
    assert_eq!(violations(&events(&trace), &marks, &data), [] as [String; 0]);
}

/// Creates schedules whose ids appear in the bytes on the disk and in the responses.
fn create(mut client: Client, number: usize) -> Vec<String> {
    let far = now_millis() + 3_600_000;
    let ids = (0..CREATED_PER_CLIENT).map(|count| format!("mark-{number}-{count}-end"));
    ids.inspect(|id| {
        let response = client.create(&one_shot(id, far, "http://127.0.0.1:1/", &json!({ "id": id })));
        assert_eq!(response.status, 201, "{}", response.body);
    })
    .collect()
}

fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().next().expect("strace has a child process").parse().unwrap()
}

/// System call.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Event<'a> {
    name: &'a str,
    /// Arguments of the call in the form that strace writes. The first argument contains the file descriptor and the
    /// path of the file.
    arguments: &'a str,
    /// Line of the trace at which the call begins.
    begin: usize,
    /// Line of the trace at which the call ends.
    end: usize,
}

impl Event<'_> {
    /// Returns the path in arguments of the form `12</path>, …`.
    fn path(&self) -> &str {
        let (_, rest) = self.arguments.split_once('<').unwrap_or_default();
        rest.split_once('>').unwrap_or_default().0
    }

    fn is_sync(&self) -> bool {
        matches!(self.name, "fdatasync" | "fsync")
    }
}

/// Parses lines of the form `PID call(arguments) = result`. If another thread makes a call before the first call has
/// ended, strace writes the first call on two lines. This function joins these two lines.
fn events(trace: &str) -> Vec<Event<'_>> {
    let mut events = Vec::new();
    let mut unfinished: BTreeMap<&str, Event<'_>> = BTreeMap::new();
    for (at, line) in trace.lines().enumerate() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if call.starts_with("<... ") {
            if let Some(event) = unfinished.remove(pid) {
                let is_done = !line.contains(" = -1 ");
                events.extend(is_done.then_some(Event { end: at, ..event }));
            }
        } else if let Some((name, arguments)) = call.split_once('(') {
            let event = Event { name, arguments, begin: at, end: at };
            if arguments.ends_with("<unfinished ...>") {
                unfinished.insert(pid, event);
            } else if !line.contains(" = -1 ") {
                events.push(event);
            }
        }
    }
    events
}

/// Returns a text for each schedule id in `marks` whose response 201 is missing, or precedes the write or the sync of
/// the schedule's bytes.
fn violations(events: &[Event<'_>], marks: &[String], data: &Path) -> Vec<String> {
    let is_file = |event: &&&Event<'_>| Path::new(event.path()).starts_with(data);
    let mut found = Vec::new();
    // The function ignores writes that contain no id of a schedule. Most of them fill the segments of the journal with
    // zeros.
    let (syncs, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.is_sync());
    let marked: Vec<_> = others.into_iter().filter(|event| event.arguments.contains("mark-")).collect();
    for mark in marks {
        let has_mark = |event: &&&Event<'_>| event.arguments.contains(mark.as_str());
        let Some(response) = marked.iter().filter(has_mark).find(|event| event.arguments.contains("HTTP/1.1 201"))
        else {
            found.push(format!("{mark}: no response in the trace"));
            continue;
        };
        let written = marked.iter().filter(has_mark).filter(is_file).find(|event| event.end < response.begin);
        let Some(written) = written else {
            found.push(format!("{mark}: response before the write"));
            continue;
        };
        let is_between = |event: &&Event<'_>| {
            event.path() == written.path() && written.end < event.begin && event.end < response.begin
        };
        if !syncs.iter().any(is_between) {
            found.push(format!("{mark}: response before the sync"));
        }
    }
    found
}

#[test]
fn durability_check_finds_responses_that_precede_the_sync() {
    let write = r#"7 pwrite64(5</d/j>, "\1\2mark-x-end\0", 64, 0) = 64"#;
    let sync = "7 fdatasync(5</d/j>) = 0";
    let response = r#"9 sendto(8<socket:[1]>, "HTTP/1.1 201 Created\r\n{\"id\":\"mark-x-end\"}", 90) = 90"#;
    let [started, ended] = ["7 fdatasync(5</d/j> <unfinished ...>", "7 <... fdatasync resumed>) = 0"];
    let other_file = "7 fdatasync(6</d/k>) = 0";
    let failed = "7 fdatasync(5</d/j>) = -1 EIO (Input/output error)";
    let elsewhere = r#"7 write(2</dev/pts/0>, "mark-x-end", 10) = 10"#;
    let unsynced = vec!["mark-x-end: response before the sync".to_owned()];
    let unwritten = vec!["mark-x-end: response before the write".to_owned()];
    for (lines, expected) in [
        (vec![write, sync, response], vec![]),
        (vec![write, started, ended, response], vec![]),
        (vec![write, started, sync, response, ended], vec![]),
        (vec![write, response, sync], unsynced.clone()),
        (vec![sync, write, response], unsynced.clone()),
        // The sync in this trace began before the write, so the sync does not necessarily include the written bytes.
        (vec![started, write, ended, response], unsynced.clone()),
        // The sync in this trace ended after the response.
        (vec![write, started, response, ended], unsynced.clone()),
        (vec![write, other_file, response], unsynced.clone()),
        (vec![write, failed, response], unsynced),
        (vec![sync, response, write], unwritten.clone()),
        (vec![elsewhere, sync, response], unwritten),
        (vec![write, sync], vec!["mark-x-end: no response in the trace".to_owned()]),
    ] {
        let trace = lines.join("\n");
        let found = violations(&events(&trace), &["mark-x-end".to_owned()], Path::new("/d"));
        assert_eq!(found, expected, "{trace}");
    }
}
