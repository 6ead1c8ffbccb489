//! What a failure prints is a command, and that shows it again; but for its beginning, by which `xtask` finds the program.

use std::process::Command;

use paxos_simulator::{Failure, Knobs, Mutation, catch, run_core};

#[test]
fn the_command_that_a_failure_prints_shows_it_again() {
    for name in ["TwoMoveTokens", "MergesIntoStaleAccept"] {
        let mutation = Mutation::all().find(|mutation| mutation.to_string() == name).unwrap();
        let (seed, violation) = catch(mutation, 0..100).unwrap();
        let knobs = Knobs::draw(seed, mutation);
        let told = Failure::of(&knobs, &run_core(&knobs, false)).unwrap().to_string();
        let begin = "replay: cargo xtask simulate --scenario paxos ";
        let words = told.lines().find_map(|line| line.strip_prefix(begin)).unwrap().split(' ');
        let output = Command::new(env!("CARGO_BIN_EXE_paxos-simulator")).args(words).output().unwrap();
        let (trace, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("{:?}: ", violation.rule)), "{errors}");
        assert!(trace.lines().count() > 100, "every event is told");
    }
}
