//! What schedules are listed by: a row for each in the index, which says its status, and one for each of its labels.
//!
//! Always true here: a schedule's row is written with the schedule, and again when its status changes, so that one scan
//! tells all of a tenant's; a label's row is written with the spec that has the label, and removed with it; both go with the schedule.

use std::ops::ControlFlow;
use std::sync::Arc;

use domain::{Incarnation, LabelKey, Status, TenantId};
use store::{ListBy, ListPage, ListRead, StoreError};

use crate::apply::Machine;
use crate::codec::{key, row};
use crate::index::{Family, Index, Sequence};
use crate::read::{Rows, damaged, just_after};

/// Rows that one read looks at. More make fewer empty pages where few of many schedules have the state that is asked for;
/// fewer let the reader's thread go sooner.
const LOOKED_AT_MAX: usize = 20_000;

/// Schedules that are listed between two looks at how much was written.
const BUILT_AT_ONCE: usize = 1_000;

impl Machine {
    pub(crate) fn write_listed(&self, at: Sequence, tenant: TenantId, incarnation: Incarnation, status: Status) {
        put_listed(self.index(), at, tenant, incarnation, status);
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
            self.index().remove(Family::Points, &key::listed(&key::all_of_label(tenant, *gone), incarnation), at);
        }
        put_labels(self.index(), at, tenant, incarnation, labels);
    }

    /// It is not listed any more, under none of the labels that it had.
    pub(crate) fn remove_listed(&self, at: Sequence, tenant: TenantId, incarnation: Incarnation, labels: &[LabelKey]) {
        self.index().remove(Family::Points, &key::listed(&key::all_listed(tenant), incarnation), at);
        self.write_labels(at, tenant, incarnation, &[], labels);
    }
}

fn put_listed(index: &dyn Index, at: Sequence, tenant: TenantId, incarnation: Incarnation, status: Status) {
    index.put(Family::Points, &key::listed(&key::all_listed(tenant), incarnation), &row::listed(status), at);
}

fn put_labels(index: &dyn Index, at: Sequence, tenant: TenantId, incarnation: Incarnation, labels: &[LabelKey]) {
    for label in labels {
        index.put(Family::Points, &key::listed(&key::all_of_label(tenant, *label), incarnation), &[], at);
    }
}

impl Rows {
    pub(crate) fn list(&self, read: &ListRead) -> Result<ListPage, StoreError> {
        let start = match read.by {
            ListBy::All | ListBy::Status(_) => key::all_listed(read.tenant),
            ListBy::Label(label) => key::all_of_label(read.tenant, label),
        };
        let from = match read.after {
            Some(after) => just_after(&key::listed(&start, after)),
            None => start.clone(),
        };
        let to = just_after(&key::listed(&start, Incarnation(u128::MAX)));
        let (mut page, mut looked_at) = (ListPage::default(), 0);
        let mut is_over = true;
        self.walk(Family::Points, &from, &to, |key, value| {
            if page.incarnations.len() == read.limit || looked_at == LOOKED_AT_MAX {
                is_over = false;
                return Ok(ControlFlow::Break(()));
            }
            let incarnation = key::parse_listed(&start, key)?;
            let is_listed = match read.by {
                ListBy::All | ListBy::Label(_) => true,
                ListBy::Status(status) => row::take_listed(value)? == status,
            };
            page.incarnations.extend(is_listed.then_some(incarnation));
            page.next = Some(incarnation);
            looked_at += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        page.next = page.next.filter(|_| !is_over);
        Ok(page)
    }
}

/// Lists what an earlier build left unlisted, as it was after the entry `synced`, from which a replay goes on. Done again if
/// it breaks off.
pub(crate) async fn build(index: &Arc<dyn Index>, synced: u64, memtable_bytes: u64) -> Result<(), StoreError> {
    let rows = Rows::new(index.clone());
    // Before all that a replay writes, and after all that it reads.
    let (before, at) = (Sequence::new(synced + 1, 0), Sequence::end_of(synced));
    let (mut from, mut count) = (Vec::new(), 0_usize);
    loop {
        let numbers = rows.numbers(&from, before, BUILT_AT_ONCE)?;
        let Some(last) = numbers.last() else { break };
        from = just_after(&key::row(*last));
        for number in numbers {
            // Others are later specs of an incarnation.
            let Some(known) = rows.known(number, before)? else { continue };
            let labels = row::labels(&known.row).map_err(|error| rows.malformed(known.changed.row, error))?;
            let head = row::head(&known.row).map_err(|error| rows.malformed(known.changed.row, error))?;
            put_listed(&**index, at, head.tenant, number, known.changed.state.status);
            put_labels(&**index, at, head.tenant, number, &labels);
            count += 1;
        }
        if index.unsealed_bytes(Family::Points) >= memtable_bytes {
            flush(&**index, before).await?;
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
