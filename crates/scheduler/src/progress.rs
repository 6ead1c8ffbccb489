//! Progress of an occurrence, according to the owner on this member.

use tokio::sync::oneshot;

use crate::firing::messages::ToOwner;
use crate::requests::{OwnerError, Progress, Waiting};
use crate::shared::Shared;

/// Returns the progress of an occurrence, according to this member's owner.
///
/// # Errors
/// Returns an error if this member does not own the shard of the key.
pub(crate) async fn progress(shared: &Shared, waiting: Waiting) -> Result<Progress, OwnerError> {
    if !shared.owns(waiting.poller.shard()) {
        return Err(OwnerError::NotOwned);
    }
    if shared.in_flight.contains_at(waiting.incarnation, waiting.nominal) {
        return Ok(Progress { is_in_flight: true, delay: None });
    }
    let (sender, delay) = oneshot::channel();
    let sent = shared.send(ToOwner::Waiting(waiting, sender)).await;
    Ok(Progress { is_in_flight: false, delay: if sent { delay.await.ok().flatten() } else { None } })
}
