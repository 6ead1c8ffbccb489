//! Tests of the priority of the server's threads.

use std::fs;
use std::process::Command;

use crate::server::{BINARY, Server};
use crate::until;

/// Returns the name and the niceness of each thread of a process.
fn threads(pid: u32) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread that has ended has no such file.
    let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).ok();
    let thread = |stat: String| {
        let (start, rest) = stat.rsplit_once(") ").unwrap();
        let name = start.split_once(" (").unwrap().1;
        // The niceness is field 19 of `proc_pid_stat(5)`. The state, which is field 3, follows the name.
        (name.to_owned(), rest.split(' ').nth(16).unwrap().parse().unwrap())
    };
    tasks.filter_map(|task| stat(task.unwrap()).map(thread)).collect()
}

#[test]
fn server_lowers_the_priority_of_request_and_background_threads() {
    let is_low =
        |name: &str| ["requests", "store flush", "store merge", "store rebuild", "store scanner"].contains(&name);
    for increment in ["0", "5", "15"] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut command = Command::new("nice");
        command.args(["-n", increment, BINARY, "serve", "--listen", "127.0.0.1:0", "--no-receiver"]);
        command.arg("--data").arg(&data);
        let server = Server::start_by(command, &data);
        // A new thread lowers its own priority, so the test waits until all threads have run.
        until("the threads have the expected priorities", || {
            let threads = threads(server.pid());
            let own = threads.iter().find(|(name, _)| name == "journal writer").map_or(0, |(_, niceness)| *niceness);
            let expected = |name: &str| if is_low(name) { (own + 10).min(19) } else { own };
            threads.iter().filter(|(name, _)| is_low(name)).count() >= 5
                && threads.iter().all(|(name, niceness)| *niceness == expected(name))
        });
        assert!(server.stop().success());
    }
}
