//! The port.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::ShardId;
use futures_util::future::BoxFuture;
use instants::Timestamp;

use crate::error::OwnershipError;
use crate::name::{ClaimName, MemberId};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, OwnershipError>>;

/// Longest lease of an engine whose sessions end. A dead member's claims are blocked for the rest of its lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Largest number of names per call.
pub const NAMES_MAX: usize = 4096;

/// Engine of sessions and claims; see the crate's documentation for the contract. Several tasks may call it at
/// once. All calls of one member use the same object.
///
/// # Errors
/// After [`OwnershipError::Unavailable`], the call may have taken effect, or may still take effect later; the
/// caller may repeat it. A claim that takes effect late gives the member a name that it does not know of; the view
/// shows that name. A release that takes effect late does not remove a claim that was requested after it.
///
/// # Panics
/// Panics if a lease is zero, or above [`LEASE_MAX`] on an engine whose sessions end, or if there are more than
/// [`NAMES_MAX`] names.
pub trait Ownership: Send + Sync + 'static {
    /// Opens a session under an id that never had one. The session lives until `lease` after its last renewal. A
    /// repeated call during that session renews it, and the view then shows the new `member`. Returns
    /// [`OwnershipError::Rejected`] if a text is too long.
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed>;

    /// Extends the session until `lease` from now by the engine's clock. Returns [`OwnershipError::Lost`] once the
    /// session has ended, and [`OwnershipError::Rejected`] if the lease is longer than the join's on an engine that
    /// fixes it for the whole session.
    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed>;

    /// Ends the session and its claims at once. Does nothing if the session has already ended.
    fn leave(&self, member: MemberId) -> Answer<'_, ()>;

    /// Claims all names that are free, in one step. Returns for each name whether the member holds it now. Returns
    /// [`OwnershipError::Lost`] if the session has ended; then nothing was claimed.
    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>>;

    /// Releases those of `names` that the member holds. Other names, and a session that has ended, are ignored.
    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()>;

    /// Returns a consistent view that was read after this call began.
    fn view(&self) -> Answer<'_, View>;

    /// Completes when the view may have changed since this call. It is only a hint, which may come late, early or
    /// never. Call this method, then [`Ownership::view`], then await this future with a timeout.
    fn changed(&self) -> BoxFuture<'static, ()>;
}

/// Public information about a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Id of one life of a process; every join uses a new one.
    pub id: MemberId,
    /// Name for operators, for example a host name. Like every text here, it has at most [`Member::TEXT_LEN_MAX`]
    /// bytes.
    pub name: String,
    /// `host:port` of its API for other members.
    pub address: String,
    /// True if the member takes shards; otherwise it only observes.
    pub owns: bool,
    pub build: String,
}

impl Member {
    pub const TEXT_LEN_MAX: usize = 256;

    /// Checks the texts.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Rejected`] if a text is longer than [`Member::TEXT_LEN_MAX`] or contains NUL, which
    /// engines cannot store.
    pub fn check(&self) -> Result<(), OwnershipError> {
        for (what, text) in [("name", &self.name), ("address", &self.address), ("build", &self.build)] {
            if text.len() > Self::TEXT_LEN_MAX || text.contains('\0') {
                let limit = Self::TEXT_LEN_MAX;
                return Err(OwnershipError::Rejected(format!(
                    "invalid member {what}: expected at most {limit} bytes without NUL"
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
    assert!(names.len() <= NAMES_MAX, "a call has at most {NAMES_MAX} names, this one has {}", names.len());
}

/// Result of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// The engine's wall clock during the renewal, for comparison with the local clock.
    pub engine_now: Timestamp,
}

/// The live members and their claims.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Live members, ordered by id.
    pub members: Vec<Member>,
    /// Claims of live members.
    pub claims: BTreeMap<ClaimName, MemberId>,
    /// Time until the first of these sessions ends if it is not renewed. Read the view again then.
    pub first_end: Option<Duration>,
}

impl View {
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Members that take shards.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<MemberId> {
        self.members.iter().filter(|member| member.owns).map(|member| member.id).collect()
    }

    /// Holder of [`ClaimName::leader`].
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.claims.get(&ClaimName::leader()).copied()
    }

    /// Claims that name shards ([`ClaimName::shard`]), with their holders.
    #[must_use]
    pub fn shards(&self) -> BTreeMap<ShardId, MemberId> {
        self.claims.iter().filter_map(|(name, member)| Some((name.to_shard()?, *member))).collect()
    }

    /// Returns whether both views have the same members and claims.
    #[must_use]
    pub fn has_same_content(&self, other: &View) -> bool {
        self.members == other.members && self.claims == other.claims
    }
}
