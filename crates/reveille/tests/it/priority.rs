//! Tests of the priority of the server's threads.

use std::fs;

use crate::server::Server;

/// Returns the name and the niceness of each thread of a process.
fn threads(pid: u32) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).unwrap();
    let thread = |stat: String| {
        let (start, rest) = stat.rsplit_once(") ").unwrap();
        let name = start.split_once(" (").unwrap().1;
        // The niceness is field 19 of `proc_pid_stat(5)`. The state, which is field 3, follows the name.
        (name.to_owned(), rest.split(' ').nth(16).unwrap().parse().unwrap())
    };
    tasks.map(|task| thread(stat(task.unwrap()))).collect()
}

#[test]
fn threads_for_requests_and_background_work_have_a_lower_priority_than_other_threads() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let threads = threads(server.pid());
    let own = threads.iter().find(|(name, _)| name == "journal writer").unwrap().1;
    let is_low = |name: &str| ["requests", "store flush", "store merge", "store scanner"].contains(&name);
    for (name, niceness) in &threads {
        let expected = if is_low(name) { (own + 10).min(19) } else { own };
        assert_eq!(*niceness, expected, "the thread `{name}`");
    }
    assert!(threads.iter().filter(|(name, _)| is_low(name)).count() >= 4, "{threads:?}");
    assert!(server.stop().success());
}
