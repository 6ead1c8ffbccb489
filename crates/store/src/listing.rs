//! Listing of the schedules of a tenant, page by page. The module loads the schedules of the incarnations that an
//! engine lists, and filters these schedules.
//!
//! A listing has one criterion, because every engine must serve it from an index. A listing by [`Store::list`] contains
//! all schedules, the schedules of one state, or the schedules with one label. A listing by [`Store::due`] reads all
//! pollers of the tenant at once. It contains the schedules whose next occurrence is in a range of time.
//!
//! A listing of all schedules, or of the schedules of one state, can also be in the order of their ids. The module
//! `by_id` merges the chosen ids and the server-made ids for this order.
//!
//! Invariants:
//! - A caller that reads all pages receives every schedule that existed and matched the criterion from the first to the
//!   last read. The caller receives no schedule twice.
//! - A page requires a limited number of reads. A page may therefore be short or empty although there is a next page.
//! - Every schedule in a page belongs to the tenant, even if the caller passes a [`Place`] from a listing of
//!   another tenant.
//!
//! docs/decisions/0034-list-schedules-by-one-criterion.md gives the reasons for the design.

mod by_id;

use std::sync::Arc;
use std::time::Duration;

use domain::{DueKey, Incarnation, LabelKey, PollerId, Schedule, ScheduleId, Status, TenantId, Timestamp};

use crate::{DueBound, DueRead, ListBy, ListRead, Order, Store, StoreError};

/// Maximum number of schedules that one read loads. The schedules use about 6 MiB if each payload has 64 KiB.
const LOADED_MAX: usize = 100;
/// Maximum number of reads for one page. A page needs fewer reads if every listed schedule matches.
const READS_MAX: usize = 20;
/// Maximum number of empty reads for one page. An empty read finds no schedule, but may have scanned many rows.
const EMPTY_READS_MAX: usize = 10;
/// Number of bytes at which a page ends. A smaller limit causes more requests. A larger limit requires more memory for
/// each request.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Request for a page of a listing.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    pub tenant: TenantId,
    pub by: By<'a>,
    /// Order of the schedules. A listing by [`By::Due`] is in the order of the due time, so it accepts only
    /// [`Order::Oldest`]. A listing by [`By::Label`] does not accept [`ListingOrder::Id`].
    pub order: ListingOrder,
    /// Place after which the page starts. `None` is the beginning of the listing.
    pub after: Option<Place>,
    /// Maximum number of schedules in the page. At least 1.
    pub limit: usize,
}

/// Order of the schedules in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListingOrder {
    /// Order of the incarnations.
    Created(Order),
    /// Byte order of the ids. All characters of an id are ASCII characters.
    Id,
}

impl Default for ListingOrder {
    fn default() -> Self {
        ListingOrder::Created(Order::default())
    }
}

#[derive(Clone, Debug)]
pub enum By<'a> {
    All,
    Status(Status),
    Label {
        name: &'a str,
        value: &'a str,
    },
    /// Active schedules whose next occurrence is due from `from` (inclusive) to `until` (exclusive), in the order of
    /// the due time. The listing may omit schedules whose next occurrence is in the past.
    Due {
        /// All pollers of the tenant.
        pollers: &'a [PollerId],
        from: Timestamp,
        until: Timestamp,
    },
}

/// Place after which a page starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Place in a listing that is in the order of creation.
    Made(Incarnation),
    /// Place in a listing that is in the order of due keys.
    Due(DueKey),
    /// Place in a listing that is in the order of ids. A schedule with this id need not exist.
    Id(ScheduleId),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    pub schedules: Vec<Arc<Schedule>>,
    /// Place after which the next page starts. `None` if there are no more schedules.
    pub next: Option<Place>,
}

/// Returns one page of a listing. Calls `turn` before each read of the engine, and keeps the result of `turn` until the
/// read has ended. With `turn`, the caller limits the number of concurrent reads.
///
/// # Errors
/// Returns an error if the store fails.
///
/// # Panics
/// Panics if a listing by [`By::Due`] has another order than [`Order::Oldest`], or if a listing by [`By::Label`] is in the
/// order of ids.
pub async fn page<T, Turn: Future<Output = T>>(
    store: &dyn Store,
    listing: &Listing<'_>,
    turn: impl Fn() -> Turn,
) -> Result<Page, StoreError> {
    match (&listing.by, listing.order) {
        (By::Due { pollers, from, until }, order) => {
            let oldest = ListingOrder::Created(Order::Oldest);
            assert_eq!(order, oldest, "a listing by due time supports only `Order::Oldest`");
            let _turn = turn().await;
            due_page(store, listing, pollers, *from..*until).await
        }
        (By::All | By::Status(_) | By::Label { .. }, ListingOrder::Created(order)) => {
            created_page(store, listing, order, turn).await
        }
        (By::All | By::Status(_), ListingOrder::Id) => by_id::page(store, listing, turn).await,
        (By::Label { .. }, ListingOrder::Id) => panic!("a listing by label does not support `ListingOrder::Id`"),
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
        self.bytes += schedule.spec.content_bytes();
        self.page.schedules.push(schedule);
    }

    fn missing(&self) -> usize {
        if self.bytes >= PAGE_BYTES_MAX { 0 } else { self.limit - self.page.schedules.len() }
    }

    fn ending(self, next: Option<Place>) -> Page {
        Page { next, ..self.page }
    }
}

async fn created_page<T, Turn: Future<Output = T>>(
    store: &dyn Store,
    listing: &Listing<'_>,
    order: Order,
    turn: impl Fn() -> Turn,
) -> Result<Page, StoreError> {
    let mut after = match listing.after {
        Some(Place::Made(after)) => Some(after),
        Some(Place::Due(_) | Place::Id(_)) | None => None,
    };
    let mut filling = Filling::new(listing.limit);
    let mut empty_reads = 0;
    for _ in 0..READS_MAX {
        let limit = filling.missing().min(LOADED_MAX);
        let read = ListRead { tenant: listing.tenant, by: list_by(&listing.by), order, after, limit };
        let _turn = turn().await;
        let listed = store.list(read).await?;
        empty_reads += usize::from(listed.incarnations.is_empty());
        let last = listed.incarnations.last().copied();
        for schedule in matching_schedules(store, listing, listed.incarnations).await?.into_iter().flatten() {
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

fn list_by(by: &By<'_>) -> ListBy {
    match by {
        By::Status(status) => ListBy::Status(*status),
        By::Label { name, value } => ListBy::Label(LabelKey::of(name, value)),
        By::All | By::Due { .. } => ListBy::All,
    }
}

/// Loads the schedules of the incarnations. Returns a result for each incarnation, in the same order. A result is `None`
/// if the schedule does not exist, no longer has its id, or does not match the filter.
async fn matching_schedules(
    store: &dyn Store,
    listing: &Listing<'_>,
    incarnations: Vec<Incarnation>,
) -> Result<Vec<Option<Arc<Schedule>>>, StoreError> {
    let loaded = store.load(incarnations).await?;
    let matches = |schedule: &Arc<Schedule>| {
        schedule.tenant == listing.tenant
            && match listing.by {
                By::All | By::Due { .. } => true,
                By::Status(status) => schedule.status == status,
                By::Label { name, value } => schedule.spec.labels.get(name).is_some_and(|found| found == value),
            }
    };
    let found: Vec<Option<Arc<Schedule>>> = loaded.into_iter().map(|schedule| schedule.filter(matches)).collect();
    // A schedule can lose its id to another schedule only after its cancellation. The function therefore looks up only
    // the ids of cancelled schedules.
    let is_cancelled = |schedule: &&Arc<Schedule>| schedule.status == Status::Cancelled;
    let cancelled: Vec<(TenantId, ScheduleId)> =
        found.iter().flatten().filter(is_cancelled).map(|schedule| (schedule.tenant, schedule.id.clone())).collect();
    if cancelled.is_empty() {
        return Ok(found);
    }
    let holders = store.get(cancelled).await?;
    let mut holders = holders.into_iter().map(|holder| holder.map(|holder| holder.incarnation));
    let mut has_its_id = |schedule: &Arc<Schedule>| {
        schedule.status != Status::Cancelled || holders.next().flatten() == Some(schedule.incarnation)
    };
    Ok(found.into_iter().map(|schedule| schedule.filter(&mut has_its_id)).collect())
}

async fn due_page(
    store: &dyn Store,
    listing: &Listing<'_>,
    pollers: &[PollerId],
    range: std::ops::Range<Timestamp>,
) -> Result<Page, StoreError> {
    const GRAIN: Duration = Duration::from_millis(1);
    if pollers.is_empty() || range.is_empty() {
        return Ok(Page::default());
    }
    let until = range.end - GRAIN;
    let after = match listing.after {
        Some(Place::Due(after)) if after.position >= range.start => DueBound::Key(after),
        Some(_) | None => DueBound::Instant(range.start - GRAIN),
    };
    // A hash distributes the ids evenly over the pollers, but the few rows of one page are distributed less evenly. The
    // page ends where the read of one poller has reached its limit. Each read therefore requests some extra rows, so
    // that most pages are full.
    let share = 2 * listing.limit.div_ceil(pollers.len()) + 8;
    let reads = pollers.iter().map(|poller| DueRead { poller: *poller, after, until, limit: share }).collect();
    let pages = store.due(reads).await?;
    // A read that reached its limit returned the poller's rows only up to the read's last key. The page therefore ends
    // at the smallest last key of these reads.
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

/// Returns whether the due row is for the first attempt of an occurrence. A retried or deferred occurrence has a second
/// row at a later position. The listing uses only the first row, so it contains no occurrence twice.
fn is_first_try(key: &DueKey) -> bool {
    key.position == key.occurrence.nominal && key.attempt == 1 && key.occurrence.replay == 0
}

fn is_next(schedule: &Schedule, key: &DueKey) -> bool {
    schedule.status == Status::Active
        && schedule.revision == key.occurrence.revision
        && schedule.next == Some(key.occurrence.nominal)
}
