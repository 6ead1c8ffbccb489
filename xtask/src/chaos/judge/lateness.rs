//! Lateness of callbacks at times without faults and near each kind of fault, and the time from a fault until the
//! affected shards fired again.

use std::collections::BTreeMap;

use super::super::log::{Callback, Fault, Kind};
use super::Records;

/// Time in milliseconds after the recovery from a fault. The report attributes callbacks that are due in this time to
/// the fault.
const AFTER_MS: u64 = 5_000;
/// Maximum age in milliseconds at which a poller's last callback still shows which member owns the poller.
const RECENT_MS: u64 = 5_000;
/// Maximum time in milliseconds from a fault until a poller's term rises because of this fault. If the term rises
/// later, the rise has another cause.
const RECOVERY_MAX_MS: u64 = 30_000;

/// Sorted sample of values in milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample(Vec<u64>);

impl Sample {
    fn sorted(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        Sample(values)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns a percentile, or `None` if the sample is empty.
    pub(super) fn percentile(&self, percent: usize) -> Option<u64> {
        let last = self.0.len().checked_sub(1)?;
        self.0.get(last * percent / 100).copied()
    }
}

#[derive(Default)]
pub(in super::super) struct Lateness {
    pub(super) calm: Sample,
    pub(super) around: BTreeMap<Kind, Sample>,
    /// Times in milliseconds from a fault's start until a poller of the affected member fired under a newer term. The
    /// key is the kind of the fault.
    pub(super) recovery: BTreeMap<Kind, Sample>,
}

impl Lateness {
    pub(super) fn of(records: &Records) -> Self {
        let mut calm = Vec::new();
        let mut around: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
        for history in records.histories.values() {
            let mut seen = Vec::new();
            for callback in &history.callbacks {
                if callback.attempt != 1 || seen.contains(&callback.run.as_str()) {
                    continue;
                }
                seen.push(&callback.run);
                // Lateness counts from the due instant. If the response to the client's request came later, lateness
                // counts from the response.
                let acknowledged_ms = history.requested(callback.version).map_or(0, |request| request.answered_ms);
                let due = callback.nominal_ms.max(acknowledged_ms);
                let late = callback.arrived_ms.saturating_sub(due);
                let mut is_calm = true;
                let is_near = |fault: &&Fault| (fault.start_ms..=fault.healed_ms + AFTER_MS).contains(&due);
                for fault in records.faults.iter().filter(is_near) {
                    around.entry(fault.kind).or_default().push(late);
                    is_calm = false;
                }
                if is_calm {
                    calm.push(late);
                }
            }
        }
        let sorted = |samples: BTreeMap<Kind, Vec<u64>>| {
            samples.into_iter().map(|(kind, values)| (kind, Sample::sorted(values))).collect()
        };
        Lateness { calm: Sample::sorted(calm), around: sorted(around), recovery: sorted(recovery(records)) }
    }
}

fn recovery(records: &Records) -> BTreeMap<Kind, Vec<u64>> {
    let mut pollers: BTreeMap<i64, Vec<&Callback>> = BTreeMap::new();
    for (token, history) in &records.histories {
        if let Some(poller) = records.pollers.get(token) {
            pollers.entry(*poller).or_default().extend(&history.callbacks);
        }
    }
    let mut samples: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
    for callbacks in pollers.values_mut() {
        callbacks.sort_by_key(|callback| callback.started_ms);
        for fault in &records.faults {
            if fault.kind.needs_bus() {
                continue; // The fault moves no shard.
            }
            // Until the primary ends, a fail-over affects no owner.
            let start_ms = fault.lost.map_or(fault.start_ms, |lost| lost.until_ms);
            let at = callbacks.partition_point(|callback| callback.started_ms < start_ms);
            let Some(last) = at.checked_sub(1).map(|before| callbacks[before]) else { continue };
            if !fault.is_of(last) || last.started_ms + RECENT_MS < start_ms {
                continue;
            }
            let next = callbacks[at..].iter().find(|callback| callback.term > last.term);
            let took = next.map(|next| next.started_ms - start_ms);
            samples.entry(fault.kind).or_default().extend(took.filter(|took| *took <= RECOVERY_MAX_MS));
        }
    }
    samples
}
