//! Whether a request is what Reveille sent: a pure decision.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use subtle::{Choice, ConstantTimeEq as _};

use crate::Secret;

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";

/// A sender has one signature for each live secret; what comes after so many is not looked at.
const SIGNATURES_MAX: usize = 16;
const ID_BYTES_MAX: usize = 256;

/// Limits, each with a default that suits Reveille's callbacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far the time of the signature may be from this machine's, either way. Default 5 min, as Standard Webhooks has it. Too
    /// short refuses callbacks when a clock is wrong; too long lets a recorded one be played back for longer (and a
    /// double is dropped anyway, as long as its id is remembered).
    pub tolerance: Duration,
    /// The largest body that is read, in bytes. Default 64 KiB: Reveille's largest payload.
    pub body_bytes_max: usize,
    /// For a body to arrive whole. Default 10 s. Until then nothing says that the sender is the one it should be.
    pub body_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tolerance: Duration::from_secs(5 * 60),
            body_bytes_max: 64 << 10,
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// Tells callbacks from other requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verifier {
    secrets: Vec<Secret>,
    pub(crate) options: Options,
}

/// A request that was signed with one of the secrets, lately.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Callback {
    /// Names the occurrence that this is for: the same on every attempt, and no other's. At most 256 bytes of visible ASCII.
    pub id: String,
    /// When this attempt was made, by the sender's clock, in whole seconds.
    pub sent_at: SystemTime,
    /// The schedule's payload, as it was sent to Reveille.
    pub body: Bytes,
    /// The schedule. Not signed: who has recorded a callback can play it back with another one, until `tolerance`. What must
    /// be certain belongs into the payload.
    pub schedule_id: Option<String>,
    /// The number of this attempt, from 1. Not signed.
    pub attempt: Option<u32>,
    /// The instant that the schedule names, in RFC 3339, however late this is. Not signed.
    pub scheduled_at: Option<String>,
}

impl Callback {
    /// The payload, read as JSON.
    ///
    /// # Errors
    /// If it is not JSON (a schedule without a payload has a body of no bytes), or not of this form.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }
}

/// Why a request is not let through.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// One of the three headers is not there, or there more than once.
    #[error("a callback has one header `{name}`; this request has {count}")]
    Header {
        /// Which.
        name: &'static str,
        /// How many of it there are.
        count: usize,
    },
    /// One of the three headers is not what Standard Webhooks says.
    #[error("the header `{name}` cannot be read")]
    Malformed {
        /// Which.
        name: &'static str,
    },
    /// It was signed too long ago, or in the future: it is played back, or one of the clocks is wrong.
    #[error("it was signed at another time than now; if it was sent just now, compare the clocks")]
    Time,
    /// None of the signatures is of one of the secrets: somebody else sent it, it was changed on its way, or the secret is another
    /// tenant's or was deleted.
    #[error("the signature is by none of the secrets that are known here")]
    Signature,
}

impl Refusal {
    /// What it is answered with: 400 or 401. To Reveille both are failures, and the callback is made again.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Header { .. } | Refusal::Malformed { .. } => StatusCode::BAD_REQUEST,
            Refusal::Time | Refusal::Signature => StatusCode::UNAUTHORIZED,
        }
    }
}

impl Verifier {
    /// Of what is signed with `secret`.
    #[must_use]
    pub fn new(secret: Secret, options: Options) -> Self {
        Verifier { secrets: vec![secret], options }
    }

    /// Or with this one, too: while one secret takes over from another.
    #[must_use]
    pub fn or(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// The callback that a request with these headers and this body is. `now` is the wall clock's. The time that it takes
    /// does not tell how much of a signature is right.
    ///
    /// Source: Standard Webhooks 1.0.0, "Verifying webhook authenticity" and "Verifying the timestamp".
    ///
    /// # Errors
    /// [`Refusal`], if it is none.
    pub fn verify(&self, headers: &HeaderMap, body: Bytes, now: SystemTime) -> Result<Callback, Refusal> {
        let id = id_of(headers)?;
        let timestamp = one(headers, TIMESTAMP)?;
        let sent_at = instant_of(timestamp).ok_or(Refusal::Malformed { name: TIMESTAMP })?;
        let signatures = one(headers, SIGNATURE)?;
        if !self.is_signed(id, timestamp, &body, signatures) {
            return Err(Refusal::Signature);
        }
        let distance = now.duration_since(sent_at).unwrap_or_else(|future| future.duration());
        if distance > self.options.tolerance {
            return Err(Refusal::Time);
        }
        let hint = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Callback {
            id: id.to_owned(),
            sent_at,
            body,
            schedule_id: hint("reveille-schedule-id"),
            attempt: hint("reveille-attempt").and_then(|number| number.parse().ok()),
            scheduled_at: hint("reveille-scheduled-at"),
        })
    }

    fn is_signed(&self, id: &str, timestamp: &str, body: &Bytes, signatures: &str) -> bool {
        let right: Vec<_> = self.secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
        // Versions other than `v1` are other schemes, for other receivers.
        let digits = signatures.split(' ').take(SIGNATURES_MAX).filter_map(|signature| signature.strip_prefix("v1,"));
        let given = digits.filter_map(|digits| STANDARD.decode(digits).ok());
        let is_right = |given: &[u8]| right.iter().fold(Choice::from(0), |found, right| found | right.ct_eq(given));
        given.fold(Choice::from(0), |found, given| found | is_right(&given)).into()
    }
}

/// The id, without dots: with one, what was signed could be read as another id, time and body.
fn id_of(headers: &HeaderMap) -> Result<&str, Refusal> {
    let id = one(headers, ID)?;
    let is_visible = id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
    match is_visible && (1..=ID_BYTES_MAX).contains(&id.len()) {
        true => Ok(id),
        false => Err(Refusal::Malformed { name: ID }),
    }
}

fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Refusal> {
    let count = headers.get_all(name).iter().count();
    let value = headers.get(name).filter(|_| count == 1).ok_or(Refusal::Header { name, count })?;
    value.to_str().map_err(|_| Refusal::Malformed { name })
}

/// Whole seconds since 1970.
fn instant_of(timestamp: &str) -> Option<SystemTime> {
    let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = timestamp.parse().ok().filter(|_| is_number)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
