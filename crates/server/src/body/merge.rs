//! A change that is merged into what is stored: JSON Merge Patch (RFC 7396).
//!
//! What comes of it is read and judged like the body of a PUT. Two departures, for what a schedule is: naming one of `at`,
//! `cron` and `every` takes the others away, and the names of headers are compared as HTTP does.
//!
//! Always true here: what a change does not name stays byte for byte, in the payload, too; the values of headers that it does
//! not name are not looked at.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use domain::{Schedule, Secret, Target, When, duration};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{malformed, not_utf8};
use crate::answer;
use crate::refusal::{Code, Refused, refuse, to_json};

/// What a change makes of a schedule, not judged yet.
pub(crate) struct Merged {
    /// As the body of a PUT, but for the headers that stay as they are.
    pub(super) text: String,
    pub(super) headers_kept: Vec<(String, Secret)>,
    pub(crate) names_timing: bool,
}

/// A change that nests deeper is refused: each level is read again within the one around it.
const DEPTH_MAX: usize = 64;

const TIMING: [&str; 4] = ["at", "cron", "every", "zone"];

pub(crate) fn merge(schedule: &Schedule, change: &[u8]) -> Result<Merged, Refused> {
    let change = std::str::from_utf8(change).map_err(|error| not_utf8(&error))?;
    let parsed: &RawValue = serde_json::from_str(change).map_err(|error| malformed(&error))?;
    if depth(parsed.get()) > DEPTH_MAX {
        let detail = format!("the change nests deeper than {DEPTH_MAX} levels; PUT the schedule as a whole instead");
        return Err(refuse(Code::InvalidSchedule, detail));
    }
    let Some(fields) = Object::of(parsed) else {
        // It takes the place of everything, and is no schedule: told by whoever reads it.
        let headers_kept = Vec::new();
        return Ok(Merged { text: parsed.get().to_owned(), headers_kept, names_timing: true });
    };
    let stored = stored(schedule, &fields)?;
    let stored: &RawValue = serde_json::from_str(&stored).expect("it was made by the line above");
    let mut text = String::with_capacity(stored.get().len() + change.len());
    merge_value(Some(stored), parsed, &mut text);
    Ok(Merged {
        text,
        headers_kept: headers_kept(schedule, &fields),
        names_timing: TIMING.iter().any(|name| fields.last(name).is_some()),
    })
}

/// What is stored, as the body of a PUT would say it: without headers, and without the timing that `change` puts another in
/// the place of.
fn stored(schedule: &Schedule, change: &Object<'_>) -> Result<String, Refused> {
    let names = |name: &str| change.last(name).is_some_and(|value| value.get() != "null");
    let spec = &schedule.spec;
    let mut timing = BTreeMap::new();
    let is_timing_named = names("at") || names("cron") || names("every");
    match &spec.when {
        When::At(at) if !is_timing_named => drop(timing.insert("at", to_text(&answer::time(*at)))),
        When::Every(interval) if !is_timing_named => {
            drop(timing.insert("every", to_text(&duration::format(*interval))));
        }
        When::Cron(cron) => {
            if !is_timing_named {
                timing.insert("cron", to_text(&cron.expression()));
            }
            // A zone belongs to whatever cron there is.
            if !names("at") && !names("every") {
                timing.insert("zone", to_text(&cron.zone()));
            }
        }
        When::At(_) | When::Every(_) => {}
    }
    let Target::Http(http) = &spec.target;
    let retry = spec.retry;
    let mut fields: BTreeMap<&str, Box<RawValue>> = timing;
    fields.insert("labels", to_text(&spec.labels));
    let target = api::TargetRequest {
        http: api::TargetRequestHttp {
            url: http.url.clone(),
            method: Some(http.method.clone()),
            headers: None,
            timeout: Some(duration::format(http.timeout)),
        },
    };
    fields.insert("target", to_text(&target));
    let retry = api::RetryRequest {
        attempts_max: Some(retry.attempts_max),
        backoff: Some(duration::format(retry.backoff)),
        backoff_max: Some(duration::format(retry.backoff_max)),
    };
    fields.insert("retry", to_text(&retry));
    if !spec.payload.is_empty() {
        let payload = String::from_utf8(spec.payload.to_vec()).ok().and_then(|text| RawValue::from_string(text).ok());
        let damaged = || refuse(Code::StoreDamaged, "the payload that is stored is not the one that was sent");
        fields.insert("payload", payload.ok_or_else(damaged)?);
    }
    Ok(String::from_utf8(to_json(&fields)).expect("JSON is UTF-8"))
}

fn to_text(value: &impl serde::Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("wire types are JSON")
}

/// The stored headers that `change` does not name.
fn headers_kept(schedule: &Schedule, change: &Object<'_>) -> Vec<(String, Secret)> {
    let Target::Http(http) = &schedule.spec.target;
    let mut at = Cow::Borrowed(change);
    for name in ["target", "http", "headers"] {
        match at.last(name).map(Object::of) {
            None => return http.headers.clone(),
            // `null` takes all away; anything else is told by whoever reads it.
            Some(None) => return Vec::new(),
            Some(Some(inner)) => at = Cow::Owned(inner),
        }
    }
    let is_named = |name: &str| at.0.iter().any(|(named, _)| named.eq_ignore_ascii_case(name));
    http.headers.iter().filter(|(name, _)| !is_named(name)).cloned().collect()
}

/// How many objects and arrays are within each other in `json`, which is valid.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    deepest
}

/// RFC 7396, section 2. A name that `change` has twice is there twice in what comes of it, and only the last of them, which
/// counts for most readers, is merged with what is stored: so the result is never longer than both together.
fn merge_value(stored: Option<&RawValue>, change: &RawValue, out: &mut String) {
    let Some(change_fields) = Object::of(change) else {
        out.push_str(change.get());
        return;
    };
    let stored_fields = stored.and_then(Object::of).unwrap_or_default();
    let named: BTreeMap<&str, usize> =
        change_fields.0.iter().enumerate().map(|(place, (name, _))| (&**name, place)).collect();
    let last: BTreeMap<&str, &RawValue> = stored_fields.0.iter().map(|(name, value)| (&**name, *value)).collect();
    out.push('{');
    let mut is_first = true;
    let mut put_name = |name: &str, out: &mut String| {
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        out.push_str(to_text(&name).get());
        out.push(':');
    };
    for (name, value) in stored_fields.0.iter().filter(|(name, _)| !named.contains_key(&**name)) {
        put_name(name, out);
        out.push_str(value.get());
    }
    for (place, (name, value)) in change_fields.0.iter().enumerate().filter(|(_, (_, value))| value.get() != "null") {
        put_name(name, out);
        let stored = last.get(&**name).filter(|_| named[&**name] == place);
        merge_value(stored.copied(), value, out);
    }
    out.push('}');
}

/// The fields of a JSON object in their order, repeated ones included, their values untouched.
#[derive(Clone, Default)]
struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// `None` if it is another kind of value.
    fn of(value: &'a RawValue) -> Option<Self> {
        if !value.get().starts_with('{') {
            return None;
        }
        let mut deserializer = serde_json::Deserializer::from_str(value.get());
        deserializer.deserialize_map(ObjectVisitor).ok()
    }

    fn last(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(found, _)| found == name).map(|(_, value)| *value)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some((super::reader::Key(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Object(fields))
    }
}
