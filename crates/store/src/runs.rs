//! Listing of the runs of a tenant by time, page by page. The engine filters the runs by their own properties. This
//! module loads the schedules of these runs, and filters the runs by the properties of their schedules.
//!
//! The order of a listing is the order of the nominal instants. Runs with the same instant are in the order of their
//! incarnations. A filter by schedule, or by a label of few schedules, reads only the runs of these schedules. Every
//! other filter reads the runs of the tenant. By an index, the engine skips at least the runs that succeeded at once, if
//! the filter selects another state.
//!
//! Invariants:
//! - A caller that reads all pages receives every run that existed and matched the filter from the first to the last
//!   read. The caller receives no run twice. A run that changes may be missing, or be in one page.
//! - A page examines at most [`PAGE_EXAMINED_MAX`] runs, and ends early after [`SLICE`]. A page may therefore be short
//!   or empty although there is a next page.
//! - Every run in a page belongs to the tenant.
//!
//! docs/decisions/0240-list-runs-by-time.md gives the reasons for the design.

use std::collections::HashMap;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{Incarnation, LabelKey, Occurrence, RunFilter, Schedule, ScheduleId, TenantId, Timestamp};
pub use runtime::Monotonic;

use crate::{ListBy, ListRead, Order, Store, StoreError};

/// Maximum number of runs that one page examines.
pub const PAGE_EXAMINED_MAX: usize = 10_000;
/// Maximum number of different schedules in [`RunRead::schedules`].
pub const SCHEDULES_MAX: usize = 64;
/// Time after which a page ends early. The last read of the page may begin just before, and takes some milliseconds.
const SLICE: Duration = Duration::from_millis(40);
/// Maximum number of schedules that one read loads. The schedules use about 6 MiB if each payload has 64 KiB.
const LOADED_MAX: usize = 100;

/// Maximum number of runs that one call of [`Store::list_runs`] examines. The duration of a call is some milliseconds.
pub const EXAMINED_MAX: usize = 1_000;

/// Read of at most `limit` runs of `tenant` that match `filter` and have a nominal instant from `from` (inclusive) to
/// `until` (exclusive). The read starts after the occurrence `after`, which need not have a run. `limit` is at least 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunRead {
    pub tenant: TenantId,
    /// Schedules whose runs the engine returns: at most [`SCHEDULES_MAX`] different schedules. `None` for all
    /// schedules of the tenant.
    pub schedules: Option<Vec<Incarnation>>,
    pub from: Timestamp,
    pub until: Timestamp,
    pub filter: RunFilter,
    /// Order of the nominal instants.
    pub order: Order,
    pub after: Option<Occurrence>,
    pub limit: usize,
}

impl RunRead {
    /// Returns true if the range of the read contains the occurrence.
    #[must_use]
    pub fn contains(&self, of: &Occurrence) -> bool {
        let is_after = self.after.is_none_or(|after| match self.order {
            Order::Oldest => of.by_time() > after.by_time(),
            Order::Newest => of.by_time() < after.by_time(),
        });
        (self.from..self.until).contains(&of.nominal) && is_after
    }
}

/// Page of runs, in the order of the read. Up to `next`, the page contains every readable run that matched the read
/// before and during the call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunList {
    pub runs: Vec<Run>,
    /// Occurrence after which the next page starts. The current page need not contain it. `None` if there are no more
    /// runs.
    pub next: Option<Occurrence>,
    /// Number of runs that the engine examined, and of removed runs whose rows it still contains. A run counts again if
    /// the next call examines it again.
    pub examined: usize,
    /// Number of runs that the engine could not decode. The engine logs them. They are not in the page, so that a
    /// damaged run hides no other run.
    pub unreadable: usize,
}

/// Request for a page of a listing of runs.
#[derive(Clone, Debug)]
pub struct RunListing<'a> {
    pub tenant: TenantId,
    /// Only the runs of this schedule.
    pub schedule: Option<Incarnation>,
    /// Only runs whose schedule has the label with this name and value now. The listing may omit the runs of a
    /// cancelled schedule whose id another schedule has taken.
    pub label: Option<(&'a str, &'a str)>,
    /// Only runs whose schedule has this host as its target now, in the form of [`domain::target::canonical_host`].
    pub host: Option<&'a str>,
    pub filter: RunFilter,
    /// Earliest nominal instant.
    pub from: Timestamp,
    /// End of the range of nominal instants, exclusive.
    pub until: Timestamp,
    pub order: Order,
    /// Occurrence after which the page starts. `None` is the beginning of the listing.
    pub after: Option<Occurrence>,
    /// Maximum number of runs in the page. At least 1.
    pub limit: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunPage {
    /// Runs, each with the id of its schedule. The id is `None` if the schedule does not exist.
    pub runs: Vec<(Run, Option<ScheduleId>)>,
    /// Occurrence after which the next page starts. `None` if there are no more runs.
    pub next: Option<Occurrence>,
    /// Number of runs that the engine could not decode. They may match the listing, and are not in the page.
    pub unreadable: usize,
}

/// Returns one page of a listing. Calls `turn` before each read of the engine, and keeps the result of `turn` until the
/// read has ended. With `turn`, the caller limits the number of concurrent reads. `clock` returns the current instant.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn page<T, Turn: Future<Output = T>>(
    store: &dyn Store,
    listing: &RunListing<'_>,
    clock: impl Fn() -> Monotonic,
    turn: impl Fn() -> Turn,
) -> Result<RunPage, StoreError> {
    let mut filling = Filling { listing, known: HashMap::new(), page: RunPage::default() };
    let schedules = {
        let _turn = turn().await;
        candidates(store, listing).await?
    };
    if schedules.as_ref().is_some_and(Vec::is_empty) {
        return Ok(filling.page);
    }
    let (mut after, mut examined) = (listing.after, 0);
    let mut begun = None;
    loop {
        let _turn = turn().await;
        // The wait for the first turn does not count, so that each page makes progress.
        let slice_end = *begun.get_or_insert_with(&clock) + SLICE;
        let list = store.list_runs(filling.read(schedules.clone(), after)).await?;
        examined += list.examined;
        filling.page.unreadable += list.unreadable;
        let last = list.runs.last().map(|run| run.occurrence);
        for runs in list.runs.chunks(LOADED_MAX) {
            filling.load(store, runs).await?;
            for run in runs {
                filling.push(run);
                let is_end = last == Some(run.occurrence) && list.next.is_none();
                if filling.is_full() && !is_end {
                    filling.page.next = Some(run.occurrence);
                    return Ok(filling.page);
                }
            }
            let reached = runs.last().map(|run| run.occurrence);
            if reached != last && clock() >= slice_end {
                filling.page.next = reached;
                return Ok(filling.page);
            }
        }
        after = list.next;
        let is_over = examined + EXAMINED_MAX > PAGE_EXAMINED_MAX || clock() >= slice_end;
        if after.is_none() || is_over || filling.is_full() {
            filling.page.next = after;
            return Ok(filling.page);
        }
    }
}

/// Returns the schedules whose runs can match, or `None` if the listing must read the runs of all schedules.
async fn candidates(store: &dyn Store, listing: &RunListing<'_>) -> Result<Option<Vec<Incarnation>>, StoreError> {
    if let Some(schedule) = listing.schedule {
        return Ok(Some(vec![schedule]));
    }
    let Some((name, value)) = listing.label else { return Ok(None) };
    let by = ListBy::Label(LabelKey::of(name, value));
    let (tenant, order, limit) = (listing.tenant, Order::Oldest, SCHEDULES_MAX + 1);
    let listed = store.list(ListRead { tenant, by, order, after: None, limit }).await?;
    let is_complete = listed.next.is_none() && listed.incarnations.len() <= SCHEDULES_MAX;
    Ok(is_complete.then_some(listed.incarnations))
}

/// Page under construction.
struct Filling<'a> {
    listing: &'a RunListing<'a>,
    /// Schedules that the page has loaded: the id, and whether the schedule meets the conditions of the listing. `None`
    /// if the schedule does not exist.
    known: HashMap<Incarnation, Option<(ScheduleId, bool)>>,
    page: RunPage,
}

impl Filling<'_> {
    fn has_conditions(&self) -> bool {
        self.listing.label.is_some() || self.listing.host.is_some()
    }

    fn is_full(&self) -> bool {
        self.page.runs.len() == self.listing.limit
    }

    fn read(&self, schedules: Option<Vec<Incarnation>>, after: Option<Occurrence>) -> RunRead {
        let RunListing { tenant, filter, from, until, order, limit, .. } = *self.listing;
        let missing = limit - self.page.runs.len();
        let limit = if self.has_conditions() { EXAMINED_MAX } else { missing.min(EXAMINED_MAX) };
        RunRead { tenant, schedules, from, until, filter, order, after, limit }
    }

    async fn load(&mut self, store: &dyn Store, runs: &[Run]) -> Result<(), StoreError> {
        let mut missing: Vec<Incarnation> = runs.iter().map(|run| run.occurrence.incarnation).collect();
        missing.retain(|incarnation| !self.known.contains_key(incarnation));
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let loaded = store.load(missing.clone()).await?;
        for (incarnation, schedule) in missing.into_iter().zip(loaded) {
            let found = schedule.map(|schedule| (schedule.id.clone(), self.meets_conditions(&schedule)));
            self.known.insert(incarnation, found);
        }
        Ok(())
    }

    fn meets_conditions(&self, schedule: &Schedule) -> bool {
        let RunListing { tenant, label, host, .. } = *self.listing;
        let has_label = |(name, value): (&str, &str)| schedule.spec.labels.get(name).is_some_and(|it| it == value);
        schedule.tenant == tenant
            && label.is_none_or(has_label)
            && host.is_none_or(|host| schedule.spec.target.host().as_deref() == Some(host))
    }

    /// Adds the run to the page if it matches. The page has loaded the schedule of the run.
    fn push(&mut self, run: &Run) {
        let known = self.known.get(&run.occurrence.incarnation).and_then(Option::as_ref);
        let matches = known.map_or(!self.has_conditions(), |(_, meets_conditions)| *meets_conditions);
        if matches && run.tenant == self.listing.tenant {
            self.page.runs.push((run.clone(), known.map(|(id, _)| id.clone())));
        }
    }
}
