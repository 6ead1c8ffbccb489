//! Fresh schedules: recently created schedules that no listing row contains yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use domain::{Incarnation, TenantId};
use store::Order;

use crate::codec::listed::Bucket;

/// Number of fresh schedules at which the state machine writes all fresh schedules to listing rows. At a high rate of
/// creates, that many schedules belong to several buckets of 16 ms each. The number is small, because every listing
/// searches the fresh schedules.
pub(crate) const FRESH_MAX: usize = 4_096;

/// Set of the fresh schedules. Only the task that applies journal entries changes the set. Every thread may read it.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<Buckets>);

#[derive(Default)]
struct Buckets {
    of: BTreeMap<Bucket, BTreeSet<Incarnation>>,
    /// Number of schedules that the state machine added since it last wrote the fresh schedules to listing rows.
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
    /// This method holds the lock on the fresh schedules during the writes. A caller that reads the fresh schedules
    /// first and the listing rows afterwards therefore misses no schedule.
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

    /// Returns the tenant's fresh schedules that follow `after` in the order `order`. The result may be incomplete if
    /// it has more than `enough` schedules. It then contains at least the first `enough` schedules.
    pub(crate) fn of(
        &self,
        tenant: TenantId,
        order: Order,
        after: Option<Incarnation>,
        enough: usize,
    ) -> BTreeSet<Incarnation> {
        let (first, last) = Bucket::after(tenant, order, after);
        let buckets = self.lock();
        let range = buckets.of.range(first..=last).map(|(_, incarnations)| incarnations);
        let is_after = |incarnation: &Incarnation| order.is_after(*incarnation, after);
        match order {
            Order::Oldest => first_of(range, is_after, enough),
            Order::Newest => first_of(range.rev(), is_after, enough),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Collects the matching incarnations bucket by bucket, until their number exceeds `enough`.
fn first_of<'a>(
    buckets: impl Iterator<Item = &'a BTreeSet<Incarnation>>,
    matches: impl Fn(&Incarnation) -> bool,
    enough: usize,
) -> BTreeSet<Incarnation> {
    let mut found = BTreeSet::new();
    for incarnations in buckets {
        found.extend(incarnations.iter().copied().filter(&matches));
        if found.len() > enough {
            break;
        }
    }
    found
}
