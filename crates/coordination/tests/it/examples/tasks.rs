//! Tests of the example `tasks`. The tests kill the leader and a follower, and no task is lost.

use std::collections::BTreeMap;

use super::*;

const LEASE: Duration = Duration::from_millis(1_500);
/// Timeout of the session of an elector on a tree. It is twice the duration of a lease.
const SESSION: Duration = Duration::from_secs(3);
const TASKS: usize = 40;
/// Largest number of tasks that the leader gives to one replica at a time, as in the example `tasks`.
const GIVEN_MAX: usize = 4;

fn start(folder: &Path, url: &str, replica: &str, elector: &[&str]) -> Process {
    let lease = LEASE.as_millis().to_string();
    let arguments = [&[url, "work", "--replica", replica, "--lease-millis", &lease], elector].concat();
    Process::start(folder, replica, "tasks", &arguments)
}

/// Returns the number of starts of each task.
fn started(log: &Path) -> BTreeMap<usize, usize> {
    let mut started = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        *started.entry(line.parse().unwrap()).or_default() += 1;
    }
    started
}

/// Adds the tasks. Returns the number of tasks that the tree may contain twice because a busy database did not respond
/// in time.
fn add(url: &str, tasks: &[String]) -> usize {
    let (mut added, mut unsure) = (0, 0);
    while added < tasks.len() {
        let mut command = vec![url, "add"];
        command.extend(tasks[added..].iter().map(String::as_str));
        let output = run("tasks", &command);
        added += String::from_utf8(output.stdout).unwrap().lines().count();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() || error.contains("did not respond"), "{error}");
        unsure += usize::from(!output.status.success());
    }
    unsure
}

#[track_caller]
fn wait_for(event: &str, find: impl Fn() -> Option<usize>) -> usize {
    let mut found = None;
    until(event, || {
        found = find();
        found.is_some()
    });
    found.unwrap()
}

/// Returns the number of tasks below the node `/tasks/PLACE` of the tree.
async fn count(nodes: &Nodes, place: &str) -> usize {
    nodes.names(&NodePath::new("/tasks").unwrap().join(place).unwrap()).await.len()
}

fn check_no_task_is_lost(url: &str, elector: &[&str]) {
    with_real_runtime(async |runtime| kill_replicas(&Nodes::open(&runtime, url).await, url, elector).await);
}

async fn kill_replicas(nodes: &Nodes, url: &str, elector: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("started");
    let names = ["ann", "bob", "cyd"];
    let mut replicas = names.map(|name| start(folder.path(), url, name, elector));
    let leads = |replica: &Process| {
        let output = replica.output();
        output.rfind(" leads") > output.rfind(" follows")
    };
    wait_for("a replica leads", || replicas.iter().position(leads));

    // A started task runs until the test creates the file `end`. The number of rounds of its loop is limited, so the
    // task also ends if the test fails earlier.
    let end = folder.path().join("end");
    let wait = format!("until [ -e {} ] || [ $((i += 1)) -gt 4000 ]; do sleep 0.02; done", end.display());
    let task = |at| format!("echo {at} >> {}; {wait}", log.display());
    let tasks: Vec<String> = (0..TASKS).map(task).collect();
    let unsure = add(url, &tasks);
    until("every replica has started a task", || started(&log).values().sum::<usize>() >= 3);
    let given = async |name: &str| count(nodes, &format!("given/{name}")).await;
    for name in names {
        until_async("every replica has its share of tasks", async || given(name).await == GIVEN_MAX).await;
    }

    // The test kills the leader, which has tasks. Another replica must become the leader.
    let leader = wait_for("a replica leads", || replicas.iter().position(leads));
    replicas[leader].kill();
    let killed = Instant::now();
    let next = wait_for("another replica leads", || (0..3).find(|at| *at != leader && leads(&replicas[*at])));
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    until_async("the leader has taken the tasks back", async || given(names[leader]).await == 0).await;

    // The test kills a follower. The leader must detect the failure of the follower.
    let (leader, follower) = (next, 3 - leader - next);
    replicas[follower].kill();
    let killed = Instant::now();
    let gone = format!("{} is gone", names[follower]);
    until("the leader notices that the follower is gone", || replicas[leader].output().contains(&gone));
    assert!(killed.elapsed() < SESSION + SLACK, "{:?}", killed.elapsed());
    until_async("the leader has taken the tasks back", async || given(names[follower]).await == 0).await;

    // A new replica must also receive tasks.
    let dan = start(folder.path(), url, "dan", elector);
    until_async("the new replica has its share of tasks", async || given("dan").await == GIVEN_MAX).await;
    std::fs::write(&end, "").unwrap();
    until_async("all tasks are done", async || {
        started(&log).len() == TASKS && count(nodes, "waiting").await == 0 && count(nodes, "done").await >= TASKS
    })
    .await;
    // Only three kinds of tasks may run twice: tasks that the two killed replicas had started, tasks of a replica that
    // lost contact with the engine while this machine was paused, and tasks that the tree may contain twice.
    let twice: usize = started(&log).values().map(|times| times - 1).sum();
    let is_stall = |line: &&str| line.ends_with(" follows") || line.ends_with(" is gone") && **line != *gone;
    let stalls = |replica: &Process| replica.output().lines().filter(is_stall).count();
    let stalls: usize = replicas.iter().chain([&dan]).map(stalls).sum();
    assert!(
        (2..=2 + stalls + unsure).contains(&twice),
        "{twice} tasks ran twice, with {stalls} stalls and {unsure} uncertain additions"
    );
    assert!(dan.interrupt().success());
}

#[test]
fn polling_replicas_lose_no_task_on_zookeeper() {
    check_no_task_is_lost(&zookeeper(), &["--elector", "polling"]);
}

#[test]
fn watching_replicas_lose_no_task_on_zookeeper() {
    check_no_task_is_lost(&zookeeper(), &["--elector", "watching"]);
}

#[test]
fn replicas_with_a_row_lease_lose_no_task_on_postgres() {
    check_no_task_is_lost(&postgres(), &[]);
}

#[test]
fn watching_replicas_lose_no_task_on_postgres() {
    check_no_task_is_lost(&postgres(), &["--elector", "watching"]);
}

#[test]
fn list_command_shows_waiting_tasks() {
    let url = zookeeper();
    assert_eq!(stdout_of_success("tasks", &[&url, "add", "true"]), "task0000000000 is waiting\n");
    assert_eq!(stdout_of_success("tasks", &[&url, "list"]), "task0000000000  is waiting\n");
}
