//! `GET /v1/schedules`: pages of a tenant's schedules, with at most one filter. The oldest schedule, the newest schedule
//! or the first id comes first. `GET /v1/schedules:count`: the numbers of a tenant's schedules by state, which every
//! store maintains.

use std::borrow::Cow;

use api::{FieldError, ScheduleCount, SchedulePage};
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, ScheduleId, Status, TargetKey, Timestamp};
use scheduler::Tenants;
use store::listing::{By, Listing, ListingOrder, Place};
use store::{Order, Usage};

use crate::auth::Caller;
use crate::query::{INVALID_INSTANT, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, decoded, parameter_error, unknown_parameter};
use crate::rejection::{Code, HandlerResult, Rejected, reject, reject_fields};
use crate::state::App;
use crate::wire;

/// Longest range of due instants in one listing. Clients list a longer range in parts.
const DUE_RANGE_MAX_MILLIS: i64 = 24 * 3_600_000;

pub(super) async fn list(State(app): App, Caller { tenant, .. }: Caller, RawQuery(query): RawQuery) -> HandlerResult {
    let ListQuery { filter, order, after, limit } = ListQuery::parse(query.as_deref().unwrap_or_default())?;
    let pollers = Tenants::pollers(&tenant);
    let listing = Listing { tenant: tenant.id, by: filter.by(&pollers), order, after, limit };
    let page = app.scheduler.list(&listing).await?;
    let damaged = || reject(Code::StoreDamaged, "a stored payload is not valid JSON");
    let schedules = page.schedules.iter().map(|schedule| wire::schedule(schedule).ok_or_else(damaged));
    let schedules = schedules.collect::<Result<_, _>>()?;
    let next_page_token = page.next.map(|next| token(&filter, order, next));
    Ok(wire::json(StatusCode::OK, &SchedulePage { schedules, next_page_token }))
}

pub(super) async fn count(State(app): App, Caller { tenant, .. }: Caller) -> HandlerResult {
    let Usage { active, ended, cancelled, bytes: _ } = app.tenants.usage(tenant.id).await?;
    Ok(wire::json(StatusCode::OK, &ScheduleCount { active, ended, cancelled }))
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Filter {
    None,
    State(Status),
    Label { name: String, value: String },
    Due { from: Timestamp, until: Timestamp },
}

impl Filter {
    fn by<'a>(&'a self, pollers: &'a [PollerId]) -> By<'a> {
        match self {
            Filter::None => By::All,
            Filter::State(status) => By::Status(*status),
            Filter::Label { name, value } => By::Label { name, value },
            Filter::Due { from, until } => By::Due { pollers, from: *from, until: *until },
        }
    }

    /// Returns a hash of the filter. A page token contains this hash, because the token is valid only for the same
    /// filter.
    fn fingerprint(&self) -> u32 {
        domain::id::fnv1a(format!("{self:?}").as_bytes())
    }
}

struct ListQuery {
    filter: Filter,
    order: ListingOrder,
    after: Option<Place>,
    limit: usize,
}

/// Unparsed query parameters. Each parameter occurs at most once.
#[derive(Default)]
struct Parameters<'a> {
    limit: Option<Cow<'a, str>>,
    page_token: Option<Cow<'a, str>>,
    state: Option<Cow<'a, str>>,
    label: Option<Cow<'a, str>>,
    order: Option<Cow<'a, str>>,
    due_from: Option<Cow<'a, str>>,
    due_until: Option<Cow<'a, str>>,
}

impl<'a> Parameters<'a> {
    fn parse(query: &'a str, errors: &mut Vec<FieldError>) -> Self {
        let mut parameters = Parameters::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (slot, name) = match name {
                "limit" => (&mut parameters.limit, "limit"),
                "page_token" => (&mut parameters.page_token, "page_token"),
                "state" => (&mut parameters.state, "state"),
                "label" => (&mut parameters.label, "label"),
                "order" => (&mut parameters.order, "order"),
                "due_from" => (&mut parameters.due_from, "due_from"),
                "due_until" => (&mut parameters.due_until, "due_until"),
                _ => {
                    let known = "the parameters of this route are limit, page_token, state, label, order, due_from \
                                 and due_until";
                    errors.push(unknown_parameter(name, known));
                    continue;
                }
            };
            match decoded(value) {
                Some(value) if slot.is_none() => *slot = Some(value),
                Some(_) => errors.push(parameter_error(
                    name,
                    "conflicting_parameters",
                    "the query contains the parameter more than once".to_owned(),
                )),
                None => {
                    errors.push(parameter_error(name, "wrong_type", "the decoded value is not valid UTF-8".to_owned()))
                }
            }
        }
        parameters
    }
}

impl ListQuery {
    fn parse(query: &str) -> Result<Self, Rejected> {
        let mut errors = Vec::new();
        let parameters = Parameters::parse(query, &mut errors);
        let filter = filter(&parameters, &mut errors);
        let order = order(&parameters, &mut errors);
        let mut limit = PAGE_LIMIT_DEFAULT;
        if let Some(text) = &parameters.limit {
            match text.parse() {
                Ok(number @ 1..=PAGE_LIMIT_MAX) => limit = number,
                _ => errors.push(parameter_error(
                    "limit",
                    "out_of_range",
                    format!("the value must be a whole number from 1 to {PAGE_LIMIT_MAX}"),
                )),
            }
        }
        let mut after = None;
        if let Some(text) = &parameters.page_token {
            after = parse_token(&filter, order, text);
            if after.is_none() {
                let detail = "the value is not a next_page_token of a listing with the same filter and order";
                errors.push(parameter_error("page_token", "invalid_token", detail.to_owned()));
            }
        }
        if errors.is_empty() {
            return Ok(ListQuery { filter, order, after, limit });
        }
        errors.truncate(32);
        Err(reject_fields(Code::InvalidParameter, "the query is invalid; see the field `errors`", errors))
    }
}

fn filter(parameters: &Parameters<'_>, errors: &mut Vec<FieldError>) -> Filter {
    let Parameters { state, label, due_from, due_until, .. } = parameters;
    let is_due = due_from.is_some() || due_until.is_some();
    if [state.is_some(), label.is_some(), is_due].into_iter().filter(|is_there| *is_there).count() > 1 {
        let detail = "the query has more than one filter; use only one of state, label and due range";
        errors.push(parameter_error("query", "conflicting_parameters", detail.to_owned()));
        return Filter::None;
    }
    if let Some(state) = state {
        match &**state {
            "active" => return Filter::State(Status::Active),
            "ended" => return Filter::State(Status::Ended),
            "cancelled" => return Filter::State(Status::Cancelled),
            _ => errors.push(parameter_error(
                "state",
                "out_of_range",
                "the value must be `active`, `ended` or `cancelled`".to_owned(),
            )),
        }
    }
    if let Some(label) = label {
        match label.split_once('=').filter(|(name, _)| !name.is_empty()) {
            Some((name, value)) => return Filter::Label { name: name.to_owned(), value: value.to_owned() },
            None => {
                errors.push(parameter_error(
                    "label",
                    "invalid_label",
                    "the value must be a label's name, `=` and its value".to_owned(),
                ));
            }
        }
    }
    if is_due {
        return due_range(due_from.as_deref(), due_until.as_deref(), errors).unwrap_or(Filter::None);
    }
    Filter::None
}

fn order(parameters: &Parameters<'_>, errors: &mut Vec<FieldError>) -> ListingOrder {
    let Some(order) = &parameters.order else { return ListingOrder::default() };
    if parameters.due_from.is_some() || parameters.due_until.is_some() {
        let detail = "a listing of a due range is always in the order of the due times; omit the parameter `order`";
        errors.push(parameter_error("order", "conflicting_parameters", detail.to_owned()));
    }
    match &**order {
        "oldest" => ListingOrder::Created(Order::Oldest),
        "newest" => ListingOrder::Created(Order::Newest),
        "id" => {
            if parameters.label.is_some() {
                let detail = "a listing by label cannot be in the order of ids; omit the parameter `label`, or use the \
                              order `oldest` or `newest`";
                errors.push(parameter_error("order", "conflicting_parameters", detail.to_owned()));
            }
            ListingOrder::Id
        }
        _ => {
            let detail = "the value must be `oldest`, `newest` or `id`";
            errors.push(parameter_error("order", "out_of_range", detail.to_owned()));
            ListingOrder::default()
        }
    }
}

fn due_range(from: Option<&str>, until: Option<&str>, errors: &mut Vec<FieldError>) -> Option<Filter> {
    let mut instant = |name: &'static str, text: Option<&str>| {
        let Some(text) = text else {
            errors.push(parameter_error(
                name,
                "missing_parameter",
                "due_from and due_until must both be present".to_owned(),
            ));
            return None;
        };
        let parsed: Option<jiff::Timestamp> = text.parse().ok();
        let instant = parsed.map(|parsed| Timestamp::from_millis(parsed.as_millisecond()));
        let instant = instant.filter(|instant| (Timestamp::MIN..=Timestamp::MAX).contains(instant));
        if instant.is_none() {
            errors.push(parameter_error(name, "invalid_time", INVALID_INSTANT.to_owned()));
        }
        instant
    };
    let (from, until) = (instant("due_from", from), instant("due_until", until));
    let (from, until) = (from?, until?);
    let millis = until.as_millis().saturating_sub(from.as_millis());
    if (0..=DUE_RANGE_MAX_MILLIS).contains(&millis) {
        return Some(Filter::Due { from, until });
    }
    let detail = "due_until must be at or after due_from, and at most 24 hours after it";
    errors.push(parameter_error("due_until", "out_of_range", detail.to_owned()));
    None
}

const TOKEN_VERSION: u8 = 1;
// Kinds of listings. A page token contains the kind of its listing, and is valid only for listings of this kind.
const OLDEST: u8 = 0;
const DUE: u8 = 1;
const NEWEST: u8 = 2;
const ID: u8 = 3;

fn kind(filter: &Filter, order: ListingOrder) -> u8 {
    match (filter, order) {
        (Filter::Due { .. }, _) => DUE,
        (_, ListingOrder::Created(Order::Oldest)) => OLDEST,
        (_, ListingOrder::Created(Order::Newest)) => NEWEST,
        (_, ListingOrder::Id) => ID,
    }
}

/// Encodes a page token. The token contains no tenant, because the API key of a request determines the tenant.
fn token(filter: &Filter, order: ListingOrder, place: Place) -> String {
    let mut bytes = vec![TOKEN_VERSION];
    bytes.extend(filter.fingerprint().to_be_bytes());
    bytes.push(kind(filter, order));
    match place {
        Place::Made(incarnation) => bytes.extend(incarnation.0.to_be_bytes()),
        Place::Due(key) => {
            bytes.extend(key.position.as_millis().to_be_bytes());
            bytes.extend(key.occurrence.incarnation.0.to_be_bytes());
            bytes.extend(key.occurrence.nominal.as_millis().to_be_bytes());
            bytes.extend(key.occurrence.revision.0.to_be_bytes());
            bytes.extend(key.occurrence.replay.to_be_bytes());
            bytes.extend(key.attempt.to_be_bytes());
            bytes.extend(key.target.0.to_be_bytes());
        }
        Place::Id(id) => {
            let len = u8::try_from(id.as_str().len()).expect("an id has at most 128 bytes");
            bytes.push(len);
            bytes.extend(id.as_str().as_bytes());
        }
    }
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn parse_token(filter: &Filter, order: ListingOrder, text: &str) -> Option<Place> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let mut bytes = bytes.as_slice();
    let is_of_this_listing = array(&mut bytes)? == [TOKEN_VERSION]
        && u32::from_be_bytes(array(&mut bytes)?) == filter.fingerprint()
        && array(&mut bytes)? == [kind(filter, order)];
    if !is_of_this_listing {
        return None;
    }
    let place = match (filter, order) {
        (Filter::Due { .. }, _) => Place::Due(take_due_key(&mut bytes)?),
        (Filter::None | Filter::State(_) | Filter::Label { .. }, ListingOrder::Created(_)) => {
            Place::Made(take_incarnation(&mut bytes)?)
        }
        (Filter::None | Filter::State(_) | Filter::Label { .. }, ListingOrder::Id) => {
            Place::Id(take_schedule_id(&mut bytes)?)
        }
    };
    bytes.is_empty().then_some(place)
}

fn take_due_key(bytes: &mut &[u8]) -> Option<DueKey> {
    let position = take_instant(bytes)?;
    let occurrence = Occurrence {
        incarnation: take_incarnation(bytes)?,
        nominal: take_instant(bytes)?,
        revision: Revision(u32::from_be_bytes(array(bytes)?)),
        replay: u16::from_be_bytes(array(bytes)?),
    };
    let attempt = u16::from_be_bytes(array(bytes)?);
    Some(DueKey { position, occurrence, attempt, target: TargetKey(u32::from_be_bytes(array(bytes)?)) })
}

fn take_incarnation(bytes: &mut &[u8]) -> Option<Incarnation> {
    array(bytes).map(|bytes| Incarnation(u128::from_be_bytes(bytes)))
}

fn take_schedule_id(bytes: &mut &[u8]) -> Option<ScheduleId> {
    let [len] = array(bytes)?;
    let (id, rest) = bytes.split_at_checked(usize::from(len))?;
    *bytes = rest;
    ScheduleId::new(str::from_utf8(id).ok()?).ok()
}

/// Reads an instant. Rejects an instant outside the range of schedules, because no token of this server contains such
/// an instant.
fn take_instant(bytes: &mut &[u8]) -> Option<Timestamp> {
    let instant = Timestamp::from_millis(i64::from_be_bytes(array(bytes)?));
    (Timestamp::MIN..=Timestamp::MAX).contains(&instant).then_some(instant)
}

pub(super) fn array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range() -> Filter {
        Filter::Due { from: Timestamp::from_millis(1), until: Timestamp::from_millis(2) }
    }

    proptest! {
        #[test]
        fn page_token_is_valid_only_for_the_same_filter_and_order(
            (incarnation, position, nominal) in (any::<u128>(), 0..1_i64 << 40, 0..1_i64 << 40),
            (revision, replay, attempt, target) in any::<(u32, u16, u16, u32)>(),
            id in "[A-Za-z0-9_-]{1,128}",
            cut in any::<prop::sample::Index>(),
        ) {
            let incarnation = Incarnation(incarnation);
            let nominal = Timestamp::from_millis(nominal);
            let occurrence = Occurrence { incarnation, nominal, revision: Revision(revision), replay };
            let position = Timestamp::from_millis(position);
            let key = DueKey { position, occurrence, attempt, target: TargetKey(target) };
            let label = Filter::Label { name: "a".to_owned(), value: "b".to_owned() };
            let id = ScheduleId::new(&id).unwrap();
            let by_id = [Filter::None, Filter::State(Status::Ended)].map(|by| (by, ListingOrder::Id));
            let in_order = |order| {
                let order = ListingOrder::Created(order);
                [Filter::None, Filter::State(Status::Ended), label.clone()].map(|by| (by, order))
            };
            let mut listings = vec![(range(), ListingOrder::default())];
            listings.extend([Order::Oldest, Order::Newest].into_iter().flat_map(in_order).chain(by_id));
            for listing in &listings {
                let (filter, order) = listing;
                let place = match (filter, order) {
                    (Filter::Due { .. }, _) => Place::Due(key),
                    (_, ListingOrder::Created(_)) => Place::Made(incarnation),
                    (_, ListingOrder::Id) => Place::Id(id.clone()),
                };
                let text = token(filter, *order, place.clone());
                prop_assert_eq!(parse_token(filter, *order, &text), Some(place.clone()));
                prop_assert_eq!(parse_token(filter, *order, &text[..cut.index(text.len())]), None);
                for (other, order) in listings.iter().filter(|other| *other != listing) {
                    prop_assert_eq!(parse_token(other, *order, &text), None);
                }
            }
        }

        #[test]
        fn query_parser_never_panics_on_any_text(query in "[a-z_=&%+0-9:TZ.-]{0,60}") {
            let _any = ListQuery::parse(&query);
        }
    }
}
