//! Advance of `closed`, `checked` and `done`.

use std::collections::BTreeSet;

use domain::{TenantId, Timestamp};
use store::{DueBound, DueRead, Positions};

use super::{EntryId, PAGE_KEYS, PollerIndex, Window, bucket, bucket_end, instant_of, is_within};

impl Window {
    /// Returns the positions to write now. The caller reports each with [`Window::positions_written`]. If the write
    /// fails, the caller reports it with [`Window::read_failed`] and [`ReadKind::Check`].
    pub(crate) fn plan_closings(
        &mut self,
        now: Timestamp,
        demand: impl Fn(TenantId) -> usize,
    ) -> Vec<(PollerIndex, Positions)> {
        // The bucket of `now` is still open to creators. So is the bucket before it, for slow creators.
        let last = bucket(now) - 2;
        let full: BTreeSet<TenantId> = self
            .keys_by_tenant
            .keys()
            .copied()
            .filter(|tenant| self.capacity(*tenant).min(demand(*tenant)) == 0)
            .collect();
        let mut closings = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if poller.closing {
                continue;
            }
            let checked = poller.checked_whole();
            // A range that is closed already is read again first.
            let is_behind = poller.closed > checked;
            // Keys before `checked` need no second read.
            let unchecked = bucket(checked) + 1..=last;
            let has_unchecked = unchecked.start() <= unchecked.end()
                && (poller.open.range(unchecked.clone()).next().is_some()
                    || poller.resolved.range(unchecked).next().is_some());
            let closed = if has_unchecked && !is_behind { poller.closed.max(bucket_end(last)) } else { poller.closed };
            let done = poller.done_candidate();
            // A later closing continues a second read that failed or found no capacity.
            let may_check =
                (has_unchecked || is_behind) && (!full.contains(&poller.id.tenant) || !poller.resolved.is_empty());
            if may_check || (has_unchecked && !is_behind) || done > poller.done {
                poller.closing = true;
                closings.push((index, Positions { closed, done }));
            }
        }
        closings
    }

    /// Records that `positions` are durable. Returns the second read that must follow, if any.
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

    /// Returns the next page of the second read, if it has one and the window has capacity for the page or gains
    /// capacity from it: resolved keys that the read passes are forgotten. Otherwise a later closing continues the
    /// read.
    pub(super) fn check_on(&mut self, index: PollerIndex, demand: impl Fn(TenantId) -> usize) -> Option<DueRead> {
        let id = self.pollers[&index].id;
        let capacity = self.capacity(id.tenant).min(demand(id.tenant));
        // Equal shares for the tenant's pollers, so that none runs ahead of the others.
        let each = capacity / usize::try_from(self.pollers_of(id.tenant)).unwrap_or(usize::MAX).max(1);
        let poller = self.pollers.get_mut(&index).expect("the caller has found the poller");
        let resolved = poller.resolved.first_key_value().map_or(0, |(_, resolved)| resolved.len());
        if poller.checked_whole() >= poller.closed || (capacity == 0 && resolved == 0) {
            poller.closing = false;
            return None;
        }
        let limit = each.max(resolved).clamp(1, PAGE_KEYS);
        Some(DueRead { poller: poller.id, after: poller.checked, until: poller.closed, limit })
    }

    pub(super) fn checked(&mut self, index: PollerIndex, to: DueBound) {
        let poller = self.pollers.get_mut(&index).expect("the caller has found the poller");
        poller.checked = to;
        if instant_of(poller.read_to) < poller.checked_whole() {
            // Every row up to there is in the window now.
            poller.read_to = DueBound::Instant(poller.checked_whole());
        }
        let later = poller.resolved.split_off(&(bucket(poller.checked_whole()) + 1));
        let whole = std::mem::replace(&mut poller.resolved, later).into_values().flatten();
        let mut over: Vec<EntryId> = whole.collect();
        // In the last bucket, forget only the keys at or before `to`.
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
