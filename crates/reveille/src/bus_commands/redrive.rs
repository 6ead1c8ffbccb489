//! Command `reveille bus retries redrive`, which sends dead letters again.
//!
//! The command reads the dead letters as a member of the group `TOPIC-redrive`, and commits a dead letter after the bus
//! has acknowledged its copy. A later command continues after it. If the command ends between the acknowledgement and the
//! commit, the next command sends a few dead letters again.
//!
//! With `--key`, the command sends only the dead letters of one key. The other dead letters remain before the committed
//! offset, so the metadata of the commit contains the key and the offset after its last redriven dead letter ([`Marks`]).
//!
//! If the bus rejects a dead letter, the metadata also contains the later dead letters whose copies the bus has already
//! acknowledged. So the next command does not send them again.
//!
//! Order per key: the dead letters of a key are in one partition of their topic. The command sends a dead letter after the
//! bus has acknowledged the earlier ones of its key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bus::processor::{CALLS_HEADER, ERROR_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER, TIME_HEADER, VALUE_OMITTED_HEADER};
use bus::{
    Admin, Capabilities, Committed, ConsumerOptions, Header, NewRecord, Offset, Partition, Position, Producer,
    ProducerOptions, Record, RecordBatch, TopicName,
};
use bytes::Bytes;
use clap::Args;
use cli_support::console;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::feed::{self, Feed, Next};
use super::{Common, check_partition, explain, note};
use crate::cli::show;
use crate::progress::Progress;

/// Headers of dead letters that their copies do not have.
const COPY_HEADERS: [&str; 5] = [ORIGIN_HEADER, CALLS_HEADER, NOT_BEFORE_HEADER, ERROR_HEADER, VALUE_OMITTED_HEADER];
/// Version of [`Marks`].
const VERSION: u8 = 1;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Topic of the dead letters
    dead_letters: TopicName,
    /// Topic whose dead letters the command sends back to it; repeat the option for further topics
    #[arg(long, value_name = "TOPIC", required_unless_present = "to", conflicts_with = "to")]
    from: Vec<TopicName>,
    /// Topic to which the command sends all dead letters
    #[arg(long, value_name = "TOPIC")]
    to: Option<TopicName>,
    /// Key of the dead letters that the command sends; the others remain for a later command
    #[arg(long)]
    key: Option<String>,
    /// Position of a dead letter that the command passes without sending it; repeat the option for further positions
    #[arg(long, value_name = "POSITION")]
    skip: Vec<Position>,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn execute(runtime: &Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { dead_letters, from, to, key, skip, common } = arguments;
    let bus = common.open(runtime).await?;
    let choice = Choice { from, to, key: key.map(Bytes::from), skip };
    let producer = bus.producer(ProducerOptions::default()).await.map_err(explain)?;
    let (counts, done) = redrive(runtime, bus, producer, &dead_letters, choice, feed::stop()?).await?;
    let Counts { redriven, earlier, skipped, without_value } = counts;
    match common.json {
        true => show::json(&json!({
            "redriven": redriven,
            "redriven_earlier": earlier,
            "skipped": skipped,
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

/// Dead letters that a command sends, and their targets.
#[derive(Clone, Debug, Default)]
struct Choice {
    /// Topics to which the command may send their own records. Each program that may write to the dead-letter topic can
    /// write the header with the topic of a record, so the header alone does not permit a topic.
    from: Vec<TopicName>,
    /// Topic of all copies; `None` for the topic of each record.
    to: Option<TopicName>,
    /// Key of the dead letters to send; `None` for all.
    key: Option<Bytes>,
    /// Dead letters that the command passes.
    skip: Vec<Position>,
}

impl Choice {
    /// Checks the topics and the positions, so that a wrong one does not stop the command in the middle of its work.
    async fn check(&self, bus: &dyn Admin, dead_letters: &TopicName) -> anyhow::Result<()> {
        let targets = || self.from.iter().chain(&self.to);
        ensure!(
            !targets().any(|topic| topic == dead_letters),
            "{dead_letters} is the topic of the dead letters; name the topic of their records with --from or --to"
        );
        for position in &self.skip {
            ensure!(
                position.partition.topic == *dead_letters,
                "the position {position} is not in the topic {dead_letters}; name the position of a dead letter with --skip"
            );
            check_partition(bus, &position.partition, &format!("dead letter {position}")).await?;
        }
        for topic in [dead_letters].into_iter().chain(targets()) {
            bus.describe_topic(topic).await.map_err(explain)?;
        }
        Ok(())
    }
}

/// Redrives the dead letters that the topic has now, until `stop` completes. Returns the counts, and the reason of a stop
/// before the end.
///
/// # Errors
/// Returns an error if the choice is invalid, or if the command cannot join its group.
async fn redrive(
    runtime: &Runtime,
    bus: Arc<dyn Admin>,
    producer: Arc<dyn Producer>,
    dead_letters: &TopicName,
    choice: Choice,
    stop: BoxFuture<'static, ()>,
) -> anyhow::Result<(Counts, anyhow::Result<()>)> {
    choice.check(&*bus, dead_letters).await?;
    let Capabilities { record_bytes_max, metadata_bytes_max, .. } = bus.capabilities();
    let mut redrive = Redrive { producer, record_bytes_max, metadata_bytes_max, choice, counts: Counts::default() };
    let (group, name) = (format!("{dead_letters}-redrive"), "reveille-bus-redrive".to_owned());
    let options = ConsumerOptions { name, ..ConsumerOptions::new(&group, vec![dead_letters.clone()]) };
    let mut feed = Feed::join(runtime, bus, dead_letters, options, true, stop).await?;
    let done = redrive.run(&mut feed, Progress::new(runtime)).await;
    feed.close().await;
    Ok((redrive.counts, done))
}

/// Redrive of the dead letters of one topic.
struct Redrive {
    producer: Arc<dyn Producer>,
    /// Largest size of a record, in bytes.
    record_bytes_max: usize,
    /// Largest size of the metadata of a commit, in bytes.
    metadata_bytes_max: usize,
    choice: Choice,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    redriven: u64,
    /// Dead letters that an earlier command with `--key` or with a failure has redriven.
    earlier: u64,
    /// Dead letters that the command has passed, because the user named their positions.
    skipped: u64,
    without_value: u64,
}

/// Redriven dead letters of one partition that are not before the committed offset.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Marks {
    version: u8,
    /// For each key in base64, the offset after its last redriven dead letter. All earlier dead letters of the key are
    /// finished.
    keys: BTreeMap<String, u64>,
    /// Offsets of redriven dead letters without a key.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    offsets: BTreeSet<u64>,
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
        match &record.key {
            Some(key) => self.keys.get(&BASE64.encode(key)).is_some_and(|end| record.offset.0 < *end),
            None => self.offsets.contains(&record.offset.0),
        }
    }

    fn add(&mut self, letter: &Letter) {
        match &letter.key {
            Some(key) => _ = self.keys.insert(BASE64.encode(key), letter.offset.next().0),
            None => _ = self.offsets.insert(letter.offset.0),
        }
    }

    /// Returns a commit of `offset` with the marks of later dead letters.
    fn commit(&self, offset: Offset) -> Committed {
        let keys: BTreeMap<String, u64> =
            self.keys.iter().filter(|(_, end)| **end > offset.0).map(|(key, end)| (key.clone(), *end)).collect();
        let offsets: BTreeSet<u64> = self.offsets.range(offset.0..).copied().collect();
        let metadata = match keys.is_empty() && offsets.is_empty() {
            true => String::new(),
            false => {
                let marks = Marks { version: VERSION, keys, offsets };
                serde_json::to_string(&marks).expect("the object has only text keys")
            }
        };
        Committed { offset, metadata }
    }
}

/// Dead letter whose copy the command sends.
struct Letter {
    offset: Offset,
    key: Option<Bytes>,
}

/// Dead letters with different keys, and their copies. The command sends them at the same time.
#[derive(Default)]
struct Wave {
    copies: Vec<NewRecord>,
    letters: Vec<Letter>,
    keys: BTreeSet<Bytes>,
}

impl Redrive {
    /// Sends all dead letters up to the end that the topic had when the command started.
    async fn run(&mut self, feed: &mut Feed, mut progress: Progress) -> anyhow::Result<()> {
        loop {
            match feed.next().await? {
                Next::Records(batch) => self.redrive(feed, &batch).await?,
                Next::End if self.choice.key.is_some() && feed.lacks_partitions() => bail!(
                    "the group assigned some partitions to another command, which does not send the dead letters of this \
                     key; run the command again after the other one has ended"
                ),
                Next::End => return Ok(()),
                Next::Missing(text) => bail!("{text}; run the command again if the bus was slow"),
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
            if self.choice.key.is_some() && self.choice.key != record.key {
                continue;
            }
            if marks(feed, partition)?.contain(record) {
                self.counts.earlier += 1;
                continue;
            }
            let position = Position { partition: partition.clone(), offset: record.offset };
            if self.choice.skip.contains(&position) {
                self.send(feed, partition, std::mem::take(&mut wave)).await?;
                self.commit(feed, partition, record.offset.next(), &[]).await?;
                self.counts.skipped += 1;
                continue;
            }
            if header(record, VALUE_OMITTED_HEADER).is_some() {
                let origin = header(record, ORIGIN_HEADER).unwrap_or("an unknown position");
                note(&format!("the dead letter {position} has no value, because a copy of {origin} was too large"));
                self.counts.without_value += 1;
                continue;
            }
            let copy = match self.copy(record) {
                Ok(copy) => copy,
                Err(reason) => {
                    self.send(feed, partition, wave).await?;
                    self.pass(feed, partition, record.offset).await?;
                    bail!("the dead letter {position} is not redriven: {reason}, or pass it with --skip {position}");
                }
            };
            let letter = Letter { offset: record.offset, key: record.key.clone() };
            if !self.is_room(feed, partition, &wave, &letter)? {
                self.send(feed, partition, std::mem::take(&mut wave)).await?;
            }
            wave.add(copy, letter);
        }
        self.send(feed, partition, wave).await?;
        match batch.records.last() {
            Some(last) => self.pass(feed, partition, last.offset.next()).await,
            None => Ok(()),
        }
    }

    /// Commits all dead letters before `next`, of which the last ones need no copies. With `--key`, they remain.
    async fn pass(&self, feed: &mut Feed, partition: &Partition, next: Offset) -> anyhow::Result<()> {
        match &self.choice.key {
            Some(_) => Ok(()),
            None => self.commit(feed, partition, next, &[]).await,
        }
    }

    /// Returns the record to send.
    ///
    /// # Errors
    /// Returns the reason and the next step if the command cannot send the dead letter.
    fn copy(&self, record: &Record) -> Result<NewRecord, String> {
        let topic = match &self.choice.to {
            Some(topic) => topic.clone(),
            None => {
                let origin = header(record, ORIGIN_HEADER).and_then(|text| text.parse::<Position>().ok());
                let Some(Position { partition: Partition { topic, .. }, .. }) = origin else {
                    return Err(format!(
                        "it has no header {ORIGIN_HEADER} with the position of its record; name the topic for this and the \
                         later dead letters with --to TOPIC"
                    ));
                };
                if !self.choice.from.contains(&topic) {
                    return Err(format!("it is a record of the topic {topic}; permit this topic with --from {topic}"));
                }
                topic
            }
        };
        let is_kept = |header: &&Header| !COPY_HEADERS.contains(&header.name.as_str());
        let mut headers: Vec<Header> = record.headers.iter().filter(is_kept).cloned().collect();
        // The bus deletes records by their times, so it could delete a copy with the time of an old record at once.
        if header(record, TIME_HEADER).is_none() {
            let value = Some(Bytes::from(record.timestamp.as_millis().to_string()));
            headers.push(Header { name: TIME_HEADER.to_owned(), value });
        }
        let (key, value) = (record.key.clone(), record.value.clone());
        let copy = NewRecord { topic, partition: None, timestamp: None, key, value, headers };
        let (bytes, limit) = (copy.bytes(), self.record_bytes_max);
        match bytes <= limit {
            true => Ok(copy),
            false => {
                Err(format!("its copy has {bytes} bytes, and the bus accepts at most {limit} bytes; handle it by hand"))
            }
        }
    }

    /// Returns true if the command can send the dead letter in the same wave: it has a key of its own, and if the bus rejects
    /// the first copy of the wave, the metadata of a commit has room for the others.
    fn is_room(&self, feed: &Feed, partition: &Partition, wave: &Wave, letter: &Letter) -> anyhow::Result<bool> {
        let Some((first, others)) = wave.letters.split_first() else { return Ok(true) };
        if letter.key.as_ref().is_some_and(|key| wave.keys.contains(key)) {
            return Ok(false);
        }
        let mut marks = marks(feed, partition)?;
        others.iter().chain([letter]).for_each(|letter| marks.add(letter));
        Ok(marks.commit(first.offset).metadata.len() <= self.metadata_bytes_max)
    }

    /// Sends copies, and then commits their dead letters. After a failure, it commits the dead letters before the first
    /// one without an acknowledgement, and marks the later ones with an acknowledgement.
    async fn send(&mut self, feed: &mut Feed, partition: &Partition, wave: Wave) -> anyhow::Result<()> {
        let Wave { copies, letters, .. } = wave;
        let Some(last) = letters.last().map(|letter| letter.offset) else { return Ok(()) };
        // The bus would reject the commit only after the copies are sent.
        let bytes = self.committed(feed, partition, last.next(), &[])?.metadata.len();
        if bytes > self.metadata_bytes_max {
            bail!(
                "the group has no room for a further key of the partition {partition}; redrive all dead letters without \
                 --key"
            );
        }
        let (mut failure, mut later) = (None, Vec::new());
        for (letter, outcome) in letters.into_iter().zip(self.producer.send(copies).await) {
            match outcome {
                Ok(_) => {
                    self.counts.redriven += 1;
                    if failure.is_some() {
                        later.push(letter);
                    }
                }
                Err(error) if failure.is_none() => failure = Some((letter.offset, error)),
                Err(_) => {}
            }
        }
        let Some((offset, error)) = failure else { return self.commit(feed, partition, last.next(), &[]).await };
        if let Err(error) = self.commit(feed, partition, offset, &later).await {
            note(&format!("{error:#}"));
        }
        let position = Position { partition: partition.clone(), offset };
        let text = format!("the dead letter {position} is not redriven; to pass it, use --skip {position}");
        Err(explain(error).context(text))
    }

    /// Commits all dead letters before `next` and the `later` ones, or with `--key` those of the key.
    async fn commit(
        &self,
        feed: &mut Feed,
        partition: &Partition,
        next: Offset,
        later: &[Letter],
    ) -> anyhow::Result<()> {
        let committed = self.committed(feed, partition, next, later)?;
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

    fn committed(
        &self,
        feed: &Feed,
        partition: &Partition,
        next: Offset,
        later: &[Letter],
    ) -> anyhow::Result<Committed> {
        let mut marks = marks(feed, partition)?;
        later.iter().for_each(|letter| marks.add(letter));
        let Some(key) = &self.choice.key else { return Ok(marks.commit(next)) };
        marks.keys.insert(BASE64.encode(key), next.0);
        let base = feed.committed(partition).map_or(next, |committed| committed.offset);
        Ok(marks.commit(base))
    }
}

impl Wave {
    fn add(&mut self, copy: NewRecord, letter: Letter) {
        self.keys.extend(letter.key.clone());
        self.copies.push(copy);
        self.letters.push(letter);
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
