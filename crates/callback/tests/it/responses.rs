//! Tests of the result of an attempt for each kind of response.

use std::sync::Arc;
use std::time::Duration;

use callback::Options;
use domain::{AttemptResult, NOT_DECRYPTED, Target};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};
use store::{Keyring, StoreKey};

use crate::support::{Listening, deliverer, delivery, sent, target};

/// Makes one attempt. The target sends `answer` and then closes the connection.
async fn answered(answer: &[u8]) -> Delivered {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let serve = async { drop(listening.serve(answer).await) };
    let (delivered, ()) = tokio::join!(sent(&deliverer, delivery(target(listening.url()), b"1")), serve);
    delivered
}

fn broken(reason: &str) -> Delivered {
    Delivered { result: AttemptResult::Unreachable(reason.to_owned()), retry_after: None, excerpt: None }
}

#[tokio::test]
async fn attempt_succeeds_only_if_the_status_is_200_to_299() {
    for (status, succeeds) in
        [(200, true), (204, true), (299, true), (300, false), (304, false), (410, false), (500, false)]
    {
        let delivered = answered(format!("HTTP/1.1 {status} Text\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
        assert_eq!(delivered.result, AttemptResult::Answered(status));
        assert_eq!(delivered.result.is_success(), succeeds);
    }
}

#[tokio::test]
async fn attempt_without_decryption_key_fails_before_it_connects() {
    let listening = Listening::start().await;
    let runtime = Runtime::real();
    let mut target = target(listening.url());
    let mut delivery = delivery(target.clone(), b"1");
    let keyring = Keyring::new(vec![StoreKey::generate(&runtime).0]);
    target.headers = vec![("authorization".to_owned(), "Bearer a.b".into())];
    let schedule = Arc::make_mut(&mut delivery.schedule);
    schedule.spec.target = Target::Http(target);
    keyring.encrypt_schedule(&runtime, &mut delivery.schedule);
    let another = Keyring::new(vec![StoreKey::generate(&runtime).0]);
    let deliverer = deliverer(Options { keyring: Arc::new(another), ..Options::default() });
    let delivered = sent(&deliverer, delivery).await;
    let AttemptResult::Unreachable(reason) = &delivered.result else { panic!("{delivered:?}") };
    assert!(reason.starts_with(NOT_DECRYPTED) && !reason.contains("a.b"), "{reason}");
    assert_eq!(deliverer.connections().opened, 0);
}

#[tokio::test]
async fn attempt_to_another_origin_than_that_of_its_headers_fails() {
    let (intended, other) = (Listening::start().await, Listening::start().await);
    let runtime = Runtime::real();
    let keyring = Keyring::new(vec![StoreKey::generate(&runtime).0]);
    let mut target = target(intended.url());
    target.headers = vec![("authorization".to_owned(), "Bearer a.b".into())];
    let mut delivery = delivery(target, b"1");
    keyring.encrypt_schedule(&runtime, &mut delivery.schedule);
    let deliverer = deliverer(Options { keyring: Arc::new(keyring), ..Options::default() });
    let redirected = |url: String| {
        let mut delivery = delivery.clone();
        let Target::Http(http) = &mut Arc::make_mut(&mut delivery.schedule).spec.target else {
            panic!("the target is an HTTP target")
        };
        http.url = url;
        delivery
    };
    let delivered = sent(&deliverer, redirected(other.url())).await;
    let AttemptResult::Unreachable(reason) = &delivered.result else { panic!("{delivered:?}") };
    assert!(
        reason.starts_with(NOT_DECRYPTED) && reason.contains("host or port was changed without the API"),
        "{reason}"
    );
    assert!(!reason.contains("a.b"), "{reason}");
    assert_eq!(deliverer.connections().opened, 0);

    let attempt = sent(&deliverer, redirected(intended.url().replace("/hook", "/other/path")));
    let (delivered, (_, request)) = tokio::join!(attempt, intended.serve(b"HTTP/1.1 204 No\r\n\r\n"));
    assert_eq!(delivered.result, AttemptResult::Answered(204));
    assert_eq!(request.header("authorization"), Some("Bearer a.b"));
}

#[tokio::test]
async fn client_does_not_follow_a_redirect() {
    let listening = Listening::start().await;
    let elsewhere = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let answer = format!("HTTP/1.1 307 Moved\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let attempt = sent(&deliverer, delivery(target(listening.url()), b"1"));
    let (delivered, _served) = tokio::join!(attempt, listening.serve(answer.as_bytes()));
    assert_eq!(delivered.result, AttemptResult::Answered(307));
    assert_eq!(deliverer.connections().opened, 1);
}

#[tokio::test]
async fn client_reads_the_retry_after_header_only_from_an_error_response() {
    let with = |status: u16, wait: &str| {
        format!("HTTP/1.1 {status} Text\r\nretry-after: {wait}\r\ncontent-length: 0\r\n\r\n").into_bytes()
    };
    assert_eq!(answered(&with(429, "7")).await.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(answered(&with(503, "Thu, 01 Jan 1970 00:00:00 GMT")).await.retry_after, Some(Duration::ZERO));
    let far = answered(&with(500, "Fri, 31 Dec 9999 23:59:59 GMT")).await.retry_after;
    assert!(far.is_some_and(|wait| wait > Duration::from_secs(86_400 * 365)));
    assert_eq!(answered(&with(500, "later")).await.retry_after, None);
    assert_eq!(answered(&with(200, "7")).await.retry_after, None);
}

#[tokio::test]
async fn truncated_response_fails_the_attempt() {
    let incomplete = broken("connection closed before the response was complete");
    assert_eq!(answered(b"").await, incomplete);
    assert_eq!(answered(b"HTTP/1.1 200 O").await, incomplete);
    assert_eq!(answered(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n0123456789").await, incomplete);
    assert_eq!(answered(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01").await, incomplete);
}

#[tokio::test]
async fn response_without_length_ends_when_the_connection_closes() {
    let delivered = answered(b"HTTP/1.1 200 OK\r\n\r\nup to the end").await;
    assert_eq!(delivered.result, AttemptResult::Answered(200));
}

#[tokio::test]
async fn attempt_reports_response_that_is_not_http() {
    assert_eq!(answered(b"SSH-2.0-OpenSSH_9.6\r\n\r\n").await, broken("the response is not HTTP"));
}

#[tokio::test]
async fn client_rejects_a_response_head_that_never_ends() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let serve = async {
        let (mut peer, _) = listening.serve(b"HTTP/1.1 200 OK\r\nx: ").await;
        peer.send_for_ever(&[b'y'; 4096]).await;
    };
    let (delivered, ()) = tokio::join!(sent(&deliverer, delivery(target(listening.url()), b"1")), serve);
    assert_eq!(delivered, broken("the response's head is too large"));
}

#[tokio::test]
async fn client_stops_reading_endless_body_and_returns_the_status() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let serve = async {
        let head = b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n";
        let (mut peer, _) = listening.serve(head).await;
        peer.send_for_ever(b"a\r\n0123456789\r\n").await;
    };
    let (delivered, ()) = tokio::join!(sent(&deliverer, delivery(target(listening.url()), b"1")), serve);
    assert_eq!(delivered.result, AttemptResult::Answered(201));
    assert_eq!(deliverer.connections().idle, 0);
}

#[tokio::test]
async fn client_retains_connection_only_if_response_body_is_within_limit() {
    for (len, idle) in [(1000, 1), (1001, 0)] {
        let listening = Listening::start().await;
        let deliverer = deliverer(Options { answer_bytes_max: 1000, ..Options::default() });
        let answer =
            [format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n").as_bytes(), &vec![b'z'; len]].concat();
        let attempt = sent(&deliverer, delivery(target(listening.url()), b"1"));
        let (delivered, _served) = tokio::join!(attempt, listening.serve(&answer));
        assert_eq!(delivered.result, AttemptResult::Answered(200));
        assert_eq!(deliverer.connections().idle, idle, "{len} bytes");
    }
}

/// Makes an attempt with a short timeout. The target sends `answer`, then sends no more bytes.
async fn timed_out(answer: &[u8]) {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let mut to = target(listening.url());
    to.timeout = Duration::from_millis(60);
    let serve = async { listening.serve(answer).await.0.closed().await };
    let (delivered, ()) = tokio::join!(sent(&deliverer, delivery(to, b"1")), serve);
    assert_eq!(delivered, Delivered { result: AttemptResult::TimedOut, retry_after: None, excerpt: None });
}

#[tokio::test]
async fn timeout_ends_the_attempt_and_closes_the_connection() {
    timed_out(b"").await;
    timed_out(b"HTTP/1.1 200 OK\r\n").await;
    timed_out(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345").await;
}

#[tokio::test]
async fn errors_distinguish_refused_connection_from_unknown_host() {
    let listening = Listening::start().await;
    let url = listening.url();
    drop(listening);
    let deliverer = deliverer(Options::default());
    let delivered = sent(&deliverer, delivery(target(url), b"1")).await;
    assert_eq!(delivered, broken("connection refused"));
    let delivered = sent(&deliverer, delivery(target("http://no..name/".to_owned()), b"1")).await;
    assert_eq!(delivered, broken("the resolver cannot resolve the host name"));
}

#[tokio::test]
async fn client_sends_nothing_after_the_deadline() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let deadline = Runtime::real().monotonic();
    let late = Delivery { deadline, ..delivery(target(listening.url()), b"1") };
    let serve = async { listening.accept().await.closed().await };
    assert_eq!(tokio::join!(deliverer.deliver(late), serve).0, None);
}
