use std::time::Duration;

use super::{DELAY, MeasuredMove, MoveKind, SYNC, TICK, measure};

const LEASE: Duration = Duration::from_secs(2);
/// Of a message and its answer, with the sync between, and one that was under way.
const ROUND: u64 = 2 * DELAY.1 + 2 * SYNC.1;
/// By how much longer than the lease who follows waits: a thousandth for clocks, and until it ticks.
const LATE: u64 = 2_000 + 2 * TICK;

fn moves(scheme: MoveKind) -> Vec<MeasuredMove> {
    let moves: Vec<_> = (0..10).map(|seed| measure(scheme, LEASE, seed).unwrap()).collect();
    assert!(moves.iter().all(|one| one.doubled == 0), "no two ever serve: {moves:?}");
    assert!(moves.iter().all(|one| one.commit.abs_diff(2_000) < 500), "a commit takes two milliseconds: {moves:?}");
    moves
}

#[test]
fn a_move_by_consent_takes_a_few_round_trips() {
    // What is in flight is decided, it is asked for and given, promised, and decided.
    for one in moves(MoveKind::Consents) {
        assert!(one.took <= 3 * ROUND && one.gap <= one.took && one.silence <= 4 * ROUND, "{one:?}");
    }
}

#[test]
fn a_lease_that_is_cut_to_half_a_second_moves_then() {
    for one in moves(MoveKind::Shortens) {
        assert!(one.took >= 500_000 && one.took <= 500_000 + 3 * ROUND + LATE, "{one:?}");
        assert!(one.gap <= 2 * ROUND + LATE, "{one:?}");
    }
}

#[test]
fn a_lease_that_runs_out_is_the_time_of_the_move_and_not_of_the_gap() {
    for one in moves(MoveKind::Waits) {
        assert!(one.took >= 2_000_000 && one.took <= 2_000_000 + 3 * ROUND + LATE, "{one:?}");
        assert!(one.gap <= 2 * ROUND + LATE, "{one:?}");
    }
}

#[test]
fn a_master_that_is_gone_is_followed_when_its_lease_is_over() {
    // Candidates keep out of each other's way by as much as 20 ms.
    let latest = 2_000_000 + 3 * ROUND + LATE + 20_000;
    for one in moves(MoveKind::Crashes) {
        assert!(one.took <= latest && one.gap <= one.took && one.silence >= one.gap, "{one:?}");
    }
    for one in moves(MoveKind::ConsentsCutOff) {
        assert!(one.took <= latest, "{one:?}");
        assert!(one.gap <= 3 * ROUND + LATE + 20_000, "it serves until then, though nothing is decided: {one:?}");
        assert!(one.silence >= 1_900_000, "{one:?}");
    }
}

#[test]
fn one_seed_is_one_move() {
    for scheme in MoveKind::ALL {
        assert_eq!(measure(scheme, LEASE, 7), measure(scheme, LEASE, 7));
    }
    assert_ne!(measure(MoveKind::Consents, LEASE, 7), measure(MoveKind::Consents, LEASE, 8));
}
