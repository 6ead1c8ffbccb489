//! Process of the binary `reveille`, which the tests start with the same options as an operator.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::TIMEOUT;
use crate::client::Client;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_reveille");

/// Lines that a process has written so far.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Written>, Condvar)>);

#[derive(Default)]
struct Written {
    lines: Vec<String>,
    has_ended: bool,
}

impl Lines {
    pub(crate) fn follow(output: impl Read + Send + 'static) -> Self {
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

    /// Waits for a line for which `find` returns a value, and returns this value. Returns `None` if the process ends
    /// without such a line.
    pub(crate) fn wait<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + TIMEOUT;
        let (written, changed) = &*self.0;
        let mut written = written.lock().unwrap();
        loop {
            if let Some(found) = written.lines.iter().find_map(|line| find(line)) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the expected line did not appear, only:\n{}", written.lines.join("\n"));
            if written.has_ended {
                return None;
            }
            written = changed.wait_timeout(written, left).unwrap().0;
        }
    }
}

/// Server process that is ready. The drop of this value kills the process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Bearer token.
    pub(crate) key: String,
    pub(crate) stdout: Lines,
    pub(crate) log: Lines,
}

/// Returns the command `reveille serve` with the folder `data` and any free port, without the built-in receiver.
pub(crate) fn serve(data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--data"]).arg(data);
    command
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Server::start_by(serve(data), data)
    }

    /// Runs `command` and waits until the log reports that the server is ready.
    pub(crate) fn start_by(command: Command, data: &Path) -> Self {
        Server::start_where(command, |_| data.to_owned())
    }

    /// Runs `command` in the same way as [`Server::start_by`]. `data_of` receives the id of the process, and returns
    /// the path at which the test sees the data folder of the process.
    pub(crate) fn start_where(mut command: Command, data_of: impl FnOnce(u32) -> PathBuf) -> Self {
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("standard output is piped"));
        let log = Lines::follow(child.stderr.take().expect("standard error is piped"));
        let address = log.wait(|line| {
            if line.starts_with('{') {
                return line.contains(r#""ready""#).then(|| json_address(line))?;
            }
            let (_, rest) = line.split_once(" ready ")?.1.split_once("address=")?;
            rest.split(' ').next()?.parse().ok()
        });
        let address = address.unwrap_or_else(|| panic!("the server ended:\n{}\n{}", stdout.text(), log.text()));
        let key =
            std::fs::read_to_string(data_of(child.id()).join("admin.key")).expect("the first start creates a key");
        Server { child, address, key: key.trim().to_owned(), stdout, log }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address, &self.key).expect("a server that is ready accepts connections")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL to the server process and waits until the process ends.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("the process is running");
        self.child.wait().expect("the process is a child of this one");
    }

    /// Sends SIGTERM to the server process, but does not wait until the process ends.
    pub(crate) fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        // The log ends when the process ends, so this call waits for the end of the process.
        self.log.wait(|_| None::<()>);
        self.child.wait().expect("the process is a child of this one")
    }

    /// Sends SIGTERM to the server process and waits until the process ends.
    pub(crate) fn stop(self) -> ExitStatus {
        self.terminate();
        self.wait()
    }
}

/// Returns the address in a line of a JSON log.
fn json_address(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["fields"]["address"].as_str()?.parse().ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        // The drop ignores the errors of `kill` and `wait`, because the process may already have ended.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id fits in an i32")).expect("a process id is not 0");
    kill_process(pid, signal).expect("this process may signal the other one");
}
