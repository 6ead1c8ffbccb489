//! Start of the keys that the dispatch queue selects.
//!
//! docs/decisions/0246-queue-starts-before-the-processors.md gives the reasons for the limit of starts.

use runtime::Monotonic;

use crate::firing::dispatch::Now;
use crate::firing::governor::governed;
use crate::firing::owner::{ATTEMPT_WAIT, Owner};
use crate::firing::run_executor::{Starting, start};
use crate::firing::window::{EntryId, MayStart};

/// Largest number of keys whose attempts run in one task.
const STARTS_PER_TASK: usize = 32;
/// Largest number of keys whose attempts run in one task, while several tenants share the processors. A long poll of a
/// task delays the sockets and all other tasks of its thread.
const STARTS_PER_SHARED_TASK: usize = 8;

impl Owner {
    /// Starts the keys that the dispatch queue selects, as many as the governor admits.
    pub(super) fn start_selected(&mut self, now: Now) {
        let mut batch = Vec::new();
        let is_held = loop {
            let is_shared = self.dispatch.is_shared(now.monotonic);
            if self.dispatch.may_start() && !self.may_release(batch.len(), now.monotonic) {
                // A wait that is over must not wake the owner again.
                self.dispatch.end_waits(now.monotonic);
                break true;
            }
            let Some(entry) = self.dispatch.pop(now) else { break false };
            let lane = self.lane(entry);
            match self.window.may_start(entry) {
                MayStart::Yes => {}
                MayStart::Superseded => {
                    self.dispatch.ended(lane, now, None);
                    self.dispatch.resolved(lane.0);
                    self.context.metrics.dropped.inc();
                    self.window.resolve(entry);
                    continue;
                }
                MayStart::NotYet => {
                    self.dispatch.ended(lane, now, None);
                    self.dispatch.resolved(lane.0);
                    self.window.wait_again(entry, now.wall + ATTEMPT_WAIT);
                    continue;
                }
            }
            batch.push(self.starting(entry, now));
            if batch.len() >= if is_shared { STARTS_PER_SHARED_TASK } else { STARTS_PER_TASK } {
                self.start(std::mem::take(&mut batch), is_shared);
            }
        };
        self.start(batch, self.dispatch.is_shared(now.monotonic));
        let held_for = self.pressure.update(is_held, now.monotonic);
        self.context.metrics.starts_held_seconds.inc_by(held_for.as_secs_f64());
        self.context.governor.set_saturated(self.pressure.is_saturated(now.monotonic));
    }

    /// Returns true if the owner may start another key after `selected` keys. Otherwise the governor wakes the owner as
    /// soon as there is room.
    pub(super) fn may_release(&self, selected: usize, now: Monotonic) -> bool {
        !self.dispatch.is_shared(now) || self.context.governor.admits(selected)
    }

    fn starting(&self, entry: EntryId, now: Now) -> Starting {
        let known = self.window.entry(entry);
        let lane = self.lane(entry);
        let (poller, shard_term) = self.window.poller(known.poller);
        let (closed, closed_at_take) = self.window.closed(known.poller);
        self.context.in_flight.add(poller, known.key, shard_term.term);
        Starting {
            entry,
            lane,
            key: known.key,
            poller,
            shard_term,
            deadline: self.context.lease.deadline(),
            closed,
            closed_at_take,
            catch_up: self.dispatch.catch_up(known.key.occurrence.nominal),
            wait: match (known.key.attempt, known.key.occurrence.replay) {
                (1, 0) => self.wait_of(lane, known.key.occurrence.nominal, shard_term, now),
                _ => None,
            },
        }
    }

    fn start(&self, batch: Vec<Starting>, is_shared: bool) {
        if batch.is_empty() {
            return;
        }
        let (context, governor) = (self.context.clone(), &self.context.governor);
        let handle = if is_shared {
            let started = governor.count(batch.len());
            let task = governed(governor.clone(), started, start(context, batch, true));
            self.context.runtime.spawn("start", task)
        } else {
            self.context.runtime.spawn("start", start(context, batch, false))
        };
        drop(handle);
    }
}
