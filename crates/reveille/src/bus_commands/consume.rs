//! Command `reveille bus consume`, which prints the records of a topic.
//!
//! A member of a group commits the records that it has written to standard output. If the reader of the output has ended,
//! as with `| head`, the command commits nothing further, and ends. The reader may have ignored records in its pipe that
//! are committed, so `--count` is safer.

use std::io::{self, ErrorKind, Write as _};

use bus::{Committed, ConsumerOptions, Partition, Record, RecordBatch, Start, TopicName};
use clap::Args;
use runtime::Runtime;

use super::feed::{Feed, Next};
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
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { topic, group, from_start: _, latest, count, until_end, common } = arguments;
    let bus = common.open(runtime).await?;
    let mut feed = match group {
        Some(group) => {
            let start = if latest { Start::Latest } else { Start::Earliest };
            let name = "reveille-bus-consume".to_owned();
            let options = ConsumerOptions { name, start, ..ConsumerOptions::new(&group, vec![topic.clone()]) };
            Feed::join(runtime, bus, &topic, options, until_end).await?
        }
        None => Feed::read(runtime, bus, &topic, until_end).await?,
    };
    let printed = print(&mut feed, count.unwrap_or(u64::MAX), common.json).await;
    feed.close().await;
    printed
}

/// Prints at most `count` records.
async fn print(feed: &mut Feed, count: u64, as_json: bool) -> anyhow::Result<()> {
    let mut left = count;
    while left > 0
        && let Next::Records(RecordBatch { partition, records, .. }) = feed.next().await?
    {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(records.len());
        let records = &records[..taken];
        left -= u64::try_from(taken).unwrap_or(left);
        let Some(last) = records.last() else { continue };
        match write(&partition, records, as_json) {
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

/// Writes records to standard output.
///
/// # Errors
/// Returns an error if the write fails, also if the reader has closed the pipe.
fn write(partition: &Partition, records: &[Record], as_json: bool) -> io::Result<()> {
    let mut lines = String::new();
    for record in records {
        lines.push_str(&match as_json {
            true => text::record_json(partition, record)?,
            false => text::record_line(partition, record),
        });
        lines.push('\n');
    }
    let mut out = io::stdout().lock();
    out.write_all(lines.as_bytes())?;
    out.flush()
}
