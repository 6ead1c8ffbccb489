//! One leader among replicas: seed 002's contract, one call, with the term that it lacked.

use std::time::Duration;

use domain::Term;
use runtime::Runtime;

use crate::{Answer, Member, OwnershipError};

/// One group of replicas, of which at most one leads. The group's name belongs to the object.
///
/// Replicas are told apart by name *and* object: a process that starts again under an old name waits, as any other,
/// until the lease of its earlier life has ended.
///
/// # Errors
/// [`crate::OwnershipError::Unavailable`]: it is not known whether the call took effect; whoever led leads until the
/// end of the last lease that was answered. [`crate::OwnershipError::Refused`] if a name is too long.
///
/// # Panics
/// As [`crate::Ownership`]'s, if a lease is zero or above [`crate::LEASE_MAX`].
pub trait Elector: Send + Sync + 'static {
    /// Takes the lease if it is free or its own. If so, the caller holds it until `lease` after the moment *before*
    /// this call, less a margin for the difference between two clocks' rates; to go on, it calls again before that.
    /// In either case the replica counts as a follower for as long.
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership>;

    /// Gives the lease up, if it is the replica's, and is no follower any longer; harmless otherwise.
    fn resign(&self, replica: &str) -> Answer<'_, ()>;

    /// Every replica that has called lately, the leader among them, by name.
    fn followers(&self) -> Answer<'_, Vec<Follower>>;

    /// For the leader: waits until some of `known`, who were followers, are none any more, and answers who; `None` as soon as `replica` does
    /// not lead. With what they had to do the leader does what is right.
    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>>;
}

/// How often one looks who has left that is not told.
const DEPARTURE_PERIOD: Duration = Duration::from_millis(500);

/// For engines: [`Elector::departures`] by looking again and again.
///
/// # Errors
/// As [`Elector::followers`].
pub async fn poll_departures(
    runtime: &Runtime,
    elector: &dyn Elector,
    replica: &str,
    known: &[Follower],
) -> Result<Option<Vec<Follower>>, OwnershipError> {
    loop {
        let departed = departed(replica, known, &elector.followers().await?);
        if departed.as_ref().is_none_or(|departed| !departed.is_empty()) {
            return Ok(departed);
        }
        runtime.sleep(DEPARTURE_PERIOD).await;
    }
}

/// Those of `known` that are not among `followers`; `None` if `replica` does not lead them.
#[must_use]
pub fn departed(replica: &str, known: &[Follower], followers: &[Follower]) -> Option<Vec<Follower>> {
    let leads = followers.iter().any(|follower| follower.leads && follower.replica == replica);
    let is_there = |known: &&Follower| followers.iter().any(|follower| follower.replica == known.replica);
    leads.then(|| known.iter().filter(|known| !is_there(known)).cloned().collect())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    pub leads: bool,
    /// The caller's, if it leads: each time the lease is taken anew, and not only extended, the term is above every earlier one. Else that of
    /// the last leader that is known.
    pub term: Term,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Follower {
    pub replica: String,
    pub leads: bool,
}

/// # Errors
/// [`OwnershipError::Refused`] if it is empty, too long, or holds a NUL, which engines cannot keep.
pub fn check_replica(replica: &str) -> Result<(), OwnershipError> {
    let most = Member::TEXT_LEN_MAX;
    if replica.is_empty() || replica.len() > most || replica.contains('\0') {
        return Err(OwnershipError::Refused(format!("a replica's name has 1 to {most} bytes, and no NUL")));
    }
    Ok(())
}
