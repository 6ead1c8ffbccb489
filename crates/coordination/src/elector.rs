//! One leader among replicas: seed 002's contract, one call, with the term that it lacked.

use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::Runtime;

/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Most bytes of a replica's name.
pub const REPLICA_LEN_MAX: usize = 256;

/// The fencing number of a hold or a leadership: a later one has a greater term. Only compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

pub type Answer<'a, T> = BoxFuture<'a, Result<T, ElectorError>>;

/// A call failed as a whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElectorError {
    /// The engine cannot be reached or did not answer in time; the same call may succeed later.
    #[error("the coordination engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine rejects the call, now and later; the text names what to change.
    #[error("the coordination engine refuses: {0}")]
    Rejected(String),
}

impl ElectorError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            ElectorError::Unavailable(_) => true,
            ElectorError::Rejected(_) => false,
        }
    }
}

/// One group of replicas, of which at most one leads. The group's name belongs to the object.
///
/// Replicas are told apart by name *and* object: a process that starts again under an old name waits, as any other,
/// until the lease of its earlier life has ended.
///
/// # Errors
/// [`ElectorError::Unavailable`]: it is not known whether the call took effect; whoever led leads until the
/// end of the last lease that was answered. [`ElectorError::Rejected`] if a name is too long.
///
/// # Panics
/// If a lease is zero or above [`LEASE_MAX`].
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
) -> Result<Option<Vec<Follower>>, ElectorError> {
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
/// [`ElectorError::Rejected`] if it is empty, too long, or holds a NUL, which engines cannot keep.
pub fn check_replica(replica: &str) -> Result<(), ElectorError> {
    let most = REPLICA_LEN_MAX;
    if replica.is_empty() || replica.len() > most || replica.contains('\0') {
        return Err(ElectorError::Rejected(format!("a replica's name has 1 to {most} bytes, and no NUL")));
    }
    Ok(())
}
