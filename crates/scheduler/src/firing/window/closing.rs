//! How stretches are closed, read again, and done with.

use std::collections::BTreeSet;

use domain::{TenantId, Timestamp};
use store::{DueBound, DueRead, Positions};

use super::{EntryId, PAGE_KEYS, PollerIndex, Window, bucket, bucket_end, instant_of, is_within};

impl Window {
    /// The positions to write now; each is to be answered by [`Window::positions_written`], or, if it could not be
    /// written, by [`Window::read_failed`] with [`ReadKind::Check`].
    pub(crate) fn plan_closings(
        &mut self,
        now: Timestamp,
        useful: impl Fn(TenantId) -> usize,
    ) -> Vec<(PollerIndex, Positions)> {
        // The bucket that `now` is in is still open to creators; so is the one before, for those that are slow.
        let last = bucket(now) - 2;
        let full: BTreeSet<TenantId> =
            self.held.keys().copied().filter(|tenant| self.room(*tenant).min(useful(*tenant)) == 0).collect();
        let mut closings = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if poller.closing {
                continue;
            }
            let checked = poller.checked_whole();
            // What is closed already is read again first.
            let is_behind = poller.closed > checked;
            // Nothing that lies before `checked` asks for another second read.
            let unchecked = bucket(checked) + 1..=last;
            let has_news = unchecked.start() <= unchecked.end()
                && (poller.open.range(unchecked.clone()).next().is_some()
                    || poller.resolved.range(unchecked).next().is_some());
            let closed = if has_news && !is_behind { poller.closed.max(bucket_end(last)) } else { poller.closed };
            let done = poller.done_candidate();
            // A second read that failed, or found no room, is gone on with.
            let may_check =
                (has_news || is_behind) && (!full.contains(&poller.id.tenant) || !poller.resolved.is_empty());
            if may_check || (has_news && !is_behind) || done > poller.done {
                poller.closing = true;
                closings.push((index, Positions { closed, done }));
            }
        }
        closings
    }

    /// `positions` are durable. The second read that this asks for, if any.
    pub(crate) fn positions_written(
        &mut self,
        index: PollerIndex,
        positions: Positions,
        useful: impl Fn(TenantId) -> usize,
    ) -> Option<DueRead> {
        let poller = self.pollers.get_mut(&index)?;
        poller.closed = poller.closed.max(positions.closed);
        poller.done = poller.done.max(positions.done);
        self.check_on(index, useful)
    }

    /// The next page of the second read, if it is not at its end, and there is room for what it may bring or some to be
    /// made: what it passes by that is resolved is forgotten. If not, a later closing goes on with it.
    pub(super) fn check_on(&mut self, index: PollerIndex, useful: impl Fn(TenantId) -> usize) -> Option<DueRead> {
        let id = self.pollers[&index].id;
        let room = self.room(id.tenant).min(useful(id.tenant));
        // Alike over the tenant's pollers, so that none runs ahead of the others.
        let each = room / usize::try_from(self.pollers_of(id.tenant)).unwrap_or(usize::MAX).max(1);
        let poller = self.pollers.get_mut(&index).expect("its caller has looked");
        let resolved = poller.resolved.first_key_value().map_or(0, |(_, resolved)| resolved.len());
        if poller.checked_whole() >= poller.closed || (room == 0 && resolved == 0) {
            poller.closing = false;
            return None;
        }
        let limit = each.max(resolved).clamp(1, PAGE_KEYS);
        Some(DueRead { poller: poller.id, after: poller.checked, until: poller.closed, limit })
    }

    pub(super) fn checked(&mut self, index: PollerIndex, to: DueBound) {
        let poller = self.pollers.get_mut(&index).expect("its caller has looked");
        poller.checked = to;
        if instant_of(poller.read_to) < poller.checked_whole() {
            // Everything up to there is in the window now.
            poller.read_to = DueBound::Instant(poller.checked_whole());
        }
        let later = poller.resolved.split_off(&(bucket(poller.checked_whole()) + 1));
        let whole = std::mem::replace(&mut poller.resolved, later).into_values().flatten();
        let mut over: Vec<EntryId> = whole.collect();
        // Of the bucket that it lies in, those up to it.
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
