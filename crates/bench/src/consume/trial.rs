//! Rounds of the trial, and their results.

use anyhow::{Context, ensure};
use bus::TopicName;
use clap::ValueEnum as _;
use cli_support::console;
use runtime::Runtime;

use super::process::{Contestant, Results, text};
use super::topics::Topics;
use super::{ConsumeArguments, ContestantArguments, Name, Part};
use crate::report::{self, Row};

/// Targets of Reveille: the least ratio of its rate to the rate of a peer.
const TARGETS: [(Part, Name, f64); 3] =
    [(Part::Empty, Name::Rdkafka, 0.7), (Part::Slow, Name::Java, 20.0), (Part::Slow, Name::Parallel, 1.0)];
/// Least number of rounds from which the trial judges the targets.
const ROUNDS_MIN: u32 = 3;

/// # Errors
/// Returns an error if a contestant fails, or if Reveille is slower than its targets.
pub(super) async fn run(runtime: &Runtime, arguments: &ConsumeArguments) -> anyhow::Result<()> {
    let topics = Topics::open(runtime, arguments).await?;
    let mut trial = Trial { runtime, arguments, topics };
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for part in Part::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(part) {
            continue;
        }
        for (name, runs) in trial.measure(*part).await? {
            let mut median = match runs.as_slice() {
                [run] => run.clone(),
                runs => report::summary(&runs[0].trial, runs),
            };
            if let Some(target) = Target::of(*part, name, median.ratio) {
                median.notes.push(target.to_text());
                missed.extend((!target.is_reached()).then(|| format!("{}: {}", median.trial, target.to_text())));
            }
            rows.extend(runs.into_iter().filter(|_| arguments.rounds > 1));
            rows.push(median);
        }
    }
    let output = if arguments.json { serde_json::to_string_pretty(&rows)? } else { report::table(&rows) };
    console::line(output.trim_end()).context("cannot write the result to standard output")?;
    ensure!(missed.is_empty() || arguments.rounds < ROUNDS_MIN, "{}", missed.join("; "));
    Ok(())
}

struct Trial<'a> {
    runtime: &'a Runtime,
    arguments: &'a ConsumeArguments,
    topics: Topics,
}

impl Trial<'_> {
    /// Runs all rounds of a part. Returns the rows of each contestant, one for each round.
    async fn measure(&mut self, part: Part) -> anyhow::Result<Vec<(Name, Vec<Row>)>> {
        let arguments = self.arguments;
        let (long, short) = match part {
            Part::Empty => (Some(self.topics.filled(arguments.records).await?), None),
            Part::Slow => {
                let long = self.topics.filled(arguments.slow_records).await?;
                (Some(long), Some(self.topics.filled(arguments.sequential_records).await?))
            }
            // Each contestant gets a new topic.
            Part::Latency => (None, None),
        };
        let has_java = !arguments.java.is_empty();
        let is_present = |name: &&Name| has_java || matches!(name, Name::Rdkafka | Name::Reveille);
        let mut all: Vec<(Name, Vec<Row>)> =
            Name::value_variants().iter().filter(is_present).map(|name| (*name, Vec::new())).collect();
        for _ in 0..arguments.rounds {
            for (name, rows) in &mut all {
                let filled = short.as_ref().filter(|_| name.is_sequential()).or(long.as_ref());
                let topic = match filled {
                    Some(topic) => topic.clone(),
                    None => self.topics.create().await?,
                };
                rows.push(self.run(part, *name, &topic).await?);
            }
            compare(&mut all);
        }
        Ok(all)
    }

    async fn run(&self, part: Part, name: Name, topic: &TopicName) -> anyhow::Result<Row> {
        let arguments = self.arguments;
        let records = match part {
            Part::Empty => arguments.records,
            Part::Slow if name.is_sequential() => arguments.sequential_records,
            Part::Slow => arguments.slow_records,
            // The first fifth of the records is the warm-up.
            Part::Latency => arguments.rate * arguments.duration * 5 / 4 + u64::from(arguments.partitions),
        };
        let words = ContestantArguments {
            name,
            brokers: arguments.brokers.clone(),
            topic: topic.to_string(),
            group: format!("{}-{:016x}", text(&name), self.runtime.random()),
            part,
            records,
            warm_up: records / 5,
            concurrency: usize::try_from(arguments.concurrency).unwrap_or(1),
        };
        let mut contestant = Contestant::start(self.runtime, &arguments.java, &words)?;
        let measured = records - words.warm_up;
        let results = if part == Part::Latency {
            self.topics.send_first(topic).await?;
            contestant.first().await?;
            let count = records - u64::from(arguments.partitions);
            let sending = self.topics.send_evenly(topic, arguments.rate, count);
            tokio::try_join!(contestant.results(measured), sending)?.0
        } else {
            contestant.results(measured).await?
        };
        tracing::info!(part = text(&part), contestant = text(&name), ?results, "a contestant has ended");
        Ok(row(part, name, &results))
    }
}

impl Name {
    fn is_sequential(self) -> bool {
        matches!(self, Name::Rdkafka | Name::Java)
    }
}

fn row(part: Part, name: Name, results: &Results) -> Row {
    let label = match part {
        Part::Empty => "empty handler",
        Part::Slow => "handler of 1 ms",
        Part::Latency => "latency",
    };
    let mut row = Row::new(format!("{label}: {}", text(&name)));
    row.count = Some(results.records);
    row.consumer_cpu_us = Some(report::micros_each(results.cpu, results.records));
    row.memory_peak_mib = Some(report::mebibytes(results.memory_peak));
    match part {
        Part::Latency => {
            row.p50_ms = Some(results.p50.as_secs_f64() * 1e3);
            row.p99_ms = Some(results.p99.as_secs_f64() * 1e3);
        }
        Part::Empty | Part::Slow => {
            let micros = report::micros_each(results.took, results.records);
            row.per_second = Some(1e6 / micros.max(1e-9));
            row.handler_us = (part == Part::Slow).then_some(results.handler.as_secs_f64() * 1e6);
        }
    }
    row
}

/// Sets the ratio of Reveille's rate to the rate of each peer, for the last round.
fn compare(all: &mut [(Name, Vec<Row>)]) {
    let ours = all.iter().find(|(name, _)| *name == Name::Reveille).and_then(|(_, rows)| rows.last()?.per_second);
    for (_, rows) in all.iter_mut().filter(|(name, _)| *name != Name::Reveille) {
        if let Some(row) = rows.last_mut() {
            row.ratio = ours.zip(row.per_second).map(|(ours, theirs)| ours / theirs);
        }
    }
}

/// Least ratio of Reveille's rate to the rate of a peer, and the measured ratio.
struct Target {
    peer: Name,
    least: f64,
    measured: f64,
}

impl Target {
    fn of(part: Part, peer: Name, measured: Option<f64>) -> Option<Self> {
        let least = TARGETS.iter().find(|target| target.0 == part && target.1 == peer)?.2;
        Some(Target { peer, least, measured: measured? })
    }

    fn is_reached(&self) -> bool {
        self.measured >= self.least
    }

    fn to_text(&self) -> String {
        let Target { peer, least, measured } = self;
        format!("Reveille's rate is {measured:.2} of the rate of {} (target: at least {least})", text(peer))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rows(part: Part, took: &[(Name, u64)]) -> Vec<(Name, Vec<Row>)> {
        let results = |micros| Results {
            records: 1_000,
            took: Duration::from_micros(micros),
            handler: Duration::from_micros(1_100),
            p50: Duration::from_micros(1_500),
            p99: Duration::from_micros(9_250),
            cpu: Duration::from_millis(4),
            memory_peak: 64 << 20,
        };
        let mut all: Vec<_> =
            took.iter().map(|(name, micros)| (*name, vec![row(part, *name, &results(*micros))])).collect();
        compare(&mut all);
        all
    }

    #[test]
    fn consume_report_shows_the_ratio_of_reveille_to_each_peer() {
        let took = [(Name::Java, 1_200_000), (Name::Parallel, 60_000), (Name::Reveille, 40_000)];
        let mut all = rows(Part::Slow, &took);
        all.extend(rows(Part::Latency, &[(Name::Reveille, 1)]));
        let rows: Vec<Row> = all.into_iter().flat_map(|(_, rows)| rows).collect();
        expect_test::expect![[r"
            trial                      per s  ratio  p50 ms  p99 ms  count  consumer us  handler us  peak MiB
            handler of 1 ms: java        833  30.00       -       -   1000         4.00        1100        64
            handler of 1 ms: parallel  16667   1.50       -       -   1000         4.00        1100        64
            handler of 1 ms: reveille  25000      -       -       -   1000         4.00        1100        64
            latency: reveille              -      -    1.50    9.25   1000         4.00           -        64
        "]]
        .assert_eq(&report::table(&rows));
    }

    #[test]
    fn target_is_missed_if_reveille_is_too_slow() {
        let target = |micros: u64| {
            let all = rows(Part::Empty, &[(Name::Rdkafka, 1_000), (Name::Reveille, micros)]);
            Target::of(Part::Empty, Name::Rdkafka, all[0].1[0].ratio).unwrap()
        };
        assert!(target(1_400).is_reached());
        assert!(!target(1_500).is_reached());
        assert_eq!(target(2_000).to_text(), "Reveille's rate is 0.50 of the rate of rdkafka (target: at least 0.7)");
        assert!(Target::of(Part::Empty, Name::Java, Some(0.1)).is_none(), "a target for a peer without a target");
    }
}
