//! Listing in the order of ids. No engine has an index of all ids of a tenant, because a server-made id needs no row.
//! This module merges two sources of ids, both in byte order:
//! - [`Store::list_chosen_ids`] returns the chosen ids.
//! - [`Store::list`] returns incarnations in their order, which is the order of the server-made ids of these
//!   incarnations. Such an id is a candidate: the schedule of the incarnation may have a chosen id instead. The module
//!   loads the schedule and ignores the candidate if the schedule has another id.
//!
//! Invariants:
//! - Each schedule has exactly one id, which is either chosen or server-made. Only one candidate is therefore equal to
//!   the id of its schedule.
//! - The merge returns a candidate only if both sources have been read up to its id. A place consists of one id, and
//!   every candidate up to this id is in an earlier page or did not match.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use domain::{Incarnation, ScheduleId};

use super::{EMPTY_READS_MAX, Filling, LOADED_MAX, Listing, Page, Place, READS_MAX, list_by, matching_schedules};
use crate::{ChosenIdRead, ListRead, Order, Store, StoreError};

/// An id that is before every server-made id.
const BEFORE_SERVER_MADE: &str = "s";

pub(super) async fn page<T, Turn: Future<Output = T>>(
    store: &dyn Store,
    listing: &Listing<'_>,
    turn: impl Fn() -> Turn,
) -> Result<Page, StoreError> {
    let after = match &listing.after {
        Some(Place::Id(after)) => Some(after.clone()),
        Some(Place::Made(_) | Place::Due(_)) | None => None,
    };
    let mut merge = Merge::after(after.clone());
    let mut filling = Filling::new(listing.limit);
    let (mut empty_reads, mut mismatches) = (0, 0);
    for _ in 0..READS_MAX {
        // If many candidates do not match, the next read requests more candidates than the page lacks.
        let limit = filling.missing().max(mismatches).min(LOADED_MAX);
        let _turn = turn().await;
        let is_empty = merge.read_next(store, listing, limit).await?;
        empty_reads += usize::from(is_empty);
        let candidates = merge.take(limit);
        let incarnations = candidates.iter().map(|candidate| candidate.incarnation).collect();
        let schedules = matching_schedules(store, listing, incarnations).await?;
        for (candidate, schedule) in candidates.into_iter().zip(schedules) {
            let Some(schedule) = schedule.filter(|schedule| schedule.id == candidate.id) else {
                mismatches += 1;
                continue;
            };
            filling.push(schedule);
            if filling.missing() == 0 {
                let is_over = merge.is_over() && merge.taken_to.as_ref() == Some(&candidate.id);
                return Ok(filling.ending((!is_over).then_some(Place::Id(candidate.id))));
            }
        }
        if merge.is_over() {
            return Ok(filling.ending(None));
        }
        if empty_reads == EMPTY_READS_MAX {
            break;
        }
    }
    let next = merge.examined_to();
    assert!(next > after, "a page of a listing ends after the place where it started: {next:?}");
    Ok(filling.ending(next.map(Place::Id)))
}

/// Id that a schedule may have.
struct Candidate {
    id: ScheduleId,
    incarnation: Incarnation,
}

/// Candidates of one source, in byte order.
struct Source {
    /// Candidates that the module has read from the store and that the merge has not returned yet.
    unmerged: VecDeque<Candidate>,
    /// Last id up to which the module has read the source.
    read_to: Option<ScheduleId>,
    /// True if the source has no candidates after `read_to`.
    is_over: bool,
}

impl Source {
    fn after(read_to: Option<ScheduleId>) -> Self {
        Source { unmerged: VecDeque::new(), read_to, is_over: false }
    }

    /// Returns whether the module has read every candidate up to `id`.
    fn is_read_to(&self, id: &ScheduleId) -> bool {
        self.is_over || self.read_to.as_ref() >= Some(id)
    }

    fn needs_read(&self) -> bool {
        self.unmerged.is_empty() && !self.is_over
    }
}

/// Merge of the two sources.
struct Merge {
    chosen: Source,
    server_made: Source,
    /// Id of the last candidate that the merge returned, or the id after which it started.
    taken_to: Option<ScheduleId>,
}

impl Merge {
    fn after(after: Option<ScheduleId>) -> Self {
        let before_server_made = ScheduleId::new(BEFORE_SERVER_MADE).expect("the constant is a valid id");
        let server_made = Source::after(after.clone().max(Some(before_server_made)));
        Merge { chosen: Source::after(after.clone()), server_made, taken_to: after }
    }

    /// Reads at most `limit` candidates of a source, if the merge cannot return a candidate without this read. Returns
    /// whether the read found no candidate although more may follow.
    async fn read_next(&mut self, store: &dyn Store, listing: &Listing<'_>, limit: usize) -> Result<bool, StoreError> {
        if self.chosen.needs_read() {
            return self.read_chosen(store, listing, limit).await;
        }
        let is_read = |next: &Candidate| self.server_made.is_read_to(&next.id);
        if self.server_made.needs_read() && !self.chosen.unmerged.front().is_some_and(is_read) {
            return self.read_server_made(store, listing, limit).await;
        }
        Ok(false)
    }

    async fn read_chosen(
        &mut self,
        store: &dyn Store,
        listing: &Listing<'_>,
        limit: usize,
    ) -> Result<bool, StoreError> {
        let source = &mut self.chosen;
        let read = ChosenIdRead { tenant: listing.tenant, after: source.read_to.clone(), limit };
        let page = store.list_chosen_ids(read).await?;
        source.is_over = !page.has_more;
        source.unmerged.extend(page.ids.into_iter().map(|(id, incarnation)| Candidate { id, incarnation }));
        if let Some(last) = source.unmerged.back() {
            source.read_to = Some(last.id.clone());
        }
        Ok(false)
    }

    async fn read_server_made(
        &mut self,
        store: &dyn Store,
        listing: &Listing<'_>,
        limit: usize,
    ) -> Result<bool, StoreError> {
        let source = &mut self.server_made;
        let after = source.read_to.as_ref().and_then(ScheduleId::last_incarnation_up_to);
        if after == Some(Incarnation(u128::MAX)) {
            source.is_over = true;
            return Ok(false);
        }
        let read = ListRead { tenant: listing.tenant, by: list_by(&listing.by), order: Order::Oldest, after, limit };
        let page = store.list(read).await?;
        let is_empty = page.incarnations.is_empty();
        let candidate = |incarnation| Candidate { id: ScheduleId::from_incarnation(incarnation), incarnation };
        source.unmerged.extend(page.incarnations.into_iter().map(candidate));
        match page.next {
            Some(next) => source.read_to = Some(ScheduleId::from_incarnation(next)),
            None => source.is_over = true,
        }
        Ok(is_empty && !source.is_over)
    }

    /// Returns at most `limit` of the next candidates, in byte order.
    fn take(&mut self, limit: usize) -> Vec<Candidate> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(next) = self.take_next()
        {
            taken.push(next);
        }
        if let Some(last) = taken.last() {
            self.taken_to = Some(last.id.clone());
        }
        taken
    }

    /// Returns the next candidate, or `None` if the merge must first read a source.
    fn take_next(&mut self) -> Option<Candidate> {
        let is_chosen = match (self.chosen.unmerged.front(), self.server_made.unmerged.front()) {
            (Some(chosen), Some(server_made)) => chosen.id <= server_made.id,
            (chosen, _) => chosen.is_some(),
        };
        let (source, other) = match is_chosen {
            true => (&mut self.chosen, &self.server_made),
            false => (&mut self.server_made, &self.chosen),
        };
        source.unmerged.pop_front_if(|next| other.is_read_to(&next.id))
    }

    fn is_over(&self) -> bool {
        [&self.chosen, &self.server_made].iter().all(|source| source.unmerged.is_empty() && source.is_over)
    }

    /// Returns the last id up to which the merge has returned all candidates.
    fn examined_to(&self) -> Option<ScheduleId> {
        let sources = [&self.chosen, &self.server_made];
        let needing_read = sources.iter().filter(|source| source.needs_read());
        let read_to = needing_read.map(|source| source.read_to.as_ref()).min().flatten();
        // The merge has not returned a candidate up to `read_to` if an earlier call of `Merge::take` reached its limit.
        let is_merged = sources.iter().flat_map(|source| source.unmerged.front()).all(|next| Some(&next.id) > read_to);
        self.taken_to.as_ref().max(read_to.filter(|_| is_merged)).cloned()
    }
}
