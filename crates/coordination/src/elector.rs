//! One leader among replicas: seed 002's contract, one call, with the term that it lacked.

use std::time::Duration;

use domain::Term;

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
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    pub leads: bool,
    /// Of the present leader, be it the caller or not. Each time the lease is taken anew, and not only extended, the
    /// term is above every earlier one.
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
