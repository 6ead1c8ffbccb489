//! The examples, as processes that are killed, stopped where they are, and started again, on a real ZooKeeper and a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]
#![expect(clippy::disallowed_methods, reason = "these are tests of processes, which live by the machine's clocks")]

mod cronulla;
mod streams;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coordination::recipes::Client;
use coordination::tree::{Node, NodePath, SessionOptions, TreeError};
use runtime::Runtime;
use rustix::process::{Pid, Signal};

/// For what should take seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// What this machine may take for what a promise has no bound for: to start a process, to answer a request.
const SLACK: Duration = Duration::from_secs(10);

/// Below a root of the test's own.
fn zookeeper() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("zookeeper://{}/example-{}-{next}", test_servers::zookeeper::shared().addresses(), std::process::id())
}

fn postgres() -> String {
    let url = test_servers::postgres::shared().create_database().unwrap();
    on_real(async |runtime| coordination_connect::migrate(&runtime, &url, None).await.unwrap());
    url
}

fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// [`until`], for what is asked of an engine.
async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The test's own look at the nodes.
#[derive(Clone)]
struct Nodes {
    client: Client,
}

impl Nodes {
    async fn open(runtime: &Runtime, url: &str) -> Self {
        let trees = coordination_connect::trees(runtime, url, None).await.unwrap();
        Nodes { client: Client::new(runtime, trees, SessionOptions::default()) }
    }

    /// Of the children; none if there is no such node.
    async fn names(&self, path: &NodePath) -> Vec<String> {
        let tree = self.client.session().await.unwrap();
        let children = patiently(async || {
            tree.sync().await?;
            tree.children(path).await
        });
        children.await.map_or_else(Vec::new, |children| children.names)
    }

    async fn get(&self, path: &NodePath) -> Option<Node> {
        let tree = self.client.session().await.unwrap();
        patiently(async || tree.get(path).await).await
    }
}

/// `None` if there is no such node. A database with much to do may not answer in time.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, TreeError>) -> Option<T> {
    loop {
        match ask().await {
            Err(TreeError::NoNode) => return None,
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
            answer => return Some(answer.unwrap()),
        }
    }
}

/// `cargo test` builds the examples beside the tests.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

fn example(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(name: &str, arguments: &[&str]) -> Output {
    example(name, arguments).output().expect("`cargo test` has built the example, or `cargo build --examples` does")
}

/// What it says, and ends well.
#[track_caller]
fn said(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What it says to who starts it wrongly.
#[track_caller]
fn refused(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// An example that runs. What it tells is in a file. Dropped, it is killed.
struct Process {
    child: Child,
    told: PathBuf,
}

impl Process {
    fn start(folder: &Path, replica: &str, name: &str, arguments: &[&str]) -> Self {
        let told = folder.join(format!("{replica}.txt"));
        let file = std::fs::File::create(&told).unwrap();
        let mut command = example(name, arguments);
        let command = command.stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().expect("`cargo test` has built the example"), told }
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.told).unwrap()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// By SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As Ctrl-C does.
    fn interrupt(mut self) -> ExitStatus {
        self.signal(Signal::INT);
        let mut ended = None;
        until("it ends when it is interrupted", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.told.display(), self.told());
        }
    }
}
