//! The receiver's log of a trial, and what it decides: what was lost, doubled or early, and how late the rest was.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::Context;
use cli_support::receiver::{Sink, header};
use domain::{Incarnation, RunId, Timestamp};
use hdrhistogram::Histogram;

use crate::load::latencies;

/// A run id is so long; see [`RunId`].
const ID_BYTES: usize = 52;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) at_micros: i64,
    pub(crate) id: [u8; ID_BYTES],
}

/// What has arrived.
pub(crate) struct Arrivals {
    count: AtomicU64,
    kept: Kept,
}

enum Kept {
    Count,
    Log(Mutex<Log>),
    /// Another receiver writes a line for each arrival into this file.
    File(Mutex<Follower>),
}

/// Grows by chunks, so that no callback waits while a long log is copied.
#[derive(Default)]
struct Log {
    chunks: Vec<Vec<Arrival>>,
    /// Requests without a run's id.
    strange: u64,
}

const CHUNK: usize = 1 << 16;

impl Arrivals {
    pub(crate) fn counting() -> Self {
        Arrivals { count: AtomicU64::new(0), kept: Kept::Count }
    }

    pub(crate) fn logging() -> Self {
        Arrivals { count: AtomicU64::new(0), kept: Kept::Log(Mutex::default()) }
    }

    /// Reads what another receiver appends to its log from now on; see [`parse_line`] for its form.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn following(path: &Path) -> anyhow::Result<Self> {
        let follower = Follower::open(path)?;
        Ok(Arrivals { count: AtomicU64::new(0), kept: Kept::File(Mutex::new(follower)) })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// As [`Arrivals::count`], after a look at the other receiver's log if there is one.
    pub(crate) fn progress(&self) -> anyhow::Result<u64> {
        if let Kept::File(follower) = &self.kept {
            let count = lock(follower).read_on()?;
            self.count.store(count, Ordering::Relaxed);
        }
        Ok(self.count())
    }

    pub(crate) fn verdict(&self, acknowledged: &[Incarnation]) -> anyhow::Result<Verdict> {
        Ok(match &self.kept {
            Kept::Count => judge(&[], 0, acknowledged),
            Kept::Log(log) => {
                let log = lock(log);
                judge(&log.chunks.concat(), log.strange, acknowledged)
            }
            Kept::File(follower) => {
                let mut follower = lock(follower);
                follower.read_on()?;
                let mut verdict = judge(&follower.arrivals, follower.strange, acknowledged);
                verdict.unverified = Some(follower.unverified);
                verdict
            }
        })
    }
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().expect("no holder of this lock panics")
}

impl Sink for Arrivals {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, _body: &[u8]) {
        if let Kept::Log(log) = &self.kept {
            let mut log = lock(log);
            match header(head, "webhook-id").as_bytes().try_into() {
                Ok(id) => log.push(Arrival { at_micros, id }),
                Err(_) => log.strange += 1,
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Another receiver's log, as far as it has been read.
struct Follower {
    file: BufReader<File>,
    /// The beginning of a line that is still being written.
    partial: String,
    arrivals: Vec<Arrival>,
    unverified: u64,
    strange: u64,
}

impl Follower {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file =
            File::open(path).with_context(|| format!("cannot read the receiver's log {}", path.display()))?;
        file.seek(SeekFrom::End(0))?;
        let file = BufReader::with_capacity(1 << 16, file);
        Ok(Follower { file, partial: String::new(), arrivals: Vec::new(), unverified: 0, strange: 0 })
    }

    /// Reads the lines that are there; how many there were since the opening.
    fn read_on(&mut self) -> anyhow::Result<u64> {
        while self.file.read_line(&mut self.partial)? > 0 {
            if self.partial.ends_with('\n') {
                match parse_line(&self.partial) {
                    Some((arrival, verified)) => {
                        self.arrivals.push(arrival);
                        self.unverified += u64::from(!verified);
                    }
                    None => self.strange += 1,
                }
                self.partial.clear();
            }
        }
        Ok(self.arrivals.len() as u64 + self.strange)
    }
}

/// A line of a receiver's log: the arrival in microseconds since 1970, the webhook's id, the attempt, the nominal
/// instant in milliseconds since 1970, and whether the signature was right (`1` or `0`), with blanks between them.
fn parse_line(line: &str) -> Option<(Arrival, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let at_micros = fields.next()?.parse().ok()?;
    let id = fields.next()?.as_bytes().try_into().ok()?;
    let _attempt = fields.next()?;
    let _nominal = fields.next()?;
    Some((Arrival { at_micros, id }, fields.next()? == "1"))
}

impl Log {
    fn push(&mut self, arrival: Arrival) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(arrival),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(arrival);
                self.chunks.push(chunk);
            }
        }
    }
}

pub(crate) struct Verdict {
    /// Runs that arrived at least once.
    pub(crate) arrived: u64,
    /// Acknowledged schedules of which nothing arrived.
    pub(crate) lost: u64,
    /// Arrivals beyond the first of their run.
    pub(crate) doubled: u64,
    /// First arrivals before their nominal instant.
    pub(crate) early: u64,
    /// Arrivals that are of no acknowledged schedule, or without a run's id.
    pub(crate) strange: u64,
    /// Arrivals whose signature was wrong, if the receiver looked.
    pub(crate) unverified: Option<u64>,
    /// Of the first arrivals, in microseconds; early ones count as zero.
    pub(crate) lateness: Histogram<u64>,
    /// The instants of the first arrivals, sorted.
    pub(crate) first_at_micros: Vec<i64>,
}

/// `acknowledged` need not be sorted.
pub(crate) fn judge(arrivals: &[Arrival], strange: u64, acknowledged: &[Incarnation]) -> Verdict {
    let mut missing: BTreeSet<Incarnation> = acknowledged.iter().copied().collect();
    let known = missing.clone();
    let mut sorted: Vec<&Arrival> = arrivals.iter().collect();
    sorted.sort_by_key(|arrival| (arrival.id, arrival.at_micros));
    let mut verdict = Verdict {
        arrived: 0,
        lost: 0,
        doubled: 0,
        early: 0,
        strange,
        unverified: None,
        lateness: latencies(),
        first_at_micros: Vec::new(),
    };
    let mut previous = None;
    for arrival in sorted {
        if previous == Some(arrival.id) {
            verdict.doubled += 1;
            continue;
        }
        previous = Some(arrival.id);
        let occurrence = std::str::from_utf8(&arrival.id).ok().and_then(RunId::parse);
        match occurrence.filter(|occurrence| known.contains(&occurrence.incarnation)) {
            Some(occurrence) => {
                missing.remove(&occurrence.incarnation);
                verdict.arrived += 1;
                verdict.count_lateness(arrival.at_micros, occurrence.nominal);
            }
            None => verdict.strange += 1,
        }
    }
    verdict.lost = u64::try_from(missing.len()).unwrap_or(u64::MAX);
    verdict.first_at_micros.sort_unstable();
    verdict
}

impl Verdict {
    fn count_lateness(&mut self, at_micros: i64, nominal: Timestamp) {
        let late = at_micros - nominal.as_millis() * 1_000;
        if late < 0 {
            self.early += 1;
        }
        self.lateness.saturating_record(u64::try_from(late).unwrap_or(0));
        self.first_at_micros.push(at_micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{Occurrence, Revision};

    const NOMINAL: i64 = 1_800_000_000_000;

    fn arrival(incarnation: u128, late_micros: i64) -> Arrival {
        let occurrence = Occurrence {
            incarnation: Incarnation(incarnation),
            nominal: Timestamp::from_millis(NOMINAL),
            revision: Revision(0),
            replay: 0,
        };
        let id = occurrence.run_id().as_str().as_bytes().try_into().unwrap();
        Arrival { at_micros: NOMINAL * 1_000 + late_micros, id }
    }

    #[test]
    fn what_was_acknowledged_and_never_arrived_is_lost() {
        let verdict = judge(&[arrival(1, 0), arrival(3, 0)], 0, &[1, 2, 3, 4].map(Incarnation));
        assert_eq!((verdict.arrived, verdict.lost, verdict.doubled, verdict.early), (2, 2, 0, 0));
    }

    #[test]
    fn a_second_arrival_of_a_run_is_a_double_and_does_not_count_as_late() {
        let verdict = judge(&[arrival(1, 9_000), arrival(1, 2_000), arrival(1, 9_500)], 0, &[Incarnation(1)]);
        assert_eq!((verdict.arrived, verdict.doubled, verdict.lateness.max()), (1, 2, 2_000));
    }

    #[test]
    fn an_arrival_a_microsecond_before_its_instant_is_early() {
        let verdict = judge(&[arrival(1, -1), arrival(2, 0)], 0, &[1, 2].map(Incarnation));
        assert_eq!(verdict.early, 1);
    }

    #[test]
    fn an_arrival_that_nobody_asked_for_is_told() {
        let nonsense = Arrival { at_micros: 0, id: [b'!'; ID_BYTES] };
        let verdict = judge(&[arrival(7, 0), nonsense], 1, &[Incarnation(1)]);
        assert_eq!((verdict.arrived, verdict.strange, verdict.lost), (0, 3, 1));
    }

    #[test]
    fn another_receivers_log_is_read_from_where_the_trial_began() {
        use std::io::Write;
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let line = |incarnation, late, verified: u8| {
            let Arrival { at_micros, id } = arrival(incarnation, late);
            format!("{at_micros} {} 1 {NOMINAL} {verified}\n", str::from_utf8(&id).unwrap())
        };
        log.write_all(line(9, 0, 1).as_bytes()).unwrap();
        let arrivals = Arrivals::following(log.path()).unwrap();
        let text = line(1, 5, 1) + &line(2, 7, 0) + "nonsense\n" + &line(3, 8, 1);
        let (now, later) = text.split_at(text.len() - 20);
        log.write_all(now.as_bytes()).unwrap();
        assert_eq!(arrivals.progress().unwrap(), 3, "the last line is not whole yet");
        log.write_all(later.as_bytes()).unwrap();
        let verdict = arrivals.verdict(&[1, 2, 3].map(Incarnation)).unwrap();
        assert_eq!((verdict.arrived, verdict.lost, verdict.strange, verdict.unverified), (3, 0, 1, Some(1)));
    }
}
