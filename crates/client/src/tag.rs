//! The tag of a schedule: what a conditional change compares.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;

/// Names what a schedule's user asked for, opaquely (HTTP's `ETag`): it is another after each put, update and cancellation, and
/// the same while a recurring schedule goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag(pub(crate) HeaderValue);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().expect("a tag is made of text"))
    }
}

/// It has the form `"…"`, quotes included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a tag is text in quotes, as an answer's `ETag` has it")]
pub struct TagError;

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        let text = text.trim();
        let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(TagError)?;
        match inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') {
            true => HeaderValue::from_str(text).map(Tag).map_err(|_| TagError),
            false => Err(TagError),
        }
    }
}

impl Tag {
    /// `None` for what this API never sends.
    pub(crate) fn of(value: &HeaderValue) -> Option<Tag> {
        value.to_str().ok()?.parse().ok()
    }
}
