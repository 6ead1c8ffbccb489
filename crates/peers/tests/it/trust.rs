//! Tests of authentication: the listener accepts only requests of members, and the client accepts only responses of
//! members.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use membership::{Member, MemberId};
use peers::{ClusterSecret, HttpPeers, ListenerOptions, PeersOptions};
use runtime::Runtime;
use scheduler::{InvalidRequest, Peers, REQUEST_BYTES_MAX};
use stored::Take;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    NUDGE, SECRET, Setup, TestMember, answer_once, client, echo, intercepted, member, nudge, nudged, reason, secret,
    sent_raw, with_clock_off,
};

fn with_runtime(runtime: &Runtime) -> HttpPeers {
    HttpPeers::new(runtime, secret(), "sender", PeersOptions::default())
}

#[tokio::test]
async fn listener_rejects_request_from_a_member_of_another_cluster() {
    let server = TestMember::start(Setup { secret: [8; 32], ..Setup::default() }, echo);
    let server = server.await;
    let response = nudge(&client(), &member(server.address)).await;
    assert_eq!(
        reason(response),
        "the member rejected this cluster's secret (401); check whether the member belongs to another cluster"
    );
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn client_rejects_response_without_a_valid_mac() {
    let impostor = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(impostor.local_addr().unwrap());
    let body = b"yes";
    let proof = format!("reveille-peer-proof: {}\r\n", "ab".repeat(32));
    let unauthenticated = "the process at this address is not an authenticated member of this cluster";
    let cases = [
        ("200 OK", proof.as_str(), "the MAC of the response is not valid for this cluster's secret".to_owned()),
        ("403 Forbidden", &proof, "the MAC of the response is not valid for this cluster's secret".to_owned()),
        ("200 OK", "", format!("{unauthenticated} (status 200)")),
        ("200 OK", "reveille-peer-proof: ab\r\n", format!("{unauthenticated} (status 200)")),
        ("307 Temporary Redirect", "location: /elsewhere\r\n", format!("{unauthenticated} (status 307)")),
        ("500 Internal Server Error", "", format!("{unauthenticated} (status 500)")),
    ];
    for (status, headers, expected) in cases {
        let answer = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: 3\r\n\r\n");
        let answer = [answer.as_bytes(), body].concat();
        let peers = client();
        let (_request, response) = tokio::join!(answer_once(&impostor, &answer), nudge(&peers, &to));
        assert_eq!(reason(response), expected, "{status}");
    }
}

#[tokio::test]
async fn client_rejects_response_whose_body_does_not_match_its_mac() {
    let server = TestMember::echoing().await;
    let request = intercepted(&client(), &member(server.address)).await;
    let genuine = sent_raw(server.address, &request).await;
    assert!(genuine.starts_with("HTTP/1.1 200 OK"), "{genuine}");
    let impostor = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: impostor.local_addr().unwrap().to_string(), ..member(server.address) };
    // The impostor sends a body that differs from the body that the MAC covers.
    let head = genuine.split_once("\r\n\r\n").unwrap().0;
    let answer = [head.as_bytes(), b"\r\n\r\n", b"nudge:yes"].concat();
    let peers = client();
    let (_request, response) = tokio::join!(answer_once(&impostor, &answer), nudge(&peers, &to));
    assert_eq!(reason(response), "the MAC of the response is not valid for this cluster's secret");
}

#[tokio::test]
async fn listener_rejects_replayed_request() {
    let server = TestMember::echoing().await;
    let request = intercepted(&client(), &member(server.address)).await;
    assert!(sent_raw(server.address, &request).await.starts_with("HTTP/1.1 200 OK"));
    let again = sent_raw(server.address, &request).await;
    assert!(
        again.starts_with("HTTP/1.1 409 Conflict") && again.ends_with("this member already received this request"),
        "{again}"
    );
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn listener_rejects_request_for_another_member_or_session() {
    let server = TestMember::echoing().await;
    let other = Member { id: MemberId(1), ..member(server.address) };
    let expected = "the member rejected the request (421): the request is for another member or for an earlier session \
                    of this member";
    assert_eq!(reason(nudge(&client(), &other).await), expected);
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn rejection_because_of_clock_skew_names_the_times_of_both_members() {
    let server = TestMember::echoing().await;
    let to = member(server.address);
    for millis in [-31_000, 31_500] {
        let rejection = reason(nudge(&with_runtime(&with_clock_off(millis)), &to).await);
        let expected = "the member rejected the request (403): the sender's clock showed 20";
        assert!(rejection.starts_with(expected), "{rejection}");
        assert!(rejection.contains(", and this member's clock shows 20"), "{rejection}");
    }
    assert_eq!(server.handled(), 0);
    for millis in [-28_000, 28_000] {
        assert_eq!(nudge(&with_runtime(&with_clock_off(millis)), &to).await, nudged());
    }
}

#[tokio::test]
async fn listener_rejects_request_that_is_older_than_the_limit() {
    // The member's clock is 31 s ahead of the client's clock. The request is 31 s old for the member, which rejects
    // requests older than 30 s.
    let server = TestMember::start(Setup { runtime: with_clock_off(31_000), ..Setup::default() }, echo);
    let server = server.await;
    let request = intercepted(&client(), &member(server.address)).await;
    assert!(sent_raw(server.address, &request).await.starts_with("HTTP/1.1 403 Forbidden"));
}

#[tokio::test]
async fn listener_rejects_modified_request() {
    let server = TestMember::echoing().await;
    let request = intercepted(&client(), &member(server.address)).await;
    let mut other_body = request.clone();
    *other_body.last_mut().unwrap() ^= 1;
    let rejected = sent_raw(server.address, &other_body).await;
    assert!(
        rejected.starts_with("HTTP/1.1 400")
            && rejected.ends_with("the request's body does not match the hash in its headers"),
        "{rejected}"
    );
    // The MAC covers every `reveille-` header, so a changed digit in one of these headers makes the MAC invalid.
    let text = String::from_utf8_lossy(&request).into_owned();
    let names = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| name.starts_with("reveille-"));
    let mut count = 0;
    for (name, value) in names {
        let at = text.find(&format!("{name}: {value}")).unwrap() + name.len() + 2 + value.len() - 1;
        let mut changed = request.clone();
        changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
        let rejected = sent_raw(server.address, &changed).await;
        assert!(rejected.starts_with("HTTP/1.1 401") && rejected.contains("connection: close"), "{name}: {rejected}");
        count += 1;
    }
    assert_eq!((count, server.handled()), (7, 0));
}

#[tokio::test]
async fn rejection_of_unauthenticated_request_has_no_details() {
    let server = TestMember::echoing().await;
    let cases = [
        ("GET /peer/v2/request HTTP/1.1\r\nhost: a\r\n\r\n", "405"),
        ("POST /peer/v2/request HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "401"),
        ("POST /peer/v2/request?x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ];
    for (request, status) in cases {
        let answer = sent_raw(server.address, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains("connection: close") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("reveille"), "{answer}");
    }
    let long = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(64 * 1024));
    let answer = sent_raw(server.address, long.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
}

#[tokio::test]
async fn listener_closes_a_connection_that_never_authenticates() {
    let options = ListenerOptions { read_timeout: Duration::from_millis(50), ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo);
    let server = server.await;
    for first in ["", "POST /peer/v2/request HTTP/1.1\r\nreveille-peer-"] {
        assert_eq!(sent_raw(server.address, first.as_bytes()).await, "");
    }
}

/// Returns the head of a genuine [`nudge`] request. The MAC covers the hash of the body, but not the length of the
/// body.
async fn head_of_a_nudge(to: &Member) -> String {
    let request = intercepted(&client(), to).await;
    let text = String::from_utf8_lossy(&request).into_owned();
    let head = text.split_once("\r\n\r\n").unwrap().0.to_owned();
    assert!(head.contains("content-length: 3"), "{head}");
    head
}

#[tokio::test]
async fn listener_limits_the_declared_and_actual_length_of_a_body() {
    let server = TestMember::echoing().await;
    let to = member(server.address);
    let length = format!("content-length: {}", REQUEST_BYTES_MAX + 1);
    let head = head_of_a_nudge(&to).await.replace("content-length: 3", &length);
    let rejected = sent_raw(server.address, format!("{head}\r\n\r\n").as_bytes()).await;
    assert!(rejected.starts_with("HTTP/1.1 413"), "{rejected}");
    let head = head_of_a_nudge(&to).await.replace("content-length: 3", "transfer-encoding: chunked");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(format!("{head}\r\n\r\n{:x}\r\n", REQUEST_BYTES_MAX + 1).as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let body = vec![b'x'; REQUEST_BYTES_MAX + 1];
    let (_may_be_cut_off, answer) = tokio::join!(writing.write_all(&body), async {
        let mut answer = vec![0; 12];
        reading.read_exact(&mut answer).await.map(|_| answer)
    });
    assert_eq!(answer.unwrap(), b"HTTP/1.1 413");
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_rejects_request_whose_body_never_arrives() {
    let options = ListenerOptions { read_timeout: Duration::from_millis(200), ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo);
    let server = server.await;
    let head = head_of_a_nudge(&member(server.address)).await;
    let rejected = sent_raw(server.address, format!("{head}\r\n\r\nx").as_bytes()).await;
    assert!(rejected.starts_with("HTTP/1.1 408"), "{rejected}");
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_rejects_request_that_waits_too_long_for_a_permit() {
    let options =
        ListenerOptions { requests_max: 1, read_timeout: Duration::from_millis(200), ..ListenerOptions::default() };
    let begun = Arc::new(tokio::sync::Semaphore::new(0));
    let begins = begun.clone();
    let server = TestMember::start(Setup { options, ..Setup::default() }, move |_, _| {
        begins.add_permits(1);
        Box::pin(std::future::pending())
    });
    let server = server.await;
    let (peers, to) = (client(), member(server.address));
    let held = nudge(&peers, &to);
    let other = async {
        begun.acquire().await.unwrap().forget();
        nudge(&peers, &to).await
    };
    tokio::select! {
        biased;
        reply = held => panic!("unexpected response: {reply:?}"),
        other = other => {
            assert_eq!(
                reason(other),
                "the member rejected the request (503): this member has too many concurrent requests; try again later"
            );
        }
    }
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn rejection_states_why_the_request_is_invalid() {
    let server = TestMember::start(Setup::default(), |operation, request| {
        Box::pin(async move {
            if operation != NUDGE {
                return Err(InvalidRequest::UnknownOperation);
            }
            Ok(Take::new("a nudge", &request).version(9).map(|()| Bytes::new())?)
        })
    });
    let server = server.await;
    let (peers, to) = (client(), member(server.address));
    let rejection = reason(peers.request(&to, "dance", Bytes::new()).await);
    assert_eq!(rejection, "the member rejected the request (404): unknown operation");
    assert_eq!(
        reason(nudge(&peers, &to).await),
        "the member rejected the request (400): invalid request: a nudge is malformed at byte 1"
    );
    assert_eq!(server.handled(), 2);
}

#[tokio::test]
async fn client_does_not_send_an_oversized_request() {
    let server = TestMember::echoing().await;
    let body = Bytes::from(vec![b'x'; REQUEST_BYTES_MAX + 1]);
    let rejection = reason(client().request(&member(server.address), NUDGE, body).await);
    assert_eq!(rejection, "the request has 4194305 bytes; the limit is 4194304");
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_rejects_request_over_the_nonce_limit() {
    let options = ListenerOptions { nonces_max: 2, ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo);
    let server = server.await;
    let (peers, to) = (client(), member(server.address));
    for _ in 0..2 {
        assert_eq!(nudge(&peers, &to).await, nudged());
    }
    let rejection = reason(nudge(&peers, &to).await);
    assert_eq!(
        rejection,
        "the member rejected the request (503): this member received too many requests in a short time; try again later"
    );
}

#[tokio::test]
async fn listener_rejects_request_for_an_ended_session() {
    let session = Arc::new(AtomicUsize::new(1));
    let runtime = Runtime::real();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = peers::Listener::bind(&runtime, address, ListenerOptions::default()).await.unwrap();
    let at = listener.local_addr();
    let present = session.clone();
    let is_me: peers::IsCurrentSession = Arc::new(move |id| id == MemberId(present.load(Ordering::SeqCst) as u128));
    let handler: peers::Handler = Arc::new(echo);
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(ClusterSecret::new(&SECRET), is_me, handler, stop)));
    let (peers, to) = (client(), Member { id: MemberId(1), ..member(at) });
    assert_eq!(nudge(&peers, &to).await, nudged());
    session.store(2, Ordering::SeqCst);
    assert!(reason(nudge(&peers, &to).await).starts_with("the member rejected the request (421)"));
    assert_eq!(nudge(&peers, &Member { id: MemberId(2), ..to }).await, nudged());
}
