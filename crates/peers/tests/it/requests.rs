//! Requests and their responses, and how the listener stops.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use membership::{Member, MemberId};
use peers::{Handler, Listener, ListenerOptions};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::Runtime;
use scheduler::{Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{
    Answering, Handling, NUDGE, Setup, asking, echo, echo_of, hurried, member, nudge, nudged, reason, secret,
};

#[tokio::test]
async fn operation_and_bytes_go_through_both_ways() {
    let answering = Answering::echoing().await;
    let (peers, to) = (asking(), member(answering.address));
    let every_byte: Vec<u8> = (0..=255).collect();
    for (operation, request) in [("put_if", Vec::new()), ("let_go", every_byte), ("a", vec![7; 100_000])] {
        let response = peers.request(&to, operation, request.clone().into()).await;
        assert!(response == Ok(echo_of(operation, &request)), "{operation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_two_hundred_requests_at_once_gets_its_own_response() {
    let answering = Answering::echoing().await;
    let (peers, to) = (asking(), member(answering.address));
    let requests = (0..200_u32).map(|number| {
        let body = Bytes::from([&number.to_be_bytes()[..], &[b'x'; 1_024]].concat());
        let requesting = peers.request(&to, NUDGE, body.clone());
        async move { assert_eq!(requesting.await, Ok(echo_of(NUDGE, &body)), "{number}") }
    });
    join_all(requests).await;
    assert_eq!(answering.asked(), 200);
}

#[tokio::test]
async fn longest_request_and_response_go_through_and_a_longer_response_does_not() {
    let answering = Answering::start(Setup::default(), |_, request| {
        let length = RESPONSE_BYTES_MAX + usize::from(request.is_empty());
        Box::pin(async move { Ok(vec![b'y'; length].into()) })
    });
    let answering = answering.await;
    let (patient, to) = (hurried(Duration::from_secs(60)), member(answering.address));
    let response = patient.request(&to, NUDGE, vec![b'x'; REQUEST_BYTES_MAX].into()).await;
    assert_eq!(response.map(|response| response.len()), Ok(RESPONSE_BYTES_MAX));
    let told = reason(patient.request(&to, NUDGE, Bytes::new()).await);
    assert_eq!(told, "it refuses (500): it was done, but its reply has 16777217 bytes, over 16777216");
}

#[tokio::test]
async fn a_stop_lets_what_is_under_way_end_and_takes_no_more() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), gate.clone());
    let begins = begun.clone();
    let answering = Answering::start(Setup::default(), move |operation, request| {
        let (begins, go_on) = (begins.clone(), go_on.clone());
        Box::pin(async move {
            begins.add_permits(1);
            go_on.acquire().await.unwrap().forget();
            echo(operation, request).await
        })
    });
    let answering = answering.await;
    let (address, stop) = (answering.address, answering.stop.clone());
    let (peers, to) = (asking(), member(address));
    let asked = tokio::join!(nudge(&peers, &to), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        // The socket closes before what is under way ends.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    });
    assert_eq!(asked.0, nudged());
    answering.ended().await;
    assert_eq!(reason(nudge(&peers, &to).await), "connection refused");
}

/// Tells when it is dropped.
struct Dropped(Arc<Semaphore>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

fn never_answers(begun: Arc<Semaphore>, dropped: Arc<Semaphore>) -> impl Fn(String, Bytes) -> Handling {
    move |_, _| {
        let held = Dropped(dropped.clone());
        begun.add_permits(1);
        Box::pin(async move {
            let _held = held;
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn a_stop_drops_what_does_not_end_in_time() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { drain_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let answering = Answering::start(setup, never_answers(begun.clone(), dropped.clone())).await;
    let (stop, to) = (answering.stop.clone(), member(answering.address));
    let peers = asking();
    let (asked, ()) = tokio::join!(nudge(&peers, &to), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        answering.ended().await;
        assert_eq!(dropped.available_permits(), 1);
    });
    assert_eq!(reason(asked), "connection closed before the answer was complete");
}

#[tokio::test]
async fn what_takes_too_long_is_given_up_and_said_so() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { answer_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let answering = Answering::start(setup, never_answers(begun, dropped.clone())).await;
    let asked = nudge(&asking(), &member(answering.address)).await;
    assert_eq!(reason(asked), "it refuses (504): it took too long, and may be half-done");
    assert_eq!(dropped.available_permits(), 1);
}

#[tokio::test]
async fn what_was_begun_goes_on_when_its_asker_goes_away() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, done) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, go_on, ends) = (begun.clone(), gate.clone(), done.clone());
    let answering = Answering::start(Setup::default(), move |operation, request| {
        let (begins, go_on, ends) = (begins.clone(), go_on.clone(), ends.clone());
        Box::pin(async move {
            if operation == NUDGE {
                begins.add_permits(1);
                go_on.acquire().await.unwrap().forget();
                ends.add_permits(1);
            }
            echo(operation, request).await
        })
    });
    let mut answering = answering.await;
    let asked = nudge(&asking(), &member(answering.address));
    tokio::select! {
        biased;
        reply = asked => panic!("it was answered: {reply:?}"),
        permit = begun.acquire() => permit.unwrap().forget(),
    }
    // By when others are answered, the end of the first one's connection has been seen.
    for _ in 0..5 {
        let other = asking().request(&member(answering.address), "put", Bytes::new()).await;
        assert_eq!(other, Ok(echo_of("put", b"")));
    }
    // Nor does a stop drop it, as long as there is time.
    answering.stop.cancel();
    assert!(!answering.ends_within(Duration::from_millis(100)).await, "it is still under way");
    gate.add_permits(1);
    answering.ended().await;
    assert_eq!(done.available_permits(), 1);
}

#[tokio::test]
async fn requests_are_counted_by_status() {
    let runtime = Runtime::real();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&runtime, address, ListenerOptions::default()).await.unwrap();
    let (mut registry, peers) = (Registry::default(), asking());
    listener.register(&mut registry);
    let to = member(listener.local_addr());
    let me = to.id;
    let handler: Handler = Arc::new(echo);
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(secret(), Arc::new(move |id| id == me), handler, stop)));
    assert_eq!(nudge(&peers, &to).await, nudged());
    assert_eq!(nudge(&peers, &to).await, nudged());
    assert!(nudge(&peers, &Member { id: MemberId(0), ..to }).await.is_err());
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.sort_unstable();
    let expected = ["reveille_peer_requests_total{status=\"200\"} 2", "reveille_peer_requests_total{status=\"421\"} 1"];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_handler_that_panics_fails_its_own_ask_only() {
    let answering = Answering::start(Setup::default(), |operation, request| {
        Box::pin(async move {
            assert!(operation == NUDGE, "a bug, on purpose");
            echo(operation, request).await
        })
    });
    let answering = answering.await;
    let (peers, to) = (asking(), member(answering.address));
    let asked = peers.request(&to, "put", Bytes::new()).await;
    assert_eq!(reason(asked), "it refuses (500): it failed, and may be half-done");
    assert_eq!(nudge(&peers, &to).await, nudged());
}
