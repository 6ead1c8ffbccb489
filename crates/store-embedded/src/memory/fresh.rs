//! Schedules that were made a moment ago and that no row lists yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{Incarnation, TenantId};

use crate::codec::listed::Bucket;

/// As many are written to rows: some stretches of 16 ms if many are made, and little to look through for who lists.
pub(crate) const FRESH_MAX: usize = 4_096;

/// Changed by the thread that applies, read by all.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<Buckets>);

#[derive(Default)]
struct Buckets {
    of: BTreeMap<Bucket, BTreeSet<Incarnation>>,
    /// How many were added.
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

    /// Has all of it written, and has none of it after that.
    ///
    /// Whoever reads what is fresh, and the rows after that, misses none, as nobody reads what is fresh meanwhile.
    pub(crate) fn empty(&self, mut write: impl FnMut(Bucket, &BTreeSet<Incarnation>)) {
        let mut buckets = self.lock();
        buckets.of.iter().for_each(|(bucket, incarnations)| write(*bucket, incarnations));
        *buckets = Buckets::default();
    }

    pub(crate) fn forget(&self, bucket: Bucket, gone: &BTreeSet<Incarnation>) {
        let mut buckets = self.lock();
        if let Some(incarnations) = buckets.of.get_mut(&bucket) {
            incarnations.retain(|incarnation| !gone.contains(incarnation));
            if incarnations.is_empty() {
                buckets.of.remove(&bucket);
            }
        }
    }

    /// Those of a tenant after `after`: all, or more than `enough`, of which the first `enough` leave none out.
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
