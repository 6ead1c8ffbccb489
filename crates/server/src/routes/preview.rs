//! `POST /v1/schedules/preview`: the next occurrences of a schedule that the request describes.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use domain::preview::COUNT_MAX;

use crate::auth::Caller;
use crate::body::read_schedule;
use crate::extract::{BodyBytes, MediaType};
use crate::preview::{self, COUNT_DEFAULT, PreviewRange};
use crate::query::{INVALID_INSTANT, decoded_parameters, instant, parameter_error};
use crate::quota::check_spec;
use crate::rejection::{Code, HandlerResult, Rejected, reject_fields};
use crate::state::App;
use crate::wire;

pub(super) async fn preview(
    State(app): App,
    Caller { tenant, .. }: Caller,
    _: MediaType,
    RawQuery(query): RawQuery,
    BodyBytes(bytes): BodyBytes,
) -> HandlerResult {
    let range = parse_range(query.as_deref().unwrap_or_default())?;
    app.count_create(&tenant)?;
    let now = app.runtime.now();
    let spec = read_schedule(&bytes, None, &app.options.limits, &tenant.egress, now)?.spec;
    check_spec(&tenant, &spec, now)?;
    Ok(wire::json(StatusCode::OK, &preview::of(&spec, range, now)))
}

fn parse_range(query: &str) -> Result<PreviewRange, Rejected> {
    let mut errors = Vec::new();
    let values = decoded_parameters(query, &["count", "from"], &mut errors);
    let mut range = PreviewRange { from: None, count: COUNT_DEFAULT };
    if let Some(text) = values.get("count") {
        match text.parse() {
            Ok(count @ 1..=COUNT_MAX) => range.count = count,
            _ => {
                let detail = format!("the value must be a whole number from 1 to {COUNT_MAX}");
                errors.push(parameter_error("count", "out_of_range", detail));
            }
        }
    }
    if let Some(text) = values.get("from") {
        range.from = instant(text);
        if range.from.is_none() {
            errors.push(parameter_error("from", "invalid_time", INVALID_INSTANT.to_owned()));
        }
    }
    match errors.is_empty() {
        true => Ok(range),
        false => Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", errors)),
    }
}
