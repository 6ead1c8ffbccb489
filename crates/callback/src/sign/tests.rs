use http::HeaderMap;
use proptest::prelude::*;

use super::*;

/// Example from the test suites of the Standard Webhooks specification.
#[test]
fn signature_equals_the_signature_in_the_standard_webhooks_example() {
    let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signature = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

/// Current time in seconds since 1970. The crate `standardwebhooks` rejects timestamps that differ from the system
/// clock by more than five minutes.
#[expect(clippy::disallowed_methods, reason = "the library under comparison reads this clock")]
fn present_s() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_secs()).unwrap()
}

proptest! {
    #[test]
    fn independent_webhook_library_accepts_every_signature(
        secret in proptest::collection::vec(any::<u8>(), 24..=64),
        id in "[0-9a-z]{52}",
        age_s in -200..200_i64,
        // The crate `standardwebhooks` accepts only bodies in UTF-8.
        body in "\\PC{0,300}",
    ) {
        let timestamp_s = present_s() - age_s;
        let mut headers = HeaderMap::new();
        headers.insert("webhook-id", id.parse().unwrap());
        headers.insert("webhook-timestamp", timestamp_s.to_string().parse().unwrap());
        headers.insert("webhook-signature", sign(&secret, &id, timestamp_s, body.as_bytes()).parse().unwrap());
        let webhook = standardwebhooks::Webhook::from_bytes(secret).unwrap();
        prop_assert!(webhook.verify(body.as_bytes(), &headers).is_ok());
        headers.insert("webhook-id", format!("{id}0").parse().unwrap());
        prop_assert!(webhook.verify(body.as_bytes(), &headers).is_err());
    }
}
