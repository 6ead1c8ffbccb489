//! Audit of all schedules: reads the facts for [`domain::audit`] from the store, in slices.
//!
//! An audit has two phases. A *pass* ([`suspects`]) reads every schedule that has its id, the runs of the audited
//! stretch, and the due row at the next instant of each active schedule. An owner may have written a due row at another
//! position. The second phase ([`examine`]) therefore reads all due rows that can belong to the suspects, and returns
//! the differences. A difference can still be the effect of a write between two reads. The caller examines the suspects
//! twice with a pause, and keeps the differences that both examinations return.
//!
//! Each phase reads a fact before an owner can replace it by a later fact: first `done`, then the schedule, then the
//! due rows, and last the runs.
//!
//! Invariants: a read returns at most [`SLICE`] schedules, or about 1,000 rows. [`Pace`] limits the rate of the reads.
//! The memory of an audit is bounded. If the store cannot read a row, the audit names no missing record that the row
//! could explain.
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

use self::stretch::{Stretch, differences_of};
use crate::{Closed, DueBound, DueRead, ListBy, ListRead, Order, Positions, Store, StoreError};

/// Maximum number of schedules in one read.
pub const SLICE: usize = crate::runs::SCHEDULES_MAX;
/// Maximum number of schedules that an audit examines for differences. An audit of a store with more suspects is
/// incomplete.
pub const SUSPECTS_MAX: usize = 10_000;
/// Maximum number of past timings of a schedule that the audit reads, the newest ones.
const PAST_TIMINGS_MAX: u32 = 100;
/// Maximum number of due rows or positions in one read.
const ROWS_PER_READ: usize = 1_000;
/// Time after the latest position of a poller within which a due row of an occurrence in the past can lie. An owner
/// defers a row by about a minute.
const DEFERRED_MAX: Duration = Duration::from_secs(3_600);

/// Limiter of the reads of an audit.
pub trait Pace: Sync {
    /// Permit for one slice of reads.
    type Turn: Send;

    /// Waits until the audit may read the next slice of this tenant's rows.
    fn turn(&self, tenant: TenantId) -> impl Future<Output = Self::Turn> + Send;

    /// Returns the present instant of the clock by which owners fire.
    fn now(&self) -> Timestamp;

    /// Returns the present start of the audited stretch, inclusive. The store has every record of an occurrence from
    /// this instant on.
    fn start(&self) -> Timestamp;
}

/// Schedule with a possible difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    pub tenant: TenantId,
    pub poller: PollerId,
    /// Earliest instant of a possible difference.
    pub from: Timestamp,
}

/// Schedules with possible differences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Suspects {
    pub by_incarnation: BTreeMap<Incarnation, Suspect>,
    /// True if the pass found more than [`SUSPECTS_MAX`] suspects.
    pub is_truncated: bool,
    /// Number of schedules that the pass read.
    pub schedules: u64,
}

/// Difference of a named schedule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamedDifference {
    pub tenant: TenantId,
    pub difference: Difference,
    pub schedule: ScheduleId,
}

impl Suspects {
    fn add(&mut self, schedule: &Schedule, differences: &[Difference]) {
        let Some(first) = differences.iter().map(|difference| difference.occurrence.nominal).min() else { return };
        let is_known = self.by_incarnation.contains_key(&schedule.incarnation);
        if !is_known && self.by_incarnation.len() >= SUSPECTS_MAX {
            self.is_truncated = true;
            return;
        }
        let Schedule { tenant, poller, incarnation, .. } = *schedule;
        let known = self.by_incarnation.entry(incarnation).or_insert(Suspect { tenant, poller, from: first });
        known.from = known.from.min(first);
    }
}

/// Reads all schedules of all tenants, and the runs of the audited stretch. Returns the schedules that may have a
/// difference.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn suspects<P: Pace>(store: &dyn Store, pace: &P) -> Result<Suspects, StoreError> {
    let mut found = Suspects::default();
    for tenant in store.tenants().await? {
        let positions = positions_of(store, pace, &tenant).await?;
        let mut after = None;
        loop {
            let _turn = pace.turn(tenant.id).await;
            let (by, order, limit) = (ListBy::All, Order::Oldest, SLICE);
            let page = store.list(ListRead { tenant: tenant.id, by, order, after, limit }).await?;
            suspects_of_slice(store, &positions, pace.start(), page.incarnations, &mut found).await?;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
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
    store: &dyn Store,
    pace: &P,
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
        let _turn = pace.turn(tenant.id).await;
        places.extend(read_places(store, pollers.to_vec()).await?);
    }
    Ok(places)
}

async fn read_places(store: &dyn Store, pollers: Vec<PollerId>) -> Result<Vec<(PollerId, Place)>, StoreError> {
    let positions = store.positions(pollers.clone()).await?;
    let closed = store.closed(pollers.clone()).await?;
    let place = |(Positions { done, .. }, closed)| Place { done, closed };
    Ok(pollers.into_iter().zip(positions.into_iter().zip(closed).map(place)).collect())
}

async fn suspects_of_slice(
    store: &dyn Store,
    positions: &BTreeMap<PollerId, Place>,
    from: Timestamp,
    incarnations: Vec<Incarnation>,
    found: &mut Suspects,
) -> Result<(), StoreError> {
    let schedules = load(store, incarnations).await?;
    found.schedules += schedules.len() as u64;
    // A poller without positions belongs to a change of the tenant during the pass. The next pass reads its positions.
    let known = |schedule: &Arc<Schedule>| positions.get(&schedule.poller).map(|place| (schedule.clone(), *place));
    let is_within = |schedule: &&Arc<Schedule>| !is_over(schedule, from);
    let schedules: Vec<(Arc<Schedule>, Place)> = schedules.iter().filter(is_within).filter_map(known).collect();
    if schedules.is_empty() {
        return Ok(());
    }
    let rows = next_rows(store, &schedules).await?;
    let mut stretches = Vec::with_capacity(schedules.len());
    for (schedule, place) in &schedules {
        let past = past_timings(store, schedule).await?;
        let (from, until) = (place.start(from), place.done);
        stretches.push(Stretch { schedule: schedule.clone(), past, due: Vec::new(), earlier: Vec::new(), from, until });
    }
    for (stretch, row) in stretches.iter_mut().zip(rows) {
        stretch.due.extend(row);
    }
    let mut differences = differences_of(store, &stretches).await?;
    for (stretch, differences) in stretches.iter().zip(&mut differences) {
        differences.extend(missing_due_row(&stretch.schedule, &stretch.due, false));
        found.add(&stretch.schedule, differences);
    }
    Ok(())
}

/// Returns true if the schedule had its only occurrence before `from`. A store can have many such schedules.
fn is_over(schedule: &Schedule, from: Timestamp) -> bool {
    let had_occurrence = matches!(schedule.spec.when, When::At(at) if at < from);
    schedule.status != Status::Active && schedule.updated_at < from && had_occurrence
}

/// Examines suspects of an earlier pass again, with all due rows that can belong to them. Returns their differences, in
/// the order of their tenants.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn examine<P: Pace>(
    store: &dyn Store,
    pace: &P,
    suspects: &Suspects,
) -> Result<BTreeSet<NamedDifference>, StoreError> {
    let mut by_poller: BTreeMap<PollerId, Vec<(Incarnation, Timestamp)>> = BTreeMap::new();
    for (incarnation, suspect) in &suspects.by_incarnation {
        by_poller.entry(suspect.poller).or_default().push((*incarnation, suspect.from));
    }
    let mut named = BTreeSet::new();
    for (poller, suspects) in by_poller {
        let place = {
            let _turn = pace.turn(poller.tenant).await;
            read_places(store, vec![poller]).await?.pop().map_or_else(Place::default, |(_, place)| place)
        };
        // The schedules are read before the due rows, and their payloads are not kept.
        let mut stretches = Vec::with_capacity(suspects.len());
        for slice in suspects.chunks(SLICE) {
            let _turn = pace.turn(poller.tenant).await;
            stretches.extend(stretches_of(store, place, pace.start(), slice).await?);
        }
        let mut rows = due_rows(store, pace, poller, place, &stretches).await?;
        for stretch in &mut stretches {
            stretch.due.extend(rows.remove(&stretch.schedule.incarnation).unwrap_or_default());
        }
        for slice in stretches.chunks(SLICE) {
            let _turn = pace.turn(poller.tenant).await;
            name_differences(store, slice, &mut named).await?;
        }
    }
    Ok(named)
}

async fn stretches_of(
    store: &dyn Store,
    place: Place,
    start: Timestamp,
    slice: &[(Incarnation, Timestamp)],
) -> Result<Vec<Stretch>, StoreError> {
    let starts: BTreeMap<Incarnation, Timestamp> = slice.iter().copied().collect();
    let mut stretches = Vec::with_capacity(slice.len());
    for mut schedule in load(store, starts.keys().copied().collect()).await? {
        let past = past_timings(store, &schedule).await?;
        let from = place.start(starts[&schedule.incarnation].max(start));
        Arc::make_mut(&mut schedule).spec.payload = bytes::Bytes::new();
        stretches.push(Stretch { schedule, past, due: Vec::new(), earlier: Vec::new(), from, until: place.done });
    }
    let schedules: Vec<(Arc<Schedule>, Place)> =
        stretches.iter().map(|stretch| (stretch.schedule.clone(), place)).collect();
    for (stretch, row) in stretches.iter_mut().zip(next_rows(store, &schedules).await?) {
        stretch.due.extend(row);
    }
    Ok(stretches)
}

/// Reads the due rows of these schedules after `done`, except rows for instants in the far future. Such a row is at the
/// position of its instant, which [`next_rows`] reads.
async fn due_rows<P: Pace>(
    store: &dyn Store,
    pace: &P,
    poller: PollerId,
    place: Place,
    stretches: &[Stretch],
) -> Result<BTreeMap<Incarnation, Vec<DueKey>>, StoreError> {
    let wanted: BTreeSet<Incarnation> = stretches.iter().map(|stretch| stretch.schedule.incarnation).collect();
    let latest = [place.done, place.closed.at, place.closed.reopened_from].into_iter().fold(pace.now(), Timestamp::max);
    let until = latest + DEFERRED_MAX;
    let mut rows: BTreeMap<Incarnation, Vec<DueKey>> = BTreeMap::new();
    let mut after = DueBound::Instant(place.done);
    loop {
        let _turn = pace.turn(poller.tenant).await;
        let read = DueRead { poller, after, until, limit: ROWS_PER_READ };
        let page = store.due(vec![read]).await?.pop().unwrap_or_default();
        for key in page.keys.iter().filter(|key| wanted.contains(&key.occurrence.incarnation)) {
            rows.entry(key.occurrence.incarnation).or_default().push(*key);
        }
        match page.keys.last() {
            Some(last) if page.next.is_some_and(|next| next <= until) => after = DueBound::Key(*last),
            _ => return Ok(rows),
        }
    }
}

async fn name_differences(
    store: &dyn Store,
    slice: &[Stretch],
    named: &mut BTreeSet<NamedDifference>,
) -> Result<(), StoreError> {
    let mut stretches = slice.to_vec();
    for stretch in &mut stretches {
        stretch.read_earlier_runs(store).await?;
    }
    let differences = differences_of(store, &stretches).await?;
    let next = |stretch: &Stretch| {
        let Schedule { incarnation, revision, next, .. } = *stretch.schedule;
        Occurrence { incarnation, nominal: next.unwrap_or(Timestamp::MIN), revision, replay: 0 }
    };
    let next_runs = store.find_runs(stretches.iter().map(next).collect()).await?;
    for ((stretch, mut differences), next_run) in stretches.iter().zip(differences).zip(next_runs) {
        differences.extend(missing_due_row(&stretch.schedule, &stretch.due, next_run.is_some()));
        let Schedule { tenant, ref id, .. } = *stretch.schedule;
        named.extend(differences.into_iter().map(|difference| NamedDifference {
            tenant,
            difference,
            schedule: id.clone(),
        }));
    }
    Ok(())
}

/// Loads the schedules that the store can read.
async fn load(store: &dyn Store, incarnations: Vec<Incarnation>) -> Result<Vec<Arc<Schedule>>, StoreError> {
    match store.load(incarnations.clone()).await {
        Ok(schedules) => Ok(schedules.into_iter().flatten().collect()),
        Err(StoreError::Damaged(_)) => {
            let mut schedules = Vec::new();
            for incarnation in incarnations {
                match store.load(vec![incarnation]).await {
                    Ok(one) => schedules.extend(one.into_iter().flatten()),
                    // The engine reports the damaged row. The owner defers its due row.
                    Err(StoreError::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(schedules)
        }
        Err(error) => Err(error),
    }
}

/// Returns the newest past timings of a schedule. A schedule that no user has changed has none.
async fn past_timings(store: &dyn Store, schedule: &Schedule) -> Result<Vec<PastTiming>, StoreError> {
    if schedule.revision == Revision(0) {
        return Ok(Vec::new());
    }
    let from = Revision(schedule.revision.0.saturating_sub(PAST_TIMINGS_MAX));
    store.past_timings(schedule.incarnation, from, PAST_TIMINGS_MAX as usize).await
}

/// Returns, for each active schedule, the due row at the position of its next instant, if the row is after `done`.
async fn next_rows(store: &dyn Store, schedules: &[(Arc<Schedule>, Place)]) -> Result<Vec<Vec<DueKey>>, StoreError> {
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
    let pages = store.due(reads).await?;
    for ((index, occurrence), page) in wanted.into_iter().zip(pages) {
        rows[index].extend(page.keys.into_iter().filter(|key| key.occurrence == occurrence));
    }
    Ok(rows)
}
