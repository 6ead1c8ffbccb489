//! Encoding of the attempts in flight that the owner of a shard hands over.

use store::HandedOver;

use crate::{Malformed, Put as _, Take};

const VERSION: u8 = 1;
/// Length in bytes of one encoded attempt: poller, due key and instant.
const ATTEMPT_LEN: usize = 8 + 44 + 8;

/// Returns the encoded attempts.
#[must_use]
pub fn encode(attempts: &[HandedOver]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + attempts.len() * ATTEMPT_LEN);
    out.u8(VERSION);
    out.count(attempts.len());
    for HandedOver { poller, key, until } in attempts {
        out.poller(*poller);
        out.due(key);
        out.timestamp(*until);
    }
    out
}

/// Decodes the attempts that [`encode`] encoded.
///
/// # Errors
/// Returns an error if `stored` is not a list of attempts.
pub fn decode(stored: &[u8]) -> Result<Vec<HandedOver>, Malformed> {
    let mut take = Take::new("attempts handed over", stored);
    take.version(VERSION)?;
    let count = take.count(ATTEMPT_LEN)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(HandedOver { poller: take.poller()?, key: take.due()?, until: take.timestamp()? });
    }
    take.end()?;
    Ok(attempts)
}
