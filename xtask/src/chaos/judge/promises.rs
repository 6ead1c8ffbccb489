//! What is promised of each schedule by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::super::log::{Answer, Callback, Fault, Operation, Request, Told};
use super::{Broken, Promise, Story, Verdict};

/// After the last disturbance a shard has an owner again within so long: a lease of 2 s, and the machine's noise.
const RECOVERY_MS: u64 = 10_000;
/// In calm, an instant's callback has begun by then.
const PUNCTUAL_MS: u64 = 1_000;

pub(super) fn judge(token: &str, story: &Story, faults: &[Fault], verdict: &mut Verdict) {
    let mut broken = |promise, how: String| {
        verdict.broken.push(Broken { promise, token: token.to_owned(), how });
    };
    if is_lost(story) {
        broken(Promise::NothingLost, "acknowledged, never cancelled, and no callback came".to_owned());
    }
    for nominal in unaccounted(story, faults) {
        broken(Promise::EveryInstantAccountedFor, format!("nothing is known of its instant {nominal}"));
    }
    for request in &story.requests {
        if let Some(how) = strange(story, request) {
            broken(Promise::AnswersAsDocumented, how);
        }
    }
    for (version, runs) in names(story) {
        broken(Promise::OneNamePerRun, format!("version {version} has the runs {runs:?}"));
    }
    for callback in &story.callbacks {
        judge_callback(token, story, callback, faults, verdict);
    }
}

fn judge_callback(token: &str, story: &Story, callback: &Callback, faults: &[Fault], verdict: &mut Verdict) {
    let mut broken = |promise, how: String| {
        verdict.broken.push(Broken { promise, token: token.to_owned(), how });
    };
    let arrived = callback.arrived_ms;
    let Some(asked) = story.asked(callback.version) else {
        return broken(Promise::OneNamePerRun, format!("version {} was never asked for", callback.version));
    };
    let due = asked.at_ms.unwrap_or(callback.nominal_ms);
    if arrived < due || callback.nominal_ms < due {
        broken(Promise::NothingEarly, format!("due at {due}, it came at {arrived}"));
    }
    let mut delayed = 0;
    let mut undecided = 0;
    for request in &story.requests {
        // Of what was asked for at first, and was not known to be there when the later request was obeyed.
        let is_older = callback.version < request.version || request.operation == Operation::Cancel;
        let Some((promise, decided_ms, by_start)) = decided(request).filter(|_| is_older) else { continue };
        let is_after = if by_start { callback.started_ms } else { arrived } > decided_ms;
        if !is_after {
            continue;
        }
        if story.is_unknown(callback.version) {
            undecided += 1;
        } else if request.says_too_late() && is_the_one(story, callback, decided_ms) {
            continue;
        } else if callback.started_ms <= decided_ms && faults.iter().any(|fault| fault.delays(callback)) {
            delayed += 1;
        } else {
            let started = callback.started_ms;
            let how = format!("{:?} since {decided_ms}, started at {started}, arrived at {arrived}", request.answer);
            broken(promise, how);
        }
    }
    verdict.delayed += delayed;
    verdict.undecided += undecided;
}

/// From when on nothing that was asked for before this request may come; or, if an attempt was in flight, may start.
fn decided(request: &Request) -> Option<(Promise, u64, bool)> {
    match (request.operation, request.answer) {
        (Operation::Cancel, Answer::Cancelled) => Some((Promise::NothingAfterCancel, request.answered_ms, false)),
        (Operation::Cancel, Answer::TooLate) => Some((Promise::NothingAfterCancel, request.answered_ms, true)),
        (Operation::Cancel, Answer::Pending) => {
            Some((Promise::NothingAfterCancel, request.decided_by_ms?.max(request.answered_ms), true))
        }
        (Operation::Put, Answer::Acknowledged) => {
            Some((Promise::NothingOfWhatWasReplaced, request.answered_ms, request.too_late))
        }
        _ => None,
    }
}

/// Whether this is the attempt that `too_late` speaks of: it counts as in flight from before its schedule is read, so it
/// may begin a moment after the answer, if no other was under way then or has begun since.
fn is_the_one(story: &Story, callback: &Callback, decided_ms: u64) -> bool {
    let is_other = |other: &&Callback| (&other.run, other.started_ms) != (&callback.run, callback.started_ms);
    let counts = |other: &Callback| {
        let ended_ms = other.arrived_ms + other.answered_after_ms;
        other.started_ms <= callback.started_ms && ended_ms >= decided_ms
    };
    callback.started_ms <= decided_ms + PUNCTUAL_MS && !story.callbacks.iter().filter(is_other).any(counts)
}

/// A one-shot of which a callback should have come.
pub(super) fn is_lost(story: &Story) -> bool {
    let Some((at, confirmed)) = story.confirmed() else { return false };
    let is_cancelled = story.requests[at..].iter().any(|later| later.operation == Operation::Cancel);
    if is_cancelled || confirmed.at_ms.is_none() {
        return false;
    }
    let may_be = |version| version == confirmed.version || story.is_unknown(version);
    !story.callbacks.iter().any(|callback| may_be(callback.version))
}

/// The instants of a recurring schedule that have neither a callback nor a record of what became of them instead.
pub(super) fn unaccounted(story: &Story, faults: &[Fault]) -> Vec<u64> {
    let Some((at, put)) = story.confirmed() else { return Vec::new() };
    let (Some(every), Some(first)) = (put.every_ms, put.next_ms) else { return Vec::new() };
    // Which of several is obeyed last is not known.
    let is_clear = !story.requests.iter().any(|other| story.is_unknown(other.version));
    let Some(cancel) = story.requests[at..].iter().find(|later| later.operation == Operation::Cancel) else {
        return Vec::new();
    };
    if !is_clear {
        return Vec::new();
    }
    let came: BTreeSet<u64> = story.callbacks.iter().map(|callback| callback.nominal_ms).collect();
    let is_told = |nominal: u64| story.told.iter().any(|told| excuses(told, nominal));
    // What was due without an owner, and was cancelled before there was one, rightly never fires.
    let is_calm = |fault: &Fault| fault.start_ms > cancel.asked_ms || fault.healed_ms + RECOVERY_MS < cancel.asked_ms;
    let owed_until = if faults.iter().all(is_calm) {
        cancel.asked_ms.saturating_sub(PUNCTUAL_MS)
    } else {
        came.last().copied().unwrap_or(0)
    };
    let step = usize::try_from(every).unwrap_or(usize::MAX);
    let nominals = (first..=owed_until.max(first)).step_by(step).filter(|nominal| *nominal <= owed_until);
    nominals.filter(|nominal| !came.contains(nominal) && !is_told(*nominal)).collect()
}

/// Whether what the service tells says why this instant's callback did not arrive: its turn was missed, or attempts were
/// made, none of which arrived before they were given up. A run that nobody ever tried excuses nothing.
fn excuses(told: &Told, nominal: u64) -> bool {
    match told.state.as_str() {
        "missed" => (told.nominal_ms..=told.missed_last_ms.unwrap_or(told.nominal_ms)).contains(&nominal),
        "failed" | "cancelled" => told.nominal_ms == nominal && told.attempts > 0,
        _ => false,
    }
}

fn strange(story: &Story, request: &Request) -> Option<String> {
    let said = request.said.as_deref().unwrap_or("");
    let tried_before = |of: Operation| {
        let is_earlier = |other: &&Request| other.asked_ms < request.asked_ms && other.operation == of;
        story.requests.iter().filter(is_earlier).any(|other| other.answer == Answer::Unknown)
    };
    match request.answer {
        Answer::Strange => Some(format!("{} to a {:?}: {said}", request.status, request.operation)),
        Answer::Unknown if matches!(request.status, 500 | 501..=502 | 505..) => {
            Some(format!("{} to a {:?}: {said}", request.status, request.operation))
        }
        Answer::Exists if !tried_before(Operation::Create) => Some("it is said to exist before it was made".to_owned()),
        Answer::NotFound => {
            let is_there = |other: &Request| other.asked_ms < request.asked_ms && other.is_confirmed();
            story.requests.iter().any(is_there).then(|| "acknowledged, and then not found".to_owned())
        }
        _ => None,
    }
}

/// One-shots that fired under several names.
fn names(story: &Story) -> BTreeMap<u32, BTreeSet<&str>> {
    let mut names: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for callback in &story.callbacks {
        let is_one_shot = story.asked(callback.version).is_some_and(|asked| asked.at_ms.is_some());
        if is_one_shot && !story.is_unknown(callback.version) {
            names.entry(callback.version).or_default().insert(&callback.run);
        }
    }
    names.retain(|_, runs| runs.len() > 1);
    names
}
