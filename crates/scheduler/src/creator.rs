//! Placement check of creators. It ensures that the owner reads every due row of an acknowledged schedule.

use std::time::Duration;

use domain::{DueKey, PollerId};
use store::{Placed, Store, StoreError};

/// Confirms the placement of `rows`. If a row lies at or before its poller's `closed`, the function writes the row
/// again at a later position. It repeats this step until all rows lie after `closed`.
///
/// The owner writes `closed` and then reads the rows up to `closed`. A creator writes its row and then reads `closed`.
/// Therefore the owner reads the row, or the creator reads the new `closed`. The creator must read `closed` after the
/// row is durable, so the caller must pass only rows that the store has acknowledged.
///
/// # Errors
/// Returns an error if the store fails. A row may then lie at a position that only the next owner reads.
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

/// Returns the rows whose placement the store has not confirmed itself, with their stored positions.
pub(crate) fn unconfirmed(rows: Vec<(PollerId, DueKey)>, placed: &[Placed]) -> Vec<(PollerId, DueKey)> {
    let with_position = rows.into_iter().zip(placed);
    let rest = with_position.filter(|(_, placed)| !placed.settled);
    rest.map(|((poller, key), placed)| (poller, DueKey { position: placed.position, ..key })).collect()
}
