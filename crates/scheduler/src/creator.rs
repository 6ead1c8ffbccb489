//! The creator's half of the bargain with the owner: no due row is left where nobody will read it.

use std::time::Duration;

use domain::{DueKey, PollerId};
use store::{Placed, Store, StoreError};

/// Sees to it that each row, which is durable, lies after its poller's `closed`, and returns once that is so.
///
/// The owner writes `closed` and then reads the stretch before it; a creator writes its row and then reads `closed`.
/// Whichever comes second sees the other: so the reading must begin after the row is durable, which is why `rows` are
/// rows that the store has answered for.
///
/// # Errors
/// If the store fails; the rows may then lie where they are not read before the next owner.
pub(crate) async fn confirm_placement(store: &dyn Store, rows: Vec<(PollerId, DueKey)>) -> Result<(), StoreError> {
    let mut rows = rows;
    while !rows.is_empty() {
        let closed = store.closed(rows.iter().map(|(poller, _)| *poller).collect()).await?;
        let mut late = Vec::new();
        for ((poller, key), closed) in rows.into_iter().zip(closed) {
            if key.position <= closed {
                late.push((poller, DueKey { position: closed + Duration::from_millis(1), ..key }));
            }
        }
        if late.is_empty() {
            return Ok(());
        }
        let placed = store.place(late.clone()).await?;
        rows = unconfirmed(late, &placed);
    }
    Ok(())
}

/// Those rows that the engine has not compared with `closed` itself, where they are now.
pub(crate) fn unconfirmed(rows: Vec<(PollerId, DueKey)>, placed: &[Placed]) -> Vec<(PollerId, DueKey)> {
    let with_place = rows.into_iter().zip(placed);
    let left = with_place.filter(|(_, placed)| !placed.settled);
    left.map(|((poller, key), placed)| (poller, DueKey { position: placed.position, ..key })).collect()
}
