//! Schedules that were created recently and that no row lists yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{Incarnation, TenantId};

use crate::codec::listed::Bucket;

/// Number of fresh schedules that are written to rows at once. At a high rate of creates they span several buckets of
/// 16 ms, and a listing has few fresh schedules to search.
pub(crate) const FRESH_MAX: usize = 4_096;

/// Fresh schedules. The applying thread changes them, and every thread reads them.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<Buckets>);

#[derive(Default)]
struct Buckets {
    of: BTreeMap<Bucket, BTreeSet<Incarnation>>,
    /// Number of added schedules.
    count: usize,
}

impl Fresh {
    pub(crate) fn add(&self, tenant: TenantId, incarnation: Incarnation) {
        let mut buckets = self.lock();
        buckets.of.entry(Bucket::of(tenant, incarnation)).or_default().insert(incarnation);
        buckets.count += 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().count >= FRESH_MAX
    }

    /// Passes all fresh schedules to `write`, then removes them.
    ///
    /// The lock is held during the writes. A caller that reads the fresh schedules first and the rows afterwards
    /// therefore misses none.
    pub(crate) fn empty(&self, mut write: impl FnMut(Bucket, &BTreeSet<Incarnation>)) {
        let mut buckets = self.lock();
        buckets.of.iter().for_each(|(bucket, incarnations)| write(*bucket, incarnations));
        *buckets = Buckets::default();
    }

    pub(crate) fn forget(&self, bucket: Bucket, deleted: &BTreeSet<Incarnation>) {
        let mut buckets = self.lock();
        if let Some(incarnations) = buckets.of.get_mut(&bucket) {
            incarnations.retain(|incarnation| !deleted.contains(incarnation));
            if incarnations.is_empty() {
                buckets.of.remove(&bucket);
            }
        }
    }

    /// Returns a tenant's fresh schedules after `after`: either all, or more than `enough`. In the second case the
    /// first `enough` are complete.
    pub(crate) fn of(&self, tenant: TenantId, after: Option<Incarnation>, enough: usize) -> BTreeSet<Incarnation> {
        let from = after.map_or(Bucket::first(tenant), |after| Bucket::of(tenant, after));
        let mut found = BTreeSet::new();
        for (_, incarnations) in self.lock().of.range(from..=Bucket::last(tenant)) {
            found.extend(incarnations.iter().filter(|incarnation| after.is_none_or(|after| **incarnation > after)));
            if found.len() > enough {
                break;
            }
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
