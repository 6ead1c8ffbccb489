//! What is read ahead, and what comes of a read.

use std::collections::BTreeMap;

use domain::{TenantId, Timestamp};
use store::{DueBound, DuePage, DueRead};

use super::{PAGE_KEYS, PAGE_KEYS_MIN, PollerIndex, ReadKind, Window, instant_of};

impl Window {
    /// The reads ahead that are due now; each is to be answered by [`Window::read`] or [`Window::read_failed`].
    /// `useful`: how many more of a tenant's keys there is a use for now.
    pub(crate) fn plan_reads(
        &mut self,
        now: Timestamp,
        useful: impl Fn(TenantId) -> usize,
    ) -> Vec<(PollerIndex, DueRead)> {
        let until = now + self.ahead;
        let mut wanted: Vec<(Timestamp, PollerIndex, TenantId)> = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if poller.reading.is_some() {
                continue;
            }
            // What is at or before `checked` was read again in any case.
            if let Some(missed) = poller.missed.take().filter(|missed| *missed > poller.checked_whole()) {
                // Everything after it is read again; what is known already is recognised.
                let before = Timestamp::from_millis(missed.as_millis() - 1);
                if before < instant_of(poller.read_to) {
                    poller.read_to = DueBound::Instant(before);
                }
                poller.next = Some(missed);
            }
            if let Some(next) = poller.next.filter(|next| *next <= until) {
                wanted.push((next, index, poller.id.tenant));
            }
        }
        self.plan_pages(wanted, until, useful)
    }

    /// A page of each, the oldest first, as far as there is room.
    fn plan_pages(
        &mut self,
        mut wanted: Vec<(Timestamp, PollerIndex, TenantId)>,
        until: Timestamp,
        useful: impl Fn(TenantId) -> usize,
    ) -> Vec<(PollerIndex, DueRead)> {
        wanted.sort_unstable();
        let mut pollers: BTreeMap<TenantId, usize> = BTreeMap::new();
        for (_, _, tenant) in &wanted {
            *pollers.entry(*tenant).or_default() += 1;
        }
        let mut left_over = self.keys_max.saturating_sub(self.entries.len());
        // What is left for each tenant, and a page of it.
        let mut rooms: BTreeMap<TenantId, (usize, usize)> = BTreeMap::new();
        for (tenant, pollers) in pollers {
            let room = self.share(left_over, tenant).min(useful(tenant)).min(pollers * PAGE_KEYS);
            left_over -= room;
            // Alike over its pollers, so that none runs ahead of the others.
            rooms.insert(tenant, (room, room.div_ceil(pollers).max(PAGE_KEYS_MIN)));
        }
        let mut reads = Vec::new();
        for (_, index, tenant) in wanted {
            let (room, page) = rooms.get_mut(&tenant).expect("each tenant's was computed");
            let limit = (*page).min(*room);
            if limit == 0 {
                continue;
            }
            *room -= limit;
            let poller = self.pollers.get_mut(&index).expect("it was there a moment ago");
            poller.reading = Some(until);
            poller.arrived = None;
            reads.push((index, DueRead { poller: poller.id, after: poller.read_to, until, limit }));
        }
        reads
    }

    pub(crate) fn read_failed(&mut self, index: PollerIndex, kind: ReadKind) {
        let Some(poller) = self.pollers.get_mut(&index) else { return };
        match kind {
            ReadKind::Ahead => poller.reading = None,
            ReadKind::Check => poller.closing = false,
        }
    }

    /// A page has come. For a check that is not at its end, the read to go on with.
    pub(crate) fn read(
        &mut self,
        index: PollerIndex,
        kind: ReadKind,
        read: DueRead,
        page: &DuePage,
        useful: impl Fn(TenantId) -> usize,
    ) -> Option<DueRead> {
        if !self.pollers.contains_key(&index) {
            return None;
        }
        for key in &page.keys {
            self.admit(index, *key);
        }
        let last = page.keys.last().copied();
        let complete = page.next.is_none_or(|next| next > read.until);
        let poller = self.pollers.get_mut(&index).expect("it was there a moment ago");
        match kind {
            ReadKind::Ahead => {
                poller.reading = None;
                let read_to = match last {
                    _ if complete => DueBound::Instant(read.until),
                    Some(last) => DueBound::Key(last),
                    None => read.after,
                };
                // A check may have come further meanwhile.
                if instant_of(read_to) >= instant_of(poller.read_to) {
                    poller.read_to = read_to;
                }
                poller.next = [page.next, poller.arrived.take()].into_iter().flatten().min();
                None
            }
            ReadKind::Check if complete => {
                poller.closing = false;
                self.checked(index, DueBound::Instant(read.until));
                None
            }
            ReadKind::Check => {
                self.checked(index, last.map_or(read.after, DueBound::Key));
                self.check_on(index, useful)
            }
        }
    }
}
