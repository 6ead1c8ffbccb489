//! Implementation of [`scheduler::Deliver`] for topics of a message bus. Each attempt sends one record.
//!
//! The record carries the same headers as an HTTP callback: the ids of the run and of the schedule, the attempt, the term
//! of the owner and the signature of the value. A receiver can therefore drop duplicates and verify records in the same
//! way.
//!
//! Invariants: an attempt succeeds only after all in-sync replicas have stored its record. The producer gets no record at
//! or after the deadline of the attempt, and gives up before the timeout of the attempt. A broker that received a record
//! in time may store it later, as an HTTP target may process a request after the attempt's timeout. The result of an
//! attempt contains no address of the bus.
//!
//! docs/decisions/0239-batch-callbacks-to-a-bus-while-a-batch-is-in-flight.md gives the reasons for the design.

mod batches;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Compression, Header, NewRecord, Position, TopicName};
use bytes::Bytes;
use domain::{AttemptResult, BUS_REJECTED, BusTarget, CloudEvent, CloudEventMode, EGRESS_REJECTED, Secret, Target};
use futures_util::future::BoxFuture;
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};
use serde::Serialize;
use serde_json::value::RawValue;
use store::Keyring;

use crate::headers::{Signers, Stamper, rfc3339};
use crate::{failed, secrets, spans};
use batches::{Batches, Sent};

/// Settings of the transport for bus targets.
#[derive(Clone, Debug)]
pub struct BusOptions {
    /// Compression of the records. Default: zstd.
    pub compression: Compression,
    /// Longest time for which a record waits for further records to the same topic. A record waits only while an earlier
    /// batch to the topic is in flight. Default 200 ms. With a smaller value, a slow bus gets smaller batches. With a larger
    /// value, a slow bus delays records.
    pub linger_max: Duration,
    /// Size in bytes at which a batch leaves although an earlier batch is in flight. Default 64 KiB. With a smaller value,
    /// the bus handles more requests. With a larger value, records wait longer.
    pub batch_bytes: usize,
    /// Keys that decrypt the headers and signing secrets that the store keeps encrypted. Default: no keys.
    pub keyring: Arc<Keyring>,
}

impl Default for BusOptions {
    fn default() -> Self {
        BusOptions {
            compression: Compression::Zstd,
            linger_max: Duration::from_millis(200),
            batch_bytes: 64 * 1024,
            keyring: Arc::new(Keyring::NONE),
        }
    }
}

/// Transport that sends callbacks to topics.
pub struct BusDeliver {
    sender: Arc<Sender>,
}

struct Sender {
    runtime: Runtime,
    keyring: Arc<Keyring>,
    stamper: Stamper,
    batches: Batches,
}

impl BusDeliver {
    /// Creates a transport. It opens its producers when the first record needs them.
    #[must_use]
    pub fn new(runtime: &Runtime, bus: Arc<dyn Bus>, options: BusOptions) -> Self {
        let keyring = options.keyring.clone();
        let stamper = Stamper::new(runtime.random(), keyring.clone());
        let batches = Batches::start(runtime, bus, options);
        BusDeliver { sender: Arc::new(Sender { runtime: runtime.clone(), keyring, stamper, batches }) }
    }
}

impl Deliver for BusDeliver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let sender = self.sender.clone();
        spans::traced(spans::attempt(&delivery), async move { sender.attempt(&delivery).await })
    }
}

impl Sender {
    async fn attempt(&self, delivery: &Delivery) -> Option<Delivered> {
        let Target::Bus(target) = &delivery.schedule.spec.target else {
            return Some(failed(AttemptResult::Unreachable("the target is not a topic".to_owned())));
        };
        let record = match self.record(delivery, target) {
            Ok(record) => record,
            Err(reason) => return Some(failed(AttemptResult::Unreachable(reason))),
        };
        let sent = self.batches.send(delivery, record, target.timeout);
        let result = match self.runtime.timeout(target.timeout, sent).await {
            Some(Sent::Late) => return None,
            Some(Sent::Failed(error)) => {
                tracing::debug!(%error, "a record was not sent");
                AttemptResult::Unreachable("the bus did not respond; the record was not sent".to_owned())
            }
            Some(Sent::Outcome(outcome)) => result_of(delivery, outcome),
            None => AttemptResult::TimedOut,
        };
        Some(Delivered { result, retry_after: None, excerpt: None })
    }

    /// Returns the record of an attempt, or the error text of the attempt.
    fn record(&self, delivery: &Delivery, target: &BusTarget) -> Result<NewRecord, String> {
        // An operator may have changed the policy after the creation of the schedule.
        let allowed = delivery.tenant.egress.check_topic(&target.topic);
        allowed.map_err(|rejection| format!("{EGRESS_REJECTED}: {rejection}"))?;
        let topic = TopicName::new(&target.topic).map_err(|error| error.to_string())?;
        let decrypted = secrets::decrypted_headers(&self.keyring, delivery)?;
        let signers = self.stamper.signers(&delivery.tenant);
        let signers =
            signers.map_err(|error| secrets::not_decrypted(delivery, "the tenant's signing secret", error))?;
        let value = value(delivery, target)?;
        let headers = decrypted.as_deref().unwrap_or(&target.headers);
        let headers = self.headers(delivery, target, headers, &signers, value.as_deref().unwrap_or_default());
        let key = target.key.as_ref().map(|key| Bytes::copy_from_slice(key.as_bytes()));
        Ok(NewRecord { topic, partition: None, timestamp: None, key, value, headers })
    }

    fn headers(
        &self,
        delivery: &Delivery,
        target: &BusTarget,
        own: &[(String, Secret)],
        signers: &Signers,
        value: &[u8],
    ) -> Vec<Header> {
        let mut headers = Vec::with_capacity(own.len() + 18);
        let mut put = |name: &str, value: Bytes| headers.push(Header { name: name.to_owned(), value: Some(value) });
        for (name, value) in own {
            put(name, value.plain().cloned().unwrap_or_default());
        }
        let event = target.cloud_event.as_ref();
        match event.map(|event| event.mode) {
            Some(CloudEventMode::Structured) => put("content-type", Bytes::from_static(STRUCTURED_TYPE)),
            Some(CloudEventMode::Binary) | None => {
                if !value.is_empty() && !own.iter().any(|(name, _)| name == "content-type") {
                    put("content-type", Bytes::from_static(b"application/json"));
                }
            }
        }
        if let Some(event) = event.filter(|event| event.mode == CloudEventMode::Binary) {
            let Attributes { specversion, id, source, kind, time, subject } = attributes(delivery, event);
            let named = [
                ("ce_specversion", specversion),
                ("ce_id", &id),
                ("ce_source", &source),
                ("ce_type", kind),
                ("ce_time", &time),
                ("ce_subject", subject),
            ];
            named.into_iter().for_each(|(name, value)| put(name, Bytes::copy_from_slice(value.as_bytes())));
        }
        self.stamper.stamp(delivery, signers, value, |name, value| put(name.as_str(), Bytes::copy_from_slice(value)));
        headers
    }
}

const STRUCTURED_TYPE: &[u8] = b"application/cloudevents+json; charset=UTF-8";

/// Attributes of a CloudEvent (CloudEvents 1.0, section 3).
#[derive(Serialize)]
struct Attributes<'a> {
    specversion: &'static str,
    id: String,
    source: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'a str,
    time: String,
    subject: &'a str,
}

#[derive(Serialize)]
struct StructuredEvent<'a> {
    #[serde(flatten)]
    attributes: Attributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacontenttype: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

fn attributes<'a>(delivery: &'a Delivery, event: &'a CloudEvent) -> Attributes<'a> {
    let schedule = delivery.schedule.id.as_str();
    Attributes {
        specversion: "1.0",
        id: delivery.occurrence.run_id().to_string(),
        source: match &event.source {
            Some(source) => Cow::Borrowed(source),
            None => Cow::Owned(format!("/v1/schedules/{schedule}")),
        },
        kind: &event.kind,
        time: rfc3339(delivery.occurrence.nominal).iter().map(|byte| char::from(*byte)).collect(),
        subject: schedule,
    }
}

/// Returns the value of the record; `None` for a schedule without a payload, unless the record is a structured CloudEvent.
fn value(delivery: &Delivery, target: &BusTarget) -> Result<Option<Bytes>, String> {
    let payload = &delivery.schedule.spec.payload;
    let event = target.cloud_event.as_ref().filter(|event| event.mode == CloudEventMode::Structured);
    let Some(event) = event else { return Ok((!payload.is_empty()).then(|| payload.clone())) };
    // The server accepts only JSON payloads, so this error shows damage of the stored schedule.
    let data = (!payload.is_empty()).then(|| serde_json::from_slice::<&RawValue>(payload)).transpose();
    let data = data.map_err(|_| "the stored payload is not valid JSON".to_owned())?;
    let datacontenttype = data.map(|_| "application/json");
    let event = StructuredEvent { attributes: attributes(delivery, event), datacontenttype, data };
    Ok(Some(serde_json::to_vec(&event).expect("texts and JSON can be written as JSON").into()))
}

/// Returns the result of an attempt. Its text contains no text of the bus, because that text may name the bus's servers.
fn result_of(delivery: &Delivery, outcome: Result<Position, BusError>) -> AttemptResult {
    let error = match outcome {
        Ok(Position { partition, offset }) => {
            return AttemptResult::Stored { partition: partition.index, offset: offset.0 };
        }
        Err(error) => error,
    };
    let (schedule, tenant) = (delivery.schedule.id.as_str(), delivery.tenant.id.0);
    tracing::debug!(schedule, tenant, %error, "the bus did not store the record of a callback");
    AttemptResult::Unreachable(match error {
        BusError::Disconnected(_) => {
            "the bus did not acknowledge the record in time, and may have stored it".to_owned()
        }
        BusError::UnknownTopic(topic) => format!("the topic {topic} does not exist; ask an operator to create it"),
        BusError::Unauthorized(_) => {
            "the bus rejects the service's user for this topic; ask an operator to permit it to write".to_owned()
        }
        error @ BusError::RecordTooLarge { .. } => format!("{BUS_REJECTED}: {error}"),
        BusError::Closed => "the transport ended before the bus stored the record".to_owned(),
        BusError::Invalid(_)
        | BusError::TopicExists(_)
        | BusError::MetadataTooLarge { .. }
        | BusError::Fenced
        | BusError::Unsupported(_) => format!("{BUS_REJECTED}: the bus rejected the record"),
    })
}
