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

/// Maximum number of signatures that the verifier checks. A sender adds one signature for each active secret.
const SIGNATURES_MAX: usize = 16;
const ID_BYTES_MAX: usize = 256;

/// Limits of verification. The defaults suit Reveille's callbacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// Largest accepted difference between the signature's time and this machine's clock, in either direction. Default
    /// 5 min, as in Standard Webhooks. If the value is too small, the verifier rejects callbacks when a clock is wrong.
    /// If the value is too large, an attacker has more time to replay a recorded callback. The middleware `once` still
    /// drops a replay as a duplicate while the table of handled callbacks contains the callback's id.
    pub tolerance: Duration,
    /// Maximum size of a body in bytes. Default 64 KiB, which is the size of Reveille's largest payload.
    pub body_bytes_max: usize,
    /// Time limit for the arrival of the whole body. Default 10 s. The limit is necessary because the verifier cannot
    /// authenticate the sender before the body is complete.
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

/// Verifier that checks whether requests are Reveille's callbacks. A clone is cheap.
#[derive(Clone, Debug)]
pub struct Verifier {
    secrets: Vec<Secret>,
    pub(crate) options: Options,
}

/// Callback: a request whose signature is recent and matches one of the secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Callback {
    /// Unique id of the run, which is the same for every attempt. It has at most 256 bytes of visible ASCII.
    pub id: String,
    /// Time of this attempt by the sender's clock, in whole seconds.
    pub sent_at: SystemTime,
    /// Body of the callback, which has exactly the bytes of the schedule's payload.
    pub body: Bytes,
    /// Id of the schedule. The signature does not cover it. Within `tolerance`, an attacker that recorded a callback
    /// can replay the callback with another schedule id. Put data that must be authentic into the payload.
    pub schedule_id: Option<String>,
    /// Number of this attempt, from 1. The signature does not cover it.
    pub attempt: Option<u32>,
    /// Due time of the occurrence in the format of RFC 3339, even if Reveille sends the callback later. The signature
    /// does not cover it.
    pub scheduled_at: Option<String>,
}

impl Callback {
    /// Parses the payload as JSON.
    ///
    /// # Errors
    /// Returns the error of the parser if the body is not JSON or does not have the form of `T`. The body is empty if
    /// the schedule has no payload.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }
}

/// Reason why the verifier rejects a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// One of the three signature headers is missing or occurs more than once.
    #[error("expected one header `{name}`, found {count}")]
    Header {
        /// Name of the missing or repeated header.
        name: &'static str,
        /// Number of headers with this name in the request.
        count: usize,
    },
    /// One of the three signature headers does not have the form that Standard Webhooks requires.
    #[error("invalid header `{name}`")]
    Malformed {
        /// Name of the malformed header.
        name: &'static str,
    },
    /// The time of the signature is too old or too far in the future. The request is a replay, or the clock of the
    /// sender or of this machine is wrong.
    #[error(
        "the signature's time differs too much from this machine's clock; if the request is new, synchronize the clocks"
    )]
    Time,
    /// No signature of the request matches a configured secret. Possible causes are a request from another sender, a
    /// change of the request in transit, and a secret that belongs to another tenant or was deleted.
    #[error("no signature of the request matches the configured secrets; configure the tenant's current secret")]
    Signature,
}

impl Rejection {
    /// Returns the status of the response, which is 400 or 401. Reveille treats both statuses as a failure and sends
    /// the callback again.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Rejection::Header { .. } | Rejection::Malformed { .. } => StatusCode::BAD_REQUEST,
            Rejection::Time | Rejection::Signature => StatusCode::UNAUTHORIZED,
        }
    }
}

impl Verifier {
    /// Creates a verifier that accepts callbacks that the sender signed with `secret`.
    #[must_use]
    pub fn new(secret: Secret, options: Options) -> Self {
        Verifier { secrets: vec![secret], options }
    }

    /// Returns a verifier that also accepts callbacks that the sender signed with this secret. Use this function while
    /// one secret replaces another secret.
    #[must_use]
    pub fn or(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Verifies a request and returns its callback. `now` is the time of the wall clock. The duration of the comparison
    /// does not reveal which part of a signature is correct.
    ///
    /// Source: Standard Webhooks 1.0.0, "Verifying webhook authenticity" and "Verifying the timestamp".
    ///
    /// # Errors
    /// Returns a [`Rejection`] if the request is not a valid callback.
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
        // The verifier ignores signatures whose version is not `v1`, because other versions denote other signature
        // schemes.
        let digits = signatures.split(' ').take(SIGNATURES_MAX).filter_map(|signature| signature.strip_prefix("v1,"));
        let given = digits.filter_map(|digits| STANDARD.decode(digits).ok());
        let is_right = |given: &[u8]| right.iter().fold(Choice::from(0), |found, right| found | right.ct_eq(given));
        given.fold(Choice::from(0), |found, given| found | is_right(&given)).into()
    }
}

/// Returns the id from the headers. The function rejects an id with a dot, because an attacker could otherwise split
/// the signed text into a different id, time and body.
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

/// Parses a time in whole seconds since 1970.
fn instant_of(timestamp: &str) -> Option<SystemTime> {
    let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = timestamp.parse().ok().filter(|_| is_number)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
