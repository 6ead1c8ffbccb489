//! Encoding of past timings. The key of a past timing is the version of its schedule, which the engine stores.

use domain::{PastTiming, ScheduleVersion, TenantId, TimingEnd};

use crate::schedule::{put_optional_text, put_when, take_optional_text, take_when};
use crate::{Malformed, Put as _, Take};

const VERSION: u8 = 1;

/// Returns the encoded past timing of a schedule of `tenant`, without its version.
#[must_use]
pub fn encode(tenant: TenantId, timing: &PastTiming) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.u8(VERSION);
    out.u32(tenant.0);
    out.timestamp(timing.from);
    out.u8(u8::from(timing.until.is_some()));
    out.timestamp(timing.until.unwrap_or_default());
    out.u8(match timing.end {
        TimingEnd::Replaced => 0,
        TimingEnd::Cancelled => 1,
    });
    put_optional_text(&mut out, timing.by.as_deref());
    put_when(&mut out, &timing.when);
    out
}

/// Returns the tenant of an encoded past timing.
///
/// # Errors
/// Returns an error if `bytes` does not start with a past timing.
pub fn tenant(bytes: &[u8]) -> Result<TenantId, Malformed> {
    let mut take = Take::new("a past timing", bytes);
    take.version(VERSION)?;
    take.u32().map(TenantId)
}

/// Decodes the past timing of the version `edition`.
///
/// # Errors
/// Returns an error if `bytes` is not a past timing.
pub fn decode(edition: ScheduleVersion, bytes: &[u8]) -> Result<PastTiming, Malformed> {
    let mut take = Take::new("a past timing", bytes);
    take.version(VERSION)?;
    let _tenant = take.u32()?;
    let from = take.timestamp()?;
    let (has_until, until) = (take.u8()?, take.timestamp()?);
    let until = match has_until {
        0 => None,
        1 => Some(until),
        _ => return Err(take.malformed()),
    };
    let end = match take.u8()? {
        0 => TimingEnd::Replaced,
        1 => TimingEnd::Cancelled,
        _ => return Err(take.malformed()),
    };
    let by = take_optional_text(&mut take)?;
    let when = take_when(&mut take)?;
    take.end()?;
    Ok(PastTiming { edition, when, from, until, end, by })
}
