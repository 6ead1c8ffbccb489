//! History of the scheduler's promises to clients and of the observations of receivers. It checks the promises from
//! outside the cluster.
//!
//! A scenario reports every response to a client, every start and end of a callback and, at the end, every run's
//! outcome. [`History::verdict`] compares the promises with the observations. The history reads from the simulation the
//! true time, the members' clocks, and the periods during which a member was paused or down.
//!
//! The history checks the lateness of callbacks only while the members report that they are well. It does not check the
//! order of callbacks of different schedules or the number of attempts. It also does not check the instants of a recurring
//! schedule after the last [`Expected`] instant.

#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{Incarnation, Occurrence, Revision, RunState, Timestamp};
use futures_util::future::{Either, select};

use crate::simulation::Handle;

pub use verdict::{Verdict, Violation};

/// Instants at which a schedule must fire, for one revision of the schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    nominals: BTreeSet<Timestamp>,
    complete_until: Timestamp,
}

impl Expected {
    /// Expects one instant.
    #[must_use]
    pub fn once(nominal: Timestamp) -> Self {
        Expected { nominals: BTreeSet::from([nominal]), complete_until: Timestamp::MAX }
    }

    /// Returns the expected instants of a recurring schedule up to and including `complete_until`. Each instant must
    /// have an outcome when the history computes the verdict, so `complete_until` must lie some seconds before the end
    /// of the scenario.
    #[must_use]
    pub fn series(nominals: impl IntoIterator<Item = Timestamp>, complete_until: Timestamp) -> Self {
        let nominals = nominals.into_iter().filter(|nominal| *nominal <= complete_until).collect();
        Expected { nominals, complete_until }
    }
}

/// Time between two observations of the members' health.
const HEALTH_PERIOD: Duration = Duration::from_millis(250);

/// Id of a callback between its start and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallbackId(usize);

/// Handle to a history that clients and receivers share. A clone is cheap.
#[derive(Clone)]
pub struct History {
    sim: Handle,
    entries: Arc<Mutex<Entries>>,
}

struct Entries {
    outcome_lag: Duration,
    schedules: BTreeMap<Incarnation, AcknowledgedSchedule>,
    creates_without_response: usize,
    redriven: BTreeMap<Occurrence, Duration>,
    callbacks: Vec<Callback>,
    outcomes: BTreeMap<Occurrence, ObservedOutcome>,
    outcomes_changed: Vec<(Occurrence, RunState, RunState)>,
    /// Missed runs with the mark `attempt_possible`, and the instants at which their owners took the shards.
    marked: Vec<(Occurrence, Timestamp)>,
    exemptions: BTreeMap<Incarnation, Vec<RangeInclusive<Duration>>>,
    /// Periods whose outcomes the store may have lost.
    lost: Vec<RangeInclusive<Duration>>,
    /// Instants at which all running members reported that they are well, in order. See [`History::observe_health`].
    well: Vec<Duration>,
}

/// Acknowledged state of one schedule.
#[derive(Default)]
struct AcknowledgedSchedule {
    revisions: BTreeMap<Revision, AcknowledgedRevision>,
    cancelled: Option<Cancel>,
    /// True if a request to change, cancel or redrive the schedule got no response.
    uncertain: bool,
    /// True if earlier tries of the create may have written further due rows.
    has_earlier_tries: bool,
}

struct AcknowledgedRevision {
    expected: Expected,
    acknowledged_at: Duration,
    /// Instant of the response to a change that created a later revision.
    superseded_at: Option<Duration>,
}

#[derive(Clone, Copy)]
struct Cancel {
    acknowledged_at: Duration,
    too_late: bool,
}

struct Callback {
    occurrence: Occurrence,
    attempt: u16,
    member: String,
    began_at: Duration,
    /// Reading of the member's wall clock at the start of the callback.
    clock: Timestamp,
    end: Option<CallbackEnd>,
    /// True times at which the bus stored records of the callback. `None` for an HTTP callback.
    records: Option<Vec<Duration>>,
    /// True if the member sent nothing, because the deadline of the attempt had passed.
    is_withdrawn: bool,
}

#[derive(Clone, Copy)]
struct CallbackEnd {
    at: Duration,
    accepted: bool,
}

struct ObservedOutcome {
    state: RunState,
    first_final_at: Option<Duration>,
}

/// Responses to clients.
impl History {
    /// Creates an empty history. `outcome_lag` is the longest time from a callback's end until its outcome is durable.
    /// The history permits a duplicate only if the callback's member was paused or down before the outcome was durable.
    /// `outcome_lag` must be longer than the slowest sync.
    #[must_use]
    pub fn new(sim: &Handle, outcome_lag: Duration) -> Self {
        let entries = Entries {
            outcome_lag,
            schedules: BTreeMap::new(),
            creates_without_response: 0,
            redriven: BTreeMap::new(),
            callbacks: Vec::new(),
            outcomes: BTreeMap::new(),
            outcomes_changed: Vec::new(),
            marked: Vec::new(),
            exemptions: BTreeMap::new(),
            lost: Vec::new(),
            well: Vec::new(),
        };
        History { sim: sim.clone(), entries: Arc::new(Mutex::new(entries)) }
    }

    /// Records that a client received the acknowledgement of a create.
    pub fn created(&self, incarnation: Incarnation, expected: Expected) {
        let mut entries = self.entries();
        let schedule = entries.schedules.entry(incarnation).or_default();
        let acknowledged_at = self.sim.elapsed();
        let revision = AcknowledgedRevision { expected, acknowledged_at, superseded_at: None };
        schedule.revisions.insert(Revision::default(), revision);
    }

    /// Permits further occurrences before the first expected instant of the schedule. The scenario makes this call if two
    /// tries of one create can each have written a due row, on a store that writes rows in several steps.
    pub fn created_in_steps(&self, incarnation: Incarnation) {
        self.entries().schedules.entry(incarnation).or_default().has_earlier_tries = true;
    }

    /// Records that a create got no response. Its schedule may or may not exist.
    pub fn create_without_response(&self) {
        self.entries().creates_without_response += 1;
    }

    /// Records that a client received the acknowledgement of a change. From now on, no attempt for an earlier revision
    /// may start.
    pub fn revised(&self, incarnation: Incarnation, revision: Revision, expected: Expected) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        let schedule = entries.schedules.entry(incarnation).or_default();
        for (_, earlier) in schedule.revisions.range_mut(..revision) {
            earlier.superseded_at.get_or_insert(now);
        }
        let acknowledged = AcknowledgedRevision { expected, acknowledged_at: now, superseded_at: None };
        schedule.revisions.insert(revision, acknowledged);
    }

    /// Records the response "cancelled". It promises that no attempt is in flight and no attempt will start.
    pub fn cancelled(&self, incarnation: Incarnation) {
        self.cancel(incarnation, false, self.sim.elapsed());
    }

    /// Records the response "too late". It promises that an attempt is in flight and no other attempt will start.
    pub fn cancelled_too_late(&self, incarnation: Incarnation) {
        self.cancel(incarnation, true, self.sim.elapsed());
    }

    /// Records the response "pending". It promises that no attempt will start after the true time `decided_by`.
    pub fn cancelled_by(&self, incarnation: Incarnation, decided_by: Duration) {
        self.cancel(incarnation, true, decided_by);
    }

    /// Records that a change or a cancellation got no response. From now on, the schedule's occurrences may or may not
    /// fire.
    pub fn change_without_response(&self, incarnation: Incarnation) {
        self.entries().schedules.entry(incarnation).or_default().uncertain = true;
    }

    /// Records that a client received the acknowledgement of a redrive. `occurrence` is the new occurrence.
    pub fn redriven(&self, occurrence: Occurrence) {
        let now = self.sim.elapsed();
        self.entries().redriven.insert(occurrence, now);
    }

    fn cancel(&self, incarnation: Incarnation, too_late: bool, acknowledged_at: Duration) {
        let mut entries = self.entries();
        let schedule = entries.schedules.entry(incarnation).or_default();
        schedule.cancelled.get_or_insert(Cancel { acknowledged_at, too_late });
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observations of receivers and of the store.
impl History {
    /// Records that a callback of `member` reached its receiver.
    pub fn callback_began(&self, member: &str, occurrence: Occurrence, attempt: u16) -> CallbackId {
        self.began(member, occurrence, attempt, None)
    }

    /// Records that `member` gave a callback to its transport to a topic.
    pub fn attempt_to_topic_began(&self, member: &str, occurrence: Occurrence, attempt: u16) -> CallbackId {
        self.began(member, occurrence, attempt, Some(Vec::new()))
    }

    fn began(&self, member: &str, occurrence: Occurrence, attempt: u16, records: Option<Vec<Duration>>) -> CallbackId {
        let (began_at, clock) = (self.sim.elapsed(), self.sim.clock(member));
        let mut entries = self.entries();
        let member = member.to_owned();
        let callback =
            Callback { occurrence, attempt, member, began_at, clock, end: None, records, is_withdrawn: false };
        entries.callbacks.push(callback);
        CallbackId(entries.callbacks.len() - 1)
    }

    /// Records that the transport to a topic sent nothing, because the deadline of the attempt had passed. The attempt
    /// does not count as a callback.
    pub fn callback_withdrawn(&self, callback: CallbackId) {
        self.entries().callbacks[callback.0].is_withdrawn = true;
    }

    /// Records that a topic has a record of the callback, which the bus stored at the true time `at`.
    pub fn record_stored(&self, callback: CallbackId, at: Duration) {
        self.entries().callbacks[callback.0].records.get_or_insert_default().push(at);
    }

    /// Records the end of a callback, and whether the receiver accepted the callback. If the callback's member goes
    /// down before the end, the scenario need not call this function.
    pub fn callback_ended(&self, callback: CallbackId, accepted: bool) {
        let at = self.sim.elapsed();
        self.entries().callbacks[callback.0].end = Some(CallbackEnd { at, accepted });
    }

    /// Records the stored state of a run. A scenario may call this function repeatedly for the same run. A final state
    /// must not change.
    pub fn outcome(&self, occurrence: Occurrence, state: RunState) {
        let now = self.sim.elapsed();
        let mut entries = self.entries();
        let observed = entries.outcomes.entry(occurrence).or_insert(ObservedOutcome { state, first_final_at: None });
        let before = std::mem::replace(&mut observed.state, state);
        if state.is_final() {
            observed.first_final_at.get_or_insert(now);
        }
        if before.is_final() && before != state {
            entries.outcomes_changed.push((occurrence, before, state));
        }
    }

    /// Records that an owner marked a missed run with `attempt_possible`. Until the owner took its shard, no wall clock of
    /// an earlier owner had shown a later reading than `taken_at`.
    pub fn marked(&self, occurrence: Occurrence, taken_at: Timestamp) {
        self.entries().marked.push((occurrence, taken_at));
    }

    /// Runs `scenario`. At the same time, records at which instants `is_well` returns true. The function `is_well` returns
    /// true if all running members report that they are well. No schedule may be silent for long at such instants.
    pub async fn observe_health<T>(&self, is_well: impl Fn() -> bool, scenario: impl Future<Output = T>) -> T {
        let observing = async {
            loop {
                self.sim.outside().sleep(HEALTH_PERIOD).await;
                if is_well() {
                    let now = self.sim.elapsed();
                    self.entries().well.push(now);
                }
            }
        };
        match select(std::pin::pin!(scenario), std::pin::pin!(observing)).await {
            Either::Left((result, _)) => result,
            Either::Right(((), _)) => unreachable!("the loop that observes the members never ends"),
        }
    }

    /// Returns the latest reading that the wall clock of a member has shown until now.
    #[must_use]
    pub fn latest_clock(&self) -> Timestamp {
        self.sim.latest_clock()
    }

    /// Permits duplicates of those attempts of the schedule that were in flight in the period `during`. Without this
    /// call, the history permits a duplicate only if the member that made the attempt was paused or down. The scenario
    /// makes this call if it interrupted another process that had to receive the outcome.
    pub fn allow_duplicates(&self, incarnation: Incarnation, during: RangeInclusive<Duration>) {
        self.entries().exemptions.entry(incarnation).or_default().push(during);
    }

    /// Records that the store has lost the outcomes of callbacks in this period. The members may repeat these callbacks, or
    /// record their occurrences as missed without a mark. The period ends when the last owner has noticed the loss.
    pub fn lost_outcomes(&self, during: RangeInclusive<Duration>) {
        self.entries().lost.push(during);
    }

    /// Returns the number of callbacks that started.
    #[must_use]
    pub fn callbacks(&self) -> usize {
        self.entries().made().count()
    }

    /// Returns the acknowledged occurrences without a final outcome. If the list is empty and the scenario sends no
    /// further requests, the scenario may compute the verdict.
    #[must_use]
    pub fn unresolved(&self) -> Vec<Occurrence> {
        self.entries().unresolved()
    }

    /// Compares the promises with the observations, under the assumption that no further event follows.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let interruptions = |member: &str| self.sim.interruptions(member);
        self.entries().judge(&interruptions, self.sim.epoch())
    }

    /// Computes the verdict and asserts that it has no violations.
    ///
    /// # Panics
    /// Panics if the scheduler broke a promise. The message lists all violations.
    pub fn check(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.violations.is_empty(), "{verdict}");
        verdict
    }
}

type Interruptions<'a> = &'a dyn Fn(&str) -> Vec<RangeInclusive<Duration>>;
