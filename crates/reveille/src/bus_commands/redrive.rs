//! Command `reveille bus retries redrive`, which sends dead letters again.
//!
//! The command reads the dead letters as a member of the group `TOPIC-redrive`, and commits a dead letter after the bus
//! has acknowledged its copy. A later command continues after it. If the command ends between the acknowledgement and the
//! commit, the next command sends a few dead letters again.
//!
//! With `--key`, the command sends only the dead letters of one key. The other dead letters remain before the committed
//! offset, so the metadata of the commit contains the key and the offset after its last redriven dead letter ([`Marks`]).
//!
//! Order per key: the dead letters of a key are in one partition of their topic. The command sends a dead letter after the
//! bus has acknowledged the earlier ones of its key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bus::processor::{CALLS_HEADER, ERROR_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER, VALUE_OMITTED_HEADER};
use bus::{
    Admin, Committed, ConsumerOptions, NewRecord, Offset, Partition, Position, Producer, ProducerOptions, Record,
    RecordBatch, TopicName,
};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use runtime::Runtime;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::feed::{Feed, Next};
use super::{Common, explain, note};
use crate::cli::show;
use crate::progress::Progress;

/// Headers that the copies of failed records have in addition to the headers of their records.
const COPY_HEADERS: [&str; 5] = [ORIGIN_HEADER, CALLS_HEADER, NOT_BEFORE_HEADER, ERROR_HEADER, VALUE_OMITTED_HEADER];
/// Version of [`Marks`].
const VERSION: u8 = 1;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Topic of the dead letters
    dead_letters: TopicName,
    /// Topic to which the command sends the records [default: for each dead letter, the topic of its record]
    #[arg(long, value_name = "TOPIC")]
    to: Option<TopicName>,
    /// Key of the dead letters that the command sends; the others remain for a later command
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { dead_letters, to, key, common } = arguments;
    let bus = common.open(runtime).await?;
    let (counts, done) = redrive(runtime, bus, &dead_letters, to, key.map(Bytes::from)).await?;
    let Counts { redriven, earlier, without_value } = counts;
    match common.json {
        true => show::json(&json!({
            "redriven": redriven,
            "redriven_earlier": earlier,
            "without_value": without_value,
        }))?,
        false => console::line(&format!("dead letters redriven: {redriven}"))?,
    }
    done?;
    if without_value > 0 {
        bail!(
            "{without_value} dead letters are not redriven, because they do not contain the values of their records; the \
             lines above name the records"
        );
    }
    Ok(())
}

/// Redrives the dead letters that the topic has now. Returns the counts, and the reason of a stop before the end.
///
/// # Errors
/// Returns an error if the command cannot join its group.
async fn redrive(
    runtime: &Runtime,
    bus: Arc<dyn Admin>,
    dead_letters: &TopicName,
    to: Option<TopicName>,
    key: Option<Bytes>,
) -> anyhow::Result<(Counts, anyhow::Result<()>)> {
    let producer = bus.producer(ProducerOptions::default()).await.map_err(explain)?;
    let metadata_bytes_max = bus.capabilities().metadata_bytes_max;
    let mut redrive = Redrive { producer, metadata_bytes_max, to, key, counts: Counts::default() };
    let (group, name) = (format!("{dead_letters}-redrive"), "reveille-bus-redrive".to_owned());
    let options = ConsumerOptions { name, ..ConsumerOptions::new(&group, vec![dead_letters.clone()]) };
    let mut feed = Feed::join(runtime, bus, dead_letters, options, true).await?;
    let done = redrive.run(&mut feed, Progress::new(runtime)).await;
    feed.close().await;
    Ok((redrive.counts, done))
}

/// Redrive of the dead letters of one topic.
struct Redrive {
    producer: Arc<dyn Producer>,
    /// Largest size of the metadata of a commit, in bytes.
    metadata_bytes_max: usize,
    /// Topic of the copies; `None` for the topic of each record.
    to: Option<TopicName>,
    /// Key of the dead letters to send; `None` for all.
    key: Option<Bytes>,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    redriven: u64,
    /// Dead letters that an earlier command with `--key` has redriven.
    earlier: u64,
    without_value: u64,
}

/// Redriven keys of one partition whose dead letters are not before the committed offset.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Marks {
    version: u8,
    /// For each key in base64, the offset after its last redriven dead letter.
    keys: BTreeMap<String, u64>,
}

impl Marks {
    /// Parses the metadata of a commit.
    fn decode(metadata: &str) -> Option<Self> {
        if metadata.is_empty() {
            return Some(Marks::default());
        }
        serde_json::from_str(metadata).ok().filter(|marks: &Marks| marks.version == VERSION)
    }

    fn contain(&self, record: &Record) -> bool {
        let end = record.key.as_ref().and_then(|key| self.keys.get(&BASE64.encode(key)));
        end.is_some_and(|end| record.offset.0 < *end)
    }

    /// Returns a commit of `offset` with the marks of later dead letters.
    fn commit(&self, offset: Offset) -> Committed {
        let keys: BTreeMap<String, u64> =
            self.keys.iter().filter(|(_, end)| **end > offset.0).map(|(key, end)| (key.clone(), *end)).collect();
        let metadata = match keys.is_empty() {
            true => String::new(),
            false => {
                let marks = Marks { version: VERSION, keys };
                serde_json::to_string(&marks).expect("the object has only text keys")
            }
        };
        Committed { offset, metadata }
    }
}

/// Dead letters with different keys, and their copies. The command sends them at the same time.
#[derive(Default)]
struct Wave {
    copies: Vec<NewRecord>,
    offsets: Vec<Offset>,
    keys: BTreeSet<Bytes>,
}

impl Redrive {
    /// Sends all dead letters up to the end that the topic had when the command started.
    async fn run(&mut self, feed: &mut Feed, mut progress: Progress) -> anyhow::Result<()> {
        loop {
            match feed.next().await? {
                Next::Records(batch) => self.redrive(feed, &batch).await?,
                Next::End => return Ok(()),
                Next::Stopped => {
                    bail!("a signal stopped the command; run the command again for the other dead letters")
                }
            }
            progress.update(|| format!("{} dead letters redriven", self.counts.redriven));
        }
    }

    async fn redrive(&mut self, feed: &mut Feed, batch: &RecordBatch) -> anyhow::Result<()> {
        let partition = &batch.partition;
        let mut wave = Wave::default();
        for record in &batch.records {
            let marks = marks(feed, partition)?;
            if self.key.is_some() && self.key != record.key {
                continue;
            }
            if marks.contain(record) {
                self.counts.earlier += 1;
                continue;
            }
            let position = Position { partition: partition.clone(), offset: record.offset };
            if header(record, VALUE_OMITTED_HEADER).is_some() {
                let origin = header(record, ORIGIN_HEADER).unwrap_or("an unknown position");
                note(&format!("the dead letter {position} has no value, because a copy of {origin} was too large"));
                self.counts.without_value += 1;
                continue;
            }
            if record.key.as_ref().is_some_and(|key| wave.keys.contains(key)) {
                self.send(feed, partition, std::mem::take(&mut wave)).await?;
            }
            match self.copy(record) {
                Some(copy) => wave.add(copy, record),
                None => {
                    self.send(feed, partition, wave).await?;
                    self.pass(feed, partition, record.offset).await?;
                    bail!(
                        "the dead letter {position} has no header {ORIGIN_HEADER} with the position of its record; name the \
                         topic for this and the later dead letters with --to TOPIC"
                    );
                }
            }
        }
        self.send(feed, partition, wave).await?;
        match batch.records.last() {
            Some(last) => self.pass(feed, partition, last.offset.next()).await,
            None => Ok(()),
        }
    }

    /// Commits all dead letters before `next`, of which the last ones need no copies. With `--key`, they remain.
    async fn pass(&self, feed: &mut Feed, partition: &Partition, next: Offset) -> anyhow::Result<()> {
        match &self.key {
            Some(_) => Ok(()),
            None => self.commit(feed, partition, next).await,
        }
    }

    /// Returns the record to send; `None` if its topic is not known.
    fn copy(&self, record: &Record) -> Option<NewRecord> {
        let topic = match &self.to {
            Some(topic) => topic.clone(),
            None => header(record, ORIGIN_HEADER)?.parse::<Position>().ok()?.partition.topic,
        };
        let headers = record.headers.iter().filter(|header| !COPY_HEADERS.contains(&header.name.as_str()));
        Some(NewRecord {
            topic,
            partition: None,
            timestamp: Some(record.timestamp),
            key: record.key.clone(),
            value: record.value.clone(),
            headers: headers.cloned().collect(),
        })
    }

    /// Sends copies, and then commits their dead letters. After a failure, it commits the dead letters before the first
    /// one without an acknowledgement.
    async fn send(&mut self, feed: &mut Feed, partition: &Partition, wave: Wave) -> anyhow::Result<()> {
        let Wave { copies, offsets, .. } = wave;
        let Some(last) = offsets.last() else { return Ok(()) };
        // The bus would reject the commit only after the copies are sent.
        let bytes = self.committed(feed, partition, last.next())?.metadata.len();
        if bytes > self.metadata_bytes_max {
            bail!(
                "the group has no room for a further key of the partition {partition}; redrive all dead letters without \
                 --key"
            );
        }
        for (offset, outcome) in offsets.iter().zip(self.producer.send(copies).await) {
            if let Err(error) = outcome {
                if let Err(error) = self.commit(feed, partition, *offset).await {
                    note(&format!("{error:#}"));
                }
                let position = Position { partition: partition.clone(), offset: *offset };
                return Err(explain(error).context(format!("the dead letter {position} is not redriven")));
            }
            self.counts.redriven += 1;
        }
        self.commit(feed, partition, last.next()).await
    }

    /// Commits all dead letters before `next`, or with `--key` those of the key.
    async fn commit(&self, feed: &mut Feed, partition: &Partition, next: Offset) -> anyhow::Result<()> {
        let committed = self.committed(feed, partition, next)?;
        if feed.committed(partition) == Some(&committed) {
            return Ok(());
        }
        feed.commit(partition, committed).await.map_err(explain).with_context(|| {
            format!(
                "the dead letters before {partition}/{next} are redriven but not committed, so the next command may redrive \
                 them again"
            )
        })
    }

    fn committed(&self, feed: &Feed, partition: &Partition, next: Offset) -> anyhow::Result<Committed> {
        let mut marks = marks(feed, partition)?;
        let Some(key) = &self.key else { return Ok(marks.commit(next)) };
        marks.keys.insert(BASE64.encode(key), next.0);
        let base = feed.committed(partition).map_or(next, |committed| committed.offset);
        Ok(marks.commit(base))
    }
}

impl Wave {
    fn add(&mut self, copy: NewRecord, record: &Record) {
        self.keys.extend(record.key.clone());
        self.copies.push(copy);
        self.offsets.push(record.offset);
    }
}

/// Returns the marks of a partition.
fn marks(feed: &Feed, partition: &Partition) -> anyhow::Result<Marks> {
    let metadata = feed.committed(partition).map_or("", |committed| committed.metadata.as_str());
    Marks::decode(metadata).with_context(|| {
        format!(
            "another program has committed offsets of the partition {partition} in the group {}-redrive; use another \
             group in that program",
            partition.topic
        )
    })
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let header = record.headers.iter().find(|header| header.name == name)?;
    std::str::from_utf8(header.value.as_deref()?).ok()
}

#[cfg(test)]
mod tests;
