//! Metrics of processors in the format of OpenMetrics. Each scrape reads their current values.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use instants::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Shared;
use super::lanes::Backlog;

/// Upper bounds of the durations of rebalances, in seconds.
const REBALANCE_SECONDS: [f64; 8] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

/// Counters of one processor.
pub(super) struct Counters {
    /// Records whose handler has succeeded.
    pub(super) succeeded: Counter,
    /// Failed calls after which the record waits for a further call.
    pub(super) blocked: Counter,
    /// Copies in retry topics.
    pub(super) delayed: Counter,
    /// Dead letters.
    pub(super) dead: Counter,
    /// Records that have failed without a copy.
    pub(super) dropped: Counter,
    /// Records that an operator has skipped.
    pub(super) skipped: Counter,
    /// Commits that the bus has rejected or not answered.
    pub(super) commits_failed: Counter,
    /// Times from the request to release partitions to their release, in seconds.
    pub(super) rebalance_seconds: Histogram,
    /// Assignments that the processor has lost without a request to release them.
    pub(super) lost: Counter,
}

impl Counters {
    pub(super) fn new() -> Self {
        Counters {
            succeeded: Counter::default(),
            blocked: Counter::default(),
            delayed: Counter::default(),
            dead: Counter::default(),
            dropped: Counter::default(),
            skipped: Counter::default(),
            commits_failed: Counter::default(),
            rebalance_seconds: Histogram::new(REBALANCE_SECONDS),
            lost: Counter::default(),
        }
    }

    /// Returns the counters of failed calls, and the value of their label `next`.
    fn failures(&self) -> [(&'static str, &Counter); 5] {
        [
            ("same_topic", &self.blocked),
            ("retry_topic", &self.delayed),
            ("dead_letter", &self.dead),
            ("none", &self.dropped),
            ("skipped", &self.skipped),
        ]
    }
}

/// Metrics of the processors of this process. Each of them must be a member of another group.
#[derive(Clone, Default)]
pub struct ProcessorMetrics(Arc<Mutex<Vec<Weak<Shared>>>>);

impl ProcessorMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    pub(super) fn add(&self, processor: &Arc<Shared>) {
        let mut processors = self.0.lock().expect("no code panics while it holds this mutex");
        processors.retain(|one| one.strong_count() > 0);
        processors.push(Arc::downgrade(processor));
    }
}

impl fmt::Debug for ProcessorMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessorMetrics")
    }
}

/// Values of one processor at the time of a scrape.
struct Sample {
    shared: Arc<Shared>,
    now: Timestamp,
    backlogs: Vec<Backlog>,
    records_in_hand: usize,
    lanes_busy: usize,
    keys_blocked: usize,
}

impl Sample {
    fn new(shared: Arc<Shared>) -> Self {
        let now = shared.runtime.now();
        let lanes = shared.lanes();
        let (lanes_busy, keys_blocked) = lanes.lane_counts();
        let (backlogs, records_in_hand) = (lanes.backlogs(), lanes.record_count());
        drop(lanes);
        Sample { shared, now, backlogs, records_in_hand, lanes_busy, keys_blocked }
    }

    fn group(&self) -> [(&'static str, String); 1] {
        [("group", self.shared.options.consumer.group.clone())]
    }

    /// Returns the age of the oldest record of a backlog, in seconds.
    fn age_seconds(&self, backlog: &Backlog) -> f64 {
        backlog.oldest.map_or(0.0, |oldest| self.now.since(oldest).as_secs_f64())
    }
}

/// Value of a metric, and its labels in addition to the group.
type Value = (Vec<(&'static str, String)>, f64);

struct Writer<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
    samples: &'a [Sample],
}

impl Writer<'_, '_> {
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl Fn(&Counters) -> Vec<(&'static str, u64)>,
    ) -> fmt::Result {
        let mut descriptor = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for sample in self.samples {
            for (next, value) in values(&sample.shared.counters) {
                let mut labels = sample.group().to_vec();
                labels.extend((!next.is_empty()).then(|| ("next", next.to_owned())));
                ConstCounter::new(value).encode(descriptor.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl Fn(&Sample) -> Vec<Value>,
    ) -> fmt::Result {
        let mut descriptor = self.encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for sample in self.samples {
            for (labels, value) in values(sample) {
                let mut all = sample.group().to_vec();
                all.extend(labels);
                ConstGauge::new(value).encode(descriptor.encode_family(&all)?)?;
            }
        }
        Ok(())
    }
}

/// Returns a value for each partition.
fn per_partition(sample: &Sample, value: impl Fn(&Backlog) -> f64) -> Vec<Value> {
    let labels = |one: &Backlog| {
        vec![("topic", one.partition.topic.to_string()), ("partition", one.partition.index.to_string())]
    };
    sample.backlogs.iter().map(|one| (labels(one), value(one))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float, and counts stay far below 2^52")]
impl Collector for ProcessorMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let processors = self.0.lock().expect("no code panics while it holds this mutex").clone();
        let samples: Vec<Sample> = processors.iter().filter_map(Weak::upgrade).map(Sample::new).collect();
        let mut writer = Writer { encoder: &mut encoder, samples: &samples };
        let one = |value: usize| vec![(Vec::new(), value as f64)];
        let help = "Records of a partition that the group has not finished, as far as the member knows";
        writer.gauges("reveille_bus_lag_records", help, None, |sample| {
            per_partition(sample, |backlog| backlog.records as f64)
        })?;
        let help = "Age of the oldest record of a partition that the group has not finished";
        writer.gauges("reveille_bus_lag", help, Some(&Unit::Seconds), |sample| {
            per_partition(sample, |backlog| sample.age_seconds(backlog))
        })?;
        let help = "Records in hand: running or waiting";
        writer.gauges("reveille_bus_records_in_hand", help, None, |sample| one(sample.records_in_hand))?;
        let help = "Age of the oldest record in hand";
        writer.gauges("reveille_bus_oldest_record", help, Some(&Unit::Seconds), |sample| {
            let ages = sample.backlogs.iter().map(|backlog| sample.age_seconds(backlog));
            vec![(Vec::new(), ages.fold(0.0, f64::max))]
        })?;
        let help = "Lanes whose records a handler has";
        writer.gauges("reveille_bus_lanes_busy", help, None, |sample| one(sample.lanes_busy))?;
        let help = "Keys that wait because a record has failed";
        writer.gauges("reveille_bus_keys_blocked", help, None, |sample| one(sample.keys_blocked))?;
        let help = "Records whose handler has succeeded";
        writer.counters("reveille_bus_records_handled", help, |counters| vec![("", counters.succeeded.get())])?;
        let help = "Failed records, by the place of the next call";
        writer.counters("reveille_bus_records_failed", help, |counters| {
            counters.failures().map(|(next, counter)| (next, counter.get())).to_vec()
        })?;
        let help = "Commits that the bus rejected or did not answer";
        writer.counters("reveille_bus_commits_failed", help, |counters| vec![("", counters.commits_failed.get())])?;
        let help = "Partitions that the member lost without a request to release them";
        writer.counters("reveille_bus_partitions_lost", help, |counters| vec![("", counters.lost.get())])?;
        let help = "Time from the request to release partitions to their release";
        let (name, unit) = ("reveille_bus_rebalance", Some(&Unit::Seconds));
        let mut descriptor = writer.encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        for sample in &samples {
            let histogram = &sample.shared.counters.rebalance_seconds;
            histogram.encode(descriptor.encode_family(&sample.group().to_vec())?)?;
        }
        Ok(())
    }
}
