use super::*;
use crate::{Coverage, Incident, assert_caught, run_seeds};

const SEEDS: u64 = 20;
/// That failed once.
const FAILED: [u64; 2] = [9_066, 9_219];

fn holds(name: &str, kind: StoreKind) -> Coverage {
    run_seeds(name, (0..SEEDS).chain(FAILED), |sim| drop(run(sim, kind, None)))
}

#[test]
fn a_cluster_holds_on_the_weakest_store() {
    let coverage = holds("cluster-weak", StoreKind::Weak);
    coverage.assert_happened(&[Incident::Crash, Incident::Kill, Incident::Pause, Incident::ClockJump]);
}

#[test]
fn a_cluster_holds_on_a_store_that_does_each_item_in_one_step() {
    holds("cluster-atomic", StoreKind::Atomic);
}

fn caught(mutant: Mutant, kind: StoreKind, symptom: &str) {
    assert_caught(mutant, symptom, 0..100, |sim| drop(run(sim, kind, Some(mutant))));
}

#[test]
fn handing_nothing_over_is_caught() {
    caught(Mutant::HandsOverNothing, StoreKind::Atomic, "double");
}

#[test]
fn a_store_that_forgets_terms_is_caught() {
    caught(Mutant::ForgetsTerms, StoreKind::Atomic, "old term");
}

#[test]
fn a_creator_that_reads_closed_too_early_is_caught() {
    caught(Mutant::ReadsClosedBeforeItsRow, StoreKind::Weak, "lost");
}

#[test]
fn renewing_without_the_marks_is_caught() {
    caught(Mutant::RenewsWithoutMarks, StoreKind::Weak, "after the cancel");
}

#[test]
fn cancelling_without_the_owner_is_caught() {
    caught(Mutant::CancelsWithoutAsking, StoreKind::Weak, "the cancel");
}
