//! Tests of the requests that a target receives.

use callback::Options;
use domain::{AttemptResult, SigningSecret};
use scheduler::Delivered;
use std::sync::Arc;

use crate::support::{Listening, OK, Received, deliverer, delivery, secret, sent, target};

async fn send(deliverable: scheduler::Delivery, listening: &Listening) -> (Delivered, Received) {
    let deliverer = deliverer(Options::default());
    let (delivered, (_peer, received)) = tokio::join!(sent(&deliverer, deliverable), listening.serve(OK));
    (delivered, received)
}

fn verify(received: &Received) -> Result<(), standardwebhooks::WebhookError> {
    verify_with(received, secret())
}

fn verify_with(received: &Received, secret: Vec<u8>) -> Result<(), standardwebhooks::WebhookError> {
    let headers = received.headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    standardwebhooks::Webhook::from_bytes(secret).unwrap().verify(&received.body, &headers.collect())
}

#[tokio::test]
async fn callback_carries_the_exact_payload_and_its_signature() {
    let listening = Listening::start().await;
    let payload = b"{ \"a\" : 1.0e2,\n\t\"\xc3\xa9\": \"\\u00e9\" }";
    let (delivered, mut received) = send(delivery(target(listening.url()), payload), &listening).await;
    assert_eq!(delivered.result, AttemptResult::Answered(200));
    assert_eq!(received.first_line, "POST /hook?of=test HTTP/1.1");
    assert_eq!(received.body, payload);
    verify(&received).unwrap();
    received.0.body[0] = b' ';
    assert!(verify(&received).is_err());
}

#[tokio::test]
async fn callback_has_signatures_of_old_and_new_secret_during_rotation() {
    let listening = Listening::start().await;
    let mut created = delivery(target(listening.url()), b"1");
    let tenant = Arc::make_mut(&mut created.tenant);
    let new = SigningSecret::first(vec![9; 48], created.started_at);
    tenant.signing_secrets.insert(0, new);
    let (_, received) = send(created, &listening).await;
    verify(&received).unwrap();
    verify_with(&received, vec![9; 48]).unwrap();
    assert!(verify_with(&received, vec![8; 48]).is_err());
}

#[tokio::test]
async fn callback_headers_identify_the_run() {
    let listening = Listening::start().await;
    let created = delivery(target(listening.url()), b"1");
    let (_, received) = send(created.clone(), &listening).await;
    let run_id = created.occurrence.run_id();
    let expected = [
        ("host", format!("127.0.0.1:{}", listening.port())),
        ("webhook-id", run_id.to_string()),
        ("webhook-timestamp", (created.started_at.as_millis() / 1000).to_string()),
        ("reveille-schedule-id", "nightly_report".to_owned()),
        ("reveille-run-id", run_id.to_string()),
        ("reveille-attempt", "1".to_owned()),
        ("reveille-scheduled-at", created.occurrence.nominal.to_string()),
        ("reveille-lateness-ms", "25".to_owned()),
        ("reveille-term", "42".to_owned()),
        ("content-type", "application/json".to_owned()),
        ("content-length", "1".to_owned()),
        ("user-agent", format!("reveille/{}", env!("CARGO_PKG_VERSION"))),
    ];
    for (name, value) in expected {
        assert_eq!(received.header(name), Some(value.as_str()), "{name}");
    }
    let trace = format!("00-{:032x}-", callback::trace_id(&run_id));
    assert!(received.header("traceparent").unwrap().starts_with(&trace));
}

#[tokio::test]
async fn attempts_of_a_run_share_webhook_id_and_trace_id_but_not_span_id() {
    let listening = Listening::start().await;
    let first = delivery(target(listening.url()), b"1");
    let mut second = first.clone();
    second.attempt = 2;
    let (_, first) = send(first, &listening).await;
    let (_, second) = send(second, &listening).await;
    assert_eq!(second.header("reveille-attempt"), Some("2"));
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    let (first, second) = (first.header("traceparent").unwrap(), second.header("traceparent").unwrap());
    assert_eq!(first[..36], second[..36]);
    assert_ne!(first[36..52], second[36..52]);
}

#[tokio::test]
async fn lateness_header_of_a_callback_is_never_negative() {
    let listening = Listening::start().await;
    let mut early = delivery(target(listening.url()), b"1");
    early.started_at = early.started_at - std::time::Duration::from_secs(60);
    let (_, received) = send(early, &listening).await;
    assert_eq!(received.header("reveille-lateness-ms"), Some("0"));
}

#[tokio::test]
async fn user_headers_replace_the_default_headers() {
    let listening = Listening::start().await;
    let mut to = target(listening.url());
    let headers = [("x-team", "billing"), ("x-many", "1"), ("x-many", "2"), ("content-type", "text/plain")];
    to.headers = headers.map(|(name, value)| (name.to_owned(), value.into())).to_vec();
    to.method = "PUT".to_owned();
    let (_, received) = send(delivery(to, b"\"text\""), &listening).await;
    assert_eq!(received.first_line, "PUT /hook?of=test HTTP/1.1");
    assert_eq!(received.header("x-team"), Some("billing"));
    assert_eq!(received.header("content-type"), Some("text/plain"));
    let many: Vec<_> = received.headers.iter().filter(|(name, _)| name == "x-many").map(|(_, value)| value).collect();
    assert_eq!(many, ["1", "2"]);
}

#[tokio::test]
async fn user_headers_cannot_override_headers_that_reveille_sets() {
    let listening = Listening::start().await;
    let mut to = target(listening.url());
    let forged = ["webhook-id", "webhook-signature", "reveille-term", "traceparent", "host", "content-length"];
    to.headers = forged.map(|name| (name.to_owned(), "7".into())).to_vec();
    let (_, received) = send(delivery(to, b"123"), &listening).await;
    for name in forged {
        // The function `header` panics if the request contains the header twice.
        assert_ne!(received.header(name), Some("7"), "{name}");
    }
    verify(&received).unwrap();
}

#[tokio::test]
async fn client_never_sends_header_with_line_breaks() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    for (name, value) in
        [("x-a", "1\r\nx-b: 2"), ("x-a", "1\nx-b: 2"), ("x-a", "\0"), ("x-a: 1\r\nx-b", "2"), ("", "1")]
    {
        let mut to = target(listening.url());
        to.headers = vec![("x-fine".to_owned(), "1".into()), (name.to_owned(), value.into())];
        let delivered = sent(&deliverer, delivery(to, b"1")).await;
        let reason = "invalid name or value of target header number 1 (counted from 0)".to_owned();
        assert_eq!(delivered.result, AttemptResult::Unreachable(reason), "{name:?}: {value:?}");
    }
    assert_eq!(deliverer.connections().opened, 0);
}

#[tokio::test]
async fn attempt_reports_invalid_url_or_method() {
    let deliverer = deliverer(Options::default());
    let urls = ["", "/hook", "ftp://host/", "http://", "http://user:secret@host/", "http://host:70000/", "http://a b/"];
    for url in urls {
        let delivered = sent(&deliverer, delivery(target(url.to_owned()), b"1")).await;
        let AttemptResult::Unreachable(reason) = delivered.result else { panic!("{url}: {delivered:?}") };
        assert!(reason.starts_with("invalid target URL: "), "{url}: {reason}");
        assert!(!reason.contains("secret"));
    }
    for method in ["", "CONNECT", "GET /other HTTP/1.1\r\nx: y", "PO ST"] {
        let mut to = target("http://host/".to_owned());
        to.method = method.to_owned();
        let delivered = sent(&deliverer, delivery(to, b"1")).await;
        let reason = "invalid target method".to_owned();
        assert_eq!(delivered.result, AttemptResult::Unreachable(reason), "{method:?}");
    }
    assert_eq!(deliverer.connections().opened, 0);
}

#[tokio::test]
async fn callback_without_payload_has_no_content_type() {
    let listening = Listening::start().await;
    let (_, received) = send(delivery(target(listening.url()), b""), &listening).await;
    assert_eq!(received.header("content-type"), None);
    assert_eq!(received.header("content-length"), Some("0"));
    verify(&received).unwrap();
}
