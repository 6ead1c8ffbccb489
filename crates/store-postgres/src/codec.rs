//! The columns that hold what PostgreSQL need not understand: a schedule's spec, a run's attempts, a tenant, a hand-over.
//!
//! Written by hand so that a stored byte never depends on a library's idea of a format. Every value starts with the
//! version of its form; numbers are little-endian. Always true here: decoding what was encoded gives it back, and
//! decoding anything else is an error, never a panic.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    ApiKey, Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Secret,
    SigningSecret, Spec, Target, TargetKey, Tenant, TenantId, Timestamp, When,
};
use store::{HandedOver, StoreError};

#[cfg(test)]
mod tests;
mod wire;

use wire::{Malformed, Put as _, Take};

/// Of every form.
const VERSION: u8 = 1;
/// A target over HTTP none of whose headers is sealed: the form of builds that did not seal.
const PLAIN_HTTP: u8 = 0;
/// One with sealed headers: each value says whether it is.
const HTTP: u8 = 1;
const ATTEMPT_LEN_MIN: usize = 2 + 8 + 12 + 1;
const KEY_LEN_MIN: usize = 4 + 32 + 1;
const HANDED_OVER_LEN: usize = 8 + 8 + 30 + 6 + 8;

impl From<Malformed> for StoreError {
    fn from(malformed: Malformed) -> Self {
        StoreError::Damaged(malformed.to_string())
    }
}

pub(crate) fn put_spec(spec: &Spec) -> Vec<u8> {
    let mut out = Vec::with_capacity(200 + spec.payload.len());
    out.u8(VERSION);
    put_when(&mut out, &spec.when);
    put_target(&mut out, &spec.target);
    out.blob(&spec.payload);
    out.count(spec.labels.len());
    for (name, value) in &spec.labels {
        out.text(name);
        out.text(value);
    }
    out.u16(spec.retry.attempts_max);
    out.duration(spec.retry.backoff);
    out.duration(spec.retry.backoff_max);
    out
}

/// The payload is a slice of `stored`, not a copy.
pub(crate) fn take_spec(stored: &Bytes) -> Result<Spec, Malformed> {
    let mut take = Take::new("a schedule's spec", stored);
    take.version(VERSION)?;
    let when = take_when(&mut take)?;
    let target = take_target(&mut take)?;
    let payload = stored.slice_ref(take.blob()?);
    let count = take.count(8)?;
    let mut labels = BTreeMap::new();
    for _ in 0..count {
        labels.insert(take.text()?.to_owned(), take.text()?.to_owned());
    }
    let retry = RetryPolicy { attempts_max: take.u16()?, backoff: take.duration()?, backoff_max: take.duration()? };
    take.end()?;
    Ok(Spec { when, target, payload, labels, retry })
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

fn take_when(take: &mut Take<'_>) -> Result<When, Malformed> {
    match take.u8()? {
        0 => Ok(When::At(take.timestamp()?)),
        1 => Ok(When::Cron(Cron::from_stored(take.text()?, take.text()?))),
        2 => Ok(When::Every(take.duration()?)),
        _ => Err(take.malformed()),
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

/// A run's state as the column `state` has it.
pub(crate) fn state_number(state: RunState) -> i16 {
    match state {
        RunState::Retrying => 0,
        RunState::Succeeded => 1,
        RunState::Failed => 2,
        RunState::Missed { .. } => 3,
        RunState::Cancelled => 4,
    }
}

/// What `state` and the key's columns do not tell of a run.
pub(crate) fn put_run(run: &Run) -> Vec<u8> {
    let mut out = Vec::new();
    out.u8(VERSION);
    if let RunState::Missed { last, count } = run.state {
        out.timestamp(last);
        out.u64(count);
    }
    out.count(run.attempts.len());
    for attempt in &run.attempts {
        out.u16(attempt.number);
        out.timestamp(attempt.started_at);
        out.duration(attempt.duration);
        match &attempt.result {
            AttemptResult::Answered(status) => {
                out.u8(0);
                out.u16(*status);
            }
            AttemptResult::Unreachable(reason) => {
                out.u8(1);
                out.text(reason);
            }
            AttemptResult::TimedOut => out.u8(2),
            AttemptResult::Panicked => out.u8(3),
        }
    }
    out
}

pub(crate) fn take_run(tenant: TenantId, occurrence: Occurrence, state: i16, stored: &[u8]) -> Result<Run, Malformed> {
    let mut take = Take::new("a run", stored);
    take.version(VERSION)?;
    let state = match state {
        0 => RunState::Retrying,
        1 => RunState::Succeeded,
        2 => RunState::Failed,
        3 => RunState::Missed { last: take.timestamp()?, count: take.u64()? },
        4 => RunState::Cancelled,
        _ => return Err(take.malformed()),
    };
    let count = take.count(ATTEMPT_LEN_MIN)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(take_attempt(&mut take)?);
    }
    take.end()?;
    Ok(Run { tenant, occurrence, state, attempts })
}

fn take_attempt(take: &mut Take<'_>) -> Result<Attempt, Malformed> {
    let number = take.u16()?;
    let started_at = take.timestamp()?;
    let duration: Duration = take.duration()?;
    let result = match take.u8()? {
        0 => AttemptResult::Answered(take.u16()?),
        1 => AttemptResult::Unreachable(take.text()?.to_owned()),
        2 => AttemptResult::TimedOut,
        3 => AttemptResult::Panicked,
        _ => return Err(take.malformed()),
    };
    Ok(Attempt { number, started_at, duration, result })
}

pub(crate) fn take_tenant(id: TenantId, stored: &[u8]) -> Result<Tenant, StoreError> {
    match stored.first() {
        Some(&VERSION) => Ok(take_first_tenant(id, stored)?),
        _ => stored::tenant::decode(id, stored).map_err(StoreError::Damaged),
    }
}

/// As builds wrote it that counted no changes.
fn take_first_tenant(id: TenantId, stored: &[u8]) -> Result<Tenant, Malformed> {
    let mut take = Take::new("a tenant", stored);
    take.version(VERSION)?;
    let name = take.text()?.to_owned();
    let count = take.count(2)?;
    let mut generations = Vec::with_capacity(count);
    for _ in 0..count {
        generations.push(take.u16()?);
    }
    let secret = SigningSecret::first(take.blob()?.to_vec(), Timestamp::MIN);
    let count = take.count(KEY_LEN_MIN)?;
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let id = take.text()?.to_owned();
        let secret_sha256 = take.array()?;
        take.version(0)?;
        keys.push(ApiKey::admin(&id, secret_sha256, Timestamp::MIN));
    }
    take.end()?;
    Ok(Tenant { version: 0, generations, keys, ..Tenant::new(id, &name, 0, secret) })
}

pub(crate) fn put_handed_over(attempts: &[HandedOver]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + attempts.len() * HANDED_OVER_LEN);
    out.u8(VERSION);
    out.count(attempts.len());
    for HandedOver { poller, key, until } in attempts {
        out.u32(poller.tenant.0);
        out.u16(poller.generation);
        out.u16(poller.number);
        out.timestamp(key.position);
        out.u128(key.occurrence.incarnation.0);
        out.timestamp(key.occurrence.nominal);
        out.u32(key.occurrence.revision.0);
        out.u16(key.occurrence.replay);
        out.u16(key.attempt);
        out.u32(key.target.0);
        out.timestamp(*until);
    }
    out
}

pub(crate) fn take_handed_over(stored: &[u8]) -> Result<Vec<HandedOver>, Malformed> {
    let mut take = Take::new("a hand-over", stored);
    take.version(VERSION)?;
    let count = take.count(HANDED_OVER_LEN)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        let poller = PollerId { tenant: TenantId(take.u32()?), generation: take.u16()?, number: take.u16()? };
        let position: Timestamp = take.timestamp()?;
        let occurrence = Occurrence {
            incarnation: Incarnation(take.u128()?),
            nominal: take.timestamp()?,
            revision: Revision(take.u32()?),
            replay: take.u16()?,
        };
        let key = DueKey { position, occurrence, attempt: take.u16()?, target: TargetKey(take.u32()?) };
        attempts.push(HandedOver { poller, key, until: take.timestamp()? });
    }
    take.end()?;
    Ok(attempts)
}
