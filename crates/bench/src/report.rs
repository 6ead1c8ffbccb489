//! Report of a trial's results: a table for people, and JSON for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Cost;

/// Results of a trial or of a part of a trial. `None` marks values that do not apply.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) trial: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) doubled: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) early: Option<u64>,
    /// CPU time of the server per operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_cpu_us: Option<f64>,
    /// CPU time of this process (load generator and receiver) per operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bench_cpu_us: Option<f64>,
    /// Highest observed anonymous resident memory of the server, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_anon_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_mib: Option<f64>,
    /// CPU time of a consumer per record, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumer_cpu_us: Option<f64>,
    /// Mean duration of a call of a consumer's handler, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handler_us: Option<f64>,
    /// Largest resident memory of a consumer, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_peak_mib: Option<f64>,
    /// Number of reads from the store's database per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reads_per_minute: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Row {
    pub(crate) fn new(trial: impl Into<String>) -> Self {
        Row { trial: trial.into(), ..Row::default() }
    }

    /// Sets the percentiles and the maximum from a histogram of latencies in microseconds.
    pub(crate) fn with_latency(mut self, latency: &Histogram<u64>) -> Self {
        if !latency.is_empty() {
            self.p50_ms = Some(millis(latency.value_at_quantile(0.5)));
            self.p99_ms = Some(millis(latency.value_at_quantile(0.99)));
            self.p999_ms = Some(millis(latency.value_at_quantile(0.999)));
            self.max_ms = Some(millis(latency.max()));
        }
        self
    }

    /// Sets the CPU time per operation from the CPU time of `count` operations, and sets the highest memory.
    pub(crate) fn with_cost(mut self, cost: &Cost, count: u64) -> Self {
        self.server_cpu_us = cost.cpu.map(|cpu| micros_each(cpu, count));
        self.bench_cpu_us = Some(micros_each(cost.own_cpu, count));
        self.rss_anon_mib = cost.memory_peak_bytes.map(mebibytes);
        self
    }

    fn figures(&self) -> [Option<String>; COLUMNS.len()] {
        let whole = |value: Option<f64>| value.map(|value| format!("{value:.0}"));
        let fine = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
        let count = |value: Option<u64>| value.map(|value| value.to_string());
        [
            whole(self.per_second),
            fine(self.ratio),
            fine(self.p50_ms),
            fine(self.p99_ms),
            fine(self.p999_ms),
            fine(self.max_ms),
            count(self.count),
            count(self.failed),
            count(self.lost),
            count(self.doubled),
            count(self.early),
            fine(self.server_cpu_us),
            fine(self.bench_cpu_us),
            whole(self.rss_anon_mib),
            whole(self.disk_mib),
            fine(self.consumer_cpu_us),
            whole(self.handler_us),
            whole(self.memory_peak_mib),
            whole(self.reads_per_minute),
        ]
    }
}

const COLUMNS: [&str; 19] = [
    "per s",
    "ratio",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
    "count",
    "failed",
    "lost",
    "doubled",
    "early",
    "server us",
    "bench us",
    "anon MiB",
    "disk MiB",
    "consumer us",
    "handler us",
    "peak MiB",
    "reads/min",
];

#[expect(clippy::cast_precision_loss, reason = "durations stay far below 2^52 microseconds")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

/// Returns the time `part` divided by the number `count` of operations, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "counts of operations stay far below 2^52")]
pub(crate) fn micros_each(part: Duration, count: u64) -> f64 {
    part.as_secs_f64() * 1e6 / count.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^52 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// Returns the middle value in sorted order, or the mean of the two middle values if the number of values is even.
/// Returns `None` if `values` is empty.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns a row with the median of each figure over the runs of one trial. The counts, for example of lost callbacks,
/// are sums over the runs, because a median could hide a fault of a single run.
pub(crate) fn summary(trial: &str, runs: &[Row]) -> Row {
    let middle = |figure: fn(&Row) -> Option<f64>| median(runs.iter().filter_map(figure));
    let sum = |figure: fn(&Row) -> Option<u64>| runs.iter().filter_map(figure).reduce(|a, b| a + b);
    Row {
        trial: format!("{trial}, median of {}", runs.len()),
        per_second: middle(|row| row.per_second),
        ratio: middle(|row| row.ratio),
        p50_ms: middle(|row| row.p50_ms),
        p99_ms: middle(|row| row.p99_ms),
        p999_ms: middle(|row| row.p999_ms),
        max_ms: middle(|row| row.max_ms),
        count: sum(|row| row.count),
        failed: sum(|row| row.failed),
        lost: sum(|row| row.lost),
        doubled: sum(|row| row.doubled),
        early: sum(|row| row.early),
        server_cpu_us: middle(|row| row.server_cpu_us),
        bench_cpu_us: middle(|row| row.bench_cpu_us),
        rss_anon_mib: middle(|row| row.rss_anon_mib),
        disk_mib: middle(|row| row.disk_mib),
        consumer_cpu_us: middle(|row| row.consumer_cpu_us),
        handler_us: middle(|row| row.handler_us),
        memory_peak_mib: middle(|row| row.memory_peak_mib),
        reads_per_minute: middle(|row| row.reads_per_minute),
        notes: Vec::new(),
    }
}

/// Formats the rows as a table without the columns that have no value.
pub(crate) fn table(rows: &[Row]) -> String {
    let figures: Vec<_> = rows.iter().map(Row::figures).collect();
    let used: Vec<usize> =
        (0..COLUMNS.len()).filter(|column| figures.iter().any(|row| row[*column].is_some())).collect();
    let trial_width = rows.iter().map(|row| row.trial.chars().count()).max().unwrap_or(0).max("trial".len());
    let width = |column: usize| {
        let cells = figures.iter().map(|row| row[column].as_ref().map_or(1, String::len));
        cells.max().unwrap_or(0).max(COLUMNS[column].len())
    };
    let mut out = format!("{:trial_width$}", "trial");
    for column in &used {
        out.push_str(&format!("  {:>width$}", COLUMNS[*column], width = width(*column)));
    }
    for (row, cells) in rows.iter().zip(&figures) {
        out.push_str(&format!("\n{:trial_width$}", row.trial));
        for column in &used {
            let cell = cells[*column].as_deref().unwrap_or("-");
            out.push_str(&format!("  {cell:>width$}", width = width(*column)));
        }
        for note in &row.notes {
            out.push_str(&format!("\n    {note}"));
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_omits_columns_without_values() {
        let mut first = Row::new("limit: handler");
        first.per_second = Some(130_000.4);
        let mut second = Row::new("create");
        second.per_second = Some(40_000.0);
        second.lost = Some(0);
        second.notes.push("half of the connections were opened twice".to_owned());
        expect_test::expect![[r"
            trial            per s  lost
            limit: handler  130000     -
            create           40000     0
                half of the connections were opened twice
        "]]
        .assert_eq(&table(&[first, second]));
    }

    #[test]
    fn summary_combines_the_rates_and_losses_of_all_runs() {
        let runs: Vec<Row> = [(3.0, 1), (1.0, 0), (2.0, 4)]
            .map(|(per_second, lost)| Row { per_second: Some(per_second), lost: Some(lost), ..Row::default() })
            .into();
        let summary = summary("fire", &runs);
        assert_eq!((summary.per_second, summary.lost, summary.early), (Some(2.0), Some(5), None));
        assert_eq!(median([1.0, 4.0]), Some(2.5));
        assert_eq!(median([]), None);
    }
}
