//! A tenant's schedules, page by page: what the engines list, looked at.
//!
//! One thing to list by at a time, because that is what every engine can go along without reading what is not asked for:
//! all schedules, those of one state or of one label (by [`Store::list`]), or those with an occurrence to come within a
//! stretch of time (by [`Store::due`], over all pollers of the tenant at once).
//!
//! Always true here: going from page to page until there is no next one tells every schedule that was there, and as was
//! asked for, all the while, and none twice; a page is made by a bounded number of reads, so it may be short, or empty, and
//! have a next one; what is told is the tenant's own, wherever the page is asked to begin.

use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Incarnation, LabelKey, PollerId, Schedule, ScheduleId, Status, Target, TenantId, Timestamp};

use crate::{DueBound, DueRead, ListBy, ListRead, Store, StoreError};

/// Schedules that are read at once. With payloads of 64 KiB, 6 MiB.
const LOADED_MAX: usize = 100;
/// Reads for a page: more than it takes if all that an engine lists is as was asked for.
const READS_MAX: usize = 20;
/// A page ends, as it is, after so many reads that found nothing: each may have walked over very many rows.
const READS_IN_VAIN_MAX: usize = 2;
/// A page ends with the schedule that fills it; smaller ones make more requests, larger ones more memory for each.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// A page that is asked for.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    pub tenant: TenantId,
    pub by: By<'a>,
    /// `None` is the beginning.
    pub after: Option<Place>,
    /// At least 1.
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
    /// Active ones whose next occurrence is due from `from`, included, to `until`, excluded, in that order. Of those that are
    /// past already, and may have begun, some may be missing.
    Due {
        /// All that the tenant has.
        pollers: &'a [PollerId],
        from: Timestamp,
        until: Timestamp,
    },
}

/// Where a page begins: after this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the order of making.
    Made(Incarnation),
    /// In the order of what is due.
    Due(DueKey),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    pub schedules: Vec<Arc<Schedule>>,
    /// `None`: there are no more.
    pub next: Option<Place>,
}

/// # Errors
/// If the store fails.
pub async fn page(store: &dyn Store, listing: &Listing<'_>) -> Result<Page, StoreError> {
    match (&listing.by, listing.after) {
        (By::Due { pollers, from, until }, after) => due_page(store, listing, pollers, *from..*until, after).await,
        (By::All | By::Status(_) | By::Label { .. }, after) => made_page(store, listing, after).await,
    }
}

/// A page that is being filled.
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

async fn made_page(store: &dyn Store, listing: &Listing<'_>, after: Option<Place>) -> Result<Page, StoreError> {
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
    let mut in_vain = 0;
    for _ in 0..READS_MAX {
        let limit = filling.missing().min(LOADED_MAX);
        let listed = store.list(ListRead { tenant: listing.tenant, by, after, limit }).await?;
        in_vain += usize::from(listed.incarnations.is_empty());
        let last = listed.incarnations.last().copied();
        for schedule in those_listed(store, listing, listed.incarnations).await? {
            let place = schedule.incarnation;
            filling.push(schedule);
            if filling.missing() == 0 && last != Some(place) {
                return Ok(filling.ending(Some(Place::Made(place))));
            }
        }
        after = listed.next;
        if after.is_none() || filling.missing() == 0 || in_vain == READS_IN_VAIN_MAX {
            break;
        }
    }
    Ok(filling.ending(after.map(Place::Made)))
}

/// Those that have their ids, and are as was asked for.
async fn those_listed(
    store: &dyn Store,
    listing: &Listing<'_>,
    incarnations: Vec<Incarnation>,
) -> Result<Vec<Arc<Schedule>>, StoreError> {
    let loaded = store.load(incarnations).await?;
    let is_asked_for = |schedule: &Arc<Schedule>| {
        schedule.tenant == listing.tenant
            && match listing.by {
                By::All | By::Due { .. } => true,
                By::Status(status) => schedule.status == status,
                By::Label { name, value } => schedule.spec.labels.get(name).is_some_and(|found| found == value),
            }
    };
    let found: Vec<Arc<Schedule>> = loaded.into_iter().flatten().filter(is_asked_for).collect();
    // Another can have taken the id of a cancelled one only.
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
    // Ids are spread evenly over pollers, but few of a page are of each: a page ends where the first of them has no more, and with some
    // to spare most are full.
    let share = 2 * listing.limit.div_ceil(pollers.len()) + 8;
    let reads = pollers.iter().map(|poller| DueRead { poller: *poller, after, until, limit: share }).collect();
    let pages = store.due(reads).await?;
    // What is read is whole only as far as the poller that was read the least far.
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

/// The row of an occurrence as it was planned. Retries, and what was put off, are in rows of their own, later than their
/// instant: so no occurrence is told twice.
fn is_first_try(key: &DueKey) -> bool {
    key.position == key.occurrence.nominal && key.attempt == 1 && key.occurrence.replay == 0
}

fn is_next(schedule: &Schedule, key: &DueKey) -> bool {
    schedule.status == Status::Active
        && schedule.revision == key.occurrence.revision
        && schedule.next == Some(key.occurrence.nominal)
}

/// What its user wrote.
fn bytes_of(schedule: &Schedule) -> usize {
    let Target::Http(http) = &schedule.spec.target;
    let headers: usize = http.headers.iter().map(|(name, value)| name.len() + value.plain_len()).sum();
    let labels: usize = schedule.spec.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    schedule.spec.payload.len() + http.url.len() + headers + labels
}
