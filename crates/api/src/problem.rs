//! Refusals, as problem details (RFC 9457).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// `urn:reveille:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    pub title: Cow<'static, str>,
    pub status: u16,
    /// What to branch on; it never changes its meaning. docs/http-api.md lists them.
    pub code: Cow<'static, str>,
    /// For a person: what is wrong with this request, and what to do.
    pub detail: String,
    /// Names this request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The quota that this is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Cow<'static, str>>,
    /// Every offending field at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One thing wrong with one part of the request. Exactly one of `pointer`, `parameter` and `header` is there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldError {
    /// A JSON Pointer (RFC 6901) into the body; empty for the body as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// A parameter of the path or query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<Cow<'static, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<Cow<'static, str>>,
    pub code: Cow<'static, str>,
    pub detail: String,
    /// What to send instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
