//! Metrics of the scheduler. The name of a metric contains its unit, if any. docs/operating.md lists all metrics.
//!
//! For every label value that is known in advance, the time series starts with the value 0. A rate over this time
//! series therefore includes the first event.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{AttemptResult, BUS_NOT_CONFIGURED, BUS_REJECTED, EGRESS_REJECTED, NOT_DECRYPTED, TargetKind, Timestamp};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::{Monotonic, Runtime};
use store::{InboxState, StoreError, Usage};

/// Shortest time between two log lines for one kind of failure. Without this limit, an unreachable store would cause
/// thousands of log lines.
const LOG_PERIOD: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    pub(crate) outcome: &'static str,
}

/// Label for the kind of a store call.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct Call {
    pub(crate) call: &'static str,
}

/// Label that states how the owner of a shard changed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct Change {
    pub(crate) change: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct Reason {
    pub(crate) reason: &'static str,
}

/// Label for the state of a schedule.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct AttemptLabels {
    protocol: &'static str,
    result: &'static str,
}

/// Labels for the results of failed attempts, except `status_other`. The labels are also the reasons of dead letters.
const HTTP_FAILURES: [&str; 10] = [
    "status_3xx",
    "status_4xx",
    "status_5xx",
    EGRESS_REJECTED,
    NOT_DECRYPTED,
    "dns",
    "tls",
    "unreachable",
    "timeout",
    "panic",
];

const BUS_FAILURES: [&str; 7] =
    [EGRESS_REJECTED, NOT_DECRYPTED, BUS_NOT_CONFIGURED, BUS_REJECTED, "unreachable", "timeout", "panic"];

impl AttemptLabels {
    /// Returns the labels of an attempt's result. All HTTP statuses with the same hundreds digit get the same label.
    /// Otherwise a target could create one time series per status.
    pub(crate) fn of(kind: TargetKind, result: &AttemptResult) -> Self {
        AttemptLabels { protocol: protocol(kind), result: result.class() }
    }

    pub(crate) fn result(&self) -> &'static str {
        self.result
    }

    fn all() -> impl Iterator<Item = AttemptLabels> {
        let of_kind = |kind, failures: &'static [&'static str]| {
            let results = ["success"].into_iter().chain(failures.iter().copied());
            results.map(move |result| AttemptLabels { protocol: protocol(kind), result })
        };
        of_kind(TargetKind::Http, &HTTP_FAILURES).chain(of_kind(TargetKind::Bus, &BUS_FAILURES))
    }
}

fn protocol(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Http => "http",
        TargetKind::Bus => "bus",
    }
}

/// Limiter of the log lines for each kind of failure.
#[derive(Debug)]
pub(crate) struct LogLimiter {
    runtime: Runtime,
    /// Time of the last log line, and number of later failures without a log line, by kind of failure.
    last: Mutex<BTreeMap<&'static str, (Monotonic, u64)>>,
}

impl LogLimiter {
    /// Returns the number of failures without a log line since the last log line. Returns `None` if the caller must not
    /// log this failure.
    pub(crate) fn check(&self, kind: &'static str) -> Option<u64> {
        let now = self.runtime.monotonic();
        let mut last = self.last.lock().expect("no holder of this lock panics");
        match last.get_mut(kind) {
            Some((at, suppressed)) if now.since(*at) < LOG_PERIOD => {
                *suppressed += 1;
                None
            }
            known => {
                let suppressed = known.map_or(0, |(_, suppressed)| *suppressed);
                last.insert(kind, (now, 0));
                Some(suppressed)
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// Time from the nominal instant of an occurrence to the start of its first attempt.
    pub(crate) start_lateness_seconds: Histogram,
    pub(crate) callback_duration_seconds: Histogram,
    pub(crate) callback_attempts: Family<AttemptLabels, Counter>,
    pub(crate) occurrences: Family<OutcomeLabels, Counter>,
    pub(crate) retries: Counter,
    /// Dead letters by the result of their last attempt.
    pub(crate) dead_letters: Family<Reason, Counter>,
    pub(crate) missed: Family<Reason, Counter>,
    pub(crate) deferred: Counter,
    /// Attempts that started late because their tenant exceeded its rate.
    pub(crate) throttled: Counter,
    /// Time for which the owner held starts back, because attempts of several tenants waited for the processors.
    pub(crate) starts_held_seconds: Counter<f64, AtomicU64>,
    pub(crate) open_circuits: Gauge,
    /// Due rows that needed no attempt, because the schedule was cancelled or changed, or the occurrence already had an
    /// outcome.
    pub(crate) dropped: Counter,
    pub(crate) store_errors: Family<Call, Counter>,
    pub(crate) store_errors_logged: Arc<LogLimiter>,
    pub(crate) panics: Counter,
    pub(crate) window_keys: Gauge,
    pub(crate) due_backlog: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) oldest_due_seconds: Gauge<f64, AtomicU64>,
    /// Time by which the latest `closed` of the owned pollers is ahead of the present time. It is 0 if no `closed` is too
    /// far ahead.
    pub(crate) clock_behind_seconds: Gauge<f64, AtomicU64>,
    /// Pollers whose positions this member has set back.
    pub(crate) reopened: Counter,
    pub(crate) created: Counter,
    pub(crate) cancelled: Counter,
    /// Number of stored schedules of all tenants by their state.
    schedules: Family<State, Gauge>,
    /// Size of the schedules and runs of all tenants in bytes.
    stored_bytes: Gauge,
    /// Differences that the last audit of this member found. 0 unless this member is the leader.
    pub(crate) unaccounted: Gauge,
    /// End of the last audit of this member, in seconds since 1970. 0 unless this member is the leader.
    pub(crate) audit_completed: Gauge,
    pub(crate) shards_owned: Gauge,
    /// Shards that this member gained, handed over or lost.
    pub(crate) shard_owner_changes: Family<Change, Counter>,
    /// Entries of the inbox whose effect is durable, and entries that this member turned into dead letters.
    pub(crate) inbox_moved: Counter,
    pub(crate) inbox_rejected: Counter,
    /// State of the inbox of the whole cluster.
    pub(crate) inbox_waiting: Gauge,
    pub(crate) inbox_oldest_seconds: Gauge<f64, AtomicU64>,
    pub(crate) inbox_dead_letters: Gauge,
    /// Time by which the coordination engine's clock is ahead of this machine's clock. Only members of a cluster
    /// register this metric.
    pub(crate) clock_skew_seconds: Gauge<f64, AtomicU64>,
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
            dead_letters: Family::default(),
            missed: Family::default(),
            deferred: Counter::default(),
            throttled: Counter::default(),
            starts_held_seconds: Counter::default(),
            open_circuits: Gauge::default(),
            dropped: Counter::default(),
            store_errors: Family::default(),
            store_errors_logged: Arc::new(LogLimiter { runtime, last: Mutex::default() }),
            panics: Counter::default(),
            window_keys: Gauge::default(),
            due_backlog: Gauge::default(),
            in_flight: Gauge::default(),
            oldest_due_seconds: Gauge::default(),
            clock_behind_seconds: Gauge::default(),
            reopened: Counter::default(),
            created: Counter::default(),
            cancelled: Counter::default(),
            schedules: Family::default(),
            stored_bytes: Gauge::default(),
            unaccounted: Gauge::default(),
            audit_completed: Gauge::default(),
            shards_owned: Gauge::default(),
            shard_owner_changes: Family::default(),
            inbox_moved: Counter::default(),
            inbox_rejected: Counter::default(),
            inbox_waiting: Gauge::default(),
            inbox_oldest_seconds: Gauge::default(),
            inbox_dead_letters: Gauge::default(),
            clock_skew_seconds: Gauge::default(),
        };
        metrics.begin_at_zero();
        metrics.register(registry);
        metrics
    }

    fn begin_at_zero(&self) {
        for outcome in ["succeeded", "failed", "missed", "cancelled"] {
            drop(self.occurrences.get_or_create(&OutcomeLabels { outcome }));
        }
        for labels in AttemptLabels::all() {
            drop(self.callback_attempts.get_or_create(&labels));
        }
        for reason in HTTP_FAILURES.into_iter().chain(BUS_FAILURES) {
            drop(self.dead_letters.get_or_create(&Reason { reason }));
        }
        for change in ["gained", "let_go", "lost"] {
            drop(self.shard_owner_changes.get_or_create(&Change { change }));
        }
        for call in ["load", "write"] {
            drop(self.store_errors.get_or_create(&Call { call }));
        }
        drop(self.missed.get_or_create(&Reason { reason: "overdue" }));
    }

    /// Sets the metrics of stored schedules and bytes.
    pub(crate) fn set_usage(&self, usage: &Usage) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        for (state, count) in [("active", usage.active), ("ended", usage.ended), ("cancelled", usage.cancelled)] {
            self.schedules.get_or_create(&State { state }).set(number(count));
        }
        self.stored_bytes.set(number(usage.bytes));
    }

    /// Registers the metrics that only members of a cluster have.
    pub(crate) fn register_of_cluster(&self, registry: &mut Registry) {
        registry.register(
            "reveille_clock_skew_seconds",
            "Time by which the coordination engine's clock is ahead of this machine's clock",
            self.clock_skew_seconds.clone(),
        );
        registry.register(
            "reveille_inbox_moved",
            "Requests of the SQL inbox that this member carried out",
            self.inbox_moved.clone(),
        );
        registry.register(
            "reveille_inbox_rejected",
            "Requests of the SQL inbox that this member rejected and kept as dead letters",
            self.inbox_rejected.clone(),
        );
        registry.register(
            "reveille_inbox_waiting",
            "Committed requests in the SQL inbox of the whole cluster",
            self.inbox_waiting.clone(),
        );
        registry.register(
            "reveille_inbox_oldest_seconds",
            "Age of the oldest request in the SQL inbox of the whole cluster",
            self.inbox_oldest_seconds.clone(),
        );
        registry.register(
            "reveille_inbox_dead_letters",
            "Rejected requests of the SQL inbox that no operator has deleted",
            self.inbox_dead_letters.clone(),
        );
    }

    /// Sets the metrics of the inbox of the whole cluster.
    pub(crate) fn set_inbox(&self, state: &InboxState, now: Timestamp) {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.inbox_waiting.set(number(state.waiting));
        self.inbox_dead_letters.set(number(state.dead_letters));
        let age = state.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
        self.inbox_oldest_seconds.set(age.as_secs_f64());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "reveille_start_lateness_seconds",
            "Time from an occurrence's nominal instant to its first attempt",
            self.start_lateness_seconds.clone(),
        );
        registry.register(
            "reveille_callback_duration_seconds",
            "Duration of a callback attempt",
            self.callback_duration_seconds.clone(),
        );
        registry.register(
            "reveille_callback_attempts",
            "Callback attempts by protocol and result",
            self.callback_attempts.clone(),
        );
        registry.register("reveille_occurrences", "Occurrences by outcome", self.occurrences.clone());
        registry.register(
            "reveille_retries",
            "Failed attempts for which another attempt is planned",
            self.retries.clone(),
        );
        registry.register(
            "reveille_dead_letters",
            "Runs that failed in all their attempts, by the result of the last attempt",
            self.dead_letters.clone(),
        );
        registry.register("reveille_missed", "Occurrences that did not fire, by reason", self.missed.clone());
        registry.register(
            "reveille_deferred",
            "Due rows that the owner wrote again at a later position, because their target had no free slot",
            self.deferred.clone(),
        );
        registry.register(
            "reveille_callbacks_throttled",
            "Attempts that started late, because their tenant exceeded its limit of callbacks per minute",
            self.throttled.clone(),
        );
        registry.register(
            "reveille_starts_held_seconds",
            "Time for which due rows waited because attempts of several tenants filled the processors",
            self.starts_held_seconds.clone(),
        );
        registry.register(
            "reveille_open_circuits",
            "Targets to which Reveille pauses callbacks after repeated failures",
            self.open_circuits.clone(),
        );
        registry.register(
            "reveille_due_rows_dropped",
            "Due rows dropped without an attempt, because their schedule changed or their occurrence has an outcome",
            self.dropped.clone(),
        );
        registry.register("reveille_store_errors", "Store calls that failed", self.store_errors.clone());
        registry.register("reveille_panics", "Panics that the process caught", self.panics.clone());
        registry.register("reveille_window_keys", "Due rows in memory", self.window_keys.clone());
        registry.register("reveille_due_backlog", "Due rows in memory that wait for a slot", self.due_backlog.clone());
        registry.register("reveille_in_flight", "Attempts whose outcome is not yet durable", self.in_flight.clone());
        registry.register(
            "reveille_oldest_due_seconds",
            "Age of the oldest due row without an outcome",
            self.oldest_due_seconds.clone(),
        );
        registry.register(
            "reveille_clock_behind_seconds",
            "Time by which this member's clock is behind the times up to which an owner has processed due rows",
            self.clock_behind_seconds.clone(),
        );
        registry.register(
            "reveille_pollers_reopened",
            "Pollers whose positions this member set back, because an owner's clock had been ahead",
            self.reopened.clone(),
        );
        registry.register("reveille_schedules_created", "Schedules created or replaced", self.created.clone());
        registry.register("reveille_schedules_cancelled", "Schedules cancelled", self.cancelled.clone());
        registry.register(
            "reveille_schedules",
            "Stored schedules of all tenants in the whole cluster by state",
            self.schedules.clone(),
        );
        registry.register(
            "reveille_stored_bytes",
            "Size of the schedules and runs of all tenants in the whole cluster",
            self.stored_bytes.clone(),
        );
        registry.register(
            "reveille_unaccounted",
            "Differences between timings of schedules and records in the store, from the last audit of this member",
            self.unaccounted.clone(),
        );
        registry.register(
            "reveille_audit_completed_timestamp_seconds",
            "End of the last audit of this member in seconds since 1970, 0 unless this member is the leader",
            self.audit_completed.clone(),
        );
        registry.register("reveille_shards_owned", "Shards that this member owns", self.shards_owned.clone());
        registry.register(
            "reveille_shard_owner_changes",
            "Shards that this member gained, handed over or lost",
            self.shard_owner_changes.clone(),
        );
    }
}

pub(crate) fn count_store_error(metrics: &Metrics, call: &'static str, error: &StoreError) {
    metrics.store_errors.get_or_create(&Call { call }).inc();
    match metrics.store_errors_logged.check(call) {
        Some(suppressed) => tracing::warn!(call, %error, suppressed, "store call failed; the scheduler will retry it"),
        None => tracing::debug!(call, %error, "store call failed; the scheduler will retry it"),
    }
}
