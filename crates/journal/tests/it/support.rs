//! Consumer that records the commits of a journal, and a check that the journal has retained the committed entries.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use journal::{Commit, Journal, OpenError, Opened, Options};
use runtime::{Runtime, TaskSet};
use tokio::sync::{mpsc, oneshot};

/// Options for small segments: a few entries fill a segment.
pub(crate) fn small() -> Options {
    Options {
        segment_bytes: 9 * 4096,
        entry_bytes_max: 12_000,
        batch_bytes_max: 3 * 4096,
        queue_bytes_max: 40_000,
        queue_entries_max: 20,
        commits_max: 2,
        spare_segments_max: 1,
    }
}

pub(crate) const DIR: &str = "/data/journal";

pub(crate) fn segment_path(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("segment-{number:020}.journal"))
}

/// Range of seeds for a test. The environment variable `REVEILLE_FUZZ_RUNS` sets another number of seeds, for example
/// for a longer test.
#[expect(clippy::disallowed_methods, reason = "a developer starts a longer search by hand")]
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    0..std::env::var("REVEILLE_FUZZ_RUNS").map_or(usual, |runs| runs.parse().expect("REVEILLE_FUZZ_RUNS is a number"))
}

pub(crate) type Ticket = oneshot::Sender<u64>;

/// Entries that the test appended to a journal, and the number of committed entries. The history continues when the
/// test opens the journal again.
#[derive(Clone, Default)]
pub(crate) struct History(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    /// Appended entries. The entry at position `i` of this list has index `i + 1` in the journal.
    pub(crate) appended: Vec<Bytes>,
    /// Number of entries whose commit the consumer has received.
    pub(crate) durable: usize,
    pub(crate) released_below: u64,
}

impl History {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns a unique entry.
    pub(crate) fn entry(&self, bytes: usize) -> Bytes {
        let number = self.state().appended.len() as u64;
        let mut entry: Vec<u8> =
            number.to_le_bytes().iter().map(|byte| byte ^ 0xa5).cycle().take(bytes.max(8)).collect();
        // The entry contains a record's magic number, which is the worst case for the parser.
        if entry.len() > 12 {
            entry[8..12].copy_from_slice(b"RVRC");
        }
        entry.into()
    }

    /// Appends entries of the given sizes, in bytes, one by one. Returns the receiver of each ticket. Stops when the
    /// journal rejects an entry.
    pub(crate) async fn append(
        &self,
        journal: &Journal<Ticket>,
        sizes: impl IntoIterator<Item = usize>,
    ) -> Vec<oneshot::Receiver<u64>> {
        let mut responses = Vec::new();
        for bytes in sizes {
            let entry = self.entry(bytes);
            let (ticket, response) = oneshot::channel();
            self.state().appended.push(entry.clone());
            if journal.append(entry, ticket).await.is_err() {
                self.state().appended.pop();
                break;
            }
            responses.push(response);
        }
        responses
    }

    /// Receives commits until the journal closes, and sends each entry's index through the entry's ticket.
    pub(crate) async fn consume(self, mut commits: mpsc::Receiver<Commit<Ticket>>) {
        while let Some(Commit { first_index, entries, .. }) = commits.recv().await {
            assert!(!entries.is_empty(), "a commit has entries");
            for (index, (entry, ticket)) in (first_index..).zip(entries) {
                let mut state = self.state();
                assert_eq!(index, state.durable as u64 + 1, "indexes are consecutive");
                assert_eq!(entry, state.appended[state.durable], "entries arrive in the order of their appends");
                state.durable += 1;
                drop(state);
                let _closed = ticket.send(index);
            }
        }
    }

    /// Opens the journal. Checks that it contains every committed entry that the test did not release, and only entries
    /// that the test appended.
    pub(crate) async fn open(
        &self,
        runtime: &Runtime,
        tasks: &TaskSet,
        dir: &Path,
        options: Options,
    ) -> Result<Journal<Ticket>, OpenError> {
        let Opened { journal, commits, first, next, .. } = Journal::open(runtime, tasks, dir, options).await?;
        let found = read_all(&journal, first).await;
        let mut state = self.state();
        assert_eq!(found.len() as u64, next - first, "every announced entry can be read");
        assert!(next > state.durable as u64, "{} entries were durable, but only {} exist", state.durable, next - 1);
        assert!(next - 1 <= state.appended.len() as u64, "there are more entries than were appended");
        assert!(first <= state.released_below.max(1), "entries before {first} are missing without a release");
        for (index, entry) in (first..).zip(&found) {
            assert_eq!(*entry, state.appended[usize::try_from(index).unwrap() - 1], "entry {index}");
        }
        state.appended.truncate(usize::try_from(next).unwrap() - 1);
        state.durable = state.appended.len();
        drop(state);
        tasks.spawn("consumer", self.clone().consume(commits));
        Ok(journal)
    }

    pub(crate) fn release(&self, journal: &Journal<Ticket>, below: u64) {
        let mut state = self.state();
        state.released_below = state.released_below.max(below);
        drop(state);
        journal.release(below);
    }
}

pub(crate) async fn read_all<T>(journal: &Journal<T>, from: u64) -> Vec<Bytes> {
    let mut reader = journal.reader(from);
    let mut entries = Vec::new();
    while let Some((index, entry)) = reader.next().await.expect("retained entries can be read") {
        assert_eq!(index, from + entries.len() as u64, "a reader skips no entry");
        entries.push(entry);
    }
    entries
}

/// Closes the journal and waits until all of its tasks have ended.
pub(crate) async fn end(journal: &Journal<Ticket>, tasks: TaskSet) {
    journal.close().await;
    for (task, end) in tasks.join().await {
        assert_eq!(end, runtime::TaskEnd::Finished, "{task}");
    }
}
