use super::*;

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn traceparent_parser_accepts_only_valid_headers() {
    let ids = SpanIds { trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span: 0x00f0_67aa_0ba9_02b7 };
    assert_eq!(traceparent(CALLER), Some(ids));
    assert_eq!(
        traceparent(&CALLER.replace("00-4b", "cc-4b").replace("-01", "-01-more")),
        Some(ids),
        "later version of the header"
    );
    for text in [
        "",
        "00",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert_eq!(traceparent(text), None, "{text}");
    }
}

#[test]
fn each_revision_of_a_schedule_has_its_own_request_span() {
    let of = |incarnation, revision| request_span(Incarnation(incarnation), Revision(revision));
    assert_eq!(of(1, 0), of(1, 0));
    for other in [of(1, 1), of(2, 0)] {
        assert!(other.trace != of(1, 0).trace && other.span != of(1, 0).span);
    }
    // Members with different builds must derive the same ids, so the expected ids are constants.
    assert_eq!(
        of(1, 0),
        SpanIds { trace: 144_029_813_531_492_208_873_865_044_328_560_399_234, span: 6_700_168_756_073_535_006 }
    );
}

#[test]
fn endpoint_parser_appends_the_traces_path_to_the_url() {
    let endpoint = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
    for (text, uri) in [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/otlp/", "https://collector.example/otlp/v1/traces"),
    ] {
        assert_eq!(endpoint(text).unwrap(), uri);
    }
    for text in ["", "127.0.0.1:4318", "grpc://c:4317", "http://", "http://c/?token=x", "http://me:secret@c:4318"] {
        assert!(endpoint(text).is_err(), "{text}");
    }
}
