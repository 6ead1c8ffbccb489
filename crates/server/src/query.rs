//! Parameters of queries. A parameter that is not known is refused, since its sender means something by it.

use api::FieldError;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::refusal::{Code, Refused, refuse_fields};

pub(crate) const PAGE_LIMIT_DEFAULT: usize = 100;
pub(crate) const PAGE_LIMIT_MAX: usize = 1_000;

/// Checks the query of a route that takes no parameters.
pub(crate) fn check_empty(query: Option<&str>) -> Result<(), Refused> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(()) };
    let name: String = query.split(['=', '&']).next().unwrap_or_default().chars().take(64).collect();
    let error = bad("query", "unknown_parameter", format!("{name:?} is no parameter here; there are none"));
    Err(refuse_fields(Code::InvalidParameter, "the query cannot be used; see errors", vec![error]))
}

/// Whether the request only asks what it would do.
pub(crate) struct DryRun(pub(crate) bool);

impl<S: Sync> FromRequestParts<S> for DryRun {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        is_dry_run(parts.uri.query()).map(DryRun)
    }
}

/// Whether the query asks for it. There is no other parameter, and one that is misspelt must not be passed over.
fn is_dry_run(query: Option<&str>) -> Result<bool, Refused> {
    let mut is_asked = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (code, detail) = match (pair, is_asked) {
            ("dry_run=true", None) => {
                is_asked = Some(true);
                continue;
            }
            ("dry_run=false", None) => {
                is_asked = Some(false);
                continue;
            }
            ("dry_run=true" | "dry_run=false", Some(_)) => ("duplicate_field", "it is there more than once".to_owned()),
            (pair, _) if pair.starts_with("dry_run=") || pair == "dry_run" => {
                ("wrong_type", "it is `true` or `false`".to_owned())
            }
            (pair, _) => {
                let name: String = pair.split('=').next().unwrap_or_default().chars().take(64).collect();
                ("unknown_parameter", format!("{name:?} is no parameter here; dry_run is"))
            }
        };
        let parameter = if code == "unknown_parameter" { "query" } else { "dry_run" };
        let error =
            FieldError { parameter: Some(parameter.into()), code: code.into(), detail, ..FieldError::default() };
        return Err(refuse_fields(Code::InvalidParameter, "the query cannot be used; see errors", vec![error]));
    }
    Ok(is_asked.unwrap_or(false))
}

/// What a query asks for.
pub(crate) struct Page<T> {
    pub(crate) limit: usize,
    pub(crate) after: Option<T>,
}

impl<T> Page<T> {
    /// `is_dead_letters`: the query must, or must not, have `dead_letter=true`. `token` reads the token of a page.
    pub(crate) fn parse(
        query: Option<&str>,
        is_dead_letters: bool,
        token: impl Fn(&str) -> Option<T>,
    ) -> Result<Self, Refused> {
        let mut page = Page { limit: PAGE_LIMIT_DEFAULT, after: None };
        let mut errors = Vec::new();
        let mut asks_dead_letters = false;
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("limit", text) => match text.parse() {
                    Ok(limit @ 1..=PAGE_LIMIT_MAX) => page.limit = limit,
                    _ => {
                        errors.push(bad("limit", "out_of_range", format!("it is a number from 1 to {PAGE_LIMIT_MAX}")))
                    }
                },
                ("page_token", text) => match token(text) {
                    Some(after) => page.after = Some(after),
                    None => errors.push(bad("page_token", "invalid_token", "it is not a next_page_token".to_owned())),
                },
                ("dead_letter", "true") if is_dead_letters => asks_dead_letters = true,
                ("dead_letter", _) if is_dead_letters => {}
                (name, _) => {
                    let name: String = name.chars().take(64).collect();
                    let detail = format!("{name:?} is no parameter here; limit and page_token are");
                    errors.push(bad("query", "unknown_parameter", detail));
                }
            }
        }
        if is_dead_letters && !asks_dead_letters {
            let detail = "only dead letters are listed over all schedules: send dead_letter=true";
            errors.push(bad("dead_letter", "missing_parameter", detail.to_owned()));
        }
        if errors.is_empty() {
            return Ok(page);
        }
        errors.truncate(32);
        Err(refuse_fields(Code::InvalidParameter, "the query cannot be used; see errors", errors))
    }
}

pub(crate) fn bad(parameter: &'static str, code: &'static str, detail: String) -> FieldError {
    FieldError { parameter: Some(parameter.into()), code: code.into(), detail, ..FieldError::default() }
}
