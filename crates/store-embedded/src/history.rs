//! Deletion of old history. A separate thread, the history sweep, searches for old rows and appends journal entries
//! that delete them.
//!
//! Rows do not record when a run or schedule ended, but they record the sequence of their last write. The sweep
//! therefore records the time of the clock periodically, with the sequence of the record. If a row's last write is
//! before a clock record of a month ago, the row has not changed for a month. The sweep deletes an ended or cancelled
//! schedule if the schedule has no runs. It deletes a run with a final outcome, even if its schedule is still active.
//!
//! Invariants: the sweep keeps rows that are younger than the retention of their tenant by this machine's clock, which
//! is [`Options::history`] for a tenant without a class. It keeps rows that changed after it read them. No caller waits
//! for the sweep.
//!
//! docs/decisions/0045-delete-history-by-journal-sequence.md and
//! docs/decisions/0243-retain-runs-by-the-class-of-their-tenant.md give the reasons for the design.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Facet, Hour, Incarnation, Occurrence, Retention, Revision, RunState, Status, TenantId, Timestamp};
use journal::Journal;
use store::StoreError;
use stored::schedule;
use stored::{Malformed, Take, run};
use tokio::sync::oneshot;

use crate::apply::Response;
use crate::background::{Shared, Ticket};
use crate::codec::changed::Changed;
use crate::codec::entry::{Builder, ForgetItem, Kind};
use crate::codec::{counted, key};
use crate::index::{Family, Index, Sequence};
use crate::memory::Memory;
use crate::read::{Rows, damaged, just_after};

/// Number of schedules that the sweep reads at once. It is also the number of runs of one schedule that the sweep reads
/// at once.
const PAGE: usize = 256;
/// Maximum number of rows that one journal entry deletes. Other entries wait while the applying task applies such an
/// entry.
const DELETED_AT_ONCE: usize = 128;

/// Records the time and deletes old history in each period, until the store is closed.
pub(crate) async fn forget(shared: Arc<Shared>, memory: Arc<Mutex<Memory>>, rows: Rows, journal: Journal<Ticket>) {
    let period = shared.options.history_period;
    while shared.runtime.timeout(period, shared.closed.cancelled()).await.is_none() {
        let sweeper = Sweeper { shared: &shared, memory: &memory, rows: &rows, journal: &journal };
        match sweeper.turn().await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "old runs and schedules deleted"),
            Err(error) if shared.closed.is_cancelled() => {
                tracing::debug!(%error, "history sweep ended because the store was closed")
            }
            Err(error) => tracing::warn!(%error, "history sweep failed; retrying in the next period"),
        }
    }
}

struct Sweeper<'a> {
    shared: &'a Shared,
    memory: &'a Mutex<Memory>,
    rows: &'a Rows,
    journal: &'a Journal<Ticket>,
}

/// Clock record: the time of the clock, and the sequence of the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tick {
    at: Timestamp,
    sequence: Sequence,
}

/// Limits of the rows that one sweep may delete: a clock record for each tenant, or `None` if no record is old enough.
#[derive(PartialEq, Eq, Debug)]
struct Horizons {
    /// Limit of the tenants that `by_tenant` lacks.
    default: Option<Tick>,
    /// Limits of the tenants whose limit differs from `default`.
    by_tenant: BTreeMap<TenantId, Option<Tick>>,
}

impl Horizons {
    fn of(&self, tenant: TenantId) -> Option<Tick> {
        *self.by_tenant.get(&tenant).unwrap_or(&self.default)
    }

    /// Returns the latest limit of a tenant.
    fn latest(&self) -> Option<Tick> {
        self.by_tenant.values().chain([&self.default]).copied().flatten().max_by_key(|tick| tick.at)
    }

    /// Returns the limit that all tenants have. `None` if the tenants have different limits.
    fn common(&self) -> Option<Tick> {
        self.default.filter(|_| self.by_tenant.is_empty())
    }
}

/// Returns the newest clock record that is at least as old as `time`. The records are in the order of their times.
fn horizon(ticks: &[Tick], now: Timestamp, time: Duration) -> Option<Tick> {
    ticks.iter().rev().find(|tick| tick.at + time <= now).copied()
}

/// Returns the clock record for each time for which a tenant may retain its history.
fn horizon_by_time(ticks: &[Tick], now: Timestamp, history: Duration) -> BTreeMap<Duration, Option<Tick>> {
    let times = Retention::ALL.map(Retention::time).into_iter().chain([history]);
    times.map(|time| (time, horizon(ticks, now, time))).collect()
}

/// Selects the clock records that no sweep needs. A sweep needs the newest record that is older than the longest
/// retention. It needs the later records, because a tenant can choose another class. Of the records that are older than
/// `history`, one per hour suffices.
fn unneeded(ticks: &[Tick], now: Timestamp, history: Duration) -> Vec<Tick> {
    const SPACING: Duration = Duration::from_secs(3_600);
    let oldest = horizon(ticks, now, history.max(Retention::LONGEST)).map_or(Timestamp::MIN, |tick| tick.at);
    let newest = horizon(ticks, now, history).map_or(Timestamp::MIN, |tick| tick.at);
    let mut kept: Option<Tick> = None;
    let mut is_unneeded = |tick: &&Tick| {
        let is_between = tick.at < newest && kept.is_some_and(|kept| tick.at < kept.at + SPACING);
        if tick.at < oldest || is_between {
            return true;
        }
        kept = Some(**tick);
        false
    };
    ticks.iter().filter(|tick| is_unneeded(tick)).copied().collect()
}

impl Sweeper<'_> {
    /// Makes one sweep through all schedules. Returns the number of deleted rows.
    async fn turn(&self) -> Result<u64, StoreError> {
        let now = self.shared.runtime.now();
        let ticks = self.ticks()?;
        let by_time = horizon_by_time(&ticks, now, self.shared.options.history);
        let unneeded = unneeded(&ticks, now, self.shared.options.history);
        let unneeded = unneeded.into_iter().map(|tick| ForgetItem::DropTick(tick.at));
        self.submit(unneeded.chain([ForgetItem::Tick(now)]).collect()).await?;
        Ok(self.sweep(&by_time).await? + self.sweep_counts(&by_time).await?)
    }

    /// Deletes the counts of the hours that end before the limits of their tenants. Returns the number of items that
    /// deleted rows.
    async fn sweep_counts(&self, by_time: &BTreeMap<Duration, Option<Tick>>) -> Result<u64, StoreError> {
        let all = TenantId(0)..=TenantId(u32::MAX);
        let tenants = self.memory.lock().expect("no holder of this lock panics").usages.tenants(all);
        let horizons = self.horizons(by_time);
        let mut deleted = 0;
        for tenant in tenants {
            let Some(limit) = horizons.of(tenant) else { continue };
            let before = Hour::of(limit.at);
            while !self.shared.closed.is_cancelled() && self.has_counts_before(tenant, before)? {
                deleted += self.submit(vec![ForgetItem::Counts { tenant, before }]).await?;
            }
        }
        Ok(deleted)
    }

    fn has_counts_before(&self, tenant: TenantId, before: Hour) -> Result<bool, StoreError> {
        let mut is_found = {
            let counted = &self.memory.lock().expect("no holder of this lock panics").counted;
            Facet::ALL.iter().any(|facet| !counted.keys_before(tenant, *facet, before, 1).is_empty())
        };
        for facet in Facet::ALL {
            let [from, to] = [Hour(i64::MIN), before].map(|hour| counted::key(tenant, facet, hour));
            self.rows.collect(Family::Points, &from, &to, 1, |_, _| {
                is_found = true;
                Ok::<(), Malformed>(())
            })?;
        }
        Ok(is_found)
    }

    /// Returns the limits of the tenants by their present classes. `by_time` has the clock record for each class.
    fn horizons(&self, by_time: &BTreeMap<Duration, Option<Tick>>) -> Horizons {
        let history = self.shared.options.history;
        let of = |time: Duration| by_time.get(&time).copied().flatten();
        let default = of(history);
        let memory = self.memory.lock().expect("no holder of this lock panics");
        let by_tenant = memory.tenants.values().map(|it| (it.id, of(it.retention(history))));
        Horizons { default, by_tenant: by_tenant.filter(|(_, horizon)| *horizon != default).collect() }
    }

    /// Returns all clock records, the oldest first.
    fn ticks(&self) -> Result<Vec<Tick>, StoreError> {
        let mut ticks = Vec::new();
        self.rows.collect(Family::Points, &[key::TICK], &[key::TICK + 1], usize::MAX, |tick_key, value| {
            let mut take = Take::new("a tick", value);
            take.version(1)?;
            ticks.push(Tick { at: key::parse_tick(tick_key)?, sequence: Sequence::from_u64(take.u64()?) });
            take.end()
        })?;
        Ok(ticks)
    }

    /// Examines all schedules that were created before the latest limit of a tenant and have changed since their
    /// creation. Reads the classes of the tenants before each page, so that a tenant that chooses a longer class keeps
    /// the rows that this sweep has not reached.
    async fn sweep(&self, by_time: &BTreeMap<Duration, Option<Tick>>) -> Result<u64, StoreError> {
        let (first, end) = key::STATES;
        let mut from = first.to_vec();
        let mut deleted = 0;
        while !self.shared.closed.is_cancelled() {
            let horizons = self.horizons(by_time);
            let Some(latest) = horizons.latest() else { break };
            let mut page: Vec<(Incarnation, Changed)> = Vec::with_capacity(PAGE);
            self.rows.collect(Family::Points, &from, &end, PAGE, |state_key, value| {
                page.push((key::parse_state(state_key)?, Changed::decode(value)?));
                Ok(())
            })?;
            let Some((last, _)) = page.last().copied() else { break };
            from = just_after(&key::state(last));
            let is_old = |incarnation: Incarnation| incarnation < Incarnation::new(latest.at, 0);
            let mut items = Vec::new();
            for (incarnation, changed) in page.iter().filter(|(incarnation, _)| is_old(*incarnation)) {
                deleted += self.examine(*incarnation, changed, &horizons, &mut items).await?;
            }
            deleted += self.submit(items).await?;
            if !is_old(last) {
                break;
            }
        }
        Ok(deleted)
    }

    /// Examines one schedule. Adds to `items` the rows that the sweep may delete: the schedule's old runs, and the
    /// schedule itself if no run remains. Returns the number of rows that this call has already deleted.
    async fn examine(
        &self,
        incarnation: Incarnation,
        changed: &Changed,
        horizons: &Horizons,
        items: &mut Vec<ForgetItem>,
    ) -> Result<u64, StoreError> {
        let (mut after, mut keeps_runs, mut deleted) = (None, false, 0);
        let (mut is_done, mut horizon) = (None, horizons.common());
        // No row of a schedule is older than the schedule.
        let is_young = |limit: Tick| incarnation >= Incarnation::new(limit.at, 0);
        loop {
            // The first run names the tenant. Most schedules of a tenant with a longer class need no other read.
            let limit = if horizon.is_none() { 1 } else { PAGE };
            let runs = self.runs(incarnation, after, limit)?;
            after = runs.last().map(|(_, of, _)| *of);
            let (is_last, is_long) = (runs.len() < limit, limit == PAGE);
            for (tenant, of, state) in runs {
                let Some(limit) = horizons.of(tenant) else { return Ok(deleted) };
                if is_young(limit) {
                    return Ok(deleted);
                }
                horizon = Some(limit);
                match self.written(&key::run(&of))? {
                    Some(seen) if seen < limit.sequence && RunState::is_final(state) => {
                        // The sweep computes `is_done` only when it may delete a run, because the computation reads the
                        // schedule's row.
                        let is_done = match is_done {
                            Some(is_done) => is_done,
                            None => *is_done.insert(self.is_done(incarnation, limit)?),
                        };
                        if !is_done {
                            return Ok(deleted);
                        }
                        items.push(ForgetItem::Run { of, seen: seen.as_u64() });
                    }
                    _ => keeps_runs = true,
                }
            }
            if is_last {
                break;
            }
            if is_long {
                deleted += self.submit(std::mem::take(items)).await?;
            }
        }
        // A schedule without runs names its tenant only in its row.
        let horizon = match horizon {
            Some(horizon) => Some(horizon),
            None => self.tenant(incarnation)?.and_then(|tenant| horizons.of(tenant)),
        };
        let Some(horizon) = horizon.filter(|horizon| !is_young(*horizon)) else { return Ok(deleted) };
        deleted += self.examine_timings(incarnation, horizon, items, &mut keeps_runs).await?;
        if !keeps_runs && changed.state.status != Status::Active {
            let seen = self.written(&key::state(incarnation))?.filter(|seen| *seen < horizon.sequence);
            let before = horizon.at;
            items.extend(seen.map(|seen| ForgetItem::Schedule { incarnation, seen: seen.as_u64(), before }));
        }
        Ok(deleted)
    }

    /// Adds the schedule's old past timings to `items`. Sets `keeps_any` if a past timing remains. Returns the number
    /// of rows that this call has already deleted.
    async fn examine_timings(
        &self,
        incarnation: Incarnation,
        horizon: Tick,
        items: &mut Vec<ForgetItem>,
        keeps_any: &mut bool,
    ) -> Result<u64, StoreError> {
        let (mut from, to) = key::past_timing_bounds(incarnation, Revision(0));
        let mut deleted = 0;
        loop {
            let mut page = Vec::new();
            self.rows.collect(Family::Points, &from, &to, PAGE, |timing_key, _| {
                page.push(key::parse_past_timing(timing_key)?);
                Ok::<(), Malformed>(())
            })?;
            for of in page.iter().copied() {
                match self.written(&key::past_timing(of))? {
                    Some(seen) if seen < horizon.sequence => {
                        items.push(ForgetItem::PastTiming { of, seen: seen.as_u64() });
                    }
                    _ => *keeps_any = true,
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => from = just_after(&key::past_timing(*last)),
                _ => return Ok(deleted),
            }
            deleted += self.submit(std::mem::take(items)).await?;
        }
    }

    fn tenant(&self, incarnation: Incarnation) -> Result<Option<TenantId>, StoreError> {
        let Some(known) = self.rows.known(incarnation, Sequence::LATEST)? else { return Ok(None) };
        let head = schedule::head(&known.row).map_err(|error| self.rows.malformed(incarnation, error))?;
        Ok(Some(head.tenant))
    }

    /// Returns whether `done` of the schedule's poller is at or after the time of the clock record `horizon`. If `done`
    /// is earlier, the sweep keeps the run records. An owner that restarts reads the due rows after `done`, and needs
    /// the records to recognise the rows that an owner has already fired.
    fn is_done(&self, incarnation: Incarnation, horizon: Tick) -> Result<bool, StoreError> {
        let Some(known) = self.rows.known(incarnation, Sequence::LATEST)? else { return Ok(false) };
        let head = schedule::head(&known.row).map_err(|error| self.rows.malformed(incarnation, error))?;
        Ok(self.memory.lock().expect("no holder of this lock panics").positions(head.poller).done >= horizon.at)
    }

    /// Returns the next page of a schedule's runs, after the occurrence `after`: at most `limit` runs.
    fn runs(
        &self,
        incarnation: Incarnation,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<(TenantId, Occurrence, RunState)>, StoreError> {
        let (mut from, to) = key::run_bounds(incarnation);
        if let Some(after) = after {
            from = just_after(&key::run(&after));
        }
        let mut runs = Vec::new();
        self.rows.collect(Family::Points, &from, &to, limit, |_, value| {
            runs.push(run::summary(value)?);
            Ok::<(), Malformed>(())
        })?;
        Ok(runs)
    }

    fn written(&self, point_key: &[u8]) -> Result<Option<Sequence>, StoreError> {
        let index: &dyn Index = &*self.rows.index;
        index.written(point_key, Sequence::LATEST).map_err(damaged)
    }

    /// Appends journal entries for the deletions and waits for their results. Returns the number of deleted rows.
    async fn submit(&self, items: Vec<ForgetItem>) -> Result<u64, StoreError> {
        let mut deleted = 0;
        let entries = items.chunks(DELETED_AT_ONCE).flat_map(|items| {
            let mut entries = Builder::new(Kind::Forget, self.shared.options.entry_bytes);
            items.iter().for_each(|item| entries.forget(item));
            entries.finish()
        });
        for entry in entries {
            let (ticket, receiver) = oneshot::channel();
            let closed = || StoreError::Unavailable("the store is closed".to_owned());
            self.journal.append(entry.into(), ticket).await.map_err(|error| self.shared.append_error(&error))?;
            if let Response::Forgotten(results) = receiver.await.map_err(|_| closed())?? {
                deleted += results.into_iter().filter(|is_deleted| *is_deleted).count() as u64;
            }
        }
        Ok(deleted)
    }
}
