//! Candidate processes that run `examples/candidate.rs`.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use test_servers::Namespace;

use crate::history::History;
use crate::sink::Sink;

/// Leader group at `/group`. The sink receives the candidates' writes, and the history contains the candidates' events.
pub(crate) struct Group {
    pub(crate) sink: Sink,
    pub(crate) history: History,
    session: Duration,
}

/// Candidate process. A drop of this value kills the process.
pub(crate) struct Candidate {
    pub(crate) id: String,
    child: Child,
}

/// Returns the path of the candidate program. `cargo test --package reveille-coordination` builds the examples together
/// with the tests. With `--test faults`, cargo does not build the examples, so the tests may run an old program.
fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/candidate");
    assert!(
        program.exists(),
        "no candidate program; run `cargo build --package reveille-coordination --example candidate`"
    );
    program
}

impl Group {
    pub(crate) fn new(session: Duration) -> Self {
        Group { sink: Sink::start(), history: History::default(), session }
    }

    pub(crate) fn start(&self, url: &str, id: &str) -> Candidate {
        self.start_by(Command::new(program()), url, id)
    }

    pub(crate) fn start_in(&self, namespace: &Namespace, url: &str, id: &str) -> Candidate {
        self.start_by(namespace.command(&program()), url, id)
    }

    fn start_by(&self, mut command: Command, url: &str, id: &str) -> Candidate {
        command.args([url, "/group", id, &self.session.as_millis().to_string()]).arg(self.sink.path());
        // The tests read the nodes of the group without credentials.
        command.arg("--open");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdout, history, name) = (child.stdout.take().unwrap(), self.history.clone(), id.to_owned());
        thread::spawn(move || {
            let mut lines = BufReader::new(stdout);
            let mut line = String::new();
            // The last line of a killed process's output may be incomplete. The thread ignores an incomplete line.
            while lines.read_line(&mut line).is_ok() && line.ends_with('\n') {
                history.record(&name, line.trim_end());
                line.clear();
            }
        });
        Candidate { id: id.to_owned(), child }
    }
}

impl Candidate {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Pauses the process with the signal SIGSTOP, which the process cannot catch.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // `kill` and `wait` may fail if the process has already ended. This failure is harmless.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
