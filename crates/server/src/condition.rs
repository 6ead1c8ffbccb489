//! `If-Match`, `If-None-Match` and `ETag` (RFC 9110, sections 8.8.3 and 13).
//!
//! A schedule's tag names its edition: it is another after each replacement and after the cancellation, and the same while a
//! recurring schedule goes on. A cancelled schedule can be read and has a tag, but to `*` nothing is there: its id is free.
//!
//! Always true here: a header that cannot be read is refused, never passed over, as the request would be made without its
//! condition; a tag that this API never gave is one that does not match.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use domain::{Edition, Schedule, Status};

use crate::refusal::{Code, Refused, refuse, refuse_fields};

/// What is read: `*`, or a list, whose members may be missing (RFC 9110, section 5.6.1.2).
pub(crate) const PATTERN: &str =
    concat!(r#"^(\*|[ \t,]*"#, r#"((W/)?"[!#-~\x80-\xff]*"([ \t]*,[ \t,]*(W/)?"[!#-~\x80-\xff]*")*[ \t,]*)?)$"#);

/// What a request wants to find.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Condition {
    /// One of these is there.
    matching: Option<Tags>,
    /// None of these is there.
    none_matching: Option<Tags>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tags {
    Any,
    These(Vec<Edition>),
}

/// The header whose condition does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unmet {
    Match,
    NoneMatch,
}

impl<S: Sync> FromRequestParts<S> for Condition {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        Condition::read(&parts.headers)
    }
}

impl Condition {
    fn read(headers: &HeaderMap) -> Result<Self, Refused> {
        let matching = read_tags(headers, &IF_MATCH, |tag| !tag.is_weak)?;
        let none_matching = read_tags(headers, &IF_NONE_MATCH, |_| true)?;
        Ok(Condition { matching, none_matching })
    }

    pub(crate) fn is_none(&self) -> bool {
        self.matching.is_none() && self.none_matching.is_none()
    }

    /// `found`: what has the id now.
    pub(crate) fn check(&self, found: Option<&Schedule>) -> Result<(), Unmet> {
        if self.matching.as_ref().is_some_and(|tags| !tags.have(found)) {
            return Err(Unmet::Match);
        }
        if self.none_matching.as_ref().is_some_and(|tags| tags.have(found)) {
            return Err(Unmet::NoneMatch);
        }
        Ok(())
    }
}

impl Unmet {
    pub(crate) fn refuse(self) -> Refused {
        let detail = match self {
            Unmet::Match => "the schedule is not, or no longer, what If-Match names: read it again and decide anew",
            Unmet::NoneMatch => "what If-None-Match names is there",
        };
        refuse(Code::PreconditionFailed, detail)
    }
}

impl Tags {
    fn have(&self, found: Option<&Schedule>) -> bool {
        match self {
            Tags::Any => found.is_some_and(|found| found.status != Status::Cancelled),
            Tags::These(editions) => found.is_some_and(|found| editions.contains(&found.edition())),
        }
    }
}

pub(crate) fn etag(edition: Edition) -> HeaderValue {
    HeaderValue::try_from(format!("\"{}\"", edition.name())).expect("digits and `-` may be in a header")
}

pub(crate) fn with_etag<B>(mut response: axum::http::Response<B>, edition: Edition) -> axum::http::Response<B> {
    response.headers_mut().insert(ETAG, etag(edition));
    response
}

struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

/// Several headers of one name are one list.
fn read_tags(
    headers: &HeaderMap,
    name: &HeaderName,
    may_match: impl Fn(&Tag<'_>) -> bool,
) -> Result<Option<Tags>, Refused> {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    if values.is_empty() {
        return Ok(None);
    }
    if values.iter().all(|value| value.trim_ascii() == b"*") {
        return Ok(Some(Tags::Any));
    }
    let mut editions = Vec::new();
    for value in values {
        let tags = split(value).ok_or_else(|| malformed(name))?;
        let matching = tags.iter().filter(|tag| may_match(tag));
        editions.extend(matching.filter_map(|tag| Edition::parse(std::str::from_utf8(tag.opaque).ok()?)));
    }
    Ok(Some(Tags::These(editions)))
}

/// The tags of a list, whose members may be missing; `None` if it is not one.
fn split(mut rest: &[u8]) -> Option<Vec<Tag<'_>>> {
    let mut tags = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        match rest {
            [] => return Some(tags),
            [b',', after @ ..] => {
                rest = after;
                continue;
            }
            _ => {}
        }
        let (is_weak, quoted) = rest.strip_prefix(b"W/").map_or((false, rest), |quoted| (true, quoted));
        let quoted = quoted.strip_prefix(b"\"")?;
        let end = quoted.iter().position(|byte| *byte == b'"')?;
        let (opaque, after) = (&quoted[..end], quoted[end + 1..].trim_ascii_start());
        if !opaque.iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..)) {
            return None;
        }
        tags.push(Tag { is_weak, opaque });
        rest = match after {
            [] => after,
            [b',', after @ ..] => after,
            _ => return None,
        };
    }
}

fn malformed(name: &HeaderName) -> Refused {
    let parameter = if *name == IF_MATCH { "If-Match" } else { "If-None-Match" };
    let error = FieldError {
        parameter: Some(Cow::Borrowed(parameter)),
        code: "invalid_etag".into(),
        detail: "it is neither `*` nor a list of tags in quotes".to_owned(),
        hint: Some("send the ETag of an earlier answer as it was, quotes included".to_owned()),
        ..FieldError::default()
    };
    refuse_fields(Code::InvalidParameter, "the request's condition cannot be read; see errors", vec![error])
}
