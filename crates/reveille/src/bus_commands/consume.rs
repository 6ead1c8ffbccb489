//! Command `reveille bus consume`, which prints the records of a topic.
//!
//! A member of a group commits the records that it has written to standard output. If the reader of the output has ended,
//! as with `| head`, the command commits nothing further, and ends. The reader may have ignored records in its pipe that
//! are committed, so `--count` is safer.

use std::io::{self, ErrorKind};

use anyhow::bail;
use bus::{Committed, ConsumerOptions, Partition, Record, RecordBatch, Start, TopicName};
use clap::Args;
use runtime::Runtime;

use super::feed::{self, Feed, Next};
use super::{Common, note, text};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Name of the topic
    topic: TopicName,
    /// Group that the command joins; the command commits the printed records, so the other members of the group do not
    /// receive them [default: no group, all records]
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Begin with the first record of each partition; with a group, only in partitions in which it has committed nothing
    /// [default]
    #[arg(long, conflicts_with = "latest")]
    from_start: bool,
    /// Begin at the end of each partition in which the group has committed nothing
    #[arg(long, requires = "group")]
    latest: bool,
    /// Number of records after which the command ends
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End at the present end of the topic
    #[arg(long)]
    until_end: bool,
    /// End without an error if the bus delivers no record for 5 s before the end, for example after a transaction
    #[arg(long, requires = "until_end")]
    accept_gaps: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { topic, group, from_start: _, latest, count, until_end, accept_gaps, common } = arguments;
    let bus = common.open(runtime).await?;
    let mut feed = match group {
        Some(group) => {
            let start = if latest { Start::Latest } else { Start::Earliest };
            let name = "reveille-bus-consume".to_owned();
            let options = ConsumerOptions { name, start, ..ConsumerOptions::new(&group, vec![topic.clone()]) };
            Feed::join(runtime, bus, &topic, options, until_end, feed::stop()?).await?
        }
        None => Feed::read(runtime, bus, &topic, until_end, feed::stop()?).await?,
    };
    let limits = Limits { count, until_end, accept_gaps };
    let printed = print(&mut feed, limits, common.json, &mut io::stdout()).await;
    feed.close().await;
    printed
}

/// End of the command.
#[derive(Clone, Copy)]
struct Limits {
    /// Largest number of records; `None` for no limit.
    count: Option<u64>,
    /// True if the command ends at the end of the feed.
    until_end: bool,
    /// True if missing records before the end are no error.
    accept_gaps: bool,
}

/// Prints records up to the limits.
///
/// # Errors
/// Returns an error if the feed stops before the limits, because the output is then incomplete.
async fn print(feed: &mut Feed, limits: Limits, as_json: bool, out: &mut impl io::Write) -> anyhow::Result<()> {
    let mut left = limits.count.unwrap_or(u64::MAX);
    while left > 0 {
        let RecordBatch { partition, records, .. } = match feed.next().await? {
            Next::Records(batch) => batch,
            Next::End => return Ok(()),
            Next::Missing(text) if limits.accept_gaps => {
                note(&text);
                return Ok(());
            }
            Next::Missing(text) => bail!(
                "{text}; run the command again if the bus was slow, or accept the missing offsets with --accept-gaps"
            ),
            Next::Stopped if limits.until_end || limits.count.is_some() => {
                bail!("a signal stopped the command, so the output is incomplete; run the command again")
            }
            Next::Stopped => return Ok(()),
        };
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(records.len());
        let records = &records[..taken];
        left -= u64::try_from(taken).unwrap_or(left);
        let Some(last) = records.last() else { continue };
        match write(out, &partition, records, as_json) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        let committed = Committed { offset: last.offset.next(), metadata: String::new() };
        if let Err(error) = feed.commit(&partition, committed).await {
            note(&format!(
                "the records up to {partition}/{} are printed but not committed, so the group receives them again: {error}",
                last.offset
            ));
        }
    }
    Ok(())
}

/// Writes records to the output.
///
/// # Errors
/// Returns an error if the write fails, also if the reader has closed the pipe.
fn write(out: &mut impl io::Write, partition: &Partition, records: &[Record], as_json: bool) -> io::Result<()> {
    let mut lines = String::new();
    for record in records {
        lines.push_str(&match as_json {
            true => text::record_json(partition, record)?,
            false => text::record_line(partition, record),
        });
        lines.push('\n');
    }
    out.write_all(lines.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bus::memory::{MemoryBus, MemoryOptions};
    use bus::{Bus as _, NewRecord, ProducerOptions, TopicOptions};
    use futures_util::future::FutureExt as _;
    use simulator::Simulation;

    use super::*;

    /// Prints a topic with one record, and receives a signal to stop after 3 s. Returns the number of printed lines and the
    /// error.
    fn print_until_a_signal(count: Option<u64>, until_end: bool) -> (usize, Option<String>) {
        let sim = Simulation::new(0);
        sim.run_until(async {
            let (runtime, topic) = (sim.outside(), TopicName::new("orders").unwrap());
            let bus = Arc::new(MemoryBus::new(runtime.clone(), MemoryOptions::default()));
            bus.create_topic(&topic, TopicOptions::with_partitions(1)).await.unwrap();
            let producer = bus.producer(ProducerOptions::default()).await.unwrap();
            producer.send(vec![NewRecord::new(&topic, "a", "1")]).await.remove(0).unwrap();
            let clock = runtime.clone();
            let stop = async move { clock.sleep(std::time::Duration::from_secs(3)).await }.boxed();
            let options = ConsumerOptions::new("audit", vec![topic.clone()]);
            let other = bus.consumer(options.clone()).await.unwrap();
            // Another member has the only partition, so the feed of the group does not reach its end.
            if until_end {
                other.next().await.unwrap();
            } else {
                other.close().await.unwrap();
            }
            let mut feed = Feed::join(&runtime, bus, &topic, options, until_end, stop).await.unwrap();
            let mut out = Vec::new();
            let limits = Limits { count, until_end, accept_gaps: false };
            let printed = print(&mut feed, limits, false, &mut out).await;
            (String::from_utf8(out).unwrap().lines().count(), printed.err().map(|error| error.to_string()))
        })
    }

    #[test]
    fn signal_before_the_limits_is_an_error() {
        assert_eq!(print_until_a_signal(None, false), (1, None));
        assert_eq!(print_until_a_signal(Some(1), false), (1, None));
        for (count, until_end, lines) in [(Some(2), false, 1), (None, true, 0)] {
            let (printed, error) = print_until_a_signal(count, until_end);
            assert_eq!(printed, lines);
            assert!(error.is_some_and(|error| error.contains("the output is incomplete")));
        }
    }
}
