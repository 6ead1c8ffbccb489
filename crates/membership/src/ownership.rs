//! The port.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::ShardId;
use futures_util::future::BoxFuture;
use instants::Timestamp;

use crate::error::OwnershipError;
use crate::name::{ClaimName, MemberId};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, OwnershipError>>;

/// Longest lease that a caller may request from an engine whose sessions end. Until a dead member's lease ends, no
/// other member gets that member's claims.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Largest number of claim names in one call of the port.
pub const NAMES_MAX: usize = 4096;

/// Port that an engine of sessions and claims implements. The crate's documentation states the contract. Several tasks
/// may call the engine at the same time. All calls for one member use the same `Ownership` object.
///
/// # Errors
/// Returns [`OwnershipError::Unavailable`] if the outcome of the call is unknown: the call may have taken effect, or
/// may still take effect later. The caller may repeat the call. If a claim takes effect late, the member holds a name
/// without knowing it. The view shows that name. If a release takes effect late, it does not remove a claim that the
/// member requested after the release.
///
/// # Panics
/// Panics if a lease is zero, or above [`LEASE_MAX`] on an engine whose sessions end, or if there are more than
/// [`NAMES_MAX`] names.
pub trait Ownership: Send + Sync + 'static {
    /// Opens a session under a member id that never had a session. The session ends one `lease` after its last renewal.
    /// A repeated call during that session renews the session, and the view then shows the new `member`. Returns
    /// [`OwnershipError::Rejected`] if [`Member::check`] fails.
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed>;

    /// Extends the session so that it ends one `lease` from now, by the engine's clock. Returns
    /// [`OwnershipError::Lost`] if the session has ended. Some engines fix the lease at the join. These engines return
    /// [`OwnershipError::Rejected`] if `lease` is longer than the lease of the join.
    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed>;

    /// Ends the session and its claims at once. Does nothing if the session has already ended.
    fn leave(&self, member: MemberId) -> Answer<'_, ()>;

    /// Claims all free names of `names` in one step. Returns for each name whether the member now holds the claim.
    /// Returns [`OwnershipError::Lost`], and claims nothing, if the session has ended.
    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>>;

    /// Releases those claims in `names` that the member holds, and ignores all other names. Does nothing if the session
    /// has ended.
    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()>;

    /// Returns a consistent view. The engine reads the view after this call begins.
    fn view(&self) -> Answer<'_, View>;

    /// Returns a future that completes when the view may have changed since this call. The completion is only a hint:
    /// it may come late, early or never. The caller must first call this method and then [`Ownership::view`], and then
    /// await the future with a timeout.
    fn changed(&self) -> BoxFuture<'static, ()>;
}

/// Public information about a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Id of the member. A process uses a new id for every session.
    pub id: MemberId,
    /// Name for operators, for example a host name. Each text of a member has at most [`Member::TEXT_LEN_MAX`] bytes.
    pub name: String,
    /// `host:port` of the member's API for other members.
    pub address: String,
    /// True if the member takes shards. Otherwise the member only reads the view.
    pub owns: bool,
    pub build: String,
}

impl Member {
    pub const TEXT_LEN_MAX: usize = 256;

    /// Checks the texts of the member.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Rejected`] if a text is longer than [`Member::TEXT_LEN_MAX`] or contains NUL, which
    /// engines cannot store.
    pub fn check(&self) -> Result<(), OwnershipError> {
        for (what, text) in [("name", &self.name), ("address", &self.address), ("build", &self.build)] {
            if text.len() > Self::TEXT_LEN_MAX || text.contains('\0') {
                let limit = Self::TEXT_LEN_MAX;
                return Err(OwnershipError::Rejected(format!(
                    "the member's {what} has {} bytes or contains NUL; use at most {limit} bytes without NUL",
                    text.len()
                )));
            }
        }
        Ok(())
    }
}

/// Checks the number of names.
///
/// # Panics
/// Panics if there are more than [`NAMES_MAX`] names.
pub fn check_names(names: &[ClaimName]) {
    assert!(names.len() <= NAMES_MAX, "a call accepts at most {NAMES_MAX} claim names, but has {}", names.len());
}

/// Result of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// Reading of the engine's wall clock during the renewal, for comparison with the local clock.
    pub engine_now: Timestamp,
}

/// View of the cluster: the live members and their claims.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Live members, in the order of their ids.
    pub members: Vec<Member>,
    /// Claims of live members.
    pub claims: BTreeMap<ClaimName, MemberId>,
    /// Time from the read of the view until the first session of a live member ends, if that member does not renew the
    /// session. The caller must read the view again at that time.
    pub first_end: Option<Duration>,
}

impl View {
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Returns the ids of the members that take shards.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<MemberId> {
        self.members.iter().filter(|member| member.owns).map(|member| member.id).collect()
    }

    /// Holder of [`ClaimName::leader`].
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.claims.get(&ClaimName::leader()).copied()
    }

    /// Returns the shards with a claim ([`ClaimName::shard`]), each with the holder of its claim.
    #[must_use]
    pub fn shards(&self) -> BTreeMap<ShardId, MemberId> {
        self.claims.iter().filter_map(|(name, member)| Some((name.to_shard()?, *member))).collect()
    }

    /// Returns whether this view and `other` have the same members and claims.
    #[must_use]
    pub fn has_same_content(&self, other: &View) -> bool {
        self.members == other.members && self.claims == other.claims
    }
}
