//! Who may ask, and whose answers are believed.

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
    Answering, NUDGE, SECRET, Setup, answer_once, asking, echo, intercepted, member, nudge, nudged, reason, secret,
    sent_raw, with_clock_off,
};

fn with_runtime(runtime: &Runtime) -> HttpPeers {
    HttpPeers::new(runtime, secret(), "the one who asks", PeersOptions::default())
}

#[tokio::test]
async fn a_member_of_another_cluster_is_not_answered() {
    let answering = Answering::start(Setup { secret: [8; 32], ..Setup::default() }, echo);
    let answering = answering.await;
    let asked = nudge(&asking(), &member(answering.address)).await;
    assert_eq!(reason(asked), "it does not accept this cluster's secret (401): is it a member of another cluster?");
    assert_eq!(answering.asked(), 0);
}

#[tokio::test]
async fn an_answer_without_this_clusters_secret_is_not_believed() {
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = member(stranger.local_addr().unwrap());
    let body = b"yes";
    let proof = format!("reveille-peer-proof: {}\r\n", "ab".repeat(32));
    let unproved = "something that does not prove to be a member of this cluster answers there";
    let cases = [
        ("200 OK", proof.as_str(), "its answer is not proved by this cluster's secret".to_owned()),
        ("403 Forbidden", &proof, "its answer is not proved by this cluster's secret".to_owned()),
        ("200 OK", "", format!("{unproved} (200)")),
        ("200 OK", "reveille-peer-proof: ab\r\n", format!("{unproved} (200)")),
        ("307 Temporary Redirect", "location: /elsewhere\r\n", format!("{unproved} (307)")),
        ("500 Internal Server Error", "", format!("{unproved} (500)")),
    ];
    for (status, headers, expected) in cases {
        let answer = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: 3\r\n\r\n");
        let answer = [answer.as_bytes(), body].concat();
        let peers = asking();
        let (_request, asked) = tokio::join!(answer_once(&stranger, &answer), nudge(&peers, &to));
        assert_eq!(reason(asked), expected, "{status}");
    }
}

#[tokio::test]
async fn the_answer_to_another_request_is_not_believed() {
    let answering = Answering::echoing().await;
    let request = intercepted(&asking(), &member(answering.address)).await;
    let genuine = sent_raw(answering.address, &request).await;
    assert!(genuine.starts_with("HTTP/1.1 200 OK"), "{genuine}");
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = Member { address: stranger.local_addr().unwrap().to_string(), ..member(answering.address) };
    // The body is another one.
    let head = genuine.split_once("\r\n\r\n").unwrap().0;
    let answer = [head.as_bytes(), b"\r\n\r\n", b"nudge:yes"].concat();
    let peers = asking();
    let (_request, asked) = tokio::join!(answer_once(&stranger, &answer), nudge(&peers, &to));
    assert_eq!(reason(asked), "its answer is not proved by this cluster's secret");
}

#[tokio::test]
async fn a_request_that_is_sent_again_is_refused() {
    let answering = Answering::echoing().await;
    let request = intercepted(&asking(), &member(answering.address)).await;
    assert!(sent_raw(answering.address, &request).await.starts_with("HTTP/1.1 200 OK"));
    let again = sent_raw(answering.address, &request).await;
    assert!(again.starts_with("HTTP/1.1 409 Conflict") && again.ends_with("this request was made before"), "{again}");
    assert_eq!(answering.asked(), 1);
}

#[tokio::test]
async fn a_request_for_another_member_or_an_earlier_session_is_refused() {
    let answering = Answering::echoing().await;
    let other = Member { id: MemberId(1), ..member(answering.address) };
    let expected = "it refuses (421): another member is here, or a later session of it";
    assert_eq!(reason(nudge(&asking(), &other).await), expected);
    assert_eq!(answering.asked(), 0);
}

#[tokio::test]
async fn a_request_whose_clock_is_off_is_refused_with_both_clocks() {
    let answering = Answering::echoing().await;
    let to = member(answering.address);
    for millis in [-31_000, 31_500] {
        let told = reason(nudge(&with_runtime(&with_clock_off(millis)), &to).await);
        assert!(told.starts_with("it refuses (403): it was sent at 20"), "{told}");
        assert!(told.contains(" by its sender's clock, and it is 20"), "{told}");
    }
    assert_eq!(answering.asked(), 0);
    for millis in [-28_000, 28_000] {
        assert_eq!(nudge(&with_runtime(&with_clock_off(millis)), &to).await, nudged());
    }
}

#[tokio::test]
async fn a_request_of_before_is_too_old_when_its_nonce_is_forgotten() {
    // The clock of the one that answers goes on by 31 s; a nonce is remembered for that long.
    let answering = Answering::start(Setup { runtime: with_clock_off(31_000), ..Setup::default() }, echo);
    let answering = answering.await;
    let request = intercepted(&asking(), &member(answering.address)).await;
    assert!(sent_raw(answering.address, &request).await.starts_with("HTTP/1.1 403 Forbidden"));
}

#[tokio::test]
async fn a_request_that_was_changed_on_its_way_is_refused() {
    let answering = Answering::echoing().await;
    let request = intercepted(&asking(), &member(answering.address)).await;
    let mut other_body = request.clone();
    *other_body.last_mut().unwrap() ^= 1;
    let refused = sent_raw(answering.address, &other_body).await;
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.ends_with("the body is not the one that was sent"),
        "{refused}"
    );
    // Every header of ours is under the MAC: a digit of its value is another.
    let text = String::from_utf8_lossy(&request).into_owned();
    let names = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| name.starts_with("reveille-"));
    let mut count = 0;
    for (name, value) in names {
        let at = text.find(&format!("{name}: {value}")).unwrap() + name.len() + 2 + value.len() - 1;
        let mut changed = request.clone();
        changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
        let refused = sent_raw(answering.address, &changed).await;
        assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("connection: close"), "{name}: {refused}");
        count += 1;
    }
    assert_eq!((count, answering.asked()), (7, 0));
}

#[tokio::test]
async fn strangers_learn_nothing_and_are_sent_away() {
    let answering = Answering::echoing().await;
    let cases = [
        ("GET /peer/v2/request HTTP/1.1\r\nhost: a\r\n\r\n", "405"),
        ("POST /peer/v2/request HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "401"),
        ("POST /peer/v2/request?x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ];
    for (request, status) in cases {
        let answer = sent_raw(answering.address, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains("connection: close") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("reveille"), "{answer}");
    }
    let long = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", "a".repeat(64 * 1024));
    let answer = sent_raw(answering.address, long.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer}");
}

#[tokio::test]
async fn a_connection_that_proves_nothing_in_time_is_closed() {
    let options = ListenerOptions { read_timeout: Duration::from_millis(50), ..ListenerOptions::default() };
    let answering = Answering::start(Setup { options, ..Setup::default() }, echo);
    let answering = answering.await;
    for first in ["", "POST /peer/v2/request HTTP/1.1\r\nreveille-peer-"] {
        assert_eq!(sent_raw(answering.address, first.as_bytes()).await, "");
    }
}

/// The head of a genuine nudge. The length of its body is not under the MAC, the body's hash is.
async fn head_of_a_nudge(to: &Member) -> String {
    let request = intercepted(&asking(), to).await;
    let text = String::from_utf8_lossy(&request).into_owned();
    let head = text.split_once("\r\n\r\n").unwrap().0.to_owned();
    assert!(head.contains("content-length: 3"), "{head}");
    head
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_by_its_length_or_where_it_passes_the_limit() {
    let answering = Answering::echoing().await;
    let to = member(answering.address);
    let length = format!("content-length: {}", REQUEST_BYTES_MAX + 1);
    let head = head_of_a_nudge(&to).await.replace("content-length: 3", &length);
    let refused = sent_raw(answering.address, format!("{head}\r\n\r\n").as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    let head = head_of_a_nudge(&to).await.replace("content-length: 3", "transfer-encoding: chunked");
    let mut stream = TcpStream::connect(answering.address).await.unwrap();
    stream.write_all(format!("{head}\r\n\r\n{:x}\r\n", REQUEST_BYTES_MAX + 1).as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let body = vec![b'x'; REQUEST_BYTES_MAX + 1];
    let (_may_be_cut_off, answer) = tokio::join!(writing.write_all(&body), async {
        let mut answer = vec![0; 12];
        reading.read_exact(&mut answer).await.map(|_| answer)
    });
    assert_eq!(answer.unwrap(), b"HTTP/1.1 413");
    assert_eq!(answering.asked(), 0);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let options = ListenerOptions { read_timeout: Duration::from_millis(200), ..ListenerOptions::default() };
    let answering = Answering::start(Setup { options, ..Setup::default() }, echo);
    let answering = answering.await;
    let head = head_of_a_nudge(&member(answering.address)).await;
    let refused = sent_raw(answering.address, format!("{head}\r\n\r\nx").as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 408"), "{refused}");
    assert_eq!(answering.asked(), 0);
}

#[tokio::test]
async fn an_ask_beyond_those_at_once_waits_and_is_refused_if_none_ends() {
    let options =
        ListenerOptions { asks_max: 1, read_timeout: Duration::from_millis(200), ..ListenerOptions::default() };
    let begun = Arc::new(tokio::sync::Semaphore::new(0));
    let begins = begun.clone();
    let answering = Answering::start(Setup { options, ..Setup::default() }, move |_, _| {
        begins.add_permits(1);
        Box::pin(std::future::pending())
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    let held = nudge(&peers, &to);
    let other = async {
        begun.acquire().await.unwrap().forget();
        nudge(&peers, &to).await
    };
    tokio::select! {
        biased;
        reply = held => panic!("it was answered: {reply:?}"),
        other = other => assert_eq!(reason(other), "it refuses (503): too many asks at once"),
    }
    assert_eq!(answering.asked(), 1);
}

#[tokio::test]
async fn invalid_request_is_rejected_with_its_reason() {
    let answering = Answering::start(Setup::default(), |operation, request| {
        Box::pin(async move {
            if operation != NUDGE {
                return Err(InvalidRequest::UnknownOperation);
            }
            Ok(Take::new("a nudge", &request).version(9).map(|()| Bytes::new())?)
        })
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    let told = reason(peers.request(&to, "dance", Bytes::new()).await);
    assert_eq!(told, "it refuses (404): unknown operation");
    assert_eq!(reason(nudge(&peers, &to).await), "it refuses (400): invalid request: a nudge cannot be read at byte 1");
    assert_eq!(answering.asked(), 2);
}

#[tokio::test]
async fn too_long_request_is_not_sent() {
    let answering = Answering::echoing().await;
    let body = Bytes::from(vec![b'x'; REQUEST_BYTES_MAX + 1]);
    let told = reason(asking().request(&member(answering.address), NUDGE, body).await);
    assert_eq!(told, "the ask has 4194305 bytes, at most 4194304 are sent");
    assert_eq!(answering.asked(), 0);
}

#[tokio::test]
async fn no_more_asks_are_remembered_than_may_be() {
    let options = ListenerOptions { nonces_max: 2, ..ListenerOptions::default() };
    let answering = Answering::start(Setup { options, ..Setup::default() }, echo);
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    for _ in 0..2 {
        assert_eq!(nudge(&peers, &to).await, nudged());
    }
    let told = reason(nudge(&peers, &to).await);
    assert_eq!(told, "it refuses (503): too many requests in too short a time");
}

#[tokio::test]
async fn a_session_that_ended_is_no_longer_asked() {
    let session = Arc::new(AtomicUsize::new(1));
    let runtime = Runtime::real();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = peers::Listener::bind(&runtime, address, ListenerOptions::default()).await.unwrap();
    let at = listener.local_addr();
    let present = session.clone();
    let is_me: peers::IsMe = Arc::new(move |id| id == MemberId(present.load(Ordering::SeqCst) as u128));
    let handler: peers::Handler = Arc::new(echo);
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(ClusterSecret::new(&SECRET), is_me, handler, stop)));
    let (peers, to) = (asking(), Member { id: MemberId(1), ..member(at) });
    assert_eq!(nudge(&peers, &to).await, nudged());
    session.store(2, Ordering::SeqCst);
    assert!(reason(nudge(&peers, &to).await).starts_with("it refuses (421)"));
    assert_eq!(nudge(&peers, &Member { id: MemberId(2), ..to }).await, nudged());
}
