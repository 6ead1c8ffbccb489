//! Tests of processes that start before their database or their ensemble.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use test_servers::postgres::{self, Postgres};
use test_servers::zookeeper::Zookeeper;

use super::TestCluster;
use crate::server::{BINARY, Lines, signal};

/// Process that is not ready yet. The drop of this value kills the process.
struct Starting {
    child: Child,
    log: Lines,
}

impl Starting {
    fn new(mut command: Command) -> Self {
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Lines::follow(child.stderr.take().unwrap());
        let starting = Starting { child, log };
        starting.wait_for_line("waiting for a server");
        starting
    }

    fn wait_for_line(&self, text: &str) {
        let found = self.log.wait(|line| line.contains(text).then_some(()));
        assert!(found.is_some(), "the process ended:\n{}", self.log.text());
    }

    /// Sends SIGTERM, and checks that the process ends without an error and that it logged the wait once.
    fn stop(mut self) {
        signal(self.child.id(), Signal::TERM);
        self.log.wait(|_| None::<()>);
        let (status, text) = (self.child.wait().unwrap(), self.log.text());
        assert!(status.success(), "{status}:\n{text}");
        assert_eq!(text.matches("waiting for a server").count(), 1, "{text}");
        assert!(!text.contains("connection to PostgreSQL failed") && !text.contains("p%40ss"), "{text}");
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // The drop ignores the errors of `kill` and `wait`, because the process may already have ended.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

#[test]
fn member_waits_for_its_database_and_logs_the_wait_once() {
    let postgres = Postgres::start().unwrap();
    let cluster = TestCluster::on_database(postgres.create_database().unwrap(), None);
    postgres.stop().unwrap();
    Starting::new(cluster.serve("a")).stop();
    let member = Starting::new(cluster.serve("a"));
    postgres.restart().unwrap();
    member.wait_for_line(" ready ");
    member.stop();
}

#[test]
fn member_waits_for_its_ensemble_and_logs_the_wait_once() {
    let zookeeper = Zookeeper::start(1).unwrap();
    let coordination = format!("zookeeper://{}/waiting", zookeeper.addresses());
    let cluster = TestCluster::on_database(postgres::shared().create_database().unwrap(), Some(coordination));
    let mut status = Command::new(BINARY);
    let status =
        cluster.add_coordination(status.args(["cluster", "status", "--store", &cluster.url])).output().unwrap();
    let error = String::from_utf8_lossy(&status.stderr);
    assert!(!status.status.success() && error.contains("no member of a cluster has used this root path"), "{error}");
    zookeeper.kill(0).unwrap();
    Starting::new(cluster.serve("a")).stop();
    let member = Starting::new(cluster.serve("a"));
    zookeeper.restart(0).unwrap();
    member.wait_for_line(" ready ");
    member.stop();
}

#[test]
fn elect_waits_for_its_database_and_logs_the_wait_once() {
    let postgres = Postgres::start().unwrap();
    let cluster = TestCluster::on_database(postgres.create_database().unwrap(), None);
    postgres.stop().unwrap();
    let elect = || {
        let mut command = Command::new(BINARY);
        command.args(["elect", "--open", "--group", "/g", "--coordination", &cluster.url, "--", "sleep", "600"]);
        command
    };
    Starting::new(elect()).stop();
    let elected = Starting::new(elect());
    postgres.restart().unwrap();
    elected.wait_for_line("became the leader");
    elected.stop();
}
