//! State of the buffer. It is pure: the caller provides the time, and reads and writes the journal.
//!
//! Each record has a number, in the order of the calls. A record is *handed over* from the call of the bus's producer until
//! its outcome. The journal contains records in the order of their numbers.
//!
//! Invariants: the records are handed over in the order of their numbers. All records below [`State::finished`] have their
//! outcome. A record is accepted when it is on disk, or when the bus has acknowledged it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bus::{BusError, NewRecord, Position};
use bytes::Bytes;
use instants::Monotonic;
use tokio::sync::oneshot;

use crate::entry::{Entry, encode_record};
use crate::{Backlog, BufferError, IN_FLIGHT_BYTES_MAX};

/// Receives whether a record is durable.
pub(crate) type Durable = oneshot::Receiver<Result<(), BufferError>>;
/// Receives the position of a record.
pub(crate) type Stored = oneshot::Receiver<Result<Position, BusError>>;

/// Outcomes that the caller of a record waits for.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    durable: Option<oneshot::Sender<Result<(), BufferError>>>,
    stored: Option<oneshot::Sender<Result<Position, BusError>>>,
}

impl Promise {
    pub(crate) fn new() -> (Self, Durable, Stored) {
        let ((durable, is_durable), (stored, is_stored)) = (oneshot::channel(), oneshot::channel());
        (Promise { durable: Some(durable), stored: Some(stored) }, is_durable, is_stored)
    }

    /// Tells the caller that the record is durable, or that the buffer has not accepted it. The first call counts.
    fn decide(&mut self, outcome: Result<(), BufferError>) {
        // The caller may have dropped its future.
        drop(self.durable.take().map(|durable| durable.send(outcome)));
    }

    /// Tells the caller that the buffer has not accepted the record.
    pub(crate) fn reject(mut self, error: &BufferError) {
        self.decide(Err(error.clone()));
    }

    /// Returns true if the caller does not wait for an outcome.
    fn is_dropped(&self) -> bool {
        self.durable.is_none() && self.stored.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn end(mut self, outcome: Result<Position, BusError>) {
        self.decide(outcome.as_ref().map(|_| ()).map_err(|error| error.clone().into()));
        drop(self.stored.take().map(|stored| stored.send(outcome)));
    }
}

/// Record that the bus has received and not acknowledged.
#[derive(Debug)]
struct Handed {
    began: Monotonic,
    bytes: u64,
    place: Place,
    /// Outcome that does not count yet: the position, or `None` if the record must be handed over again. The outcome of a
    /// record in the queue counts when its entry is durable, and the outcome of a record in memory when all earlier records
    /// have theirs. Otherwise a crash could repeat earlier records of the key, and not repeat this one.
    outcome: Option<Option<Position>>,
    promise: Promise,
}

/// Place of a record besides the bus.
#[derive(Debug)]
enum Place {
    /// Only in memory.
    Memory(NewRecord),
    /// On its way to the disk.
    Queue,
    /// In the entry of the journal with this index.
    Disk(u64),
    /// Nowhere, because the disk is full. The caller knows that the record is not accepted.
    Nowhere,
}

/// First record of a part of the journal.
#[derive(Debug)]
struct Mark {
    index: u64,
    number: u64,
    /// Size of the records before this part, in bytes.
    bytes_before: u64,
}

/// Returns true if the bus never stores the record, whatever an operator changes.
fn is_final(error: &BusError) -> bool {
    matches!(error, BusError::RecordTooLarge { .. } | BusError::Invalid(_) | BusError::Unsupported(_))
}

/// Size of a block of the journal's files, in bytes.
const BLOCK_BYTES: u64 = 4_096;
/// Smallest size of the part of the journal that a [`Mark`] describes, in bytes.
const PART_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct State {
    /// True if new records go to the journal.
    pub(crate) is_buffering: bool,
    pub(crate) is_closed: bool,
    /// True while a sender waits for room.
    pub(crate) is_full: bool,
    /// Number of the next new record.
    pub(crate) next: u64,
    /// Number of the next record to hand over.
    unsent: u64,
    handed: BTreeMap<u64, Handed>,
    handed_bytes: u64,
    /// Promises of records that are not handed over. A record without a promise has no caller that waits.
    waiting: BTreeMap<u64, Promise>,
    /// Number of the record at which the next search for dropped promises begins.
    forget_from: u64,
    /// Records that must be handed over again, and the indexes of their entries.
    failed: BTreeMap<u64, u64>,
    last_outcome: Monotonic,
    marks: VecDeque<Mark>,
    /// Number of entries of records in the queue of the journal.
    appending: usize,
    /// Size of all appended, durable and released entries of records, in bytes.
    appended_bytes: u64,
    durable_bytes: u64,
    released_bytes: u64,
    /// Number and index of the last record in the journal.
    last_durable: Option<(u64, u64)>,
    /// Records below this number are finished, as the journal says.
    stored_finished: u64,
}

impl State {
    pub(crate) fn new(now: Monotonic) -> Self {
        State {
            is_buffering: false,
            is_closed: false,
            is_full: false,
            next: 0,
            unsent: 0,
            handed: BTreeMap::new(),
            handed_bytes: 0,
            waiting: BTreeMap::new(),
            forget_from: 0,
            failed: BTreeMap::new(),
            last_outcome: now,
            marks: VecDeque::new(),
            appending: 0,
            appended_bytes: 0,
            durable_bytes: 0,
            released_bytes: 0,
            last_durable: None,
            stored_finished: 0,
        }
    }

    /// Adds an entry that the journal contained at the start. The entries arrive in their order.
    pub(crate) fn recover(&mut self, index: u64, bytes: u64, entry: &Entry) {
        match entry {
            Entry::Record(number, _) => {
                self.next = self.next.max(number + 1);
                self.appended_bytes += bytes;
                self.add_durable(index, bytes, *number);
            }
            Entry::Finished(below) => {
                // An earlier entry may contain a later number.
                self.stored_finished = self.stored_finished.max(*below);
                self.unsent = self.unsent.max(*below);
                self.next = self.next.max(*below);
            }
        }
        self.unsent = self.unsent.max(self.marks.front().map_or(0, |mark| mark.number));
        self.is_buffering = self.unsent < self.next;
    }

    /// Sets the least size of the recovered journal, because its blocks are larger than their entries.
    pub(crate) fn end_recovery(&mut self, journal_bytes: u64) {
        if !self.marks.is_empty() {
            self.durable_bytes = self.durable_bytes.max(journal_bytes);
            self.appended_bytes = self.durable_bytes;
        }
    }

    fn add_durable(&mut self, index: u64, bytes: u64, number: u64) {
        let starts_part = self.marks.back().is_none_or(|mark| self.durable_bytes - mark.bytes_before >= PART_BYTES);
        if starts_part {
            self.marks.push_back(Mark { index, number, bytes_before: self.durable_bytes });
        }
        self.durable_bytes += bytes;
        self.last_durable = Some((number, index));
    }

    /// Hands over a new record. Returns its number.
    pub(crate) fn hand_over_new(&mut self, now: Monotonic, record: NewRecord, promise: Promise) -> u64 {
        let number = self.next;
        self.next += 1;
        self.unsent = self.next;
        let bytes = record.bytes() as u64;
        self.handed_bytes += bytes;
        let handed = Handed { began: now, bytes, place: Place::Memory(record), outcome: None, promise };
        self.handed.insert(number, handed);
        number
    }

    /// Adds the next record, whose entry the caller now appends to the journal.
    pub(crate) fn append_new(&mut self, number: u64, bytes: u64, promise: Promise) {
        self.next = number + 1;
        self.waiting.insert(number, promise);
        self.appending += 1;
        self.appended_bytes += bytes;
    }

    /// Removes the last record, because the journal has not accepted its entry. Returns its promise.
    pub(crate) fn cancel(&mut self, number: u64, bytes: u64) -> Promise {
        self.next = number;
        self.appending -= 1;
        self.appended_bytes -= bytes;
        self.waiting.remove(&number).unwrap_or_default()
    }

    /// Removes promises whose callers do not wait, among at most `count` promises. During a long outage, most callers do
    /// not wait for the bus.
    pub(crate) fn forget_dropped(&mut self, count: usize) {
        let checked = self.waiting.range(self.forget_from..).take(count);
        let mut last = None;
        let dropped: Vec<u64> = checked
            .inspect(|(number, _)| last = Some(**number))
            .filter(|(_, promise)| promise.is_dropped())
            .map(|(number, _)| *number)
            .collect();
        // After the last promise, the search begins again.
        self.forget_from = last.map_or(0, |number| number + 1);
        dropped.iter().for_each(|number| drop(self.waiting.remove(number)));
    }

    /// Records that new records go to the journal. Returns the entries of the records that are handed over and not in the
    /// journal, which the caller now appends.
    pub(crate) fn begin_buffering(&mut self) -> Vec<(u64, Bytes)> {
        self.is_buffering = true;
        let entry = |(number, handed): (&u64, &mut Handed)| {
            let Place::Memory(record) = &handed.place else { return None };
            let entry = encode_record(*number, record);
            handed.place = Place::Queue;
            Some((*number, entry))
        };
        let entries: Vec<(u64, Bytes)> = self.handed.iter_mut().filter_map(entry).collect();
        self.appending += entries.len();
        self.appended_bytes += entries.iter().map(|(_, entry)| entry.len() as u64).sum::<u64>();
        entries
    }

    /// Tells the caller of a handed record that the journal has not accepted its entry.
    pub(crate) fn reject(&mut self, number: u64, bytes: u64, error: BufferError) {
        self.appending -= 1;
        self.appended_bytes -= bytes;
        if let Some(handed) = self.handed.get_mut(&number) {
            handed.promise.decide(Err(error));
            handed.place = Place::Nowhere;
            if handed.outcome.is_some() {
                self.remove(number);
            }
        }
    }

    /// Records that an entry is durable.
    pub(crate) fn commit(&mut self, index: u64, bytes: u64, number: u64) {
        self.appending -= 1;
        self.add_durable(index, bytes, number);
        if let Some(promise) = self.waiting.get_mut(&number) {
            promise.decide(Ok(()));
        }
        if let Some(handed) = self.handed.get_mut(&number) {
            handed.promise.decide(Ok(()));
            handed.place = Place::Disk(index);
            match handed.outcome.take() {
                Some(Some(position)) => self.finish(number, Ok(position)),
                Some(None) => self.retry(number),
                None => {}
            }
            self.finish_first();
        }
    }

    /// Adds the space that a commit with entries of this size needs in addition: a marker, and the rest of its last block. The
    /// caller has added its entries.
    pub(crate) fn pad(&mut self, entries_bytes: u64) {
        let padding = 2 * BLOCK_BYTES - entries_bytes % BLOCK_BYTES;
        self.appended_bytes += padding;
        self.durable_bytes += padding;
        if self.marks.is_empty() {
            self.released_bytes += padding;
        }
    }

    /// Returns the number of further records that the caller may hand over, of at most `in_flight_max` in all.
    pub(crate) fn room(&self, in_flight_max: usize) -> usize {
        let is_full = self.handed_bytes >= IN_FLIGHT_BYTES_MAX;
        if is_full { 0 } else { in_flight_max.saturating_sub(self.handed.len()) }
    }

    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.handed_bytes
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.handed.is_empty()
    }

    /// Returns true if a record has waited for its outcome for longer than `patience` on the direct way.
    pub(crate) fn is_late(&self, now: Monotonic, patience: Duration) -> bool {
        let oldest = self.handed.first_key_value();
        !self.is_buffering && oldest.is_some_and(|(_, handed)| now.since(handed.began) >= patience)
    }

    /// Returns true if the record of an entry must be handed over, and hands it over.
    pub(crate) fn hand_over(&mut self, now: Monotonic, number: u64, index: u64, bytes: u64) -> bool {
        if number < self.unsent && self.failed.remove(&number).is_none() {
            return false;
        }
        self.unsent = self.unsent.max(number + 1);
        let promise = self.waiting.remove(&number).unwrap_or_default();
        self.handed_bytes += bytes;
        let handed = Handed { began: now, bytes, place: Place::Disk(index), outcome: None, promise };
        self.handed.insert(number, handed);
        true
    }

    /// Returns the index of the first entry whose record must be handed over again; `None` if no record has failed.
    pub(crate) fn first_failed(&self) -> Option<u64> {
        self.failed.first_key_value().map(|(_, index)| *index)
    }

    /// Records the outcome of a record that was handed over.
    pub(crate) fn end(&mut self, now: Monotonic, number: u64, outcome: Result<Position, BusError>) {
        let Some(handed) = self.handed.get_mut(&number) else { return };
        if outcome.is_ok() {
            self.last_outcome = now;
        }
        match (outcome, &handed.place) {
            (Ok(position), Place::Memory(_) | Place::Queue) => handed.outcome = Some(Some(position)),
            (Ok(position), Place::Disk(_) | Place::Nowhere) => self.finish(number, Ok(position)),
            // The record is not accepted, so its caller decides.
            (Err(error), Place::Memory(_) | Place::Nowhere) => self.finish(number, Err(error)),
            (Err(error), _) if is_final(&error) => {
                tracing::error!(%error, "the bus rejects a record of the buffer; the record is dropped");
                self.finish(number, Err(error));
            }
            (Err(error), place) => {
                if self.failed.is_empty() {
                    tracing::warn!(%error, "the bus has not stored a record of the buffer; the record is sent again");
                }
                match place {
                    Place::Disk(_) => self.retry(number),
                    _ => handed.outcome = Some(None),
                }
            }
        }
        self.finish_first();
    }

    /// Finishes the first records in memory, if they have their outcomes. They wait until a restart would send no record of
    /// the journal, which would follow them.
    fn finish_first(&mut self) {
        if self.last_durable.is_some_and(|(last, _)| self.stored_finished <= last) {
            return;
        }
        while let Some(mut first) = self.handed.first_entry()
            && matches!(first.get().place, Place::Memory(_))
            && let Some(Some(position)) = first.get_mut().outcome.take()
        {
            let number = *first.key();
            self.finish(number, Ok(position));
        }
    }

    fn finish(&mut self, number: u64, outcome: Result<Position, BusError>) {
        if let Some(handed) = self.remove(number) {
            handed.promise.end(outcome);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Handed> {
        let handed = self.handed.remove(&number)?;
        self.handed_bytes -= handed.bytes;
        Some(handed)
    }

    /// Lets a record that was handed over wait for the next time.
    fn retry(&mut self, number: u64) {
        if let Some(Handed { place: Place::Disk(index), promise, .. }) = self.remove(number) {
            self.failed.insert(number, index);
            self.waiting.insert(number, promise);
        }
    }

    /// Returns the number of the first record without its last outcome.
    fn finished(&self) -> u64 {
        let handed = self.handed.first_key_value().map(|(number, _)| *number);
        let failed = self.failed.first_key_value().map(|(number, _)| *number);
        handed.into_iter().chain(failed).fold(self.unsent, u64::min)
    }

    /// Releases the finished part of the journal. Returns the index of the first entry that the journal must keep.
    pub(crate) fn release(&mut self) -> Option<u64> {
        let finished = self.finished();
        let mut below = None;
        while let Some(next) = self.marks.get(1)
            && next.number <= finished
        {
            (below, self.released_bytes) = (Some(next.index), next.bytes_before);
            self.marks.pop_front();
        }
        if let Some((number, index)) = self.last_durable
            && number < finished
            && !self.marks.is_empty()
        {
            (below, self.released_bytes) = (Some(index + 1), self.durable_bytes);
            self.marks.clear();
        }
        below
    }

    /// Returns the number of finished records, if a restart would send finished records again.
    pub(crate) fn new_finished(&self) -> Option<u64> {
        let finished = self.finished();
        let (last, _) = self.last_durable?;
        (self.stored_finished <= last && self.stored_finished < finished).then_some(finished)
    }

    /// Records that the journal contains the number of the finished records.
    pub(crate) fn store_finished(&mut self, below: u64) {
        self.stored_finished = self.stored_finished.max(below);
        self.finish_first();
    }

    /// Returns true if the bus responds, and few records are not handed over. `in_flight_max` and `patience` are the options.
    pub(crate) fn may_end_buffering(&self, now: Monotonic, in_flight_max: usize, patience: Duration) -> bool {
        self.is_buffering
            && !self.is_full
            && self.failed.is_empty()
            && self.next - self.unsent <= in_flight_max as u64
            && (self.handed.is_empty() || now.since(self.last_outcome) <= patience)
    }

    /// Returns to the direct way if the bus has received all records. The caller has its turn.
    pub(crate) fn end_buffering(&mut self) -> bool {
        if self.unsent == self.next && self.appending == 0 && self.failed.is_empty() {
            self.is_buffering = false;
        }
        !self.is_buffering
    }

    pub(crate) fn backlog(&self) -> Backlog {
        Backlog {
            is_buffering: self.is_buffering,
            records: self.next - self.finished(),
            bytes: self.appended_bytes - self.released_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
