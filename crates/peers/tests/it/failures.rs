//! Members that hang, break off, trickle, go away and come back.

use std::time::Duration;

use membership::Member;
use peers::{HttpPeers, ListenerOptions, PeersOptions};
use runtime::Runtime;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::support::{
    Answering, Setup, answer_once, asking, echo, hurried, intercepted, member, nudge, nudged, read_message, reason,
    secret, sent_raw_bytes,
};

#[tokio::test]
async fn a_member_that_takes_the_ask_and_hangs_is_unreachable_in_time() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(hanging.local_addr().unwrap());
    let peers = hurried(Duration::from_millis(500));
    let (mut stream, asked) = tokio::join!(async { hanging.accept().await.unwrap().0 }, nudge(&peers, &to));
    assert_eq!(reason(asked), "no answer within 500ms");
    // And the connection is given up: all that comes is the ask, and then its end.
    assert!(read_message(&mut stream).await.starts_with(b"POST /peer/v2/request HTTP/1.1\r\n"));
    assert!(read_message(&mut stream).await.is_empty());
}

#[tokio::test]
async fn a_member_that_breaks_off_is_unreachable_at_once() {
    let breaking = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(breaking.local_addr().unwrap());
    let proof = "ab".repeat(32);
    let half = format!("HTTP/1.1 200 OK\r\nreveille-peer-proof: {proof}\r\ncontent-length: 3\r\n\r\nx");
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(64 * 1024));
    let cases = [
        ("", "connection closed before the answer was complete"),
        ("HTTP/1.1 200", "connection closed before the answer was complete"),
        (half.as_str(), "connection closed before the answer was complete"),
        ("220 smtp.example.org\r\n\r\n", "its answer is not HTTP"),
        (endless.as_str(), "the head of its answer is too large"),
    ];
    for (answer, expected) in cases {
        let peers = asking();
        let (_request, asked) = tokio::join!(answer_once(&breaking, answer.as_bytes()), nudge(&peers, &to));
        assert_eq!(reason(asked), expected, "{answer:.60}");
    }
}

#[tokio::test]
async fn an_answer_that_trickles_in_comes_whole_or_too_late() {
    let answering = Answering::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(answering.address) };
    let trickle = |pause: Duration| {
        let (between, address) = (&between, answering.address);
        async move {
            let (mut stream, _) = between.accept().await.unwrap();
            let request = read_message(&mut stream).await;
            let mut there = tokio::net::TcpStream::connect(address).await.unwrap();
            there.write_all(&request).await.unwrap();
            for byte in read_message(&mut there).await {
                Runtime::real().sleep(pause).await;
                if stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        }
    };
    let (patient, impatient) = (asking(), hurried(Duration::from_millis(100)));
    let (asked, ()) = tokio::join!(nudge(&patient, &to), trickle(Duration::from_micros(100)));
    assert_eq!(asked, nudged());
    let (asked, ()) = tokio::join!(nudge(&impatient, &to), trickle(Duration::from_millis(5)));
    assert_eq!(reason(asked), "no answer within 100ms");
}

#[tokio::test]
async fn a_member_that_goes_away_and_comes_back_is_asked_again() {
    let peers = asking();
    let answering = Answering::echoing().await;
    let address = answering.address;
    let to = member(address);
    assert_eq!(nudge(&peers, &to).await, nudged());
    answering.stop.cancel();
    answering.ended().await;
    assert_eq!(reason(nudge(&peers, &to).await), "connection refused");
    let back = Answering::start(Setup { address, ..Setup::default() }, echo).await;
    assert_eq!(nudge(&peers, &to).await, nudged());
    assert_eq!(back.asked(), 1);
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_meanwhile_costs_no_ask() {
    let answering = Answering::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(answering.address) };
    let peers = asking();
    let carry = async {
        loop {
            // One exchange for each connection, although it may be kept.
            let (mut here, _) = between.accept().await.unwrap();
            let answer = sent_raw_bytes(answering.address, &read_message(&mut here).await).await;
            here.write_all(&answer).await.unwrap();
        }
    };
    let asks = async {
        for _ in 0..20 {
            assert_eq!(nudge(&peers, &to).await, nudged());
        }
    };
    tokio::select! { biased; () = carry => {} () = asks => {} }
    assert_eq!(answering.asked(), 20);
}

#[tokio::test]
async fn a_connection_on_which_nothing_more_is_asked_is_closed() {
    let options = ListenerOptions { idle_timeout: Duration::from_millis(50), ..ListenerOptions::default() };
    let answering = Answering::start(Setup { options, ..Setup::default() }, echo);
    let answering = answering.await;
    let request = intercepted(&asking(), &member(answering.address)).await;
    let mut stream = tokio::net::TcpStream::connect(answering.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    assert!(read_message(&mut stream).await.starts_with(b"HTTP/1.1 200 OK"));
    assert!(read_message(&mut stream).await.is_empty());
}

#[tokio::test]
async fn asks_one_after_the_other_share_a_connection() {
    let answering = Answering::echoing().await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: between.local_addr().unwrap().to_string(), ..member(answering.address) };
    let peers = asking();
    let asks = async {
        for _ in 0..10 {
            assert_eq!(nudge(&peers, &to).await, nudged());
        }
    };
    let carry = async {
        let (mut here, _) = between.accept().await.unwrap();
        let mut there = tokio::net::TcpStream::connect(answering.address).await.unwrap();
        let _ends = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    };
    // Nothing carries a second connection: it would never be answered.
    tokio::select! { biased; () = asks => {} () = carry => panic!("the connection was closed") }
}

#[tokio::test]
async fn an_address_that_is_none_is_said_so() {
    for address in ["", "nowhere", "a b:1", "user@127.0.0.1:1", "127.0.0.1:1/path", "http://127.0.0.1:1"] {
        let to = Member { address: address.to_owned(), ..member("127.0.0.1:1".parse().unwrap()) };
        assert_eq!(reason(nudge(&asking(), &to).await), "its address for peers is not host:port", "{address}");
    }
}

#[tokio::test]
async fn a_member_that_takes_no_connection_is_given_up_in_time() {
    // A full backlog: the kernel lets further connections wait.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    let connect = || tokio::net::TcpStream::connect(address);
    while let Some(stream) = Runtime::real().timeout(Duration::from_millis(100), connect()).await {
        waiting.push(stream.unwrap());
    }
    let options = PeersOptions { connect_timeout: Duration::from_millis(100), ..PeersOptions::default() };
    let peers = HttpPeers::new(&Runtime::real(), secret(), "the one who asks", options);
    assert_eq!(reason(nudge(&peers, &member(address)).await), "it does not take a connection in time");
}
