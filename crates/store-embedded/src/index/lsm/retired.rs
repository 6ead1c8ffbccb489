//! Due rows at or before their poller's `done`. No caller reads them any more. A merge drops these rows, so the store
//! writes no tombstones for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

use super::unreadable::ABOVE_ALL;

/// Bounds of the retired due rows, one for each poller. The map's key is the common prefix of the poller's row keys. No
/// caller reads a row below the bound any more.
#[derive(Default, Debug)]
pub(super) struct Retired {
    bounds: RwLock<Arc<Bounds>>,
    /// Lock that prevents a lower bound while the index drops whole tables.
    dropping: Mutex<()>,
}

type Bounds = BTreeMap<[u8; 8], Vec<u8>>;

impl Retired {
    /// Sets the bound of a poller. If the bound becomes lower, this function first waits until the index has dropped the
    /// tables below the old bound. Rows that the index receives later are therefore not in these tables.
    pub(super) fn set(&self, poller: [u8; 8], to: &[u8]) {
        let is_lower = self.now().get(&poller).is_some_and(|known| to < known.as_slice());
        let _no_drop = is_lower.then(|| self.dropping());
        let mut bounds = self.bounds.write().expect("no holder of this lock panics");
        Arc::make_mut(&mut bounds).insert(poller, to.to_vec());
    }

    pub(super) fn now(&self) -> Arc<Bounds> {
        self.bounds.read().expect("no holder of this lock panics").clone()
    }

    /// Prevents lower bounds until the caller drops the guard.
    pub(super) fn dropping(&self) -> MutexGuard<'_, ()> {
        self.dropping.lock().expect("no holder of this lock panics")
    }
}

pub(super) struct RetiredFactory(pub(super) Arc<Retired>);

// `RetiredFactory` is unwind-safe. If a thread panics while it holds the lock in `Retired`, the next thread that
// takes this lock panics too.
impl std::panic::RefUnwindSafe for RetiredFactory {}

impl Factory for RetiredFactory {
    fn name(&self) -> &'static str {
        "due rows at or before `done` of their poller"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(RetiredFilter(self.0.now()))
    }
}

struct RetiredFilter(Arc<Bounds>);

impl CompactionFilter for RetiredFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _context: &Context) -> lsm_tree::Result<Verdict> {
        let key: &[u8] = item.key();
        if *key == ABOVE_ALL {
            return Ok(Verdict::Destroy);
        }
        let retired = key.first_chunk::<8>().and_then(|poller| self.0.get(poller));
        // The merge drops the row without a tombstone. Only a replay can write the row again, and no caller reads the
        // row after the replay.
        Ok(if retired.is_some_and(|to| key < to.as_slice()) { Verdict::Destroy } else { Verdict::Keep })
    }
}
