//! Deliberate bugs in an elector. The suite must detect each of them.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination_conformance::elector::case;
use futures_util::FutureExt as _;
use reveille_coordination::memory::MemoryElector;
use reveille_coordination::{Answer, Elector, Followed, Follower, KnownLeader, Leadership, Term};
use simulator::Simulation;

use super::Memory;
use crate::support::slow;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    AllLead,
    DeparturesAreEmpty,
    FollowersAreRemembered,
    LeaderIsNotFollowed,
    NameAloneLeads,
    ResignationIsIgnored,
    TermStays,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::AllLead, "one_of_several_concurrent_replicas_leads"),
    (Bug::DeparturesAreEmpty, "departures_are_reported_only_to_the_leader"),
    (Bug::FollowersAreRemembered, "followers_are_the_replicas_with_a_current_lease"),
    (Bug::LeaderIsNotFollowed, "follower_of_the_leader_sees_each_change"),
    (Bug::NameAloneLeads, "earlier_life_of_a_replica_counts_as_another_replica"),
    (Bug::ResignationIsIgnored, "resigning_leader_hands_over_at_once"),
    (Bug::TermStays, "expired_lease_passes_to_another_replica_with_a_later_term"),
    (Bug::TermStays, "leader_after_an_expired_lease_has_a_later_term"),
];

#[test]
fn conformance_suite_detects_each_deliberate_bug_in_an_elector() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed detects {missed:?}");
}

/// Returns true if the case fails on an engine with this bug. The tests of the suite show that the case passes on an
/// engine without bugs.
fn catches(bug: Bug, name: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let without_leader = Arc::new(MemoryElector::new(sim.outside(), slow()));
        let first: Arc<OnceLock<Arc<MemoryElector>>> = Arc::default();
        let subject = Memory::new(sim.outside(), slow()).broken(move |inner| {
            let inner = Arc::new(inner);
            let one_life = first.get_or_init(|| inner.clone()).clone();
            let inner = if bug == Bug::NameAloneLeads { one_life } else { inner };
            Arc::new(BrokenElector { bug, inner, without_leader: without_leader.clone() })
        });
        AssertUnwindSafe(case(name).run(&subject)).catch_unwind().await.is_err()
    })
}

struct BrokenElector {
    bug: Bug,
    inner: Arc<MemoryElector>,
    /// Elector of another replica group, which never has a leader.
    without_leader: Arc<MemoryElector>,
}

impl Elector for BrokenElector {
    fn is_leader(&self, replica: &str, mut lease: Duration) -> Answer<'_, Leadership> {
        if self.bug == Bug::FollowersAreRemembered {
            lease = reveille_coordination::LEASE_MAX;
        }
        let answer = self.inner.is_leader(replica, lease);
        let bug = self.bug;
        Box::pin(answer.map(move |answer| {
            answer.map(|Leadership { leads, term }| Leadership {
                leads: leads || bug == Bug::AllLead,
                term: if bug == Bug::TermStays { Term(1) } else { term },
            })
        }))
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        if self.bug == Bug::ResignationIsIgnored {
            return async { Ok(()) }.boxed();
        }
        self.inner.resign(replica)
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        self.inner.followers()
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let departures = self.inner.departures(replica, known);
        let bug = self.bug;
        Box::pin(departures.map(move |departed| match departed {
            Ok(Some(_)) if bug == Bug::DeparturesAreEmpty => Ok(Some(Vec::new())),
            departed => departed,
        }))
    }

    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>> {
        if self.bug == Bug::LeaderIsNotFollowed {
            return self.without_leader.follow_leader();
        }
        self.inner.follow_leader()
    }
}
