//! Preconditions: `If-Match`, `If-None-Match` and `ETag` (RFC 9110, sections 8.8.3 and 13).
//!
//! A schedule's tag identifies its version. The tag changes with each replacement and with the cancellation. The tag
//! stays the same when a recurring schedule advances. A cancelled schedule also has a tag, which a caller can read.
//! However, `*` does not match a cancelled schedule, because a client can create another schedule with the same id.
//!
//! Invariants: the server rejects a request whose precondition it cannot read. Otherwise the request would run without
//! its precondition. A tag that this API never issued matches no schedule.
//!
//! docs/decisions/0065-make-changes-conditional-on-the-version-read.md gives the reasons for the design.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use domain::{Schedule, ScheduleVersion, Status};

use crate::rejection::{Code, Rejected, reject, reject_fields};

/// Regular expression for the accepted values of `If-Match` and `If-None-Match`: `*`, or a list of tags. The list may
/// contain empty members (RFC 9110, section 5.6.1.2).
pub(crate) const PATTERN: &str =
    concat!(r#"^(\*|[ \t,]*"#, r#"((W/)?"[!#-~\x80-\xff]*"([ \t]*,[ \t,]*(W/)?"[!#-~\x80-\xff]*")*[ \t,]*)?)$"#);

/// Precondition of a request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Condition {
    /// Tags in the header `If-Match`. The schedule must match one of them.
    matching: Option<Tags>,
    /// Tags in the header `If-None-Match`. The schedule must match none of them.
    none_matching: Option<Tags>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tags {
    Any,
    These(Vec<ScheduleVersion>),
}

/// Header whose precondition the schedule does not meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unmet {
    Match,
    NoneMatch,
}

impl<S: Sync> FromRequestParts<S> for Condition {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        Condition::read(&parts.headers)
    }
}

impl Condition {
    fn read(headers: &HeaderMap) -> Result<Self, Rejected> {
        let matching = read_tags(headers, &IF_MATCH, |tag| !tag.is_weak)?;
        let none_matching = read_tags(headers, &IF_NONE_MATCH, |_| true)?;
        Ok(Condition { matching, none_matching })
    }

    pub(crate) fn is_none(&self) -> bool {
        self.matching.is_none() && self.none_matching.is_none()
    }

    /// Checks the precondition against `found`, the schedule that currently has the id in the request's path.
    pub(crate) fn check(&self, found: Option<&Schedule>) -> Result<(), Unmet> {
        if self.matching.as_ref().is_some_and(|tags| !tags.matches(found)) {
            return Err(Unmet::Match);
        }
        if self.none_matching.as_ref().is_some_and(|tags| tags.matches(found)) {
            return Err(Unmet::NoneMatch);
        }
        Ok(())
    }
}

impl Unmet {
    pub(crate) fn reject(self) -> Rejected {
        let detail = match self {
            Unmet::Match => "the schedule does not match If-Match; read it again and decide again",
            Unmet::NoneMatch => "a schedule that matches If-None-Match exists",
        };
        reject(Code::PreconditionFailed, detail)
    }
}

impl Tags {
    fn matches(&self, found: Option<&Schedule>) -> bool {
        match self {
            Tags::Any => found.is_some_and(|found| found.status != Status::Cancelled),
            Tags::These(editions) => found.is_some_and(|found| editions.contains(&found.edition())),
        }
    }
}

pub(crate) fn etag(edition: ScheduleVersion) -> HeaderValue {
    HeaderValue::try_from(format!("\"{}\"", edition.name())).expect("digits and `-` are valid in a header")
}

pub(crate) fn with_etag<B>(mut response: axum::http::Response<B>, edition: ScheduleVersion) -> axum::http::Response<B> {
    response.headers_mut().insert(ETAG, etag(edition));
    response
}

struct Tag<'a> {
    is_weak: bool,
    opaque: &'a [u8],
}

/// Reads the tags of all headers with the name `name`. These headers together form one list.
fn read_tags(
    headers: &HeaderMap,
    name: &HeaderName,
    may_match: impl Fn(&Tag<'_>) -> bool,
) -> Result<Option<Tags>, Rejected> {
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
        editions.extend(matching.filter_map(|tag| ScheduleVersion::parse(std::str::from_utf8(tag.opaque).ok()?)));
    }
    Ok(Some(Tags::These(editions)))
}

/// Splits a list of tags. The list may contain empty members. Returns `None` for an invalid list.
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

fn malformed(name: &HeaderName) -> Rejected {
    let parameter = if *name == IF_MATCH { "If-Match" } else { "If-None-Match" };
    let error = FieldError {
        parameter: Some(Cow::Borrowed(parameter)),
        code: "invalid_etag".into(),
        detail: "neither `*` nor a list of quoted tags".to_owned(),
        hint: Some("send the ETag of an earlier response unchanged, including its quotes".to_owned()),
        ..FieldError::default()
    };
    reject_fields(Code::InvalidParameter, "the precondition is invalid; see the field `errors`", vec![error])
}
