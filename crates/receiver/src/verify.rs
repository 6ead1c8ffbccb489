//! Verification of a request's signature, as a pure function.

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

/// Number of signatures that are checked. A sender adds one for each active secret.
const SIGNATURES_MAX: usize = 16;
const ID_BYTES_MAX: usize = 256;

/// Limits of verification. Each default suits Reveille's callbacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest difference between the signature's time and this machine's clock, in either direction. Default 5
    /// min, as in Standard Webhooks. A value that is too small rejects callbacks when a clock is wrong. A value
    /// that is too large gives an attacker more time to replay a recorded callback. A replay is still dropped as a
    /// duplicate as long as its id is stored.
    pub tolerance: Duration,
    /// Largest accepted body, in bytes. Default 64 KiB, which is Reveille's largest payload.
    pub body_bytes_max: usize,
    /// Time limit for receiving the whole body. Default 10 s. The sender is not authenticated before the body is
    /// complete.
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

/// Verifies that requests are Reveille's callbacks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verifier {
    secrets: Vec<Secret>,
    pub(crate) options: Options,
}

/// A request that was recently signed with one of the secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Callback {
    /// Unique id of the occurrence, the same for every attempt. At most 256 bytes of visible ASCII.
    pub id: String,
    /// Time of this attempt by the sender's clock, in whole seconds.
    pub sent_at: SystemTime,
    /// The schedule's payload, byte for byte.
    pub body: Bytes,
    /// Id of the schedule. Not signed: within `tolerance`, a person who recorded a callback can replay it with
    /// another id here. Put data that must be authentic into the payload.
    pub schedule_id: Option<String>,
    /// Number of this attempt, from 1. Not signed.
    pub attempt: Option<u32>,
    /// Due time of the occurrence, in RFC 3339, even if the callback is late. Not signed.
    pub scheduled_at: Option<String>,
}

impl Callback {
    /// Parses the payload as JSON.
    ///
    /// # Errors
    /// The parser's error, if the body is not JSON or does not have the form of `T`. A schedule without a payload
    /// has an empty body.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }
}

/// Reasons to reject a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// One of the three headers is missing or occurs more than once.
    #[error("expected one header `{name}`, found {count}")]
    Header {
        /// Name of the header.
        name: &'static str,
        /// Number of its occurrences.
        count: usize,
    },
    /// One of the three headers does not follow Standard Webhooks.
    #[error("invalid header `{name}`")]
    Malformed {
        /// Name of the header.
        name: &'static str,
    },
    /// The request was signed too long ago or in the future. It is a replay, or one of the clocks is wrong.
    #[error(
        "the signature's time differs too much from this machine's clock; if the request is new, synchronize the clocks"
    )]
    Time,
    /// No signature matches one of the secrets. Another sender created the request, the request was changed in
    /// transit, or the secret belongs to another tenant or was deleted.
    #[error("no signature matches one of the configured secrets")]
    Signature,
}

impl Rejection {
    /// Status of the response: 400 or 401. Reveille treats both as failures and sends the callback again.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Rejection::Header { .. } | Rejection::Malformed { .. } => StatusCode::BAD_REQUEST,
            Rejection::Time | Rejection::Signature => StatusCode::UNAUTHORIZED,
        }
    }
}

impl Verifier {
    /// Creates a verifier for callbacks that are signed with `secret`.
    #[must_use]
    pub fn new(secret: Secret, options: Options) -> Self {
        Verifier { secrets: vec![secret], options }
    }

    /// Accepts callbacks that are signed with this secret as well. Use it while one secret replaces another.
    #[must_use]
    pub fn or(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Verifies a request and returns its callback. `now` is the time of the wall clock. The duration of the
    /// comparison does not reveal how much of a signature is correct.
    ///
    /// Source: Standard Webhooks 1.0.0, "Verifying webhook authenticity" and "Verifying the timestamp".
    ///
    /// # Errors
    /// Returns [`Rejection`] if the request is not a valid callback.
    pub fn verify(&self, headers: &HeaderMap, body: Bytes, now: SystemTime) -> Result<Callback, Rejection> {
        let id = id_of(headers)?;
        let timestamp = one(headers, TIMESTAMP)?;
        let sent_at = instant_of(timestamp).ok_or(Rejection::Malformed { name: TIMESTAMP })?;
        let signatures = one(headers, SIGNATURE)?;
        if !self.is_signed(id, timestamp, &body, signatures) {
            return Err(Rejection::Signature);
        }
        let distance = now.duration_since(sent_at).unwrap_or_else(|future| future.duration());
        if distance > self.options.tolerance {
            return Err(Rejection::Time);
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
        // Versions other than `v1` are other signature schemes.
        let digits = signatures.split(' ').take(SIGNATURES_MAX).filter_map(|signature| signature.strip_prefix("v1,"));
        let given = digits.filter_map(|digits| STANDARD.decode(digits).ok());
        let is_right = |given: &[u8]| right.iter().fold(Choice::from(0), |found, right| found | right.ct_eq(given));
        given.fold(Choice::from(0), |found, given| found | is_right(&given)).into()
    }
}

/// Returns the id. An id must not contain a dot: the signed text could otherwise be split into a different id,
/// time and body.
fn id_of(headers: &HeaderMap) -> Result<&str, Rejection> {
    let id = one(headers, ID)?;
    let is_visible = id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
    match is_visible && (1..=ID_BYTES_MAX).contains(&id.len()) {
        true => Ok(id),
        false => Err(Rejection::Malformed { name: ID }),
    }
}

fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Rejection> {
    let count = headers.get_all(name).iter().count();
    let value = headers.get(name).filter(|_| count == 1).ok_or(Rejection::Header { name, count })?;
    value.to_str().map_err(|_| Rejection::Malformed { name })
}

/// Parses whole seconds since 1970.
fn instant_of(timestamp: &str) -> Option<SystemTime> {
    let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = timestamp.parse().ok().filter(|_| is_number)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
