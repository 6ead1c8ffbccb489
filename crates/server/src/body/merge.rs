//! JSON Merge Patch (RFC 7396) of a stored schedule.
//!
//! The server reads and checks the result like the body of a PUT. Three rules differ from the RFC. A schedule has exactly
//! one kind of timing, so a change that sets one of `at`, `cron` and `every` removes the others. It has exactly one target,
//! so a change that sets a target of one kind removes a target of the other kind. HTTP header names are
//! case-insensitive, so the comparison of header names ignores case.
//!
//! Invariants: fields that a change does not name stay the same, byte for byte, including the fields in the payload.
//! The merge does not read the values of headers that the change does not name.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use domain::{BusTarget, HttpTarget, Schedule, Secret, Target, When, duration};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{malformed, not_utf8};
use crate::rejection::{Code, Rejected, reject, to_json};
use crate::wire;

/// Unchecked result of a merge.
pub(crate) struct Merged {
    /// Merged schedule as the text of a PUT body, without the headers in `headers_kept`.
    pub(super) text: String,
    pub(super) headers_kept: Vec<(String, Secret)>,
    pub(crate) names_timing: bool,
}

/// Largest nesting depth of a change, in levels. For each level, the merge parses all inner levels again, so the time
/// of a merge grows with the depth.
const DEPTH_MAX: usize = 64;

const TIMING: [&str; 4] = ["at", "cron", "every", "zone"];

pub(crate) fn merge(schedule: &Schedule, change: &[u8]) -> Result<Merged, Rejected> {
    let change = std::str::from_utf8(change).map_err(|error| not_utf8(&error))?;
    let parsed: &RawValue = serde_json::from_str(change).map_err(|error| malformed(&error))?;
    if depth(parsed.get()) > DEPTH_MAX {
        let detail = format!("the change nests deeper than {DEPTH_MAX} levels; PUT the schedule as a whole instead");
        return Err(reject(Code::InvalidSchedule, detail));
    }
    let Some(fields) = Object::of(parsed) else {
        // The change is not an object, so it replaces the whole schedule. The parser then rejects the result.
        let headers_kept = Vec::new();
        return Ok(Merged { text: parsed.get().to_owned(), headers_kept, names_timing: true });
    };
    let stored = stored(schedule, &fields)?;
    let stored: &RawValue = serde_json::from_str(&stored).expect("`stored` writes JSON");
    let mut text = String::with_capacity(stored.get().len() + change.len());
    merge_value(Some(stored), parsed, &mut text);
    Ok(Merged {
        text,
        headers_kept: headers_kept(schedule, &fields),
        names_timing: TIMING.iter().any(|name| fields.last(name).is_some()),
    })
}

/// Writes the stored schedule in the form of a PUT body, without headers, and without the timing if `change` sets
/// another timing.
fn stored(schedule: &Schedule, change: &Object<'_>) -> Result<String, Rejected> {
    let names = |name: &str| change.last(name).is_some_and(|value| value.get() != "null");
    let spec = &schedule.spec;
    let mut timing = BTreeMap::new();
    let is_timing_named = names("at") || names("cron") || names("every");
    match &spec.when {
        When::At(at) if !is_timing_named => drop(timing.insert("at", to_text(&wire::time(*at)))),
        When::Every { interval, .. } if !is_timing_named => {
            drop(timing.insert("every", to_text(&duration::format(*interval))));
        }
        When::Cron(cron) => {
            if !is_timing_named {
                timing.insert("cron", to_text(&cron.expression()));
            }
            // If `change` sets only another cron expression, the merge keeps the stored zone, because a zone is valid
            // for every cron expression.
            if !names("at") && !names("every") {
                timing.insert("zone", to_text(&cron.zone()));
            }
        }
        When::At(_) | When::Every { .. } => {}
    }
    let retry = spec.retry;
    let mut fields: BTreeMap<&str, Box<RawValue>> = timing;
    fields.insert("labels", to_text(&spec.labels));
    if !names_other_kind(&spec.target, change) {
        fields.insert("target", to_text(&stored_target(&spec.target)));
    }
    let retry = api::RetryRequest {
        attempts_max: Some(retry.attempts_max),
        backoff: Some(duration::format(retry.backoff)),
        backoff_max: Some(duration::format(retry.backoff_max)),
    };
    fields.insert("retry", to_text(&retry));
    if !spec.payload.is_empty() {
        let payload = String::from_utf8(spec.payload.to_vec()).ok().and_then(|text| RawValue::from_string(text).ok());
        let damaged = || reject(Code::StoreDamaged, "the stored payload is not valid JSON");
        fields.insert("payload", payload.ok_or_else(damaged)?);
    }
    Ok(String::from_utf8(to_json(&fields)).expect("JSON is UTF-8"))
}

/// Returns the stored target in the form of a PUT body, without headers.
fn stored_target(target: &Target) -> api::TargetRequest {
    let timeout = Some(duration::format(target.timeout()));
    match target {
        Target::Http(HttpTarget { url, method, headers: _, timeout: _ }) => {
            let (url, method) = (url.clone(), Some(method.clone()));
            let http = api::TargetRequestHttp { url, method, headers: None, timeout };
            api::TargetRequest { http: Some(http), bus: None }
        }
        Target::Bus(BusTarget { topic, key, headers: _, cloud_event, timeout: _ }) => {
            let (topic, key, cloud_event) = (topic.clone(), key.clone(), cloud_event.as_ref().map(wire::cloud_event));
            let bus = api::TargetRequestBus { topic, key, headers: None, cloud_event, timeout };
            api::TargetRequest { http: None, bus: Some(bus) }
        }
    }
}

/// Returns the name of the target's kind in a request.
pub(super) fn kind_name(target: &Target) -> &'static str {
    match target {
        Target::Http(_) => "http",
        Target::Bus(_) => "bus",
    }
}

/// Returns whether `change` sets a target of another kind. A schedule has exactly one target, so such a change removes the
/// stored target with its headers.
fn names_other_kind(target: &Target, change: &Object<'_>) -> bool {
    let other = if kind_name(target) == "http" { "bus" } else { "http" };
    let named = change.last("target").and_then(Object::of).and_then(|target| target.last(other));
    named.is_some_and(|value| value.get() != "null")
}

fn to_text(value: &impl serde::Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("wire types are JSON")
}

/// Returns the stored headers that `change` does not name.
fn headers_kept(schedule: &Schedule, change: &Object<'_>) -> Vec<(String, Secret)> {
    let target = &schedule.spec.target;
    if names_other_kind(target, change) {
        return Vec::new();
    }
    let mut at = Cow::Borrowed(change);
    for name in ["target", kind_name(target), "headers"] {
        match at.last(name).map(Object::of) {
            None => return target.headers().to_vec(),
            // The value of `target`, of its kind or of `headers` is not an object. The value `null` removes all headers,
            // and the parser rejects any other value.
            Some(None) => return Vec::new(),
            Some(Some(inner)) => at = Cow::Owned(inner),
        }
    }
    let is_named = |name: &str| at.0.iter().any(|(named, _)| named.eq_ignore_ascii_case(name));
    target.headers().iter().filter(|(name, _)| !is_named(name)).cloned().collect()
}

/// Returns the nesting depth of `json`, which must be valid JSON.
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

/// Implements RFC 7396, section 2. If `change` repeats a name, the result also repeats the name. The merge combines
/// only the last value of the name with the stored value, because most parsers use the last value. Therefore the result
/// is never longer than both inputs together.
fn merge_value(stored: Option<&RawValue>, change: &RawValue, out: &mut String) {
    let Some(change_fields) = Object::of(change) else {
        out.push_str(change.get());
        return;
    };
    let stored_fields = stored.and_then(Object::of).unwrap_or_default();
    let named: BTreeMap<&str, usize> =
        change_fields.0.iter().enumerate().map(|(index, (name, _))| (&**name, index)).collect();
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
    for (index, (name, value)) in change_fields.0.iter().enumerate().filter(|(_, (_, value))| value.get() != "null") {
        put_name(name, out);
        let stored = last.get(&**name).filter(|_| named[&**name] == index);
        merge_value(stored.copied(), value, out);
    }
    out.push('}');
}

/// Fields of a JSON object in their order, including repeated names. The values are unparsed text.
#[derive(Clone, Default)]
struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Parses an object. Returns `None` for any other kind of value.
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
