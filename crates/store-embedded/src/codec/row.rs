//! Schedules: a row of what was asked for, written once, and a small row of what has changed since.

use std::collections::BTreeMap;

use bytes::Bytes;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    HttpTarget, Incarnation, LabelKey, PollerId, Revision, Schedule, ScheduleId, Secret, Spec, Status, Target,
    TenantId, Timestamp, When,
};

use super::{Malformed, Put, Take};

const VERSION: u8 = 1;
const STATE_VERSION: u8 = 1;
/// A target over HTTP none of whose headers is sealed: the form of builds that did not seal.
const PLAIN_HTTP: u8 = 0;
/// One with sealed headers: each value says whether it is.
const HTTP: u8 = 1;

/// The start of a row, where everything has its fixed place, so that [`patch`] can change it without a decode.
pub(crate) const HEAD_LEN: usize = 1 + 4 + 16 + 8 + 8 + STATE_LEN;
const STATE_LEN: usize = 4 + 1 + 8 + 9;

/// The part of a schedule that is not its spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub tenant: TenantId,
    pub incarnation: Incarnation,
    pub poller: PollerId,
    pub created_at: Timestamp,
    pub state: State,
}

/// The part of a schedule that changes without its user writing a new spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub revision: Revision,
    pub status: Status,
    pub updated_at: Timestamp,
    pub next: Option<Timestamp>,
}

impl Head {
    pub(crate) fn of(schedule: &Schedule) -> Self {
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
        put_state(out, &self.state);
    }
}

pub(crate) fn put(out: &mut Vec<u8>, schedule: &Schedule) {
    Head::of(schedule).put(out);
    out.text(schedule.id.as_str());
    let spec = &schedule.spec;
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

/// `row` with another head.
///
/// # Panics
/// If `row` is shorter than a head: decode its head first.
pub(crate) fn patch(row: &[u8], head: &Head) -> Vec<u8> {
    let mut out = Vec::with_capacity(row.len());
    head.put(&mut out);
    assert_eq!(out.len(), HEAD_LEN, "a head has a fixed length");
    out.extend_from_slice(&row[HEAD_LEN..]);
    out
}

/// The labels of a row, without a decode of the rest.
pub(crate) fn labels(row: &[u8]) -> Result<Vec<LabelKey>, Malformed> {
    let mut take = Take::new("a schedule", row);
    take.bytes(HEAD_LEN)?;
    take.skip_blobs(1)?; // The id.
    match take.u8()? {
        0 => take.skip_timestamp()?,
        1 => take.skip_blobs(2)?,
        2 => take.skip_duration()?,
        _ => return Err(take.malformed()),
    }
    let is_plain = match take.u8()? {
        PLAIN_HTTP => true,
        HTTP => false,
        _ => return Err(take.malformed()),
    };
    take.skip_blobs(2)?; // URL and method.
    for _ in 0..take.count(8)? {
        take.skip_blobs(1)?;
        if !is_plain {
            take.u8()?; // Whether it is sealed.
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

fn put_when(out: &mut Vec<u8>, when: &When) {
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
        When::Every(interval) => {
            out.u8(2);
            out.duration(*interval);
        }
    }
}

fn put_target(out: &mut Vec<u8>, target: &Target) {
    let Target::Http(http) = target;
    let is_plain = http.headers.iter().all(|(_, value)| !value.is_sealed());
    out.u8(if is_plain { PLAIN_HTTP } else { HTTP });
    out.text(&http.url);
    out.text(&http.method);
    out.count(http.headers.len());
    for (name, value) in &http.headers {
        out.text(name);
        match value {
            Secret::Plain(bytes) if is_plain => out.blob(bytes),
            Secret::Plain(bytes) => {
                out.u8(0);
                out.blob(bytes);
            }
            Secret::Sealed(bytes) => {
                out.u8(1);
                out.blob(bytes);
            }
        }
    }
    out.duration(http.timeout);
}

pub(crate) fn head(row: &[u8]) -> Result<Head, Malformed> {
    take_head(&mut Take::new("a schedule", row))
}

/// The head and the id: what it takes to know whose row this is.
pub(crate) fn head_and_id(row: &[u8]) -> Result<(Head, &str), Malformed> {
    let mut take = Take::new("a schedule", row);
    Ok((take_head(&mut take)?, take.text()?))
}

fn take_head(take: &mut Take<'_>) -> Result<Head, Malformed> {
    take.version(VERSION)?;
    Ok(Head {
        tenant: TenantId(take.u32()?),
        incarnation: Incarnation(take.u128()?),
        poller: take.poller()?,
        created_at: take.timestamp()?,
        state: take_state(take)?,
    })
}

/// The payload is a slice of `row`, not a copy.
pub(crate) fn take(row: &Bytes) -> Result<Schedule, Malformed> {
    let mut take = Take::new("a schedule", row);
    let head = take_head(&mut take)?;
    let id = ScheduleId::new(take.text()?).map_err(|_| take.malformed())?;
    let when = take_when(&mut take)?;
    let target = take_target(&mut take)?;
    let payload = row.slice_ref(take.blob()?);
    let labels = take_labels(&mut take)?;
    let retry = RetryPolicy { attempts_max: take.u16()?, backoff: take.duration()?, backoff_max: take.duration()? };
    take.end()?;
    Ok(Schedule {
        tenant: head.tenant,
        id,
        incarnation: head.incarnation,
        poller: head.poller,
        revision: head.state.revision,
        status: head.state.status,
        created_at: head.created_at,
        updated_at: head.state.updated_at,
        next: head.state.next,
        spec: Spec { when, target, payload, labels, retry },
    })
}

fn take_when(take: &mut Take<'_>) -> Result<When, Malformed> {
    match take.u8()? {
        0 => Ok(When::At(take.timestamp()?)),
        1 => Ok(When::Cron(Cron::from_stored(take.text()?, take.text()?))),
        2 => Ok(When::Every(take.duration()?)),
        _ => Err(take.malformed()),
    }
}

fn take_target(take: &mut Take<'_>) -> Result<Target, Malformed> {
    let is_plain = match take.u8()? {
        PLAIN_HTTP => true,
        HTTP => false,
        _ => return Err(take.malformed()),
    };
    let url = take.text()?.to_owned();
    let method = take.text()?.to_owned();
    let count = take.count(8)?;
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take.text()?.to_owned();
        let is_sealed = match if is_plain { 0 } else { take.u8()? } {
            0 => false,
            1 => true,
            _ => return Err(take.malformed()),
        };
        let value = Bytes::copy_from_slice(take.blob()?);
        headers.push((name, if is_sealed { Secret::Sealed(value) } else { Secret::Plain(value) }));
    }
    Ok(Target::Http(HttpTarget { url, method, headers, timeout: take.duration()? }))
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

fn put_state(out: &mut Vec<u8>, state: &State) {
    out.u32(state.revision.0);
    out.u8(status_number(state.status));
    out.timestamp(state.updated_at);
    out.u8(u8::from(state.next.is_some()));
    out.timestamp(state.next.unwrap_or_default());
}

fn take_state(take: &mut Take<'_>) -> Result<State, Malformed> {
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

/// What has changed in a schedule since its first row was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    pub state: State,
    /// The key of the row that holds the present spec.
    pub row: Incarnation,
}

impl Changed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + STATE_LEN + 16);
        out.u8(STATE_VERSION);
        put_state(&mut out, &self.state);
        out.u128(self.row.0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("a schedule's state", bytes);
        take.version(STATE_VERSION)?;
        let state = take_state(&mut take)?;
        let row = Incarnation(take.u128()?);
        take.end()?;
        Ok(Changed { state, row })
    }
}
