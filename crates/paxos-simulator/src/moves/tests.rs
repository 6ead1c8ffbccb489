use std::time::Duration;

use super::{DELAY, MeasuredMove, MoveKind, SYNC, TICK, measure};

const LEASE: Duration = Duration::from_secs(2);
/// Maximum time from a message to its response, in microseconds. It includes the sync between the two messages, and the
/// wait for a sync in progress.
const ROUND: u64 = 2 * DELAY.1 + 2 * SYNC.1;
/// Maximum delay from the end of a lease to the start of a takeover, in microseconds: a thousandth of the lease for the
/// drift of clocks, and two intervals between ticks.
const LATE: u64 = 2_000 + 2 * TICK;

fn moves(scheme: MoveKind) -> Vec<MeasuredMove> {
    let moves: Vec<_> = (0..10).map(|seed| measure(scheme, LEASE, seed).unwrap()).collect();
    assert!(moves.iter().all(|one| one.doubled == 0), "two nodes served at once: {moves:?}");
    assert!(
        moves.iter().all(|one| one.commit.abs_diff(2_000) < 500),
        "a commit does not take about two milliseconds: {moves:?}"
    );
    moves
}

#[test]
fn move_by_consent_takes_at_most_three_round_trips() {
    // The members first decide the slots that the master has already proposed. Then the consent, the promises and the
    // first entry each take one round trip.
    for one in moves(MoveKind::Consents) {
        assert!(one.took <= 3 * ROUND && one.gap <= one.took && one.silence <= 4 * ROUND, "{one:?}");
    }
}

#[test]
fn mastership_moves_soon_after_a_shortened_lease_ends() {
    for one in moves(MoveKind::Shortens) {
        assert!(one.took >= 500_000 && one.took <= 500_000 + 3 * ROUND + LATE, "{one:?}");
        assert!(one.gap <= 2 * ROUND + LATE, "{one:?}");
    }
}

#[test]
fn mastership_moves_soon_after_an_unshortened_lease_ends() {
    for one in moves(MoveKind::Waits) {
        assert!(one.took >= 2_000_000 && one.took <= 2_000_000 + 3 * ROUND + LATE, "{one:?}");
        assert!(one.gap <= 2 * ROUND + LATE, "{one:?}");
    }
}

#[test]
fn another_node_replaces_a_crashed_master_after_its_lease_ends() {
    // Each candidate delays its campaign by up to 20 ms, so that candidates do not compete.
    let latest = 2_000_000 + 3 * ROUND + LATE + 20_000;
    for one in moves(MoveKind::Crashes) {
        assert!(one.took <= latest && one.gap <= one.took && one.silence >= one.gap, "{one:?}");
    }
    for one in moves(MoveKind::ConsentsCutOff) {
        assert!(one.took <= latest, "{one:?}");
        assert!(
            one.gap <= 3 * ROUND + LATE + 20_000,
            "the isolated master does not serve until its lease ends: {one:?}"
        );
        assert!(one.silence >= 1_900_000, "{one:?}");
    }
}

#[test]
fn simulated_moves_with_the_same_seed_have_the_same_result() {
    for scheme in MoveKind::ALL {
        assert_eq!(measure(scheme, LEASE, 7), measure(scheme, LEASE, 7));
    }
    assert_ne!(measure(MoveKind::Consents, LEASE, 7), measure(MoveKind::Consents, LEASE, 8));
}
