//! Conversion between milliseconds since 1970 and RFC 3339 text in UTC with milliseconds. This module does not use
//! Reveille's own code, because that code is under test.

const DAY_MS: u64 = 86_400_000;

/// Formats an instant as `2026-11-21T10:00:00.000Z`.
pub(super) fn text(millis: u64) -> String {
    let (year, month, day) = civil(millis / DAY_MS);
    let in_day = millis % DAY_MS;
    let (hour, minute, second) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", in_day % 1_000)
}

/// Parses an instant in the format of [`text`]; returns `None` for any other text.
pub(super) fn parse(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    if text.len() != 24 || !text.ends_with('Z') {
        return None;
    }
    let days = days(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let in_day = number(11, 13)? * 3_600_000 + number(14, 16)? * 60_000 + number(17, 19)? * 1_000 + number(20, 23)?;
    Some(days * DAY_MS + in_day)
}

fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let mut left = days;
    while left >= length_of(year) {
        left -= length_of(year);
        year += 1;
    }
    let mut month = 1;
    while left >= month_length(year, month) {
        left -= month_length(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=month_length(year, month)).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(length_of).sum();
    let months: u64 = (1..month).map(|month| month_length(year, month)).sum();
    Some(years + months + day - 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn length_of(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_the_text_of_an_instant_returns_the_same_instant() {
        assert_eq!(text(1_795_255_200_123), "2026-11-21T10:00:00.123Z");
        for millis in (0..4_000_000_000_000).step_by(977_123_457) {
            assert_eq!(parse(&text(millis)), Some(millis));
        }
        assert_eq!(parse("2027-02-29T00:00:00.000Z"), None);
        assert_eq!(parse("soon"), None);
    }
}
