//! Deletion of old history: first the runs and the past timings of a schedule, then the schedule with its id.
//!
//! The history sweep chooses rows without a lock. This module checks each row again, and keeps a row that has changed
//! since the sweep chose it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use domain::{Incarnation, Occurrence, Revision, RunState, Status, Timestamp};
use store::StoreError;
use stored::{Put, run, schedule};

use super::{Deleted, Machine, is_server_made};
use crate::codec::entry::ForgetItem;
use crate::codec::key;
use crate::codec::listed::Bucket;
use crate::index::{Family, Sequence};
use crate::read::{damaged, take_name};

impl Machine {
    /// Deletes the rows of `item` if they have not changed since the sweep read them. Returns whether it deleted them.
    /// Adds a deleted schedule to `deleted`. The caller removes the schedules in `deleted` from the listings.
    pub(super) fn forget(&self, at: Sequence, item: &ForgetItem, deleted: &mut Deleted) -> Result<bool, StoreError> {
        match item {
            ForgetItem::Tick(now) => {
                let mut value = vec![1];
                value.u64(at.as_u64());
                self.index().put(Family::Points, &key::tick(*now), &value, at);
                Ok(false)
            }
            ForgetItem::DropTick(of) => {
                self.index().remove(Family::Points, &key::tick(*of), at);
                Ok(false)
            }
            ForgetItem::Run { of, seen } => self.forget_run(at, of, Sequence::from_u64(*seen)),
            ForgetItem::Schedule { incarnation, seen, before } => {
                self.forget_schedule(at, *incarnation, Sequence::from_u64(*seen), *before, deleted)
            }
            ForgetItem::PastTiming { of, seen } => self.forget_past_timing(at, *of, Sequence::from_u64(*seen)),
            ForgetItem::Counts { tenant, before } => self.forget_counts(at, *tenant, *before),
        }
    }

    fn forget_run(&self, at: Sequence, of: &Occurrence, seen: Sequence) -> Result<bool, StoreError> {
        let run_key = key::run(of);
        let Some(value) = self.rows.run_value(&run_key, at)? else { return Ok(false) };
        let (tenant, _, state) = run::summary(&value).map_err(|error| self.rows.malformed_run(of, error))?;
        if !RunState::is_final(state) || self.written(&run_key, at)? != Some(seen) {
            return Ok(false);
        }
        let dead_letter = key::dead_letter(tenant, of);
        if self.rows.has_point(&dead_letter, at)? {
            self.index().remove(Family::Points, &dead_letter, at);
        }
        self.unlist_run(at, tenant, of, state)?;
        self.index().remove(Family::Points, &run_key, at);
        self.memory().usages.resize(tenant, Some(value.len()), None);
        Ok(true)
    }

    fn forget_schedule(
        &self,
        at: Sequence,
        incarnation: Incarnation,
        seen: Sequence,
        before: Timestamp,
        deleted: &mut Deleted,
    ) -> Result<bool, StoreError> {
        let state_key = key::state(incarnation);
        if self.written(&state_key, at)? != Some(seen) {
            return Ok(false);
        }
        let Some(known) = self.rows.known(incarnation, at)? else { return Ok(false) };
        let (head, id) =
            schedule::head_and_id(&known.row).map_err(|error| self.rows.malformed(known.changed.row, error))?;
        // The schedule stays until its poller's `done` reaches `before`. An owner that restarts reads the due rows
        // after `done`, and needs the run records to recognise the rows that an owner has already fired.
        let is_done = self.memory().positions(head.poller).done >= before;
        if known.changed.state.status == Status::Active || !is_done || self.has_history(incarnation, at)? {
            return Ok(false);
        }
        if !is_server_made(id, incarnation) {
            let name_key = key::id(head.tenant, id);
            let name = self.index().get(Family::Points, &name_key, at).map_err(damaged)?;
            let named = name.map(|value| take_name(&value)).transpose();
            // If another schedule has taken the id, the row of the id belongs to that schedule and stays.
            if named.map_err(|error| self.rows.malformed(incarnation, error))? == Some(incarnation) {
                self.index().remove(Family::Points, &name_key, at);
            }
        }
        let labels = schedule::labels(&known.row).map_err(|error| self.rows.malformed(known.changed.row, error))?;
        self.write_labels(at, head.tenant, incarnation, &[], &labels);
        deleted.entry(Bucket::of(head.tenant, incarnation)).or_default().insert(incarnation);
        // This method removes the state row last. A reader that finds the state row, but no schedule row, can read the
        // schedule row as of the state row's sequence.
        for number in BTreeSet::from([incarnation, known.changed.row]) {
            if let Some(row) = self.rows.row(number, at)? {
                self.index().remove(Family::Rows, &key::row(number), at);
                self.memory().usages.resize(head.tenant, Some(row.len()), None);
            }
        }
        self.memory().usages.count(head.tenant, Some(known.changed.state.status), None);
        self.index().remove(Family::Points, &state_key, at);
        self.rows.states.forget(incarnation);
        Ok(true)
    }

    /// Returns whether the schedule has a run or a past timing.
    fn has_history(&self, incarnation: Incarnation, at: Sequence) -> Result<bool, StoreError> {
        let mut found = false;
        for (from, to) in [key::run_bounds(incarnation), key::past_timing_bounds(incarnation, Revision(0))] {
            let scan = self.index().scan(Family::Points, &from, &to, at, &mut |_, _| {
                found = true;
                ControlFlow::Break(())
            });
            scan.map_err(damaged)?;
        }
        Ok(found)
    }

    pub(super) fn written(&self, point_key: &[u8], at: Sequence) -> Result<Option<Sequence>, StoreError> {
        self.index().written(point_key, at).map_err(damaged)
    }
}
