//! Formats the verdict on a chaos test as text for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::instant;
use super::super::log::{Answer, Kind, Operation};
use super::lateness::Sample;
use super::{Promise, Records, Verdict, Violation};

/// Maximum number of histories that the report contains for each violated guarantee.
const HISTORIES_MAX: usize = 3;
/// Maximum time in milliseconds between the history of a schedule and a fault that the report lists with this history.
const NEAR_MS: u64 = 15_000;

impl Verdict {
    pub(in super::super) fn is_good(&self) -> bool {
        self.broken.is_empty()
    }

    pub(in super::super) fn text(&self, records: &Records) -> String {
        let mut text = counts(records);
        text.push_str(&self.faults(records));
        let _infallible = writeln!(
            text,
            "\nThe check compared {} pairs of callbacks of the same poller. \
             The later callback has a higher term in {} pairs.\n\
             {} callbacks arrived after the cancellation or replacement of their schedule, \
             because a fault delayed them.\n\
             {} callbacks that arrived after such a change belong to a request without a response.\n\
             {} callbacks arrived after such a change, because a fail-over may have undone it, or because their sender \
             had not noticed the fail-over.\n\
             {} attempts of earlier owners started after a fail-over and after an attempt of the next owner.\n",
            self.compared, self.term_rises, self.delayed, self.undecided, self.undone, self.overlapping
        );
        for promise in Promise::ALL {
            let broken: Vec<&Violation> = self.broken.iter().filter(|broken| broken.promise == promise).collect();
            let _infallible = writeln!(text, "{:>8} {}", broken.len(), promise.name());
        }
        for promise in Promise::ALL {
            let broken = self.broken.iter().filter(|broken| broken.promise == promise);
            for broken in broken.take(HISTORIES_MAX) {
                let _infallible = writeln!(text, "\n{}: {}", promise.name(), broken.how);
                text.push_str(&history(records, &broken.token));
            }
        }
        text
    }

    fn faults(&self, records: &Records) -> String {
        let mut text = format!(
            "\n{:<20} {:>5} {:>10} {:>10} {:>6}   {:>8} {:>7} {:>7} {:>7}   {:>6} {:>7} {:>7}\n",
            "",
            "times",
            "duplicates",
            "of others",
            "most",
            "fired",
            "p50 ms",
            "p99 ms",
            "max ms",
            "moved",
            "p50 ms",
            "max ms"
        );
        let cell = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let empty = Sample::default();
        let mut line = |name: &str, times: usize, duplicates: (u64, u64, u64), late: &Sample, moved: &Sample| {
            let late_of = |percent| cell(late.percentile(percent));
            let moved_of = |percent| cell(moved.percentile(percent));
            let _infallible = writeln!(
                text,
                "{name:<20} {times:>5} {:>10} {:>10} {:>6}   {:>8} {:>7} {:>7} {:>7}   {:>6} {:>7} {:>7}",
                duplicates.0,
                duplicates.1,
                duplicates.2,
                late.count(),
                late_of(50),
                late_of(99),
                late_of(100),
                moved.count(),
                moved_of(50),
                moved_of(100)
            );
        };
        line("calm", 0, (0, 0, 0), &self.lateness.calm, &empty);
        for kind in Kind::ALL {
            let faults: Vec<_> = records.faults.iter().filter(|fault| fault.kind == kind).collect();
            let mut duplicates = (0, 0, 0);
            for (own, others) in faults.iter().filter_map(|fault| self.duplicates.get(&fault.number)) {
                duplicates = (duplicates.0 + own, duplicates.1 + others, duplicates.2.max(own + others));
            }
            let late = self.lateness.around.get(&kind).unwrap_or(&empty);
            let moved = self.lateness.recovery.get(&kind).unwrap_or(&empty);
            line(kind.name(), faults.len(), duplicates, late, moved);
        }
        text
    }
}

fn counts(records: &Records) -> String {
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    let (mut callbacks, mut records_in_topic) = (0, 0);
    for history in records.histories.values() {
        callbacks += history.callbacks.len();
        records_in_topic += history.callbacks.iter().filter(|callback| callback.is_record).count();
        for request in &history.requests {
            let operation = match request.operation {
                Operation::Create => "create",
                Operation::Put => "put",
                Operation::Cancel => "cancel",
            };
            let answer = match request.answer {
                Answer::Unknown if request.status == 0 => "no response".to_owned(),
                Answer::Unknown | Answer::Strange => request.status.to_string(),
                answer => format!("{answer:?}").to_lowercase(),
            };
            *requests.entry(format!("{operation} {answer}")).or_default() += 1;
        }
    }
    let (schedules, faults) = (records.histories.len(), records.faults.len());
    let requests: Vec<String> = requests.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!(
        "\n{schedules} schedules, {callbacks} callbacks ({records_in_topic} of them as records in the topic), {faults} \
         faults\n{}\n",
        requests.join(", ")
    )
}

/// Formats the history of a schedule in chronological order.
fn history(records: &Records, token: &str) -> String {
    let Some(history) = records.histories.get(token) else { return String::new() };
    let mut lines: Vec<(u64, String)> = Vec::new();
    for request in &history.requests {
        let due = request.at_ms.map(instant::text).unwrap_or_default();
        let said = request.said.as_deref().unwrap_or("");
        let (operation, version, member) = (request.operation, request.version, &request.member);
        lines.push((request.asked_ms, format!("sent to {member}: {operation:?}, version {version} {due}")));
        let response = format!("{:?} ({}) {said}", request.answer, request.status);
        lines.push((request.answered_ms, format!("response of {member}: {response}")));
    }
    for callback in &history.callbacks {
        let text = format!(
            "callback: version {}, run {}, attempt {}, term {} of member {}, started at {}, \
             response status {} after {} ms",
            callback.version,
            callback.run,
            callback.attempt,
            callback.term,
            callback.from,
            instant::text(callback.started_ms),
            callback.answered_with,
            callback.answered_after_ms
        );
        lines.push((callback.arrived_ms, text));
    }
    for run in &history.runs {
        let last = run.missed_last_ms.map(|last| format!(" until {}", instant::text(last))).unwrap_or_default();
        lines.push((run.nominal_ms, format!("(recorded outcome of this occurrence: {}{last})", run.state)));
    }
    let first = lines.iter().map(|(at, _)| *at).min().unwrap_or(0);
    let last = lines.iter().map(|(at, _)| *at).max().unwrap_or(0);
    for fault in &records.faults {
        if fault.start_ms <= last + NEAR_MS && first <= fault.healed_ms + NEAR_MS {
            let (number, name, member) = (fault.number, fault.kind.name(), &fault.member);
            lines.push((fault.start_ms, format!("- fault {number} begins: {name} {member}")));
            lines.push((fault.end_ms, format!("- fault {number} ends")));
            lines.push((fault.healed_ms, format!("- fault {number} is healed")));
            if let Some(lost) = fault.lost {
                lines.push((lost.from_ms, format!("- from now on, fault {number} may lose commits")));
                lines.push((lost.until_ms, format!("- fault {number} has ended the primary; later commits stay")));
            }
        }
    }
    lines.sort();
    let poller = records.pollers.get(token).map_or_else(|| "?".to_owned(), i64::to_string);
    let id = history.id().unwrap_or_default();
    let mut text = format!("  schedule {token} (id {id}, poller {poller}):\n");
    for (at, line) in lines {
        let _infallible = writeln!(text, "  {} {line}", instant::text(at));
    }
    text
}
