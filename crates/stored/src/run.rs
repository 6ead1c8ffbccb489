//! Encoding of runs. An engine with columns for the tenant, the occurrence and the state stores only the rest of a run
//! as bytes.
//!
//! A run has version 2 if it is missed and has the mark `attempt_possible`, and version 1 otherwise. The two versions
//! differ only in this mark. Builds that know only version 1 can therefore read all runs without the mark.
//!
//! An attempt with an excerpt has the excerpt before its result, and an attempt with a delay has the delay after its
//! result. Builds without excerpts or without delays cannot read such a run, and can read all other runs.

use std::time::Duration;

use domain::occurrence::Run;
use domain::outline::lateness;
use domain::{
    Attempt, AttemptResult, Delay, Occurrence, Quota, RunOutline, RunState, RunStateKind, Secret, TenantId, Timestamp,
};

use crate::{Malformed, Put as _, Take};

const VERSION: u8 = 1;
const VERSION_MARKED: u8 = 2;
const WHAT: &str = "a run";
const ATTEMPT_LEN_MIN: usize = 2 + 8 + 12 + 1;
/// Bytes that precede an excerpt. Every other byte at this place is the number of a result.
const EXCERPT_PLAIN: u8 = 5;
const EXCERPT_ENCRYPTED: u8 = 6;
/// Bit of the number of an attempt's result. The bit states that a delay follows the result. Builds without delays
/// cannot read an attempt with this bit.
const DELAYED: u8 = 0x80;
/// Length of an encoded delay.
const DELAY_LEN: usize = 1 + 1 + 8;

/// Quotas that delay attempts, in the order of their numbers in the encoding. Later builds may append quotas.
pub(crate) const DELAYING: [Quota; 8] = [
    Quota::CallbacksPerMinute,
    Quota::InFlightMax,
    Quota::InFlightPerTargetMax,
    Quota::CallbacksPerSecondPerTarget,
    Quota::HttpInFlightMax,
    Quota::HttpCallbacksPerSecond,
    Quota::BusInFlightMax,
    Quota::BusCallbacksPerSecond,
];

/// Appends a run.
pub fn put(out: &mut Vec<u8>, run: &Run) {
    out.u8(version_of(run));
    out.u32(run.tenant.0);
    out.occurrence(&run.occurrence);
    out.u8(state_number(run.state));
    put_rest(out, run);
}

/// Returns the encoded rest of a run: everything except the tenant, the occurrence and the [`state_number`]. An engine
/// stores these three values in columns.
#[must_use]
pub fn encode_rest(run: &Run) -> Vec<u8> {
    let mut out = vec![version_of(run)];
    put_rest(&mut out, run);
    out
}

fn version_of(run: &Run) -> u8 {
    match run.state {
        RunState::Missed { attempt_possible: true, .. } => VERSION_MARKED,
        RunState::Missed { attempt_possible: false, .. }
        | RunState::Retrying
        | RunState::Succeeded
        | RunState::Failed
        | RunState::Cancelled => VERSION,
    }
}

fn put_rest(out: &mut Vec<u8>, run: &Run) {
    if let RunState::Missed { last, count, attempt_possible: _ } = run.state {
        out.timestamp(last);
        out.u64(count);
    }
    out.count(run.attempts.len());
    run.attempts.iter().for_each(|attempt| put_attempt(out, attempt));
}

/// Returns the number that represents a state in the encoding.
#[must_use]
pub fn state_number(state: RunState) -> u8 {
    kind_number(state.kind())
}

/// Returns the number that represents the states of a kind in the encoding.
#[must_use]
pub fn kind_number(kind: RunStateKind) -> u8 {
    match kind {
        RunStateKind::Retrying => 0,
        RunStateKind::Succeeded => 1,
        RunStateKind::Failed => 2,
        RunStateKind::Missed => 3,
        RunStateKind::Cancelled => 4,
    }
}

fn put_attempt(out: &mut Vec<u8>, attempt: &Attempt) {
    out.u16(attempt.number);
    out.timestamp(attempt.started_at);
    out.duration(attempt.duration);
    if let Some(excerpt) = &attempt.excerpt {
        let (kind, bytes) = match excerpt {
            Secret::Plain(bytes) => (EXCERPT_PLAIN, bytes),
            Secret::Encrypted(bytes) => (EXCERPT_ENCRYPTED, bytes),
        };
        out.u8(kind);
        out.blob(bytes);
    }
    let delay = attempt.delay.and_then(encode_delay);
    let delayed = if delay.is_some() { DELAYED } else { 0 };
    match &attempt.result {
        AttemptResult::Answered(status) => {
            out.u8(delayed);
            out.u16(*status);
        }
        AttemptResult::Unreachable(reason) => {
            out.u8(delayed | 1);
            out.text(reason);
        }
        AttemptResult::TimedOut => out.u8(delayed | 2),
        AttemptResult::Panicked => out.u8(delayed | 3),
        // Builds without bus targets cannot read this result.
        AttemptResult::Stored { partition, offset } => {
            out.u8(delayed | 4);
            out.u32(*partition);
            out.u64(*offset);
        }
    }
    if let Some((kind, quota, at)) = delay {
        out.u8(kind);
        out.u8(quota);
        out.timestamp(at);
    }
}

/// Returns the numbers of a delay and of its quota, and its instant. Returns `None` for a quota that delays no
/// attempts.
fn encode_delay(delay: Delay) -> Option<(u8, u8, Timestamp)> {
    let none = Timestamp::default();
    Some(match delay {
        Delay::Quota { quota, since } => {
            let number = DELAYING.iter().position(|delaying| *delaying == quota)?;
            (0, u8::try_from(number).ok()?, since)
        }
        Delay::Slot => (1, 0, none),
        Delay::Circuit { until: None } => (2, 0, none),
        Delay::Circuit { until: Some(until) } => (3, 0, until),
        Delay::MemberDown { until } => (4, 0, until),
    })
}

fn take_delay(take: &mut Take<'_>) -> Result<Delay, Malformed> {
    let (kind, quota, at) = (take.u8()?, take.u8()?, take.timestamp()?);
    match (kind, quota) {
        (0, number) => {
            let quota = DELAYING.get(usize::from(number)).copied().ok_or_else(|| take.malformed())?;
            Ok(Delay::Quota { quota, since: at })
        }
        (1, 0) => Ok(Delay::Slot),
        (2, 0) => Ok(Delay::Circuit { until: None }),
        (3, 0) => Ok(Delay::Circuit { until: Some(at) }),
        (4, 0) => Ok(Delay::MemberDown { until: at }),
        _ => Err(take.malformed()),
    }
}

/// Decodes the run that [`put`] appended.
///
/// # Errors
/// Returns an error if `bytes` is not a run.
pub fn decode(bytes: &[u8]) -> Result<Run, Malformed> {
    let mut take = Take::new(WHAT, bytes);
    let (tenant, occurrence, state) = take_summary(&mut take)?;
    Ok(Run { tenant, occurrence, state, attempts: take_attempts(take)? })
}

/// Decodes a run without its attempts. Returns the tenant, the occurrence and the state.
///
/// # Errors
/// Returns an error if `bytes` does not start with a run.
pub fn summary(bytes: &[u8]) -> Result<(TenantId, Occurrence, RunState), Malformed> {
    take_summary(&mut Take::new(WHAT, bytes))
}

/// Decodes the outline of a run.
///
/// # Errors
/// Returns an error if `bytes` is not a run.
pub fn outline(bytes: &[u8]) -> Result<RunOutline, Malformed> {
    outline_with_duration(bytes).map(|(outline, _)| outline)
}

/// Decodes the outline of a run, and the duration of its last stored attempt.
///
/// # Errors
/// Returns an error if `bytes` is not a run.
pub fn outline_with_duration(bytes: &[u8]) -> Result<(RunOutline, Option<Duration>), Malformed> {
    let mut take = Take::new(WHAT, bytes);
    let (_, occurrence, state) = take_summary(&mut take)?;
    let mut outline = RunOutline { state: state.kind(), lateness: None, statuses: Vec::new() };
    let mut duration = None;
    for at in 0..take.count(ATTEMPT_LEN_MIN)? {
        let number = take.u16()?;
        let started_at = take.timestamp()?;
        if at == 0 {
            outline.lateness = lateness(&occurrence, number, started_at);
        }
        duration = Some(take.duration()?);
        let (kind, _) = take_excerpt(&mut take)?;
        match kind & !DELAYED {
            0 => outline.add_status(take.u16()?),
            1 => take.skip_blobs(1)?,
            2 | 3 => {}
            4 => drop(take.bytes(4 + 8)?),
            _ => return Err(take.malformed()),
        }
        if kind & DELAYED != 0 {
            take.bytes(DELAY_LEN)?;
        }
    }
    take.end()?;
    Ok((outline, duration))
}

/// Decodes the rest of a run, which [`encode_rest`] encoded, and returns the whole run. `state` is the
/// [`state_number`] of the run.
///
/// # Errors
/// Returns an error if `rest` is not the encoded rest of a run in this state.
pub fn decode_rest(tenant: TenantId, occurrence: Occurrence, state: u8, rest: &[u8]) -> Result<Run, Malformed> {
    let mut take = Take::new(WHAT, rest);
    let marked = take_marked(&mut take)?;
    let state = take_state(state, marked, &mut take)?;
    Ok(Run { tenant, occurrence, state, attempts: take_attempts(take)? })
}

fn take_summary(take: &mut Take<'_>) -> Result<(TenantId, Occurrence, RunState), Malformed> {
    let marked = take_marked(take)?;
    let (tenant, occurrence, state) = (TenantId(take.u32()?), take.occurrence()?, take.u8()?);
    Ok((tenant, occurrence, take_state(state, marked, take)?))
}

/// Decodes the version. Returns true if the run has the mark `attempt_possible`.
fn take_marked(take: &mut Take<'_>) -> Result<bool, Malformed> {
    match take.u8()? {
        VERSION => Ok(false),
        VERSION_MARKED => Ok(true),
        _ => Err(take.malformed()),
    }
}

fn take_state(number: u8, marked: bool, take: &mut Take<'_>) -> Result<RunState, Malformed> {
    match number {
        3 => Ok(RunState::Missed { last: take.timestamp()?, count: take.u64()?, attempt_possible: marked }),
        _ if marked => Err(take.malformed()),
        0 => Ok(RunState::Retrying),
        1 => Ok(RunState::Succeeded),
        2 => Ok(RunState::Failed),
        4 => Ok(RunState::Cancelled),
        _ => Err(take.malformed()),
    }
}

/// Decodes the attempts of a run from `take`. The attempts are the last part of the encoded run.
fn take_attempts(mut take: Take<'_>) -> Result<Vec<Attempt>, Malformed> {
    let count = take.count(ATTEMPT_LEN_MIN)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(take_attempt(&mut take)?);
    }
    take.end()?;
    Ok(attempts)
}

fn take_attempt(take: &mut Take<'_>) -> Result<Attempt, Malformed> {
    let number = take.u16()?;
    let started_at = take.timestamp()?;
    let duration: Duration = take.duration()?;
    let (kind, excerpt) = take_excerpt(take)?;
    let excerpt = excerpt.map(|(is_encrypted, bytes)| {
        let bytes = bytes.to_vec().into();
        if is_encrypted { Secret::Encrypted(bytes) } else { Secret::Plain(bytes) }
    });
    let result = match kind & !DELAYED {
        0 => AttemptResult::Answered(take.u16()?),
        1 => AttemptResult::Unreachable(take.text()?.to_owned()),
        2 => AttemptResult::TimedOut,
        3 => AttemptResult::Panicked,
        4 => AttemptResult::Stored { partition: take.u32()?, offset: take.u64()? },
        _ => return Err(take.malformed()),
    };
    let delay = if kind & DELAYED == 0 { None } else { Some(take_delay(take)?) };
    Ok(Attempt { number, started_at, duration, result, delay, excerpt })
}

/// Bytes of an excerpt, and whether they are encrypted.
type StoredExcerpt<'a> = (bool, &'a [u8]);

/// Decodes the excerpt of an attempt, if the attempt has one. Returns the number of the attempt's result, with the bit
/// [`DELAYED`] if a delay follows, and the excerpt with the information whether it is encrypted.
fn take_excerpt<'a>(take: &mut Take<'a>) -> Result<(u8, Option<StoredExcerpt<'a>>), Malformed> {
    match take.u8()? {
        kind @ (EXCERPT_PLAIN | EXCERPT_ENCRYPTED) => {
            let bytes = take.blob()?;
            Ok((take.u8()?, Some((kind == EXCERPT_ENCRYPTED, bytes))))
        }
        result => Ok((result, None)),
    }
}
