//! Encoding of schedules. A row consists of a head of fixed length, the id and the spec. An engine with columns for the
//! head and the id stores only the spec as bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    BusTarget, CloudEvent, CloudEventMode, HttpTarget, Incarnation, LabelKey, PollerId, Revision, Schedule, ScheduleId,
    Secret, Spec, Status, Target, TenantId, Timestamp, When,
};

use crate::{Malformed, Put as _, Take};

const VERSION: u8 = 1;
const WHAT: &str = "a schedule";
/// Number that marks an encoded HTTP target without encrypted headers. Builds that did not support encryption marked
/// every HTTP target with this number.
const PLAIN_HTTP: u8 = 0;
/// Number that marks an encoded HTTP target with encrypted headers. A flag before each header value says whether the
/// value is encrypted.
const HTTP: u8 = 1;
/// Number that marks an encoded bus target. Builds without bus targets cannot read it.
const BUS: u8 = 2;

/// Length of the head in bytes. The head has a fixed length, so [`patch`] can replace it without decoding the row.
const HEAD_LEN: usize = 1 + 4 + 16 + 8 + 8 + State::LEN;

/// Head of a schedule: all its fields except the id and the spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub tenant: TenantId,
    pub incarnation: Incarnation,
    pub poller: PollerId,
    pub created_at: Timestamp,
    pub state: State,
}

/// State of a schedule: the fields that can change without a new spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub revision: Revision,
    pub status: Status,
    pub updated_at: Timestamp,
    pub next: Option<Timestamp>,
}

impl Head {
    #[must_use]
    pub fn of(schedule: &Schedule) -> Self {
        Head {
            tenant: schedule.tenant,
            incarnation: schedule.incarnation,
            poller: schedule.poller,
            created_at: schedule.created_at,
            state: State {
                revision: schedule.revision,
                status: schedule.status,
                updated_at: schedule.updated_at,
                next: schedule.next,
            },
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.u8(VERSION);
        out.u32(self.tenant.0);
        out.u128(self.incarnation.0);
        out.poller(self.poller);
        out.timestamp(self.created_at);
        self.state.put(out);
    }
}

impl State {
    /// Length of the encoded state in bytes.
    pub const LEN: usize = 4 + 1 + 8 + 9;

    pub fn put(&self, out: &mut Vec<u8>) {
        out.u32(self.revision.0);
        out.u8(status_number(self.status));
        out.timestamp(self.updated_at);
        out.u8(u8::from(self.next.is_some()));
        out.timestamp(self.next.unwrap_or_default());
    }

    /// # Errors
    /// Returns an error if the remaining bytes of `take` do not start with a state.
    pub fn take(take: &mut Take<'_>) -> Result<Self, Malformed> {
        let revision = Revision(take.u32()?);
        let status = take_status(take)?;
        let updated_at = take.timestamp()?;
        let next = match (take.u8()?, take.timestamp()?) {
            (0, Timestamp::MIN) => None,
            (1, next) => Some(next),
            _ => return Err(take.malformed()),
        };
        Ok(State { revision, status, updated_at, next })
    }
}

/// Appends a schedule.
pub fn put(out: &mut Vec<u8>, schedule: &Schedule) {
    Head::of(schedule).put(out);
    out.text(schedule.id.as_str());
    put_spec(out, &schedule.spec);
}

/// Returns the encoded spec of a schedule. The result contains neither the head nor the id of the schedule.
#[must_use]
pub fn encode_spec(spec: &Spec) -> Vec<u8> {
    let mut out = Vec::with_capacity(200 + spec.payload.len());
    out.u8(VERSION);
    put_spec(&mut out, spec);
    out
}

fn put_spec(out: &mut Vec<u8>, spec: &Spec) {
    put_when(out, &spec.when);
    put_target(out, &spec.target);
    out.blob(&spec.payload);
    out.count(spec.labels.len());
    for (name, value) in &spec.labels {
        out.text(name);
        out.text(value);
    }
    out.u16(spec.retry.attempts_max);
    out.duration(spec.retry.backoff);
    out.duration(spec.retry.backoff_max);
}

/// Returns `row` with its head replaced by `head`.
///
/// # Panics
/// Panics if `row` is shorter than a head. A caller that has decoded the head of `row` never causes this panic.
#[must_use]
pub fn patch(row: &[u8], head: &Head) -> Vec<u8> {
    let mut out = Vec::with_capacity(row.len());
    head.put(&mut out);
    assert_eq!(out.len(), HEAD_LEN, "an encoded head has exactly `HEAD_LEN` bytes");
    out.extend_from_slice(&row[HEAD_LEN..]);
    out
}

/// Returns the label keys in a row. The function does not decode the other fields of the row.
///
/// # Errors
/// Returns an error if `row` is not a schedule.
pub fn labels(row: &[u8]) -> Result<Vec<LabelKey>, Malformed> {
    let mut take = Take::new(WHAT, row);
    take.bytes(HEAD_LEN)?;
    take.skip_blobs(1)?; // The id.
    match take.u8()? {
        0 => take.skip_timestamp()?,
        1 => take.skip_blobs(2)?,
        2 => take.skip_duration()?,
        3 => {
            take.skip_duration()?;
            take.skip_timestamp()?;
        }
        _ => return Err(take.malformed()),
    }
    let is_plain = match take.u8()? {
        PLAIN_HTTP => true,
        HTTP | BUS => false,
        _ => return Err(take.malformed()),
    };
    take.skip_blobs(2)?; // URL and method, or topic and options.
    for _ in 0..take.count(8)? {
        take.skip_blobs(1)?;
        if !is_plain {
            take.u8()?; // The flag that says whether the header value is encrypted.
        }
        take.skip_blobs(1)?;
    }
    take.skip_duration()?;
    take.skip_blobs(1)?; // The payload.
    let count = take.count(8)?;
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        labels.push(LabelKey::of(take.text()?, take.text()?));
    }
    Ok(labels)
}

pub(crate) fn put_when(out: &mut Vec<u8>, when: &When) {
    match when {
        When::At(at) => {
            out.u8(0);
            out.timestamp(*at);
        }
        When::Cron(cron) => {
            out.u8(1);
            out.text(cron.expression());
            out.text(cron.zone());
        }
        When::Every { interval, since: None } => {
            out.u8(2);
            out.duration(*interval);
        }
        When::Every { interval, since: Some(since) } => {
            out.u8(3);
            out.duration(*interval);
            out.timestamp(*since);
        }
    }
}

fn put_target(out: &mut Vec<u8>, target: &Target) {
    match target {
        Target::Http(http) => {
            let is_plain = http.headers.iter().all(|(_, value)| !value.is_encrypted());
            out.u8(if is_plain { PLAIN_HTTP } else { HTTP });
            out.text(&http.url);
            out.text(&http.method);
            put_headers(out, &http.headers, is_plain);
        }
        Target::Bus(bus) => {
            out.u8(BUS);
            out.text(&bus.topic);
            out.blob(&encode_bus_options(bus));
            put_headers(out, &bus.headers, false);
        }
    }
    out.duration(target.timeout());
}

/// Returns the encoded key and the encoded form as a CloudEvent. They are one blob, so that [`labels`] can skip them.
fn encode_bus_options(bus: &BusTarget) -> Vec<u8> {
    let mut out = Vec::new();
    put_optional_text(&mut out, bus.key.as_deref());
    match &bus.cloud_event {
        None => out.u8(0),
        Some(CloudEvent { mode, kind, source }) => {
            out.u8(match mode {
                CloudEventMode::Binary => 1,
                CloudEventMode::Structured => 2,
            });
            out.text(kind);
            put_optional_text(&mut out, source.as_deref());
        }
    }
    out
}

pub(crate) fn put_optional_text(out: &mut Vec<u8>, text: Option<&str>) {
    out.u8(u8::from(text.is_some()));
    out.text(text.unwrap_or_default());
}

/// Appends headers. If `is_plain` is true, the encoding has no flags that say whether the values are encrypted.
fn put_headers(out: &mut Vec<u8>, headers: &[(String, Secret)], is_plain: bool) {
    out.count(headers.len());
    for (name, value) in headers {
        out.text(name);
        match value {
            Secret::Plain(bytes) if is_plain => out.blob(bytes),
            Secret::Plain(bytes) => {
                out.u8(0);
                out.blob(bytes);
            }
            Secret::Encrypted(bytes) => {
                out.u8(1);
                out.blob(bytes);
            }
        }
    }
}

/// Decodes the head of a row.
///
/// # Errors
/// Returns an error if `row` does not start with a head.
pub fn head(row: &[u8]) -> Result<Head, Malformed> {
    take_head(&mut Take::new(WHAT, row))
}

/// Decodes the head and the id of a row.
///
/// # Errors
/// Returns an error if `row` does not start with a head and an id.
pub fn head_and_id(row: &[u8]) -> Result<(Head, &str), Malformed> {
    let mut take = Take::new(WHAT, row);
    Ok((take_head(&mut take)?, take.text()?))
}

fn take_head(take: &mut Take<'_>) -> Result<Head, Malformed> {
    take.version(VERSION)?;
    Ok(Head {
        tenant: TenantId(take.u32()?),
        incarnation: Incarnation(take.u128()?),
        poller: take.poller()?,
        created_at: take.timestamp()?,
        state: State::take(take)?,
    })
}

/// Decodes the schedule that [`put`] appended. The payload of the result is a slice of `row`, not a copy.
///
/// # Errors
/// Returns an error if `row` is not a schedule.
pub fn decode(row: &Bytes) -> Result<Schedule, Malformed> {
    let mut take = Take::new(WHAT, row);
    let Head { tenant, incarnation, poller, created_at, state } = take_head(&mut take)?;
    let State { revision, status, updated_at, next } = state;
    let id = ScheduleId::new(take.text()?).map_err(|_| take.malformed())?;
    let spec = take_spec(&mut take, row)?;
    take.end()?;
    Ok(Schedule { tenant, id, incarnation, poller, revision, status, created_at, updated_at, next, spec })
}

/// Decodes the spec that [`encode_spec`] encoded. The payload of the result is a slice of `stored`, not a copy.
///
/// # Errors
/// Returns an error if `stored` is not a spec.
pub fn decode_spec(stored: &Bytes) -> Result<Spec, Malformed> {
    let mut take = Take::new("a schedule's spec", stored);
    take.version(VERSION)?;
    let spec = take_spec(&mut take, stored)?;
    take.end()?;
    Ok(spec)
}

/// Decodes the timing in a row. The function does not decode the fields after the timing.
///
/// # Errors
/// Returns an error if `row` does not start with a head, an id and a timing.
pub fn when(row: &[u8]) -> Result<When, Malformed> {
    let mut take = Take::new(WHAT, row);
    take.bytes(HEAD_LEN)?;
    take.skip_blobs(1)?; // The id.
    take_when(&mut take)
}

/// Length of the longest start of an encoded spec that contains the timing.
pub const WHEN_LEN_MAX: usize = 1 + 1 + 4 + Cron::EXPRESSION_BYTES_MAX + 4 + Cron::ZONE_BYTES_MAX;

/// Decodes the timing at the start of an encoded spec. `start` has at least the first [`WHEN_LEN_MAX`] bytes of the
/// spec, or the whole spec.
///
/// # Errors
/// Returns an error if `start` is not the start of a spec.
pub fn when_of_spec(start: &[u8]) -> Result<When, Malformed> {
    let mut take = Take::new("a schedule's spec", start);
    take.version(VERSION)?;
    take_when(&mut take)
}

fn take_spec(take: &mut Take<'_>, all: &Bytes) -> Result<Spec, Malformed> {
    Ok(Spec {
        when: take_when(take)?,
        target: take_target(take)?,
        payload: all.slice_ref(take.blob()?),
        labels: take_labels(take)?,
        retry: RetryPolicy { attempts_max: take.u16()?, backoff: take.duration()?, backoff_max: take.duration()? },
    })
}

pub(crate) fn take_when(take: &mut Take<'_>) -> Result<When, Malformed> {
    match take.u8()? {
        0 => Ok(When::At(take.timestamp()?)),
        1 => Ok(When::Cron(Cron::from_stored(take.text()?, take.text()?))),
        2 => Ok(When::every(take.duration()?)),
        3 => Ok(When::Every { interval: take.duration()?, since: Some(take.timestamp()?) }),
        _ => Err(take.malformed()),
    }
}

fn take_target(take: &mut Take<'_>) -> Result<Target, Malformed> {
    match take.u8()? {
        number @ (PLAIN_HTTP | HTTP) => Ok(Target::Http(HttpTarget {
            url: take.text()?.to_owned(),
            method: take.text()?.to_owned(),
            headers: take_headers(take, number == PLAIN_HTTP)?,
            timeout: take.duration()?,
        })),
        BUS => {
            let topic = take.text()?.to_owned();
            let (key, cloud_event) = take_bus_options(Take::new(WHAT, take.blob()?))?;
            let headers = take_headers(take, false)?;
            Ok(Target::Bus(BusTarget { topic, key, headers, cloud_event, timeout: take.duration()? }))
        }
        _ => Err(take.malformed()),
    }
}

fn take_bus_options(mut take: Take<'_>) -> Result<(Option<String>, Option<CloudEvent>), Malformed> {
    let key = take_optional_text(&mut take)?;
    let mode = match take.u8()? {
        0 => None,
        1 => Some(CloudEventMode::Binary),
        2 => Some(CloudEventMode::Structured),
        _ => return Err(take.malformed()),
    };
    let cloud_event = match mode {
        None => None,
        Some(mode) => Some(CloudEvent { mode, kind: take.text()?.to_owned(), source: take_optional_text(&mut take)? }),
    };
    take.end()?;
    Ok((key, cloud_event))
}

pub(crate) fn take_optional_text(take: &mut Take<'_>) -> Result<Option<String>, Malformed> {
    match (take.u8()?, take.text()?) {
        (0, "") => Ok(None),
        (1, text) => Ok(Some(text.to_owned())),
        _ => Err(take.malformed()),
    }
}

fn take_headers(take: &mut Take<'_>, is_plain: bool) -> Result<Vec<(String, Secret)>, Malformed> {
    let count = take.count(8)?;
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take.text()?.to_owned();
        let is_encrypted = match if is_plain { 0 } else { take.u8()? } {
            0 => false,
            1 => true,
            _ => return Err(take.malformed()),
        };
        let value = Bytes::copy_from_slice(take.blob()?);
        headers.push((name, if is_encrypted { Secret::Encrypted(value) } else { Secret::Plain(value) }));
    }
    Ok(headers)
}

fn take_labels(take: &mut Take<'_>) -> Result<BTreeMap<String, String>, Malformed> {
    let count = take.count(8)?;
    let mut labels = BTreeMap::new();
    for _ in 0..count {
        labels.insert(take.text()?.to_owned(), take.text()?.to_owned());
    }
    Ok(labels)
}

fn status_number(status: Status) -> u8 {
    match status {
        Status::Active => 0,
        Status::Ended => 1,
        Status::Cancelled => 2,
    }
}

fn take_status(take: &mut Take<'_>) -> Result<Status, Malformed> {
    match take.u8()? {
        0 => Ok(Status::Active),
        1 => Ok(Status::Ended),
        2 => Ok(Status::Cancelled),
        _ => Err(take.malformed()),
    }
}
