//! Tests of members that hang, disconnect, respond slowly, stop and restart.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use membership::Member;
use peers::{HttpPeers, ListenerOptions, PeersOptions};
use runtime::Runtime;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    HEAD, Setup, TestMember, accepted, answer_once, client, client_with_timeout, connected, echo, identity, member,
    nudge, nudged, read_message, reason,
};

#[tokio::test]
async fn request_to_hanging_member_fails_after_the_timeout() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(hanging.local_addr().unwrap());
    let peers = client_with_timeout(Duration::from_millis(500));
    let (mut stream, response) = tokio::join!(accepted(&hanging), nudge(&peers, &to));
    assert_eq!(reason(response), "no response within 500ms");
    // At the timeout, the client closes the connection, so the member receives no bytes after the request.
    assert!(read_message(&mut stream).await.starts_with(b"POST /peer/v3/request HTTP/1.1\r\n"));
    assert!(read_message(&mut stream).await.is_empty());
}

#[tokio::test]
async fn request_fails_at_once_after_a_truncated_or_invalid_response() {
    let breaking = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(breaking.local_addr().unwrap());
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nx";
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(64 * 1024));
    let cases = [
        ("", "connection closed before the response was complete"),
        ("HTTP/1.1 200", "connection closed before the response was complete"),
        (half, "connection closed before the response was complete"),
        ("220 smtp.example.org\r\n\r\n", "the response is not HTTP; check the member's peer address"),
        (endless.as_str(), "the response's head is too large"),
    ];
    for (answer, expected) in cases {
        let peers = client();
        let ((), response) = tokio::join!(answer_once(&breaking, answer.as_bytes()), nudge(&peers, &to));
        assert_eq!(reason(response), expected, "{answer:.60}");
    }
}

#[tokio::test]
async fn client_accepts_a_slow_response_only_within_the_timeout() {
    let server = TestMember::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(server.address) };
    let trickle = |pause: Duration| {
        let (between, address) = (&between, server.address);
        async move {
            let mut here = accepted(between).await;
            let request = read_message(&mut here).await;
            let mut there = connected(address).await;
            there.write_all(&request).await.unwrap();
            for byte in read_message(&mut there).await {
                Runtime::real().sleep(pause).await;
                if here.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        }
    };
    let (patient, hurried) = (client(), client_with_timeout(Duration::from_millis(100)));
    let (response, ()) = tokio::join!(nudge(&patient, &to), trickle(Duration::from_micros(100)));
    assert_eq!(response, nudged());
    let (response, ()) = tokio::join!(nudge(&hurried, &to), trickle(Duration::from_millis(5)));
    assert_eq!(reason(response), "no response within 100ms");
}

#[tokio::test]
async fn restarted_member_is_reachable_again() {
    let peers = client();
    let server = TestMember::echoing().await;
    let address = server.address;
    let to = member(address);
    assert_eq!(nudge(&peers, &to).await, nudged());
    server.stop.cancel();
    server.ended().await;
    assert_eq!(reason(nudge(&peers, &to).await), "connection refused");
    let back = TestMember::start(Setup { address, ..Setup::default() }, echo).await;
    assert_eq!(nudge(&peers, &to).await, nudged());
    assert_eq!(back.handled(), 1);
}

#[tokio::test]
async fn requests_succeed_after_the_member_closes_an_idle_connection() {
    let server = TestMember::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(server.address) };
    let peers = client();
    let carry = async {
        loop {
            // The proxy carries only one request per connection, although the client may try to reuse the connection.
            let mut here = accepted(&between).await;
            let request = read_message(&mut here).await;
            let mut there = connected(server.address).await;
            there.write_all(&request).await.unwrap();
            here.write_all(&read_message(&mut there).await).await.unwrap();
        }
    };
    let requests = async {
        for _ in 0..20 {
            assert_eq!(nudge(&peers, &to).await, nudged());
        }
    };
    tokio::select! { biased; () = carry => {} () = requests => {} }
    assert_eq!(server.handled(), 20);
}

#[tokio::test]
async fn listener_closes_idle_peer_connection() {
    let options = ListenerOptions { idle_timeout: Duration::from_millis(50), ..ListenerOptions::default() };
    let server = TestMember::start(Setup { options, ..Setup::default() }, echo);
    let server = server.await;
    let mut stream = connected(server.address).await;
    stream.write_all(format!("{HEAD}content-length: 3\r\n\r\nnow").as_bytes()).await.unwrap();
    assert!(read_message(&mut stream).await.starts_with(b"HTTP/1.1 200 OK"));
    assert!(read_message(&mut stream).await.is_empty());
}

#[tokio::test]
async fn sequential_requests_share_one_connection() {
    let server = TestMember::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(server.address) };
    let peers = client();
    let requests = async {
        for _ in 0..10 {
            assert_eq!(nudge(&peers, &to).await, nudged());
        }
    };
    let carry = async {
        let (mut here, _) = between.accept().await.unwrap();
        let mut there = TcpStream::connect(server.address).await.unwrap();
        let _ends = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    };
    // The test serves only one connection, so a request on a second connection would never receive a response.
    tokio::select! { biased; () = requests => {} () = carry => panic!("the connection was closed") }
}

#[tokio::test]
async fn client_opens_a_new_connection_when_its_connection_is_too_old() {
    let server = TestMember::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(server.address) };
    let options = PeersOptions { connection_age_max: Duration::from_nanos(1), ..PeersOptions::default() };
    let peers = HttpPeers::new(&Runtime::real(), identity(), "sender", options);
    let opened = AtomicUsize::new(0);
    let carry = async || {
        let (mut here, _) = between.accept().await.unwrap();
        opened.fetch_add(1, Ordering::SeqCst);
        let mut there = TcpStream::connect(server.address).await.unwrap();
        let _ends = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    };
    let requests = async {
        for _ in 0..3 {
            assert_eq!(nudge(&peers, &to).await, nudged());
        }
    };
    tokio::select! {
        biased;
        () = requests => {}
        _ = async { tokio::join!(carry(), carry(), carry()) } => panic!("all connections were closed"),
    }
    assert_eq!(opened.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn client_rejects_member_address_that_is_not_host_and_port() {
    for address in ["", "nowhere", "a b:1", "user@127.0.0.1:1", "127.0.0.1:1/path", "http://127.0.0.1:1"] {
        let to = Member { address: address.to_owned(), ..member("127.0.0.1:1".parse().unwrap()) };
        let expected = format!("the member's peer address {address:?} does not have the form HOST:PORT");
        assert_eq!(reason(nudge(&client(), &to).await), expected);
    }
}

#[tokio::test]
async fn connection_attempt_fails_after_the_connect_timeout() {
    // The test fills the backlog of the socket, so the kernel lets further connections wait.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    let connect = || TcpStream::connect(address);
    while let Some(stream) = Runtime::real().timeout(Duration::from_millis(100), connect()).await {
        waiting.push(stream.unwrap());
    }
    let options = PeersOptions { connect_timeout: Duration::from_millis(100), ..PeersOptions::default() };
    let peers = HttpPeers::new(&Runtime::real(), identity(), "sender", options);
    assert_eq!(reason(nudge(&peers, &member(address)).await), "connection timed out");
}
