//! What schedules are listed by: rows in the index that each tell many of a tenant's, in the order of their making, and a row for each
//! label of a schedule.
//!
//! Always true here: a schedule is [fresh](Fresh) or in a row from when it is made until it is forgotten, so that a scan tells all
//! of a tenant's; a checkpoint is made when nothing is fresh, so that a replay from it finds what was fresh after it anew, and
//! writes rows that tell some twice; a label's row is written with the spec that has the label, and removed with it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use domain::{Incarnation, LabelKey, Status, TenantId};
use store::{ListBy, ListPage, ListRead, StoreError};
use stored::schedule;

use crate::apply::{Gone, Machine};
use crate::codec::changed::Changed;
use crate::codec::key;
use crate::codec::listed::Bucket;
use crate::index::{Family, Index, Sequence};
use crate::memory::Fresh;
use crate::read::{Rows, damaged, just_after};

/// Schedules that one read looks at. More make fewer empty pages where few of many have the state or label that is asked for;
/// fewer let the reader's thread go sooner.
const LOOKED_AT_MAX: usize = 10_000;

/// Schedules that are listed between two looks at how much was written.
const BUILT_AT_ONCE: usize = 1_000;

impl Machine {
    /// Writes rows for what is fresh, after all else of an entry.
    pub(crate) fn write_fresh(&self, entry_index: u64) {
        let at = Sequence::end_of(entry_index);
        put_fresh(self.index(), at, &self.rows.fresh, at.as_u64());
    }

    /// `labels` are all that the schedule has now, `before` those that it had.
    pub(crate) fn write_labels(
        &self,
        at: Sequence,
        tenant: TenantId,
        incarnation: Incarnation,
        labels: &[LabelKey],
        before: &[LabelKey],
    ) {
        for gone in before.iter().filter(|label| !labels.contains(label)) {
            self.index().remove(Family::Points, &key::labelled(tenant, *gone, incarnation), at);
        }
        put_labels(self.index(), at, tenant, incarnation, labels);
    }

    /// They are not listed any more.
    pub(crate) fn unlist(&self, at: Sequence, gone: &Gone) -> Result<(), StoreError> {
        for (bucket, gone) in gone {
            self.rows.fresh.forget(*bucket, gone);
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
                listed.retain(|incarnation| !gone.contains(incarnation));
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

/// `part` tells rows of one bucket apart.
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
        let ListRead { tenant, by, after, limit } = *read;
        let (candidates, enough) = match by {
            ListBy::All => (self.made(tenant, after, limit)?, limit),
            ListBy::Status(_) => (self.made(tenant, after, LOOKED_AT_MAX)?, LOOKED_AT_MAX),
            ListBy::Label(label) => (self.labelled(tenant, label, after, limit)?, limit),
        };
        let mut page = ListPage::default();
        let mut is_over = candidates.len() <= enough;
        for incarnation in candidates.into_iter().take(enough) {
            if page.incarnations.len() == limit {
                is_over = false;
                break;
            }
            let is_asked_for = match by {
                ListBy::All | ListBy::Label(_) => true,
                ListBy::Status(status) => self.has_status(incarnation, status)?,
            };
            page.incarnations.extend(is_asked_for.then_some(incarnation));
            page.next = Some(incarnation);
        }
        page.next = page.next.filter(|_| !is_over);
        Ok(page)
    }

    /// A tenant's schedules after `after`: all, or more than `enough`, of which the first `enough` leave none out.
    fn made(
        &self,
        tenant: TenantId,
        after: Option<Incarnation>,
        enough: usize,
    ) -> Result<BTreeSet<Incarnation>, StoreError> {
        // Before the rows are read: what is written meanwhile is told by both.
        let mut found = self.fresh.of(tenant, after, enough);
        let from = after.map_or(Bucket::first(tenant), |after| Bucket::of(tenant, after));
        let (from, to) = from.bounds(Bucket::last(tenant));
        let (mut count, mut last) = (0, None);
        self.walk(Family::Points, &from, &to, |key, value| {
            let bucket = Bucket::parse(key)?;
            if count > enough && last != Some(bucket) {
                return Ok(ControlFlow::Break(()));
            }
            last = Some(bucket);
            let listed = bucket.decode(value)?.into_iter().filter(|found| after.is_none_or(|after| *found > after));
            count += listed.filter(|incarnation| found.insert(*incarnation)).count();
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// As [`Rows::made`], of those with a label.
    fn labelled(
        &self,
        tenant: TenantId,
        label: LabelKey,
        after: Option<Incarnation>,
        enough: usize,
    ) -> Result<BTreeSet<Incarnation>, StoreError> {
        let from = match after {
            Some(after) => just_after(&key::labelled(tenant, label, after)),
            None => key::labelled(tenant, label, Incarnation(0)).to_vec(),
        };
        let to = just_after(&key::labelled(tenant, label, Incarnation(u128::MAX)));
        let mut found = BTreeSet::new();
        self.collect(Family::Points, &from, &to, enough + 1, |key, _| {
            found.insert(key::parse_labelled(key)?);
            Ok(())
        })?;
        Ok(found)
    }

    fn has_status(&self, incarnation: Incarnation, status: Status) -> Result<bool, StoreError> {
        let state_key = key::state(incarnation);
        let Some(value) = self.index.get(Family::Points, &state_key, Sequence::LATEST).map_err(damaged)? else {
            // It is as it was made.
            return Ok(status == Status::Active);
        };
        let changed = Changed::decode(&value).map_err(|error| self.malformed_point(&state_key, error))?;
        Ok(changed.state.status == status)
    }
}

/// Lists what an earlier build left unlisted, as it was after the entry `synced`, from which a replay goes on. Done again if
/// it breaks off.
pub(crate) async fn build(index: &Arc<dyn Index>, synced: u64, memtable_bytes: u64) -> Result<(), StoreError> {
    let rows = Rows::new(index.clone());
    // Before all that a replay writes, and after all that it reads.
    let (before, at) = (Sequence::new(synced + 1, 0), Sequence::end_of(synced));
    let (mut from, mut count) = (Vec::new(), 0);
    loop {
        let numbers = rows.numbers(&from, before, BUILT_AT_ONCE)?;
        let Some(last) = numbers.last() else { break };
        from = just_after(&key::row(*last));
        for number in numbers {
            // Others are later specs of an incarnation.
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
            // Or users' writes would wait for that once it is open.
            while index.merge_step(before).map_err(damaged)? {}
        }
    }
    flush(&**index, before).await?;
    tracing::info!(schedules = count, "schedules of an earlier version are listed now");
    Ok(())
}

async fn flush(index: &dyn Index, keep_from: Sequence) -> Result<(), StoreError> {
    Family::ALL.into_iter().for_each(|family| index.seal(family));
    index.flush(keep_from).await.map_err(damaged)
}
