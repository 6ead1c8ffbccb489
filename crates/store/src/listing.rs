//! Listing of a tenant's schedules in pages. The module filters the incarnations that an engine lists.
//!
//! A listing accepts one criterion, because every engine must serve it from an index. It lists all schedules, the
//! schedules of one state or of one label (by [`Store::list`]), or the schedules whose next occurrence lies within a
//! range of time (by [`Store::due`], over all pollers of the tenant at once).
//!
//! Invariants:
//! - A caller that follows the pages to the end receives every schedule that existed and matched all the while, and
//!   receives none twice.
//! - A page takes a bounded number of reads. It may therefore be short or empty and still have a next page.
//! - Every schedule in a page belongs to the tenant, whatever start the caller passes.
//!
//! docs/decisions/0034-list-schedules-by-one-criterion.md gives the reasons for the design.

use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Incarnation, LabelKey, PollerId, Schedule, ScheduleId, Status, Target, TenantId, Timestamp};

use crate::{DueBound, DueRead, ListBy, ListRead, Store, StoreError};

/// Number of schedules that one read loads: 6 MiB at payloads of 64 KiB.
const LOADED_MAX: usize = 100;
/// Maximum number of reads for one page. A page needs fewer if every listed schedule matches.
const READS_MAX: usize = 20;
/// Maximum number of reads of one page that find nothing. Each such read may have scanned very many rows.
const EMPTY_READS_MAX: usize = 2;
/// Size at which a page ends. A smaller limit causes more requests; a larger one needs more memory per request.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Request for a page.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    pub tenant: TenantId,
    pub by: By<'a>,
    /// Start of the page; `None` is the beginning.
    pub after: Option<Place>,
    /// Maximum number of schedules in the page; at least 1.
    pub limit: usize,
}

#[derive(Clone, Debug)]
pub enum By<'a> {
    All,
    Status(Status),
    Label {
        name: &'a str,
        value: &'a str,
    },
    /// Active schedules whose next occurrence is due from `from` (inclusive) to `until` (exclusive), in that order. The
    /// listing may miss schedules whose next occurrence has already passed.
    Due {
        /// All pollers of the tenant.
        pollers: &'a [PollerId],
        from: Timestamp,
        until: Timestamp,
    },
}

/// Start of a page, exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Start in the order of creation.
    Made(Incarnation),
    /// Start in the order of due keys.
    Due(DueKey),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    pub schedules: Vec<Arc<Schedule>>,
    /// Start of the next page; `None` if there are no more schedules.
    pub next: Option<Place>,
}

/// Returns one page.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn page(store: &dyn Store, listing: &Listing<'_>) -> Result<Page, StoreError> {
    match (&listing.by, listing.after) {
        (By::Due { pollers, from, until }, after) => due_page(store, listing, pollers, *from..*until, after).await,
        (By::All | By::Status(_) | By::Label { .. }, after) => created_page(store, listing, after).await,
    }
}

/// Page under construction.
struct Filling {
    page: Page,
    limit: usize,
    bytes: usize,
}

impl Filling {
    fn new(limit: usize) -> Self {
        Filling { page: Page::default(), limit, bytes: 0 }
    }

    fn push(&mut self, schedule: Arc<Schedule>) {
        self.bytes += bytes_of(&schedule);
        self.page.schedules.push(schedule);
    }

    fn missing(&self) -> usize {
        if self.bytes >= PAGE_BYTES_MAX { 0 } else { self.limit - self.page.schedules.len() }
    }

    fn ending(self, next: Option<Place>) -> Page {
        Page { next, ..self.page }
    }
}

async fn created_page(store: &dyn Store, listing: &Listing<'_>, after: Option<Place>) -> Result<Page, StoreError> {
    let by = match listing.by {
        By::Status(status) => ListBy::Status(status),
        By::Label { name, value } => ListBy::Label(LabelKey::of(name, value)),
        By::All | By::Due { .. } => ListBy::All,
    };
    let mut after = match after {
        Some(Place::Made(after)) => Some(after),
        Some(Place::Due(_)) | None => None,
    };
    let mut filling = Filling::new(listing.limit);
    let mut empty_reads = 0;
    for _ in 0..READS_MAX {
        let limit = filling.missing().min(LOADED_MAX);
        let listed = store.list(ListRead { tenant: listing.tenant, by, after, limit }).await?;
        empty_reads += usize::from(listed.incarnations.is_empty());
        let last = listed.incarnations.last().copied();
        for schedule in matching_schedules(store, listing, listed.incarnations).await? {
            let place = schedule.incarnation;
            filling.push(schedule);
            if filling.missing() == 0 && last != Some(place) {
                return Ok(filling.ending(Some(Place::Made(place))));
            }
        }
        after = listed.next;
        if after.is_none() || filling.missing() == 0 || empty_reads == EMPTY_READS_MAX {
            break;
        }
    }
    Ok(filling.ending(after.map(Place::Made)))
}

/// Loads the incarnations, and returns those that still have their ids and match the filter.
async fn matching_schedules(
    store: &dyn Store,
    listing: &Listing<'_>,
    incarnations: Vec<Incarnation>,
) -> Result<Vec<Arc<Schedule>>, StoreError> {
    let loaded = store.load(incarnations).await?;
    let matches = |schedule: &Arc<Schedule>| {
        schedule.tenant == listing.tenant
            && match listing.by {
                By::All | By::Due { .. } => true,
                By::Status(status) => schedule.status == status,
                By::Label { name, value } => schedule.spec.labels.get(name).is_some_and(|found| found == value),
            }
    };
    let found: Vec<Arc<Schedule>> = loaded.into_iter().flatten().filter(matches).collect();
    // Only the id of a cancelled schedule can have been taken by another.
    let is_cancelled = |schedule: &&Arc<Schedule>| schedule.status == Status::Cancelled;
    let cancelled: Vec<(TenantId, ScheduleId)> =
        found.iter().filter(is_cancelled).map(|schedule| (schedule.tenant, schedule.id.clone())).collect();
    if cancelled.is_empty() {
        return Ok(found);
    }
    let holders = store.get(cancelled).await?;
    let mut holders = holders.into_iter().map(|holder| holder.map(|holder| holder.incarnation));
    let has_its_id = |schedule: &Arc<Schedule>| {
        schedule.status != Status::Cancelled || holders.next().flatten() == Some(schedule.incarnation)
    };
    Ok(found.into_iter().filter(has_its_id).collect())
}

async fn due_page(
    store: &dyn Store,
    listing: &Listing<'_>,
    pollers: &[PollerId],
    range: std::ops::Range<Timestamp>,
    after: Option<Place>,
) -> Result<Page, StoreError> {
    const GRAIN: Duration = Duration::from_millis(1);
    if pollers.is_empty() || range.is_empty() {
        return Ok(Page::default());
    }
    let until = range.end - GRAIN;
    let after = match after {
        Some(Place::Due(after)) if after.position >= range.start => DueBound::Key(after),
        Some(_) | None => DueBound::Instant(range.start - GRAIN),
    };
    // Ids are spread evenly over pollers, but a page takes few rows from each. It ends where the first poller has no
    // more rows, so each read gets some spare rows, and most pages are full.
    let share = 2 * listing.limit.div_ceil(pollers.len()) + 8;
    let reads = pollers.iter().map(|poller| DueRead { poller: *poller, after, until, limit: share }).collect();
    let pages = store.due(reads).await?;
    // The rows are complete only up to the position of the poller that was read the least far.
    let unread = pages.iter().filter(|page| page.next.is_some_and(|next| next <= until));
    let end = unread.filter_map(|page| page.keys.last().copied()).min();
    let mut keys: Vec<DueKey> = pages.into_iter().flat_map(|page| page.keys).collect();
    keys.retain(|key| is_first_try(key) && end.is_none_or(|end| *key <= end));
    keys.sort_unstable();

    let last = keys.last().copied();
    let mut filling = Filling::new(listing.limit);
    for keys in keys.chunks(LOADED_MAX) {
        let loaded = store.load(keys.iter().map(|key| key.occurrence.incarnation).collect()).await?;
        for (key, schedule) in keys.iter().zip(loaded) {
            let Some(schedule) = schedule.filter(|schedule| is_next(schedule, key)) else { continue };
            filling.push(schedule);
            if filling.missing() == 0 && last != Some(*key) {
                return Ok(filling.ending(Some(Place::Due(*key))));
            }
        }
    }
    Ok(filling.ending(end.map(Place::Due)))
}

/// Returns whether the row is for the first try of an occurrence. A retry or a deferred row has its own row at a later
/// position, so the listing contains no occurrence twice.
fn is_first_try(key: &DueKey) -> bool {
    key.position == key.occurrence.nominal && key.attempt == 1 && key.occurrence.replay == 0
}

fn is_next(schedule: &Schedule, key: &DueKey) -> bool {
    schedule.status == Status::Active
        && schedule.revision == key.occurrence.revision
        && schedule.next == Some(key.occurrence.nominal)
}

/// Returns the size of the data that the user supplied.
fn bytes_of(schedule: &Schedule) -> usize {
    let Target::Http(http) = &schedule.spec.target;
    let headers: usize = http.headers.iter().map(|(name, value)| name.len() + value.plain_len()).sum();
    let labels: usize = schedule.spec.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    schedule.spec.payload.len() + http.url.len() + headers + labels
}
