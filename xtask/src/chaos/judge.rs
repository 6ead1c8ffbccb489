//! Judges a run from its logs alone: what was asked and answered, what called back, what was disturbed.
//!
//! An answer that never came is taken both ways: what was asked for may have happened, then or later, or not.
//! All processes of a run read one clock, so instants of different logs are compared as they are.

mod doubles;
mod lateness;
mod owners;
mod promises;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use super::log::{self, Answer, Callback, Fault, Kind, Operation, Place, Request, Told};

use lateness::Lateness;

/// Everything that was written down.
#[derive(Default)]
pub(super) struct Records {
    /// By token: its requests as they were asked, its callbacks as they were started.
    pub(super) stories: BTreeMap<String, Story>,
    pub(super) faults: Vec<Fault>,
    /// Token to poller: all of one poller are of one shard.
    pub(super) pollers: BTreeMap<String, i64>,
}

#[derive(Default)]
pub(super) struct Story {
    pub(super) requests: Vec<Request>,
    pub(super) callbacks: Vec<Callback>,
    pub(super) told: Vec<Told>,
}

impl Records {
    /// # Errors
    /// If a log is not there, or is broken.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Records> {
        let requests = log::read::<Request>(&folder.join(log::REQUESTS))?;
        let callbacks = log::read::<Callback>(&folder.join(log::CALLBACKS))?;
        let faults = log::read::<Fault>(&folder.join(log::FAULTS))?;
        let places = optional::<Place>(&folder.join(log::PLACES))?;
        let told = optional::<Told>(&folder.join(log::RUNS))?;
        Ok(Records::new(requests, callbacks, faults, places, told))
    }

    pub(super) fn new(
        requests: Vec<Request>,
        callbacks: Vec<Callback>,
        faults: Vec<Fault>,
        places: Vec<Place>,
        told: Vec<Told>,
    ) -> Records {
        let mut records = Records { faults, ..Records::default() };
        for request in requests {
            records.stories.entry(request.token.clone()).or_default().requests.push(request);
        }
        for callback in callbacks {
            records.stories.entry(callback.token.clone()).or_default().callbacks.push(callback);
        }
        for told in told {
            records.stories.entry(told.token.clone()).or_default().told.push(told);
        }
        for story in records.stories.values_mut() {
            story.requests.sort_by_key(|request| request.asked_ms);
            story.callbacks.sort_by_key(|callback| (callback.started_ms, callback.arrived_ms));
        }
        records.faults.sort_by_key(|fault| fault.start_ms);
        records.pollers = places.into_iter().map(|place| (place.token, place.poller)).collect();
        records
    }

    /// The ids of schedules of which the service must tell its runs before a verdict is just.
    pub(super) fn questions(&self) -> Vec<(String, String)> {
        let open = self
            .stories
            .iter()
            .filter(|(_, story)| !promises::unaccounted(story, &self.faults).is_empty() || promises::is_lost(story));
        open.filter_map(|(token, story)| Some((token.clone(), story.id()?))).collect()
    }

    /// Whether all that is owed has come.
    pub(super) fn lost(&self) -> usize {
        self.stories.values().filter(|story| promises::is_lost(story)).count()
    }
}

fn optional<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    if path.exists() { log::read(path) } else { Ok(Vec::new()) }
}

impl Story {
    /// The service's id, if an answer told one.
    fn id(&self) -> Option<String> {
        self.requests.iter().find_map(|request| request.id.clone())
    }

    /// The last body that the service has confirmed, and where it lies among the requests.
    fn confirmed(&self) -> Option<(usize, &Request)> {
        self.requests.iter().enumerate().rev().find(|(_, request)| request.is_confirmed())
    }

    fn is_unknown(&self, version: u32) -> bool {
        let of_version = |request: &&Request| request.version == version && request.operation != Operation::Cancel;
        self.requests.iter().filter(of_version).any(|request| request.answer == Answer::Unknown)
    }

    /// The schedule as it was asked for under this version.
    fn asked(&self, version: u32) -> Option<&Request> {
        self.requests.iter().find(|request| request.version == version && request.operation != Operation::Cancel)
    }
}

impl Request {
    fn is_confirmed(&self) -> bool {
        self.operation != Operation::Cancel && matches!(self.answer, Answer::Acknowledged | Answer::Exists)
    }

    fn says_too_late(&self) -> bool {
        self.answer == Answer::TooLate || self.too_late
    }
}

/// How long after the answer an outcome may take to be durable; at another member's interruption, to be told.
const BOOKING_MS: u64 = 1_000;
const TELLING_MS: u64 = 200;
/// How long a connection that was cut needs to notice that it is not any more, beyond the cut's own length.
const NOTICE_MS: u64 = 1_000;

impl Fault {
    /// Attempts that are under way at a time between these may be made again.
    fn interrupts(&self) -> Option<(u64, u64)> {
        let length = self.end_ms.saturating_sub(self.start_ms);
        match self.kind {
            Kind::KilledAndLeftDead | Kind::KilledAndRestarted => Some((self.start_ms, self.end_ms)),
            Kind::CutOff | Kind::CutFromDatabase | Kind::CutFromPeers | Kind::CutFromReceiver => {
                // TCP's waits have doubled meanwhile (RFC 6298).
                Some((self.start_ms, self.end_ms + length + NOTICE_MS))
            }
            Kind::Paused | Kind::DatabaseRestarted | Kind::DatabaseKilled | Kind::DatabasePaused => {
                Some((self.start_ms, self.end_ms + NOTICE_MS))
            }
            Kind::Stopped | Kind::JoinedAndLeft => None,
        }
    }

    fn interrupted(&self, callback: &Callback) -> bool {
        let after_ms = if self.is_of(callback) { BOOKING_MS } else { TELLING_MS };
        let under_way = (callback.started_ms, callback.arrived_ms + callback.answered_after_ms + after_ms);
        self.interrupts().is_some_and(|(start, end)| under_way.0 <= end && start <= under_way.1)
    }

    fn is_of(&self, callback: &Callback) -> bool {
        self.kind.is_of_database() || self.member == callback.from
    }

    /// What its sender has written to a socket may arrive much later.
    fn delays(&self, callback: &Callback) -> bool {
        matches!(self.kind, Kind::Paused | Kind::CutOff | Kind::CutFromReceiver)
            && self.is_of(callback)
            && self.interrupted(callback)
    }
}

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) promise: Promise,
    pub(super) token: String,
    pub(super) how: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Promise {
    NothingLost,
    NothingEarly,
    NothingAfterCancel,
    NothingOfWhatWasReplaced,
    EveryInstantAccountedFor,
    OneNamePerRun,
    DoublesOnlyInFlight,
    DoublesBelowCap,
    OneOwnerAtATime,
    AnswersAsDocumented,
}

impl Promise {
    const ALL: [Promise; 10] = [
        Promise::NothingLost,
        Promise::NothingEarly,
        Promise::NothingAfterCancel,
        Promise::NothingOfWhatWasReplaced,
        Promise::EveryInstantAccountedFor,
        Promise::OneNamePerRun,
        Promise::DoublesOnlyInFlight,
        Promise::DoublesBelowCap,
        Promise::OneOwnerAtATime,
        Promise::AnswersAsDocumented,
    ];

    fn name(self) -> &'static str {
        match self {
            Promise::NothingLost => "acknowledged and lost",
            Promise::NothingEarly => "early",
            Promise::NothingAfterCancel => "fired after their cancellation was decided",
            Promise::NothingOfWhatWasReplaced => "fired after they were replaced",
            Promise::EveryInstantAccountedFor => "recurring, with an instant unaccounted for",
            Promise::OneNamePerRun => "runs with two names, or none that was asked for",
            Promise::DoublesOnlyInFlight => "doubles without a kill, pause, cut or database restart",
            Promise::DoublesBelowCap => "faults with more doubles than may be in flight",
            Promise::OneOwnerAtATime => "started by two owners at a time",
            Promise::AnswersAsDocumented => "answered as they should not be",
        }
    }
}

/// What was found.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) broken: Vec<Broken>,
    /// Doubles that a fault excuses, by its number: of its own member's callbacks, and of others'.
    pub(super) doubles: BTreeMap<usize, (u64, u64)>,
    /// Sent before a cancellation was answered, kept by a cut or a pause of their sender, arrived after it.
    pub(super) delayed: u64,
    /// Of versions whose request was not answered, so that it may have been obeyed after the cancellation.
    pub(super) undecided: u64,
    pub(super) lateness: Lateness,
    /// How many pairs of successive callbacks of one poller were compared, and how often the term rose between them.
    pub(super) compared: u64,
    pub(super) risen: u64,
}

pub(super) fn judge(records: &Records) -> Verdict {
    let mut verdict = Verdict::default();
    for (token, story) in &records.stories {
        promises::judge(token, story, &records.faults, &mut verdict);
        doubles::judge(token, story, &records.faults, &mut verdict);
    }
    doubles::judge_cap(&mut verdict);
    owners::judge(records, &mut verdict);
    verdict.lateness = Lateness::of(records);
    verdict
}
