//! `GET /v1/runs`: pages of a tenant's runs by time, with filters. With `dead_letter=true`, the route lists the dead
//! letters instead.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use api::{FieldError, RunPage};
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use domain::target::canonical_host;
use domain::{Incarnation, Occurrence, Revision, RunFilter, RunStateKind, ScheduleId, Timestamp, duration};
use store::Order;
use store::runs::RunListing;

use super::listing::array;
use super::runs::{dead_letters, fitting};
use crate::auth::Caller;
use crate::extract::schedule_not_found;
use crate::query::{INVALID_INSTANT, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, decoded_parameters, instant, parameter_error};
use crate::rejection::{Code, HandlerResult, Rejected, reject_fields, to_json};
use crate::state::AppState;
use crate::wire;

/// Maximum length of a host name in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
const NAMES: [&str; 11] =
    ["state", "schedule", "label", "host", "status", "late_by", "from", "until", "order", "limit", "page_token"];

pub(super) async fn list(app: State<Arc<AppState>>, caller: Caller, RawQuery(query): RawQuery) -> HandlerResult {
    let text = query.as_deref().unwrap_or_default();
    let is_dead_letters = text.split('&').any(|pair| pair.split('=').next() == Some("dead_letter"));
    if is_dead_letters {
        return dead_letters(app, caller, RawQuery(query)).await;
    }
    let (State(app), Caller { tenant, .. }) = (app, caller);
    let query = RunQuery::parse(text)?;
    let schedule = match &query.schedule {
        Some(id) => {
            let found = app.scheduler.get(tenant.id, id.clone()).await?.ok_or_else(schedule_not_found)?;
            Some(found.incarnation)
        }
        None => None,
    };
    let RunQuery { filter, from, until, order, after, limit, .. } = query;
    let label = query.label.as_ref().map(|(name, value)| (name.as_str(), value.as_str()));
    let host = query.host.as_deref();
    let listing = RunListing { tenant: tenant.id, schedule, label, host, filter, from, until, order, after, limit };
    let mut page = app.scheduler.list_runs(&listing).await?;
    let fitting = fitting(page.runs.iter().map(|(run, _)| run));
    if fitting < page.runs.len() {
        page.runs.truncate(fitting);
        page.next = page.runs.last().map(|(run, _)| run.occurrence);
    }
    let next_page_token = page.next.map(|next| query.token(&next));
    let runs = wire::runs(page.runs.iter().map(|(run, id)| (run, id.as_ref())), &app.options.keyring);
    let unreadable = u64::try_from(page.unreadable).unwrap_or(u64::MAX);
    Ok(wire::json(StatusCode::OK, &RunPage { runs, next_page_token, unreadable }))
}

struct RunQuery {
    schedule: Option<ScheduleId>,
    label: Option<(String, String)>,
    host: Option<String>,
    filter: RunFilter,
    from: Timestamp,
    until: Timestamp,
    order: Order,
    after: Option<Occurrence>,
    limit: usize,
}

impl RunQuery {
    fn parse(query: &str) -> Result<Self, Rejected> {
        let mut parser = Parser { values: BTreeMap::new(), errors: Vec::new() };
        parser.values = decoded_parameters(query, &NAMES, &mut parser.errors);
        let token = parser.values.get("page_token").and_then(|text| Token::parse(text));
        let (from, until) = parser.range(token.as_ref());
        let mut parsed = RunQuery {
            schedule: parser.schedule(),
            label: parser.label(),
            host: parser.host(),
            filter: RunFilter { state: parser.state(), status: parser.status(), late_by: parser.late_by() },
            from,
            until,
            order: parser.order(),
            after: None,
            limit: parser.limit(),
        };
        if parser.values.contains_key("page_token") {
            let is_of_listing =
                |token: &Token| (token.from, token.until, token.filter) == (from, until, parsed.fingerprint());
            parsed.after = token.filter(is_of_listing).map(|token| token.after);
            if parsed.after.is_none() {
                let detail = "the value is not a next_page_token of a listing with the same filter, range and order; \
                              send the parameters of the request that returned the token (`from` and `until` may be \
                              absent), or omit page_token";
                parser.reject("page_token", "invalid_token", detail.to_owned());
            }
        }
        if parser.errors.is_empty() {
            return Ok(parsed);
        }
        parser.errors.truncate(32);
        Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", parser.errors))
    }

    /// Returns a hash of the filter and the order. The hash depends only on the values of the parameters, so that
    /// servers of different builds accept each other's tokens.
    fn fingerprint(&self) -> u32 {
        let RunQuery { schedule, label, host, filter, from: _, until: _, order, after: _, limit: _ } = self;
        let RunFilter { state, status, late_by } = filter;
        let order = match order {
            Order::Oldest => "oldest",
            Order::Newest => "newest",
        };
        let values = [
            schedule.as_ref().map(|id| id.as_str().to_owned()),
            label.as_ref().map(|(name, value)| format!("{name}={value}")),
            host.clone(),
            state.and_then(name_of).map(str::to_owned),
            status.map(|status| status.to_string()),
            late_by.map(|late_by| late_by.as_nanos().to_string()),
            Some(order.to_owned()),
        ];
        domain::id::fnv1a(&to_json(&values))
    }

    fn token(&self, after: &Occurrence) -> String {
        Token { filter: self.fingerprint(), from: self.from, until: self.until, after: *after }.encode()
    }
}

/// States of runs, by the names that the parameter `state` has.
pub(super) const STATES: [(&str, RunStateKind); 5] = [
    ("retrying", RunStateKind::Retrying),
    ("succeeded", RunStateKind::Succeeded),
    ("failed", RunStateKind::Failed),
    ("missed", RunStateKind::Missed),
    ("cancelled", RunStateKind::Cancelled),
];

fn name_of(state: RunStateKind) -> Option<&'static str> {
    STATES.into_iter().find(|(_, kind)| *kind == state).map(|(name, _)| name)
}

/// Page token. It contains the range, so a client can omit the range from a request with a token. It contains no
/// tenant, because the API key of a request determines the tenant.
struct Token {
    /// Hash of the filter and the order, for which alone the token is valid.
    filter: u32,
    from: Timestamp,
    until: Timestamp,
    after: Occurrence,
}

const TOKEN_VERSION: u8 = 1;

impl Token {
    fn encode(&self) -> String {
        let Token { filter, from, until, after } = self;
        let mut bytes = vec![TOKEN_VERSION];
        bytes.extend(filter.to_be_bytes());
        for instant in [*from, *until, after.nominal] {
            bytes.extend(instant.as_millis().to_be_bytes());
        }
        bytes.extend(after.incarnation.0.to_be_bytes());
        bytes.extend(after.revision.0.to_be_bytes());
        bytes.extend(after.replay.to_be_bytes());
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let mut bytes = bytes.as_slice();
        if array(&mut bytes)? != [TOKEN_VERSION] {
            return None;
        }
        let filter = u32::from_be_bytes(array(&mut bytes)?);
        let mut instant = || {
            let instant = Timestamp::from_millis(i64::from_be_bytes(array(&mut bytes)?));
            (Timestamp::MIN..=END).contains(&instant).then_some(instant)
        };
        let (from, until, nominal) = (instant()?, instant()?, instant()?);
        let after = Occurrence {
            nominal,
            incarnation: Incarnation(u128::from_be_bytes(array(&mut bytes)?)),
            revision: Revision(u32::from_be_bytes(array(&mut bytes)?)),
            replay: u16::from_be_bytes(array(&mut bytes)?),
        };
        (bytes.is_empty() && from <= until && nominal <= Timestamp::MAX).then_some(Token { filter, from, until, after })
    }
}

/// End of a range without an end.
const END: Timestamp = Timestamp::from_millis(Timestamp::MAX.as_millis() + 1);

/// Parser of the parameters. It collects the errors of all parameters.
struct Parser<'a> {
    values: BTreeMap<&'static str, Cow<'a, str>>,
    errors: Vec<FieldError>,
}

impl Parser<'_> {
    fn reject(&mut self, name: &'static str, code: &'static str, detail: String) {
        self.errors.push(parameter_error(name, code, detail));
    }

    /// Parses the parameter `name`. `parse` returns `None` if the value is invalid.
    fn parse<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
        code: &'static str,
        detail: &str,
    ) -> Option<T> {
        let parsed = parse(self.values.get(name)?);
        if parsed.is_none() {
            self.reject(name, code, detail.to_owned());
        }
        parsed
    }

    fn state(&mut self) -> Option<RunStateKind> {
        let state = |text: &str| STATES.into_iter().find(|(name, _)| *name == text).map(|(_, state)| state);
        let detail = "the value must be `retrying`, `succeeded`, `failed`, `missed` or `cancelled`";
        self.parse("state", state, "out_of_range", detail)
    }

    fn schedule(&mut self) -> Option<ScheduleId> {
        let detail = "the value must be the id of a schedule: 1 to 128 of the characters A-Z, a-z, 0-9, _ and -";
        self.parse("schedule", |text| ScheduleId::new(text).ok(), "invalid_id", detail)
    }

    fn label(&mut self) -> Option<(String, String)> {
        let label = |text: &str| {
            let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
            Some((name.to_owned(), value.to_owned()))
        };
        self.parse("label", label, "invalid_label", "the value must be a label's name, `=` and its value")
    }

    fn host(&mut self) -> Option<String> {
        let host = |text: &str| {
            let address = text.strip_prefix('[').map_or(Some(text), |text| text.strip_suffix(']'));
            let is_address = address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
            let is_of_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let is_host = is_address || !text.is_empty() && text.chars().all(is_of_host);
            (is_host && text.len() <= HOST_BYTES_MAX).then(|| canonical_host(text))
        };
        let detail = "the value must be a host name or an IP address of at most 253 bytes, without a scheme, a port and a \
                      path";
        self.parse("host", host, "invalid_host", detail)
    }

    fn status(&mut self) -> Option<u16> {
        let status = |text: &str| text.parse().ok().filter(|status| (100..=999).contains(status));
        self.parse("status", status, "out_of_range", "the value must be an HTTP status from 100 to 999")
    }

    fn late_by(&mut self) -> Option<Duration> {
        let detail = "the value must be a duration, for example `500ms`, `5s` or `1h30m`";
        self.parse("late_by", |text| duration::parse(text).ok(), "invalid_duration", detail)
    }

    /// Parses the range of nominal instants. An absent end of the range is that of the token, if there is a token.
    fn range(&mut self, token: Option<&Token>) -> (Timestamp, Timestamp) {
        let from = self.parse("from", instant, "invalid_time", INVALID_INSTANT);
        let until = self.parse("until", instant, "invalid_time", INVALID_INSTANT);
        if !["from", "schedule", "page_token"].iter().any(|name| self.values.contains_key(name)) {
            let detail = "a listing without `schedule` needs a range of time; send `from`, and `until` for the end of the \
                          range";
            self.reject("from", "missing_parameter", detail.to_owned());
        }
        if from > until && until.is_some() {
            let detail = "until must be at or after from; exchange the two instants";
            self.reject("until", "out_of_range", detail.to_owned());
        }
        let (first, end) = token.map_or((Timestamp::MIN, END), |token| (token.from, token.until));
        (from.unwrap_or(first), until.unwrap_or(end))
    }

    fn order(&mut self) -> Order {
        let order = |text: &str| match text {
            "oldest" => Some(Order::Oldest),
            "newest" => Some(Order::Newest),
            _ => None,
        };
        let order = self.parse("order", order, "out_of_range", "the value must be `oldest` or `newest`");
        order.unwrap_or(Order::Newest)
    }

    fn limit(&mut self) -> usize {
        let limit = |text: &str| text.parse().ok().filter(|limit| (1..=PAGE_LIMIT_MAX).contains(limit));
        let detail = format!("the value must be a whole number from 1 to {PAGE_LIMIT_MAX}");
        self.parse("limit", limit, "out_of_range", &detail).unwrap_or(PAGE_LIMIT_DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: &str = "from=2030-01-01T00:00:00Z";

    fn after(query: &str) -> Option<Occurrence> {
        RunQuery::parse(query).ok()?.after
    }

    #[test]
    fn range_is_rounded_up_to_whole_milliseconds() {
        let millis = |text: &str| instant(text).map(Timestamp::as_millis);
        assert_eq!(millis("1970-01-01T00:00:00.001Z"), Some(1));
        assert_eq!(millis("1970-01-01T00:00:00.0010001Z"), Some(2));
        assert_eq!(millis("1970-01-01T01:00:00.000000001+01:00"), Some(1));
        assert_eq!(millis("1969-12-31T23:59:59.9999Z"), None);
        assert_eq!(millis("9999-12-30T22:00:00Z"), Some(Timestamp::MAX.as_millis()));
        assert_eq!(millis("9999-12-30T22:00:00.0001Z"), None);
    }

    /// Tokens of an earlier build must stay valid during a rolling upgrade.
    #[test]
    fn page_token_has_the_form_of_earlier_builds() {
        let all = "schedule=a&label=b=c&host=d.example&status=503&late_by=1500ms&state=failed&order=oldest";
        let query = RunQuery::parse(&format!("{RANGE}&{all}")).ok().unwrap();
        let place = Occurrence {
            incarnation: Incarnation(2),
            nominal: Timestamp::from_millis(1_900_000_000_000),
            revision: Revision(3),
            replay: 4,
        };
        let token = query.token(&place);
        assert_eq!(token, "Ad1orgwAAAG42sW0AAAA5nfMi6MBAAABumDTOAAAAAAAAAAAAAAAAAAAAAACAAAAAwAE");
        let same = "order=oldest&late_by=1s500ms&state=failed&status=503&host=D.example.&label=b%3Dc&schedule=a";
        assert_eq!(after(&format!("{same}&page_token={token}")), Some(place));
    }

    proptest! {
        #[test]
        fn page_token_is_valid_only_for_the_same_listing(
            (incarnation, nominal, revision, replay) in (any::<u128>(), 0..1_i64 << 40, any::<u32>(), any::<u16>()),
            cut in any::<prop::sample::Index>(),
        ) {
            let nominal = Timestamp::from_millis(nominal);
            let place = Occurrence { incarnation: Incarnation(incarnation), nominal, revision: Revision(revision), replay };
            let filters = [
                "", "&state=failed", "&schedule=a", "&label=a=b", "&host=a.example", "&status=503", "&late_by=5s",
                "&until=2030-01-02T00:00:00Z", "&order=oldest",
            ];
            for filter in filters {
                let query = format!("{RANGE}{filter}");
                let token = RunQuery::parse(&query).ok().unwrap().token(&place);
                for other in filters {
                    let expected = (other == filter).then_some(place);
                    let is_range = |filter: &str| filter.is_empty() || filter.starts_with("&until");
                    // A request without `until` continues in the range of the token.
                    let expected = expected.or((is_range(filter) && other.is_empty()).then_some(place));
                    for range in [RANGE, ""] {
                        let query = format!("{range}{other}&limit=7&page_token={token}");
                        prop_assert_eq!(after(&query), expected, "{} {}", filter, query);
                    }
                }
                let other_start = format!("from=2030-01-01T00:00:01Z{filter}&page_token={token}");
                prop_assert_eq!(after(&other_start), None);
                let cut = &token[..cut.index(token.len())];
                let is_rejected = RunQuery::parse(&format!("{query}&page_token={cut}")).is_err();
                prop_assert!(is_rejected);
            }
        }

        #[test]
        fn run_query_parser_never_panics_on_any_text(query in "[a-z_=&%+0-9:TZ.-]{0,60}") {
            let _any = RunQuery::parse(&query);
        }
    }
}
