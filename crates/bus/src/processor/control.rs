//! Commands of an operator, and the list of blocked records.
//!
//! Both are records of a compacted topic. Each member of the group reads the whole topic. The key of a record is one of
//! these texts, and a record without a value deletes its key:
//!
//! - `skip/TOPIC/PARTITION/OFFSET`: the command to skip a record.
//! - `skip-all/TOPIC`: the command to skip all failing records of a topic. Its deletion is the command to resume.
//! - `blocked/TOPIC/PARTITION/OFFSET`: a record that waits for its next call. The value is a JSON object.
//!
//! The owner of a partition deletes the entries of its finished records, except `skip-all`.
//! docs/decisions/0233-command-a-group-by-a-compacted-topic.md gives the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use instants::Timestamp;
use runtime::Runtime;
use serde::{Deserialize, Serialize};

use super::copies::{create, short};
use crate::consumer::RecordBatch;
use crate::producer::{NewRecord, Producer, ProducerOptions};
use crate::reader::Reader;
use crate::topic::{Offset, Position, Record, TopicName, TopicOptions};
use crate::{Bus, BusError};

/// Largest number of blocked records that the members add to the list.
const BLOCKED_MAX: usize = 10_000;
/// Largest number of entries of each kind that a process keeps in memory. It ignores further entries.
const ENTRIES_MAX: usize = 20_000;
/// Largest size of a key in the list, in bytes.
const KEY_BYTES_MAX: usize = 1_024;
/// Number of records without the key of an entry after which an operator reads no further records of a topic without
/// entries.
const FOREIGN_MAX: u64 = 1_000;
/// Version of the JSON object.
const VERSION: u8 = 1;
/// Time without a record after which the reader has reached the end of the topic. The bus may have deleted the last
/// records before the end.
const QUIET: Duration = Duration::from_secs(5);

/// Record that waits for its next call, while the later records of its key wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// Position of the record.
    pub position: Position,
    /// Key of the record. A key of more than 1,024 bytes is cut.
    pub key: Option<Bytes>,
    /// Number of failed calls. A member updates the entry after 1, 2, 4, 8, ... calls, and after each call whose next call
    /// is at least 10 s later.
    pub calls: u32,
    /// Reason of the last failure. A reason of more than 1,024 bytes is cut.
    pub reason: String,
    /// Time of the first failure. It remains when the partition moves to another member, whose count of calls starts
    /// again.
    pub blocked_since: Timestamp,
    /// Time of the last failure.
    pub failed_at: Timestamp,
    /// Earliest time of the call after this failure. It can be in the past, because a member does not update the entry
    /// after every call. `None` if an older version of this library wrote the entry.
    pub next_call_at: Option<Timestamp>,
}

/// Value of a blocked record in the topic.
#[derive(Serialize, Deserialize)]
struct BlockedValue {
    version: u8,
    /// Key in base64.
    key: Option<String>,
    calls: u32,
    reason: String,
    /// `None` in entries of older versions of this library.
    #[serde(default)]
    blocked_since_ms: Option<i64>,
    failed_at_ms: i64,
    /// `None` in entries of older versions of this library.
    #[serde(default)]
    next_call_at_ms: Option<i64>,
}

impl Blocked {
    fn encode(&self) -> Bytes {
        let value = BlockedValue {
            version: VERSION,
            key: self.key.as_ref().map(|key| BASE64.encode(key)),
            calls: self.calls,
            reason: self.reason.clone(),
            blocked_since_ms: Some(self.blocked_since.as_millis()),
            failed_at_ms: self.failed_at.as_millis(),
            next_call_at_ms: self.next_call_at.map(Timestamp::as_millis),
        };
        serde_json::to_vec(&value).expect("the object has only text keys").into()
    }

    fn decode(position: Position, value: &[u8]) -> Option<Self> {
        let value: BlockedValue = serde_json::from_slice(value).ok()?;
        let key = value.key.map(|key| BASE64.decode(key).map(Bytes::from)).transpose().ok()?;
        let decoded = Blocked {
            position,
            key,
            calls: value.calls,
            reason: value.reason,
            blocked_since: Timestamp::from_millis(value.blocked_since_ms.unwrap_or(value.failed_at_ms)),
            failed_at: Timestamp::from_millis(value.failed_at_ms),
            next_call_at: value.next_call_at_ms.map(Timestamp::from_millis),
        };
        (value.version == VERSION).then_some(decoded)
    }
}

/// Key of an entry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    Skip(Position),
    SkipAll(TopicName),
    Blocked(Position),
}

impl Key {
    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        match kind {
            "skip" => rest.parse().ok().map(Key::Skip),
            "skip-all" => rest.parse().ok().map(Key::SkipAll),
            "blocked" => rest.parse().ok().map(Key::Blocked),
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Skip(position) => write!(f, "skip/{position}"),
            Key::SkipAll(topic) => write!(f, "skip-all/{topic}"),
            Key::Blocked(position) => write!(f, "blocked/{position}"),
        }
    }
}

/// Entries of the topic.
#[derive(Default)]
struct Table {
    skipped: BTreeSet<Position>,
    skipped_topics: BTreeSet<TopicName>,
    blocked: BTreeMap<Position, Blocked>,
    /// Keys whose deletion is on its way.
    deleting: BTreeSet<Key>,
    /// Offset of the next record of each partition of the topic.
    next: BTreeMap<u32, Offset>,
    /// True if a record had the key of an entry.
    has_entries: bool,
    /// Number of records without the key of an entry.
    foreign: u64,
}

impl Table {
    fn apply(&mut self, batch: &RecordBatch) {
        for record in &batch.records {
            self.next.insert(batch.partition.index, record.offset.next());
            if self.change(record).is_none() {
                tracing::warn!(partition = %batch.partition, offset = %record.offset,
                    "a record of the control topic is ignored, because it is invalid or the topic has too many entries");
            }
        }
    }

    fn change(&mut self, record: &Record) -> Option<()> {
        let key = record.key.as_ref().and_then(|key| Key::parse(std::str::from_utf8(key).ok()?));
        let Some(key) = key else {
            self.foreign += 1;
            return None;
        };
        self.has_entries = true;
        let Some(value) = &record.value else {
            self.deleting.remove(&key);
            match key {
                Key::Skip(position) => _ = self.skipped.remove(&position),
                Key::SkipAll(topic) => _ = self.skipped_topics.remove(&topic),
                Key::Blocked(position) => drop(self.blocked.remove(&position)),
            }
            return Some(());
        };
        match key {
            Key::Skip(position) if self.skipped.len() < ENTRIES_MAX => _ = self.skipped.insert(position),
            Key::SkipAll(topic) if self.skipped_topics.len() < ENTRIES_MAX => _ = self.skipped_topics.insert(topic),
            Key::Blocked(position) if self.blocked.len() < ENTRIES_MAX || self.blocked.contains_key(&position) => {
                let blocked = Blocked::decode(position.clone(), value)?;
                self.blocked.insert(position, blocked);
            }
            Key::Skip(_) | Key::SkipAll(_) | Key::Blocked(_) => return None,
        }
        Some(())
    }
}

/// Connection of one process to the control topic.
pub(super) struct Control {
    topic: TopicName,
    reader: Arc<dyn Reader>,
    producer: Arc<dyn Producer>,
    table: Mutex<Table>,
    /// True if the table contains a command.
    has_commands: AtomicBool,
    /// True if this process is an operator, which may have a wrong name of the topic.
    is_operator: bool,
}

impl Control {
    /// Opens the topic of a processor, creates it if necessary, and reads its entries.
    pub(super) async fn open(runtime: &Runtime, bus: &dyn Bus, topic: &TopicName) -> Result<Self, BusError> {
        // The process may have no permission to create topics.
        if let Err(BusError::UnknownTopic(_)) = bus.describe_topic(topic).await {
            create(bus, topic, TopicOptions { is_compacted: true, ..TopicOptions::with_partitions(1) }).await?;
        }
        Control::attach(runtime, bus, topic, false).await
    }

    /// Opens an existing topic, and reads its entries.
    async fn attach(runtime: &Runtime, bus: &dyn Bus, topic: &TopicName, is_operator: bool) -> Result<Self, BusError> {
        let control = Control {
            topic: topic.clone(),
            reader: bus.reader(topic).await?,
            producer: bus.producer(ProducerOptions::default()).await?,
            table: Mutex::default(),
            has_commands: AtomicBool::new(false),
            is_operator,
        };
        control.catch_up(runtime, bus).await?;
        Ok(control)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no code panics while it holds this mutex")
    }

    /// Reads the entries that the topic has at the time of the call.
    async fn catch_up(&self, runtime: &Runtime, bus: &dyn Bus) -> Result<(), BusError> {
        let offsets = bus.describe_topic(&self.topic).await?.offsets;
        let is_behind = || {
            let table = self.table();
            let next = |index| table.next.get(&index).copied().unwrap_or_default();
            (0..).zip(&offsets).any(|(index, (first, end))| next(index).max(*first) < *end)
        };
        while is_behind() {
            match runtime.timeout(QUIET, self.read()).await {
                Some(read) => read?,
                None => break,
            }
            self.check_topic(FOREIGN_MAX)?;
        }
        self.check_topic(1)
    }

    /// Checks that the topic of an operator is a control topic: it has an entry, or fewer than `foreign_max` other records.
    /// A command in a topic of another program would be a record that the program does not expect.
    fn check_topic(&self, foreign_max: u64) -> Result<(), BusError> {
        let table = self.table();
        if self.is_operator && !table.has_entries && table.foreign >= foreign_max {
            let reason = format!(
                "the topic {} contains records, but none of them is an entry of a control topic; name the control topic of \
                 the group",
                self.topic
            );
            return Err(BusError::Invalid(reason));
        }
        Ok(())
    }

    /// Waits for further entries.
    pub(super) async fn read(&self) -> Result<(), BusError> {
        let batch = self.reader.next().await?;
        let mut table = self.table();
        table.apply(&batch);
        let has_commands = !table.skipped.is_empty() || !table.skipped_topics.is_empty();
        self.has_commands.store(has_commands, Ordering::Release);
        Ok(())
    }

    /// Returns true if operators skip any record.
    pub(super) fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Acquire)
    }

    /// Returns true if an operator skips the record. `source` is the topic of the original record.
    pub(super) fn is_skipped(&self, position: impl FnOnce() -> Position, source: &TopicName, has_failed: bool) -> bool {
        if !self.has_commands() {
            return false;
        }
        let table = self.table();
        (has_failed && table.skipped_topics.contains(source)) || table.skipped.contains(&position())
    }

    /// Adds a blocked record to the list. If the list contains the record, the time of its first failure remains.
    pub(super) fn block(&self, blocked: Blocked) {
        let mut table = self.table();
        let earlier = table.blocked.get(&blocked.position);
        if table.blocked.len() >= BLOCKED_MAX && earlier.is_none() {
            return;
        }
        let blocked_since = earlier.map_or(blocked.blocked_since, |earlier| earlier.blocked_since);
        let key = blocked.key.map(|key| key.slice(..key.len().min(KEY_BYTES_MAX)));
        let blocked = Blocked { key, reason: short(&blocked.reason).to_owned(), blocked_since, ..blocked };
        // The producer sends the record without a caller that waits. The list only informs.
        drop(self.producer.send(vec![self.entry(&Key::Blocked(blocked.position.clone()), Some(blocked.encode()))]));
        table.blocked.insert(blocked.position.clone(), blocked);
    }

    fn entry(&self, key: &Key, value: Option<Bytes>) -> NewRecord {
        NewRecord { value, ..NewRecord::new(&self.topic, key.to_string(), "") }
    }

    /// Deletes the entries of finished records.
    pub(super) async fn delete_finished(&self, is_finished: impl Fn(&Position) -> bool) {
        let mut keys: Vec<(Position, Key)> = {
            let table = self.table();
            let skipped = table.skipped.iter().cloned().map(|position| (position.clone(), Key::Skip(position)));
            let blocked = table.blocked.keys().cloned().map(|position| (position.clone(), Key::Blocked(position)));
            skipped.chain(blocked).filter(|(_, key)| !table.deleting.contains(key)).collect()
        };
        // `is_finished` may wait for a mutex whose holder waits for the table.
        keys.retain(|(position, _)| is_finished(position));
        let keys: Vec<Key> = keys.into_iter().map(|(_, key)| key).collect();
        if keys.is_empty() {
            return;
        }
        self.table().deleting.extend(keys.iter().cloned());
        let outcomes = self.producer.send(keys.iter().map(|key| self.entry(key, None)).collect()).await;
        for (key, outcome) in keys.iter().zip(outcomes) {
            if let Err(error) = outcome {
                tracing::warn!(%key, %error, "an entry of the control topic could not be deleted; it is tried again");
                self.table().deleting.remove(key);
            }
        }
    }

    async fn set(&self, key: &Key, value: Option<Bytes>) -> Result<(), BusError> {
        let lost = || Err(BusError::Disconnected("the producer returned no outcome".to_owned()));
        self.producer.send(vec![self.entry(key, value)]).await.pop().unwrap_or_else(lost).map(drop)
    }

    pub(super) async fn close(&self) -> Result<(), BusError> {
        self.producer.close().await
    }
}

/// Operator of a group. It reads the list of blocked records, and sends commands to all members of the group whose options
/// name the same control topic.
///
/// # Errors
/// The methods return the errors of [`Bus::reader`] and [`Producer::send`].
pub struct Operator {
    runtime: Runtime,
    bus: Arc<dyn Bus>,
    control: Control,
}

impl Operator {
    /// Opens the control topic of a group.
    ///
    /// # Errors
    /// Returns [`BusError::UnknownTopic`] if the topic does not exist, because no member has started. Returns
    /// [`BusError::Invalid`] if the topic contains only records that are no entries of a control topic.
    pub async fn open(runtime: &Runtime, bus: Arc<dyn Bus>, topic: &TopicName) -> Result<Self, BusError> {
        let control = Control::attach(runtime, &*bus, topic, true).await?;
        Ok(Operator { runtime: runtime.clone(), bus, control })
    }

    /// Returns the blocked records, at most about 10,000. A finished record may stay in the list for the time between
    /// two commits.
    ///
    /// # Errors
    /// See [`Operator`].
    pub async fn blocked(&mut self) -> Result<Vec<Blocked>, BusError> {
        self.control.catch_up(&self.runtime, &*self.bus).await?;
        Ok(self.control.table().blocked.values().cloned().collect())
    }

    /// Returns the topics whose failing records the members skip.
    ///
    /// # Errors
    /// See [`Operator`].
    pub async fn skipped_topics(&mut self) -> Result<Vec<TopicName>, BusError> {
        self.control.catch_up(&self.runtime, &*self.bus).await?;
        Ok(self.control.table().skipped_topics.iter().cloned().collect())
    }

    /// Skips the record at this position. Its handler is not called again. A running call continues. The record becomes
    /// a dead letter if the options of the processor name a topic for dead letters.
    ///
    /// # Errors
    /// See [`Operator`].
    pub async fn skip(&mut self, position: &Position) -> Result<(), BusError> {
        self.control.set(&Key::Skip(position.clone()), Some(Bytes::from_static(b"{}"))).await
    }

    /// Skips all records of the topic after their first failed call, and all records of the topic that wait for their
    /// next call, until [`Operator::resume`]. They become dead letters as in [`Operator::skip`].
    ///
    /// # Errors
    /// See [`Operator`].
    pub async fn skip_all(&mut self, topic: &TopicName) -> Result<(), BusError> {
        self.control.set(&Key::SkipAll(topic.clone()), Some(Bytes::from_static(b"{}"))).await
    }

    /// Ends the effect of [`Operator::skip_all`].
    ///
    /// # Errors
    /// See [`Operator`].
    pub async fn resume(&mut self, topic: &TopicName) -> Result<(), BusError> {
        self.control.set(&Key::SkipAll(topic.clone()), None).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn position() -> Position {
        "orders/3/17".parse().unwrap()
    }

    proptest! {
        #[test]
        fn blocked_record_survives_its_encoding(
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            calls: u32,
            reason in "\\PC{0,40}",
            times in prop::array::uniform2(0_i64..1 << 50),
            next_call_at in prop::option::of(0_i64..1 << 50),
        ) {
            let [blocked_since, failed_at] = times.map(Timestamp::from_millis);
            let (key, next_call_at) = (key.map(Bytes::from), next_call_at.map(Timestamp::from_millis));
            let at = position();
            let blocked = Blocked { position: at, key, calls, reason, blocked_since, failed_at, next_call_at };
            prop_assert_eq!(Blocked::decode(position(), &blocked.encode()), Some(blocked));
        }

        #[test]
        fn any_key_and_value_are_applied_or_ignored(
            kind in "(skip|skip-all|blocked|other)?", text in "\\PC{0,20}", value in prop::option::of("\\PC{0,40}"),
        ) {
            let (offset, timestamp, headers) = (Offset(0), Timestamp::from_millis(0), Vec::new());
            for rest in [text.as_str(), "orders/3/17", "orders"] {
                let key = Some(Bytes::from(format!("{kind}/{rest}")));
                let value = value.clone().map(Bytes::from);
                Table::default().change(&Record { offset, timestamp, key, value, headers: headers.clone() });
            }
        }
    }

    /// These texts must never change, because topics contain them. The first version of this library wrote fewer fields.
    #[test]
    fn blocked_record_has_a_stable_form() {
        let time = Timestamp::from_millis;
        let blocked = Blocked {
            position: position(),
            key: Some(Bytes::from_static(b"ann")),
            calls: 4,
            reason: "no route".to_owned(),
            blocked_since: time(1_600_000_000_000),
            failed_at: time(1_700_000_000_000),
            next_call_at: Some(time(1_800_000_000_000)),
        };
        let expected = r#"{"version":1,"key":"YW5u","calls":4,"reason":"no route","blocked_since_ms":1600000000000,"failed_at_ms":1700000000000,"next_call_at_ms":1800000000000}"#;
        assert_eq!(blocked.encode(), expected);
        assert_eq!(Blocked::decode(position(), expected.as_bytes()), Some(blocked.clone()));
        let first = r#"{"version":1,"key":"YW5u","calls":4,"reason":"no route","failed_at_ms":1700000000000}"#;
        let old = Blocked { blocked_since: blocked.failed_at, next_call_at: None, ..blocked };
        assert_eq!(Blocked::decode(position(), first.as_bytes()), Some(old));
        for (key, text) in [
            (Key::Skip(position()), "skip/orders/3/17"),
            (Key::SkipAll(TopicName::new("orders").unwrap()), "skip-all/orders"),
            (Key::Blocked(position()), "blocked/orders/3/17"),
        ] {
            assert_eq!((key.to_string().as_str(), Key::parse(text)), (text, Some(key)));
        }
    }
}
