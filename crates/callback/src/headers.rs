//! Headers that identify the run and prove that the callback comes from Reveille.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use domain::{RunId, SigningSecret, Tenant, Timestamp};
use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use scheduler::Delivery;
use sha2::{Digest, Sha256};
use store::Keyring;
use store::encryption::{OpenError, Place};

use crate::cache::Cache;
use crate::sign::{SIGNATURE_LEN, Signer};
use crate::spans;
use crate::target::Prepared;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const SCHEDULE_ID: HeaderName = HeaderName::from_static("reveille-schedule-id");
const RUN_ID: HeaderName = HeaderName::from_static("reveille-run-id");
const ATTEMPT: HeaderName = HeaderName::from_static("reveille-attempt");
const SCHEDULED_AT: HeaderName = HeaderName::from_static("reveille-scheduled-at");
const LATENESS_MS: HeaderName = HeaderName::from_static("reveille-lateness-ms");
const TERM: HeaderName = HeaderName::from_static("reveille-term");

/// Maximum number of headers that the client adds to the target's headers, including `host` and `content-length`.
const OWN_HEADERS: usize = 12;

/// Maximum number of tenants whose signers the cache contains.
const SIGNERS_KEPT: usize = 2_048;

/// Signers of a tenant, and the secrets with which they sign.
pub(crate) struct Signers {
    secrets: Vec<SigningSecret>,
    signers: Vec<Signer>,
}

pub(crate) struct Stamper {
    keyring: Arc<Keyring>,
    signers: Cache<Signers>,
    /// Counter with a random start. A mixing function turns its values into span ids, which must be distinct but need
    /// not be secret.
    span: AtomicU64,
}

impl Stamper {
    pub(crate) fn new(random: u64, keyring: Arc<Keyring>) -> Self {
        Stamper { keyring, signers: Cache::new(SIGNERS_KEPT), span: AtomicU64::new(random) }
    }

    /// Returns the headers of an attempt, except `host`. They contain `content-length` only if the body is empty.
    pub(crate) fn headers(&self, delivery: &Delivery, prepared: &Prepared, signers: &Signers) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(prepared.headers.len() + OWN_HEADERS);
        let payload = &delivery.schedule.spec.payload;
        for (name, value) in &prepared.headers {
            // A callback with an empty body has no `content-type`. A receiver that parses an empty body as JSON would
            // reject the callback.
            if !(payload.is_empty() && *name == CONTENT_TYPE) {
                headers.append(name, value.clone());
            }
        }
        if payload.is_empty() && [Method::POST, Method::PUT, Method::PATCH].contains(&prepared.method) {
            // `content-length: 0` announces an empty body (RFC 9110, 8.6). Without this header, some receivers respond
            // with 411.
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let mut values = Values(BytesMut::with_capacity(512));
        self.stamp(delivery, signers, payload, |name, value| drop(headers.insert(name.clone(), values.bytes(value))));
        headers
    }

    /// Calls `put` with the name and the value of each header that identifies the run and signs `body`, the body of the
    /// callback.
    pub(crate) fn stamp(
        &self,
        delivery: &Delivery,
        signers: &Signers,
        body: &[u8],
        mut put: impl FnMut(&HeaderName, &[u8]),
    ) {
        let Delivery { tenant: _, schedule, occurrence, attempt, term, started_at, deadline: _ } = delivery;
        let run_id = occurrence.run_id();
        let timestamp_s = started_at.as_millis().div_euclid(1000);
        let mut signatures = Vec::with_capacity(signers.signers.len() * (SIGNATURE_LEN + 1));
        for signer in &signers.signers {
            if !signatures.is_empty() {
                signatures.push(b' ');
            }
            signatures.extend(signer.sign(run_id.as_str(), timestamp_s, body));
        }
        let lateness_ms = started_at.as_millis().saturating_sub(occurrence.nominal.as_millis()).max(0);

        let mut number = itoa::Buffer::new();
        put(&RUN_ID, run_id.as_str().as_bytes());
        put(&WEBHOOK_ID, run_id.as_str().as_bytes());
        put(&WEBHOOK_TIMESTAMP, number.format(timestamp_s).as_bytes());
        put(&WEBHOOK_SIGNATURE, &signatures);
        put(&SCHEDULE_ID, schedule.id.as_str().as_bytes());
        put(&ATTEMPT, number.format(*attempt).as_bytes());
        put(&SCHEDULED_AT, &rfc3339(occurrence.nominal));
        put(&LATENESS_MS, number.format(lateness_ms).as_bytes());
        put(&TERM, number.format(term.0).as_bytes());
        let span_id = self.span_id();
        spans::sent(span_id);
        put(&TRACEPARENT, &traceparent(trace_id(&run_id), span_id));
    }

    /// Returns the signers of this tenant from the cache, or creates them.
    pub(crate) fn signers(&self, tenant: &Tenant) -> Result<Arc<Signers>, OpenError> {
        let secrets = &tenant.signing_secrets;
        let signer = |secret: &SigningSecret| {
            let place = Place::SigningSecret { tenant: tenant.id, id: &secret.id };
            Ok(Signer::new(&self.keyring.open(place, &secret.secret)?))
        };
        let make =
            || Ok(Signers { secrets: secrets.clone(), signers: secrets.iter().map(signer).collect::<Result<_, _>>()? });
        self.signers.get(tenant.id, |known| known.secrets == *secrets, make)
    }

    fn span_id(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014). It maps the 2^64 values of the counter to different ids.
        let mut mixed = self.span.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        mixed.max(1)
    }
}

/// Trace id of a run in W3C Trace Context. It is the same for every attempt of the run, on every member.
#[must_use]
pub fn trace_id(run: &RunId) -> u128 {
    let digest = Sha256::digest(run.as_str().as_bytes());
    let (first, _) = digest.split_at(16);
    let id = first.iter().fold(0, |id: u128, byte| id << 8 | u128::from(*byte));
    id.max(1)
}

/// Buffer in which several header values share one allocation.
struct Values(BytesMut);

impl Values {
    fn bytes(&mut self, bytes: &[u8]) -> HeaderValue {
        self.0.extend_from_slice(bytes);
        let value: Bytes = self.0.split().freeze();
        HeaderValue::from_maybe_shared(value).expect("ids, numbers and instants contain only visible ASCII characters")
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Returns `00-<trace id>-<span id>-01`. The flag `01` (sampled) requests that the receiver record a trace of the
/// callback.
fn traceparent(trace: u128, span: u64) -> [u8; 55] {
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-01";
    hex(&mut text[3..35], &trace.to_be_bytes());
    hex(&mut text[36..52], &span.to_be_bytes());
    text
}

fn hex(into: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in into.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
}

/// Formats an instant as `2026-11-21T10:00:00.000Z`, like [`Timestamp`]'s `Display`, but faster. It clamps instants to
/// the years 1970 to 9999.
pub(crate) fn rfc3339(instant: Timestamp) -> [u8; 24] {
    let millis = instant.clamp(Timestamp::MIN, Timestamp::MAX).as_millis();
    let (year, month, day) = civil(millis / 86_400_000);
    let in_day = millis % 86_400_000;
    let mut text = *b"0000-00-00T00:00:00.000Z";
    digits(&mut text[..4], year);
    digits(&mut text[5..7], month);
    digits(&mut text[8..10], day);
    digits(&mut text[11..13], in_day / 3_600_000);
    digits(&mut text[14..16], in_day / 60_000 % 60);
    digits(&mut text[17..19], in_day / 1000 % 60);
    digits(&mut text[20..23], in_day % 1000);
    text
}

fn digits(into: &mut [u8], mut number: i64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
}

/// Returns the year, month and day of the date that is `days` days after 1970-01-01. `days` must not be negative. The
/// algorithm is `civil_from_days` (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests;
