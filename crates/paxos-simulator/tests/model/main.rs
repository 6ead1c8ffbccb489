//! Model of the specified protocol: ballots, log and mastership. The tests explore every state of the model. The model
//! shares no code with the crate `paxos`, so a mistake in the code of the crate is not also in the model.
//!
//! The model has three nodes. A sent message may arrive at any time, any number of times, or never. A restart loses
//! everything that is not on disk. The model contains phase 1, in which a candidate pulls entries. It contains the
//! `BeMaster` entry of a leader, and the comparison that decides whether this entry is void. Every slot of a master
//! renews its lease, which counts from the proposal of the slot. The model contains both lines of defence against two
//! masters. It also contains consents, and the takeovers that they allow. It contains the liveness of one node in the
//! system group, which the model treats as a register. It does not contain changes of members, snapshots, `Shorten`, a
//! liveness epoch across restarts, or more than three nodes.
//!
//! Each test states its bounds: the numbers of ballots, slots, data entries, restarts and consents in a history. Within
//! these bounds, the test explores all states. It distinguishes states by 64-bit hashes. Time has no bound: the model
//! contains no instants, but only durations, which it counts at most until the lease of two ticks is over. The events
//! of one tick occur in any order. Most tests state three numbers of states: with both lines of defence, with only the
//! line of defence of the acceptors, and with only the line of defence of the log.
//!
//! The model omits events after which nodes can only take fewer steps: pre-votes, prepare messages of a former
//! candidate, and campaigns of a master that serves. It also omits promises that arrive late. A late promise would
//! state a shorter time since the last renewal of the lease, so the candidate would only wait longer.
//!
//! docs/decisions/0152-check-the-paxos-rules-in-a-model-first.md gives the reasons for the design.

mod cluster;
mod log;
mod rules;
mod state;

use std::collections::BTreeSet;

use cluster::{CONSENTED, Cluster, ONE_MASTER, ONE_VALUE, Step, VOID, WAITED};
use log::{Claim, Term};
use rules::{Bounds, ClaimBy, Compare, Consenter, LEASE, LeaseFrom, Rules, Start};
use state::State;
use stateright::{Checker, HasDiscoveries, Model, Path};

const MASTERED: Bounds = Bounds {
    start: Start::Mastered,
    ballots: 3,
    slots: 3,
    data: 1,
    consents: 0,
    crashes: 0,
    lives: false,
    skews: 0,
    wait: LEASE,
    slow_disk: false,
    symmetric: true,
};
const EMPTY: Bounds = Bounds { start: Start::Empty, slots: 2, data: 0, ..MASTERED };
const LIVING: Bounds = Bounds { lives: true, ..MASTERED };
const FORKED: Bounds = Bounds { start: Start::Forked, ballots: 4, slots: 4, ..MASTERED };

// ---- Tests of the rules: all properties hold with both lines of defence, and also with each line of defence alone.

#[test]
fn two_takeovers_that_wait_for_the_end_of_the_lease_are_safe() {
    holds(Bounds { slots: 4, ..MASTERED }, &[WAITED, VOID], [125_332, 97_579, 152_141]);
}

#[test]
fn consent_of_the_master_to_a_takeover_is_safe() {
    holds(Bounds { consents: 1, ..MASTERED }, &[WAITED, CONSENTED, VOID], [343_459, 358_459, 448_691]);
}

#[test]
fn restart_of_a_node_is_safe() {
    holds(Bounds { crashes: 1, ..MASTERED }, &[WAITED, VOID], [174_425, 177_003, 217_387]);
}

#[test]
fn three_takeovers_are_safe() {
    holds(Bounds { ballots: 4, ..MASTERED }, &[WAITED, VOID], [293_666, 308_374, 379_825]);
}

#[test]
fn clock_drift_is_safe_if_nodes_wait_longer_than_the_lease() {
    let bounds = Bounds { skews: 1, wait: LEASE + 1, ..MASTERED };
    holds(bounds, &[WAITED, VOID], [171_455, 197_546, 251_693]);
}

#[test]
fn consent_of_the_first_master_to_a_takeover_is_safe() {
    holds(Bounds { consents: 1, ..EMPTY }, &[WAITED, CONSENTED, VOID], [112_143, 118_129, 148_545]);
}

#[test]
fn node_restart_before_the_election_of_the_first_master_is_safe() {
    holds(Bounds { crashes: 1, ..EMPTY }, &[WAITED, VOID], [138_180, 140_453, 180_829]);
}

#[test]
fn late_or_missing_write_on_the_first_masters_disk_is_safe() {
    holds(Bounds { slow_disk: true, ..EMPTY }, &[WAITED, VOID], [239_344, 274_175, 315_939]);
}

#[test]
fn lease_renewal_through_a_liveness_epoch_is_safe() {
    holds(LIVING, &[WAITED, VOID], [949_721, 964_831, 1_169_133]);
}

#[test]
fn consent_to_a_takeover_is_safe_with_a_liveness_epoch() {
    let bounds = Bounds { consents: 1, ballots: 2, ..LIVING };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED]), 807_170);
}

#[test]
fn takeover_is_safe_if_the_logs_of_two_nodes_differ() {
    holds(Bounds { symmetric: false, ..FORKED }, &[WAITED, VOID], [68_891, 60_598, 80_400]);
}

/// If the pulled entries make a leader's claim void, the leader need not propose this claim. It may make a new claim
/// that the rules allow for its log with the pulled entries.
#[test]
fn leader_safely_replaces_its_invalid_claim_to_mastership() {
    let rules = Rules { claim_by: ClaimBy::CandidateAndLeader, ..Rules::LOG };
    assert_eq!(all_states(rules, Bounds { slots: 4, ..MASTERED }, &[WAITED, VOID]), 155_067);
}

#[test]
fn consent_to_a_takeover_is_safe_if_a_node_restarts() {
    let bounds = Bounds { consents: 1, crashes: 1, ..MASTERED };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED, VOID]), 1_580_944);
}

#[test]
fn consent_to_a_takeover_is_safe_in_a_log_of_four_slots() {
    let bounds = Bounds { consents: 1, slots: 4, ..MASTERED };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED, VOID]), 1_759_137);
}

// ---- Tests of the purpose of each rule: without the rule, a property does not hold.

#[test]
fn protocol_without_lease_waits_and_log_checks_allows_two_masters() {
    breaks(ONE_MASTER, Rules::NEITHER, MASTERED);
}

/// In the first design, every decided slot renewed the lease. However, a node that applied a `BeMaster` entry compared
/// the claim in this entry only with the last `BeMaster` entry before it, and not with later slots.
#[test]
fn node_that_compares_only_epochs_of_claims_allows_two_masters() {
    let rules = Rules { compare: Compare::Epoch, ..Rules::LOG };
    breaks(ONE_MASTER, rules, MASTERED);
    let claim = Claim::Waited { term: Term { epoch: 1, ballot: 1 }, lease_slot: 1 };
    let steps = [
        Step::Tick,
        Step::Data { node: 0 },
        Step::Accept { node: 1, ballot: 1, upto: 2 },
        Step::Decide { node: 0, upto: 2 },
        Step::Tick,
        Step::Campaign { node: 2, ballot: 2, claim },
        Step::Promise { node: 1, to: 2 },
        Step::Lead { node: 2, with: 1, claim },
        Step::Accept { node: 1, ballot: 2, upto: 3 },
        Step::Decide { node: 2, upto: 3 },
    ];
    replays(ONE_MASTER, rules, MASTERED, &steps);
}

/// With only the line of defence of the log, the model found two masters at a time. The cause is that the logs of two
/// nodes may contain different masterships with the same epoch and the same last slot.
#[test]
fn node_that_ignores_the_ballots_of_claims_allows_two_masters() {
    let rules = Rules { compare: Compare::LeaseSlot, ..Rules::LOG };
    let bounds = Bounds { slow_disk: true, ..EMPTY };
    breaks(ONE_MASTER, rules, bounds);
    let first = Claim::Waited { term: Term::default(), lease_slot: 0 };
    let claim = Claim::Waited { term: Term { epoch: 1, ballot: 1 }, lease_slot: 1 };
    let steps = [
        Step::Campaign { node: 1, ballot: 1, claim: first },
        Step::Promise { node: 0, to: 1 },
        Step::Lead { node: 1, with: 0, claim: first },
        Step::Accept { node: 0, ballot: 1, upto: 1 },
        // Node 1 loses its own entry, which never reached its disk.
        Step::Crash { node: 1 },
        Step::Tick,
        Step::Tick,
        Step::Campaign { node: 2, ballot: 2, claim: first },
        Step::Promise { node: 1, to: 2 },
        Step::Lead { node: 2, with: 1, claim: first },
        Step::Accept { node: 2, ballot: 2, upto: 1 },
        Step::Accept { node: 1, ballot: 2, upto: 1 },
        Step::Decide { node: 2, upto: 1 },
        // In the log of node 0, node 1 is master. Node 0 has waited until the lease of node 1 is over, but node 2
        // serves as master because of its own `BeMaster` entry.
        Step::Campaign { node: 0, ballot: 3, claim },
        Step::Promise { node: 1, to: 0 },
        Step::Lead { node: 0, with: 1, claim },
        Step::Accept { node: 0, ballot: 3, upto: 2 },
        Step::Accept { node: 1, ballot: 3, upto: 2 },
        Step::Decide { node: 0, upto: 2 },
    ];
    replays(ONE_MASTER, rules, Bounds { crashes: 1, ..bounds }, &steps);
}

/// The model found this bug even with both lines of defence: a leader consented to a takeover before its own `BeMaster`
/// entry was decided. Its consent then ended another node's mastership, which had the same epoch.
#[test]
fn consent_before_the_leaders_claim_is_decided_allows_two_masters() {
    let rules = Rules { compare: Compare::LeaseSlot, consenter: Consenter::Proposed, ..Rules::BOTH };
    let bounds = Bounds { consents: 1, ..EMPTY };
    breaks(ONE_MASTER, rules, bounds);
    let first = Claim::Waited { term: Term::default(), lease_slot: 0 };
    let claim = Claim::Consent(Term { epoch: 1, ballot: 2 });
    let steps = [
        Step::Campaign { node: 0, ballot: 1, claim: first },
        Step::Promise { node: 1, to: 0 },
        Step::Lead { node: 0, with: 1, claim: first },
        Step::Consent { node: 0, taker: 1 },
        Step::Campaign { node: 2, ballot: 2, claim: first },
        Step::Promise { node: 1, to: 2 },
        Step::Lead { node: 2, with: 1, claim: first },
        Step::Accept { node: 1, ballot: 2, upto: 1 },
        Step::Decide { node: 2, upto: 1 },
        Step::Campaign { node: 1, ballot: 3, claim },
        Step::Promise { node: 0, to: 1 },
        Step::Lead { node: 1, with: 0, claim },
        Step::Accept { node: 0, ballot: 3, upto: 2 },
        Step::Decide { node: 1, upto: 2 },
    ];
    replays(ONE_MASTER, rules, bounds, &steps);
}

/// Each of two corrections alone prevents two masters: the log compares ballots, or a leader consents only after its
/// `BeMaster` entry is decided.
#[test]
fn ballot_comparison_or_delayed_consent_prevents_two_masters() {
    let bounds = Bounds { consents: 1, ..EMPTY };
    let named = Rules { consenter: Consenter::Proposed, ..Rules::BOTH };
    assert_eq!(all_states(named, bounds, &[CONSENTED]), 246_453);
    let decided = Rules { compare: Compare::LeaseSlot, ..Rules::BOTH };
    assert_eq!(all_states(decided, bounds, &[CONSENTED]), 112_055);
}

#[test]
fn lease_that_begins_at_the_decision_allows_two_masters() {
    breaks(ONE_MASTER, Rules { lease_from: LeaseFrom::Decided, ..Rules::BOTH }, MASTERED);
}

#[test]
fn takeover_without_consent_during_a_lease_allows_two_masters() {
    breaks(ONE_MASTER, Rules { takeover_needs_consent: false, ..Rules::BOTH }, MASTERED);
}

#[test]
fn master_that_serves_after_its_consent_allows_two_masters() {
    let bounds = Bounds { consents: 1, ..MASTERED };
    breaks(ONE_MASTER, Rules { consent_binds: false, ..Rules::BOTH }, bounds);
}

#[test]
fn restarted_node_that_skips_the_lease_wait_allows_two_masters() {
    let bounds = Bounds { crashes: 1, ..MASTERED };
    for rules in [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG] {
        breaks(ONE_MASTER, Rules { restart_waits: false, ..rules }, bounds);
    }
}

#[test]
fn master_that_serves_right_after_its_restart_allows_two_masters() {
    let bounds = Bounds { crashes: 1, ..MASTERED };
    breaks(ONE_MASTER, Rules { restart_ends_mastership: false, ..Rules::BOTH }, bounds);
}

#[test]
fn leader_that_claims_without_a_lease_wait_allows_two_masters() {
    breaks(ONE_MASTER, Rules { claim_by: ClaimBy::Unwaited, ..Rules::LOG }, MASTERED);
}

#[test]
fn leader_that_ignores_the_age_of_entries_allows_two_masters() {
    breaks(ONE_MASTER, Rules { pulled_waits: false, ..Rules::LOG }, Bounds { slots: 4, ..MASTERED });
}

#[test]
fn clock_drift_allows_two_masters_if_the_wait_equals_the_lease() {
    breaks(ONE_MASTER, Rules::BOTH, Bounds { skews: 1, ..MASTERED });
}

/// The test covers the history of Figure 8 in the Raft paper. The history needs four ballots, and the first two ballots
/// are part of the start state.
#[test]
fn leader_that_counts_entries_of_old_ballots_allows_two_values() {
    breaks(ONE_VALUE, Rules { own_ballot_decides: false, ..Rules::BOTH }, Bounds { symmetric: false, ..FORKED });
}

#[test]
fn takeover_that_ignores_the_masters_liveness_allows_two_masters() {
    breaks(ONE_MASTER, Rules { liveness_blocks: false, ..Rules::BOTH }, LIVING);
}

#[test]
fn liveness_epoch_that_ends_before_the_lease_allows_two_masters() {
    breaks(ONE_MASTER, Rules { expiry_waits: false, ..Rules::BOTH }, LIVING);
}

/// The simulator found this bug at seed 265,485: renewals of a master's liveness also renew its lease, although the
/// master's last `BeMaster` entry does not name the liveness epoch. The bug occurs with both lines of defence and with
/// each of them alone.
#[test]
fn lease_renewal_by_an_unnamed_liveness_epoch_allows_two_masters() {
    for rules in [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG] {
        breaks(ONE_MASTER, Rules { uncommitted_lives: false, ..rules }, LIVING);
    }
    let own = Claim::Own(Term { epoch: 1, ballot: 1 });
    let claim = Claim::Waited { term: Term { epoch: 2, ballot: 1 }, lease_slot: 2 };
    let steps = [
        Step::Tick,
        Step::Tick,
        Step::BeMaster { node: 0, claim: own },
        Step::Accept { node: 1, ballot: 1, upto: 2 },
        Step::Accept { node: 2, ballot: 1, upto: 2 },
        Step::Tick,
        Step::Tick,
        Step::Campaign { node: 1, ballot: 2, claim },
        Step::Promise { node: 2, to: 1 },
        Step::Lead { node: 1, with: 2, claim },
        Step::Accept { node: 2, ballot: 2, upto: 3 },
        Step::Decide { node: 1, upto: 3 },
        // The liveness epoch has not expired, so node 0 renews it.
        Step::Renew,
        Step::LearnAlive,
    ];
    replays(ONE_MASTER, Rules { uncommitted_lives: false, ..Rules::BOTH }, LIVING, &steps);
}

/// Explores all states: with both lines of defence, with only the line of defence of the acceptors, and with only the
/// line of defence of the log. `states` are the three expected numbers of states. Each property in `shown` must hold in
/// at least one state, because an exploration proves nothing about events that never occur.
fn holds(bounds: Bounds, shown: &[&'static str], states: [usize; 3]) {
    let counted = [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG].map(|rules| all_states(rules, bounds, shown));
    assert_eq!(counted, states, "the numbers of states differ from the recorded ones");
}

fn all_states(rules: Rules, bounds: Bounds, shown: &[&'static str]) -> usize {
    let checker = Cluster { rules, bounds }.checker().spawn_bfs().join();
    assert!(checker.is_done());
    checker.assert_no_discovery(ONE_VALUE);
    checker.assert_no_discovery(ONE_MASTER);
    for &name in shown {
        // If nodes do not compare claims with the mastership, no `BeMaster` entry is void.
        if name != VOID || rules.compare > Compare::Nothing {
            checker.assert_any_discovery(name);
        }
    }
    checker.unique_state_count()
}

/// Checks that the model can reach a state in which `property` does not hold.
fn breaks(property: &'static str, rules: Rules, bounds: Bounds) {
    let found = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = Cluster { rules, bounds }.checker().finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

/// Checks that the model allows `steps`, and that they lead to a state in which `property` does not hold.
fn replays(property: &'static str, rules: Rules, bounds: Bounds, steps: &[Step]) {
    let cluster = Cluster { rules, bounds: Bounds { symmetric: false, ..bounds } };
    let path =
        Path::from_actions(&cluster, State::new(bounds.start, bounds.lives), steps).expect("each step is allowed");
    let property = cluster.property(property);
    assert!(!(property.condition)(&cluster, path.last_state()));
}
