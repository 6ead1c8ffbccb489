//! Acknowledged means durable, as the kernel sees it: under `strace`, every 201 leaves after an `fdatasync` that began
//! after the bytes of its schedule were written.

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
fn every_acknowledgement_follows_a_sync_that_began_after_its_bytes_were_written() {
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
    // strace ends when what it traces does.
    server::signal(child_of(server.pid()), Signal::TERM);
    assert!(server.wait().success());

    let trace = std::fs::read_to_string(trace).unwrap();
    assert_eq!(marks.len(), CLIENTS * CREATED_PER_CLIENT);
    assert_eq!(violations(&events(&trace), &marks, &data), [] as [String; 0]);
}

/// Creates schedules whose ids are found in what is written to the disk and in what is sent back.
fn create(mut client: Client, number: usize) -> Vec<String> {
    let far = now_millis() + 3_600_000;
    let ids = (0..CREATED_PER_CLIENT).map(|count| format!("mark-{number}-{count}-end"));
    ids.inspect(|id| {
        let answer = client.create(&one_shot(id, far, "http://127.0.0.1:1/", &json!({ "id": id })));
        assert_eq!(answer.status, 201, "{}", answer.body);
    })
    .collect()
}

fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().next().expect("strace has a child").parse().unwrap()
}

/// A call of the kernel. Its two numbers are lines of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Event<'a> {
    name: &'a str,
    /// Its arguments as strace writes them; the first begins with the file's number and path.
    arguments: &'a str,
    begin: usize,
    end: usize,
}

impl Event<'_> {
    /// The path of `12</path>, …`.
    fn path(&self) -> &str {
        let (_, rest) = self.arguments.split_once('<').unwrap_or_default();
        rest.split_once('>').unwrap_or_default().0
    }

    fn is_sync(&self) -> bool {
        matches!(self.name, "fdatasync" | "fsync")
    }
}

/// Reads `PID call(arguments) = result`, and the two halves of a call during which another thread's was traced.
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

/// What is wrong with the order of things, for the schedules whose ids are `marks`.
fn violations(events: &[Event<'_>], marks: &[String], data: &Path) -> Vec<String> {
    let is_file = |event: &&&Event<'_>| Path::new(event.path()).starts_with(data);
    let mut found = Vec::new();
    // A journal's segments are made of zeros; that is most of what is written.
    let (syncs, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.is_sync());
    let marked: Vec<_> = others.into_iter().filter(|event| event.arguments.contains("mark-")).collect();
    for mark in marks {
        let has_mark = |event: &&&Event<'_>| event.arguments.contains(mark.as_str());
        let Some(answer) = marked.iter().filter(has_mark).find(|event| event.arguments.contains("HTTP/1.1 201")) else {
            found.push(format!("{mark}: no answer was seen"));
            continue;
        };
        let written = marked.iter().filter(has_mark).filter(is_file).find(|event| event.end < answer.begin);
        let Some(written) = written else {
            found.push(format!("{mark}: answered before it was written"));
            continue;
        };
        let is_between = |event: &&Event<'_>| {
            event.path() == written.path() && written.end < event.begin && event.end < answer.begin
        };
        if !syncs.iter().any(is_between) {
            found.push(format!("{mark}: answered before its bytes were synced"));
        }
    }
    found
}

/// Traces of one schedule, and what is to be said of them.
#[test]
fn an_answer_before_its_sync_is_seen() {
    let write = r#"7 pwrite64(5</d/j>, "\1\2mark-x-end\0", 64, 0) = 64"#;
    let sync = "7 fdatasync(5</d/j>) = 0";
    let answer = r#"9 sendto(8<socket:[1]>, "HTTP/1.1 201 Created\r\n{\"id\":\"mark-x-end\"}", 90) = 90"#;
    let [started, ended] = ["7 fdatasync(5</d/j> <unfinished ...>", "7 <... fdatasync resumed>) = 0"];
    let other_file = "7 fdatasync(6</d/k>) = 0";
    let failed = "7 fdatasync(5</d/j>) = -1 EIO (Input/output error)";
    let elsewhere = r#"7 write(2</dev/pts/0>, "mark-x-end", 10) = 10"#;
    let unsynced = vec!["mark-x-end: answered before its bytes were synced".to_owned()];
    let unwritten = vec!["mark-x-end: answered before it was written".to_owned()];
    for (lines, expected) in [
        (vec![write, sync, answer], vec![]),
        (vec![write, started, ended, answer], vec![]),
        (vec![write, started, sync, answer, ended], vec![]),
        (vec![write, answer, sync], unsynced.clone()),
        (vec![sync, write, answer], unsynced.clone()),
        // It began before the write: it may not have seen the bytes.
        (vec![started, write, ended, answer], unsynced.clone()),
        // It ended after the answer.
        (vec![write, started, answer, ended], unsynced.clone()),
        (vec![write, other_file, answer], unsynced.clone()),
        (vec![write, failed, answer], unsynced),
        (vec![sync, answer, write], unwritten.clone()),
        (vec![elsewhere, sync, answer], unwritten),
        (vec![write, sync], vec!["mark-x-end: no answer was seen".to_owned()]),
    ] {
        let trace = lines.join("\n");
        let found = violations(&events(&trace), &["mark-x-end".to_owned()], Path::new("/d"));
        assert_eq!(found, expected, "{trace}");
    }
}
