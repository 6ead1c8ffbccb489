//! Verdict on the records of a topic.

use std::collections::BTreeSet;

use bus::Record;
use domain::{Incarnation, RunId};

use crate::arrivals::{self, Arrival, ID_BYTES};
use crate::message::PAYLOAD_BYTES;
use crate::report::Row;

/// Headers that each record must have.
const HEADERS: [&str; 8] = [
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "reveille-run-id",
    "reveille-schedule-id",
    "reveille-attempt",
    "reveille-scheduled-at",
    "reveille-term",
];

/// Parts of a record that the verdict uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Time at which the broker appended the record, in milliseconds since 1970.
    appended_millis: i64,
    /// Id of the run; `None` if the record has no such id.
    id: Option<[u8; ID_BYTES]>,
    attempt: u64,
    term: u64,
    /// True if the record has all headers and a payload of the right size.
    is_complete: bool,
}

impl Seen {
    pub(super) fn of(record: &Record) -> Self {
        let header = |name: &str| {
            let header = record.headers.iter().find(|header| header.name == name);
            header.and_then(|header| header.value.as_deref()).unwrap_or_default()
        };
        let number = |name| std::str::from_utf8(header(name)).ok().and_then(|text| text.parse().ok());
        let (attempt, term) = (number("reveille-attempt"), number("reveille-term"));
        let is_complete = HEADERS.iter().all(|name| !header(name).is_empty())
            && header("webhook-id") == header("reveille-run-id")
            && header("webhook-signature").starts_with(b"v1,")
            && attempt.is_some()
            && term.is_some()
            && record.value.as_ref().is_some_and(|value| value.len() == PAYLOAD_BYTES);
        Seen {
            appended_millis: record.timestamp.as_millis(),
            id: header("webhook-id").try_into().ok(),
            attempt: attempt.unwrap_or(0),
            term: term.unwrap_or(0),
            is_complete,
        }
    }

    fn run_is_of(&self, schedules: &BTreeSet<Incarnation>) -> bool {
        let text = self.id.as_ref().and_then(|id| std::str::from_utf8(id).ok());
        text.and_then(RunId::parse).is_some_and(|occurrence| schedules.contains(&occurrence.incarnation))
    }
}

pub(super) struct Verdict {
    /// Counts of lost, repeated and early records. The lateness is an upper bound, because the time of a record is in whole
    /// milliseconds.
    pub(super) arrivals: arrivals::Verdict,
    /// Number of repeated records that have the attempt and the term of another record of their run. Only the bus or its
    /// client repeats a record without a further attempt.
    pub(super) unexplained: u64,
    /// Number of repeated records with another attempt than the record before them.
    pub(super) other_attempt: u64,
    /// Number of repeated records with the same attempt under another term, because the server was killed.
    pub(super) other_term: u64,
    /// Number of records without all headers, or with another payload.
    pub(super) incomplete: u64,
}

impl Verdict {
    /// Returns the number of records that no fault explains, and the number of lost callbacks.
    pub(super) fn wrong(&self) -> u64 {
        let arrivals = &self.arrivals;
        arrivals.lost + arrivals.early + arrivals.unmatched + self.unexplained + self.incomplete
    }

    /// Returns a row with the counts and the lateness.
    pub(super) fn row(&self, trial: &str) -> Row {
        let arrivals = &self.arrivals;
        let mut row = Row::new(trial).with_latency(&arrivals.lateness);
        row.count = Some(arrivals.arrived);
        row.lost = Some(arrivals.lost);
        row.doubled = Some(arrivals.doubled);
        row.early = Some(arrivals.early);
        let (unmatched, incomplete) = (arrivals.unmatched, self.incomplete);
        if unmatched + incomplete > 0 {
            row.notes.push(format!(
                "{unmatched} records belonged to no schedule of this trial; {incomplete} records lacked a header, or had \
                 another payload"
            ));
        }
        row
    }

    /// Describes the repeated records.
    pub(super) fn duplicates(&self) -> String {
        let Verdict { other_attempt, other_term, unexplained, .. } = self;
        format!(
            "repeated records under one id: {other_attempt} of a further attempt, {other_term} of the same attempt under \
             another term, {unexplained} without either"
        )
    }
}

/// Computes the verdict on the records of a topic. Ignores the records of the schedules `warm_up`.
pub(super) fn judge(mut seen: Vec<Seen>, warm_up: &[Incarnation], acknowledged: &[Incarnation]) -> Verdict {
    let warm_up: BTreeSet<Incarnation> = warm_up.iter().copied().collect();
    seen.retain(|record| !record.run_is_of(&warm_up));
    let without_id = seen.iter().filter(|record| record.id.is_none()).count();
    let arrived: Vec<Arrival> = seen.iter().filter_map(|record| Some((record, record.id?))).map(arrival).collect();
    let arrivals = arrivals::judge(&arrived, u64::try_from(without_id).unwrap_or(u64::MAX), acknowledged);
    let incomplete = seen.iter().filter(|record| !record.is_complete).count();
    let mut verdict = Verdict {
        arrivals,
        unexplained: 0,
        other_attempt: 0,
        other_term: 0,
        incomplete: u64::try_from(incomplete).unwrap_or(u64::MAX),
    };
    seen.retain(|record| record.id.is_some());
    seen.sort_by_key(|record| (record.id, record.attempt, record.term));
    for pair in seen.array_windows::<2>() {
        let [before, after] = pair;
        if before.id != after.id {
            continue;
        }
        let count = if before.attempt != after.attempt {
            &mut verdict.other_attempt
        } else if before.term != after.term {
            &mut verdict.other_term
        } else {
            &mut verdict.unexplained
        };
        *count += 1;
    }
    verdict
}

/// Returns the arrival of a record at the last microsecond of the millisecond in which the broker appended it.
fn arrival((record, id): (&Seen, [u8; ID_BYTES])) -> Arrival {
    Arrival { at_micros: record.appended_millis * 1_000 + 999, id }
}

#[cfg(test)]
mod tests {
    use bus::{Header, Offset};
    use bytes::Bytes;
    use domain::{Occurrence, Revision, Timestamp};

    use super::*;

    const NOMINAL: i64 = 1_800_000_000_000;

    fn record(incarnation: u128, attempt: u64, term: u64, late_millis: i64) -> Record {
        let nominal = Timestamp::from_millis(NOMINAL);
        let incarnation = Incarnation(incarnation);
        let id = Occurrence { incarnation, nominal, revision: Revision(0), replay: 0 }.run_id().to_string();
        let value = |name: &str| match name {
            "webhook-id" | "reveille-run-id" => id.clone(),
            "webhook-signature" => "v1,c2lnbmF0dXJl".to_owned(),
            "reveille-attempt" => attempt.to_string(),
            "reveille-term" => term.to_string(),
            _ => "x".to_owned(),
        };
        let header = |name: &str| Header { name: name.to_owned(), value: Some(value(name).into()) };
        Record {
            offset: Offset(0),
            timestamp: Timestamp::from_millis(NOMINAL + late_millis),
            key: None,
            value: Some(Bytes::from(vec![b'x'; PAYLOAD_BYTES])),
            headers: HEADERS.into_iter().map(header).collect(),
        }
    }

    fn verdict(records: &[Record], schedules: u128) -> Verdict {
        let acknowledged: Vec<Incarnation> = (1..=schedules).map(Incarnation).collect();
        judge(records.iter().map(Seen::of).collect(), &[Incarnation(99)], &acknowledged)
    }

    #[test]
    fn complete_topic_has_each_run_once() {
        let verdict = verdict(&[record(2, 1, 1, 3), record(1, 1, 1, 0), record(99, 1, 1, 0)], 2);
        assert_eq!((verdict.arrivals.arrived, verdict.wrong(), verdict.arrivals.doubled), (2, 0, 0));
        assert_eq!(verdict.arrivals.lateness.max(), 3_999);
    }

    #[test]
    fn run_without_a_record_is_lost() {
        let verdict = verdict(&[record(1, 1, 1, 0), record(3, 1, 1, 0)], 4);
        assert_eq!((verdict.arrivals.lost, verdict.wrong()), (2, 2));
    }

    #[test]
    fn repeated_record_needs_another_attempt_or_term() {
        let explained = verdict(&[record(1, 1, 1, 0), record(1, 2, 1, 9), record(1, 2, 2, 9)], 1);
        assert_eq!((explained.arrivals.doubled, explained.other_attempt, explained.other_term), (2, 1, 1));
        assert_eq!(explained.wrong(), 0);
        let unexplained = verdict(&[record(1, 1, 1, 0), record(2, 1, 1, 0), record(1, 1, 1, 9)], 2);
        assert_eq!((unexplained.arrivals.doubled, unexplained.unexplained, unexplained.wrong()), (1, 1, 1));
    }

    #[test]
    fn record_before_its_instant_or_of_another_schedule_is_wrong() {
        let verdict = verdict(&[record(1, 1, 1, -1), record(7, 1, 1, 0)], 1);
        assert_eq!((verdict.arrivals.early, verdict.arrivals.unmatched, verdict.wrong()), (1, 1, 2));
    }

    #[test]
    fn record_without_a_header_or_with_another_payload_is_incomplete() {
        for name in HEADERS {
            let mut incomplete = record(1, 1, 1, 0);
            incomplete.headers.retain(|header| header.name != name);
            assert_eq!(verdict(&[incomplete], 1).incomplete, 1, "{name}");
        }
        let other = Record { value: Some(Bytes::from_static(b"{}")), ..record(1, 1, 1, 0) };
        assert_eq!(verdict(&[other], 1).incomplete, 1);
        let unsigned = |mut record: Record| {
            record.headers.iter_mut().filter(|header| header.name == "webhook-signature").for_each(|header| {
                header.value = Some(Bytes::from_static(b"unsigned"));
            });
            record
        };
        assert_eq!(verdict(&[unsigned(record(1, 1, 1, 0))], 1).incomplete, 1);
    }
}
