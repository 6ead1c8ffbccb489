//! Header `Idempotency-Key`, with which a client can safely repeat a POST request. The module `routes::once` describes
//! the effect of the header.

#[cfg(test)]
mod tests;

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use domain::{ScheduleId, TenantId};
use sha2::{Digest, Sha256};

use crate::rejection::{Code, Rejected, reject_fields};

const HEADER: &str = "idempotency-key";
const KEY_LEN_MAX: usize = 255;
/// Regular expression for the accepted header values. In a quoted key, an escape sequence of two characters represents
/// one character of the key.
pub(crate) const PATTERN: &str = r#"^("([!#-\[\]-~]|\\["\\]){1,255}"|[!#-~][!-~]{0,254})$"#;

/// Idempotency key: 1 to 255 visible ASCII characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key(String);

impl Key {
    /// Reads a key with or without quotes (draft-ietf-httpapi-idempotency-key-header). Both forms yield the same key.
    fn read(headers: &HeaderMap) -> Result<Option<Self>, Rejected> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(bad_key("the header is repeated"));
        }
        let key = unquoted(value.as_bytes()).ok_or_else(|| bad_key("the quotes do not match"))?;
        if key.is_empty() || key.len() > KEY_LEN_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad_key("a key must have 1 to 255 visible ASCII characters"));
        }
        Ok(Some(Key(key)))
    }

    /// Returns the schedule id for this key. All requests of `tenant` with this key go to the owner of this id.
    pub(crate) fn id(&self, tenant: TenantId) -> ScheduleId {
        ScheduleId::from_digest(self.digest(tenant))
    }

    /// Returns the schedule id that earlier builds derived from this key.
    pub(crate) fn id_old(&self, tenant: TenantId) -> ScheduleId {
        ScheduleId::from_digest_old(self.digest(tenant))
    }

    /// Returns the schedule id for line `number` of a batch with this key. The first line has the number 1.
    pub(crate) fn id_of_line(&self, tenant: TenantId, number: u64) -> ScheduleId {
        let digest = Sha256::new()
            .chain_update(b"reveille idempotency key of a batch\0")
            .chain_update(tenant.0.to_be_bytes())
            .chain_update(number.to_be_bytes())
            .chain_update(&self.0);
        ScheduleId::from_digest(first_half(digest))
    }

    fn digest(&self, tenant: TenantId) -> u128 {
        let digest = Sha256::new()
            .chain_update(b"reveille idempotency key\0")
            .chain_update(tenant.0.to_be_bytes())
            .chain_update(&self.0);
        first_half(digest)
    }
}

fn first_half(digest: Sha256) -> u128 {
    u128::from_be_bytes(digest.finalize()[..16].try_into().expect("a SHA-256 digest has 32 bytes"))
}

/// Returns the content of a structured string (RFC 8941, section 3.3.3), or a text without quotes unchanged.
fn unquoted(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let Some(quoted) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let quoted = quoted.strip_suffix('"')?;
    let mut content = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => content.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            other => content.push(other),
        }
    }
    Some(content)
}

fn bad_key(detail: &str) -> Rejected {
    let error = FieldError {
        parameter: Some("Idempotency-Key".into()),
        code: "invalid_idempotency_key".into(),
        detail: detail.to_owned(),
        hint: Some("send one header with a UUID that is new for each schedule".to_owned()),
        ..FieldError::default()
    };
    reject_fields(Code::InvalidParameter, "the idempotency key is invalid; see the field `errors`", vec![error])
}

/// Returns a fingerprint of a body. With the fingerprint, the server detects a client that mistakenly sends another
/// body with the same key.
pub(crate) fn fingerprint(body: &[u8]) -> u32 {
    let digest = Sha256::digest(body);
    u32::from_be_bytes(digest[..4].try_into().expect("a SHA-256 digest has 32 bytes"))
}

/// Idempotency key of a request, if the request contains a key.
pub(crate) struct IdempotencyKey(pub(crate) Option<Key>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        Key::read(&parts.headers).map(IdempotencyKey)
    }
}
