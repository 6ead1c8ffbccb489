//! Due rows at or before their poller's `done`. No caller reads them any more. A merge drops these rows, so the store
//! writes no tombstones for them.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use lsm_tree::compaction::filter::Context;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Verdict};

/// Bounds of the retired due rows, one for each poller. The map's key is the common prefix of the poller's row keys. No
/// caller reads a row below the bound any more.
#[derive(Default, Debug)]
pub(super) struct Retired(RwLock<Arc<BTreeMap<[u8; 8], Vec<u8>>>>);

impl Retired {
    pub(super) fn raise(&self, poller: [u8; 8], to: &[u8]) {
        let mut retired = self.0.write().expect("no holder of this lock panics");
        Arc::make_mut(&mut retired).insert(poller, to.to_vec());
    }

    pub(super) fn now(&self) -> Arc<BTreeMap<[u8; 8], Vec<u8>>> {
        self.0.read().expect("no holder of this lock panics").clone()
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

struct RetiredFilter(Arc<BTreeMap<[u8; 8], Vec<u8>>>);

impl CompactionFilter for RetiredFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _context: &Context) -> lsm_tree::Result<Verdict> {
        let key: &[u8] = item.key();
        let retired = key.first_chunk::<8>().and_then(|poller| self.0.get(poller));
        // The merge drops the row without a tombstone. Only a replay can write the row again, and no caller reads the
        // row after the replay.
        Ok(if retired.is_some_and(|to| key < to.as_slice()) { Verdict::Destroy } else { Verdict::Keep })
    }
}
