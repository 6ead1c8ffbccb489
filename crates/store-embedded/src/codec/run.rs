//! Runs.

use std::time::Duration;

use domain::occurrence::Run;
use domain::{Attempt, AttemptResult, Occurrence, RunState, TenantId};

use super::{Malformed, Put, Take};

const VERSION: u8 = 1;
const ATTEMPT_LEN_MIN: usize = 2 + 8 + 12 + 1;

pub(crate) fn put(out: &mut Vec<u8>, run: &Run) {
    out.u8(VERSION);
    out.u32(run.tenant.0);
    out.occurrence(&run.occurrence);
    match run.state {
        RunState::Retrying => out.u8(0),
        RunState::Succeeded => out.u8(1),
        RunState::Failed => out.u8(2),
        RunState::Missed { last, count } => {
            out.u8(3);
            out.timestamp(last);
            out.u64(count);
        }
        RunState::Cancelled => out.u8(4),
    }
    out.count(run.attempts.len());
    for attempt in &run.attempts {
        put_attempt(out, attempt);
    }
}

fn put_attempt(out: &mut Vec<u8>, attempt: &Attempt) {
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

pub(crate) fn take(bytes: &[u8]) -> Result<Run, Malformed> {
    let mut take = Take::new("a run", bytes);
    take.version(VERSION)?;
    let tenant = TenantId(take.u32()?);
    let occurrence = take.occurrence()?;
    let state = take_state(&mut take)?;
    let count = take.count(ATTEMPT_LEN_MIN)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(take_attempt(&mut take)?);
    }
    take.end()?;
    Ok(Run { tenant, occurrence, state, attempts })
}

/// All but the attempts.
pub(crate) fn summary(bytes: &[u8]) -> Result<(TenantId, Occurrence, RunState), Malformed> {
    let mut take = Take::new("a run", bytes);
    take.version(VERSION)?;
    Ok((TenantId(take.u32()?), take.occurrence()?, take_state(&mut take)?))
}

fn take_state(take: &mut Take<'_>) -> Result<RunState, Malformed> {
    match take.u8()? {
        0 => Ok(RunState::Retrying),
        1 => Ok(RunState::Succeeded),
        2 => Ok(RunState::Failed),
        3 => Ok(RunState::Missed { last: take.timestamp()?, count: take.u64()? }),
        4 => Ok(RunState::Cancelled),
        _ => Err(take.malformed()),
    }
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
