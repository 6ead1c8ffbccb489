//! Tests of `reveille elect`, which runs another command. This other command runs only while the process of `elect`
//! leads, even if a test kills, pauses or signals processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{postgres, reveille, run, stdout_of, zookeeper};
use crate::server::signal;
use crate::until;

/// Session timeout in seconds that is short enough to expire during a test.
const SHORT: u64 = 2;
/// Session timeout in seconds that does not expire during a test.
const LONG: u64 = 120;

/// Process of `elect`. The command that `elect` runs is a shell script whose `$0` is the path of the file `log`.
struct Candidate {
    elect: Child,
    log: PathBuf,
}

/// Shell script that repeatedly appends a line with the term of the leadership and its own process id to the log.
const NOTES: &str = "while :; do echo $REVEILLE_TERM $$ >> \"$0\"; sleep 0.02; done";

impl Candidate {
    fn start(url: &str, log: &Path, session_seconds: u64, script: &str) -> Self {
        let seconds = session_seconds.to_string();
        let mut command = reveille(url, &["elect", "--open", "--group", "/group", "--session-seconds", &seconds]);
        command.args(["--grace", "1", "--", "sh", "-c", script]).arg(log);
        Candidate { elect: command.stderr(Stdio::null()).spawn().unwrap(), log: log.to_owned() }
    }

    /// Returns the id of the child process of `elect` that has `word` as an argument in its command line.
    fn child(&self, word: &str) -> u32 {
        let own = self.elect.id().to_string();
        let is_its = |stat: &str| stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)) == Some(&own);
        let found = fs::read_dir("/proc").unwrap().find_map(|entry| {
            let folder = entry.unwrap().path();
            let stat = fs::read_to_string(folder.join("stat")).ok().filter(|stat| is_its(stat))?;
            let line = fs::read_to_string(folder.join("cmdline")).ok()?;
            line.split('\0').any(|part| part == word).then(|| stat.split(' ').next().unwrap().parse().unwrap())
        });
        found.unwrap_or_else(|| panic!("`elect` has no child {word}"))
    }

    fn ended(&mut self) -> ExitStatus {
        until("`elect` ends", || self.elect.try_wait().unwrap().is_some());
        self.elect.wait().unwrap()
    }

    /// Returns the last process id in the log.
    fn worker(&self) -> u32 {
        let mut last = None;
        until("the command writes its process id", || {
            last = notes(&self.log).last().map(|(_, pid)| *pid);
            last.is_some()
        });
        last.unwrap()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        drop(self.elect.kill());
        drop(self.elect.wait());
    }
}

/// Returns true if the process has a handler for SIGTERM. A process that has just started has no handler.
fn catches_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    let mask = u64::from_str_radix(caught.trim(), 16).unwrap_or(0);
    mask >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

fn is_there(pid: u32) -> bool {
    // A zombie does not count as a running process.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

/// Returns the terms and process ids in the log, in the order of their lines.
fn notes(log: &Path) -> Vec<(u64, u32)> {
    let text = fs::read_to_string(log).unwrap_or_default();
    // The last line may be incomplete, so the function ignores the text after the last line end.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let note = |line: &str| {
        let (term, pid) = line.split_once(' ')?;
        Some((term.parse().ok()?, pid.parse().ok()?))
    };
    whole.lines().filter_map(note).collect()
}

fn leads_above(log: &Path, term: u64) -> u64 {
    let mut last = 0;
    until("a process leads under a later term", || {
        last = notes(log).last().map_or(0, |(term, _)| *term);
        last > term
    });
    last
}

#[test]
fn elect_process_runs_its_command_only_while_it_leads() {
    for url in [zookeeper(), postgres()] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut first = Candidate::start(&url, &log, SHORT, NOTES);
        let one = leads_above(&log, 0);
        let second = Candidate::start(&url, &log, SHORT, NOTES);

        // The test kills the leader. The other candidate becomes the leader when the killed leader's session has
        // expired.
        first.elect.kill().unwrap();
        first.elect.wait().unwrap();
        let killed = Instant::now();
        let two = leads_above(&log, one);
        assert!(killed.elapsed() < Duration::from_secs(20));

        // The test pauses the leader. The command of the leader must end before another process leads.
        let mut third = Candidate::start(&url, &log, SHORT, NOTES);
        until("the third process becomes a candidate", || {
            stdout_of(&url, &["tree", "ls", "/group"]).matches("-lock-").count() == 2
        });
        signal(second.elect.id(), Signal::STOP);
        let three = leads_above(&log, two);
        signal(second.elect.id(), Signal::CONT);

        // The test sends SIGTERM to the leader, which releases the leadership.
        signal(third.elect.id(), Signal::TERM);
        leads_above(&log, three);
        assert_eq!(third.ended().code(), Some(0));
        drop(second);
        assert!(notes(&log).is_sorted_by_key(|(term, _)| *term), "a write after a later term: {:?}", notes(&log));
    }
}

/// Deletes the node `/group`, which is the parent of the candidates' nodes. The engine may already have deleted the
/// node, because the engine deletes empty container nodes.
fn remove_group(url: &str) {
    let output = run(url, &["tree", "rm", "/group", "--recursive"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || error.contains("no such node: /group"), "{error}");
}

#[test]
fn command_ends_if_its_elect_process_or_its_supervisor_is_killed() {
    let url = zookeeper();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // In this script, the process that writes the log is a child process of the command of `elect`.
    let script = "sh -c 'while :; do echo $REVEILLE_TERM $$ >> \"$0\"; sleep 0.02; done' \"$0\"; true";
    for victim in ["elect", "supervise"] {
        let mut candidate = Candidate::start(&url, &log, LONG, script);
        let worker = candidate.worker();
        let began = Instant::now();
        match victim {
            "elect" => signal(candidate.elect.id(), Signal::KILL),
            word => signal(candidate.child(word), Signal::KILL),
        }
        until("the worker ends", || !is_there(worker));
        assert!(began.elapsed() < Duration::from_secs(LONG / 4), "the worker ends long before the session expires");
        assert!(!candidate.ended().success(), "{victim}");
        fs::remove_file(&log).unwrap();
        remove_group(&url);
    }
}

#[test]
fn elect_process_ends_a_command_that_ignores_sigterm() {
    let url = zookeeper();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let stubborn = "trap '' TERM; while :; do echo $REVEILLE_TERM $$ >> \"$0\"; sleep 0.02; done";
    let left = format!("sh -c \"{}\" \"$0\" & wait", stubborn.replace('"', "\\\"").replace('$', "\\$"));
    for script in [stubborn, &left] {
        for is_supervisor_paused in [false, true] {
            let mut candidate = Candidate::start(&url, &log, LONG, script);
            let worker = candidate.worker();
            if is_supervisor_paused {
                signal(candidate.child("supervise"), Signal::STOP);
            }
            signal(candidate.elect.id(), Signal::TERM);
            assert_eq!(candidate.ended().code(), Some(0));
            assert!(!is_there(worker), "{script}");
            fs::remove_file(&log).unwrap();
        }
    }
    // The test sends SIGTERM to the process `elect`, to its supervisor and to its command, because a service manager
    // may signal all processes of a unit.
    let polite = "trap 'sleep 0.3; echo 7 7 >> \"$0\"; exit 3' TERM; echo $REVEILLE_TERM $$ >> \"$0\"; while :; do sleep 0.02; done";
    let mut candidate = Candidate::start(&url, &log, LONG, polite);
    let (command, supervisor) = (candidate.worker(), candidate.child("supervise"));
    until("the supervisor ignores SIGTERM", || catches_sigterm(supervisor));
    for process in [supervisor, command, candidate.elect.id()] {
        signal(process, Signal::TERM);
    }
    assert_eq!(candidate.ended().code(), Some(0));
    assert_eq!(notes(&log).last(), Some(&(7, 7)), "the command has time to exit by itself");
}

#[test]
fn second_sigterm_makes_an_elect_process_kill_its_command() {
    let (url, folder) = (zookeeper(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let mut command = reveille(&url, &["elect", "--open", "--group", "/group", "--grace", "3600", "--", "sh", "-c"]);
    let elect = command.arg(format!("trap '' TERM; {NOTES}")).arg(&log).stderr(Stdio::null()).spawn().unwrap();
    let mut candidate = Candidate { elect, log };
    let worker = candidate.worker();
    // The kernel may merge two signals that arrive at the same time, so the test sends SIGTERM repeatedly.
    until("`elect` ends", || {
        signal(candidate.elect.id(), Signal::TERM);
        candidate.elect.try_wait().unwrap().is_some()
    });
    assert_eq!(candidate.ended().code(), Some(0));
    assert!(!is_there(worker));
}

#[test]
fn elect_process_restarts_its_command_under_a_later_term() {
    for url in [zookeeper(), postgres()] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let stubborn = format!("trap '' TERM; {NOTES}");
        let candidate = Candidate::start(&url, &log, LONG, &stubborn);
        let (worker, term) = (candidate.worker(), leads_above(&log, 0));
        remove_group(&url);
        leads_above(&log, term);
        assert!(!is_there(worker));
    }
}

#[test]
fn elect_process_sends_sigterm_before_its_session_expires() {
    let servers = test_servers::zookeeper::Zookeeper::start(1).unwrap();
    let url = format!("zookeeper://{}/away", servers.addresses());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let polite =
        "trap 'echo 7 7 >> \"$0\"; exit 3' TERM; echo $REVEILLE_TERM $$ >> \"$0\"; while :; do sleep 0.02; done";
    let candidate = Candidate::start(&url, &log, 4, polite);
    let command = candidate.worker();
    servers.kill(0).unwrap();
    until("the command ends", || !is_there(command));
    assert_eq!(notes(&log).last(), Some(&(7, 7)), "the command exits by itself");
    servers.restart(0).unwrap();
    until("the process leads again", || notes(&log).last().is_some_and(|note| note.1 != 7));
}

/// Sends SIGTERM to the process of `elect`, and checks that the process ends soon and without an error.
fn ends_soon(candidate: &mut Candidate, what: &str) {
    let began = Instant::now();
    signal(candidate.elect.id(), Signal::TERM);
    assert_eq!(candidate.ended().code(), Some(0), "{what}");
    let waited = began.elapsed();
    // The process waits for less than 1 s. The rest is for a busy machine.
    assert!(waited < Duration::from_secs(3), "{what}: `elect` ended after {waited:?}");
}

#[test]
fn elect_process_without_contact_to_its_engine_ends_soon_after_sigterm() {
    let servers = test_servers::zookeeper::Zookeeper::start(1).unwrap();
    let url = format!("zookeeper://{}/frozen", servers.addresses());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let polite =
        "trap 'echo 7 7 >> \"$0\"; exit 3' TERM; echo $REVEILLE_TERM $$ >> \"$0\"; while :; do sleep 0.02; done";
    let mut leader = Candidate::start(&url, &log, 40, polite);
    let command = leader.worker();
    let mut waiting = Candidate::start(&url, &folder.path().join("other"), 40, polite);
    until("the second process waits", || stdout_of(&url, &["tree", "ls", "/group"]).matches("-lock-").count() == 2);
    servers.pause(0).unwrap();
    let mut starting = Candidate::start(&url, &folder.path().join("third"), 40, polite);
    until("the third process handles SIGTERM", || catches_sigterm(starting.elect.id()));
    ends_soon(&mut starting, "without a session");
    ends_soon(&mut waiting, "a waiting candidate");
    ends_soon(&mut leader, "the leader");
    assert!(!is_there(command));
    assert_eq!(notes(&log).last(), Some(&(7, 7)), "the command exits by itself after SIGTERM");
    servers.resume(0).unwrap();
}

#[test]
fn elect_process_exits_with_the_code_of_its_command() {
    let url = zookeeper();
    let code = |script: &str| {
        let output = run(&url, &["elect", "--open", "--group", "/group", "--grace", "1", "--", "sh", "-c", script]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(code("echo done; exit 0"), (Some(0), "done\n".to_owned()));
    assert_eq!(code("exit 7").0, Some(7));
    assert_eq!(code("kill -9 $$").0, Some(137));
    assert_eq!(code("cat; echo nothing is read"), (Some(0), "nothing is read\n".to_owned()));
    let (ended, child) = code("(trap '' TERM; sleep 600) > /dev/null 2>&1 & echo $!; exit 5");
    assert_eq!(ended, Some(5));
    assert!(!is_there(child.trim().parse().unwrap()), "a background process of the command has ended");
    // This grace period of 3,600 seconds is longer than the longest session timeout that the ensemble allows.
    let long =
        ["elect", "--open", "--group", "/group", "--grace", "3600", "--session-seconds", "300", "--", "sleep", "0.5"];
    assert!(run(&url, &long).status.success());
    let missing = run(&url, &["elect", "--open", "--group", "/group", "--", "no-such-program"]);
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && error.contains("no-such-program") && error.contains("PATH"), "{error}");
}

#[test]
fn supervisor_kills_process_group_at_deadline_or_end_of_input() {
    use std::os::unix::process::CommandExt as _;

    for is_at_the_deadline in [true, false] {
        let mut sleep = std::process::Command::new("sleep");
        let mut sleep = sleep.arg("600").process_group(0).spawn().unwrap();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let now = u64::try_from(now.tv_sec).unwrap() * 1_000_000_000;
        let until = if is_at_the_deadline { now } else { now + 600_000_000_000 };
        let (group, until) = (sleep.id().to_string(), until.to_string());
        let mut supervisor = reveille("", &["supervise", "--group", &group, "--until", &until]);
        let mut supervisor = supervisor.stdin(Stdio::piped()).spawn().unwrap();
        if !is_at_the_deadline {
            drop(supervisor.stdin.take());
        }
        assert!(supervisor.wait().unwrap().success());
        assert!(!sleep.wait().unwrap().success());
    }
}
