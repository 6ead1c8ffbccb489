//! Tests of authentication: members accept connections only from members, and send requests only to the right member.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use membership::{Member, MemberId};
use peers::{Identity, ListenerOptions};
use runtime::Runtime;
use scheduler::{InvalidRequest, PeerError, Peers, REQUEST_BYTES_MAX};
use stored::Take;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    HEAD, NUDGE, Setup, TestMember, authority, client, client_of, connected, echo, identity, identity_of, member,
    nudge, nudged, reason, sent_raw, with_clock, with_clock_off,
};

const HOUR: i64 = 3_600_000;

async fn member_with(identity: Identity) -> TestMember {
    TestMember::start(Setup { identity, ..Setup::default() }, echo).await
}

#[tokio::test]
async fn caller_rejects_a_member_of_another_cluster() {
    let server = member_with(identity_of(&Runtime::real(), 1, &[0])).await;
    let response = nudge(&client(), &member(server.address)).await;
    assert_eq!(
        reason(response),
        "no authority of this cluster issued the peer's certificate; check whether the peer belongs to another cluster"
    );
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_rejects_a_caller_of_another_cluster() {
    let server = TestMember::echoing().await;
    let foreign = client_of(identity_of(&Runtime::real(), 1, &[0]));
    assert_eq!(
        reason(nudge(&foreign, &member(server.address)).await),
        "the peer rejected this member's certificate; the log of the peer names the reason"
    );
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn process_without_a_certificate_gets_no_response() {
    let server = TestMember::echoing().await;
    let request = format!("{HEAD}content-length: 3\r\n\r\nnow");
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    plain.read_to_end(&mut response).await.unwrap();
    assert!(!String::from_utf8_lossy(&response).contains("HTTP"), "{response:?}");
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_closes_a_connection_without_a_handshake() {
    let options = ListenerOptions { read_timeout: Duration::from_millis(50), ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(silent.read(&mut [0; 16]).await.unwrap(), 0);
    // This peer proves that it is a member, but sends no complete request.
    for first in ["", "POST /peer/v3/request HTTP/1.1\r\nreveille-peer-"] {
        assert_eq!(sent_raw(server.address, first).await, "");
    }
}

#[tokio::test]
async fn member_with_a_wrong_clock_is_rejected_with_the_reason() {
    let with_clock = |millis| identity_of(&with_clock_off(millis), 0, &[]);
    let server = TestMember::echoing().await;
    for (millis, of_its_member, of_the_caller) in [
        (HOUR, "the peer's certificate is not valid yet by this member's clock", "the peer rejected this member's"),
        (
            -8 * 24 * HOUR,
            "the peer's certificate has expired by this member's clock",
            "the peer's certificate is not valid yet",
        ),
    ] {
        let wrong = member_with(with_clock(millis)).await;
        let rejection = reason(nudge(&client(), &member(wrong.address)).await);
        assert!(rejection.starts_with(of_its_member) && rejection.contains("synchronize the clocks"), "{rejection}");
        let rejection = reason(nudge(&client_of(with_clock(millis)), &member(server.address)).await);
        assert!(rejection.starts_with(of_the_caller), "{rejection}");
        assert_eq!((wrong.handled(), server.handled()), (0, 0));
    }
    for millis in [-4 * 60_000, 4 * 60_000] {
        assert_eq!(nudge(&client_of(with_clock(millis)), &member(server.address)).await, nudged());
    }
}

#[tokio::test]
async fn members_renew_their_certificates_before_they_expire() {
    let minutes = |minutes: i64| 60_000 * minutes;
    let (here, there) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(minutes(4))));
    // Each request uses a connection of its own.
    let options = ListenerOptions { connection_age_max: Duration::ZERO, ..ListenerOptions::default() };
    let setup = Setup { identity: identity_of(&with_clock(&there), 0, &[]), options, ..Setup::default() };
    let server = TestMember::start(setup, echo).await;
    let (peers, to) = (client_of(identity_of(&with_clock(&here), 0, &[])), member(server.address));
    // Two minutes before the end of a week, the first certificates are still valid by the clock of the caller, but not by
    // the clock of the listener.
    for passed in [0, 7 * 24 * HOUR - minutes(2), 20 * 24 * HOUR, 2 * 24 * HOUR] {
        here.store(passed, Ordering::SeqCst);
        there.store(passed + minutes(4), Ordering::SeqCst);
        assert_eq!(nudge(&peers, &to).await, nudged(), "{passed} ms");
    }
}

#[tokio::test]
async fn caller_does_not_send_a_request_to_another_session() {
    let server = TestMember::echoing().await;
    let other = Member { id: MemberId(1), ..member(server.address) };
    assert_eq!(
        reason(nudge(&client(), &other).await),
        "the member at this address has another session, because it restarted or lost its session"
    );
    assert_eq!(server.handled(), 0);
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
    drop(runtime.spawn("listener", listener.serve_until(identity(), is_me, handler, stop)));
    let (peers, to) = (client(), Member { id: MemberId(1), ..member(at) });
    assert_eq!(nudge(&peers, &to).await, nudged());
    session.store(2, Ordering::SeqCst);
    assert!(reason(nudge(&peers, &to).await).starts_with("the member rejected the request (421)"));
    assert_eq!(nudge(&peers, &Member { id: MemberId(2), ..to }).await, nudged());
}

#[tokio::test]
async fn rotation_of_the_authority_needs_no_restart() {
    let (here, there) = (identity(), identity());
    let server = member_with(there.clone()).await;
    let (peers, to) = (client_of(here.clone()), member(server.address));
    assert_eq!(nudge(&peers, &to).await, nudged());
    for (issuer, other) in [(0, Some(1)), (1, Some(0)), (1, None)] {
        for identity in [&here, &there] {
            identity.replace(authority(issuer), &other.map(authority).into_iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(nudge(&peers, &to).await, nudged(), "{issuer} {other:?}");
        }
    }
    // The old authority is no longer valid, also for a caller that had a connection.
    assert!(nudge(&client(), &to).await.is_err());
}

#[tokio::test]
async fn listener_serves_no_request_of_a_caller_of_a_dropped_authority() {
    let identity = identity();
    let server = member_with(identity.clone()).await;
    let (peers, to) = (client(), member(server.address));
    assert_eq!(nudge(&peers, &to).await, nudged());
    identity.replace(authority(1), &[]).unwrap();
    let expected = "the member rejected the request (403): this member no longer trusts the caller's certificate";
    assert_eq!(reason(nudge(&peers, &to).await), expected);
    assert!(reason(nudge(&peers, &to).await).contains("no authority of this cluster issued the peer's certificate"));
    assert_eq!(server.handled(), 1);
    // The member learns that the cluster may have another authority.
    assert!(nudge(&client_of(identity_of(&Runtime::real(), 0, &[1])), &to).await.is_err());
    assert!(Runtime::real().timeout(Duration::from_secs(5), identity.mismatch()).await.is_some());
}

/// The listener does not close its connections. It could be a process that has the key of a dropped authority.
#[tokio::test]
async fn caller_sends_no_request_to_a_listener_of_a_dropped_authority() {
    let identity = identity();
    let server = TestMember::echoing().await;
    let (peers, to) = (client_of(identity.clone()), member(server.address));
    assert_eq!(nudge(&peers, &to).await, nudged());
    identity.replace(authority(1), &[authority(0)]).unwrap();
    assert_eq!(
        reason(nudge(&peers, &to).await),
        "the peer rejected this member's certificate; the log of the peer names the reason"
    );
    identity.replace(authority(1), &[]).unwrap();
    assert!(reason(nudge(&peers, &to).await).contains("no authority of this cluster issued the peer's certificate"));
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn listener_closes_a_connection_that_is_too_old() {
    let options = ListenerOptions { connection_age_max: Duration::ZERO, ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo).await;
    let response = sent_raw(server.address, &format!("{HEAD}content-length: 3\r\n\r\nnow")).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("connection: close"), "{response}");
}

/// Proxy that records the bytes of both directions, and may change one byte of a request.
struct Recorder {
    address: SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Number of bytes from the caller.
    sent: Arc<AtomicUsize>,
}

impl Recorder {
    /// `change` is the number of the byte from the caller that the proxy inverts.
    async fn start(to: SocketAddr, change: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let recorder =
            Recorder { address: listener.local_addr().unwrap(), bytes: Arc::default(), sent: Arc::default() };
        let (bytes, count) = (recorder.bytes.clone(), recorder.sent.clone());
        let serve = async move {
            let (mut here, _) = listener.accept().await.unwrap();
            let mut there = TcpStream::connect(to).await.unwrap();
            let ((mut from_here, mut to_here), (mut from_there, mut to_there)) = (here.split(), there.split());
            let (mut request, mut response, mut sent) = ([0; 4_096], [0; 4_096], 0);
            loop {
                tokio::select! {
                    Ok(length @ 1..) = from_here.read(&mut request) => {
                        bytes.lock().unwrap().extend(&request[..length]);
                        if let Some(at) = change.filter(|at| (sent..sent + length).contains(at)) {
                            request[at - sent] ^= 1;
                        }
                        sent += length;
                        count.store(sent, Ordering::SeqCst);
                        to_there.write_all(&request[..length]).await.unwrap();
                    }
                    Ok(length @ 1..) = from_there.read(&mut response) => {
                        bytes.lock().unwrap().extend(&response[..length]);
                        to_here.write_all(&response[..length]).await.unwrap();
                    }
                    else => return,
                }
            }
        };
        drop(Runtime::real().spawn("recorder", serve));
        recorder
    }
}

#[tokio::test]
async fn recorded_connection_contains_no_byte_of_a_request_and_cannot_be_replayed() {
    let server = TestMember::echoing().await;
    let recorder = Recorder::start(server.address, None).await;
    let to = Member { address: recorder.address.to_string(), ..member(server.address) };
    let payload = Bytes::from_static(b"amount: 1200 EUR, account: DE02120300000000202051");
    let response = client().request(&to, NUDGE, payload.clone()).await.unwrap();
    assert!(response.ends_with(&payload), "the response contains the payload, too");
    let recorded = recorder.bytes.lock().unwrap().clone();
    for text in [&payload[..], &payload[..8], NUDGE.as_bytes(), b"sender", b"HTTP/1.1"] {
        assert!(!recorded.windows(text.len()).any(|window| window == text), "{text:?}");
    }
    let mut replay = TcpStream::connect(server.address).await.unwrap();
    // The member may close the connection before it has received all bytes.
    let _may_fail = replay.write_all(&recorded).await;
    let _may_fail = replay.read_to_end(&mut Vec::new()).await;
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn listener_rejects_a_request_that_was_changed_on_its_way() {
    let server = TestMember::echoing().await;
    let recorder = Recorder::start(server.address, None).await;
    let through = |recorder: &Recorder| Member { address: recorder.address.to_string(), ..member(server.address) };
    assert_eq!(nudge(&client(), &through(&recorder)).await, nudged());
    assert_eq!(server.handled(), 1);
    let length = recorder.sent.load(Ordering::SeqCst);
    // The caller sends the handshake first, and then the request of more than 100 bytes. The length of the handshake
    // varies by some bytes.
    for at in [20, 300, length - 100, length - 20] {
        let recorder = Recorder::start(server.address, Some(at)).await;
        assert!(nudge(&client(), &through(&recorder)).await.is_err(), "{at}");
    }
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn listener_rejects_requests_that_are_not_operations() {
    let server = TestMember::echoing().await;
    let cases = [
        ("GET /peer/v3/request HTTP/1.1\r\nhost: a\r\n\r\n", "405"),
        ("POST /peer/v3/request HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "400"),
        ("POST /peer/v3/request?x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ];
    for (request, status) in cases {
        let answer = sent_raw(server.address, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let long = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(64 * 1024));
    let answer = sent_raw(server.address, &long).await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn check_reaches_the_member_but_not_its_handler() {
    let server = TestMember::echoing().await;
    assert_eq!(client().check(&member(server.address)).await, Ok(()));
    assert!(client_of(identity_of(&Runtime::real(), 1, &[0])).check(&member(server.address)).await.is_err());
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn listener_limits_the_declared_and_actual_length_of_a_body() {
    let server = TestMember::echoing().await;
    let rejected = sent_raw(server.address, &format!("{HEAD}content-length: {}\r\n\r\n", REQUEST_BYTES_MAX + 1)).await;
    assert!(rejected.starts_with("HTTP/1.1 413"), "{rejected}");
    let mut stream = connected(server.address).await;
    let head = format!("{HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n", REQUEST_BYTES_MAX + 1);
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = tokio::io::split(stream);
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
    let rejected = sent_raw(server.address, &format!("{HEAD}content-length: 3\r\n\r\nx")).await;
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
    let rejection = peers.request(&to, "dance", Bytes::new()).await;
    assert!(matches!(rejection, Err(PeerError::UnknownOperation { .. })), "{rejection:?}");
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
