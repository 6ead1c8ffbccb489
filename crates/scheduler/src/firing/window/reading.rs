//! Reads of due rows ahead of their instants, and the effects of completed reads.

use std::collections::BTreeMap;

use domain::{TenantId, Timestamp};
use store::{DueBound, DuePage, DueRead, InsertLogEntry};

use super::{PAGE_KEYS, PAGE_KEYS_MIN, PollerIndex, ReadKind, Window, instant_of};

impl Window {
    /// Returns the reads that the owner must make now, in groups. After the last read of a group, the owner calls
    /// [`Window::read`] or [`Window::read_failed`] for each read of the group, before it starts another key.
    ///
    /// A group contains the reads of all of a tenant's pollers that have overdue rows. The owner therefore starts the
    /// overdue keys of these pollers in the order of their positions, and reads no poller a page further than another.
    /// Each other read has its own group, because its rows are not due before the read ends.
    ///
    /// `demand` returns the number of further keys of a tenant that the dispatch queue can use now.
    pub(crate) fn plan_reads(
        &mut self,
        now: Timestamp,
        demand: impl Fn(TenantId) -> usize,
    ) -> Vec<Vec<(PollerIndex, DueRead)>> {
        let until = now + self.ahead;
        let mut wanted: Vec<(Timestamp, PollerIndex, TenantId)> = Vec::new();
        for (&index, poller) in &mut self.pollers {
            if poller.reading.is_some() {
                continue;
            }
            // The second read has returned all rows at or before `checked`.
            if let Some(missed) = poller.missed.take().filter(|missed| *missed > poller.checked_whole()) {
                // The owner reads the missed row and all later rows again. The window ignores the keys that it already
                // contains.
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
        let mut groups: Vec<Vec<(PollerIndex, DueRead)>> = Vec::new();
        let mut overdue: BTreeMap<TenantId, usize> = BTreeMap::new();
        for (next, index, read) in self.plan_pages(wanted, until, demand) {
            if next > now {
                groups.push(vec![(index, read)]);
                continue;
            }
            let group = *overdue.entry(read.poller.tenant).or_insert(groups.len());
            if group == groups.len() {
                groups.push(Vec::new());
            }
            groups[group].push((index, read));
        }
        groups
    }

    /// Plans the read of one page for each poller in `wanted`, within the capacity of the window. Returns each read with
    /// the position of the poller's first row. The pollers with the earliest rows come first.
    fn plan_pages(
        &mut self,
        mut wanted: Vec<(Timestamp, PollerIndex, TenantId)>,
        until: Timestamp,
        demand: impl Fn(TenantId) -> usize,
    ) -> Vec<(Timestamp, PollerIndex, DueRead)> {
        wanted.sort_unstable();
        let mut pollers: BTreeMap<TenantId, usize> = BTreeMap::new();
        for (_, _, tenant) in &wanted {
            *pollers.entry(*tenant).or_default() += 1;
        }
        let mut left_over = self.keys_max.saturating_sub(self.entries.len());
        // Remaining capacity of each tenant, and size of one page of the tenant, both in keys.
        let mut capacities: BTreeMap<TenantId, (usize, usize)> = BTreeMap::new();
        for (tenant, pollers) in pollers {
            let capacity = self.share(left_over, tenant).min(demand(tenant)).min(pollers * PAGE_KEYS);
            left_over -= capacity;
            // Each of the tenant's pollers gets an equal share of the capacity, so that the owner reads no poller much
            // further than the other pollers.
            capacities.insert(tenant, (capacity, capacity.div_ceil(pollers).max(PAGE_KEYS_MIN)));
        }
        let mut reads = Vec::new();
        for (next, index, tenant) in wanted {
            let (capacity, page) = capacities.get_mut(&tenant).expect("each tenant in `wanted` has a capacity");
            let limit = (*page).min(*capacity);
            if limit == 0 {
                continue;
            }
            *capacity -= limit;
            let poller = self.pollers.get_mut(&index).expect("the window contains each poller that needs a read");
            poller.reading = Some(until);
            poller.written_during_read = None;
            reads.push((next, index, DueRead { poller: poller.id, after: poller.read_to, until, limit }));
        }
        reads
    }

    pub(crate) fn read_failed(&mut self, index: PollerIndex, kind: ReadKind) {
        let Some(poller) = self.pollers.get_mut(&index) else { return };
        match kind {
            ReadKind::Ahead => {
                poller.reading = None;
                self.add_held(index);
            }
            ReadKind::Check => poller.closing = false,
        }
    }

    /// Adds the rows that the window held back during the read that has just ended. If a row lies after the page of the
    /// read, a later read returns the row.
    fn add_held(&mut self, index: PollerIndex) {
        let poller = self.pollers.get_mut(&index).expect("the caller has checked that the poller exists");
        let (id, held) = (poller.id, std::mem::take(&mut poller.held));
        for key in held {
            self.add_written_row(&InsertLogEntry { poller: id, key });
        }
    }

    /// Records a page that a read returned. If the page belongs to an incomplete second read, returns the read of the
    /// next page.
    pub(crate) fn read(
        &mut self,
        index: PollerIndex,
        kind: ReadKind,
        read: DueRead,
        page: &DuePage,
        demand: impl Fn(TenantId) -> usize,
    ) -> Option<DueRead> {
        if !self.pollers.contains_key(&index) {
            return None;
        }
        for key in &page.keys {
            self.add_key(index, *key);
        }
        let last = page.keys.last().copied();
        let complete = page.next.is_none_or(|next| next > read.until);
        let poller = self.pollers.get_mut(&index).expect("this function has checked that the poller exists");
        match kind {
            ReadKind::Ahead => {
                poller.reading = None;
                let read_to = match last {
                    _ if complete => DueBound::Instant(read.until),
                    Some(last) => DueBound::Key(last),
                    None => read.after,
                };
                // During this read, the owner may also have made a second read, which may move `read_to` further.
                if instant_of(read_to) >= instant_of(poller.read_to) {
                    poller.read_to = read_to;
                }
                poller.next = [page.next, poller.written_during_read.take()].into_iter().flatten().min();
                self.add_held(index);
                None
            }
            ReadKind::Check if complete => {
                poller.closing = false;
                self.checked(index, DueBound::Instant(read.until));
                None
            }
            ReadKind::Check => {
                self.checked(index, last.map_or(read.after, DueBound::Key));
                self.check_on(index, demand)
            }
        }
    }
}
