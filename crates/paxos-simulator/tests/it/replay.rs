//! Test of the replay command that a failure prints. The command runs the program through `xtask`, but the test runs
//! the program directly, with the same options.

use std::process::Command;

use paxos_simulator::{Failure, Mutation, RunConfig, catch, run_core};

#[test]
fn printed_replay_command_reproduces_the_failure() {
    for name in ["TwoMoveTokens", "MergesIntoStaleAccept"] {
        let mutation = Mutation::all().find(|mutation| mutation.to_string() == name).unwrap();
        let (seed, violation) = catch(mutation, 0..100).unwrap();
        let config = RunConfig::draw(seed, mutation);
        let text = Failure::of(&config, &run_core(&config, false)).unwrap().to_string();
        let begin = "replay: cargo xtask simulate --scenario paxos ";
        let words = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap().split(' ');
        let output = Command::new(env!("CARGO_BIN_EXE_paxos-simulator")).args(words).output().unwrap();
        let (trace, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("{:?}: ", violation.rule)), "{errors}");
        assert!(trace.lines().count() > 100, "the trace contains all events");
    }
}
