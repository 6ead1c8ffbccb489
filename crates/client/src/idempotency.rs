//! Idempotency keys chosen by the caller.

use std::str::FromStr;

use http::HeaderValue;

use crate::{ScheduleSummary, clock};

/// Key of a request that one or several processes may send repeatedly. For all requests of one tenant with the same
/// key, the server creates only one schedule. A key has 1 to 255 visible ASCII characters, for example a UUID or an
/// order number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdempotencyKey(pub(crate) HeaderValue);

/// Reason why a text is not an [`IdempotencyKey`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an idempotency key must have 1 to 255 visible ASCII characters, and must not start with a quotation mark")]
pub struct IdempotencyKeyError;

impl IdempotencyKey {
    /// Returns a new key of 128 random bits.
    pub(crate) fn random() -> Self {
        let key = format!("{:016x}{:016x}", clock::random(), clock::random());
        IdempotencyKey(HeaderValue::from_str(&key).expect("hexadecimal digits are valid in a header"))
    }
}

impl std::fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

impl FromStr for IdempotencyKey {
    type Err = IdempotencyKeyError;

    fn from_str(text: &str) -> Result<Self, IdempotencyKeyError> {
        let is_key = (1..=255).contains(&text.len())
            && !text.starts_with('"')
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::from_str(text).ok().filter(|_| is_key);
        value.map(IdempotencyKey).ok_or(IdempotencyKeyError)
    }
}

/// Result of [`crate::Client::create_with_key`].
#[derive(Clone, PartialEq, Debug)]
pub struct Created {
    /// State of the schedule when the first request with the idempotency key created it.
    pub schedule: ScheduleSummary,
    /// True if an earlier request with the same idempotency key created the schedule.
    pub is_replay: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_key_has_1_to_255_visible_ascii_characters() {
        for good in ["a", "order-17", "~", &"x".repeat(255)] {
            assert_eq!(
                good.parse::<IdempotencyKey>().map(|key| key.0.to_str().unwrap().to_owned()),
                Ok(good.to_owned())
            );
        }
        for bad in ["", " a", "a b", "\"a\"", "ä", "a\n", &"x".repeat(256)] {
            assert_eq!(bad.parse::<IdempotencyKey>(), Err(IdempotencyKeyError), "{bad:?}");
        }
    }
}
