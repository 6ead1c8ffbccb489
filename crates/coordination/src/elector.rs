//! Port of electors. An elector elects one leader of a replica group by lease, and numbers each leadership with a term.

use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::Runtime;
use tokio::sync::watch;

use crate::followed::{Followed, send_if_new};
use crate::tree::Zxid;

/// Longest allowed lease.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Longest allowed name of a replica, in bytes.
pub const REPLICA_LEN_MAX: usize = 256;

/// Fencing number of a lock or a leadership. Each later holder has a greater term. Callers may only compare terms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

impl Term {
    /// Returns the term of a holder whose node this change created.
    pub(crate) fn of_change(created: Zxid) -> Self {
        Term(u64::try_from(created.0).unwrap_or(0))
    }
}

/// Future that returns the outcome of an [`Elector`] call.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ElectorError>>;

/// Failure of a call of an [`Elector`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElectorError {
    /// The caller cannot reach the engine, or the engine did not respond in time. The same call may succeed later.
    #[error("the coordination engine is unavailable: {0}")]
    Unavailable(String),
    /// The engine always rejects this call. The text names the argument that the caller must change.
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

/// Access to one replica group, which has at most one leader.
///
/// An engine measures leases with its own clock. If this clock may jump, the engine documents the effects of a jump.
///
/// The name *and* the `Elector` object together identify a replica. A process that restarts under an old name is
/// therefore a new replica. It waits like any other replica until the lease of the earlier process has ended.
///
/// # Errors
/// Returns [`ElectorError::Unavailable`] if the call may or may not have taken effect. After this error, a leader keeps
/// its leadership until the end of the last lease that the engine granted. Returns [`ElectorError::Rejected`] if a name
/// is too long.
///
/// # Panics
/// Panics if a lease is zero or above [`LEASE_MAX`].
pub trait Elector: Send + Sync + 'static {
    /// Takes the lease if it is free, or extends it if `replica` already holds it. The lease lasts for the duration
    /// `lease`. The caller must count this duration from the moment *before* this call. The caller must subtract a
    /// margin from this duration, because the caller's clock and the engine's clock may run at different rates. To keep
    /// the leadership, the caller must call again before the lease ends. The replica counts as a follower for the same
    /// duration, even if it does not lead.
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership>;

    /// Releases the lease if the replica holds it, and removes the replica from the followers. Does nothing if the
    /// replica is not a follower.
    fn resign(&self, replica: &str) -> Answer<'_, ()>;

    /// Returns every replica that has called [`Elector::is_leader`] recently, including the leader, sorted by name.
    fn followers(&self) -> Answer<'_, Vec<Follower>>;

    /// Waits until some of the `known` followers have left, and returns these followers. Returns `None` as soon as
    /// `replica` no longer leads. The caller decides what happens to the work of the departed followers.
    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>>;

    /// Follows the leader of the replica group from now on. The caller does not become a replica. Another process may
    /// already lead when the follower still shows the previous leader, so the value grants no right.
    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>>;
}

/// Interval at which an engine without notifications checks for another leader and for departed followers.
const POLL_PERIOD: Duration = Duration::from_millis(500);

/// Implements [`Elector::follow_leader`] by polling, for engines without notifications. `read` returns the leader, or
/// `None` if no replica leads.
///
/// # Errors
/// Returns the errors of the first call of `read`.
pub async fn poll_leader(
    runtime: &Runtime,
    read: impl Fn() -> Answer<'static, Option<Leader>> + Send + 'static,
) -> Result<Followed<KnownLeader>, ElectorError> {
    let first = KnownLeader { leader: read().await?, is_current: true };
    let clock = runtime.clone();
    let poll = |sender: watch::Sender<KnownLeader>| async move {
        let mut logged = None;
        loop {
            tokio::select! {
                biased;
                () = sender.closed() => return,
                () = clock.sleep(POLL_PERIOD) => {}
            }
            let known = match read().await {
                Ok(leader) => {
                    logged = None;
                    KnownLeader { leader, is_current: true }
                }
                Err(error) => {
                    // The task logs an error that needs an operator only once while it persists.
                    if !error.is_retryable() && logged.as_ref() != Some(&error) {
                        tracing::warn!(%error, "cannot read the leader; trying again");
                        logged = Some(error);
                    }
                    KnownLeader { is_current: false, ..sender.borrow().clone() }
                }
            };
            send_if_new(&sender, known);
        }
    };
    Ok(Followed::start(runtime, first, poll))
}

/// Implements [`Elector::departures`] by polling, for engines without notifications.
///
/// # Errors
/// Returns the same errors as [`Elector::followers`].
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
        runtime.sleep(POLL_PERIOD).await;
    }
}

/// Returns the replicas of `known` that are not among `followers`, or `None` if `replica` does not lead.
#[must_use]
pub fn departed(replica: &str, known: &[Follower], followers: &[Follower]) -> Option<Vec<Follower>> {
    let leads = followers.iter().any(|follower| follower.leads && follower.replica == replica);
    let is_present = |known: &&Follower| followers.iter().any(|follower| follower.replica == known.replica);
    leads.then(|| known.iter().filter(|known| !is_present(known)).cloned().collect())
}

/// Response to [`Elector::is_leader`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// True if the caller holds the lease and therefore leads.
    pub leads: bool,
    /// Term of the caller if it leads, or the term of the last known leader. When a replica takes the lease, its term
    /// is greater than every earlier term. The term stays the same while the leader only extends its lease.
    pub term: Term,
}

/// Replica that has called [`Elector::is_leader`] recently. The leader is also a follower.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Follower {
    /// Name that the replica passed to [`Elector::is_leader`].
    pub replica: String,
    /// True if the replica holds the lease and therefore leads.
    pub leads: bool,
}

/// Leader of a leader group or a replica group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// Text of the candidate that leads, or name of the replica that leads.
    pub id: String,
    /// Term of the leader. It is greater than the term of every earlier leader.
    pub term: Term,
}

/// Leader that a process knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownLeader {
    /// Leader at the last response of the engine, or `None` if no candidate led.
    pub leader: Option<Leader>,
    /// True if the engine responded recently. If false, this process does not know later changes of the leader.
    pub is_current: bool,
}

/// Checks the name of a replica.
///
/// # Errors
/// Returns [`ElectorError::Rejected`] if the name is empty, too long, or contains a NUL, which engines cannot store.
pub fn check_replica(replica: &str) -> Result<(), ElectorError> {
    let most = REPLICA_LEN_MAX;
    if replica.is_empty() || replica.len() > most || replica.contains('\0') {
        let len = replica.len();
        let text = format!("invalid replica name of {len} bytes: it must have 1 to {most} bytes and no NUL byte");
        return Err(ElectorError::Rejected(text));
    }
    Ok(())
}
