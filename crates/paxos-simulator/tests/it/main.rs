//! Tests of the simulation's public API. raft-rs runs in it: a sound program breaks no rule, and an unsound one does.
//! The replay command that a failure prints is run, too.

mod raft;
mod replay;
mod storage;

use ::raft::eraftpb::MessageType;
use paxos_simulator::{Coverage, Incident, Mutation, Rule, RunConfig, run};

use crate::raft::{Careful, Driver, Raft};

/// Returns a configuration with all faults but without a system group, which raft-rs does not have.
fn config(seed: u64) -> RunConfig {
    RunConfig { has_system: false, ..RunConfig::draw(seed, Mutation::None) }
}

#[test]
fn raft_rs_breaks_no_rule() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        let outcome = run::<Raft<Careful>>(&config(seed), false);
        assert_eq!(outcome.result, Ok(()), "seed {seed}");
        coverage.add(&outcome);
    }
    assert!(coverage.acknowledged > 10_000, "{coverage}");
    // raft-rs has none of the incidents of leases and moves, because it has no such leases.
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
fn same_seed_gives_the_same_run() {
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
fn vote_sent_before_its_sync_is_caught() {
    struct Hasty;
    impl Driver for Hasty {
        const SENDS_EARLY: Option<MessageType> = Some(MessageType::MsgRequestVoteResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::PromisesKept);
}

#[test]
fn entry_sent_before_its_sync_is_caught() {
    struct Hasty;
    impl Driver for Hasty {
        const SENDS_EARLY: Option<MessageType> = Some(MessageType::MsgAppendResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::AcknowledgedIsDurable);
}

#[test]
fn vote_lost_at_a_restart_is_caught() {
    struct Forgetful;
    impl Driver for Forgetful {
        const LOSES_VOTE: bool = true;
    }
    assert_eq!(caught::<Forgetful>(), Rule::PromisesKept);
}

#[test]
fn acknowledgement_of_a_foreign_proposal_is_caught() {
    struct Careless;
    impl Driver for Careless {
        const TRUSTS_INDEX: bool = true;
    }
    assert_eq!(caught::<Careless>(), Rule::TrueOutcomes);
}
