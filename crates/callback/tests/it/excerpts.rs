//! Tests of the excerpts of responses. An excerpt never changes the result of an attempt or the use of its connection.

use std::sync::Arc;
use std::time::Duration;

use callback::Options;
use domain::limits::EXCERPT_BYTES_MAX;
use domain::{AttemptResult, Tenant};
use scheduler::{Delivered, Delivery};

use crate::support::{Listening, deliverer, delivery, sent, target};

/// Returns the delivery for a tenant that has switched excerpts on or off.
fn with_excerpts(is_on: bool, delivery: Delivery) -> Delivery {
    let tenant = Tenant { excerpts: is_on, ..(*delivery.tenant).clone() };
    Delivery { tenant: Arc::new(tenant), ..delivery }
}

/// Behaviour of a target after it has sent its response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Close,
    Wait,
    /// Sends one more byte every 10 ms.
    Trickle,
    /// Sends more chunks of a chunked body without an end.
    Endless,
}

/// Timeout of an attempt that must time out, and of an attempt that must not.
const TIMEOUTS: [Duration; 2] = [Duration::from_millis(150), Duration::from_secs(30)];

/// Makes one attempt. Returns its result, and the number of idle connections after it.
async fn answered(is_on: bool, answer: &[u8], then: Then, timeout: Duration) -> (Delivered, usize) {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let mut to = target(listening.url());
    to.timeout = timeout;
    let serve = async {
        let (mut peer, _) = listening.serve(answer).await;
        match then {
            Then::Close => drop(peer),
            Then::Wait => std::future::pending().await,
            Then::Trickle => loop {
                runtime::Runtime::real().sleep(Duration::from_millis(10)).await;
                peer.send(b"t").await;
            },
            Then::Endless => peer.send_for_ever(b"a\r\n0123456789\r\n").await,
        }
        std::future::pending().await
    };
    tokio::select! {
        delivered = sent(&deliverer, with_excerpts(is_on, delivery(to, b"1"))) => {
            (delivered, deliverer.connections().idle)
        }
        () = serve => unreachable!("the target never ends"),
    }
}

fn excerpt(delivered: &Delivered) -> Option<&[u8]> {
    delivered.excerpt.as_ref().map(|excerpt| excerpt.plain().expect("the store encrypts the excerpt later").as_ref())
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// Asserts that the attempt has this result and this excerpt if excerpts are on, and the same result and no excerpt if
/// they are off. The number of idle connections must be equal, too.
#[track_caller]
fn check(on: &(Delivered, usize), off: &(Delivered, usize), result: &AttemptResult, expected: Option<&[u8]>) {
    assert_eq!((&on.0.result, &off.0.result), (result, result));
    assert_eq!((on.0.retry_after, on.1), (off.0.retry_after, off.1));
    assert_eq!(excerpt(&off.0), None, "excerpts are off");
    assert_eq!(excerpt(&on.0), expected);
}

/// Name, response, behaviour after it, result of the attempt, and excerpt.
type Case<'a> = (&'a str, Vec<u8>, Then, AttemptResult, Option<&'a [u8]>);

#[tokio::test]
async fn excerpt_has_the_first_bytes_and_changes_nothing_else() {
    let long: Vec<u8> = (0..5_000_u32).map(|number| (number % 251) as u8).collect();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xed\xd0";
    let zipped = [b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 12\r\n\r\n".as_slice(), gzip].concat();
    let incomplete = AttemptResult::Unreachable("connection closed before the response was complete".to_owned());
    let full = vec![b'z'; EXCERPT_BYTES_MAX];
    let endless = b"0123456789".repeat(103);
    let ok = || AttemptResult::Answered(200);
    let cases: [Case; 13] = [
        ("no body", b"HTTP/1.1 204 No\r\n\r\n".to_vec(), Then::Wait, AttemptResult::Answered(204), None),
        ("short", with_length(b"{\"ok\":false}"), Then::Wait, ok(), Some(b"{\"ok\":false}")),
        (
            "error",
            b"HTTP/1.1 503 No\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy".to_vec(),
            Then::Wait,
            AttemptResult::Answered(503),
            Some(b"busy"),
        ),
        ("exactly full", with_length(&full), Then::Wait, ok(), Some(&full)),
        ("longer", with_length(&long), Then::Wait, ok(), Some(&long[..EXCERPT_BYTES_MAX])),
        (
            "chunked",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n".to_vec(),
            Then::Wait,
            ok(),
            Some(b"abcde"),
        ),
        (
            "invalid UTF-8 and escape sequences",
            with_length(b"\xff\xfe\x1b[2J\0"),
            Then::Wait,
            ok(),
            Some(b"\xff\xfe\x1b[2J\0"),
        ),
        ("compressed", zipped, Then::Wait, ok(), Some(gzip)),
        (
            "endless",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
            Then::Endless,
            ok(),
            Some(&endless[..EXCERPT_BYTES_MAX]),
        ),
        (
            "stalls",
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345".to_vec(),
            Then::Wait,
            AttemptResult::TimedOut,
            Some(b"12345"),
        ),
        (
            "stalls before the body",
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n".to_vec(),
            Then::Wait,
            AttemptResult::TimedOut,
            None,
        ),
        (
            "ends early",
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345".to_vec(),
            Then::Close,
            incomplete,
            Some(b"12345"),
        ),
        ("without length", b"HTTP/1.1 200 OK\r\n\r\nup to the end".to_vec(), Then::Close, ok(), Some(b"up to the end")),
    ];
    for (name, answer, then, result, expected) in &cases {
        println!("{name}");
        let timeout = TIMEOUTS[usize::from(*result != AttemptResult::TimedOut)];
        let (on, off) = tokio::join!(answered(true, answer, *then, timeout), answered(false, answer, *then, timeout));
        check(&on, &off, result, *expected);
    }
}

#[tokio::test]
async fn slow_body_delays_an_attempt_with_excerpts_no_longer_than_without() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
    let attempt = |is_on| answered(is_on, answer, Then::Trickle, TIMEOUTS[0]);
    let (on, off) = tokio::join!(attempt(true), attempt(false));
    assert_eq!((&on.0.result, &off.0.result), (&AttemptResult::TimedOut, &AttemptResult::TimedOut));
    assert_eq!(off.0.excerpt, None);
    assert!(excerpt(&on.0).is_some_and(|bytes| bytes.iter().all(|byte| *byte == b't')));
}

#[tokio::test]
async fn excerpts_start_and_stop_with_the_setting_on_one_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let serve = async {
        let mut peer = listening.accept().await;
        loop {
            peer.request().await;
            peer.send(&with_length(b"answer")).await;
        }
    };
    let attempts = async {
        for is_on in [false, true, false, true] {
            let delivered = sent(&deliverer, with_excerpts(is_on, delivery(target(listening.url()), b"1"))).await;
            assert_eq!(excerpt(&delivered), is_on.then_some(b"answer".as_slice()));
            assert!(!format!("{delivered:?}").contains("answer"), "the debug text does not contain the excerpt");
        }
    };
    tokio::select! {
        () = attempts => {}
        () = serve => unreachable!("the target never ends"),
    }
    assert_eq!(deliverer.connections().opened, 1);
}
