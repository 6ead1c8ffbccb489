//! Tests of the example `leader`, which is the first program of docs/recipes.md.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use reveille_coordination_connect::coordination::recipes::{Candidate, LeaderSelector};
use rustix::process::{Pid, Signal};

use super::*;

/// Process of the example. A drop of this value kills the process.
struct Process(Child);

impl Process {
    fn start(url: &str, folder: &Path) -> Self {
        let mut command = Command::new(program("leader"));
        let command = command.arg(url).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::null());
        Process(command.spawn().unwrap())
    }

    fn terminate(&self) {
        rustix::process::kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
    }

    /// Sends SIGTERM repeatedly until the process ends. Returns its exit status.
    async fn stop_at_once(mut self, runtime: &Runtime) -> Option<i32> {
        loop {
            self.terminate();
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            runtime.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends SIGTERM, and checks that the process ends soon. Returns whether it ended without an error.
    fn stop(mut self) -> bool {
        let began = Instant::now();
        self.terminate();
        let status = self.0.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(8), "the process ended after {:?}", began.elapsed());
        status.success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn program_has_at_most_twelve_lines() {
    let source = include_str!("../../examples/leader.rs");
    let (_, example) = source.split_once("// [example]").unwrap();
    let (example, _) = example.split_once("// [end]").unwrap();
    let lines = example.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 12, "{lines} lines");
}

#[test]
fn program_starts_before_its_ensemble_and_stops_with_sigterm() {
    let (servers, folder) = (zookeeper::Zookeeper::start(1).unwrap(), tempfile::tempdir().unwrap());
    write_credentials(folder.path());
    let url = format!("zookeeper://{}/leader", servers.addresses());
    servers.kill(0).unwrap();
    let first = Process::start(&url, folder.path());
    servers.restart(0).unwrap();
    with_tokio(async || {
        let client = connect(&url, credentials()).await.unwrap();
        let group = LeaderSelector::new(&client, "/leaders/mail".parse().unwrap(), Candidate::new("reader"));
        let mut followed = group.follow_leader().await.unwrap();
        let leader = led(&mut followed, true).await.leader.unwrap();
        assert_eq!(leader.id, "host-7");
        let two_participate = async || {
            while group.participants().await.unwrap().len() < 2 {
                client.runtime().sleep(Duration::from_millis(20)).await;
            }
        };
        let second = Process::start(&url, folder.path());
        assert!(client.runtime().timeout(TIMEOUT, two_participate()).await.is_some(), "the second process waits");
        assert!(first.stop());
        let is_next = |known: &KnownLeader| known.leader.as_ref().is_some_and(|next| next.term > leader.term);
        assert!(client.runtime().timeout(TIMEOUT, followed.until(is_next)).await.is_some(), "the second leads");
        let third = Process::start(&url, folder.path());
        assert!(client.runtime().timeout(TIMEOUT, two_participate()).await.is_some(), "the third process waits");
        // Without contact to the engine, the process ends too. It reports that it could not close its session.
        servers.pause(0).unwrap();
        assert_eq!(third.stop_at_once(client.runtime()).await, Some(143), "the second signal ends the process");
        assert!(!second.stop());
        servers.resume(0).unwrap();
    });
}

#[test]
fn program_leads_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    write_credentials(folder.path());
    with_tokio(async || {
        let url = prepared_database(postgres::shared().create_database().unwrap()).await;
        let process = Process::start(&url, folder.path());
        let client = connect(&url, credentials()).await.unwrap();
        let group = LeaderSelector::new(&client, "/leaders/mail".parse().unwrap(), Candidate::new("reader"));
        let mut followed = group.follow_leader().await.unwrap();
        led(&mut followed, true).await;
        assert!(process.stop());
        led(&mut followed, false).await;
    });
}
