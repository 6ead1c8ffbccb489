//! Repair of due rows that the index cannot read, because a block of a table is damaged.
//!
//! A read of due rows skips an unreadable range and reports it ([`crate::damage`]). A separate thread then derives the
//! due rows of the range from the schedules and their runs, and writes them again with journal entries. At last it drops
//! the damaged table. The thread keeps no record of its progress: the table stays until the rows are durable, so a start
//! finds the range again.
//!
//! Invariant: no caller waits for the thread.
//!
//! docs/decisions/0214-rebuild-damaged-due-rows.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::rebuild::Rebuild;
use domain::{DueKey, Incarnation, Occurrence, PollerId, RunState, TenantId};
use journal::Journal;
use store::{ListBy, ListRead, Order, StoreError};
use tokio::sync::oneshot;

use crate::apply::Response;
use crate::background::{Shared, Ticket};
use crate::codec::entry::{Builder, Kind};
use crate::codec::key;
use crate::index::{Sequence, Unreadable};
use crate::memory::Memory;
use crate::read::{Rows, damaged, hex};

/// Number of schedules or runs that the repair reads at once.
const PAGE: usize = 256;
/// Number of derived rows that the repair compares with the readable rows at once. A derived row takes about 100 bytes.
const DERIVED_MAX: usize = 1 << 16;
/// Maximum number of rows in one journal entry. Other entries wait while the applying task applies such an entry.
const WRITTEN_AT_ONCE: usize = 128;
/// Longest time by which an owner puts off the row of a key whose target is slow.
const PUT_OFF_MAX: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(10);

/// Repairs the reported ranges until the store is closed.
pub(crate) async fn run(shared: Arc<Shared>, memory: Arc<Mutex<Memory>>, rows: Rows, journal: Journal<Ticket>) {
    let repair = Repair { shared: &shared, memory: &memory, rows: &rows, journal: &journal };
    loop {
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => return,
            () = shared.damage.wanted() => {}
        }
        while let Err(error) = repair.all().await {
            if shared.closed.is_cancelled() {
                return;
            }
            tracing::error!(%error, "repair of damaged due rows failed; retrying");
            if shared.runtime.timeout(RETRY, shared.closed.cancelled()).await.is_some() {
                return;
            }
        }
    }
}

struct Repair<'a> {
    shared: &'a Shared,
    memory: &'a Mutex<Memory>,
    rows: &'a Rows,
    journal: &'a Journal<Ticket>,
}

/// Result of the repair of one range.
#[derive(Default)]
struct Repaired {
    derived: BTreeMap<(PollerId, Occurrence), DueKey>,
    written: u64,
    /// Number of schedules that cannot be read.
    unreadable: u64,
}

impl Repair<'_> {
    async fn all(&self) -> Result<(), StoreError> {
        let damage = &self.shared.damage;
        let reported = damage.open();
        damage.confirm(&reported, self.rows.index.unreadable_due().map_err(damaged)?);
        for range in damage.confirmed() {
            let Repaired { written, unreadable, .. } = self.rebuild(&range).await?;
            damage.close(&range, written, unreadable);
            let (from, to) = (hex(&range.from), hex(&range.to));
            tracing::warn!(from, to, rows = written, unreadable_schedules = unreadable, "damaged due rows repaired");
        }
        let _alone = self.shared.maintenance.write().await;
        self.rows.index.drop_unreadable_due(&|range| damage.is_rebuilt(range)).map_err(damaged)?;
        damage.forget_rebuilt();
        self.shared.update_pressure();
        Ok(())
    }

    /// Writes the due rows of `range` that the schedules and their runs require.
    async fn rebuild(&self, range: &Unreadable) -> Result<Repaired, StoreError> {
        let mut repaired = Repaired::default();
        let ids = key::due_tenant(&range.from)..=key::due_tenant(&range.to);
        let tenants = self.memory().usages.tenants(ids);
        for tenant in tenants {
            self.rebuild_tenant(tenant, range, &mut repaired).await?;
        }
        self.write(&mut repaired).await?;
        Ok(repaired)
    }

    async fn rebuild_tenant(
        &self,
        tenant: TenantId,
        range: &Unreadable,
        repaired: &mut Repaired,
    ) -> Result<(), StoreError> {
        let mut read = ListRead { tenant, by: ListBy::All, order: Order::Oldest, after: None, limit: PAGE };
        loop {
            if self.shared.closed.is_cancelled() {
                return Err(StoreError::Unavailable("the store is closed".to_owned()));
            }
            let page = self.rows.list(&read)?;
            for incarnation in page.incarnations {
                match self.derive(incarnation, range, repaired) {
                    Ok(()) => {}
                    Err(StoreError::Damaged(_)) => repaired.unreadable += 1,
                    Err(error) => return Err(error),
                }
            }
            if repaired.derived.len() >= DERIVED_MAX {
                self.write(repaired).await?;
            }
            match page.next {
                Some(next) => read.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Adds the due rows that the schedule can have in the range.
    fn derive(&self, incarnation: Incarnation, range: &Unreadable, repaired: &mut Repaired) -> Result<(), StoreError> {
        let Some(known) = self.rows.known(incarnation, Sequence::LATEST)? else { return Ok(()) };
        let schedule = self.rows.decode(&known)?;
        let poller = schedule.poller;
        let Some((first, last)) = key::due_positions(poller, &range.from, &range.to) else { return Ok(()) };
        let from = first.max(self.memory().positions(poller).done + Duration::from_millis(1));
        if from > last {
            return Ok(());
        }
        let mut rebuild = Rebuild::new(&schedule, from, last, self.shared.runtime.now());
        let mut after = None;
        loop {
            let runs = self.rows.runs(incarnation, after, PAGE)?;
            for run in &runs {
                let is_redriven = run.state == RunState::Failed && self.is_redriven(run.tenant, run.occurrence)?;
                rebuild.add_run(run, is_redriven);
            }
            after = runs.last().map(|run| run.occurrence);
            if runs.len() < PAGE {
                break;
            }
        }
        repaired.derived.extend(rebuild.finish().into_iter().map(|due| ((poller, due.occurrence), due)));
        Ok(())
    }

    /// Returns true if a user redrove this failed run and the new run has no record yet.
    fn is_redriven(&self, tenant: TenantId, of: Occurrence) -> Result<bool, StoreError> {
        let Some(replay) = of.replay.checked_add(1) else { return Ok(false) };
        let next = key::run(&Occurrence { replay, ..of });
        let is_dead_letter = self.rows.has_point(&key::dead_letter(tenant, &of), Sequence::LATEST)?;
        Ok(!is_dead_letter && !self.rows.has_point(&next, Sequence::LATEST)?)
    }

    /// Writes the derived rows that have no readable row, and waits until they are durable. A readable row at a much later
    /// position does not replace a derived row: an owner wrote it while its clock was ahead, and set it back later.
    async fn write(&self, repaired: &mut Repaired) -> Result<(), StoreError> {
        let mut derived = std::mem::take(&mut repaired.derived);
        let now = self.shared.runtime.now();
        let pollers: Vec<PollerId> = derived.keys().map(|(poller, _)| *poller).collect();
        for poller in pollers.chunk_by(|a, b| a == b).map(|same| same[0]) {
            let done = self.memory().positions(poller).done;
            let mut skipped = Vec::new();
            self.rows.walk_due(&key::due_after(poller, done), &key::due_end(poller), &mut skipped, |row| {
                let same = (poller, row.occurrence);
                let is_written =
                    |due: &DueKey| due.attempt <= row.attempt && row.position <= due.position.max(now) + PUT_OFF_MAX;
                if derived.get(&same).is_some_and(is_written) {
                    derived.remove(&same);
                }
                ControlFlow::Continue(())
            })?;
            self.shared.damage.report(skipped);
        }
        let derived: Vec<_> = derived.into_iter().collect();
        for part in derived.chunks(WRITTEN_AT_ONCE) {
            let mut entries = Builder::new(Kind::Rebuild, self.shared.options.entry_bytes);
            part.iter().for_each(|((poller, _), due)| entries.place(*poller, due));
            for entry in entries.finish() {
                repaired.written += self.submit(entry).await?;
            }
        }
        Ok(())
    }

    /// Appends a journal entry and waits for its result. Returns the number of rows that the entry wrote.
    async fn submit(&self, entry: Vec<u8>) -> Result<u64, StoreError> {
        let (ticket, receiver) = oneshot::channel();
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        self.journal.append(entry.into(), ticket).await.map_err(|error| self.shared.append_error(&error))?;
        match receiver.await.map_err(|_| closed())?? {
            Response::Rebuilt(rebuilt) => Ok(rebuilt.into_iter().filter(|is_written| *is_written).count() as u64),
            other => unreachable!("the response must have the kind of its journal entry, but it is {other:?}"),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of this lock panics")
    }
}
