//! State that the handle, the writer, the keeper and the readers share: the segments and their contents.
//!
//! Invariants: live segments are in order from the oldest to the newest, and their numbers have no gap. The writer
//! writes to the last live segment, the active segment. The keeper removes a segment only once a later segment has a
//! durable record. Recovery can therefore always compute the index of the next entry from the remaining segments.

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

/// Bounds of the buckets in the histogram of commit times. The lowest bound is 100 µs, the latency of a disk whose
/// cache survives a power loss. The highest bound is 2.5 s, which is longer than a healthy disk needs.
const COMMIT_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) journal_id: u128,
    /// Histogram of the time, in seconds, from the start of a record's write to the end of its sync. It excludes
    /// markers.
    pub(crate) commit_seconds: Histogram,
    state: Mutex<State>,
    /// Wakes the keeper when it must prepare or remove a segment.
    pub(crate) keeper_wake: Notify,
    /// Wakes the writer when a segment is ready, or when the disk is too full for another segment.
    pub(crate) segment_ready: Notify,
    /// Channel that closes when the writer and the keeper have ended. Each of the two tasks owns a receiver.
    pub(crate) tasks: watch::Sender<()>,
}

impl Shared {
    pub(crate) fn new(
        runtime: &Runtime,
        dir: PathBuf,
        options: Options,
        journal_id: u128,
        state: State,
    ) -> (Arc<Self>, [watch::Receiver<()>; 2]) {
        let (tasks, alive) = watch::channel(());
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            disk: runtime.disk(),
            dir,
            options,
            journal_id,
            commit_seconds: Histogram::new(COMMIT_SECONDS),
            state: Mutex::new(state),
            keeper_wake: Notify::new(),
            segment_ready: Notify::new(),
            tasks,
        });
        (shared, [alive.clone(), alive])
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task panics while it holds this lock")
    }

    pub(crate) fn release(&self, below: u64) {
        let mut state = self.state();
        state.released = state.released.max(below);
        drop(state);
        self.keeper_wake.notify_one();
    }
}

/// Segment that contains records or is the active segment.
#[derive(Clone)]
pub(crate) struct LiveSegment {
    pub(crate) segment: Arc<Segment>,
    /// Index of the segment's first entry, or of the journal's next entry if the segment contains no entry.
    pub(crate) first_index: u64,
    /// Offset of the end of the segment's last durable record.
    pub(crate) end_offset: u64,
}

pub(crate) struct State {
    /// Live segments. The list is never empty.
    pub(crate) live: VecDeque<LiveSegment>,
    /// Prepared segments without records. Their numbers follow the number of the last live segment.
    pub(crate) ready: VecDeque<Arc<Segment>>,
    /// Files that the keeper can reuse as segments.
    pub(crate) spares: Vec<PathBuf>,
    files_named: u64,
    /// Index after the last durable entry.
    pub(crate) next: u64,
    /// Index that the next proof outside of the segments must contain ([`crate::proof`]).
    pub(crate) proven_below: u64,
    /// Index below which the consumer has released all entries.
    released: u64,
    /// Index of the next entry of each reader. The key is the number that [`State::pin`] returned to the reader.
    pins: BTreeMap<u64, u64>,
    pins_created: u64,
    /// True if the last attempt to prepare a segment failed on a full disk.
    pub(crate) is_disk_full: bool,
    pub(crate) closing: bool,
    pub(crate) commit_last: Duration,
    pub(crate) records: u64,
}

impl State {
    pub(crate) fn new(
        live: VecDeque<LiveSegment>,
        ready: VecDeque<Arc<Segment>>,
        spares: Vec<PathBuf>,
        files_named: u64,
        next: u64,
    ) -> Self {
        assert!(!live.is_empty(), "the journal always has an active segment");
        State {
            live,
            ready,
            spares,
            files_named,
            next,
            proven_below: 0,
            released: 0,
            pins: BTreeMap::new(),
            pins_created: 0,
            is_disk_full: false,
            closing: false,
            commit_last: Duration::ZERO,
            records: 0,
        }
    }

    /// Returns the index of the oldest retained entry, or of the next entry if the journal retains no entry.
    pub(crate) fn first(&self) -> u64 {
        self.live.front().expect("the journal always has an active segment").first_index
    }

    pub(crate) fn number_last(&self) -> u64 {
        let live = self.live.back().expect("the journal always has an active segment");
        self.ready.back().unwrap_or(&live.segment).number
    }

    /// Returns a number for the name of a spare or fresh file. No earlier file had this number.
    pub(crate) fn name_file(&mut self) -> u64 {
        self.files_named += 1;
        self.files_named
    }

    /// Makes the first ready segment the active segment. Returns `false` if no segment is ready.
    pub(crate) fn activate_next(&mut self) -> bool {
        let Some(segment) = self.ready.pop_front() else { return false };
        self.live.push_back(LiveSegment { segment, first_index: self.next, end_offset: BLOCK });
        true
    }

    /// Updates the state after a record of the active segment has become durable.
    pub(crate) fn record_written(&mut self, end_offset: u64, next: u64) {
        let active = self.live.back_mut().expect("the journal always has an active segment");
        assert!(
            active.end_offset < end_offset && self.next <= next,
            "a new record increases the segment's end offset and does not decrease the next entry index"
        );
        active.end_offset = end_offset;
        self.next = next;
    }

    /// Removes the oldest live segment if the consumer has released all entries of this segment, no reader needs them,
    /// and the next segment contains a record.
    pub(crate) fn remove_oldest(&mut self) -> Option<Arc<Segment>> {
        let needed_from = self.pins.values().copied().min().unwrap_or(u64::MAX).min(self.released);
        let second = self.live.get(1)?;
        if second.first_index > needed_from || second.end_offset == BLOCK {
            return None;
        }
        self.live.pop_front().map(|live| live.segment)
    }

    /// Retains the entries from `index` on until the reader calls [`State::unpin`] with the returned number.
    pub(crate) fn pin(&mut self, index: u64) -> u64 {
        self.pins_created += 1;
        self.pins.insert(self.pins_created, index);
        self.pins_created
    }

    pub(crate) fn move_pin(&mut self, pin: u64, index: u64) {
        self.pins.insert(pin, index);
    }

    pub(crate) fn unpin(&mut self, pin: u64) {
        self.pins.remove(&pin);
    }

    /// Returns the segment that contains entry `index`, if the journal retains the entry.
    pub(crate) fn segment_of(&self, index: u64) -> Option<LiveSegment> {
        self.live.iter().rev().find(|live| live.first_index <= index).cloned()
    }

    pub(crate) fn segment(&self, number: u64) -> Option<LiveSegment> {
        self.live.iter().find(|live| live.segment.number == number).cloned()
    }
}
