use axum::http::{HeaderMap, HeaderValue};
use domain::TenantId;
use proptest::prelude::*;

use super::{Key, PATTERN, fingerprint};

fn read(values: &[&[u8]]) -> Result<Option<Key>, String> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append("idempotency-key", HeaderValue::from_bytes(value).unwrap());
    }
    Key::read(&headers).map_err(|rejected| rejected.to_string())
}

#[test]
fn key_parser_accepts_visible_ascii_with_or_without_quotes() {
    let key = |text: &str| Ok(Some(Key(text.to_owned())));
    assert_eq!(read(&[]), Ok(None));
    for (sent, expected) in [
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (r#""8e03978e-40d5-43dd-bc93-6894a57f9324""#, "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (r#""a\"b\\c""#, r#"a"b\c"#),
        (r#"a"b"#, r#"a"b"#),
        ("a,b;c=d", "a,b;c=d"),
        ("~", "~"),
    ] {
        assert_eq!(read(&[sent.as_bytes()]), key(expected), "{sent}");
    }
    let (longest, too_long) = ("x".repeat(255), "x".repeat(256));
    assert_eq!(read(&[longest.as_bytes()]), key(&longest));
    assert_eq!(read(&[format!("\"{longest}\"").as_bytes()]), key(&longest));
    for bad in [
        &b""[..],
        b"\"\"",
        b"\"",
        b"\"a",
        b"\"a\"b\"",
        b"\"a\\b\"",
        b"a b",
        b"\"a b\"",
        b"\xc3\xa9",
        b"\xff",
        too_long.as_bytes(),
    ] {
        assert!(read(&[bad]).is_err(), "{bad:?}");
    }
    assert!(read(&[b"a", b"a"]).is_err());
}

/// A request that is repeated after an upgrade must find the schedule of the first request.
#[test]
fn key_of_a_tenant_always_produces_the_same_schedule_id() {
    let key = Key("8e03978e-40d5-43dd-bc93-6894a57f9324".to_owned());
    let id = key.id(TenantId(1));
    assert_ne!(id, key.id(TenantId(2)));
    assert_ne!(id, Key("8e03978e-40d5-43dd-bc93-6894a57f9325".to_owned()).id(TenantId(1)));
    assert_eq!(id.as_str(), "i7q9wxkwv93pracf3h2h1aj2r8d");
    assert_eq!(key.id_old(TenantId(1)).as_str(), "k7q9wxkwv93pracf3h2h1aj2r8d");
    assert_eq!(fingerprint(b"{}"), 0x4413_6fa3);
}

proptest! {
    /// The test removes the anchors `^` and `$` from the pattern, because proptest accepts no pattern with anchors.
    #[test]
    fn parser_accepts_every_key_that_matches_the_documented_pattern(value in PATTERN.trim_matches(['^', '$'])) {
        prop_assert!(matches!(read(&[value.as_bytes()]), Ok(Some(_))), "{value}");
    }
}
