//! The key of a POST that may be sent again: `Idempotency-Key`. `routes::once` explains what it does.

#[cfg(test)]
mod tests;

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use domain::{ScheduleId, TenantId};
use sha2::{Digest, Sha256};

use crate::refusal::{Code, Refused, refuse_fields};

const HEADER: &str = "idempotency-key";
const KEY_LEN_MAX: usize = 255;
/// What is read as a key; in quotes, two characters of text may be one of the key.
pub(crate) const PATTERN: &str = r#"^("([!#-\[\]-~]|\\["\\]){1,255}"|[!#-~][!-~]{0,254})$"#;

/// 1 to 255 visible ASCII characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Key(String);

impl Key {
    /// As it is, or in quotes, as draft-ietf-httpapi-idempotency-key-header has it: both are the same key.
    fn read(headers: &HeaderMap) -> Result<Option<Self>, Refused> {
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
    pub(crate) fn id(&self, tenant: TenantId) -> ScheduleId {
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
    refuse_fields(Code::InvalidParameter, "the request's key cannot be used; see errors", vec![error])
}

/// Enough to see that a client has sent another body by mistake.
pub(crate) fn fingerprint(body: &[u8]) -> u32 {
    let digest = Sha256::digest(body);
    u32::from_be_bytes(digest[..4].try_into().expect("a SHA-256 has 32 bytes"))
}

/// The key of a request, if it has one.
pub(crate) struct IdempotencyKey(pub(crate) Option<Key>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        Key::read(&parts.headers).map(IdempotencyKey)
    }
}
