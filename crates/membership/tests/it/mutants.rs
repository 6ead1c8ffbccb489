//! Deliberate bugs in an engine. The conformance suite must detect each bug.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use instants::Timestamp;
use membership::memory::MemoryOwnership;
use membership::{Answer, ClaimName, Member, MemberId, Ownership, OwnershipError, Renewed, View};
use membership_conformance::case;
use runtime::Runtime;
use simulator::Simulation;

use crate::support::{Memory, slow};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    ResultsAreReversed,
    ChangesAreNotReported,
    ClaimIsNotAtomic,
    ClaimIsStolen,
    ClockIsFrozen,
    FirstEndIsMissing,
    RepeatedJoinIsRejected,
    RepeatedJoinUpdatesNothing,
    LeaseIsHalved,
    LeaseNeverEnds,
    LeaveHasNoEffect,
    LostIsNotReported,
    NamesFoldCase,
    OwnClaimIsRejected,
    ReleaseIgnoresHolder,
    RenewalHasNoEffect,
    TextIsTruncated,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::ResultsAreReversed, "claim_batch_returns_all_results_in_order"),
    (Bug::ChangesAreNotReported, "change_wakes_waiting_processes"),
    (Bug::ClaimIsNotAtomic, "concurrent_claims_give_each_name_one_holder"),
    (Bug::ClaimIsStolen, "claim_has_one_holder"),
    (Bug::ClockIsFrozen, "renewal_returns_the_engines_clock"),
    (Bug::FirstEndIsMissing, "view_contains_the_end_of_the_first_session"),
    (Bug::RepeatedJoinIsRejected, "repeated_join_renews_the_session"),
    (Bug::RepeatedJoinUpdatesNothing, "repeated_join_updates_the_member"),
    (Bug::LeaseIsHalved, "claims_become_free_exactly_when_the_lease_ends"),
    (Bug::LeaseNeverEnds, "view_shows_only_live_members"),
    (Bug::LeaveHasNoEffect, "leave_frees_all_claims_of_the_member"),
    (Bug::LostIsNotReported, "ended_session_is_lost_for_all_calls"),
    (Bug::LostIsNotReported, "renewal_and_claim_at_the_end_of_a_lease_are_consistent"),
    (Bug::NamesFoldCase, "similar_claim_names_are_distinct"),
    (Bug::OwnClaimIsRejected, "repeated_claim_by_its_holder_is_granted"),
    (Bug::ReleaseIgnoresHolder, "release_of_another_members_claim_has_no_effect"),
    (Bug::RenewalHasNoEffect, "renewal_extends_the_session"),
    (Bug::TextIsTruncated, "member_with_a_too_long_text_is_rejected"),
];

#[test]
fn conformance_suite_detects_each_deliberate_bug_in_an_engine() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed detects {missed:?}");
}

/// Returns whether the conformance case `name` fails on an engine with the bug `bug`. Other tests show that the case
/// passes on the same engine without the bug.
fn catches(bug: Bug, name: &str, seed: u64) -> bool {
    let sim = Simulation::new(seed);
    sim.run_until(async {
        let runtime = sim.outside();
        let subject = Memory::new(runtime.clone(), slow())
            .broken(move |inner| Arc::new(Broken { bug, inner, runtime: runtime.clone() }));
        AssertUnwindSafe(case(name).run(&subject)).catch_unwind().await.is_err()
    })
}

struct Broken {
    bug: Bug,
    inner: MemoryOwnership,
    runtime: Runtime,
}

impl Broken {
    fn lease(&self, lease: Duration) -> Duration {
        match self.bug {
            Bug::LeaseIsHalved => lease / 2,
            Bug::LeaseNeverEnds => membership::LEASE_MAX,
            _ => lease,
        }
    }

    fn renewed(&self, answer: Result<Renewed, OwnershipError>) -> Result<Renewed, OwnershipError> {
        let faked = Renewed { engine_now: self.runtime.now() };
        match (self.bug, answer) {
            (Bug::LostIsNotReported, Err(OwnershipError::Lost)) => Ok(faked),
            (Bug::ClockIsFrozen, Ok(_)) => Ok(Renewed { engine_now: Timestamp::from_millis(1) }),
            (_, answer) => answer,
        }
    }

    /// Releases the claims with these names, no matter which members hold the claims.
    async fn steal(&self, names: &[ClaimName]) -> Result<(), OwnershipError> {
        for (name, holder) in self.inner.view().await?.claims {
            if names.contains(&name) {
                self.inner.release(holder, vec![name]).await?;
            }
        }
        Ok(())
    }
}

impl Ownership for Broken {
    fn join(&self, mut member: Member, lease: Duration) -> Answer<'_, Renewed> {
        Box::pin(async move {
            if self.bug == Bug::RepeatedJoinUpdatesNothing && self.inner.view().await?.member(member.id).is_some() {
                return self.inner.renew(member.id, lease).await;
            }
            if self.bug == Bug::RepeatedJoinIsRejected && self.inner.view().await?.member(member.id).is_some() {
                return Err(OwnershipError::Lost);
            }
            if self.bug == Bug::TextIsTruncated {
                for text in [&mut member.name, &mut member.address, &mut member.build] {
                    *text = text.chars().take(10).filter(|c| *c != '\0').collect();
                }
            }
            let answer = self.inner.join(member, self.lease(lease)).await;
            self.renewed(answer)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        Box::pin(async move {
            if self.bug == Bug::RenewalHasNoEffect {
                return Ok(Renewed { engine_now: self.runtime.now() });
            }
            let answer = self.inner.renew(member, self.lease(lease)).await;
            self.renewed(answer)
        })
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.bug == Bug::LeaveHasNoEffect {
                return Ok(());
            }
            self.inner.leave(member).await
        })
    }

    fn claim(&self, member: MemberId, mut names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        Box::pin(async move {
            match self.bug {
                Bug::ClaimIsStolen => self.steal(&names).await?,
                Bug::ClaimIsNotAtomic => {
                    let known = self.inner.view().await?.claims;
                    let free: Vec<ClaimName> = names.iter().filter(|name| !known.contains_key(name)).cloned().collect();
                    self.steal(&free).await?;
                }
                Bug::NamesFoldCase => {
                    for name in &mut names {
                        *name = ClaimName::new(&name.as_str().to_ascii_lowercase())
                            .expect("lower case keeps the name valid");
                    }
                }
                _ => {}
            }
            let mut before = View::default();
            if self.bug == Bug::OwnClaimIsRejected {
                before = self.inner.view().await?;
            }
            let is_own = names.iter().map(|name| before.claims.get(name) == Some(&member)).collect::<Vec<_>>();
            let mut held = self.inner.claim(member, names).await?;
            held.iter_mut().zip(is_own).for_each(|(held, is_own)| *held &= !is_own);
            if self.bug == Bug::ResultsAreReversed {
                held.reverse();
            }
            Ok(held)
        })
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.bug == Bug::ReleaseIgnoresHolder {
                return self.steal(&names).await;
            }
            self.inner.release(member, names).await
        })
    }

    fn view(&self) -> Answer<'_, View> {
        Box::pin(async move {
            let mut view = self.inner.view().await?;
            if self.bug == Bug::FirstEndIsMissing {
                view.first_end = None;
            }
            Ok(view)
        })
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        if self.bug == Bug::ChangesAreNotReported {
            return std::future::pending().boxed();
        }
        self.inner.changed()
    }
}
