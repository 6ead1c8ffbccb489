use super::*;
use crate::{Incident, assert_caught, run_seeds};

const SEEDS: u64 = 12;
/// That failed once.
const FAILED: [u64; 1] = [9_232];

fn holds(name: &str, kind: EngineKind) -> crate::Coverage {
    run_seeds(name, (0..SEEDS).chain(FAILED), |sim| drop(run(sim, kind, None)))
}

#[test]
fn the_spine_holds_on_the_weakest_store() {
    let coverage = holds("spine-weak", EngineKind::Weak);
    coverage.assert_happened(&[Incident::Crash, Incident::Kill, Incident::Pause, Incident::ClockJump]);
}

#[test]
fn the_spine_holds_on_a_store_that_does_each_item_in_one_step() {
    holds("spine-atomic", EngineKind::Atomic);
}

#[test]
fn the_spine_holds_on_the_embedded_store() {
    let coverage = holds("spine-embedded", EngineKind::Embedded);
    coverage.assert_happened(&[Incident::Crash, Incident::Kill, Incident::Halt]);
}

fn caught(mutant: Mutant, kind: EngineKind, symptom: &str) {
    assert_caught(mutant, symptom, 0..200, |sim| drop(run(sim, kind, Some(mutant))));
}

#[test]
fn acknowledging_before_the_fsync_is_caught() {
    caught(Mutant::AcknowledgesBeforeFsync, EngineKind::Embedded, "lost");
}

#[test]
fn done_before_the_outcome_is_caught() {
    caught(Mutant::DoneBeforeOutcome, EngineKind::Atomic, "lost");
}

#[test]
fn skipping_the_second_read_is_caught() {
    caught(Mutant::SkipsTheSecondRead, EngineKind::Weak, "lost");
}

#[test]
fn a_creator_that_reads_closed_too_early_is_caught() {
    caught(Mutant::ReadsClosedBeforeItsRow, EngineKind::Weak, "lost");
}

#[test]
fn ignoring_the_revision_is_caught() {
    caught(Mutant::IgnoresTheRevision, EngineKind::Atomic, "violations");
}
