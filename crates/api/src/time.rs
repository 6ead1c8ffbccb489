//! Instants on the wire.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Milliseconds since 1970-01-01T00:00:00Z. The wire form is RFC 3339 in UTC with three fractional digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(pub i64);

impl Time {
    /// 9999-12-31T23:59:59.999Z, the last millisecond that RFC 3339 can express with its four-digit years.
    const MILLIS_MAX: i64 = 253_402_300_799_999;
    const LEN: usize = 24;

    /// Returns the instant in the format of RFC 3339. The function clamps the instant to the years 1970 to 9999,
    /// because schedules use only these years.
    fn text(self) -> [u8; Time::LEN] {
        let millis = self.0.clamp(0, Time::MILLIS_MAX);
        let (days, in_day) = (millis / 86_400_000, millis % 86_400_000);
        let (year, month, day) = civil_from_days(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        digits(&mut text[0..4], year);
        digits(&mut text[5..7], month);
        digits(&mut text[8..10], day);
        digits(&mut text[11..13], in_day / 3_600_000);
        digits(&mut text[14..16], in_day / 60_000 % 60);
        digits(&mut text[17..19], in_day / 1_000 % 60);
        digits(&mut text[20..23], in_day % 1_000);
        text
    }
}

fn digits(into: &mut [u8], mut value: i64) {
    for digit in into.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

/// Converts a day, counted from 1970-01-01, to a civil date (Howard Hinnant, "chrono-compatible low-level date
/// algorithms"). The function uses no calendar library, because a library takes ten times as long and every response
/// contains a time.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("`text` returns ASCII"))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.text()).expect("`text` returns ASCII"))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    // The OpenAPI document contains this schema at each use, instead of a reference to one schema. If a field permits a
    // reference or `null`, some generators create clients that reject `null` in a response.
    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "An instant in RFC 3339 format. Responses use UTC with three fractional digits.",
        })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let instant: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        Ok(Time(instant.as_millisecond()))
    }
}
