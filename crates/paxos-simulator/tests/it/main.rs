//! Tests of the simulation's public API. The tests run raft-rs in the simulation. A correct driver of raft-rs breaks no
//! rule, and each incorrect driver breaks a rule. Another test runs the replay command that a failure prints.

mod raft;
mod replay;
mod storage;

use ::raft::eraftpb::MessageType;
use paxos_simulator::{Coverage, Incident, Mutation, Rule, RunConfig, run};

use crate::raft::{Careful, Driver, Raft};

/// Returns a configuration with all faults and without a system group, because raft-rs does not have a system group.
fn config(seed: u64) -> RunConfig {
    RunConfig { has_system: false, ..RunConfig::draw(seed, Mutation::None) }
}

#[test]
fn raft_rs_library_breaks_no_rule_that_the_simulation_checks() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        let outcome = run::<Raft<Careful>>(&config(seed), false);
        assert_eq!(outcome.result, Ok(()), "seed {seed}");
        coverage.add(&outcome);
    }
    assert!(coverage.acknowledged > 10_000, "{coverage}");
    // raft-rs has no master leases and no moves, so incidents of leases and moves cannot occur.
    let ours = [
        Incident::LeaseExpired,
        Incident::MovedByConsent,
        Incident::MovedByShortening,
        Incident::MastershipRenewed,
        Incident::VoidBeMaster,
        Incident::ConsentDeclined,
        Incident::LivenessExpired,
        Incident::MoveBegun,
        Incident::MoveTakenOver,
        Incident::HandedOver,
        Incident::Moved,
    ];
    for incident in Incident::ALL.into_iter().filter(|incident| !ours.contains(incident)) {
        assert!(coverage.of(incident) > 0, "{incident:?} never occurs: {coverage}");
    }
}

#[test]
fn raft_runs_with_the_same_seed_have_the_same_trace() {
    for seed in 0..20 {
        let hash = || run::<Raft<Careful>>(&config(seed), false).trace_hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
    let hash = |seed| run::<Raft<Careful>>(&config(seed), false).trace_hash;
    assert_ne!(hash(0), hash(1));
}

fn caught<D: Driver>() -> Rule {
    let found = (0..2_000).find_map(|seed| run::<Raft<D>>(&config(seed), false).result.err());
    found.expect("some seed catches the bug").rule
}

#[test]
fn simulation_detects_a_vote_sent_before_the_disk_sync() {
    struct Hasty;
    impl Driver for Hasty {
        const SENDS_EARLY: Option<MessageType> = Some(MessageType::MsgRequestVoteResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::PromisesKept);
}

#[test]
fn simulation_detects_an_append_response_sent_before_the_disk_sync() {
    struct Hasty;
    impl Driver for Hasty {
        const SENDS_EARLY: Option<MessageType> = Some(MessageType::MsgAppendResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::AcknowledgedIsDurable);
}

#[test]
fn simulation_detects_a_vote_that_is_lost_at_a_restart() {
    struct Forgetful;
    impl Driver for Forgetful {
        const LOSES_VOTE: bool = true;
    }
    assert_eq!(caught::<Forgetful>(), Rule::PromisesKept);
}

#[test]
fn simulation_detects_that_a_node_acknowledges_the_wrong_proposal() {
    struct Careless;
    impl Driver for Careless {
        const TRUSTS_INDEX: bool = true;
    }
    assert_eq!(caught::<Careless>(), Rule::TrueOutcomes);
}
