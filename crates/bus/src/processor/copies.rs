//! Copies of failed records in retry topics and in the dead-letter topic.
//!
//! A retry topic contains the records that wait for their next call. All records of a retry topic wait equally long, so
//! the first record of a partition is due first. The headers of a copy name the position of the original record, the
//! number of calls so far, the time of the original record, and the time of the next call. A copy itself has the time at which
//! the processor sends it, because the bus deletes records by their times.
//! docs/decisions/0232-copy-failed-records-before-the-commit.md gives the reasons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use instants::{Monotonic, Timestamp};
use runtime::Runtime;

use super::{HandlerError, ProcessorOptions};
use crate::consumer::ConsumerOptions;
use crate::producer::{NewRecord, Producer, ProducerOptions};
use crate::topic::{Header, Partition, Position, Record, TopicName, TopicOptions};
use crate::{Bus, BusError};

/// Header with the position of the original record: `TOPIC/PARTITION/OFFSET`.
pub const ORIGIN_HEADER: &str = "reveille-retry-origin";
/// Header with the decimal number of failed calls for the record.
pub const CALLS_HEADER: &str = "reveille-retry-calls";
/// Header with the earliest time of the next call, in milliseconds since 1970-01-01 00:00 UTC.
pub const NOT_BEFORE_HEADER: &str = "reveille-retry-not-before";
/// Header with the time of the original record, in milliseconds since 1970-01-01 00:00 UTC. The copy has the time at which
/// it was sent. With the time of an old record, the bus could delete or reject the copy at once.
pub const TIME_HEADER: &str = "reveille-retry-time";
/// Header with the reason of the last failure. At most 1,024 bytes.
pub const ERROR_HEADER: &str = "reveille-retry-error";
/// Header of a dead letter without the value of its record, because a copy of the whole record would be too large.
pub const VALUE_OMITTED_HEADER: &str = "reveille-retry-value-omitted";

const HEADERS: [&str; 6] =
    [ORIGIN_HEADER, CALLS_HEADER, NOT_BEFORE_HEADER, TIME_HEADER, ERROR_HEADER, VALUE_OMITTED_HEADER];
/// Largest size of the reason in a header, in bytes.
const REASON_BYTES_MAX: usize = 1_024;
/// Wait before the processor sends a copy again.
const SEND_WAIT: Duration = Duration::from_secs(1);

/// Retry topics and dead-letter topic of a processor.
pub(super) struct Copies {
    /// Retry topics: the topic of the original records, and the number of the step.
    steps: BTreeMap<TopicName, (TopicName, usize)>,
    waits: Vec<Duration>,
    dead_letters: Option<TopicName>,
    /// `None` if the processor copies no records.
    producer: Option<Arc<dyn Producer>>,
}

/// History of a record before the processor received it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    /// Position of the original record, if the record is a copy in a retry topic.
    pub(super) position: Option<Position>,
    /// Number of failed calls.
    pub(super) calls: u32,
    /// Time of the original record.
    pub(super) time: Timestamp,
}

/// Returns the name of a retry topic.
///
/// # Errors
/// Returns [`BusError::Invalid`] if the name of the group has characters that the name of a topic cannot have.
fn retry_topic(source: &TopicName, group: &str, step: usize) -> Result<TopicName, BusError> {
    TopicName::new(&format!("{source}-{group}-retry-{step}")).map_err(|error| {
        BusError::Invalid(format!("{error}; retry topics require a group whose name has only such characters"))
    })
}

impl Copies {
    /// Creates the topics that do not exist, with as many partitions and replicas as the topics of the consumer.
    pub(super) async fn open(bus: &dyn Bus, options: &ProcessorOptions) -> Result<Self, BusError> {
        let ConsumerOptions { group, topics, .. } = &options.consumer;
        let (waits, dead_letters) = (options.retry_waits.clone(), options.dead_letters.clone());
        let mut copies = Copies { steps: BTreeMap::new(), waits, dead_letters, producer: None };
        if copies.waits.is_empty() && copies.dead_letters.is_none() {
            return Ok(copies);
        }
        let mut largest = TopicOptions::with_partitions(1);
        for topic in topics {
            let source = bus.describe_topic(topic).await?;
            let partitions = u32::try_from(source.offsets.len()).unwrap_or(u32::MAX);
            let options = TopicOptions { replicas: Some(source.replicas), ..TopicOptions::with_partitions(partitions) };
            for step in 0..copies.waits.len() {
                let name = retry_topic(topic, group, step)?;
                create(bus, &name, options.clone()).await?;
                copies.steps.insert(name, (topic.clone(), step));
            }
            if options.partitions >= largest.partitions {
                largest = options;
            }
        }
        if let Some(name) = &copies.dead_letters {
            create(bus, name, largest).await?;
        }
        copies.producer = Some(bus.producer(ProducerOptions::default()).await?);
        Ok(copies)
    }

    /// Returns the retry topics.
    pub(super) fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.steps.keys()
    }

    pub(super) fn is_retry_topic(&self, topic: &TopicName) -> bool {
        self.steps.contains_key(topic)
    }

    /// Returns the topic of the original records of a retry topic, or otherwise the topic itself.
    pub(super) fn source<'a>(&'a self, topic: &'a TopicName) -> &'a TopicName {
        self.steps.get(topic).map_or(topic, |(source, _)| source)
    }

    /// Returns the time before which the handler must not be called; `None` if the record does not wait. A record waits
    /// at most as long as its topic says, whatever its header contains.
    pub(super) fn due(&self, runtime: &Runtime, topic: &TopicName, record: &Record) -> Option<Monotonic> {
        let (_, step) = self.steps.get(topic)?;
        let not_before = header(record, NOT_BEFORE_HEADER).and_then(|text| text.parse().ok());
        let left = not_before.map(|at| Timestamp::from_millis(at).since(runtime.now()));
        Some(runtime.monotonic() + left.unwrap_or_default().min(self.waits[*step]))
    }

    /// Returns the history of a record. A record of a retry topic with damaged headers counts as an original record.
    pub(super) fn origin(&self, partition: &Partition, record: &Record) -> Origin {
        if !self.is_retry_topic(&partition.topic) {
            return Origin { position: None, calls: 0, time: record.timestamp };
        }
        let time = original_time(record);
        let origin = header(record, ORIGIN_HEADER).and_then(|text| text.parse().ok());
        let calls = header(record, CALLS_HEADER).and_then(|text| text.parse().ok());
        match (origin, calls) {
            (Some(position), Some(calls)) => Origin { position: Some(position), calls, time },
            _ => {
                let offset = record.offset;
                tracing::warn!(%partition, %offset, "the retry headers of a record are damaged; its calls count from 1");
                Origin { position: None, calls: 0, time }
            }
        }
    }

    /// Returns the copy of a record whose last call failed; `None` if the processor does not copy the record.
    pub(super) fn copy(
        &self,
        now: Timestamp,
        partition: &Partition,
        record: &Record,
        origin: &Origin,
        error: &HandlerError,
    ) -> Option<Copy> {
        let topic = &partition.topic;
        let (source, next) = match self.steps.get(topic) {
            Some((source, step)) => (source, step + 1),
            None => (topic, 0),
        };
        let is_next = |(_, (of, step)): &(&TopicName, &(TopicName, usize))| of == source && *step == next;
        let retry = self.steps.iter().find(is_next).filter(|_| error.is_retriable);
        let (topic, not_before) = match (retry, &self.dead_letters) {
            (Some((topic, _)), _) => (topic, Some(now + self.waits[next])),
            (None, Some(dead_letters)) => (dead_letters, None),
            (None, None) => return None,
        };
        let mut headers: Vec<Header> =
            record.headers.iter().filter(|header| !HEADERS.contains(&header.name.as_str())).cloned().collect();
        let mut add = |name: &str, value: String| {
            headers.push(Header { name: name.to_owned(), value: Some(Bytes::from(value)) });
        };
        let own = || Position { partition: partition.clone(), offset: record.offset };
        add(ORIGIN_HEADER, origin.position.clone().unwrap_or_else(own).to_string());
        add(CALLS_HEADER, origin.calls.to_string());
        add(TIME_HEADER, origin.time.as_millis().to_string());
        add(ERROR_HEADER, short(&error.reason).to_owned());
        if let Some(not_before) = not_before {
            add(NOT_BEFORE_HEADER, not_before.as_millis().to_string());
        }
        let record = NewRecord {
            topic: topic.clone(),
            partition: None,
            timestamp: None,
            key: record.key.clone(),
            value: record.value.clone(),
            headers,
        };
        Some(Copy { record, is_dead_letter: not_before.is_none() })
    }

    /// Sends a copy until the bus has stored it durably. Without this acknowledgement, the record would be lost.
    pub(super) async fn send(&self, runtime: &Runtime, mut copy: Copy) {
        let Some(producer) = &self.producer else { return };
        loop {
            let outcome = producer.send(vec![copy.record.clone()]).await.pop();
            let topic = &copy.record.topic;
            match (outcome, &self.dead_letters) {
                (Some(Ok(_)), _) => return,
                (Some(Err(BusError::RecordTooLarge { .. })), Some(dead_letters)) if !copy.is_dead_letter => {
                    tracing::warn!(%topic, "the copy of a record is too large for the retry topic; it is a dead letter");
                    copy =
                        Copy { record: NewRecord { topic: dead_letters.clone(), ..copy.record }, is_dead_letter: true };
                    continue;
                }
                (Some(Err(BusError::RecordTooLarge { .. })), Some(_)) if copy.record.value.is_some() => {
                    copy.record.value = None;
                    let value = Some(Bytes::from_static(b"true"));
                    copy.record.headers.push(Header { name: VALUE_OMITTED_HEADER.to_owned(), value });
                    continue;
                }
                (Some(Err(error @ BusError::RecordTooLarge { .. })), None) => {
                    tracing::warn!(%topic, %error, "a failed record is too large for a retry topic; it is finished");
                    return;
                }
                (Some(Err(error)), _) => tracing::warn!(%topic, %error, "a failed record waits until it can be copied"),
                (None, _) => {}
            }
            runtime.sleep(SEND_WAIT).await;
        }
    }

    pub(super) async fn close(&self) -> Result<(), BusError> {
        match &self.producer {
            Some(producer) => producer.close().await,
            None => Ok(()),
        }
    }
}

/// Returns the first characters of a reason, at most [`REASON_BYTES_MAX`] bytes.
pub(super) fn short(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}

/// Copy that the processor sends.
pub(super) struct Copy {
    record: NewRecord,
    pub(super) is_dead_letter: bool,
}

/// Creates a topic if it does not exist.
pub(super) async fn create(bus: &dyn Bus, topic: &TopicName, options: TopicOptions) -> Result<(), BusError> {
    match bus.create_topic(topic, options).await {
        Ok(()) | Err(BusError::TopicExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the time of the original record. A record that is not a copy is its own original.
fn original_time(record: &Record) -> Timestamp {
    let millis = header(record, TIME_HEADER).and_then(|text| text.parse().ok());
    millis.map_or(record.timestamp, Timestamp::from_millis)
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    let header = record.headers.iter().find(|header| header.name == name)?;
    std::str::from_utf8(header.value.as_deref()?).ok()
}
