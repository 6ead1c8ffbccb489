//! A process of the binary, as an operator has it.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::PATIENCE;
use crate::client::Client;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_reveille");

/// What a process has said so far, line by line.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Said>, Condvar)>);

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    has_ended: bool,
}

impl Lines {
    fn follow(output: impl Read + Send + 'static) -> Self {
        let lines = Lines::default();
        let follower = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                follower.0.0.lock().unwrap().lines.push(line);
                follower.0.1.notify_all();
            }
            follower.0.0.lock().unwrap().has_ended = true;
            follower.0.1.notify_all();
        });
        lines
    }

    pub(crate) fn text(&self) -> String {
        self.0.0.lock().unwrap().lines.join("\n")
    }

    /// Waits for a line that `find` finds something in; `None` if the process ends without.
    pub(crate) fn wait<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + PATIENCE;
        let (said, heard) = &*self.0;
        let mut said = said.lock().unwrap();
        loop {
            if let Some(found) = said.lines.iter().find_map(|line| find(line)) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not say what was waited for, only:\n{}", said.lines.join("\n"));
            if said.has_ended {
                return None;
            }
            said = heard.wait_timeout(said, left).unwrap().0;
        }
    }
}

/// A server that is ready. Dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// What goes after `Bearer`.
    pub(crate) key: String,
    pub(crate) stdout: Lines,
    pub(crate) log: Lines,
}

/// `reveille serve` on `data` and on a port of its choice, without its receiver.
pub(crate) fn serve(data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--data"]).arg(data);
    command
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Server::start_by(serve(data), data)
    }

    /// Runs `command` and waits until it says that it is ready.
    pub(crate) fn start_by(command: Command, data: &Path) -> Self {
        Server::start_where(command, |_| data.to_owned())
    }

    /// As [`Server::start_by`]; `data_of` tells where the data folder of the process with this id is seen from here.
    pub(crate) fn start_where(mut command: Command, data_of: impl FnOnce(u32) -> PathBuf) -> Self {
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("it is piped"));
        let log = Lines::follow(child.stderr.take().expect("it is piped"));
        let address = log.wait(|line| {
            if line.starts_with('{') {
                return line.contains(r#""ready""#).then(|| json_address(line))?;
            }
            let (_, rest) = line.split_once(" ready ")?.1.split_once("address=")?;
            rest.split(' ').next()?.parse().ok()
        });
        let address = address.unwrap_or_else(|| panic!("the server ended:\n{}\n{}", stdout.text(), log.text()));
        let key = std::fs::read_to_string(data_of(child.id()).join("admin.key")).expect("the first start makes a key");
        Server { child, address, key: key.trim().to_owned(), stdout, log }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address, &self.key).expect("a server that is ready answers")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`; returns once the process is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started here");
    }

    /// SIGTERM, without waiting for what becomes of it.
    pub(crate) fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        // Its output ends when it does.
        self.log.wait(|_| None::<()>);
        self.child.wait().expect("it was started here")
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn stop(self) -> ExitStatus {
        self.terminate();
        self.wait()
    }
}

/// Of a line of a log in JSON.
fn json_address(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["fields"]["address"].as_str()?.parse().ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid is an i32")).expect("a pid is not 0");
    kill_process(pid, signal).expect("the process is ours");
}
