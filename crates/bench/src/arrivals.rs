//! Log of the callbacks that a receiver received during a trial. A [`Verdict`] on the log contains the numbers of lost,
//! duplicated and early callbacks, and the lateness of the callbacks that arrived.

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

/// Number of bytes of a run id; see [`RunId`].
pub(crate) const ID_BYTES: usize = 52;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) at_micros: i64,
    pub(crate) id: [u8; ID_BYTES],
}

/// Record of the callbacks that have arrived.
pub(crate) struct Arrivals {
    count: AtomicU64,
    record: Record,
}

enum Record {
    Count,
    Log(Mutex<Log>),
    /// File into which an external receiver writes a line for each arrival.
    File(Mutex<Follower>),
}

/// Log in memory. The log grows by chunks, so that no callback waits while the process copies a long log.
#[derive(Default)]
struct Log {
    chunks: Vec<Vec<Arrival>>,
    /// Number of requests without a run id.
    unmatched: u64,
}

const CHUNK: usize = 1 << 16;

impl Arrivals {
    pub(crate) fn counting() -> Self {
        Arrivals { count: AtomicU64::new(0), record: Record::Count }
    }

    pub(crate) fn logging() -> Self {
        Arrivals { count: AtomicU64::new(0), record: Record::Log(Mutex::default()) }
    }

    /// Follows the log of an external receiver from its current end; see [`parse_line`] for the format.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub(crate) fn following(path: &Path) -> anyhow::Result<Self> {
        let follower = Follower::open(path)?;
        Ok(Arrivals { count: AtomicU64::new(0), record: Record::File(Mutex::new(follower)) })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the number of arrivals. If an external receiver logs the arrivals, the function first reads the new
    /// lines of this receiver's log.
    pub(crate) fn progress(&self) -> anyhow::Result<u64> {
        if let Record::File(follower) = &self.record {
            let count = lock(follower).read_new_lines()?;
            self.count.store(count, Ordering::Relaxed);
        }
        Ok(self.count())
    }

    pub(crate) fn verdict(&self, acknowledged: &[Incarnation]) -> anyhow::Result<Verdict> {
        Ok(match &self.record {
            Record::Count => judge(&[], 0, acknowledged),
            Record::Log(log) => {
                let log = lock(log);
                judge(&log.chunks.concat(), log.unmatched, acknowledged)
            }
            Record::File(follower) => {
                let mut follower = lock(follower);
                follower.read_new_lines()?;
                let mut verdict = judge(&follower.arrivals, follower.unmatched, acknowledged);
                verdict.unverified = Some(follower.unverified);
                verdict
            }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no task panics while it holds this lock")
}

impl Sink for Arrivals {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, _body: &[u8]) {
        if let Record::Log(log) = &self.record {
            let mut log = lock(log);
            match header(head, "webhook-id").as_bytes().try_into() {
                Ok(id) => log.push(Arrival { at_micros, id }),
                Err(_) => log.unmatched += 1,
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads the log of an external receiver while the receiver writes it.
struct Follower {
    file: BufReader<File>,
    /// Start of a line that the receiver has not yet completed.
    partial: String,
    arrivals: Vec<Arrival>,
    unverified: u64,
    unmatched: u64,
}

impl Follower {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file =
            File::open(path).with_context(|| format!("cannot read the receiver's log {}", path.display()))?;
        file.seek(SeekFrom::End(0))?;
        let file = BufReader::with_capacity(1 << 16, file);
        Ok(Follower { file, partial: String::new(), arrivals: Vec::new(), unverified: 0, unmatched: 0 })
    }

    /// Reads all complete new lines of the log. Returns the number of all lines that this follower has read.
    fn read_new_lines(&mut self) -> anyhow::Result<u64> {
        while self.file.read_line(&mut self.partial)? > 0 {
            if self.partial.ends_with('\n') {
                match parse_line(&self.partial) {
                    Some((arrival, verified)) => {
                        self.arrivals.push(arrival);
                        self.unverified += u64::from(!verified);
                    }
                    None => self.unmatched += 1,
                }
                self.partial.clear();
            }
        }
        Ok(self.arrivals.len() as u64 + self.unmatched)
    }
}

/// Parses a line of a receiver's log. Spaces separate its fields: the instant of the arrival in microseconds since
/// 1970, the webhook id, the attempt's number, the nominal instant in milliseconds since 1970, and the validity of the
/// signature (`1` or `0`).
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
    /// Number of runs whose callback arrived at least once.
    pub(crate) arrived: u64,
    /// Number of acknowledged schedules without any arrival.
    pub(crate) lost: u64,
    /// Number of repeated arrivals: all arrivals of a run except its first arrival.
    pub(crate) doubled: u64,
    /// Number of first arrivals that happened before their nominal instant.
    pub(crate) early: u64,
    /// Number of arrivals that belong to no acknowledged schedule or have no run id.
    pub(crate) unmatched: u64,
    /// Number of arrivals with an invalid signature; `None` if the receiver did not verify signatures.
    pub(crate) unverified: Option<u64>,
    /// Lateness of the first arrivals in microseconds; an early arrival counts as zero.
    pub(crate) lateness: Histogram<u64>,
    /// Instant and nominal instant of each first arrival in microseconds, sorted.
    pub(crate) first_micros: Vec<(i64, i64)>,
}

/// Computes the verdict on the arrivals. The order of `acknowledged` does not matter.
pub(crate) fn judge(arrivals: &[Arrival], unmatched: u64, acknowledged: &[Incarnation]) -> Verdict {
    let mut missing: BTreeSet<Incarnation> = acknowledged.iter().copied().collect();
    let known = missing.clone();
    let mut sorted: Vec<&Arrival> = arrivals.iter().collect();
    sorted.sort_by_key(|arrival| (arrival.id, arrival.at_micros));
    let mut verdict = Verdict {
        arrived: 0,
        lost: 0,
        doubled: 0,
        early: 0,
        unmatched,
        unverified: None,
        lateness: latencies(),
        first_micros: Vec::new(),
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
            None => verdict.unmatched += 1,
        }
    }
    verdict.lost = u64::try_from(missing.len()).unwrap_or(u64::MAX);
    verdict.first_micros.sort_unstable();
    verdict
}

impl Verdict {
    fn count_lateness(&mut self, at_micros: i64, nominal: Timestamp) {
        let nominal_micros = nominal.as_millis() * 1_000;
        let late = at_micros - nominal_micros;
        if late < 0 {
            self.early += 1;
        }
        self.lateness.saturating_record(u64::try_from(late).unwrap_or(0));
        self.first_micros.push((at_micros, nominal_micros));
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
    fn acknowledged_schedule_without_arrival_counts_as_lost() {
        let verdict = judge(&[arrival(1, 0), arrival(3, 0)], 0, &[1, 2, 3, 4].map(Incarnation));
        assert_eq!((verdict.arrived, verdict.lost, verdict.doubled, verdict.early), (2, 2, 0, 0));
    }

    #[test]
    fn duplicate_arrival_is_counted_but_its_lateness_is_ignored() {
        let verdict = judge(&[arrival(1, 9_000), arrival(1, 2_000), arrival(1, 9_500)], 0, &[Incarnation(1)]);
        assert_eq!((verdict.arrived, verdict.doubled, verdict.lateness.max()), (1, 2, 2_000));
    }

    #[test]
    fn arrival_one_microsecond_before_its_due_instant_is_early() {
        let verdict = judge(&[arrival(1, -1), arrival(2, 0)], 0, &[1, 2].map(Incarnation));
        assert_eq!(verdict.early, 1);
    }

    #[test]
    fn arrival_without_acknowledged_schedule_is_unmatched() {
        let nonsense = Arrival { at_micros: 0, id: [b'!'; ID_BYTES] };
        let verdict = judge(&[arrival(7, 0), nonsense], 1, &[Incarnation(1)]);
        assert_eq!((verdict.arrived, verdict.unmatched, verdict.lost), (0, 3, 1));
    }

    #[test]
    fn log_follower_ignores_lines_written_before_it_starts() {
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
        assert_eq!(arrivals.progress().unwrap(), 3, "the last line is incomplete");
        log.write_all(later.as_bytes()).unwrap();
        let verdict = arrivals.verdict(&[1, 2, 3].map(Incarnation)).unwrap();
        assert_eq!((verdict.arrived, verdict.lost, verdict.unmatched, verdict.unverified), (3, 0, 1, Some(1)));
    }
}
