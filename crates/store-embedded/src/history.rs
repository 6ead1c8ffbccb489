//! Forgetting what was over for long: looking for it, on a thread of its own, and asking for it by entries of the journal.
//!
//! Rows carry no time of their end, but the sequence that they were written at. So the clock is noted now and then, with the
//! sequence of the note: what was written before the note of a month ago, and is over, has been so for a month. A schedule is
//! forgotten when it is over and has no run left; a run when it is final, whether or not its schedule goes on.
//!
//! Always true here: what is younger than [`Options::history`] by this machine's clock stays; what has changed since it was looked at
//! stays, too; nobody waits for any of it.

use std::sync::{Arc, Mutex};

use domain::{Incarnation, Occurrence, RunState, Status, Timestamp};
use journal::Journal;
use store::StoreError;
use stored::schedule;
use stored::{Malformed, Take, run};
use tokio::sync::oneshot;

use crate::apply::Answer;
use crate::codec::changed::Changed;
use crate::codec::entry::{Builder, ForgetItem, Kind};
use crate::codec::key;
use crate::index::{Family, Index, Sequence};
use crate::keep::{Shared, Ticket};
use crate::memory::Memory;
use crate::read::{Rows, damaged, just_after};

/// Schedules that are looked at in one step, and runs of one schedule.
const PAGE: usize = 256;
/// What one entry forgets at most: the thread that applies it does nothing else meanwhile.
const FORGOTTEN_AT_ONCE: usize = 128;

/// Notes the clock and forgets, once a period, until the store is closed.
pub(crate) async fn forget(shared: Arc<Shared>, memory: Arc<Mutex<Memory>>, rows: Rows, journal: Journal<Ticket>) {
    let period = shared.options.history_period;
    while shared.runtime.timeout(period, shared.closed.cancelled()).await.is_none() {
        let historian = Historian { shared: &shared, memory: &memory, rows: &rows, journal: &journal };
        match historian.turn().await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "runs and schedules that were over for long were forgotten"),
            Err(error) if shared.closed.is_cancelled() => tracing::debug!(%error, "forgetting ends with the store"),
            Err(error) => tracing::warn!(%error, "history could not be forgotten; it is tried again"),
        }
    }
}

struct Historian<'a> {
    shared: &'a Shared,
    memory: &'a Mutex<Memory>,
    rows: &'a Rows,
    journal: &'a Journal<Ticket>,
}

/// When the clock was noted, and at which sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tick {
    at: Timestamp,
    sequence: Sequence,
}

impl Historian<'_> {
    /// How much was forgotten.
    async fn turn(&self) -> Result<u64, StoreError> {
        let now = self.shared.runtime.now();
        let mut ticks = self.ticks()?;
        let is_old = |tick: &Tick| tick.at + self.shared.options.history <= now;
        let old: Vec<Tick> = ticks.extract_if(.., |tick| is_old(tick)).collect();
        let horizon = old.last().copied();
        // The newest of the old ones is needed until the next is as old.
        let needless = old.iter().rev().skip(1).map(|tick| ForgetItem::DropTick(tick.at));
        self.submit(needless.chain([ForgetItem::Tick(now)]).collect()).await?;
        match horizon {
            Some(horizon) => self.sweep(horizon).await,
            None => Ok(0),
        }
    }

    /// All notes, the oldest first.
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

    /// Looks at all schedules that were made before the horizon and have changed since they were made.
    async fn sweep(&self, horizon: Tick) -> Result<u64, StoreError> {
        let (first, end) = key::STATES;
        let mut from = first.to_vec();
        let mut forgotten = 0;
        while !self.shared.closed.is_cancelled() {
            let mut page: Vec<(Incarnation, Changed)> = Vec::with_capacity(PAGE);
            self.rows.collect(Family::Points, &from, &end, PAGE, |state_key, value| {
                page.push((key::parse_state(state_key)?, Changed::decode(value)?));
                Ok(())
            })?;
            let Some((last, _)) = page.last().copied() else { break };
            from = just_after(&key::state(last));
            let is_old = |incarnation: Incarnation| incarnation < Incarnation::new(horizon.at, 0);
            let mut items = Vec::new();
            for (incarnation, changed) in page.iter().filter(|(incarnation, _)| is_old(*incarnation)) {
                forgotten += self.look_at(*incarnation, changed, horizon, &mut items).await?;
            }
            forgotten += self.submit(items).await?;
            if !is_old(last) {
                break;
            }
        }
        Ok(forgotten)
    }

    /// Adds to `items` what may go of a schedule: some of its runs, and it itself if that is all. How much of it went already.
    async fn look_at(
        &self,
        incarnation: Incarnation,
        changed: &Changed,
        horizon: Tick,
        items: &mut Vec<ForgetItem>,
    ) -> Result<u64, StoreError> {
        let (mut after, mut stays, mut forgotten) = (None, false, 0);
        let mut is_done = None;
        loop {
            let runs = self.runs(incarnation, after)?;
            after = runs.last().map(|(of, _)| *of);
            let is_last = runs.len() < PAGE;
            for (of, state) in runs {
                match self.written(&key::run(&of))? {
                    Some(seen) if seen < horizon.sequence && RunState::is_final(state) => {
                        // Looked at once something may go: it reads the schedule's row.
                        let is_done = match is_done {
                            Some(is_done) => is_done,
                            None => *is_done.insert(self.is_done(incarnation, horizon)?),
                        };
                        if !is_done {
                            return Ok(forgotten);
                        }
                        items.push(ForgetItem::Run { of, seen: seen.as_u64() });
                    }
                    _ => stays = true,
                }
            }
            if is_last {
                break;
            }
            forgotten += self.submit(std::mem::take(items)).await?;
        }
        if !stays && changed.state.status != Status::Active {
            let seen = self.written(&key::state(incarnation))?.filter(|seen| *seen < horizon.sequence);
            let before = horizon.at;
            items.extend(seen.map(|seen| ForgetItem::Schedule { incarnation, seen: seen.as_u64(), before }));
        }
        Ok(forgotten)
    }

    /// Whether its poller is done with all that was due before the horizon: an owner that starts again reads from there on, and asks the
    /// records whether a row was fired.
    fn is_done(&self, incarnation: Incarnation, horizon: Tick) -> Result<bool, StoreError> {
        let Some(known) = self.rows.known(incarnation, Sequence::LATEST)? else { return Ok(false) };
        let head = schedule::head(&known.row).map_err(|error| self.rows.malformed(incarnation, error))?;
        Ok(self.memory.lock().expect("no holder of this lock panics").positions(head.poller).done >= horizon.at)
    }

    /// A schedule's runs after this one, some at a time.
    fn runs(
        &self,
        incarnation: Incarnation,
        after: Option<Occurrence>,
    ) -> Result<Vec<(Occurrence, RunState)>, StoreError> {
        let (mut from, to) = key::run_bounds(incarnation);
        if let Some(after) = after {
            from = just_after(&key::run(&after));
        }
        let mut runs = Vec::new();
        self.rows.collect(Family::Points, &from, &to, PAGE, |_, value| {
            let (_, of, state) = run::summary(value)?;
            runs.push((of, state));
            Ok::<(), Malformed>(())
        })?;
        Ok(runs)
    }

    fn written(&self, point_key: &[u8]) -> Result<Option<Sequence>, StoreError> {
        let index: &dyn Index = &*self.rows.index;
        index.written(point_key, Sequence::LATEST).map_err(damaged)
    }

    /// How many went.
    async fn submit(&self, items: Vec<ForgetItem>) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        let entries = items.chunks(FORGOTTEN_AT_ONCE).flat_map(|items| {
            let mut entries = Builder::new(Kind::Forget, self.shared.options.entry_bytes);
            items.iter().for_each(|item| entries.forget(item));
            entries.finish()
        });
        for entry in entries {
            let (ticket, answer) = oneshot::channel();
            let closed = || StoreError::Unavailable("the store is closed".to_owned());
            self.journal.append(entry.into(), ticket).await.map_err(|error| self.shared.refused(&error))?;
            if let Answer::Forgotten(went) = answer.await.map_err(|_| closed())?? {
                forgotten += went.into_iter().filter(|went| *went).count() as u64;
            }
        }
        Ok(forgotten)
    }
}
