//! The model that came before the code: ballots, log and mastership as they are specified, walked through state by state. It
//! shares nothing with the crate, so that a mistake in the one is not in the other.
//!
//! What is modelled: three nodes; messages that are lost, late, doubled and in any order (what was sent may arrive at any time,
//! any number of times, or never); restarts, which forget all that is not on disk; phase 1, the tail that is pulled, the
//! barrier entry above it; BeMaster and its compare-and-swap; leases that every slot renews, counted from before the propose;
//! both lines of defence; consent, and the steal that it allows; one node's liveness in the system group, which is a register
//! here. Not modelled: changes of members, snapshots, `Shorten`, a liveness over restarts, more than three nodes.
//!
//! What is bounded, and how far, stands with each test: the ballots, slots, data entries, restarts and consents of a whole
//! history. Within that all is walked through; states are told apart by 64 bits of hash. Time has no bound: clocks are kept
//! as spans that end with the lease of two ticks, and all that happens at one tick happens in any order. Three
//! numbers of states are those of both lines of defence, the acceptors' alone and the log's alone.
//!
//! Left out, as it only ever allows less: trial promises, promises that arrive late (they would say that less time has
//! passed), Prepares of a candidate that is none any more, masters that campaign while they serve.

mod cluster;
mod log;
mod rules;
mod state;

use std::collections::BTreeSet;

use cluster::{CONSENTED, Cluster, ONE_MASTER, ONE_VALUE, Step, VOID, WAITED};
use log::{Claim, Tenure};
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

// ---- What holds, with both lines of defence and with either alone.

#[test]
fn a_master_is_taken_over_twice_by_waiting() {
    holds(Bounds { slots: 4, ..MASTERED }, &[WAITED, VOID], [125_332, 97_579, 152_141]);
}

#[test]
fn a_master_consents() {
    holds(Bounds { consents: 1, ..MASTERED }, &[WAITED, CONSENTED, VOID], [343_459, 358_459, 448_691]);
}

#[test]
fn a_node_restarts() {
    holds(Bounds { crashes: 1, ..MASTERED }, &[WAITED, VOID], [174_425, 177_003, 217_387]);
}

#[test]
fn a_master_is_taken_over_three_times() {
    holds(Bounds { ballots: 4, ..MASTERED }, &[WAITED, VOID], [293_666, 308_374, 379_825]);
}

#[test]
fn a_clock_runs_ahead_by_what_is_waited_longer() {
    let bounds = Bounds { skews: 1, wait: LEASE + 1, ..MASTERED };
    holds(bounds, &[WAITED, VOID], [171_455, 197_546, 251_693]);
}

#[test]
fn the_first_master_consents() {
    holds(Bounds { consents: 1, ..EMPTY }, &[WAITED, CONSENTED, VOID], [112_143, 118_129, 148_545]);
}

#[test]
fn a_node_restarts_while_there_is_no_master() {
    holds(Bounds { crashes: 1, ..EMPTY }, &[WAITED, VOID], [138_180, 140_453, 180_829]);
}

#[test]
fn a_first_masters_disk_loses_what_others_have() {
    holds(Bounds { slow_disk: true, ..EMPTY }, &[WAITED, VOID], [239_344, 274_175, 315_939]);
}

#[test]
fn a_master_is_renewed_by_its_liveness() {
    holds(LIVING, &[WAITED, VOID], [949_721, 964_831, 1_169_133]);
}

#[test]
fn a_master_that_is_renewed_by_its_liveness_consents() {
    let bounds = Bounds { consents: 1, ballots: 2, ..LIVING };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED]), 807_170);
}

#[test]
fn a_forked_tail_is_taken_up() {
    holds(Bounds { symmetric: false, ..FORKED }, &[WAITED, VOID], [68_891, 60_598, 80_400]);
}

/// A leader that finds its claim outdated by what it pulled need not propose it to be void: it may make it anew, by the rule
/// by which it would propose the next.
#[test]
fn a_leader_judges_its_claim_again() {
    let rules = Rules { claim_by: ClaimBy::CandidateAndLeader, ..Rules::LOG };
    assert_eq!(all_states(rules, Bounds { slots: 4, ..MASTERED }, &[WAITED, VOID]), 155_067);
}

#[test]
fn a_master_consents_and_a_node_restarts() {
    let bounds = Bounds { consents: 1, crashes: 1, ..MASTERED };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED, VOID]), 1_580_944);
}

#[test]
fn a_master_consents_in_a_longer_log() {
    let bounds = Bounds { consents: 1, slots: 4, ..MASTERED };
    assert_eq!(all_states(Rules::BOTH, bounds, &[WAITED, CONSENTED, VOID]), 1_759_137);
}

// ---- What each rule is for: without it the property does not hold.

#[test]
fn without_either_line_there_are_two_masters() {
    breaks(ONE_MASTER, Rules::NEITHER, MASTERED);
}

/// What the design said first: every commit renews, and a BeMaster is compared with the last master record alone.
#[test]
fn a_master_renewed_by_a_slot_that_the_taker_has_not_seen_is_not_the_only_one() {
    let rules = Rules { compare: Compare::Epoch, ..Rules::LOG };
    breaks(ONE_MASTER, rules, MASTERED);
    let claim = Claim::Waited { tenure: Tenure { epoch: 1, ballot: 1 }, lease_slot: 1 };
    let story = [
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
    told(ONE_MASTER, rules, MASTERED, &story);
}

/// Found by this model, with the log's line alone: two branches of a log may have an epoch of one number and one last slot.
#[test]
fn a_claim_by_the_epochs_number_takes_what_it_never_waited_for() {
    let rules = Rules { compare: Compare::LeaseSlot, ..Rules::LOG };
    let bounds = Bounds { slow_disk: true, ..EMPTY };
    breaks(ONE_MASTER, rules, bounds);
    let first = Claim::Waited { tenure: Tenure::default(), lease_slot: 0 };
    let claim = Claim::Waited { tenure: Tenure { epoch: 1, ballot: 1 }, lease_slot: 1 };
    let story = [
        Step::Campaign { node: 1, ballot: 1, claim: first },
        Step::Promise { node: 0, to: 1 },
        Step::Lead { node: 1, with: 0, claim: first },
        Step::Accept { node: 0, ballot: 1, upto: 1 },
        // Its own disk never had it.
        Step::Crash { node: 1 },
        Step::Tick,
        Step::Tick,
        Step::Campaign { node: 2, ballot: 2, claim: first },
        Step::Promise { node: 1, to: 2 },
        Step::Lead { node: 2, with: 1, claim: first },
        Step::Accept { node: 2, ballot: 2, upto: 1 },
        Step::Accept { node: 1, ballot: 2, upto: 1 },
        Step::Decide { node: 2, upto: 1 },
        // Node 0 has waited by the entry that node 1 left; node 2 serves by another.
        Step::Campaign { node: 0, ballot: 3, claim },
        Step::Promise { node: 1, to: 0 },
        Step::Lead { node: 0, with: 1, claim },
        Step::Accept { node: 0, ballot: 3, upto: 2 },
        Step::Accept { node: 1, ballot: 3, upto: 2 },
        Step::Decide { node: 0, upto: 2 },
    ];
    told(ONE_MASTER, rules, Bounds { crashes: 1, ..bounds }, &story);
}

/// Found by this model, with both lines: who consents before its own BeMaster is decided gives away another's epoch.
#[test]
fn a_consent_to_an_epoch_that_never_came_ends_another() {
    let rules = Rules { compare: Compare::LeaseSlot, consenter: Consenter::Proposed, ..Rules::BOTH };
    let bounds = Bounds { consents: 1, ..EMPTY };
    breaks(ONE_MASTER, rules, bounds);
    let first = Claim::Waited { tenure: Tenure::default(), lease_slot: 0 };
    let claim = Claim::Consent(Tenure { epoch: 1, ballot: 2 });
    let story = [
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
    told(ONE_MASTER, rules, bounds, &story);
}

/// Either of the two corrections would do.
#[test]
fn a_consent_that_names_its_ballot_ends_no_other_epoch() {
    let bounds = Bounds { consents: 1, ..EMPTY };
    let named = Rules { consenter: Consenter::Proposed, ..Rules::BOTH };
    assert_eq!(all_states(named, bounds, &[CONSENTED]), 246_453);
    let decided = Rules { compare: Compare::LeaseSlot, ..Rules::BOTH };
    assert_eq!(all_states(decided, bounds, &[CONSENTED]), 112_055);
}

#[test]
fn a_lease_counted_from_when_it_was_decided_outlives_the_wait() {
    breaks(ONE_MASTER, Rules { lease_from: LeaseFrom::Decided, ..Rules::BOTH }, MASTERED);
}

#[test]
fn a_steal_without_consent_makes_two_masters() {
    breaks(ONE_MASTER, Rules { steal_needs_consent: false, ..Rules::BOTH }, MASTERED);
}

#[test]
fn a_master_that_serves_on_after_its_consent_is_not_the_only_one() {
    let bounds = Bounds { consents: 1, ..MASTERED };
    breaks(ONE_MASTER, Rules { consent_binds: false, ..Rules::BOTH }, bounds);
}

#[test]
fn a_wait_forgotten_at_a_restart_is_missed_by_either_line() {
    let bounds = Bounds { crashes: 1, ..MASTERED };
    for rules in [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG] {
        breaks(ONE_MASTER, Rules { restart_waits: false, ..rules }, bounds);
    }
}

#[test]
fn a_restarted_master_that_believes_its_record_is_not_the_only_one() {
    let bounds = Bounds { crashes: 1, ..MASTERED };
    breaks(ONE_MASTER, Rules { restart_ends_mastership: false, ..Rules::BOTH }, bounds);
}

#[test]
fn a_claim_made_by_the_pulled_log_needs_a_wait_by_it() {
    breaks(ONE_MASTER, Rules { claim_by: ClaimBy::Unwaited, ..Rules::LOG }, MASTERED);
}

#[test]
fn what_is_pulled_is_as_young_as_its_giver_says() {
    breaks(ONE_MASTER, Rules { pulled_waits: false, ..Rules::LOG }, Bounds { slots: 4, ..MASTERED });
}

#[test]
fn a_clock_that_runs_ahead_ends_a_wait_of_no_more_than_the_lease_too_soon() {
    breaks(ONE_MASTER, Rules::BOTH, Bounds { skews: 1, ..MASTERED });
}

/// Figure 8 of the Raft paper. It takes four ballots, so the first two have been.
#[test]
fn copies_of_an_old_ballots_entry_decide_nothing() {
    breaks(ONE_VALUE, Rules { own_ballot_decides: false, ..Rules::BOTH }, Bounds { symmetric: false, ..FORKED });
}

#[test]
fn a_living_master_that_is_taken_for_gone_is_not_the_only_one() {
    breaks(ONE_MASTER, Rules { living_hold: false, ..Rules::BOTH }, LIVING);
}

#[test]
fn a_liveness_that_is_ended_before_it_is_over_makes_two_masters() {
    breaks(ONE_MASTER, Rules { expiry_waits: false, ..Rules::BOTH }, LIVING);
}

/// Found by the simulator at seed 265,485, with either line and with both: what it wrote does not say that it lives.
#[test]
fn a_master_whose_liveness_comes_back_serves_by_what_others_do_not_have() {
    for rules in [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG] {
        breaks(ONE_MASTER, Rules { tip_lives: false, ..rules }, LIVING);
    }
    let own = Claim::Own(Tenure { epoch: 1, ballot: 1 });
    let claim = Claim::Waited { tenure: Tenure { epoch: 2, ballot: 1 }, lease_slot: 2 };
    let story = [
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
        // Nobody had it ended.
        Step::Renew,
        Step::LearnAlive,
    ];
    told(ONE_MASTER, Rules { tip_lives: false, ..Rules::BOTH }, LIVING, &story);
}

/// Walks through all states: with both lines of defence, with the acceptors' alone, with the log's alone. `states` is how
/// many there are, `shown` what must happen in some of them: the walk proves nothing about what it never comes to.
fn holds(bounds: Bounds, shown: &[&'static str], states: [usize; 3]) {
    let counted = [Rules::BOTH, Rules::ACCEPTORS, Rules::LOG].map(|rules| all_states(rules, bounds, shown));
    assert_eq!(counted, states, "the states on record");
}

fn all_states(rules: Rules, bounds: Bounds, shown: &[&'static str]) -> usize {
    let checker = Cluster { rules, bounds }.checker().spawn_bfs().join();
    assert!(checker.is_done());
    checker.assert_no_discovery(ONE_VALUE);
    checker.assert_no_discovery(ONE_MASTER);
    for &name in shown {
        // Where nothing is compared no BeMaster is void.
        if name != VOID || rules.compare > Compare::Nothing {
            checker.assert_any_discovery(name);
        }
    }
    checker.unique_state_count()
}

/// Looks for a state in which `property` does not hold.
fn breaks(property: &'static str, rules: Rules, bounds: Bounds) {
    let found = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = Cluster { rules, bounds }.checker().finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

/// Follows a story of steps, each of them allowed, to its end, where `property` does not hold.
fn told(property: &'static str, rules: Rules, bounds: Bounds, story: &[Step]) {
    let cluster = Cluster { rules, bounds: Bounds { symmetric: false, ..bounds } };
    let path =
        Path::from_actions(&cluster, State::new(bounds.start, bounds.lives), story).expect("each step is allowed");
    let property = cluster.property(property);
    assert!(!(property.condition)(&cluster, path.last_state()));
}
