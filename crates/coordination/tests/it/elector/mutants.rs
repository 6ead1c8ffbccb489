//! Deliberate bugs in an elector, each of which the suite must see.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use coordination::memory::MemoryElector;
use coordination::{Answer, Elector, Follower, Leadership, Term};
use coordination_conformance::elector::case;
use futures_util::FutureExt as _;
use simulator::Simulation;

use super::Memory;
use crate::support::slow;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    AllLead,
    DeparturesAreNobodys,
    FollowersAreRemembered,
    NameAloneLeads,
    ResignationIsIgnored,
    TermStays,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::AllLead, "of_replicas_that_call_at_once_one_leads"),
    (Bug::DeparturesAreNobodys, "departures_are_told_to_the_leader_alone"),
    (Bug::FollowersAreRemembered, "followers_are_those_who_called_lately"),
    (Bug::NameAloneLeads, "an_earlier_life_of_a_replica_is_another"),
    (Bug::ResignationIsIgnored, "a_leader_that_resigns_hands_over_at_once"),
    (Bug::TermStays, "a_lease_that_ended_passes_on_under_a_later_term"),
    (Bug::TermStays, "a_lease_taken_again_has_a_later_term"),
];

#[test]
fn each_deliberate_bug_is_caught_by_its_case() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed catches {missed:?}");
}

/// Whether the case fails on an engine with this bug. (That it passes on one without is what the suites show.)
fn catches(bug: Bug, name: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let first: Arc<OnceLock<Arc<MemoryElector>>> = Arc::default();
        let subject = Memory::new(sim.outside(), slow()).broken(move |inner| {
            let inner = Arc::new(inner);
            let one_life = first.get_or_init(|| inner.clone()).clone();
            Arc::new(BrokenElector { bug, inner: if bug == Bug::NameAloneLeads { one_life } else { inner } })
        });
        AssertUnwindSafe(case(name).run(&subject)).catch_unwind().await.is_err()
    })
}

struct BrokenElector {
    bug: Bug,
    inner: Arc<MemoryElector>,
}

impl Elector for BrokenElector {
    fn is_leader(&self, replica: &str, mut lease: Duration) -> Answer<'_, Leadership> {
        if self.bug == Bug::FollowersAreRemembered {
            lease = coordination::LEASE_MAX;
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
        let telling = self.inner.departures(replica, known);
        let bug = self.bug;
        Box::pin(telling.map(move |departed| match departed {
            Ok(Some(_)) if bug == Bug::DeparturesAreNobodys => Ok(Some(Vec::new())),
            departed => departed,
        }))
    }
}
