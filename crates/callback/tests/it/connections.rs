//! Tests of connections. The client reuses connections, closes them in time, and never sends a request twice.

use std::time::Duration;

use callback::{HttpDeliver, Options};
use domain::AttemptResult;
use futures_util::future::join_all;
use runtime::Runtime;
use scheduler::Delivered;

use crate::support::{Listening, OK, Peer, deliverer, delivery, of_tenant, sent, target};

async fn attempt(deliverer: &HttpDeliver, listening: &Listening) -> Delivered {
    sent(deliverer, delivery(target(listening.url()), b"1")).await
}

/// Makes one attempt over an existing connection.
async fn again(deliverer: &HttpDeliver, listening: &Listening, peer: &mut Peer) {
    let serve = async {
        peer.request().await;
        peer.send(OK).await;
    };
    let (delivered, ()) = tokio::join!(attempt(deliverer, listening), serve);
    assert!(delivered.result.is_success(), "{delivered:?}");
}

#[tokio::test]
async fn sequential_callbacks_share_one_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    for _ in 0..20 {
        again(&deliverer, &listening, &mut peer).await;
    }
    let connections = deliverer.connections();
    assert_eq!((connections.opened, connections.idle), (1, 1));
}

#[tokio::test]
async fn tenants_do_not_share_a_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let mut peers = Vec::new();
    for tenant in [1, 2] {
        let of_tenant = of_tenant(tenant, delivery(target(listening.url()), b"1"));
        let (delivered, served) = tokio::join!(sent(&deliverer, of_tenant), listening.serve(OK));
        assert!(delivered.result.is_success(), "{delivered:?}");
        peers.push(served);
    }
    assert_eq!(deliverer.connections().opened, 2);
}

#[tokio::test]
async fn different_spellings_of_one_address_share_one_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    for host in ["[::ffff:127.0.0.1]", "[::FFFF:7f00:1]", "127.0.0.1."] {
        let url = format!("HTTP://{host}:0{}/other", listening.port());
        let serve = async {
            peer.request().await;
            peer.send(OK).await;
        };
        let (delivered, ()) = tokio::join!(sent(&deliverer, delivery(target(url), b"1")), serve);
        assert!(delivered.result.is_success(), "{host}: {delivered:?}");
    }
    assert_eq!(deliverer.connections().opened, 1);
}

#[tokio::test]
async fn one_tenant_cannot_use_the_whole_limit_of_idle_connections() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options { idle_connections_max: 4, ..Options::default() });
    let serve = async |count: usize| {
        let mut peers = Vec::new();
        for _ in 0..count {
            peers.push(listening.accept().await);
        }
        for peer in &mut peers {
            peer.request().await;
        }
        for peer in &mut peers {
            peer.send(OK).await;
        }
        peers
    };
    for (tenant, count, idle) in [(1, 4, 2), (2, 2, 3)] {
        let one = || sent(&deliverer, of_tenant(tenant, delivery(target(listening.url()), b"1")));
        let (_, _peers) = tokio::join!(join_all((0..count).map(|_| one())), serve(count));
        assert_eq!(deliverer.connections().idle, idle, "after {count} connections of tenant {tenant}");
    }
}

#[tokio::test]
async fn number_of_idle_connections_never_exceeds_the_limit() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options { idle_connections_max: 1, ..Options::default() });
    let serve = async {
        let (mut first, mut second) = (listening.accept().await, listening.accept().await);
        tokio::join!(first.request(), second.request());
        first.send(OK).await;
        second.send(OK).await;
        (first, second)
    };
    let both = async { tokio::join!(attempt(&deliverer, &listening), attempt(&deliverer, &listening)) };
    let (_, _peers) = tokio::join!(both, serve);
    let connections = deliverer.connections();
    assert_eq!((connections.opened, connections.idle), (2, 1));
}

/// Makes a round trip on another connection. After the round trip, the client has received all bytes that targets sent
/// before the round trip.
pub(crate) async fn receive_pending(deliverer: &HttpDeliver) {
    let other = Listening::start().await;
    let (delivered, _served) = tokio::join!(attempt(deliverer, &other), other.serve(OK));
    assert!(delivered.result.is_success());
}

#[tokio::test]
async fn client_replaces_connection_that_the_target_closed() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    for round in 1..4 {
        let serve = async { drop(listening.serve(OK).await) };
        let (delivered, ()) = tokio::join!(attempt(&deliverer, &listening), serve);
        assert!(delivered.result.is_success(), "round {round}: {delivered:?}");
        receive_pending(&deliverer).await;
    }
    assert_eq!(deliverer.connections().opened, 6);
}

#[tokio::test]
async fn client_does_not_repeat_request_that_may_have_arrived() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    let serve = async {
        peer.request().await;
        drop(peer);
    };
    let (delivered, ()) = tokio::join!(attempt(&deliverer, &listening), serve);
    let reason = "connection closed before the response was complete".to_owned();
    assert_eq!(delivered.result, AttemptResult::Unreachable(reason));
    assert_eq!(deliverer.connections().opened, 1, "the client opens no further connection");
}

#[tokio::test]
async fn client_ignores_response_that_it_did_not_request() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let twice = [OK, b"HTTP/1.1 500 Smuggled\r\ncontent-length: 0\r\n\r\n"].concat();
    let (_, _served) = tokio::join!(attempt(&deliverer, &listening), listening.serve(&twice));
    receive_pending(&deliverer).await;
    let (delivered, _served) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    assert_eq!(delivered.result, AttemptResult::Answered(200));
}

#[tokio::test]
async fn client_closes_connection_after_a_connection_close_header() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(answer));
    peer.closed().await;
    assert_eq!(deliverer.connections().idle, 0);
}

#[tokio::test]
async fn client_closes_idle_connection_after_its_timeout() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options { idle_timeout: Duration::from_millis(80), ..Options::default() });
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    peer.closed().await;
    assert_eq!(deliverer.connections().idle, 0);
}

#[tokio::test]
async fn other_tasks_run_while_the_client_closes_many_idle_connections() {
    const CONNECTIONS: usize = 100;
    let listening = Listening::start().await;
    let deliverer = deliverer(Options { idle_timeout: Duration::from_millis(200), ..Options::default() });
    let serve = join_all((0..CONNECTIONS).map(async |_| {
        let mut peer = listening.accept().await;
        peer.request().await;
        peer
    }));
    // All connections become idle between two sweeps, so that one sweep closes them all.
    let answered = async {
        let mut peers = serve.await;
        join_all(peers.iter_mut().map(|peer| peer.send(OK))).await;
        peers
    };
    let (_, _peers) = tokio::join!(join_all((0..CONNECTIONS).map(|_| attempt(&deliverer, &listening))), answered);
    let mut idle = deliverer.connections().idle;
    assert_eq!(idle, CONNECTIONS);
    while idle > 0 {
        tokio::task::yield_now().await;
        let before = std::mem::replace(&mut idle, deliverer.connections().idle);
        assert!(before - idle <= 10, "the client closed {} connections without a pause", before - idle);
    }
}

#[tokio::test]
async fn connection_stays_open_after_the_cache_evicts_its_target() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    let unused = Listening::start().await.port();
    for number in 0..5_000 {
        let target = target(format!("http://127.0.0.1:{unused}/{number}"));
        let failed = sent(&deliverer, delivery(target, b"1")).await;
        assert!(matches!(failed.result, AttemptResult::Unreachable(_)), "{failed:?}");
    }
    again(&deliverer, &listening, &mut peer).await;
}

#[tokio::test]
async fn client_respects_the_keep_alive_timeout_of_the_target() {
    let runtime = Runtime::real();
    let listening = Listening::start().await;
    let deliverer = deliverer(Options { idle_timeout: Duration::from_secs(60), ..Options::default() });
    let answer = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2\r\ncontent-length: 0\r\n\r\n";
    let start = runtime.monotonic();
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(answer));
    peer.closed().await;
    assert!(runtime.monotonic().since(start) < Duration::from_secs(2));
}

#[tokio::test]
async fn dropping_the_client_closes_every_connection() {
    let listening = Listening::start().await;
    let deliverer = deliverer(Options::default());
    let (_, (mut peer, _)) = tokio::join!(attempt(&deliverer, &listening), listening.serve(OK));
    drop(deliverer);
    peer.closed().await;
}
