//! What a person reads of a verdict.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::instant;
use super::super::log::{Answer, Kind, Operation};
use super::lateness::Sample;
use super::{Broken, Promise, Records, Verdict};

/// Whole stories that are told of each broken promise.
const STORIES_MAX: usize = 3;
/// Faults are part of a story if they came so near to it.
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
            "\n{} pairs of callbacks of one poller compared, the term rose in {}; {} callbacks were sent before their \
             cancellation\nand kept back by a cut or pause; {} came of requests that were not answered.\n",
            self.compared, self.risen, self.delayed, self.undecided
        );
        for promise in Promise::ALL {
            let broken: Vec<&Broken> = self.broken.iter().filter(|broken| broken.promise == promise).collect();
            let _infallible = writeln!(text, "{:>8} {}", broken.len(), promise.name());
        }
        for promise in Promise::ALL {
            let broken = self.broken.iter().filter(|broken| broken.promise == promise);
            for broken in broken.take(STORIES_MAX) {
                let _infallible = writeln!(text, "\n{}: {}", promise.name(), broken.how);
                text.push_str(&story(records, &broken.token));
            }
        }
        text
    }

    fn faults(&self, records: &Records) -> String {
        let mut text = format!(
            "\n{:<20} {:>5} {:>8} {:>8} {:>6}   {:>8} {:>7} {:>7} {:>7}   {:>6} {:>7} {:>7}\n",
            "",
            "times",
            "doubles",
            "others'",
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
        let mut line = |name: &str, times: usize, doubles: (u64, u64, u64), late: &Sample, moved: &Sample| {
            let late_of = |percent| cell(late.percentile(percent));
            let moved_of = |percent| cell(moved.percentile(percent));
            let _infallible = writeln!(
                text,
                "{name:<20} {times:>5} {:>8} {:>8} {:>6}   {:>8} {:>7} {:>7} {:>7}   {:>6} {:>7} {:>7}",
                doubles.0,
                doubles.1,
                doubles.2,
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
            let mut doubles = (0, 0, 0);
            for (own, others) in faults.iter().filter_map(|fault| self.doubles.get(&fault.number)) {
                doubles = (doubles.0 + own, doubles.1 + others, doubles.2.max(own + others));
            }
            let late = self.lateness.around.get(&kind).unwrap_or(&empty);
            let moved = self.lateness.recovery.get(&kind).unwrap_or(&empty);
            line(kind.name(), faults.len(), doubles, late, moved);
        }
        text
    }
}

fn counts(records: &Records) -> String {
    let mut requests: BTreeMap<String, usize> = BTreeMap::new();
    let mut callbacks = 0;
    for story in records.stories.values() {
        callbacks += story.callbacks.len();
        for request in &story.requests {
            let operation = match request.operation {
                Operation::Create => "create",
                Operation::Put => "put",
                Operation::Cancel => "cancel",
            };
            let answer = match request.answer {
                Answer::Unknown if request.status == 0 => "no answer".to_owned(),
                Answer::Unknown | Answer::Strange => request.status.to_string(),
                answer => format!("{answer:?}").to_lowercase(),
            };
            *requests.entry(format!("{operation} {answer}")).or_default() += 1;
        }
    }
    let (schedules, faults) = (records.stories.len(), records.faults.len());
    let requests: Vec<String> = requests.into_iter().map(|(what, count)| format!("{what} {count}")).collect();
    format!("\n{schedules} schedules, {callbacks} callbacks, {faults} faults\n{}\n", requests.join(", "))
}

/// All that is known of a schedule, in the order in which it happened.
fn story(records: &Records, token: &str) -> String {
    let Some(story) = records.stories.get(token) else { return String::new() };
    let mut lines: Vec<(u64, String)> = Vec::new();
    for request in &story.requests {
        let due = request.at_ms.map(instant::text).unwrap_or_default();
        let said = request.said.as_deref().unwrap_or("");
        let (operation, version, member) = (request.operation, request.version, &request.member);
        lines.push((request.asked_ms, format!("asked {member}: {operation:?}, version {version} {due}")));
        let answered = format!("{:?} ({}) {said}", request.answer, request.status);
        lines.push((request.answered_ms, format!("answered by {member}: {answered}")));
    }
    for callback in &story.callbacks {
        let what = format!(
            "callback, version {}, run {}, attempt {}, term {} of {}, started at {}, answered {} after {} ms",
            callback.version,
            callback.run,
            callback.attempt,
            callback.term,
            callback.from,
            instant::text(callback.started_ms),
            callback.answered_with,
            callback.answered_after_ms
        );
        lines.push((callback.arrived_ms, what));
    }
    for told in &story.told {
        let last = told.missed_last_ms.map(|last| format!(" until {}", instant::text(last))).unwrap_or_default();
        lines.push((told.nominal_ms, format!("(the service tells of this instant: {}{last})", told.state)));
    }
    let first = lines.iter().map(|(at, _)| *at).min().unwrap_or(0);
    let last = lines.iter().map(|(at, _)| *at).max().unwrap_or(0);
    for fault in &records.faults {
        if fault.start_ms <= last + NEAR_MS && first <= fault.healed_ms + NEAR_MS {
            let (number, name, member) = (fault.number, fault.kind.name(), &fault.member);
            lines.push((fault.start_ms, format!("- fault {number} begins: {name} {member}")));
            lines.push((fault.end_ms, format!("- fault {number} is over")));
            lines.push((fault.healed_ms, format!("- fault {number} is healed")));
        }
    }
    lines.sort();
    let poller = records.pollers.get(token).map_or_else(|| "?".to_owned(), i64::to_string);
    let id = story.id().unwrap_or_default();
    let mut text = format!("  schedule {token} (id {id}, poller {poller}):\n");
    for (at, line) in lines {
        let _infallible = writeln!(text, "  {} {line}", instant::text(at));
    }
    text
}
