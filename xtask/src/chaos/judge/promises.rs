//! Checks whether the history of each schedule violates a guarantee.

use std::collections::{BTreeMap, BTreeSet};

use super::super::log::{Answer, Callback, Fault, Operation, Request, RunRecord};
use super::cron::Cron;
use super::{History, Promise, Records, Verdict, Violation};

/// Maximum time in milliseconds after the last fault until a shard has an owner again: a lease of 2 s plus a margin for
/// a slow machine.
const RECOVERY_MS: u64 = 10_000;
/// Maximum time in milliseconds by which a member defers a key whose target is away (`--defer-max`). A later owner of the
/// shard does not start such a key early (decision 0221). The bus is away for longer than the time after which a member
/// defers keys.
const DEFERRED_MS: u64 = 60_000;
/// Maximum time in milliseconds from a due instant to the start of its callback if no fault is active.
const PUNCTUAL_MS: u64 = 1_000;

pub(super) fn judge(token: &str, history: &History, records: &Records, verdict: &mut Verdict) {
    let mut broken = |promise, how: String| {
        verdict.broken.push(Violation { promise, token: token.to_owned(), how });
    };
    if is_lost(history, records) {
        let how = "a member acknowledged the schedule, no client cancelled it, and no callback arrived";
        broken(Promise::NothingLost, how.to_owned());
    }
    for nominal in unaccounted(history, records) {
        broken(
            Promise::EveryInstantAccountedFor,
            format!("the occurrence at {nominal} ms since 1970 has neither a callback nor a recorded outcome"),
        );
    }
    for nominal in missed_unmarked(history, records) {
        broken(
            Promise::MissedIsMarked,
            format!("the occurrence at {nominal} ms since 1970 had a callback, but is missed without a mark"),
        );
    }
    for request in &history.requests {
        if let Some(how) = contradiction(history, request, records) {
            broken(Promise::ResponsesAsDocumented, how);
        }
    }
    for (version, runs) in duplicate_ids(history) {
        broken(
            Promise::OneIdPerRun,
            format!("the callbacks of schedule version {version} have several run ids instead of one: {runs:?}"),
        );
    }
    for callback in &history.callbacks {
        judge_callback(token, history, callback, records, verdict);
    }
}

fn judge_callback(token: &str, history: &History, callback: &Callback, records: &Records, verdict: &mut Verdict) {
    let mut broken = |promise, how: String| {
        verdict.broken.push(Violation { promise, token: token.to_owned(), how });
    };
    let arrived = callback.arrived_ms;
    let Some(requested) = history.requested(callback.version) else {
        return broken(
            Promise::OneIdPerRun,
            format!("the callback has schedule version {}, which no client requested", callback.version),
        );
    };
    let due = requested.at_ms.unwrap_or(callback.nominal_ms);
    if arrived < due || callback.nominal_ms < due {
        broken(
            Promise::NothingEarly,
            format!("the callback was due at {due} ms since 1970 but arrived at {arrived} ms"),
        );
    }
    let mut delayed = 0;
    let mut undecided = 0;
    let mut undone = 0;
    for request in &history.requests {
        // Only a cancellation, or a request with a later version than the callback's version, can forbid the callback.
        let is_older = callback.version < request.version || request.operation == Operation::Cancel;
        let Some((promise, decided_ms, by_start)) = decided(request).filter(|_| is_older) else { continue };
        let is_after = if by_start { callback.started_ms } else { arrived } > decided_ms;
        if !is_after {
            continue;
        }
        if history.is_unknown(callback.version) {
            undecided += 1;
        } else if request.is_too_late() && is_reported_attempt(history, callback, decided_ms) {
            continue;
        } else if callback.started_ms <= decided_ms && records.faults.iter().any(|fault| fault.delays(callback)) {
            delayed += 1;
        } else if records.loss_permits(request, callback) {
            undone += 1;
        } else {
            let started = callback.started_ms;
            let how = format!(
                "the response {:?} forbids the callback after {decided_ms} ms since 1970, but the callback started at \
                 {started} ms and arrived at {arrived} ms",
                request.answer
            );
            broken(promise, how);
        }
    }
    verdict.delayed += delayed;
    verdict.undecided += undecided;
    verdict.undone += undone;
}

/// Returns the guarantee that the response gives, and the instant after which no callback of an older request may
/// arrive. The last value is true if this instant limits only the start of such a callback, because an attempt may have
/// been in flight.
fn decided(request: &Request) -> Option<(Promise, u64, bool)> {
    match (request.operation, request.answer) {
        (Operation::Cancel, Answer::Cancelled) => Some((Promise::NothingAfterCancel, request.answered_ms, false)),
        (Operation::Cancel, Answer::TooLate) => Some((Promise::NothingAfterCancel, request.answered_ms, true)),
        (Operation::Cancel, Answer::Pending) => {
            Some((Promise::NothingAfterCancel, request.decided_by_ms?.max(request.answered_ms), true))
        }
        (Operation::Put, Answer::Acknowledged) => {
            Some((Promise::NothingAfterReplacement, request.answered_ms, request.too_late))
        }
        _ => None,
    }
}

/// Returns true if the callback is the attempt that a response with `too_late` reports as in flight. The owner counts
/// an attempt as in flight even before it reads the schedule. Therefore the attempt may start up to 1 s after the
/// response, but only if no other attempt was in flight at the response or has started since the response.
fn is_reported_attempt(history: &History, callback: &Callback, decided_ms: u64) -> bool {
    let is_other = |other: &&Callback| (&other.run, other.started_ms) != (&callback.run, callback.started_ms);
    let counts = |other: &Callback| {
        let ended_ms = other.arrived_ms + other.answered_after_ms;
        other.started_ms <= callback.started_ms && ended_ms >= decided_ms
    };
    callback.started_ms <= decided_ms + PUNCTUAL_MS && !history.callbacks.iter().filter(is_other).any(counts)
}

/// Returns true if the schedule is a one-shot whose callback should have arrived but did not arrive.
pub(super) fn is_lost(history: &History, records: &Records) -> bool {
    let Some((at, confirmed)) = history.confirmed(records) else { return false };
    let is_cancelled = history.requests[at..].iter().any(|later| later.operation == Operation::Cancel);
    if is_cancelled || confirmed.at_ms.is_none() {
        return false;
    }
    let is_later =
        |version| history.requests[at..].iter().any(|later| later.is_confirmed() && later.version == version);
    let may_be = |version| is_later(version) || history.is_unknown(version);
    !history.callbacks.iter().any(|callback| may_be(callback.version))
}

/// Returns the due instants of a recurring schedule that have neither a callback nor a recorded outcome.
pub(super) fn unaccounted(history: &History, records: &Records) -> Vec<u64> {
    let Some((at, put)) = history.confirmed(records) else { return Vec::new() };
    let Some(first) = put.next_ms.filter(|_| put.at_ms.is_none()) else { return Vec::new() };
    // The check skips a schedule if one of its create or put requests received no response, because the owner may have
    // applied the requests in any order. It also skips a schedule if the database may have lost one of these requests.
    let is_open =
        |other: &Request| history.is_unknown(other.version) || other.is_confirmed() && records.may_lack(history, other);
    let is_clear = !history.requests.iter().any(is_open);
    let Some(cancel) = history.requests[at..].iter().find(|later| later.operation == Operation::Cancel) else {
        return Vec::new();
    };
    if !is_clear {
        return Vec::new();
    }
    let came: BTreeSet<u64> = history.callbacks.iter().map(|callback| callback.nominal_ms).collect();
    let is_explained = |nominal: u64| history.runs.iter().any(|run| explains(run, nominal));
    // A due instant needs no callback if the shard had no owner at this instant, or the bus was away, and a client
    // cancelled the schedule before the shard had an owner again, or before the deferred keys were due. If the database has kept the record of a later callback, it has kept the
    // outcomes of all earlier instants.
    let is_calm = |fault: &Fault| {
        let recovery_ms = if fault.kind.needs_bus() { DEFERRED_MS + RECOVERY_MS } else { RECOVERY_MS };
        fault.start_ms > cancel.asked_ms || fault.healed_ms + recovery_ms < cancel.asked_ms
    };
    let owed_until = if records.faults.iter().all(is_calm) {
        cancel.asked_ms.saturating_sub(PUNCTUAL_MS)
    } else {
        let kept = history.callbacks.iter().filter(|callback| !records.may_lack_attempt(callback));
        kept.map(|callback| callback.nominal_ms).max().unwrap_or(0)
    };
    let nominals: Vec<u64> = match (put.every_ms.and_then(|every| usize::try_from(every).ok()), Cron::of(put)) {
        (Some(every), _) => (first..=owed_until.max(first)).step_by(every).collect(),
        (None, Some(cron)) => cron.instants(first, owed_until.max(first)),
        (None, None) => Vec::new(),
    };
    let is_owed = |nominal: &u64| *nominal <= owed_until && !came.contains(nominal) && !is_explained(*nominal);
    nominals.into_iter().filter(is_owed).collect()
}

/// Returns the instants that had a callback, although a record as missed says that no attempt started. The mark of a
/// record applies only to its first instant.
fn missed_unmarked(history: &History, records: &Records) -> BTreeSet<u64> {
    let says_unstarted = |run: &RunRecord, nominal: u64| {
        run.state == "missed" && explains(run, nominal) && !(run.attempt_possible && run.nominal_ms == nominal)
    };
    let recorded = history.callbacks.iter().filter(|callback| !records.may_lack_attempt(callback));
    let came = recorded.map(|callback| callback.nominal_ms);
    came.filter(|nominal| history.runs.iter().any(|run| says_unstarted(run, *nominal))).collect()
}

/// Returns true if the recorded run explains why no callback arrived for this instant: the run is missed, or it failed
/// or was cancelled after at least one attempt. None of these attempts reached the receiver.
fn explains(run: &RunRecord, nominal: u64) -> bool {
    match run.state.as_str() {
        "missed" => (run.nominal_ms..=run.missed_last_ms.unwrap_or(run.nominal_ms)).contains(&nominal),
        "failed" | "cancelled" => run.nominal_ms == nominal && run.attempts > 0,
        _ => false,
    }
}

fn contradiction(history: &History, request: &Request, records: &Records) -> Option<String> {
    let said = request.said.as_deref().unwrap_or("");
    let tried_before = |of: Operation| {
        let is_earlier = |other: &&Request| other.asked_ms < request.asked_ms && other.operation == of;
        history.requests.iter().filter(is_earlier).any(|other| other.answer == Answer::Unknown)
    };
    match request.answer {
        Answer::Strange => Some(format!("{} to a {:?}: {said}", request.status, request.operation)),
        Answer::Unknown if matches!(request.status, 500 | 501..=502 | 505..) => {
            Some(format!("{} to a {:?}: {said}", request.status, request.operation))
        }
        Answer::Exists if !tried_before(Operation::Create) => {
            let how =
                "the service reported an existing schedule, but no earlier request to create it has an unknown outcome";
            Some(how.to_owned())
        }
        Answer::NotFound => {
            let confirms = |other: &Request| {
                other.asked_ms < request.asked_ms
                    && other.is_confirmed()
                    && !records.is_undone_at(other, request.answered_ms)
            };
            history
                .requests
                .iter()
                .any(confirms)
                .then(|| "the service did not find a schedule that it had acknowledged".to_owned())
        }
        _ => None,
    }
}

/// Returns the versions of a one-shot schedule whose callbacks have several run ids, and these run ids.
fn duplicate_ids(history: &History) -> BTreeMap<u32, BTreeSet<&str>> {
    let mut names: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for callback in &history.callbacks {
        let is_one_shot = history.requested(callback.version).is_some_and(|request| request.at_ms.is_some());
        if is_one_shot && !history.is_unknown(callback.version) {
            names.entry(callback.version).or_default().insert(&callback.run);
        }
    }
    names.retain(|_, runs| runs.len() > 1);
    names
}
