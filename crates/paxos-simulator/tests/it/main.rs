//! The world of paxos groups from outside: raft-rs runs in it (what is sound is not called broken, and what is broken is), and what
//! it prints of a failure is obeyed.

mod raft;
mod replay;
mod shelf;

use ::raft::eraftpb::MessageType;
use paxos_simulator::{Coverage, Incident, Knobs, Mutation, Rule, run};

use crate::raft::{Careful, Driver, Raft};

/// All faults are left in: it takes them all. A system group is ours alone.
fn knobs(seed: u64) -> Knobs {
    Knobs { has_system: false, ..Knobs::draw(seed, Mutation::None) }
}

#[test]
fn raft_rs_holds_in_this_world() {
    let mut coverage = Coverage::default();
    for seed in 0..400 {
        let outcome = run::<Raft<Careful>>(&knobs(seed), false);
        assert_eq!(outcome.result, Ok(()), "seed {seed}");
        coverage.add(&outcome);
    }
    assert!(coverage.acknowledged > 10_000, "{coverage}");
    // Those of leases and moves it has not, as it has no such leases.
    let ours = [
        Incident::LeaseExpired,
        Incident::MovedByConsent,
        Incident::MovedByShortening,
        Incident::OwnAgain,
        Incident::VoidBeMaster,
        Incident::ConsentRefused,
        Incident::LivenessExpired,
        Incident::MoveBegun,
        Incident::MoveTakenOver,
        Incident::HandedOver,
        Incident::Moved,
    ];
    for incident in Incident::ALL.into_iter().filter(|incident| !ours.contains(incident)) {
        assert!(coverage.of(incident) > 0, "{incident:?} never is: {coverage}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let hash = || run::<Raft<Careful>>(&knobs(seed), false).trace_hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
    let hash = |seed| run::<Raft<Careful>>(&knobs(seed), false).trace_hash;
    assert_ne!(hash(0), hash(1));
}

fn caught<D: Driver>() -> Rule {
    let found = (0..2_000).find_map(|seed| run::<Raft<D>>(&knobs(seed), false).result.err());
    found.expect("it is caught").rule
}

#[test]
fn a_vote_that_is_told_before_its_sync_is_caught() {
    struct Hasty;
    impl Driver for Hasty {
        const HURRIES: Option<MessageType> = Some(MessageType::MsgRequestVoteResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::PromisesKept);
}

#[test]
fn an_entry_that_is_told_before_its_sync_is_caught() {
    struct Hasty;
    impl Driver for Hasty {
        const HURRIES: Option<MessageType> = Some(MessageType::MsgAppendResponse);
    }
    assert_eq!(caught::<Hasty>(), Rule::AcknowledgedIsDurable);
}

#[test]
fn a_vote_that_is_forgotten_at_a_restart_is_caught() {
    struct Forgetful;
    impl Driver for Forgetful {
        const IS_FORGETFUL: bool = true;
    }
    assert_eq!(caught::<Forgetful>(), Rule::PromisesKept);
}

#[test]
fn an_acknowledgement_of_what_another_proposed_is_caught() {
    struct Careless;
    impl Driver for Careless {
        const GOES_BY_PLACE: bool = true;
    }
    assert_eq!(caught::<Careless>(), Rule::ToldTheTruth);
}
