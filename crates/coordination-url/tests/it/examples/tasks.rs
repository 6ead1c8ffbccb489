//! Seed 002: the leader and a follower are killed, and no task is lost.

use std::collections::BTreeMap;

use super::*;

const LEASE: Duration = Duration::from_millis(1_500);
/// Sessions of electors on a tree end two leases after their process is not heard of.
const SESSION: Duration = Duration::from_secs(3);
const TASKS: usize = 40;
/// Of the example.
const GIVEN_MAX: usize = 4;

fn start(folder: &Path, url: &str, replica: &str, elector: &[&str]) -> Process {
    let lease = LEASE.as_millis().to_string();
    let arguments = [&[url, "work", "--replica", replica, "--lease-millis", &lease], elector].concat();
    Process::start(folder, replica, "tasks", &arguments)
}

/// How often each task was begun.
fn begun(log: &Path) -> BTreeMap<usize, usize> {
    let mut begun = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        *begun.entry(line.parse().unwrap()).or_default() += 1;
    }
    begun
}

fn listed(url: &str, place: &str) -> usize {
    let output = run("tasks", &[url, "list"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.contains(place)).count()
}

fn loses_no_task(url: &str, elector: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("begun");
    let names = ["ann", "bob", "cyd"];
    let mut replicas = names.map(|name| start(folder.path(), url, name, elector));
    let leads = |replica: &Process| {
        let told = replica.told();
        told.rfind(" leads") > told.rfind(" follows")
    };
    until("one leads", || replicas.iter().any(leads));

    // Who has begun a task goes on with it until all may end; and not for ever, if the test does not come so far.
    let end = folder.path().join("end");
    let wait = format!("until [ -e {} ] || [ $((i += 1)) -gt 4000 ]; do sleep 0.02; done", end.display());
    let task = |at| format!("echo {at} >> {}; {wait}", log.display());
    let tasks: Vec<String> = (0..TASKS).map(task).collect();
    let mut add = vec![url, "add"];
    add.extend(tasks.iter().map(String::as_str));
    let added = run("tasks", &add);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    until("each has begun one", || begun(&log).len() == 3);
    let given = |name: &str| listed(url, &format!("is given to {name}"));
    until("each is given some", || names.iter().all(|name| given(name) == GIVEN_MAX));

    // The leader is killed with what it had: another leads.
    let leader = replicas.iter().position(leads).unwrap();
    replicas[leader].kill();
    let killed = Instant::now();
    let (next, other) = ((leader + 1) % 3, (leader + 2) % 3);
    until("another leads", || leads(&replicas[next]) || leads(&replicas[other]));
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    until("what it had waits", || given(names[leader]) == 0);

    // And a follower: the leader is told.
    let (leader, follower) = if leads(&replicas[next]) { (next, other) } else { (other, next) };
    replicas[follower].kill();
    let killed = Instant::now();
    let gone = format!("{} is gone", names[follower]);
    until("the leader knows that the follower is gone", || replicas[leader].told().contains(&gone));
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    until("what it had waits", || given(names[follower]) == 0);

    // Who comes is given tasks, too.
    let dan = start(folder.path(), url, "dan", elector);
    until("the new one is given some", || given("dan") == GIVEN_MAX);
    std::fs::write(&end, "").unwrap();
    until("all is done", || listed(url, "is done") == TASKS);
    assert_eq!(listed(url, ""), TASKS, "each is in one place");
    assert_eq!(begun(&log).len(), TASKS);
    // Twice is what the two had begun that were killed; and what one had begun that was not heard of, if this machine stood still.
    let twice: usize = begun(&log).values().map(|times| times - 1).sum();
    let gone = names.map(|name| format!("{name} is gone"));
    let is_stall = |line: &&str| line.ends_with(" follows") || ["dan is gone", &gone[leader]].contains(line);
    let stalls = |replica: &Process| replica.told().lines().filter(is_stall).count();
    let stalls: usize = replicas.iter().chain([&dan]).map(stalls).sum();
    assert!((2..=2 + stalls).contains(&twice), "{twice} with {stalls} stalls");
    assert!(dan.interrupt().success());
}

#[test]
fn no_task_is_lost_with_replicas_that_poll_zookeeper() {
    loses_no_task(&zookeeper(), &["--elector", "polling"]);
}

#[test]
fn no_task_is_lost_with_replicas_that_watch_zookeeper() {
    loses_no_task(&zookeeper(), &["--elector", "watching"]);
}

#[test]
fn no_task_is_lost_with_a_lease_in_a_row_of_postgres() {
    loses_no_task(&postgres(), &[]);
}

#[test]
fn no_task_is_lost_with_replicas_that_watch_the_tree_on_postgres() {
    loses_no_task(&postgres(), &["--elector", "watching"]);
}
