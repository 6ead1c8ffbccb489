use std::time::Duration;

use server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{KEY, World, body};

fn hasty() -> Options {
    let short = Duration::from_millis(50);
    Options { idle_timeout: short, body_timeout: short, ..Options::default() }
}

#[tokio::test]
async fn a_connection_that_sends_nothing_is_closed() {
    let world = World::start_with(hasty()).await;
    assert!(world.connect().await.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let world = World::start_with(hasty()).await;
    let mut connection = world.connect().await;
    connection.write(b"POST /v1/schedules HTTP/1.1\r\nhost: te").await;
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn an_http2_connection_that_does_nothing_is_closed() {
    let world = World::start_with(hasty()).await;
    let mut connection = world.connect().await;
    connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    assert!(!connection.is_closed().await, "the server's settings came before the end");
    world.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_and_the_connection_closed() {
    let world = World::start_with(Options { idle_timeout: Duration::from_secs(30), ..hasty() }).await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-length: 99\r\n\r\n{{"
    );
    connection.write(head.as_bytes()).await;
    let answer = connection.answer().await;
    assert_eq!((answer.status, answer.text("/code").as_str()), (408, "body_timeout"));
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let headers = format!("authorization: bearer {KEY}\r\n");
    for _ in 0..20 {
        let answer = connection.request("POST", "/v1/schedules", &headers, body("").as_bytes()).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn a_body_may_come_in_pieces() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    connection.write(head.as_bytes()).await;
    for byte in body("").bytes() {
        connection.write(&[b'1', b'\r', b'\n', byte, b'\r', b'\n']).await;
    }
    connection.write(b"0\r\n\r\n").await;
    assert_eq!(connection.answer().await.status, 201);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn a_request_under_way_is_answered_after_the_stop() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let body = body("");
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write(head.as_bytes()).await;
    // The server asks for the body: the request is under way.
    assert_eq!(connection.answer().await.status, 100);
    world.begin_stop();
    connection.write(body.as_bytes()).await;
    assert_eq!(connection.answer().await.status, 201);
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_idle_connections() {
    let world = World::start().await;
    let mut idle = world.connect().await;
    let served = idle.request("GET", "/healthz", "", b"").await;
    assert_eq!(served.status, 200);
    world.stop().await;
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn a_request_that_outlives_the_drain_is_cut_off() {
    let world = World::start_with(Options { drain_timeout: Duration::from_millis(50), ..Options::default() }).await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    );
    connection.write(head.as_bytes()).await;
    assert_eq!(connection.answer().await.status, 100);
    world.stop().await;
    assert!(connection.is_closed().await);
}

#[tokio::test]
async fn no_more_connections_than_allowed_are_served_at_once() {
    let world = World::start_with(Options { connections_max: 1, ..Options::default() }).await;
    let mut first = world.connect().await;
    assert_eq!(first.request("GET", "/healthz", "", b"").await.status, 200);
    let mut second = world.connect().await;
    second.write(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await;
    // The first is still the one that is served; the second's turn comes when it goes.
    assert_eq!(first.request("GET", "/healthz", "", b"").await.status, 200);
    drop(first);
    assert_eq!(second.answer().await.status, 200);
    drop(second);
    world.stop().await;
}

#[tokio::test]
async fn http2_is_spoken_on_the_same_port() {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let world = World::start().await;
    let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = world.runtime.spawn("client", async move { drop(connection.await) });
    let request = axum::http::Request::post(format!("http://{}/v1/schedules", world.address))
        .header("authorization", format!("Bearer {KEY}"))
        .body(Full::new(bytes::Bytes::from(body(""))))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (201, axum::http::Version::HTTP_2));
    let made = response.into_body().collect().await.unwrap().to_bytes();
    assert!(made.starts_with(b"{\"id\":"));
    drop(sender);
    connection.end.await;
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_results_is_left() {
    let world = World::start_with(Options { idle_timeout: Duration::from_millis(200), ..Options::default() }).await;
    let connection = world.connect().await;
    // Each of these short lines has a long result: far more than what the sockets hold.
    let batch = "x\n".repeat(100_000);
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-length: {}\r\n\r\n",
        batch.len()
    );
    let request = [head.as_bytes(), batch.as_bytes()].concat();
    let (mut from_server, mut to_server) = connection.http.stream.into_split();
    // It may end in a reset: the server need not have taken all of it.
    let sending = world.runtime.spawn("client", async move { drop(to_server.write_all(&request).await) });
    let left =
        async { while !world.send("GET", "/metrics", "").await.body.contains("connections_idle_closed_total 1") {} };
    world.runtime.timeout(Duration::from_secs(20), left).await.expect("the server gives up on the client");
    sending.end.await;
    let mut unread = Vec::new();
    drop(from_server.read_to_end(&mut unread).await);
    assert!(!unread.ends_with(b"0\r\n\r\n"), "the results were cut off, and do not pass for whole");
    world.stop().await;
}
