//! The elector port: it elects one leader of a replica group by lease, and numbers each leadership with a term.

use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::Runtime;

/// Longest allowed lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Longest allowed name of a replica, in bytes.
pub const REPLICA_LEN_MAX: usize = 256;

/// Fencing number of a lock or a leadership. Each later holder has a greater term. Terms are only compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

pub type Answer<'a, T> = BoxFuture<'a, Result<T, ElectorError>>;

/// Failure of a whole call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElectorError {
    /// The engine cannot be reached or did not respond in time. The same call may succeed later.
    #[error("the coordination engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine rejects the call now and later. The text names the argument to change.
    #[error("the coordination engine rejected the request: {0}")]
    Rejected(String),
}

impl ElectorError {
    /// Returns true if the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            ElectorError::Unavailable(_) => true,
            ElectorError::Rejected(_) => false,
        }
    }
}

/// One replica group with at most one leader. Each object belongs to one replica group.
///
/// A replica is identified by its name *and* the object. A process that restarts under an old name waits like any other
/// replica until the lease of its earlier life has ended.
///
/// # Errors
/// [`ElectorError::Unavailable`]: the call may or may not have taken effect. The leader keeps its leadership until the
/// end of the last lease that the engine granted. [`ElectorError::Rejected`] if a name is too long.
///
/// # Panics
/// Panics if a lease is zero or above [`LEASE_MAX`].
pub trait Elector: Send + Sync + 'static {
    /// Takes the lease if the lease is free, or extends it if `replica` already holds it. A caller that leads holds the
    /// lease until `lease` after the moment *before* this call, less a margin for the difference between the two
    /// clocks' rates. The caller calls again before that moment to keep leading. In either case the replica counts as a
    /// follower for the same period.
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership>;

    /// Releases the lease if the replica holds it, and removes the replica from the followers. Does nothing otherwise.
    fn resign(&self, replica: &str) -> Answer<'_, ()>;

    /// Every replica that has called recently, including the leader, sorted by name.
    fn followers(&self) -> Answer<'_, Vec<Follower>>;

    /// Waits, for the leader, until some of the `known` followers have left, and returns those. Returns `None` as soon
    /// as `replica` no longer leads. The caller decides what happens to the work of the departed followers.
    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>>;
}

/// Interval at which an engine without notifications checks for departed followers.
const DEPARTURE_PERIOD: Duration = Duration::from_millis(500);

/// Implements [`Elector::departures`] by polling. Engines call it.
///
/// # Errors
/// The same as [`Elector::followers`].
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

/// Returns the replicas of `known` that are not among `followers`, or `None` if `replica` does not lead them.
#[must_use]
pub fn departed(replica: &str, known: &[Follower], followers: &[Follower]) -> Option<Vec<Follower>> {
    let leads = followers.iter().any(|follower| follower.leads && follower.replica == replica);
    let is_present = |known: &&Follower| followers.iter().any(|follower| follower.replica == known.replica);
    leads.then(|| known.iter().filter(|known| !is_present(known)).cloned().collect())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    pub leads: bool,
    /// Term of the caller if the caller leads. It is above every earlier term each time the lease is taken again, and
    /// stays the same while the lease is only extended. Otherwise the term of the last known leader.
    pub term: Term,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Follower {
    pub replica: String,
    pub leads: bool,
}

/// Checks the name of a replica.
///
/// # Errors
/// Returns [`ElectorError::Rejected`] if the name is empty, too long, or contains a NUL, which engines cannot store.
pub fn check_replica(replica: &str) -> Result<(), ElectorError> {
    let most = REPLICA_LEN_MAX;
    if replica.is_empty() || replica.len() > most || replica.contains('\0') {
        return Err(ElectorError::Rejected(format!("invalid replica name: it must have 1 to {most} bytes and no NUL")));
    }
    Ok(())
}
