//! What was promised to clients, and what receivers saw: the scheduler's promises, checked from outside.
//!
//! A scenario tells the ledger every answer that a client got and every callback that began and ended, and at the end,
//! when nothing more is to come, every run's outcome; [`Ledger::verdict`] compares. True time, members' clocks and
//! interruptions it takes from the simulation by itself.
//!
//! What it does not check: order between schedules, lateness, attempt counts, and a series beyond the instant up to
//! which its [`Expected`] is complete.

#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{Incarnation, Occurrence, Revision, RunState, Timestamp};

use crate::simulation::Handle;

pub use verdict::{Verdict, Violation};

/// The instants at which one revision of a schedule is to be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    nominals: BTreeSet<Timestamp>,
    complete_until: Timestamp,
}

impl Expected {
    #[must_use]
    pub fn once(nominal: Timestamp) -> Self {
        Expected { nominals: BTreeSet::from([nominal]), complete_until: Timestamp::MAX }
    }

    /// Of a recurring schedule, all instants up to and with `complete_until`: each must have its outcome when the
    /// verdict is asked for, so this is a little before the scenario's end.
    #[must_use]
    pub fn series(nominals: impl IntoIterator<Item = Timestamp>, complete_until: Timestamp) -> Self {
        let nominals = nominals.into_iter().filter(|nominal| *nominal <= complete_until).collect();
        Expected { nominals, complete_until }
    }
}

/// Names a callback between its beginning and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallbackId(usize);

/// A cheap handle: clients and receivers write into one ledger.
#[derive(Clone)]
pub struct Ledger {
    sim: Handle,
    book: Arc<Mutex<Book>>,
}

struct Book {
    outcome_lag: Duration,
    schedules: BTreeMap<Incarnation, Ask>,
    creates_unanswered: usize,
    redriven: BTreeMap<Occurrence, Duration>,
    callbacks: Vec<Callback>,
    outcomes: BTreeMap<Occurrence, Seen>,
    outcomes_changed: Vec<(Occurrence, RunState, RunState)>,
    excuses: BTreeMap<Incarnation, Vec<RangeInclusive<Duration>>>,
}

/// What was answered about one schedule.
#[derive(Default)]
struct Ask {
    revisions: BTreeMap<Revision, AskedRevision>,
    cancelled: Option<Cancel>,
    /// A change was asked for and not answered.
    doubtful: bool,
}

struct AskedRevision {
    expected: Expected,
    /// When the change to a later revision was answered.
    superseded_at: Option<Duration>,
}

#[derive(Clone, Copy)]
struct Cancel {
    answered_at: Duration,
    too_late: bool,
}

struct Callback {
    occurrence: Occurrence,
    attempt: u16,
    member: String,
    began_at: Duration,
    /// What the member's wall clock showed then.
    clock: Timestamp,
    end: Option<CallbackEnd>,
}

#[derive(Clone, Copy)]
struct CallbackEnd {
    at: Duration,
    accepted: bool,
}

struct Seen {
    state: RunState,
    first_seen_final_at: Option<Duration>,
}

/// What clients were told.
impl Ledger {
    /// `outcome_lag` is how long after a callback's end its outcome may still be on its way to the disk; a double is
    /// excused only if its member was interrupted before that. It must cover the slowest sync.
    #[must_use]
    pub fn new(sim: &Handle, outcome_lag: Duration) -> Self {
        let book = Book {
            outcome_lag,
            schedules: BTreeMap::new(),
            creates_unanswered: 0,
            redriven: BTreeMap::new(),
            callbacks: Vec::new(),
            outcomes: BTreeMap::new(),
            outcomes_changed: Vec::new(),
            excuses: BTreeMap::new(),
        };
        Ledger { sim: sim.clone(), book: Arc::new(Mutex::new(book)) }
    }

    /// A create was acknowledged.
    pub fn created(&self, incarnation: Incarnation, expected: Expected) {
        let mut book = self.book();
        let ask = book.schedules.entry(incarnation).or_default();
        ask.revisions.insert(Revision::default(), AskedRevision { expected, superseded_at: None });
    }

    /// A create broke off: its schedule may come or not.
    pub fn create_unanswered(&self) {
        self.book().creates_unanswered += 1;
    }

    /// A change of the schedule was acknowledged; attempts for earlier revisions may no longer start.
    pub fn revised(&self, incarnation: Incarnation, revision: Revision, expected: Expected) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        let ask = book.schedules.entry(incarnation).or_default();
        for (_, earlier) in ask.revisions.range_mut(..revision) {
            earlier.superseded_at.get_or_insert(now);
        }
        ask.revisions.insert(revision, AskedRevision { expected, superseded_at: None });
    }

    /// A cancel was answered "cancelled": nothing is in flight, and nothing will start.
    pub fn cancelled(&self, incarnation: Incarnation) {
        self.cancel(incarnation, false, self.sim.elapsed());
    }

    /// A cancel was answered "too late": an attempt is in flight, and no other will start.
    pub fn cancelled_too_late(&self, incarnation: Incarnation) {
        self.cancel(incarnation, true, self.sim.elapsed());
    }

    /// A cancel was answered "pending": nothing will start after `decided_by`, in true time.
    pub fn cancelled_by(&self, incarnation: Incarnation, decided_by: Duration) {
        self.cancel(incarnation, true, decided_by);
    }

    /// A change or cancel of this schedule broke off: from now on its occurrences may come or not.
    pub fn change_unanswered(&self, incarnation: Incarnation) {
        self.book().schedules.entry(incarnation).or_default().doubtful = true;
    }

    /// A redrive was acknowledged, and this is the occurrence that came of it.
    pub fn redriven(&self, occurrence: Occurrence) {
        let now = self.sim.elapsed();
        self.book().redriven.insert(occurrence, now);
    }

    fn cancel(&self, incarnation: Incarnation, too_late: bool, answered_at: Duration) {
        let mut book = self.book();
        let ask = book.schedules.entry(incarnation).or_default();
        ask.cancelled.get_or_insert(Cancel { answered_at, too_late });
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What receivers and the store saw.
impl Ledger {
    /// A callback of `member` reached its receiver.
    pub fn callback_began(&self, member: &str, occurrence: Occurrence, attempt: u16) -> CallbackId {
        let (began_at, clock) = (self.sim.elapsed(), self.sim.clock(member));
        let mut book = self.book();
        let member = member.to_owned();
        book.callbacks.push(Callback { occurrence, attempt, member, began_at, clock, end: None });
        CallbackId(book.callbacks.len() - 1)
    }

    /// It was answered, with success or without; one that its member did not live to see never is.
    pub fn callback_ended(&self, callback: CallbackId, accepted: bool) {
        let at = self.sim.elapsed();
        self.book().callbacks[callback.0].end = Some(CallbackEnd { at, accepted });
    }

    /// The store has this record of a run. May be told again and again: a final one never changes.
    pub fn outcome(&self, occurrence: Occurrence, state: RunState) {
        let now = self.sim.elapsed();
        let mut book = self.book();
        let seen = book.outcomes.entry(occurrence).or_insert(Seen { state, first_seen_final_at: None });
        let before = std::mem::replace(&mut seen.state, state);
        if state.is_final() {
            seen.first_seen_final_at.get_or_insert(now);
        }
        if before.is_final() && before != state {
            book.outcomes_changed.push((occurrence, before, state));
        }
    }

    /// What is in flight of this schedule in that time may come again: whoever was to know of it was interrupted, beside
    /// the member that made the attempt.
    pub fn excuse(&self, incarnation: Incarnation, during: RangeInclusive<Duration>) {
        self.book().excuses.entry(incarnation).or_default().push(during);
    }

    /// How many callbacks began.
    #[must_use]
    pub fn callbacks(&self) -> usize {
        self.book().callbacks.len()
    }

    /// The acknowledged occurrences that must still get an outcome: [`Ledger::outcome`] was not told a final one.
    /// When it is empty, a scenario without further requests may ask for the verdict.
    #[must_use]
    pub fn unresolved(&self) -> Vec<Occurrence> {
        self.book().unresolved()
    }

    /// Compares what was promised with what was seen, as if nothing more were to come.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let interruptions = |member: &str| self.sim.interruptions(member);
        self.book().judge(&interruptions)
    }

    /// # Panics
    /// If a promise was broken, with each way in which it was.
    pub fn check(&self) -> Verdict {
        let verdict = self.verdict();
        assert!(verdict.violations.is_empty(), "{verdict}");
        verdict
    }
}

type Interruptions<'a> = &'a dyn Fn(&str) -> Vec<RangeInclusive<Duration>>;
