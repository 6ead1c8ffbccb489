//! Advance of `closed`, `checked` and `done`.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{ShardId, TenantId, Timestamp};
use store::{DueBound, DueRead, Positions};

use crate::ahead::is_ahead;

use super::{EntryId, PAGE_KEYS, PollerIndex, Window, bucket, bucket_end, instant_of, is_within};

/// Age of `closed` from which the owner raises it early. It is so much shorter than
/// [`domain::decide::UNTRACED_AFTER_CLOSED_MAX`] that the new `closed` is durable in time, even if the store is slow.
const CLOSED_STALE_AFTER: Duration = Duration::from_secs(2);

impl Window {
    /// Returns the positions that the owner must write now. After each successful write, the owner calls
    /// [`Window::positions_written`]. If the write fails, the owner calls [`Window::read_failed`] with
    /// [`ReadKind::Check`].
    pub(crate) fn plan_closings(
        &mut self,
        now: Timestamp,
        demand: impl Fn(TenantId) -> usize,
    ) -> Vec<(PollerIndex, Positions)> {
        // The owner does not close the bucket of `now` or the bucket before it, because creators may still write rows
        // into these buckets.
        let last = bucket(now) - 2;
        let full: BTreeSet<TenantId> = self
            .keys_by_tenant
            .keys()
            .copied()
            .filter(|tenant| self.capacity(*tenant).min(demand(*tenant)) == 0)
            .collect();
        let mut closings = Vec::new();
        let stale = now - CLOSED_STALE_AFTER;
        for (&index, poller) in &mut self.pollers {
            if poller.closing {
                continue;
            }
            let checked = poller.checked_whole();
            // If the second read of the closed range is incomplete, the owner completes this read before it closes
            // another range.
            let is_behind = poller.closed > checked;
            // Only buckets after `checked` need a second read.
            let unchecked = bucket(checked) + 1..=last;
            let has_unchecked = unchecked.start() <= unchecked.end()
                && (poller.open.range(unchecked.clone()).next().is_some()
                    || poller.resolved.range(unchecked).next().is_some());
            // An attempt of a recurring schedule waits for a write of the store if `closed` is too old
            // ([`domain::decide::may_start_untraced`]). The owner therefore raises an old `closed` before the instant of
            // the attempt. It does not know which keys are recurring, so it raises `closed` early for pollers that had
            // recurring keys, and once for each poller.
            let may_recur = poller.has_recurring || poller.closed == poller.closed_at_take;
            let is_due_soon = may_recur && poller.closed < stale && poller.open.range(last + 1..).next().is_some();
            let raises = (has_unchecked || is_due_soon) && !is_behind;
            let closed = if raises { poller.closed.max(bucket_end(last)) } else { poller.closed };
            let done = poller.done_candidate();
            // If a second read failed, or if the window had no capacity for it, the owner continues this read after a
            // later write of the positions.
            let may_check =
                (has_unchecked || is_behind) && (!full.contains(&poller.id.tenant) || !poller.resolved.is_empty());
            if may_check || raises || done > poller.done {
                poller.closing = true;
                closings.push((index, Positions { closed, done }));
            }
        }
        closings
    }

    /// Returns the shards of the pollers whose `closed` is ahead of `now`, and the time by which the latest of these
    /// positions is ahead.
    pub(crate) fn ahead_of(&self, now: Timestamp) -> (BTreeSet<ShardId>, Duration) {
        let ahead = || self.pollers.values().filter(|poller| is_ahead(poller.closed, now));
        let by = ahead().map(|poller| poller.closed.since(now)).max().unwrap_or_default();
        (ahead().map(|poller| poller.id.shard()).collect(), by)
    }

    /// Records that `positions` are durable. Returns the second read that the owner must make, or `None` if no second
    /// read is necessary.
    pub(crate) fn positions_written(
        &mut self,
        index: PollerIndex,
        positions: Positions,
        demand: impl Fn(TenantId) -> usize,
    ) -> Option<DueRead> {
        let poller = self.pollers.get_mut(&index)?;
        poller.closed = poller.closed.max(positions.closed);
        poller.done = poller.done.max(positions.done);
        self.check_on(index, demand)
    }

    /// Continues the second read: returns a read of its next page. Returns `None` if the second read is complete, or if
    /// the window has no capacity for the page. Without capacity, the owner continues the second read after a later
    /// write of the positions. A page also frees capacity, because the window forgets the resolved keys up to the end
    /// of the page.
    pub(super) fn check_on(&mut self, index: PollerIndex, demand: impl Fn(TenantId) -> usize) -> Option<DueRead> {
        let id = self.pollers[&index].id;
        let capacity = self.capacity(id.tenant).min(demand(id.tenant));
        // Each of the tenant's pollers gets an equal share of the capacity, so that the owner reads no poller much
        // further than the other pollers.
        let each = capacity / usize::try_from(self.pollers_of(id.tenant)).unwrap_or(usize::MAX).max(1);
        let poller = self.pollers.get_mut(&index).expect("the caller has checked that the poller exists");
        let resolved = poller.resolved.first_key_value().map_or(0, |(_, resolved)| resolved.len());
        if poller.checked_whole() >= poller.closed || (capacity == 0 && resolved == 0) {
            poller.closing = false;
            return None;
        }
        let limit = each.max(resolved).clamp(1, PAGE_KEYS);
        Some(DueRead { poller: poller.id, after: poller.checked, until: poller.closed, limit })
    }

    pub(super) fn checked(&mut self, index: PollerIndex, to: DueBound) {
        let poller = self.pollers.get_mut(&index).expect("the caller has checked that the poller exists");
        poller.checked = to;
        if instant_of(poller.read_to) < poller.checked_whole() {
            // The window now contains every row up to the end of the checked buckets.
            poller.read_to = DueBound::Instant(poller.checked_whole());
        }
        let later = poller.resolved.split_off(&(bucket(poller.checked_whole()) + 1));
        let whole = std::mem::replace(&mut poller.resolved, later).into_values().flatten();
        let mut over: Vec<EntryId> = whole.collect();
        // If `to` lies within a bucket, the window forgets only those resolved keys of the bucket that are at or before
        // `to`.
        if let Some(partly) = poller.resolved.get_mut(&bucket(instant_of(to))) {
            let entries = &self.entries;
            let is_over = |id: &EntryId| is_within(&entries[*id as usize].key, to);
            over.extend(partly.extract_if(.., |id| is_over(id)));
        }
        for id in over {
            self.forget(id);
        }
    }
}
