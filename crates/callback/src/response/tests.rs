use super::*;

/// The instant 2026-11-21T10:00:00Z.
const NOW: Timestamp = Timestamp::from_millis(1_795_255_200_000);

fn wait(text: &str) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_bytes(text.as_bytes()).unwrap());
    TargetResponse::new(StatusCode::SERVICE_UNAVAILABLE, &mut headers).retry_after(|| NOW)
}

#[test]
fn retry_after_parser_accepts_seconds_and_all_http_date_formats() {
    assert_eq!(wait("0"), Some(Duration::ZERO));
    assert_eq!(wait("120"), Some(Duration::from_secs(120)));
    assert_eq!(wait("Sat, 21 Nov 2026 10:01:30 GMT"), Some(Duration::from_secs(90)));
    assert_eq!(wait("Saturday, 21-Nov-26 10:01:30 GMT"), Some(Duration::from_secs(90)));
    assert_eq!(wait("Sat Nov 21 10:01:30 2026"), Some(Duration::from_secs(90)));
}

#[test]
fn retry_after_header_with_a_past_date_yields_a_wait_of_zero() {
    assert_eq!(wait("Fri, 20 Nov 2026 10:00:00 GMT"), Some(Duration::ZERO));
}

#[test]
fn retry_after_parser_ignores_invalid_values() {
    for text in ["", "soon", "-1", "1.5", "+5", "Sat, 21 Nov 2026", "1, 2"] {
        assert_eq!(wait(text), None, "{text:?}");
    }
}

#[test]
fn retry_after_parser_clamps_an_overflowing_number_of_seconds() {
    assert_eq!(wait("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
}

#[test]
fn parser_reads_the_connection_timeout_from_the_keep_alive_header() {
    let limit = |text| {
        keep_alive(&HeaderMap::from_iter([(
            header::HeaderName::from_static("keep-alive"),
            HeaderValue::from_static(text),
        )]))
    };
    assert_eq!(limit("timeout=5"), Some(Duration::from_secs(5)));
    assert_eq!(limit("max=100, timeout=7"), Some(Duration::from_secs(7)));
    assert_eq!(limit("max=100"), None);
    assert_eq!(limit("timeout=x"), None);
}
