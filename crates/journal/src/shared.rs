//! What the handle, the writer, the keeper and readers share: which segments there are, and what is in them.
//!
//! Always true here: segments are held without a gap, oldest first; the last one held is the one being written; a
//! segment is let go only when a later one holds an entry that is durable, so that the next index is never forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use runtime::{Disk, Runtime};
use tokio::sync::{Notify, watch};

use crate::Options;
use crate::format::BLOCK;
use crate::segment::Segment;

/// From 100 µs, as a disk with a cache that survives a loss of power has, to what no disk should need.
const COMMIT_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) journal_id: u128,
    /// Of records with entries.
    pub(crate) commit_seconds: Histogram,
    book: Mutex<Book>,
    /// Wakes the keeper: a segment is to be prepared or let go.
    pub(crate) keep: Notify,
    /// Wakes the writer: a segment is ready, or there is no room for one.
    pub(crate) turned: Notify,
    /// Each task holds a receiver until it has ended.
    pub(crate) tasks: watch::Sender<()>,
}

impl Shared {
    pub(crate) fn new(
        runtime: &Runtime,
        dir: PathBuf,
        options: Options,
        journal_id: u128,
        book: Book,
    ) -> (Arc<Self>, [watch::Receiver<()>; 2]) {
        let (tasks, alive) = watch::channel(());
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            disk: runtime.disk(),
            dir,
            options,
            journal_id,
            commit_seconds: Histogram::new(COMMIT_SECONDS),
            book: Mutex::new(book),
            keep: Notify::new(),
            turned: Notify::new(),
            tasks,
        });
        (shared, [alive.clone(), alive])
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn release(&self, below: u64) {
        let mut book = self.book();
        book.released = book.released.max(below);
        drop(book);
        self.keep.notify_one();
    }
}

/// A segment with records, or the one being written.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) segment: Arc<Segment>,
    /// The index of its first entry; of the next one to come, if it has none.
    pub(crate) first_index: u64,
    /// Where its last durable record ends.
    pub(crate) end_offset: u64,
}

pub(crate) struct Book {
    /// Never empty.
    pub(crate) held: VecDeque<Held>,
    /// Prepared, and not begun; they follow the last one held.
    pub(crate) ready: VecDeque<Arc<Segment>>,
    /// Files to make segments of.
    pub(crate) spares: Vec<PathBuf>,
    files_named: u64,
    /// The index after the last durable entry.
    pub(crate) next: u64,
    /// Entries below this are not needed any more.
    released: u64,
    /// For each reader, the index that it has come to.
    pins: BTreeMap<u64, u64>,
    pins_made: u64,
    /// The last attempt to prepare a segment met a full disk.
    pub(crate) no_room: bool,
    pub(crate) closing: bool,
    pub(crate) commit_last: Duration,
    pub(crate) records: u64,
}

impl Book {
    pub(crate) fn new(
        held: VecDeque<Held>,
        ready: VecDeque<Arc<Segment>>,
        spares: Vec<PathBuf>,
        files_named: u64,
        next: u64,
    ) -> Self {
        assert!(!held.is_empty(), "there is always a segment to write to");
        Book {
            held,
            ready,
            spares,
            files_named,
            next,
            released: 0,
            pins: BTreeMap::new(),
            pins_made: 0,
            no_room: false,
            closing: false,
            commit_last: Duration::ZERO,
            records: 0,
        }
    }

    /// The oldest entry held; the next one to come, if none is.
    pub(crate) fn first(&self) -> u64 {
        self.held.front().expect("there is always a segment to write to").first_index
    }

    pub(crate) fn number_last(&self) -> u64 {
        let held = self.held.back().expect("there is always a segment to write to");
        self.ready.back().unwrap_or(&held.segment).number
    }

    /// A number that no spare or fresh file's name has had.
    pub(crate) fn name_file(&mut self) -> u64 {
        self.files_named += 1;
        self.files_named
    }

    /// Begins the first segment that is ready; `false` if none is.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(segment) = self.ready.pop_front() else { return false };
        self.held.push_back(Held { segment, first_index: self.next, end_offset: BLOCK });
        true
    }

    /// A record of the segment being written has become durable.
    pub(crate) fn written(&mut self, end_offset: u64, next: u64) {
        let active = self.held.back_mut().expect("there is always a segment to write to");
        assert!(active.end_offset < end_offset && self.next <= next, "the journal only grows");
        active.end_offset = end_offset;
        self.next = next;
    }

    /// Takes away the oldest segment, if nobody needs it.
    pub(crate) fn let_go(&mut self) -> Option<Arc<Segment>> {
        let needed_from = self.pins.values().copied().min().unwrap_or(u64::MAX).min(self.released);
        let second = self.held.get(1)?;
        if second.first_index > needed_from || second.end_offset == BLOCK {
            return None;
        }
        self.held.pop_front().map(|held| held.segment)
    }

    /// Keeps the entries from `index` on until [`Book::unpin`].
    pub(crate) fn pin(&mut self, index: u64) -> u64 {
        self.pins_made += 1;
        self.pins.insert(self.pins_made, index);
        self.pins_made
    }

    pub(crate) fn move_pin(&mut self, pin: u64, index: u64) {
        self.pins.insert(pin, index);
    }

    pub(crate) fn unpin(&mut self, pin: u64) {
        self.pins.remove(&pin);
    }

    /// Where to look for entry `index`, which must be held.
    pub(crate) fn segment_of(&self, index: u64) -> Option<Held> {
        self.held.iter().rev().find(|held| held.first_index <= index).cloned()
    }

    pub(crate) fn segment(&self, number: u64) -> Option<Held> {
        self.held.iter().find(|held| held.segment.number == number).cloned()
    }
}
