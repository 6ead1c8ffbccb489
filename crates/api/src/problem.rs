//! Problem details (RFC 9457) of rejected requests.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Media type of a [`Problem`].
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Problem details (RFC 9457) of a rejected request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Problem {
    /// Type of the problem: `urn:reveille:problem:` followed by the problem code.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Short explanation of the code for people. It is the same for every problem with this code.
    pub title: Cow<'static, str>,
    /// HTTP status of the response, or the status of one line of a batch.
    pub status: u16,
    /// Stable problem code that programs can compare. docs/http-api.md lists the codes.
    pub code: Cow<'static, str>,
    /// Explanation for people: the fault of this request, and the next step.
    pub detail: String,
    /// Id of this request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Name of the quota, if a quota caused the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Cow<'static, str>>,
    /// All invalid fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// Fault of one part of the request. Exactly one of `pointer`, `parameter` and `header` is present.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct FieldError {
    /// JSON Pointer (RFC 6901) into the body; the empty pointer means the whole body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Name of a path or query parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<Cow<'static, str>>,
    /// Name of a request header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<Cow<'static, str>>,
    /// Stable code of the fault that programs can compare. docs/http-api.md lists the codes.
    pub code: Cow<'static, str>,
    /// Explanation of the fault for people.
    pub detail: String,
    /// Advice on a correct value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
