//! Writing of tables in small steps with pauses.
//!
//! The library writes a table as fast as possible and syncs it once, at the end of the table. Callers wait for syncs of
//! the journal. Without pauses, these syncs would wait until the disk has written tens of megabytes of the table, and
//! the write would occupy a CPU core. A lower thread priority does not help, because the library finishes a table under
//! a lock that every read takes.
//!
//! docs/decisions/0043-write-tables-in-small-steps.md gives the reasons for the design.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

/// Number of bytes of a table after which the module syncs the table.
const STEP: u64 = 1 << 20;
/// Number of rows that the library writes between two pauses.
const ROWS_PER_STEP: u32 = 128;
/// Longest pause. A pause is as long as the step before it, up to this limit.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Pacing of the writes to new tables of a tree. The writer of a table reports every row to this type.
pub(super) struct Trickle {
    tables: PathBuf,
    /// Number of the next new table.
    next: u64,
    /// Tables under construction, each with the number of its synced bytes.
    growing: Vec<(PathBuf, u64)>,
    rows: u32,
    step_began: Instant,
    hurry: Arc<AtomicBool>,
}

impl Trickle {
    /// Creates the pacing. The caller calls this method before the library creates the first table. The pacing makes no
    /// pauses while `hurry` is true.
    pub(super) fn new(tables: &Path, hurry: Arc<AtomicBool>) -> Self {
        let number = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        let numbers = fs::read_dir(tables).into_iter().flatten().filter_map(|entry| number(entry.ok()?));
        let next = numbers.max().map_or(0, |highest| highest + 1);
        Trickle { tables: tables.to_owned(), next, growing: Vec::new(), rows: 0, step_began: now(), hurry }
    }

    pub(super) fn count_row(&mut self) {
        self.rows += 1;
        if self.rows == ROWS_PER_STEP {
            self.rows = 0;
            if !self.hurry.load(Ordering::Relaxed) {
                self.sync();
                #[expect(
                    clippy::disallowed_methods,
                    reason = "simulations do not use this module, and the sleep blocks only a separate thread"
                )]
                thread::sleep(self.step_began.elapsed().min(PAUSE_MAX));
            }
            self.step_began = now();
        }
    }

    /// Syncs the tables under construction. Ignores errors, because the library syncs each table at its end and reports
    /// the error.
    fn sync(&mut self) {
        loop {
            let path = self.tables.join(self.next.to_string());
            if !path.exists() {
                break;
            }
            self.growing.push((path, 0));
            self.next += 1;
        }
        for (path, synced) in &mut self.growing {
            let len = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            if len >= *synced + STEP {
                let _reported_by_the_library = File::open(path).and_then(|table| table.sync_data());
                *synced = len;
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "simulations do not use this module, and the time affects only the lengths of pauses"
)]
fn now() -> Instant {
    Instant::now()
}

/// Factory of filters that pace the writes of a merge.
pub(super) struct Trickling {
    pub(super) tables: PathBuf,
    pub(super) factory: Option<Arc<dyn Factory>>,
    pub(super) hurry: Arc<AtomicBool>,
}

impl Factory for Trickling {
    fn name(&self) -> &str {
        self.factory.as_ref().map_or("none", |factory| factory.name())
    }

    fn make_filter(&self, context: &Context) -> Box<dyn CompactionFilter> {
        let filter = self.factory.as_ref().map(|factory| factory.make_filter(context));
        Box::new(TricklingFilter { trickle: Trickle::new(&self.tables, self.hurry.clone()), filter })
    }
}

struct TricklingFilter {
    trickle: Trickle,
    filter: Option<Box<dyn CompactionFilter>>,
}

impl CompactionFilter for TricklingFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, context: &Context) -> lsm_tree::Result<Verdict> {
        self.trickle.count_row();
        self.filter.as_mut().map_or(Ok(Verdict::Keep), |filter| filter.filter_item(item, context))
    }
}
