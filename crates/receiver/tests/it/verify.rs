//! Tests of the verification of signatures, without a network connection.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderMap;
use reveille_receiver::{Options, Rejection, Secret, SecretError, Verifier};

use crate::support::{KEY, OTHER_KEY, secret, verifier};

const BODY: &[u8] = br#"{"order": 17}"#;
const NOW_S: i64 = 1_800_000_000;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S.unsigned_abs())
}

fn signed_by(key: &[u8], id: &str, timestamp_s: i64, body: &[u8]) -> HeaderMap {
    headers(id, &timestamp_s.to_string(), &callback::sign(key, id, timestamp_s, body))
}

fn headers(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    let pairs = [("webhook-id", id), ("webhook-timestamp", timestamp), ("webhook-signature", signature)];
    pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn verdict(verifier: &Verifier, headers: &HeaderMap) -> Result<(), Rejection> {
    verifier.verify(headers, Bytes::from_static(BODY), now()).map(drop)
}

#[test]
fn verifier_returns_the_headers_and_payload_of_a_callback() {
    let mut headers = signed_by(&KEY, "run", NOW_S, BODY);
    headers.insert("reveille-schedule-id", "invoice-4711".parse().unwrap());
    headers.insert("reveille-attempt", "3".parse().unwrap());
    headers.insert("reveille-scheduled-at", "2027-01-15T08:00:00.000Z".parse().unwrap());
    let callback = verifier().verify(&headers, Bytes::from_static(BODY), now()).unwrap();
    assert_eq!((callback.id.as_str(), callback.sent_at, callback.body.as_ref()), ("run", now(), BODY));
    assert_eq!((callback.schedule_id.as_deref(), callback.attempt), (Some("invoice-4711"), Some(3)));
    assert_eq!(callback.scheduled_at.as_deref(), Some("2027-01-15T08:00:00.000Z"));
    #[derive(serde::Deserialize)]
    struct Payload {
        order: i64,
    }
    assert_eq!(callback.json::<Payload>().unwrap().order, 17);
}

#[test]
fn verifier_accepts_signature_of_another_implementation() {
    let signature = standardwebhooks::Webhook::new(&secret(&KEY)).unwrap().sign("run", NOW_S, BODY).unwrap();
    assert_eq!(verdict(&verifier(), &headers("run", &NOW_S.to_string(), &signature)), Ok(()));
}

#[test]
fn verifier_rejects_a_changed_body_or_id_or_time_or_signature() {
    let good = signed_by(&KEY, "run", NOW_S, BODY);
    let changed = |name: &'static str, value: &str| {
        let mut headers = good.clone();
        headers.insert(name, value.parse().unwrap());
        verdict(&verifier(), &headers)
    };
    assert_eq!(verdict(&verifier(), &good), Ok(()));
    let body = Bytes::from_static(br#"{"order": 18}"#);
    assert_eq!(verifier().verify(&good, body, now()), Err(Rejection::Signature));
    assert_eq!(changed("webhook-id", "another"), Err(Rejection::Signature));
    assert_eq!(changed("webhook-timestamp", &(NOW_S + 1).to_string()), Err(Rejection::Signature));
    let signature = good["webhook-signature"].to_str().unwrap();
    for at in 3..signature.len() - 1 {
        let mut bytes = signature.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = changed("webhook-signature", std::str::from_utf8(&bytes).unwrap());
        assert_eq!(changed, Err(Rejection::Signature), "digit {at}");
    }
    for signature in ["", "v1", "v1,", "v1, ", "v2,abc", "v1a,abc", &signature[3..], &signature[..20], "v1,?"] {
        assert_eq!(changed("webhook-signature", signature), Err(Rejection::Signature), "{signature:?}");
    }
}

#[test]
fn verifier_accepts_signatures_only_of_its_configured_secrets() {
    let [old, new] = [&KEY, &OTHER_KEY].map(|key| secret(key).parse::<Secret>().unwrap());
    let both = Verifier::new(old.clone(), Options::default()).or(new.clone());
    let [only_old, only_new] = [old, new].map(|secret| Verifier::new(secret, Options::default()));
    let by_old = signed_by(&KEY, "run", NOW_S, BODY);
    let by_new = signed_by(&OTHER_KEY, "run", NOW_S, BODY);
    let [old, new] = [&by_old, &by_new].map(|headers| headers["webhook-signature"].to_str().unwrap());
    let by_both = headers("run", &NOW_S.to_string(), &format!("{old} {new}"));
    for headers in [&by_old, &by_new, &by_both] {
        assert_eq!(verdict(&both, headers), Ok(()));
    }
    assert_eq!(verdict(&only_old, &by_both), Ok(()));
    assert_eq!(verdict(&only_new, &by_both), Ok(()));
    assert_eq!(verdict(&only_new, &by_old), Err(Rejection::Signature));
    assert_eq!(verdict(&only_old, &by_new), Err(Rejection::Signature));
    assert_eq!(verdict(&verifier(), &signed_by(&[9; 32], "run", NOW_S, BODY)), Err(Rejection::Signature));
}

#[test]
fn verifier_rejects_signature_outside_the_time_tolerance() {
    for (distance, is_late) in [(0, false), (300, false), (301, true), (-300, false), (-301, true)] {
        let rejected = verdict(&verifier(), &signed_by(&KEY, "run", NOW_S - distance, BODY));
        assert_eq!(rejected, if is_late { Err(Rejection::Time) } else { Ok(()) }, "{distance} s");
    }
    let short = Options { tolerance: Duration::from_secs(1), ..Options::default() };
    let short = Verifier::new(secret(&KEY).parse().unwrap(), short);
    assert_eq!(verdict(&short, &signed_by(&KEY, "run", NOW_S - 2, BODY)), Err(Rejection::Time));
    // The verifier checks the signature before the time, so an unauthenticated sender learns nothing about the
    // receiver's clock.
    assert_eq!(verdict(&verifier(), &signed_by(&OTHER_KEY, "run", 0, BODY)), Err(Rejection::Signature));
}

#[test]
fn error_names_missing_repeated_or_malformed_header() {
    let good = signed_by(&KEY, "run", NOW_S, BODY);
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut headers = good.clone();
        let value = headers.remove(name).unwrap();
        assert_eq!(verdict(&verifier(), &headers), Err(Rejection::Header { name, count: 0 }));
        headers.append(name, value.clone());
        headers.append(name, value);
        assert_eq!(verdict(&verifier(), &headers), Err(Rejection::Header { name, count: 2 }));
        let mut headers = good.clone();
        headers.insert(name, http::HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(verdict(&verifier(), &headers), Err(Rejection::Malformed { name }));
    }
    for id in ["", "with space", "run.1800000000", &"a".repeat(257)] {
        let headers = signed_by(&KEY, id, NOW_S, BODY);
        assert_eq!(verdict(&verifier(), &headers), Err(Rejection::Malformed { name: "webhook-id" }), "{id:?}");
    }
    for time in ["", "now", "-1", "+1", "1.5", "1e9", "99999999999999999999", "18446744073709551615"] {
        let rejected = verdict(&verifier(), &headers("run", time, "v1,"));
        assert_eq!(rejected, Err(Rejection::Malformed { name: "webhook-timestamp" }), "{time:?}");
    }
}

#[test]
fn verifier_rejects_id_with_a_dot_despite_a_matching_signature() {
    // The signed text consists of the id, the time and the body, with dots between them. The test signs the id `run`
    // and a body that begins with a time and a dot. If an id could contain a dot, the signature would also be valid for
    // the id `run.TIME` and the rest of the body.
    let body = format!("{NOW_S}.x");
    let signature = callback::sign(&KEY, "run", NOW_S, body.as_bytes());
    let moved = headers(&format!("run.{NOW_S}"), &NOW_S.to_string(), &signature);
    let rejected = verifier().verify(&moved, Bytes::from_static(b"x"), now());
    assert_eq!(rejected, Err(Rejection::Malformed { name: "webhook-id" }));
}

#[test]
fn secret_parser_rejects_an_invalid_secret() {
    assert!(format!(" {}\n", secret(&KEY)).parse::<Secret>().is_ok());
    let error = |text: &str| text.parse::<Secret>().unwrap_err();
    assert_eq!(error("k1.abcdef"), SecretError::Prefix);
    assert_eq!(error("whsec_a"), SecretError::Base64);
    assert_eq!(error(&secret(&[1; 23])), SecretError::Length { bytes: 23 });
    assert_eq!(error(&secret(&[1; 65])), SecretError::Length { bytes: 65 });
    let text = format!("{:?} {:?}", verifier(), secret(&KEY).parse::<Secret>());
    assert!(!text.contains("BwcH") && !text.contains('7'), "{text}");
}
