//! Rows that list runs by time: their writes with the outcomes, and their build in a store of an earlier build.

use std::ops::ControlFlow;
use std::sync::atomic;

use bytes::Bytes;
use domain::{Occurrence, RunOutline, RunState, TenantId};
use store::StoreError;
use stored::run;

use super::Machine;
use crate::codec::key;
use crate::codec::timed::{self, Class, Progress};
use crate::index::{Family, Sequence};
use crate::read::{damaged, just_after};

impl Machine {
    /// Writes the row that lists a run. `is_retry` is true if the run had a record before.
    pub(crate) fn list_run(
        &self,
        at: Sequence,
        tenant: TenantId,
        of: &Occurrence,
        outline: &RunOutline,
        is_retry: bool,
    ) {
        let class = if is_retry { Class::Unusual } else { Class::of_first(outline) };
        self.index().put(Family::Points, &class.key(tenant, of), &timed::encode(outline), at);
    }

    /// Removes the row that lists a run with this final state.
    pub(crate) fn unlist_run(
        &self,
        at: Sequence,
        tenant: TenantId,
        of: &Occurrence,
        state: RunState,
    ) -> Result<(), StoreError> {
        let unusual = Class::Unusual.key(tenant, of);
        // The class depends on the first record of the run, and the state is that of the last record.
        let class = match state {
            RunState::Succeeded if !self.rows.has_point(&unusual, at)? => Class::Plain,
            RunState::Missed { .. } if !self.rows.has_point(&unusual, at)? => Class::Missed,
            _ => Class::Unusual,
        };
        self.index().remove(Family::Points, &class.key(tenant, of), at);
        Ok(())
    }

    /// Writes the rows of up to `count` runs that an earlier build stored. Damage is no error: no replay must fail
    /// because of a run that no caller needs.
    pub(crate) fn index_runs(&self, at: Sequence, count: usize) -> Result<IndexStep, StoreError> {
        match self.try_index_runs(at, count) {
            Err(StoreError::Damaged(reason)) => {
                tracing::error!(reason, "index of runs could not be extended because stored data is damaged");
                Ok(IndexStep::Damaged)
            }
            step => step,
        }
    }

    /// Makes no change if it returns an error.
    fn try_index_runs(&self, at: Sequence, count: usize) -> Result<IndexStep, StoreError> {
        let mut from = match self.rows.run_index_progress(at)? {
            Some(Progress::Complete) => return Ok(IndexStep::Complete { runs: 0 }),
            Some(Progress::UpTo(key)) => just_after(&key),
            None => vec![key::RUN],
        };
        let mut stored = Vec::new();
        let mut collect = |key: &[u8], value: &Bytes| {
            stored.push((key.to_vec(), value.clone()));
            if stored.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.index().scan(Family::Points, &from, &[key::RUN + 1], at, &mut collect).map_err(damaged)?;
        let mut listed = Vec::new();
        for (key, value) in &stored {
            let decoded = run::summary(value).and_then(|(tenant, of, _)| Ok((tenant, of, run::outline(value)?)));
            let (tenant, of, outline) = match decoded {
                Ok(decoded) => decoded,
                Err(error) => {
                    let error = self.rows.malformed_point(key, error);
                    tracing::error!(%error, "run omitted from the index of runs because it is damaged");
                    continue;
                }
            };
            // This build may have stored a further record of the run. The row is then in the index, with the class of
            // retried runs.
            if !self.rows.has_point(&Class::Unusual.key(tenant, &of), at)? {
                listed.push((tenant, of, outline));
            }
        }
        listed.iter().for_each(|(tenant, of, outline)| self.list_run(at, *tenant, of, outline, false));
        let runs = stored.len();
        if let Some((last, _)) = stored.pop() {
            from = last;
        }
        let is_complete = runs < count;
        let progress = if is_complete { Progress::Complete } else { Progress::UpTo(from) };
        self.index().put(Family::Points, &Progress::KEY, &progress.encode(), at);
        if is_complete {
            self.rows.are_runs_listed.store(true, atomic::Ordering::Release);
        }
        Ok(if is_complete { IndexStep::Complete { runs } } else { IndexStep::Incomplete { runs } })
    }
}

/// Result of a journal entry that indexes runs of an earlier build. `runs` is the number of runs that it read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IndexStep {
    /// More runs may have no row.
    Incomplete {
        runs: usize,
    },
    Complete {
        runs: usize,
    },
    /// The entry had no effect, because a part of the index is damaged.
    Damaged,
}
