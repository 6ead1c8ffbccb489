//! Tests of the examples on a real ZooKeeper and a real PostgreSQL. The tests run the examples as processes and kill,
//! pause and restart them.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails like a test")]
#![expect(clippy::disallowed_methods, reason = "the tests start processes, which use the machine's clocks")]

mod cronulla;
mod streams;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reveille_coordination::recipes::Client;
use reveille_coordination::tree::{Credentials, Node, NodePath, SessionOptions, TreeError};
use runtime::Runtime;
use rustix::process::{Pid, Signal};

/// Time limit of a step that normally takes a few seconds at most.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a test allows in addition to a session's timeout, for example for the start of a process or the response
/// to a request.
const SLACK: Duration = Duration::from_secs(10);

/// Returns a URL of the shared ZooKeeper, with a separate root for each test.
fn zookeeper() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("zookeeper://{}/example-{}-{next}", test_servers::zookeeper::shared().addresses(), std::process::id())
}

fn postgres() -> String {
    let url = test_servers::postgres::shared().create_database().unwrap();
    with_real_runtime(async |runtime| coordination_connect::migrate(&runtime, &url, None).await.unwrap());
    url
}

fn with_real_runtime<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

#[track_caller]
fn until(event: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {event}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Works like [`until`], for a condition that sends requests to an engine.
async fn until_async(event: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "timed out waiting until {event}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Client with which a test reads the nodes of the tree.
#[derive(Clone)]
struct Nodes {
    client: Client,
}

impl Nodes {
    async fn open(runtime: &Runtime, url: &str) -> Self {
        let trees = coordination_connect::trees(runtime, url, None).await.unwrap();
        let (name, password) = CREDENTIALS.split_once(':').unwrap();
        let credentials = vec![Credentials { name: name.to_owned(), password: password.to_owned() }];
        Nodes { client: Client::new(runtime, trees, SessionOptions { credentials, ..SessionOptions::default() }) }
    }

    /// Returns the names of the node's children, or an empty list if the node does not exist.
    async fn names(&self, path: &NodePath) -> Vec<String> {
        let tree = self.client.session().await.unwrap();
        let children = retry(async || {
            tree.sync().await?;
            tree.children(path).await
        });
        children.await.map_or_else(Vec::new, |children| children.names)
    }

    async fn get(&self, path: &NodePath) -> Option<Node> {
        let tree = self.client.session().await.unwrap();
        retry(async || tree.get(path).await).await
    }
}

/// Repeats a request while a busy database does not respond in time. Returns `None` if the node does not exist.
async fn retry<T>(request: impl AsyncFn() -> Result<T, TreeError>) -> Option<T> {
    loop {
        match request().await {
            Err(TreeError::NoNode) => return None,
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
            answer => return Some(answer.unwrap()),
        }
    }
}

/// Returns the path of an example. `cargo test` builds the examples together with the tests.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

/// Credentials of all examples in these tests.
const CREDENTIALS: &str = "examples:secret";

/// Returns the path of a file with the credentials.
fn credentials_file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples.credentials");
        std::fs::write(&file, CREDENTIALS).unwrap();
        file
    })
}

fn example(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.arg("--credentials").arg(credentials_file());
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(name: &str, arguments: &[&str]) -> Output {
    example(name, arguments).output().expect("run `cargo test` or `cargo build --examples`, which build the example")
}

/// Runs an example that must succeed, and returns its standard output.
#[track_caller]
fn stdout_of_success(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs an example that must fail, and returns its standard error.
#[track_caller]
fn stderr_of_failure(name: &str, arguments: &[&str]) -> String {
    let output = run(name, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Process of a running example, which writes its output to a file. A drop of this value kills the process.
struct Process {
    child: Child,
    output: PathBuf,
}

impl Process {
    fn start(folder: &Path, replica: &str, name: &str, arguments: &[&str]) -> Self {
        let output = folder.join(format!("{replica}.txt"));
        let file = std::fs::File::create(&output).unwrap();
        let mut command = example(name, arguments);
        let command = command.stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().expect("`cargo test` builds the example"), output }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the process with SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Interrupts the process like Ctrl-C, and waits until it ends.
    fn interrupt(mut self) -> ExitStatus {
        self.signal(Signal::INT);
        let mut ended = None;
        until("the interrupted process ends", || {
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
            eprintln!("--- {}\n{}", self.output.display(), self.output());
        }
    }
}

#[test]
fn examples_require_credentials_or_an_open_group() {
    for (name, arguments) in [("cronulla", &["--call", "http://127.0.0.1/"][..]), ("tasks", &["list"])] {
        let url = zookeeper();
        let without = Command::new(program(name)).arg(&url).args(arguments).output().unwrap();
        let error = String::from_utf8(without.stderr).unwrap();
        assert!(!without.status.success() && error.contains("--credentials <FILE>|--open"), "{error}");
    }
    let url = zookeeper();
    let open = Command::new(program("tasks")).args([&url, "--open", "add", "true"]).status().unwrap();
    assert!(open.success());
    assert_eq!(stdout_of_success("tasks", &[&url, "list"]), "task0000000000  is waiting\n");
    let closed = zookeeper();
    stdout_of_success("tasks", &[&closed, "add", "true"]);
    let denied = Command::new(program("tasks")).args([&closed, "--open", "list"]).output().unwrap();
    assert!(!denied.status.success(), "a process without the credentials read the nodes");
}
