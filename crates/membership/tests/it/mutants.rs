//! Deliberate bugs in an engine, each of which the suite must see.

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
    AnswersBackwards,
    ChangesAreNotTold,
    ClaimIsReadThenWritten,
    ClaimIsStolen,
    ClockStandsStill,
    EndOfSessionsIsNotTold,
    JoinAgainIsRefused,
    JoinAgainTellsNothing,
    LeaseIsHalf,
    LeaseNeverEnds,
    LeaveLeavesNothing,
    LostIsNotTold,
    NamesFoldCase,
    OwnClaimIsRefused,
    ReleaseOfAnyones,
    RenewalHasNoEffect,
    TextIsCut,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::AnswersBackwards, "a_batch_is_answered_in_order_and_whole"),
    (Bug::ChangesAreNotTold, "who_waits_for_a_change_is_woken"),
    (Bug::ClaimIsReadThenWritten, "of_those_who_claim_at_once_one_holds_each_name"),
    (Bug::ClaimIsStolen, "a_claim_has_one_holder"),
    (Bug::ClockStandsStill, "the_engines_clock_is_told"),
    (Bug::EndOfSessionsIsNotTold, "the_view_tells_when_the_first_session_ends"),
    (Bug::JoinAgainIsRefused, "a_join_made_again_is_a_renewal"),
    (Bug::JoinAgainTellsNothing, "a_join_made_again_tells_what_is_new_of_its_member"),
    (Bug::LeaseIsHalf, "claims_go_at_the_end_of_the_lease_and_not_before"),
    (Bug::LeaseNeverEnds, "the_view_shows_the_living_only"),
    (Bug::LeaveLeavesNothing, "claims_go_with_those_who_leave"),
    (Bug::LostIsNotTold, "an_ended_session_is_lost_for_all_calls"),
    (Bug::LostIsNotTold, "a_renewal_and_a_claim_at_the_end_of_a_lease_agree"),
    (Bug::NamesFoldCase, "names_are_apart"),
    (Bug::OwnClaimIsRefused, "an_own_claim_is_granted_again"),
    (Bug::ReleaseOfAnyones, "a_release_of_anothers_claim_does_nothing"),
    (Bug::RenewalHasNoEffect, "a_renewed_session_lives_on"),
    (Bug::TextIsCut, "a_member_with_a_text_that_is_too_long_is_refused"),
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
            Bug::LeaseIsHalf => lease / 2,
            Bug::LeaseNeverEnds => membership::LEASE_MAX,
            _ => lease,
        }
    }

    fn seen(&self, answer: Result<Renewed, OwnershipError>) -> Result<Renewed, OwnershipError> {
        let seen = Renewed { engine_now: self.runtime.now() };
        match (self.bug, answer) {
            (Bug::LostIsNotTold, Err(OwnershipError::Lost)) => Ok(seen),
            (Bug::ClockStandsStill, Ok(_)) => Ok(Renewed { engine_now: Timestamp::from_millis(1) }),
            (_, answer) => answer,
        }
    }

    /// Takes the names from whoever has them.
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
            if self.bug == Bug::JoinAgainTellsNothing && self.inner.view().await?.member(member.id).is_some() {
                return self.inner.renew(member.id, lease).await;
            }
            if self.bug == Bug::JoinAgainIsRefused && self.inner.view().await?.member(member.id).is_some() {
                return Err(OwnershipError::Lost);
            }
            if self.bug == Bug::TextIsCut {
                for text in [&mut member.name, &mut member.address, &mut member.build] {
                    *text = text.chars().take(10).filter(|c| *c != '\0').collect();
                }
            }
            let answer = self.inner.join(member, self.lease(lease)).await;
            self.seen(answer)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        Box::pin(async move {
            if self.bug == Bug::RenewalHasNoEffect {
                return Ok(Renewed { engine_now: self.runtime.now() });
            }
            let answer = self.inner.renew(member, self.lease(lease)).await;
            self.seen(answer)
        })
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.bug == Bug::LeaveLeavesNothing {
                return Ok(());
            }
            self.inner.leave(member).await
        })
    }

    fn claim(&self, member: MemberId, mut names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        Box::pin(async move {
            match self.bug {
                Bug::ClaimIsStolen => self.steal(&names).await?,
                Bug::ClaimIsReadThenWritten => {
                    let known = self.inner.view().await?.claims;
                    let free: Vec<ClaimName> = names.iter().filter(|name| !known.contains_key(name)).cloned().collect();
                    self.steal(&free).await?;
                }
                Bug::NamesFoldCase => {
                    for name in &mut names {
                        *name = ClaimName::new(&name.as_str().to_ascii_lowercase()).expect("as valid as before");
                    }
                }
                _ => {}
            }
            let mut before = View::default();
            if self.bug == Bug::OwnClaimIsRefused {
                before = self.inner.view().await?;
            }
            let is_own = names.iter().map(|name| before.claims.get(name) == Some(&member)).collect::<Vec<_>>();
            let mut held = self.inner.claim(member, names).await?;
            held.iter_mut().zip(is_own).for_each(|(held, is_own)| *held &= !is_own);
            if self.bug == Bug::AnswersBackwards {
                held.reverse();
            }
            Ok(held)
        })
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.bug == Bug::ReleaseOfAnyones {
                return self.steal(&names).await;
            }
            self.inner.release(member, names).await
        })
    }

    fn view(&self) -> Answer<'_, View> {
        Box::pin(async move {
            let mut view = self.inner.view().await?;
            if self.bug == Bug::EndOfSessionsIsNotTold {
                view.first_end = None;
            }
            Ok(view)
        })
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        if self.bug == Bug::ChangesAreNotTold {
            return std::future::pending().boxed();
        }
        self.inner.changed()
    }
}
