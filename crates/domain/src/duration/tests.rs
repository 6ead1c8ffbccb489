use proptest::prelude::*;

use super::*;

fn millis(text: &str) -> Result<u128, DurationError> {
    parse(text).map(|duration| duration.as_millis())
}

#[test]
fn duration_parser_accepts_unit_notation_and_iso_8601() {
    for (text, expected) in [
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("90 minutes", 5_400_000),
        ("1.5h", 5_400_000),
        ("500ms", 500),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("0s", 0),
        ("PT30S", 30_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H", 93_600_000),
        ("PT0.5S", 500),
    ] {
        assert_eq!(millis(text), Ok(expected), "{text}");
    }
}

#[test]
fn duration_parser_states_why_it_rejects_an_invalid_duration() {
    for (text, expected) in [
        ("", DurationError::Syntax),
        ("30", DurationError::Syntax),
        ("s", DurationError::Syntax),
        ("1m2h", DurationError::Syntax),
        ("30s ago", DurationError::Negative),
        ("-30s", DurationError::Negative),
        ("-PT30S", DurationError::Negative),
        ("1mo", DurationError::Calendar),
        ("P1Y", DurationError::Calendar),
        ("P1M", DurationError::Calendar),
        ("1us", DurationError::TooFine),
        ("PT0.0005S", DurationError::TooFine),
        ("99999999999999999999999s", DurationError::Syntax),
    ] {
        assert_eq!(millis(text), Err(expected), "{text}");
    }
    assert_eq!(millis(&"1".repeat(10_000)), Err(DurationError::TooLong(10_000)));
}

#[test]
fn formatter_writes_the_shortest_form_of_a_duration() {
    for (secs, text) in [(0, "0s"), (30, "30s"), (90, "1m30s"), (5_400, "1h30m"), (86_400, "1d"), (90_061, "1d1h1m1s")]
    {
        assert_eq!(format(Duration::from_secs(secs)), text);
    }
    assert_eq!(format(Duration::from_millis(1_500)), "1s500ms");
}

proptest! {
    #[test]
    fn parser_reads_back_every_formatted_duration(millis in 0..10 * 366 * 86_400_000_u64) {
        let duration = Duration::from_millis(millis);
        prop_assert_eq!(parse(&format(duration)), Ok(duration));
    }

    #[test]
    fn duration_parser_never_panics_on_any_text(text in "\\PC{0,80}") {
        drop(parse(&text).map(format));
    }

    #[test]
    fn duration_parser_never_panics_on_text_that_resembles_a_duration(text in "[-+PTYMWDHSymwdhsnu0-9. ,:]{0,30}") {
        if let Ok(duration) = parse(&text) {
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }
}
