//! A POST that may be sent again: `Idempotency-Key`.
//!
//! The key names the schedule. Its id is made from tenant and key, so that all requests with one key come to one owner, and it
//! is put only where no schedule ever was. What tells one body from another is in the incarnation, in the place of some of its
//! chance. So nothing is kept but the schedule itself, on every engine, through crashes and hand-overs, and as long as it can be
//! read; and the first answer follows from the body and from when the schedule was made.
//!
//! Always true here: of the requests with one key one makes a schedule, whatever becomes of it, until it is forgotten.

#[cfg(test)]
mod tests;

use api::FieldError;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use domain::{Incarnation, Revision, Schedule, ScheduleId, Status, Tenant, TenantId, decide};
use scheduler::{Create, Timing};
use sha2::{Digest, Sha256};
use std::sync::Arc;

use super::changes::{TRIES, others, put_answer};
use super::dry_run;
use super::schedules::{made, may_be_made, never_fires};
use crate::answer;
use crate::body::{read_again, read_schedule};
use crate::quota::Room;
use crate::refusal::{Kind, Refused, refuse, refuse_fields};
use crate::shared::Shared;

const HEADER: &str = "idempotency-key";
const REPLAYED: &str = "idempotent-replayed";
const KEY_LEN_MAX: usize = 255;
/// What is read as a key; in quotes, two characters of text may be one of the key.
pub(crate) const PATTERN: &str = r#"^("([!#-\[\]-~]|\\["\\]){1,255}"|[!#-~][!-~]{0,254})$"#;

/// 1 to 255 visible ASCII characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key(String);

impl Key {
    /// As it is, or in quotes, as draft-ietf-httpapi-idempotency-key-header has it: both are the same key.
    pub(super) fn read(headers: &HeaderMap) -> Result<Option<Self>, Refused> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(bad_key("the header is there more than once"));
        }
        let key = unquoted(value.as_bytes()).ok_or_else(|| bad_key("its quotes do not fit"))?;
        if key.is_empty() || key.len() > KEY_LEN_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad_key("a key has 1 to 255 visible ASCII characters"));
        }
        Ok(Some(Key(key)))
    }

    /// Where all requests of `tenant` with this key meet.
    fn id(&self, tenant: TenantId) -> ScheduleId {
        let digest = Sha256::new()
            .chain_update(b"reveille idempotency key\0")
            .chain_update(tenant.0.to_be_bytes())
            .chain_update(&self.0)
            .finalize();
        ScheduleId::from_digest(u128::from_be_bytes(digest[..16].try_into().expect("a SHA-256 has 32 bytes")))
    }
}

/// What a structured string (RFC 8941, section 3.3.3) says; text without quotes says itself.
fn unquoted(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let Some(quoted) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let quoted = quoted.strip_suffix('"')?;
    let mut said = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => said.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            other => said.push(other),
        }
    }
    Some(said)
}

fn bad_key(detail: &str) -> Refused {
    let error = FieldError {
        parameter: Some("Idempotency-Key".into()),
        code: "invalid_idempotency_key".into(),
        detail: detail.to_owned(),
        hint: Some("send one header with a UUID, a new one for each schedule".to_owned()),
        ..FieldError::default()
    };
    refuse_fields(Kind::InvalidParameter, "the request's key cannot be used; see errors", vec![error])
}

/// Enough to see that a client has sent another body by mistake.
fn fingerprint(body: &[u8]) -> u32 {
    let digest = Sha256::digest(body);
    u32::from_be_bytes(digest[..4].try_into().expect("a SHA-256 has 32 bytes"))
}

pub(super) async fn create(
    shared: &Shared,
    tenant: Arc<Tenant>,
    key: &Key,
    body: &Bytes,
    is_dry_run: bool,
) -> Result<Response<Body>, Refused> {
    let (id, fingerprint) = (key.id(tenant.id), fingerprint(body));
    let mut room = Room::default();
    for attempt in 0..TRIES {
        if let Some(found) = shared.scheduler.get(tenant.id, id.clone()).await? {
            // Another with this key may have been faster.
            shared.pending.settle(&room, false);
            if found.incarnation.fingerprint() != fingerprint {
                let detail = "this key came with another body before; send a new key with each new request";
                return Err(refuse(Kind::IdempotencyKeyReused, detail));
            }
            let first = as_made(&found, body);
            if is_dry_run {
                return dry_run::told(StatusCode::CREATED, &first);
            }
            shared.scheduler.confirm(found.incarnation).await?;
            return Ok(replayed(&first));
        }
        let now = shared.runtime.now();
        let wanted = read_schedule(body, None, &shared.options.limits, &tenant.egress, now)?;
        if wanted.id.is_some() {
            return Err(id_and_key());
        }
        if attempt == 0 {
            room = shared.admit(&tenant, None, &wanted.spec, now).await?;
        }
        let incarnation = Incarnation::with_fingerprint(now, shared.runtime.random_u128(), fingerprint);
        let (tenant, id) = (tenant.clone(), Some(id.clone()));
        let request = Create { tenant, id, incarnation: Some(incarnation), spec: wanted.spec };
        if is_dry_run {
            shared.pending.settle(&room, false);
            return dry_run::answer(shared, request, None, Timing::Anew);
        }
        let when = never_fires(&request);
        if let Some(answer) = shared.scheduler.put_if(request, None, Timing::Anew).await? {
            shared.pending.settle(&room, may_be_made(&answer));
            return put_answer(answer, when);
        }
    }
    Err(others())
}

fn id_and_key() -> Refused {
    let error = FieldError {
        pointer: Some("/id".to_owned()),
        code: "conflicting_fields".into(),
        detail: "an Idempotency-Key names the schedule, too".to_owned(),
        hint: Some("send it without the key: a POST of an id that exists is answered 409".to_owned()),
        ..FieldError::default()
    };
    refuse_fields(Kind::InvalidSchedule, "one thing is wrong with the body; see errors", vec![error])
}

/// What the request with this body made, whatever has become of it in `found`.
fn as_made(found: &Schedule, body: &[u8]) -> Schedule {
    let mut first = Schedule {
        revision: Revision::default(),
        status: Status::Active,
        updated_at: found.created_at,
        next: None,
        spec: read_again(body).unwrap_or_else(|| found.spec.clone()),
        ..found.clone()
    };
    first.next = decide::first(&first, found.created_at).map(|due| due.occurrence.nominal);
    first
}

/// What the request that made `first` was answered.
fn replayed(first: &Schedule) -> Response<Body> {
    let mut response = made(StatusCode::CREATED, &answer::summary(first), first.edition());
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
