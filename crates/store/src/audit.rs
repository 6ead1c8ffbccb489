//! Audit of all schedules of a tenant: reads the facts for [`domain::audit`] from the store, in slices.
//!
//! An audit has two phases. A *pass* reads every schedule that has its id, the runs of the audited stretch, and the due
//! row at the next instant of each active schedule. An owner may have written a due row at another position, so a
//! schedule without this row is only a *suspect*. The second phase, the *examination*, therefore reads all due rows
//! that can belong to the suspects, and returns the differences. A difference can still be the effect of a write between two
//! reads. The audit examines the suspects twice with a pause, and keeps the differences that both examinations return.
//! The pass stops for an examination whenever it has [`SUSPECTS_MAX`] suspects.
//!
//! Each phase reads a fact before an owner can replace it by a later fact: first `done`, then the schedule, then the
//! due rows, and last the runs.
//!
//! Invariants: a read returns at most [`SLICE`] schedules, or about 1,000 rows. [`Pace`] limits the rate of the reads,
//! one by one. The memory of an audit is bounded. If the store cannot read a row, the audit names no missing record
//! that the row could explain, and is incomplete.
//!
//! docs/decisions/0245-compare-outcomes-with-timings.md gives the reasons for the design.

mod stretch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::audit::{Difference, missing_due_row};
use domain::{
    DueKey, Incarnation, Occurrence, PastTiming, PollerId, Revision, Schedule, ScheduleId, Status, Tenant, TenantId,
    Timestamp, When,
};

use self::stretch::{Stretch, compare};
use crate::{Answer, Closed, DueBound, DueRead, ListBy, ListRead, Order, Positions, Store, StoreError};

/// Maximum number of schedules in one read.
pub const SLICE: usize = crate::runs::SCHEDULES_MAX;
/// Maximum number of differences of one tenant that an audit returns.
pub const FINDINGS_MAX: usize = 10_000;
/// Number of suspects for which a pass stops.
const SUSPECTS_MAX: usize = 10_000;
/// Maximum number of past timings of a schedule that the audit reads, the newest ones.
const PAST_TIMINGS_MAX: u32 = 100;
/// Maximum number of due rows or positions in one read.
const ROWS_PER_READ: usize = 1_000;
/// Time after the latest position of a poller within which a due row of an occurrence in the past can lie. An owner
/// defers a row by about a minute after the present instant of its own clock. The rest is a margin, because the clock
/// of an owner can be ahead of the clock of the auditor, also by an hour if a person sets a clock to local time.
const DEFERRED_MAX: Duration = Duration::from_secs(2 * 3_600);

/// Limiter of the reads of an audit.
pub trait Pace: Sync {
    /// Permit for one call of the engine.
    type Turn: Send;

    /// Waits until the audit may call the engine for this tenant.
    fn turn(&self, tenant: TenantId) -> impl Future<Output = Self::Turn> + Send;

    /// Waits between the two examinations, until the effects of writes between two reads are over.
    fn pause(&self) -> impl Future<Output = ()> + Send;

    /// Returns the present instant of the clock by which owners fire.
    fn now(&self) -> Timestamp;

    /// Returns the present start of the audited stretch, inclusive. The store has every record of an occurrence from
    /// this instant on.
    fn start(&self) -> Timestamp;
}

/// Result of the audit of one tenant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TenantAudit {
    /// Differences that both examinations found, at most [`FINDINGS_MAX`].
    pub found: BTreeSet<NamedDifference>,
    /// True if there are more differences than `found` contains.
    pub is_truncated: bool,
    /// True if the audit skipped schedules, because the store cannot read some of their rows.
    pub is_incomplete: bool,
}

/// Difference of a named schedule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamedDifference {
    pub tenant: TenantId,
    pub difference: Difference,
    pub schedule: ScheduleId,
}

/// Reads all schedules of the tenant, and the records of the audited stretch. Returns the differences between them.
///
/// # Errors
/// Returns an error if the store fails. Damaged rows are no error.
pub async fn audit<P: Pace>(store: &dyn Store, pace: &P, tenant: &Tenant) -> Result<TenantAudit, StoreError> {
    let reader = Reader { store, pace, tenant: tenant.id };
    let mut audit = TenantAudit::default();
    let mut after = None;
    loop {
        let part = match suspects(&reader, tenant, after).await {
            // The positions of a poller are damaged.
            Err(StoreError::Damaged(_)) => Suspects { is_incomplete: true, ..Suspects::default() },
            part => part?,
        };
        audit.is_incomplete |= part.is_incomplete;
        confirm(&reader, part.by_incarnation, &mut audit).await?;
        after = part.next;
        if after.is_none() || audit.found.len() > FINDINGS_MAX {
            break;
        }
    }
    while audit.found.len() > FINDINGS_MAX {
        audit.found.pop_last();
        audit.is_truncated = true;
    }
    Ok(audit)
}

/// Examines the suspects twice, and adds the differences that both examinations return.
async fn confirm<P: Pace>(
    reader: &Reader<'_, P>,
    mut open: BTreeMap<Incarnation, Suspect>,
    audit: &mut TenantAudit,
) -> Result<(), StoreError> {
    while !open.is_empty() && audit.found.len() <= FINDINGS_MAX {
        let first = examine(reader, &open).await?;
        audit.is_incomplete |= first.is_incomplete;
        let named: BTreeSet<Incarnation> =
            first.found.iter().map(|named| named.difference.occurrence.incarnation).collect();
        open.retain(|incarnation, _| named.contains(incarnation));
        if open.is_empty() {
            open = first.rest;
            continue;
        }
        reader.pace.pause().await;
        let second = examine(reader, &open).await?;
        audit.is_incomplete |= second.is_incomplete;
        audit.is_truncated |= !first.cut.is_disjoint(&second.cut);
        audit.found.extend(first.found.into_iter().filter(|named| second.found.contains(named)));
        open = first.rest;
        open.extend(second.rest);
    }
    Ok(())
}

/// Reader of the rows of one tenant. It takes a turn for each call of the engine.
struct Reader<'a, P> {
    store: &'a dyn Store,
    pace: &'a P,
    tenant: TenantId,
}

impl<'a, P: Pace> Reader<'a, P> {
    async fn read<T>(&self, call: impl FnOnce(&'a dyn Store) -> Answer<'a, T> + Send) -> Result<T, StoreError> {
        let _turn = self.pace.turn(self.tenant).await;
        call(self.store).await
    }
}

/// Items that the audit reads in slices, in any order. If the engine reports damaged rows of a slice, the audit reads
/// its halves.
struct Slices<T> {
    open: Vec<Vec<T>>,
    /// True if the engine cannot read the rows of an item.
    is_incomplete: bool,
}

impl<T> Slices<T> {
    fn of(items: Vec<T>) -> Self {
        let open = if items.is_empty() { Vec::new() } else { vec![items] };
        Slices { open, is_incomplete: false }
    }

    /// Returns the next slice, or `None` after the last one.
    fn next(&mut self) -> Option<Vec<T>> {
        let items = self.open.last_mut()?;
        match items.len().checked_sub(SLICE) {
            Some(left) if left > 0 => Some(items.split_off(left)),
            _ => self.open.pop(),
        }
    }

    /// Returns the result of the read of a slice, or `None` if some of its rows are damaged.
    fn readable<R>(&mut self, mut slice: Vec<T>, read: Result<R, StoreError>) -> Result<Option<R>, StoreError> {
        match read {
            Err(StoreError::Damaged(_)) if slice.len() > 1 => {
                self.open.push(slice.split_off(slice.len() / 2));
                self.open.push(slice);
                Ok(None)
            }
            // The engine reports the damaged row.
            Err(StoreError::Damaged(_)) => {
                self.is_incomplete = true;
                Ok(None)
            }
            read => read.map(Some),
        }
    }
}

/// Schedule with a possible difference.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    poller: PollerId,
    /// Earliest instant of a possible difference.
    from: Timestamp,
}

/// Schedules with possible differences, from a part of a pass.
#[derive(Debug, Default)]
struct Suspects {
    by_incarnation: BTreeMap<Incarnation, Suspect>,
    /// Incarnation after which the next part of the pass starts. `None` if the pass has read all schedules.
    next: Option<Incarnation>,
    is_incomplete: bool,
}

/// Reads the schedules of the tenant after `after`, and the runs of the audited stretch, until there are
/// [`SUSPECTS_MAX`] suspects.
async fn suspects<P: Pace>(
    reader: &Reader<'_, P>,
    tenant: &Tenant,
    mut after: Option<Incarnation>,
) -> Result<Suspects, StoreError> {
    let positions = positions_of(reader, tenant).await?;
    let mut found = Suspects::default();
    while found.by_incarnation.len() < SUSPECTS_MAX {
        let (by, order, limit) = (ListBy::All, Order::Oldest, SLICE);
        let list = ListRead { tenant: tenant.id, by, order, after, limit };
        let page = match reader.read(|store| store.list(list)).await {
            // The place after the damaged rows is unknown.
            Err(StoreError::Damaged(_)) => {
                found.is_incomplete = true;
                return Ok(found);
            }
            page => page?,
        };
        let mut slices = Slices::of(page.incarnations);
        while let Some(slice) = slices.next() {
            let read = suspects_of_slice(reader, &positions, &slice).await;
            let Some((suspects, is_incomplete)) = slices.readable(slice, read)? else { continue };
            found.by_incarnation.extend(suspects);
            found.is_incomplete |= is_incomplete;
        }
        found.is_incomplete |= slices.is_incomplete;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    found.next = after;
    Ok(found)
}

/// Positions of a poller.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    done: Timestamp,
    closed: Closed,
}

impl Place {
    /// Returns the start of the stretch in which the audit expects an outcome of each occurrence. While the clock of an
    /// owner was ahead, occurrences fired too early, and changes of schedules have instants that are too late.
    fn start(&self, from: Timestamp) -> Timestamp {
        if self.closed.reopened == 0 { from } else { from.max(self.closed.reopened_from) }
    }
}

async fn positions_of<P: Pace>(
    reader: &Reader<'_, P>,
    tenant: &Tenant,
) -> Result<BTreeMap<PollerId, Place>, StoreError> {
    let generations = (0_u16..).zip(&tenant.generations);
    let pollers: Vec<PollerId> = generations
        .flat_map(|(generation, count)| {
            (0..*count).map(move |number| PollerId { tenant: tenant.id, generation, number })
        })
        .collect();
    let mut places = BTreeMap::new();
    for pollers in pollers.chunks(ROWS_PER_READ) {
        places.extend(read_places(reader, pollers.to_vec()).await?);
    }
    Ok(places)
}

async fn read_places<P: Pace>(
    reader: &Reader<'_, P>,
    pollers: Vec<PollerId>,
) -> Result<Vec<(PollerId, Place)>, StoreError> {
    let wanted = pollers.clone();
    let positions = reader.read(|store| store.positions(wanted)).await?;
    let wanted = pollers.clone();
    let closed = reader.read(|store| store.closed(wanted)).await?;
    let place = |(Positions { done, .. }, closed)| Place { done, closed };
    Ok(pollers.into_iter().zip(positions.into_iter().zip(closed).map(place)).collect())
}

/// Returns the suspects of a slice, and true if the store cannot read some of their runs.
async fn suspects_of_slice<P: Pace>(
    reader: &Reader<'_, P>,
    positions: &BTreeMap<PollerId, Place>,
    slice: &[Incarnation],
) -> Result<(Vec<(Incarnation, Suspect)>, bool), StoreError> {
    let from = reader.pace.start();
    let schedules = load(reader, slice.to_vec()).await?;
    // A poller without positions belongs to a change of the tenant during the pass. The next pass reads its positions.
    let known = |schedule: &Arc<Schedule>| positions.get(&schedule.poller).map(|place| (schedule.clone(), *place));
    let is_within = |schedule: &&Arc<Schedule>| !is_over(schedule, from);
    let schedules: Vec<(Arc<Schedule>, Place)> = schedules.iter().filter(is_within).filter_map(known).collect();
    if schedules.is_empty() {
        return Ok((Vec::new(), false));
    }
    let rows = next_rows(reader, &schedules).await?;
    let mut stretches = Vec::with_capacity(schedules.len());
    for ((schedule, place), due) in schedules.into_iter().zip(rows) {
        let past = past_timings(reader, &schedule).await?;
        let (from, until) = (place.start(from), place.done);
        stretches.push(Stretch { schedule, past, due, earlier: Vec::new(), from, until });
    }
    let compared = compare(reader, &stretches).await?;
    let mut suspects = Vec::new();
    for (stretch, differences) in stretches.iter().zip(compared.differences) {
        let Schedule { incarnation, poller, .. } = *stretch.schedule;
        let missing = missing_due_row(&stretch.schedule, &stretch.due, false);
        let all = differences.found.into_iter().chain(missing);
        let first = all.map(|difference| difference.occurrence.nominal).min();
        suspects.extend(first.map(|from| (incarnation, Suspect { poller, from })));
    }
    Ok((suspects, compared.is_incomplete))
}

/// Returns true if the schedule had its only occurrence before `from`. A store can have many such schedules.
fn is_over(schedule: &Schedule, from: Timestamp) -> bool {
    let had_occurrence = matches!(schedule.spec.when, When::At(at) if at < from);
    schedule.status != Status::Active && schedule.updated_at < from && had_occurrence
}

/// Result of an examination.
#[derive(Debug, Default)]
struct Examination {
    found: BTreeSet<NamedDifference>,
    /// Schedules with more differences than `found` contains.
    cut: BTreeSet<Incarnation>,
    /// Suspects that the examination left out, because it found more than [`FINDINGS_MAX`] differences of others.
    rest: BTreeMap<Incarnation, Suspect>,
    is_incomplete: bool,
}

/// Compares the suspects again, with all due rows that can belong to them.
async fn examine<P: Pace>(
    reader: &Reader<'_, P>,
    suspects: &BTreeMap<Incarnation, Suspect>,
) -> Result<Examination, StoreError> {
    let mut by_poller: BTreeMap<PollerId, Vec<(Incarnation, Suspect)>> = BTreeMap::new();
    for (incarnation, suspect) in suspects {
        by_poller.entry(suspect.poller).or_default().push((*incarnation, *suspect));
    }
    let mut examination = Examination::default();
    for (poller, suspects) in by_poller {
        if examination.found.len() > FINDINGS_MAX {
            examination.rest.extend(suspects);
            continue;
        }
        match examine_poller(reader, poller, suspects, &mut examination).await {
            // The positions or the due rows of the poller are damaged.
            Err(StoreError::Damaged(_)) => examination.is_incomplete = true,
            examined => examined?,
        }
    }
    Ok(examination)
}

async fn examine_poller<P: Pace>(
    reader: &Reader<'_, P>,
    poller: PollerId,
    suspects: Vec<(Incarnation, Suspect)>,
    examination: &mut Examination,
) -> Result<(), StoreError> {
    let place = read_places(reader, vec![poller]).await?.pop().map_or_else(Place::default, |(_, place)| place);
    // The schedules are read before the due rows, and only the parts that the comparison needs are kept.
    let mut stretches = Vec::with_capacity(suspects.len());
    let mut slices = Slices::of(suspects);
    while let Some(slice) = slices.next() {
        let read = stretches_of(reader, place, &slice).await;
        stretches.extend(slices.readable(slice, read)?.unwrap_or_default());
    }
    examination.is_incomplete |= slices.is_incomplete;
    let mut rows = due_rows(reader, poller, place, &stretches).await?;
    for stretch in &mut stretches {
        stretch.due.extend(rows.remove(&stretch.schedule.incarnation).unwrap_or_default());
    }
    let mut slices = Slices::of(stretches);
    while let Some(slice) = slices.next() {
        if examination.found.len() > FINDINGS_MAX {
            let suspect = |stretch: Stretch| (stretch.schedule.incarnation, Suspect { poller, from: stretch.from });
            examination.rest.extend(slice.into_iter().map(suspect));
            continue;
        }
        let read = examine_slice(reader, &slice).await;
        let Some(part) = slices.readable(slice, read)? else { continue };
        examination.found.extend(part.found);
        examination.cut.extend(part.cut);
        examination.is_incomplete |= part.is_incomplete;
    }
    examination.is_incomplete |= slices.is_incomplete;
    Ok(())
}

async fn stretches_of<P: Pace>(
    reader: &Reader<'_, P>,
    place: Place,
    slice: &[(Incarnation, Suspect)],
) -> Result<Vec<Stretch>, StoreError> {
    let start = reader.pace.start();
    let starts: BTreeMap<Incarnation, Timestamp> =
        slice.iter().map(|(incarnation, suspect)| (*incarnation, suspect.from)).collect();
    let mut schedules = Vec::with_capacity(slice.len());
    for mut schedule in load(reader, starts.keys().copied().collect()).await? {
        let spec = &mut Arc::make_mut(&mut schedule).spec;
        spec.payload = bytes::Bytes::new();
        spec.labels.clear();
        spec.target.headers_mut().clear();
        schedules.push((schedule, place));
    }
    let rows = next_rows(reader, &schedules).await?;
    let mut stretches = Vec::with_capacity(slice.len());
    for ((schedule, _), due) in schedules.into_iter().zip(rows) {
        let past = past_timings(reader, &schedule).await?;
        let from = place.start(starts[&schedule.incarnation].max(start));
        stretches.push(Stretch { schedule, past, due, earlier: Vec::new(), from, until: place.done });
    }
    Ok(stretches)
}

/// Reads the due rows of these schedules after `done`, except rows for instants in the far future. Such a row is at the
/// position of its instant, which [`next_rows`] reads.
async fn due_rows<P: Pace>(
    reader: &Reader<'_, P>,
    poller: PollerId,
    place: Place,
    stretches: &[Stretch],
) -> Result<BTreeMap<Incarnation, Vec<DueKey>>, StoreError> {
    let wanted: BTreeSet<Incarnation> = stretches.iter().map(|stretch| stretch.schedule.incarnation).collect();
    let latest =
        [place.done, place.closed.at, place.closed.reopened_from].into_iter().fold(reader.pace.now(), Timestamp::max);
    let until = latest + DEFERRED_MAX;
    let mut rows: BTreeMap<Incarnation, Vec<DueKey>> = BTreeMap::new();
    let mut after = DueBound::Instant(place.done);
    loop {
        let read = DueRead { poller, after, until, limit: ROWS_PER_READ };
        let page = reader.read(|store| store.due(vec![read])).await?.pop().unwrap_or_default();
        for key in page.keys.iter().filter(|key| wanted.contains(&key.occurrence.incarnation)) {
            rows.entry(key.occurrence.incarnation).or_default().push(*key);
        }
        match page.keys.last() {
            Some(last) if page.next.is_some_and(|next| next <= until) => after = DueBound::Key(*last),
            _ => return Ok(rows),
        }
    }
}

async fn examine_slice<P: Pace>(reader: &Reader<'_, P>, slice: &[Stretch]) -> Result<Examination, StoreError> {
    let mut examination = Examination::default();
    let mut stretches = slice.to_vec();
    for stretch in &mut stretches {
        examination.is_incomplete |= !stretch.read_earlier_runs(reader).await?;
    }
    let compared = compare(reader, &stretches).await?;
    examination.is_incomplete |= compared.is_incomplete;
    let next = |stretch: &Stretch| {
        let Schedule { incarnation, revision, next, .. } = *stretch.schedule;
        Occurrence { incarnation, nominal: next.unwrap_or(Timestamp::MIN), revision, replay: 0 }
    };
    let next: Vec<Occurrence> = stretches.iter().map(next).collect();
    let next_runs = reader.read(|store| store.find_runs(next)).await?;
    for ((stretch, differences), next_run) in stretches.iter().zip(compared.differences).zip(next_runs) {
        let Schedule { tenant, incarnation, ref id, .. } = *stretch.schedule;
        let missing = missing_due_row(&stretch.schedule, &stretch.due, next_run.is_some());
        if differences.is_cut {
            examination.cut.insert(incarnation);
        }
        examination.found.extend(differences.found.into_iter().chain(missing).map(|difference| NamedDifference {
            tenant,
            difference,
            schedule: id.clone(),
        }));
    }
    Ok(examination)
}

async fn load<P: Pace>(
    reader: &Reader<'_, P>,
    incarnations: Vec<Incarnation>,
) -> Result<Vec<Arc<Schedule>>, StoreError> {
    let schedules = reader.read(|store| store.load(incarnations)).await?;
    Ok(schedules.into_iter().flatten().collect())
}

/// Returns the newest past timings of a schedule. A schedule that no user has changed has none.
async fn past_timings<P: Pace>(reader: &Reader<'_, P>, schedule: &Schedule) -> Result<Vec<PastTiming>, StoreError> {
    if schedule.revision == Revision(0) {
        return Ok(Vec::new());
    }
    let from = Revision(schedule.revision.0.saturating_sub(PAST_TIMINGS_MAX));
    reader.read(|store| store.past_timings(schedule.incarnation, from, PAST_TIMINGS_MAX as usize)).await
}

/// Returns, for each active schedule, the due row at the position of its next instant, if the row is after `done`.
async fn next_rows<P: Pace>(
    reader: &Reader<'_, P>,
    schedules: &[(Arc<Schedule>, Place)],
) -> Result<Vec<Vec<DueKey>>, StoreError> {
    let mut rows = vec![Vec::new(); schedules.len()];
    let (mut reads, mut wanted) = (Vec::new(), Vec::new());
    for (index, (schedule, place)) in schedules.iter().enumerate() {
        let Schedule { incarnation, revision, status, next, poller, ref spec, .. } = **schedule;
        let Some(next) = next.filter(|next| status == Status::Active && *next > place.done) else { continue };
        let occurrence = Occurrence { incarnation, nominal: next, revision, replay: 0 };
        let before = DueKey { position: next, occurrence, attempt: 0, target: spec.target.key() };
        reads.push(DueRead { poller, after: DueBound::Key(before), until: next, limit: 1 });
        wanted.push((index, occurrence));
    }
    if reads.is_empty() {
        return Ok(rows);
    }
    let pages = reader.read(|store| store.due(reads)).await?;
    for ((index, occurrence), page) in wanted.into_iter().zip(pages) {
        rows[index].extend(page.keys.into_iter().filter(|key| key.occurrence == occurrence));
    }
    Ok(rows)
}
