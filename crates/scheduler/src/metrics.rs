//! What the scheduler counts. Names are in reference order of the dashboards; units are in the names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::{Monotonic, Runtime};

/// Of failures of one kind, one is logged in so long: a store that is away fails thousands of calls.
const TOLD_PERIOD: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct Outcome {
    pub(crate) outcome: &'static str,
}

/// What was logged of each kind of failure, and when.
#[derive(Debug)]
pub(crate) struct Told {
    runtime: Runtime,
    /// When one was logged, and how many were not since.
    last: Mutex<BTreeMap<&'static str, (Monotonic, u64)>>,
}

impl Told {
    /// Whether this one is to be logged, and how many were not since the last that was.
    pub(crate) fn tell(&self, kind: &'static str) -> Option<u64> {
        let now = self.runtime.monotonic();
        let mut last = self.last.lock().expect("no holder of this lock panics");
        match last.get_mut(kind) {
            Some((at, untold)) if now.since(*at) < TOLD_PERIOD => {
                *untold += 1;
                None
            }
            known => {
                let untold = known.map_or(0, |(_, untold)| *untold);
                last.insert(kind, (now, 0));
                Some(untold)
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// From the nominal instant to the start of the first attempt.
    pub(crate) start_lateness_seconds: Histogram,
    pub(crate) callback_duration_seconds: Histogram,
    pub(crate) callback_attempts: Family<Outcome, Counter>,
    pub(crate) occurrences: Family<Outcome, Counter>,
    pub(crate) retries: Counter,
    pub(crate) dead_letters: Counter,
    pub(crate) missed: Counter,
    pub(crate) deferred: Counter,
    /// Due rows that came to nothing: cancelled, changed, or done before.
    pub(crate) dropped: Counter,
    pub(crate) store_errors: Family<Outcome, Counter>,
    pub(crate) store_errors_told: Arc<Told>,
    pub(crate) panics: Counter,
    pub(crate) window_keys: Gauge,
    pub(crate) parked_keys: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) oldest_open_seconds: Gauge,
    pub(crate) created: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) shards_owned: Gauge,
    /// Shards that were gained, let go of with what was in flight, or lost.
    pub(crate) shards_moved: Family<Outcome, Counter>,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry, runtime: Runtime) -> Self {
        let lateness =
            [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3_600.0];
        let duration = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
        let metrics = Metrics {
            start_lateness_seconds: Histogram::new(lateness),
            callback_duration_seconds: Histogram::new(duration),
            callback_attempts: Family::default(),
            occurrences: Family::default(),
            retries: Counter::default(),
            dead_letters: Counter::default(),
            missed: Counter::default(),
            deferred: Counter::default(),
            dropped: Counter::default(),
            store_errors: Family::default(),
            store_errors_told: Arc::new(Told { runtime, last: Mutex::default() }),
            panics: Counter::default(),
            window_keys: Gauge::default(),
            parked_keys: Gauge::default(),
            in_flight: Gauge::default(),
            oldest_open_seconds: Gauge::default(),
            created: Counter::default(),
            cancelled: Counter::default(),
            shards_owned: Gauge::default(),
            shards_moved: Family::default(),
        };
        metrics.register(registry);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "reveille_start_lateness_seconds",
            "From an occurrence's nominal instant to its first attempt",
            self.start_lateness_seconds.clone(),
        );
        registry.register(
            "reveille_callback_duration_seconds",
            "From an attempt's start to its end",
            self.callback_duration_seconds.clone(),
        );
        registry.register("reveille_callback_attempts", "Attempts by result", self.callback_attempts.clone());
        registry.register("reveille_occurrences", "Occurrences by outcome", self.occurrences.clone());
        registry.register("reveille_retries", "Attempts that were followed by another", self.retries.clone());
        registry.register("reveille_dead_letters", "Runs without attempts left", self.dead_letters.clone());
        registry.register("reveille_missed", "Overdue occurrences that gave way to a later one", self.missed.clone());
        registry.register(
            "reveille_deferred",
            "Due rows written again at a later position, because their target was full",
            self.deferred.clone(),
        );
        registry.register("reveille_due_rows_dropped", "Due rows that came to nothing", self.dropped.clone());
        registry.register("reveille_store_errors", "Failed calls of the store", self.store_errors.clone());
        registry.register("reveille_panics", "Panics that were caught and survived", self.panics.clone());
        registry.register("reveille_window_keys", "Due rows in memory", self.window_keys.clone());
        registry.register("reveille_parked_keys", "Due keys that wait for their target", self.parked_keys.clone());
        registry.register("reveille_in_flight", "Attempts whose outcome is not yet durable", self.in_flight.clone());
        registry.register(
            "reveille_oldest_due_seconds",
            "Age of the oldest due row without an outcome",
            self.oldest_open_seconds.clone(),
        );
        registry.register("reveille_schedules_created", "Schedules made or replaced", self.created.clone());
        registry.register("reveille_schedules_cancelled", "Schedules cancelled", self.cancelled.clone());
        registry.register("reveille_shards_owned", "Shards that this member owns", self.shards_owned.clone());
        registry.register("reveille_shards_moved", "Shards that came and went, by how", self.shards_moved.clone());
    }
}
