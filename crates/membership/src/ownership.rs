//! The port.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::ShardId;
use futures_util::future::BoxFuture;
use instants::Timestamp;

use crate::error::OwnershipError;
use crate::name::{ClaimName, MemberId};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, OwnershipError>>;

/// The longest lease of an engine whose sessions end. A dead member's claims are stuck for as long as its lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// How many names one call may have.
pub const NAMES_MAX: usize = 4096;

/// See the crate's documentation for the contract. Calls may be made from several tasks at once; all of one member's
/// come through one object.
///
/// # Errors
/// With [`OwnershipError::Unavailable`] it is not known whether the call took, or will still take, effect: each may be
/// made again. A claim that is executed late leaves its member with a name that it does not know of, and that the view
/// shows; a release that is executed late takes away no claim that was asked for after it.
///
/// # Panics
/// If a lease is zero, or above [`LEASE_MAX`] on an engine whose sessions end; if there are more than [`NAMES_MAX`]
/// names.
pub trait Ownership: Send + Sync + 'static {
    /// Opens a session under an id that never had one; it lives until `lease` after its last renewal. Made again
    /// while that session lives, it is a renewal, and the member is seen from then on as it is told here. [`OwnershipError::Refused`] if a text is too long.
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed>;

    /// The session lives until `lease` from now by the engine's clock. [`OwnershipError::Lost`] once it has ended; [`OwnershipError::Refused`] if
    /// the lease is longer than the join's, on an engine that grants one for a session's whole life.
    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed>;

    /// Ends the session and its claims at once; harmless if it is gone.
    fn leave(&self, member: MemberId) -> Answer<'_, ()>;

    /// Names that are free or its own become its own, all in one step; for each name, whether it is its own now.
    /// [`OwnershipError::Lost`] if the session has ended; then nothing was claimed.
    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>>;

    /// Those of `names` that are its own become free; harmless for others, and if the session is gone.
    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()>;

    /// What is there now: one moment's state, read after this call began.
    fn view(&self) -> Answer<'_, View>;

    /// Ready when the view may be another than at this call: a hint that may come late, early or never. Call this,
    /// then [`Ownership::view`], then await it, with a timeout.
    fn changed(&self) -> BoxFuture<'static, ()>;
}

/// What others may know of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Of one life of a process: new at every join.
    pub id: MemberId,
    /// For people: a host name, say. At most [`Member::TEXT_LEN_MAX`] bytes, as every text here.
    pub name: String,
    /// `host:port` of its API for its peers.
    pub address: String,
    /// Takes shards; others only look.
    pub owns: bool,
    pub build: String,
}

impl Member {
    pub const TEXT_LEN_MAX: usize = 256;

    /// # Errors
    /// [`OwnershipError::Refused`] if a text is longer than [`Member::TEXT_LEN_MAX`] or holds a NUL, which engines
    /// cannot keep.
    pub fn check(&self) -> Result<(), OwnershipError> {
        for (what, text) in [("name", &self.name), ("address", &self.address), ("build", &self.build)] {
            if text.len() > Self::TEXT_LEN_MAX || text.contains('\0') {
                let limit = Self::TEXT_LEN_MAX;
                return Err(OwnershipError::Refused(format!(
                    "a member's {what} has at most {limit} bytes, and no NUL"
                )));
            }
        }
        Ok(())
    }
}

/// # Panics
/// If there are more than [`NAMES_MAX`].
pub fn check_names(names: &[ClaimName]) {
    assert!(names.len() <= NAMES_MAX, "a call has at most {NAMES_MAX} names, this one has {}", names.len());
}

/// The answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// The engine's wall clock while it was renewed, for judging one's own.
    pub engine_now: Timestamp,
}

/// The living, and what they hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// In the order of their ids.
    pub members: Vec<Member>,
    /// Of living members only.
    pub claims: BTreeMap<ClaimName, MemberId>,
    /// The time until the first of these sessions ends if it is not renewed: when to look again.
    pub first_end: Option<Duration>,
}

impl View {
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Those who take shards.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<MemberId> {
        self.members.iter().filter(|member| member.owns).map(|member| member.id).collect()
    }

    /// Who has claimed [`ClaimName::leader`].
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.claims.get(&ClaimName::leader()).copied()
    }

    /// The claims that name shards ([`ClaimName::shard`]).
    #[must_use]
    pub fn shards(&self) -> BTreeMap<ShardId, MemberId> {
        self.claims.iter().filter_map(|(name, member)| Some((name.to_shard()?, *member))).collect()
    }

    /// Whether the same members hold the same.
    #[must_use]
    pub fn shows_the_same(&self, other: &View) -> bool {
        self.members == other.members && self.claims == other.claims
    }
}
