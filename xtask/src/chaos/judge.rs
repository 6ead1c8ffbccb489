//! Checks a chaos test from its logs alone, which contain the requests and responses, the callbacks, and the faults.
//!
//! If a request has no response, a member may have applied it at any later time, or never. The check accepts both
//! cases. All processes of a test read one clock, so instants of different logs are comparable.

mod cron;
mod duplicates;
mod lateness;
mod losses;
mod owners;
mod promises;
mod report;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use super::log::{self, Answer, Callback, Fault, Kind, Operation, Placement, Request, RunRecord};

use lateness::Lateness;
use losses::Failover;
pub(super) use losses::earlier_owners_until;

/// Contents of all logs.
#[derive(Default)]
pub(super) struct Records {
    /// Histories by token.
    pub(super) histories: BTreeMap<String, History>,
    pub(super) faults: Vec<Fault>,
    /// Fail-overs that lost commits, in chronological order.
    failovers: Vec<Failover>,
    /// Poller of each schedule, by the schedule's token. All schedules of one poller belong to one shard.
    pub(super) pollers: BTreeMap<String, i64>,
}

#[derive(Default)]
pub(super) struct History {
    pub(super) requests: Vec<Request>,
    pub(super) callbacks: Vec<Callback>,
    pub(super) runs: Vec<RunRecord>,
}

impl Records {
    /// # Errors
    /// Returns an error if a log is missing or malformed.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Records> {
        let requests = log::read::<Request>(&folder.join(log::REQUESTS))?;
        let callbacks = log::read::<Callback>(&folder.join(log::CALLBACKS))?;
        let records = optional::<Callback>(&folder.join(log::RECORDS))?;
        let callbacks = callbacks.into_iter().chain(records).collect();
        let faults = log::read::<Fault>(&folder.join(log::FAULTS))?;
        let placements = optional::<Placement>(&folder.join(log::PLACES))?;
        let runs = optional::<RunRecord>(&folder.join(log::RUNS))?;
        Ok(Records::new(requests, callbacks, faults, placements, runs))
    }

    pub(super) fn new(
        requests: Vec<Request>,
        callbacks: Vec<Callback>,
        faults: Vec<Fault>,
        placements: Vec<Placement>,
        runs: Vec<RunRecord>,
    ) -> Records {
        let mut records = Records { faults, ..Records::default() };
        for request in requests {
            records.histories.entry(request.token.clone()).or_default().requests.push(request);
        }
        for callback in callbacks {
            records.histories.entry(callback.token.clone()).or_default().callbacks.push(callback);
        }
        for run in runs {
            records.histories.entry(run.token.clone()).or_default().runs.push(run);
        }
        for history in records.histories.values_mut() {
            history.requests.sort_by_key(|request| request.asked_ms);
            history.callbacks.sort_by_key(|callback| (callback.started_ms, callback.arrived_ms));
        }
        records.faults.sort_by_key(|fault| fault.start_ms);
        records.pollers = placements.into_iter().map(|placement| (placement.token, placement.poller)).collect();
        records.name_senders();
        let callbacks = records.histories.values().flat_map(|history| &history.callbacks);
        records.failovers = Failover::of(&records.faults, callbacks);
        records
    }

    /// Sets the senders of the records in the topic. All attempts of one poller under one term have the same sender.
    fn name_senders(&mut self) {
        let Records { histories, pollers, .. } = self;
        let mut senders: BTreeMap<(i64, u64), String> = BTreeMap::new();
        for (token, history) in histories.iter() {
            let Some(poller) = pollers.get(token) else { continue };
            for callback in history.callbacks.iter().filter(|callback| !callback.is_record) {
                senders.entry((*poller, callback.term)).or_insert_with(|| callback.from.clone());
            }
        }
        for (token, history) in histories.iter_mut() {
            let Some(poller) = pollers.get(token) else { continue };
            for callback in history.callbacks.iter_mut().filter(|callback| callback.is_record) {
                if let Some(sender) = senders.get(&(*poller, callback.term)) {
                    callback.from.clone_from(sender);
                }
            }
        }
    }

    /// Returns the tokens and ids of the schedules whose runs the caller must query before the verdict.
    pub(super) fn questions(&self) -> Vec<(String, String)> {
        let open = self.histories.iter().filter(|(_, history)| {
            !promises::unaccounted(history, self).is_empty() || promises::is_lost(history, self)
        });
        open.filter_map(|(token, history)| Some((token.clone(), history.id()?))).collect()
    }

    /// Returns the number of schedules with an outstanding callback.
    pub(super) fn lost(&self) -> usize {
        self.histories.values().filter(|history| promises::is_lost(history, self)).count()
    }
}

fn optional<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    if path.exists() { log::read(path) } else { Ok(Vec::new()) }
}

impl History {
    /// Returns the id of the schedule, if a response contained it.
    fn id(&self) -> Option<String> {
        self.requests.iter().find_map(|request| request.id.clone())
    }

    /// Returns the last confirmed request that created or replaced the schedule, and its index among the requests. A
    /// request that the database may have lost is not confirmed.
    fn confirmed(&self, records: &Records) -> Option<(usize, &Request)> {
        let is_kept = |request: &Request| request.is_confirmed() && !records.may_lack(self, request);
        self.requests.iter().enumerate().rev().find(|(_, request)| is_kept(request))
    }

    fn is_unknown(&self, version: u32) -> bool {
        let of_version = |request: &&Request| request.version == version && request.operation != Operation::Cancel;
        self.requests.iter().filter(of_version).any(|request| request.answer == Answer::Unknown)
    }

    /// Returns the create or put request that contained this version of the schedule.
    fn requested(&self, version: u32) -> Option<&Request> {
        self.requests.iter().find(|request| request.version == version && request.operation != Operation::Cancel)
    }
}

impl Request {
    fn is_confirmed(&self) -> bool {
        self.operation != Operation::Cancel && matches!(self.answer, Answer::Acknowledged | Answer::Exists)
    }

    fn is_too_late(&self) -> bool {
        self.answer == Answer::TooLate || self.too_late
    }
}

/// Maximum time in milliseconds from the target's response until the outcome is durable.
const DURABLE_MS: u64 = 1_000;
/// Maximum time in milliseconds from the target's response until the outcome reaches another member.
const HANDOVER_MS: u64 = 200;
/// Time in milliseconds that a restored connection needs to recover, in addition to the length of the cut.
const RECONNECT_MS: u64 = 1_000;

impl Fault {
    /// Returns the interval in which members may repeat attempts in flight because of this fault. Returns `None` if the
    /// fault permits no duplicates.
    fn interrupts(&self) -> Option<(u64, u64)> {
        let length = self.end_ms.saturating_sub(self.start_ms);
        match self.kind {
            Kind::KilledAndLeftDead | Kind::KilledAndRestarted => Some((self.start_ms, self.end_ms)),
            Kind::CutOff
            | Kind::CutFromDatabase
            | Kind::CutFromEnsemble
            | Kind::CutFromPeers
            | Kind::CutFromReceiver
            | Kind::CutFromBus => {
                // During the cut, TCP doubles its timeout at each retransmission (RFC 6298). After the cut, data may
                // therefore be late by the length of the cut.
                Some((self.start_ms, self.end_ms + length + RECONNECT_MS))
            }
            Kind::Paused
            | Kind::DatabaseRestarted
            | Kind::DatabaseKilled
            | Kind::DatabasePaused
            | Kind::EnsembleKilled
            | Kind::EnsemblePaused
            | Kind::BusKilled
            | Kind::BusPaused => Some((self.start_ms, self.end_ms + RECONNECT_MS)),
            Kind::DatabaseFailedOver => {
                let lost = self.lost?;
                // The store rejects the outcomes of attempts that earlier owners start after the fail-over.
                Some((lost.from_ms, earlier_owners_until(lost).max(self.end_ms + RECONNECT_MS)))
            }
            Kind::Stopped | Kind::JoinedAndLeft => None,
        }
    }

    /// Returns true if the fault explains that the second attempt repeats the first attempt.
    fn repeats(&self, first: &Callback, second: &Callback) -> bool {
        self.interrupted(first) && self.lost.is_none_or(|lost| lost.until_ms <= second.started_ms)
    }

    fn interrupted(&self, callback: &Callback) -> bool {
        let after_ms = if self.is_of(callback) { DURABLE_MS } else { HANDOVER_MS };
        let is_of_target = match self.kind {
            Kind::CutFromReceiver => !callback.is_record,
            kind => callback.is_record || !kind.needs_bus(),
        };
        let under_way = (callback.started_ms, callback.arrived_ms + callback.answered_after_ms + after_ms);
        is_of_target && self.interrupts().is_some_and(|(start, end)| under_way.0 <= end && start <= under_way.1)
    }

    fn is_of(&self, callback: &Callback) -> bool {
        self.kind.is_of_all() || self.member == callback.from
    }

    /// Returns true if the fault may delay this callback after its sender has written it to a socket.
    fn delays(&self, callback: &Callback) -> bool {
        let may_delay = matches!(self.kind, Kind::Paused | Kind::CutOff | Kind::CutFromReceiver);
        (may_delay || self.kind.needs_bus()) && self.is_of(callback) && self.interrupted(callback)
    }
}

/// Violation of a guarantee.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) promise: Promise,
    pub(super) token: String,
    pub(super) how: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Promise {
    NothingLost,
    NothingEarly,
    NothingAfterCancel,
    NothingAfterReplacement,
    EveryInstantAccountedFor,
    CronInstants,
    MissedIsMarked,
    OneIdPerRun,
    DuplicatesOnlyInFlight,
    DuplicatesBelowCap,
    OneOwnerAtATime,
    ResponsesAsDocumented,
}

impl Promise {
    const ALL: [Promise; 12] = [
        Promise::NothingLost,
        Promise::NothingEarly,
        Promise::NothingAfterCancel,
        Promise::NothingAfterReplacement,
        Promise::EveryInstantAccountedFor,
        Promise::CronInstants,
        Promise::MissedIsMarked,
        Promise::OneIdPerRun,
        Promise::DuplicatesOnlyInFlight,
        Promise::DuplicatesBelowCap,
        Promise::OneOwnerAtATime,
        Promise::ResponsesAsDocumented,
    ];

    fn name(self) -> &'static str {
        match self {
            Promise::NothingLost => "acknowledged and lost",
            Promise::NothingEarly => "early",
            Promise::NothingAfterCancel => "fired after their cancellation was decided",
            Promise::NothingAfterReplacement => "fired after they were replaced",
            Promise::EveryInstantAccountedFor => "recurring, with an instant unaccounted for",
            Promise::CronInstants => "instants that a cron expression does not name",
            Promise::MissedIsMarked => "recorded as missed without a mark, with a callback",
            Promise::OneIdPerRun => "runs with two ids, or with an unknown version",
            Promise::DuplicatesOnlyInFlight => {
                "duplicates without a kill, pause, cut, restart of a server or fail-over"
            }
            Promise::DuplicatesBelowCap => "faults with more duplicates than may be in flight",
            Promise::OneOwnerAtATime => "started by two owners at the same time",
            Promise::ResponsesAsDocumented => "responses that contradict the documentation",
        }
    }
}

/// Result of the check of a chaos test.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) broken: Vec<Violation>,
    /// Counts of the duplicates that each fault explains. The key is the fault's number. The first count is for
    /// callbacks of a member that the fault affects, and the second count is for callbacks of other members.
    pub(super) duplicates: BTreeMap<usize, (u64, u64)>,
    /// Number of delayed callbacks. The sender started such a callback before the response to a cancellation or
    /// replacement of its schedule. A cut or a pause of the sender delayed the callback until after the response.
    pub(super) delayed: u64,
    /// Number of callbacks that the check cannot judge. Such a callback arrived after a cancellation or replacement of
    /// its schedule, but the request with its version received no response. The owner may have applied this request
    /// after the cancellation or the replacement.
    pub(super) undecided: u64,
    /// Number of callbacks that a response forbids, but that are permitted because a fail-over may have undone the
    /// request, or because their sender had not yet noticed the fail-over.
    pub(super) undone: u64,
    /// Number of attempts that an earlier owner started after a fail-over and after the first attempt of its successor.
    pub(super) overlapping: u64,
    pub(super) lateness: Lateness,
    /// Number of compared pairs of successive callbacks of one poller.
    pub(super) compared: u64,
    pub(super) term_rises: u64,
}

pub(super) fn judge(records: &Records) -> Verdict {
    let mut verdict = Verdict::default();
    for (token, history) in &records.histories {
        promises::judge(token, history, records, &mut verdict);
        cron::judge(token, history, &mut verdict);
        duplicates::judge(token, history, &records.faults, &mut verdict);
    }
    duplicates::judge_cap(&records.faults, &mut verdict);
    owners::judge(records, &mut verdict);
    verdict.lateness = Lateness::of(records);
    verdict
}
