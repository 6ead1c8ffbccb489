//! `GET /v1/report`: numbers of a tenant's final runs by state, hour, host or label, as JSON or as CSV.
//!
//! The route reads the counts that the store keeps, and no runs.

use api::{FieldError, Percentiles, ReportGroup, ReportStates};
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use domain::{Group, Histogram, Hour, RunStateKind, Tenant, Timestamp};
use store::report::{HOURS_MAX, Report, ReportBy, ReportRead, ReportRow, RowKey};

use super::run_listing::STATES;
use crate::auth::Caller;
use crate::query::{decoded_parameters, instant, parameter_error};
use crate::rejection::{Code, HandlerResult, Rejected, reject_fields};
use crate::state::App;
use crate::wire::{self, time};

pub(crate) const CSV: &str = "text/csv";
const NAMES: [&str; 4] = ["from", "to", "by", "state"];

pub(super) async fn report(
    State(app): App,
    Caller { tenant, .. }: Caller,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> HandlerResult {
    let now = app.runtime.now();
    let read = parse(query.as_deref().unwrap_or_default(), &tenant, now)?;
    let mut report = app.scheduler.report(&read).await?;
    // The store may have deleted the counts of earlier hours.
    let kept_from = Hour::from_start(now - tenant.retention(app.options.history));
    if kept_from > read.from {
        report.counted_from = report.counted_from.max(Some(kept_from));
    }
    let report = wire_report(&read, &report);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut response = if prefers_csv(accepted) { csv_response(&report) } else { wire::json(StatusCode::OK, &report) };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// Returns true if the first media type of the headers `Accept` that the route supports is CSV. The route ignores
/// weights, except 0, which excludes a media type.
fn prefers_csv<'a>(accepted: impl Iterator<Item = &'a str>) -> bool {
    for media in accepted.flat_map(|value| value.split(',')) {
        let mut parts = media.split(';').map(|part| part.trim().to_ascii_lowercase());
        let name = parts.next().unwrap_or_default();
        let weight = |part: String| part.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        if parts.filter_map(weight).any(|weight| weight <= 0.0) {
            continue;
        }
        match name.as_str() {
            CSV => return true,
            "application/json" | "application/*" | "*/*" => return false,
            _ => {}
        }
    }
    false
}

fn parse(query: &str, tenant: &Tenant, now: Timestamp) -> Result<ReportRead, Rejected> {
    let mut errors: Vec<FieldError> = Vec::new();
    let values = decoded_parameters(query, &NAMES, &mut errors);
    let mut reject = |name, code, detail: String| errors.push(parameter_error(name, code, detail));
    let mut time_of = |name: &'static str| {
        let text = values.get(name)?;
        let parsed = instant(text);
        if parsed.is_none() {
            let detail = "the value must be an RFC 3339 instant with a UTC offset, and not before 1970";
            reject(name, "invalid_time", detail.to_owned());
        }
        Some(parsed)
    };
    let (from, to) = (time_of("from"), time_of("to"));
    if from.is_none() {
        let detail = "the parameter is required; send the start of the range of due instants";
        reject("from", "missing_parameter", detail.to_owned());
    }
    let by = match values.get("by").map(|text| &**text) {
        None | Some("state") => ReportBy::State,
        Some("hour") => ReportBy::Hour,
        Some("host") => ReportBy::Host,
        Some("label") => ReportBy::Label,
        Some(_) => {
            let detail = "the value must be `state`, `hour`, `host` or `label`";
            reject("by", "out_of_range", detail.to_owned());
            ReportBy::State
        }
    };
    let state = values.get("state").map(|text| {
        let known = STATES.iter().find(|(name, kind)| **name == **text && *kind != RunStateKind::Retrying);
        known.map(|(_, state)| *state)
    });
    if state == Some(None) {
        let detail = "the value must be `succeeded`, `failed`, `missed` or `cancelled`; a report counts only runs that \
                      have ended";
        reject("state", "out_of_range", detail.to_owned());
    }
    let (from, to) = (from.flatten().unwrap_or(now), to.map_or(now, |to| to.unwrap_or(from.flatten().unwrap_or(now))));
    let (from_hour, until) = (Hour::of(from), Hour::from_start(to));
    if errors.is_empty() && from > to {
        let detail = "to must be at or after from; exchange the two instants";
        errors.push(parameter_error("to", "out_of_range", detail.to_owned()));
    } else if errors.is_empty() && until.0 - from_hour.0 > HOURS_MAX + 1 {
        let detail = format!("a report covers at most {} days; send a later from or an earlier to", HOURS_MAX / 24);
        errors.push(parameter_error("from", "out_of_range", detail));
    }
    if errors.is_empty() {
        return Ok(ReportRead { tenant: tenant.id, by, from: from_hour, until, state: state.flatten() });
    }
    errors.truncate(32);
    Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", errors))
}

fn wire_report(read: &ReportRead, report: &Report) -> api::Report {
    let mut rows: Vec<(&RowKey, &ReportRow)> = report.rows.iter().collect();
    let by = match read.by {
        ReportBy::State => api::ReportBy::State,
        ReportBy::Hour => api::ReportBy::Hour,
        ReportBy::Host => api::ReportBy::Host,
        ReportBy::Label => api::ReportBy::Label,
    };
    if matches!(read.by, ReportBy::Host | ReportBy::Label) {
        // The sort is stable, so rows with the same number stay in the order of their keys.
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.runs()));
    }
    api::Report {
        from: time(read.from.start()),
        to: time(read.until.start()),
        by,
        counted_from: report.counted_from.map(|hour| time(hour.start())),
        rows: rows.into_iter().map(|(key, row)| wire_row(key, row)).collect(),
    }
}

fn wire_row(key: &RowKey, row: &ReportRow) -> api::ReportRow {
    let some_name = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
    let (group, name, value) = match key {
        RowKey::State(state) => (ReportGroup::Value, None, name_of(*state).map(str::to_owned)),
        RowKey::Hour(hour) => (ReportGroup::Value, None, Some(time(hour.start()).to_string())),
        RowKey::Group(Group::None) => (ReportGroup::None, None, None),
        RowKey::Group(Group::Value { name, value }) => (ReportGroup::Value, some_name(name), Some(value.clone())),
        RowKey::Group(Group::OtherValue { name }) => (ReportGroup::Other, some_name(name), None),
        RowKey::Group(Group::OtherName) => (ReportGroup::Other, None, None),
    };
    let of = |state| row.states.get(&state).copied().unwrap_or(0);
    let states = ReportStates {
        succeeded: of(RunStateKind::Succeeded),
        failed: of(RunStateKind::Failed),
        missed: of(RunStateKind::Missed),
        cancelled: of(RunStateKind::Cancelled),
    };
    let (lateness_ms, duration_ms) = (percentiles(&row.lateness), percentiles(&row.duration));
    api::ReportRow { group, name, value, runs: row.runs(), states, lateness_ms, duration_ms }
}

fn name_of(state: RunStateKind) -> Option<&'static str> {
    STATES.iter().find(|(_, kind)| *kind == state).map(|(name, _)| *name)
}

fn percentiles(histogram: &Histogram) -> Option<Percentiles> {
    let percentile = |percent| histogram.percentile(percent).unwrap_or(0);
    let (p50, p90, p99) = (percentile(50), percentile(90), percentile(99));
    Some(Percentiles { count: histogram.count(), p50, p90, p99, max: histogram.max()? })
}

/// Columns of the CSV form.
const COLUMNS: [&str; 18] = [
    "group",
    "name",
    "value",
    "runs",
    "succeeded",
    "failed",
    "missed",
    "cancelled",
    "lateness_count",
    "lateness_p50_ms",
    "lateness_p90_ms",
    "lateness_p99_ms",
    "lateness_max_ms",
    "duration_count",
    "duration_p50_ms",
    "duration_p90_ms",
    "duration_p99_ms",
    "duration_max_ms",
];

fn csv_response(report: &api::Report) -> Response<Body> {
    let mut response = Response::new(Body::from(csv(report)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8; header=present"));
    if let Some(counted_from) = report.counted_from
        && let Ok(value) = HeaderValue::from_str(&counted_from.to_string())
    {
        response.headers_mut().insert(COUNTED_FROM, value);
    }
    response
}

/// Header of the CSV form with the instant from which the counts are complete. The JSON form has a field for it.
pub(crate) const COUNTED_FROM: &str = "reveille-counted-from";

/// Returns the report as CSV (RFC 4180), with the names of the columns in the first line.
fn csv(report: &api::Report) -> String {
    let mut text = format!("{}\r\n", COLUMNS.join(","));
    for row in &report.rows {
        let ReportStates { succeeded, failed, missed, cancelled, .. } = row.states;
        let group = match row.group {
            ReportGroup::None => "none",
            ReportGroup::Other => "other",
            _ => "value",
        };
        let mut cells = vec![group.to_owned()];
        cells.extend([&row.name, &row.value].map(|text| text.as_deref().map(cell).unwrap_or_default()));
        cells.extend([row.runs, succeeded, failed, missed, cancelled].map(|number| number.to_string()));
        for percentiles in [row.lateness_ms, row.duration_ms] {
            let numbers = percentiles.map(|it| [it.count, it.p50, it.p90, it.p99, it.max]);
            cells.extend(numbers.map_or_else(Default::default, |numbers| numbers.map(|number| number.to_string())));
        }
        text.push_str(&cells.join(","));
        text.push_str("\r\n");
    }
    text
}

/// Returns a text as a cell. A spreadsheet evaluates a cell that starts with certain characters, and users choose
/// labels and hosts. An apostrophe before such a character makes the cell a text. A spreadsheet that separates cells
/// by semicolons starts a cell after each semicolon. Control characters become U+FFFD, because programs disagree about
/// line ends in cells.
fn cell(text: &str) -> String {
    let is_evaluated =
        |part: &str| part.trim_start().starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']);
    let marked: Vec<String> =
        text.split(';').map(|part| format!("{}{part}", if is_evaluated(part) { "'" } else { "" })).collect();
    let safe: String = marked.join(";").chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    format!("\"{}\"", safe.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_cell_is_no_formula_and_no_second_line() {
        assert_eq!(cell("blue"), "\"blue\"");
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(cell("=HYPERLINK(1)"), "\"'=HYPERLINK(1)\"");
        assert_eq!(cell(" +1"), "\"' +1\"");
        assert_eq!(cell("-1"), "\"'-1\"");
        assert_eq!(cell("@a"), "\"'@a\"");
        assert_eq!(cell("\t=1"), "\"'\u{fffd}=1\"");
        assert_eq!(cell("a\r\nb\u{1b}"), "\"a\u{fffd}\u{fffd}b\u{fffd}\"");
        assert_eq!(cell("a=1"), "\"a=1\"");
        assert_eq!(cell("a;=1;b"), "\"a;'=1;b\"");
        assert_eq!(cell("=1; +2"), "\"'=1;' +2\"");
    }

    #[test]
    fn csv_is_the_first_supported_media_type() {
        let prefers = |accepted: &str| prefers_csv([accepted].into_iter());
        let with_parameter = "text/csv; header=present, */*";
        for accepted in ["text/csv", "text/html, TEXT/CSV;q=0.5", with_parameter, "text/csv, application/json"] {
            assert!(prefers(accepted), "{accepted}");
        }
        let excluded = ["text/csv;q=0", "text/csv; q=0.0, */*"];
        for accepted in ["", "*/*", "application/json, text/csv", "*/*, text/csv", "text/csvx"].iter().chain(&excluded)
        {
            assert!(!prefers(accepted), "{accepted}");
        }
    }

    #[test]
    fn csv_has_one_line_for_each_row() {
        let mut row = ReportRow::default();
        row.states.insert(RunStateKind::Failed, 2);
        row.lateness.record(3);
        let group = Group::Value { name: "team".to_owned(), value: "=1".to_owned() };
        let rows = [(RowKey::Group(group), row), (RowKey::Group(Group::OtherName), ReportRow::default())];
        let report = Report { rows: rows.into(), counted_from: None };
        let (from, until) = (Hour(0), Hour(1));
        let read = ReportRead { tenant: domain::TenantId(1), by: ReportBy::Label, from, until, state: None };
        let text = csv(&wire_report(&read, &report));
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0].split(',').count(), COLUMNS.len());
        assert_eq!(lines[1..], ["value,\"team\",\"'=1\",2,0,2,0,0,1,3,3,3,3,,,,,", "other,,,0,0,0,0,0,,,,,,,,,,", ""]);
    }
}
