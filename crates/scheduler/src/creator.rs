//! Placement check of creators. It ensures that the owner reads every due row of an acknowledged schedule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, PollerId, Timestamp};
use store::{Closed, Placed, StoreError};

use crate::ahead::is_ahead;
use crate::shared::Shared;

/// Longest time for which a creator waits until the owner has set `closed` back.
const REOPEN_WAIT_MAX: Duration = Duration::from_secs(5);
const REOPEN_POLL: Duration = Duration::from_millis(50);

/// Returns true if the position of a new row is later than the row's instant because the clock was ahead.
fn is_too_late(key: &DueKey, now: Timestamp) -> bool {
    key.position > key.occurrence.nominal && is_ahead(key.position, now)
}

/// State that a creator reads before it writes rows.
pub(crate) struct BeforeWrite {
    /// Numbers of changes [`store::Change::Reopen`].
    reopened: Arc<BTreeMap<PollerId, u32>>,
    epoch: u64,
}

impl BeforeWrite {
    /// # Errors
    /// Returns an error if a new epoch of the store has begun, and this member has not read the tenants since then. The
    /// store may have lost the tenant of the rows, and may give the tenant's number to another tenant.
    pub(crate) fn read(shared: &Shared) -> Result<Self, StoreError> {
        let epoch = shared.store.epoch();
        if shared.tenants.epoch() < epoch {
            Err(went_back())
        } else {
            Ok(BeforeWrite { reopened: shared.reopened.now(), epoch })
        }
    }
}

fn went_back() -> StoreError {
    StoreError::Unavailable("the database has returned to an earlier state; retry the request".to_owned())
}

/// Rows of a creator whose placement the store has not confirmed.
pub(crate) struct Unconfirmed {
    rows: Vec<(PollerId, DueKey)>,
    /// State from before the write of the rows.
    before: BeforeWrite,
}

impl Unconfirmed {
    /// Returns all `rows`.
    pub(crate) fn all(rows: Vec<(PollerId, DueKey)>, before: BeforeWrite) -> Self {
        Unconfirmed { rows, before }
    }

    /// Returns the rows whose placement the store has not confirmed, and the rows that lie too late after their instants.
    pub(crate) fn of(rows: Vec<(PollerId, DueKey)>, placed: &[Placed], now: Timestamp, before: BeforeWrite) -> Self {
        Unconfirmed { rows: unconfirmed(rows, placed, now), before }
    }
}

fn unconfirmed(rows: Vec<(PollerId, DueKey)>, placed: &[Placed], now: Timestamp) -> Vec<(PollerId, DueKey)> {
    let rest = |((poller, key), placed): ((PollerId, DueKey), &Placed)| {
        let key = DueKey { position: placed.position, ..key };
        (!placed.settled || is_too_late(&key, now)).then_some((poller, key))
    };
    rows.into_iter().zip(placed).filter_map(rest).collect()
}

/// Confirms the placement of rows. If a row lies at or before its poller's `closed`, the function writes the row again
/// at a later position. It repeats this step until all rows lie after `closed`.
///
/// The owner writes `closed` and then reads the rows up to `closed`. A creator writes its row and then reads `closed`.
/// Therefore the owner reads the row, or the creator reads the new `closed`. The creator must read `closed` after the
/// row is durable, so the caller must pass only rows that the store has acknowledged.
///
/// If `closed` is ahead of the present time, the function waits until the owner has set it back.
///
/// # Errors
/// Returns an error if the store fails, or if `closed` stays ahead. A row may then lie at a position that only the next
/// owner reads. Also returns an error if the store has returned to an earlier state since the write of the rows, because
/// it may have lost the rows.
pub(crate) async fn confirm_placement(shared: &Shared, unconfirmed: Unconfirmed) -> Result<(), StoreError> {
    let Unconfirmed { mut rows, before: BeforeWrite { reopened, epoch } } = unconfirmed;
    let is_same_epoch = || if shared.store.epoch() == epoch { Ok(()) } else { Err(went_back()) };
    if rows.is_empty() {
        return is_same_epoch();
    }
    let (runtime, store) = (&shared.runtime, &shared.store);
    let mut known = Arc::unwrap_or_clone(reopened);
    let deadline = runtime.monotonic() + REOPEN_WAIT_MAX;
    while !rows.is_empty() {
        let closed = store.closed(rows.iter().map(|(poller, _)| *poller).collect()).await?;
        let now = shared.clock.now();
        let (mut late, mut waiting) = (Vec::new(), Vec::new());
        let mut seen = Vec::new();
        for ((poller, key), Closed { at, reopened, .. }) in rows.into_iter().zip(closed) {
            let is_known = known.get(&poller).copied().unwrap_or_default() == reopened;
            if !is_known {
                seen.push((poller, reopened));
            }
            let is_too_late = is_too_late(&key, now);
            if key.position > at && is_known && !is_too_late {
                continue;
            }
            let requested = if is_too_late { key.occurrence.nominal } else { key.position };
            let moved = DueKey { position: requested.max(at + Duration::from_millis(1)), ..key };
            if self::is_too_late(&moved, now) {
                waiting.push((poller, key));
            } else {
                late.push((poller, moved));
            }
        }
        // The snapshot for the rows below changes only after this function has compared all rows with it.
        for (poller, reopened) in seen {
            known.insert(poller, reopened);
            shared.reopened.record(poller, reopened);
        }
        rows = waiting;
        if !rows.is_empty() {
            if runtime.monotonic() >= deadline {
                return Err(ahead());
            }
            runtime.sleep(REOPEN_POLL).await;
        }
        if !late.is_empty() {
            let placed = store.place(late.clone()).await?;
            let now = shared.clock.now();
            rows.extend(self::unconfirmed(late, &placed, now));
        }
    }
    is_same_epoch()
}

fn ahead() -> StoreError {
    StoreError::Unavailable(
        "the clock of a member was ahead of the present time, and the owner of the shard has not corrected its \
         positions yet; retry the request"
            .to_owned(),
    )
}

/// Returns `position`, or the first instant after the poller's `closed` if that instant is later. The owner must write
/// no row at or before `closed`. `position` may be too early, because the clock may have gone back since the owner
/// wrote `closed`.
///
/// # Errors
/// Returns an error if the store fails, or if `closed` is ahead of the present time.
pub(crate) async fn open_position(
    shared: &Shared,
    poller: PollerId,
    position: Timestamp,
) -> Result<Timestamp, StoreError> {
    let closed = shared.store.closed(vec![poller]).await?;
    let open = closed.iter().fold(position, |position, closed| position.max(closed.at + Duration::from_millis(1)));
    if open > position && is_ahead(open, shared.clock.now()) {
        return Err(ahead());
    }
    Ok(open)
}
