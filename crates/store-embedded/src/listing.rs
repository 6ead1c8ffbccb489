//! Listings of schedules. Each listing row lists many schedules of a tenant in the order of creation. A label row
//! exists for each label of a schedule.
//!
//! Invariants:
//! - From its creation until its deletion, a schedule is [fresh](Fresh) or in a listing row. A scan therefore returns
//!   all schedules of a tenant.
//! - The store writes a checkpoint only when no schedule is fresh. A replay from the checkpoint therefore finds all
//!   later fresh schedules again. It may write rows that list a schedule twice.
//! - The state machine writes a label row together with the spec that has the label, and removes the row together with
//!   that spec.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use domain::{Incarnation, LabelKey, Status, TenantId};
use store::{ChosenIdPage, ChosenIdRead, ListBy, ListPage, ListRead, Order, StoreError};
use stored::schedule;

use crate::apply::{Deleted, Machine};
use crate::codec::changed::Changed;
use crate::codec::key;
use crate::codec::listed::Bucket;
use crate::index::{Family, Index, Sequence};
use crate::memory::Fresh;
use crate::read::{Rows, damaged, just_after, take_name};

/// Maximum number of schedules that one read examines. With a larger limit, a listing by state has fewer empty pages if
/// few schedules match. With a smaller limit, a read occupies the reader thread for less time.
const EXAMINED_MAX: usize = 1_000;

/// Number of schedules for which [`build`] writes rows between two checks of the memtable's size.
const BUILT_AT_ONCE: usize = 1_000;

impl Machine {
    /// Writes listing rows for the fresh schedules. The sequence of these writes is after the sequences of all other
    /// writes of the entry `entry_index`.
    pub(crate) fn write_fresh(&self, entry_index: u64) {
        let at = Sequence::end_of(entry_index);
        put_fresh(self.index(), at, &self.rows.fresh, at.as_u64());
    }

    /// Writes and removes the label rows of a schedule. `labels` are the schedule's current labels, and `before` are
    /// its previous labels.
    pub(crate) fn write_labels(
        &self,
        at: Sequence,
        tenant: TenantId,
        incarnation: Incarnation,
        labels: &[LabelKey],
        before: &[LabelKey],
    ) {
        for deleted in before.iter().filter(|label| !labels.contains(label)) {
            self.index().remove(Family::Points, &key::labelled(tenant, *deleted, incarnation), at);
        }
        put_labels(self.index(), at, tenant, incarnation, labels);
    }

    /// Removes the schedules in `deleted` from the listings.
    pub(crate) fn unlist(&self, at: Sequence, deleted: &Deleted) -> Result<(), StoreError> {
        for (bucket, deleted) in deleted {
            self.rows.fresh.forget(*bucket, deleted);
            let (from, to) = bucket.bounds(*bucket);
            let mut rows = Vec::new();
            let take = &mut |key: &[u8], value: &Bytes| {
                rows.push((key.to_vec(), value.clone()));
                ControlFlow::Continue(())
            };
            self.index().scan(Family::Points, &from, &to, at, take).map_err(damaged)?;
            for (key, value) in rows {
                let mut listed = bucket.decode(&value).map_err(|error| self.rows.malformed_point(&key, error))?;
                let before = listed.len();
                listed.retain(|incarnation| !deleted.contains(incarnation));
                if listed.is_empty() {
                    self.index().remove(Family::Points, &key, at);
                } else if listed.len() < before {
                    self.index().put(Family::Points, &key, &Bucket::encode(&listed), at);
                }
            }
        }
        Ok(())
    }
}

/// Writes listing rows for the fresh schedules. `part` distinguishes several rows of one bucket.
fn put_fresh(index: &dyn Index, at: Sequence, fresh: &Fresh, part: u64) {
    fresh.empty(|bucket, listed| index.put(Family::Points, &bucket.key(part), &Bucket::encode(listed), at));
}

fn put_labels(index: &dyn Index, at: Sequence, tenant: TenantId, incarnation: Incarnation, labels: &[LabelKey]) {
    for label in labels {
        index.put(Family::Points, &key::labelled(tenant, *label, incarnation), &[], at);
    }
}

impl Rows {
    pub(crate) fn list(&self, read: &ListRead) -> Result<ListPage, StoreError> {
        let ListRead { by, order, limit, .. } = *read;
        let (candidates, enough) = match by {
            ListBy::All => (self.created(read, limit)?, limit),
            ListBy::Status(_) => (self.created(read, EXAMINED_MAX)?, EXAMINED_MAX),
            ListBy::Label(label) => (self.labelled(read, label, limit)?, limit),
        };
        let mut candidates: Vec<Incarnation> = candidates.into_iter().collect();
        if order == Order::Newest {
            candidates.reverse();
        }
        let mut page = ListPage::default();
        let mut is_over = candidates.len() <= enough;
        for incarnation in candidates.into_iter().take(enough) {
            if page.incarnations.len() == limit {
                is_over = false;
                break;
            }
            let matches_filter = match by {
                ListBy::All | ListBy::Label(_) => true,
                ListBy::Status(status) => self.has_status(incarnation, status)?,
            };
            page.incarnations.extend(matches_filter.then_some(incarnation));
            page.next = Some(incarnation);
        }
        page.next = page.next.filter(|_| !is_over);
        Ok(page)
    }

    /// Returns the tenant's schedules after `after`: either all of them, or more than `enough` of them. An incomplete
    /// result contains at least the first `enough` schedules in the order of the read.
    fn created(&self, read: &ListRead, enough: usize) -> Result<BTreeSet<Incarnation>, StoreError> {
        let ListRead { tenant, order, after, .. } = *read;
        // This method reads the fresh schedules before the listing rows. If the state machine moves a schedule to a
        // listing row between the two reads, both reads return the schedule.
        let mut found = self.fresh.of(tenant, order, after, enough);
        let (first_bucket, last_bucket) = Bucket::after(tenant, order, after);
        let (from, to) = first_bucket.bounds(last_bucket);
        let (mut count, mut last) = (0, None);
        self.walk_in(order, Family::Points, &from, &to, |key, value| {
            let bucket = Bucket::parse(key)?;
            if count > enough && last != Some(bucket) {
                return Ok(ControlFlow::Break(()));
            }
            last = Some(bucket);
            let listed = bucket.decode(value)?.into_iter().filter(|found| order.is_after(*found, after));
            count += listed.filter(|incarnation| found.insert(*incarnation)).count();
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Returns the tenant's schedules that have the label and follow `after`. The result contains at most `enough + 1`
    /// schedules.
    fn labelled(&self, read: &ListRead, label: LabelKey, enough: usize) -> Result<BTreeSet<Incarnation>, StoreError> {
        let ListRead { tenant, order, after, .. } = *read;
        let row = |incarnation| key::labelled(tenant, label, incarnation);
        let (from, to) = match (order, after) {
            (Order::Oldest, Some(after)) => (just_after(&row(after)), just_after(&row(Incarnation(u128::MAX)))),
            (Order::Newest, Some(after)) => (row(Incarnation(0)).to_vec(), row(after).to_vec()),
            (_, None) => (row(Incarnation(0)).to_vec(), just_after(&row(Incarnation(u128::MAX)))),
        };
        let mut found = BTreeSet::new();
        self.walk_in(order, Family::Points, &from, &to, |key, _| {
            found.insert(key::parse_labelled(key)?);
            Ok(if found.len() > enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }

    /// Returns a page of the tenant's chosen ids. Only these ids have rows.
    pub(crate) fn chosen_ids(&self, read: &ChosenIdRead) -> Result<ChosenIdPage, StoreError> {
        let (mut from, to) = key::id_bounds(read.tenant);
        if let Some(after) = &read.after {
            from = just_after(&key::id(read.tenant, after.as_str()));
        }
        let mut page = ChosenIdPage::default();
        self.walk(Family::Points, &from, &to, |key, value| {
            page.has_more = page.ids.len() == read.limit;
            if page.has_more {
                return Ok(ControlFlow::Break(()));
            }
            page.ids.push((key::parse_id(key)?, take_name(value)?));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(page)
    }

    fn has_status(&self, incarnation: Incarnation, status: Status) -> Result<bool, StoreError> {
        let state_key = key::state(incarnation);
        let Some(value) = self.index.get(Family::Points, &state_key, Sequence::LATEST).map_err(damaged)? else {
            // A schedule without a state row has not changed since its creation, so it is active.
            return Ok(status == Status::Active);
        };
        let changed = Changed::decode(&value).map_err(|error| self.malformed_point(&state_key, error))?;
        Ok(changed.state.status == status)
    }
}

/// Writes the listing rows for a store that an earlier build wrote. The rows list the schedules as of the entry
/// `synced`, after which the replay begins. If a crash interrupts this function, the next start runs it again.
pub(crate) async fn build(index: &Arc<dyn Index>, synced: u64, memtable_bytes: u64) -> Result<(), StoreError> {
    let rows = Rows::new(index.clone());
    // The sequence `at` is before all writes of a replay, and after all rows that this function reads.
    let (before, at) = (Sequence::new(synced + 1, 0), Sequence::end_of(synced));
    let (mut from, mut count) = (Vec::new(), 0);
    loop {
        let numbers = rows.numbers(&from, before, BUILT_AT_ONCE)?;
        let Some(last) = numbers.last() else { break };
        from = just_after(&key::row(*last));
        for number in numbers {
            // If no schedule has this incarnation, the row contains a later spec of a schedule with another
            // incarnation.
            let Some(known) = rows.known(number, before)? else { continue };
            let labels = schedule::labels(&known.row).map_err(|error| rows.malformed(known.changed.row, error))?;
            let head = schedule::head(&known.row).map_err(|error| rows.malformed(known.changed.row, error))?;
            rows.fresh.add(head.tenant, number);
            put_labels(&**index, at, head.tenant, number, &labels);
            count += 1;
        }
        put_fresh(&**index, at, &rows.fresh, count);
        if index.unsealed_bytes(Family::Points) >= memtable_bytes {
            flush(&**index, before).await?;
            // This function completes the merges, because user writes would otherwise wait for them after the store has
            // opened.
            while index.merge_step(before).map_err(damaged)? {}
        }
    }
    flush(&**index, before).await?;
    tracing::info!(schedules = count, "listing rows created for the schedules that an earlier build stored");
    Ok(())
}

async fn flush(index: &dyn Index, keep_from: Sequence) -> Result<(), StoreError> {
    Family::ALL.into_iter().for_each(|family| index.seal(family));
    index.flush(keep_from).await.map_err(damaged)
}
