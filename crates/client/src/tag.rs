//! The tag of a schedule. The server compares the tag in a conditional change with the schedule's current tag.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;

/// Opaque version of a schedule's definition, from the HTTP header `ETag`. Each put, update and cancellation changes
/// the tag. An occurrence of a recurring schedule does not change it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tag(pub(crate) HeaderValue);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().expect("a tag contains only visible ASCII characters"))
    }
}

/// Error for a text that is not a tag. A tag has the form `"…"`, with the quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid tag: expected text in double quotes, as in the `ETag` header of a response")]
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
    /// Parses the value of an `ETag` header. Returns `None` for a value that this API never sends.
    pub(crate) fn of(value: &HeaderValue) -> Option<Tag> {
        value.to_str().ok()?.parse().ok()
    }
}
