//! Check for callbacks that a member repeated although the target's response required no retry.

use std::collections::BTreeMap;

use super::super::log::{Callback, Fault};
use super::{History, Promise, Verdict, Violation};

/// Maximum number of attempts that a member has in flight, which is the default of `serve`.
const IN_FLIGHT_MAX: u64 = 4_096;

pub(super) fn judge(token: &str, history: &History, faults: &[Fault], verdict: &mut Verdict) {
    let mut runs: BTreeMap<&str, Vec<&Callback>> = BTreeMap::new();
    for callback in &history.callbacks {
        runs.entry(&callback.run).or_default().push(callback);
    }
    for callbacks in runs.values() {
        for pair in callbacks.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if first.answered_with != 200 && second.attempt == first.attempt + 1 {
                continue;
            }
            let own = faults.iter().find(|fault| fault.is_of(first) && fault.repeats(first, second));
            // If the fault affects the shard's next owner, an outcome on its way to this owner may be lost.
            let other = || faults.iter().find(|fault| fault.repeats(first, second));
            if let Some(fault) = own {
                verdict.duplicates.entry(fault.number).or_default().0 += 1;
            } else if let Some(fault) = other() {
                verdict.duplicates.entry(fault.number).or_default().1 += 1;
            } else {
                let how = format!(
                    "no fault explains a duplicate of run {}: attempt {} by member {} received status {} at {} ms \
                     since 1970, but attempt {} by member {} started at {} ms",
                    first.run,
                    first.attempt,
                    first.from,
                    first.answered_with,
                    first.arrived_ms + first.answered_after_ms,
                    second.attempt,
                    second.from,
                    second.started_ms
                );
                let token = token.to_owned();
                verdict.broken.push(Violation { promise: Promise::DuplicatesOnlyInFlight, token, how });
            }
        }
    }
}

pub(super) fn judge_cap(faults: &[Fault], verdict: &mut Verdict) {
    // After a loss, members also repeat the attempts whose outcomes the database has lost.
    let is_lossy = |number: usize| faults.iter().any(|fault| fault.number == number && fault.lost.is_some());
    for (number, (own, others)) in &verdict.duplicates {
        if own + others > IN_FLIGHT_MAX && !is_lossy(*number) {
            let how = format!(
                "fault {number} caused more than {IN_FLIGHT_MAX} duplicates: {own} after attempts by its member and \
                 {others} after attempts by other members"
            );
            verdict.broken.push(Violation { promise: Promise::DuplicatesBelowCap, token: String::new(), how });
        }
    }
}
