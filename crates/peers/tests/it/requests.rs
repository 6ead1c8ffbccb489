//! Tests of requests, of responses, and of the listener's stop.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use peers::{Handler, Listener, ListenerOptions};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::Runtime;
use scheduler::{InvalidRequest, PeerError, Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{
    Handling, NUDGE, Setup, TestMember, client, client_with_timeout, echo, echo_of, identity, member, nudge, nudged,
    reason,
};

#[tokio::test]
async fn request_and_response_bodies_arrive_unchanged() {
    let server = TestMember::echoing().await;
    let (peers, to) = (client(), member(server.address));
    let every_byte: Vec<u8> = (0..=255).collect();
    for (operation, request) in [("put_if", Vec::new()), ("let_go", every_byte), ("a", vec![7; 100_000])] {
        let response = peers.request(&to, operation, request.clone().into()).await;
        assert!(response == Ok(echo_of(operation, &request)), "{operation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_get_their_own_responses() {
    let server = TestMember::echoing().await;
    let (peers, to) = (client(), member(server.address));
    let requests = (0..200_u32).map(|number| {
        let body = Bytes::from([&number.to_be_bytes()[..], &[b'x'; 1_024]].concat());
        let requesting = peers.request(&to, NUDGE, body.clone());
        async move { assert_eq!(requesting.await, Ok(echo_of(NUDGE, &body)), "{number}") }
    });
    join_all(requests).await;
    assert_eq!(server.handled(), 200);
}

#[tokio::test]
async fn listener_replaces_response_over_the_size_limit_with_an_error() {
    let server = TestMember::start(Setup::default(), |_, request| {
        let length = RESPONSE_BYTES_MAX + usize::from(request.is_empty());
        Box::pin(async move { Ok(vec![b'y'; length].into()) })
    });
    let server = server.await;
    let (patient, to) = (client_with_timeout(Duration::from_secs(60)), member(server.address));
    let response = patient.request(&to, NUDGE, vec![b'x'; REQUEST_BYTES_MAX].into()).await;
    assert_eq!(response.map(|response| response.len()), Ok(RESPONSE_BYTES_MAX));
    let rejection = reason(patient.request(&to, NUDGE, Bytes::new()).await);
    assert_eq!(
        rejection,
        "the member rejected the request (500): the operation succeeded, but its response of 16777217 bytes exceeds \
         the limit of 16777216"
    );
}

#[tokio::test]
async fn listener_finishes_running_requests_before_it_stops() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, proceed) = (Arc::new(Semaphore::new(0)), gate.clone());
    let begins = begun.clone();
    let server = TestMember::start(Setup::default(), move |operation, request| {
        let (begins, proceed) = (begins.clone(), proceed.clone());
        Box::pin(async move {
            begins.add_permits(1);
            proceed.acquire().await.unwrap().forget();
            echo(operation, request).await
        })
    });
    let server = server.await;
    let (address, stop) = (server.address, server.stop.clone());
    let (peers, to) = (client(), member(address));
    let response = tokio::join!(nudge(&peers, &to), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        // The listener closes its socket before the request in progress ends.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
    });
    assert_eq!(response.0, nudged());
    server.ended().await;
    assert_eq!(reason(nudge(&peers, &to).await), "connection refused");
}

/// Guard that adds a permit to its semaphore when the handler drops the guard.
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
async fn listener_drops_running_requests_at_the_end_of_the_drain_timeout() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { drain_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let server = TestMember::start(setup, never_answers(begun.clone(), dropped.clone())).await;
    let (stop, to) = (server.stop.clone(), member(server.address));
    let peers = client();
    let (response, ()) = tokio::join!(nudge(&peers, &to), async {
        begun.acquire().await.unwrap().forget();
        stop.cancel();
        server.ended().await;
        assert_eq!(dropped.available_permits(), 1);
    });
    assert_eq!(reason(response), "connection closed before the response was complete");
}

#[tokio::test]
async fn listener_aborts_operation_after_its_timeout() {
    let (begun, dropped) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let options = ListenerOptions { handler_timeout: Duration::from_millis(20), ..ListenerOptions::default() };
    let setup = Setup { options, ..Setup::default() };
    let server = TestMember::start(setup, never_answers(begun, dropped.clone())).await;
    let response = nudge(&client(), &member(server.address)).await;
    assert_eq!(
        reason(response),
        "the member rejected the request (504): the operation timed out; parts of it may have taken effect"
    );
    assert_eq!(dropped.available_permits(), 1);
}

#[tokio::test]
async fn operation_continues_after_its_client_disconnects() {
    let gate = Arc::new(Semaphore::new(0));
    let (begun, done) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (begins, proceed, ends) = (begun.clone(), gate.clone(), done.clone());
    let server = TestMember::start(Setup::default(), move |operation, request| {
        let (begins, proceed, ends) = (begins.clone(), proceed.clone(), ends.clone());
        Box::pin(async move {
            if operation == NUDGE {
                begins.add_permits(1);
                proceed.acquire().await.unwrap().forget();
                ends.add_permits(1);
            }
            echo(operation, request).await
        })
    });
    let mut server = server.await;
    let response = nudge(&client(), &member(server.address));
    tokio::select! {
        biased;
        reply = response => panic!("unexpected response: {reply:?}"),
        permit = begun.acquire() => permit.unwrap().forget(),
    }
    // Once the member has responded to other requests, it has also detected the end of the first client's connection.
    for _ in 0..5 {
        let other = client().request(&member(server.address), "put", Bytes::new()).await;
        assert_eq!(other, Ok(echo_of("put", b"")));
    }
    // The stopping listener does not drop the operation before the drain timeout.
    server.stop.cancel();
    assert!(!server.ends_within(Duration::from_millis(100)).await, "the operation is still in progress");
    gate.add_permits(1);
    server.ended().await;
    assert_eq!(done.available_permits(), 1);
}

#[tokio::test]
async fn metric_counts_peer_requests_by_response_status() {
    let runtime = Runtime::real();
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&runtime, address, ListenerOptions::default()).await.unwrap();
    let (mut registry, peers) = (Registry::default(), client());
    listener.register(&mut registry);
    let to = member(listener.local_addr());
    let me = to.id;
    let handler: Handler = Arc::new(|operation, _| {
        Box::pin(
            async move { if operation == NUDGE { Ok(Bytes::new()) } else { Err(InvalidRequest::UnknownOperation) } },
        )
    });
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(identity(), Arc::new(move |id| id == me), handler, stop)));
    assert!(nudge(&peers, &to).await.is_ok());
    assert!(nudge(&peers, &to).await.is_ok());
    let unknown = Err(PeerError::UnknownOperation { member: to.name.clone() });
    assert_eq!(peers.request(&to, "dance", Bytes::new()).await, unknown);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.sort_unstable();
    let expected = ["reveille_peer_requests_total{status=\"200\"} 2", "reveille_peer_requests_total{status=\"404\"} 1"];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn handler_panic_fails_only_its_own_request() {
    let server = TestMember::start(Setup::default(), |operation, request| {
        Box::pin(async move {
            assert!(operation == NUDGE, "intended panic");
            echo(operation, request).await
        })
    });
    let server = server.await;
    let (peers, to) = (client(), member(server.address));
    let response = peers.request(&to, "put", Bytes::new()).await;
    assert_eq!(
        reason(response),
        "the member rejected the request (500): the operation failed; parts of it may have taken effect"
    );
    assert_eq!(nudge(&peers, &to).await, nudged());
}
