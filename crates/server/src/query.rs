//! Query parameters. The server rejects an unknown parameter, because the sender of the parameter expects an effect.

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use domain::Timestamp;
use percent_encoding::percent_decode_str;

use crate::rejection::{Code, Rejected, reject_fields};

pub(crate) const PAGE_LIMIT_DEFAULT: usize = 100;
pub(crate) const PAGE_LIMIT_MAX: usize = 1_000;

/// Rejects every parameter in the query of a route that takes no parameters.
pub(crate) fn check_empty(query: Option<&str>) -> Result<(), Rejected> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(()) };
    let error = unknown_parameter(query.split(['=', '&']).next().unwrap_or_default(), "this route has no parameters");
    Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", vec![error]))
}

/// Value of the parameter `dry_run`.
pub(crate) struct DryRun(pub(crate) bool);

impl<S: Sync> FromRequestParts<S> for DryRun {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejected> {
        is_dry_run(parts.uri.query()).map(DryRun)
    }
}

/// Parses a query with `dry_run` as its only parameter. Rejects a misspelt parameter, because a server that ignores it
/// would write data.
fn is_dry_run(query: Option<&str>) -> Result<bool, Rejected> {
    let mut value = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let error = match (pair, value) {
            ("dry_run=true", None) => {
                value = Some(true);
                continue;
            }
            ("dry_run=false", None) => {
                value = Some(false);
                continue;
            }
            ("dry_run=true" | "dry_run=false", Some(_)) => {
                parameter_error("dry_run", "duplicate_field", "the parameter dry_run is repeated".to_owned())
            }
            (pair, _) if pair.starts_with("dry_run=") || pair == "dry_run" => {
                parameter_error("dry_run", "wrong_type", "the value must be `true` or `false`".to_owned())
            }
            (pair, _) => unknown_parameter(
                pair.split('=').next().unwrap_or_default(),
                "this route has only the parameter dry_run",
            ),
        };
        return Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", vec![error]));
    }
    Ok(value.unwrap_or(false))
}

/// Splits a query into its parameters, and decodes their values. Adds an error for each parameter that is not in
/// `names`, occurs more than once, or is not valid UTF-8.
pub(crate) fn decoded_parameters<'a>(
    query: &'a str,
    names: &[&'static str],
    errors: &mut Vec<FieldError>,
) -> BTreeMap<&'static str, Cow<'a, str>> {
    let mut parameters = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(known) = names.iter().find(|known| **known == name).copied() else {
            errors.push(unknown_parameter(name, &format!("the parameters of this route are {}", names.join(", "))));
            continue;
        };
        let Some(value) = decoded(value) else {
            errors.push(parameter_error(known, "wrong_type", "the decoded value is not valid UTF-8".to_owned()));
            continue;
        };
        if parameters.insert(known, value).is_some() {
            let detail = "the query contains the parameter more than once".to_owned();
            errors.push(parameter_error(known, "conflicting_parameters", detail));
        }
    }
    parameters
}

/// Decodes a value in the encoding of HTML forms, in which `+` means a space.
pub(crate) fn decoded(value: &str) -> Option<Cow<'_, str>> {
    if !value.contains(['%', '+']) {
        return Some(Cow::Borrowed(value));
    }
    let spaced = value.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(Cow::Owned(decoded.into_owned()))
}

/// Page that a query requests.
pub(crate) struct Page<T> {
    pub(crate) limit: usize,
    pub(crate) after: Option<T>,
}

impl<T> Page<T> {
    /// Parses a query. The query must contain `dead_letter=true` if `is_dead_letters` is true, and must not contain it
    /// otherwise. `token` parses a page token.
    pub(crate) fn parse(
        query: Option<&str>,
        is_dead_letters: bool,
        token: impl Fn(&str) -> Option<T>,
    ) -> Result<Self, Rejected> {
        let mut page = Page { limit: PAGE_LIMIT_DEFAULT, after: None };
        let mut errors = Vec::new();
        let mut has_dead_letter = false;
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("limit", text) => match text.parse() {
                    Ok(limit @ 1..=PAGE_LIMIT_MAX) => page.limit = limit,
                    _ => errors.push(parameter_error(
                        "limit",
                        "out_of_range",
                        format!("the value must be a whole number from 1 to {PAGE_LIMIT_MAX}"),
                    )),
                },
                ("page_token", text) => match token(text) {
                    Some(after) => page.after = Some(after),
                    None => errors.push(parameter_error(
                        "page_token",
                        "invalid_token",
                        "the value is not a page token; send the next_page_token of the previous page".to_owned(),
                    )),
                },
                ("dead_letter", "true") if is_dead_letters => has_dead_letter = true,
                ("dead_letter", _) if is_dead_letters => {}
                (name, _) => {
                    let known = match is_dead_letters {
                        true => "a listing with dead_letter has only the parameters limit and page_token",
                        false => "the parameters of this route are limit and page_token",
                    };
                    errors.push(unknown_parameter(name, known));
                }
            }
        }
        if is_dead_letters && !has_dead_letter {
            let detail = "the only value of this parameter is true; send dead_letter=true, or omit the parameter";
            errors.push(parameter_error("dead_letter", "missing_parameter", detail.to_owned()));
        }
        if errors.is_empty() {
            return Ok(page);
        }
        errors.truncate(32);
        Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", errors))
    }
}

/// Detail of the error of a parameter that must be an instant.
pub(crate) const INVALID_INSTANT: &str = "the value must be an RFC 3339 instant with a UTC offset, from 1970 to 9999";

/// Parses an instant, and rounds it up to a whole millisecond. Every occurrence has a whole millisecond: a schedule
/// rounds its instants up, and a rounded range selects the same runs as the exact one.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let exact: jiff::Timestamp = text.parse().ok()?;
    let nanos = u128::try_from(exact.as_nanosecond()).ok()?;
    let instant = Timestamp::from_millis(i64::try_from(nanos.div_ceil(1_000_000)).ok()?);
    (instant <= Timestamp::MAX).then_some(instant)
}

pub(crate) fn parameter_error(parameter: &'static str, code: &'static str, detail: String) -> FieldError {
    FieldError { parameter: Some(parameter.into()), code: code.into(), detail, ..FieldError::default() }
}

/// Returns the error for a parameter that the route does not have. `known` names the parameters of the route.
pub(crate) fn unknown_parameter(name: &str, known: &str) -> FieldError {
    let name: String = name.chars().take(64).collect();
    let detail = format!("unknown parameter {name:?}; {known}");
    FieldError { parameter: Some(name.into()), code: "unknown_parameter".into(), detail, ..FieldError::default() }
}
