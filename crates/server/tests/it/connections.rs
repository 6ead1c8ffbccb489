use std::time::Duration;

use server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{KEY, World, body};

fn short_timeouts() -> Options {
    let short = Duration::from_millis(50);
    Options { idle_timeout: short, body_timeout: short, ..Options::default() }
}

#[tokio::test]
async fn server_closes_connection_that_sends_no_request() {
    let world = World::start_with(short_timeouts()).await;
    assert!(world.connect().await.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn server_closes_connection_with_incomplete_request_head() {
    let world = World::start_with(short_timeouts()).await;
    let mut connection = world.connect().await;
    connection.write(b"POST /v1/schedules HTTP/1.1\r\nhost: te").await;
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn server_closes_idle_http2_connection() {
    let world = World::start_with(short_timeouts()).await;
    let mut connection = world.connect().await;
    connection.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    assert!(!connection.is_closed().await, "the server sends its settings before it closes the connection");
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_incomplete_body_and_closes_connection() {
    let world = World::start_with(Options { idle_timeout: Duration::from_secs(30), ..short_timeouts() }).await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\ncontent-length: 99\r\n\r\n{{"
    );
    connection.write(head.as_bytes()).await;
    let response = connection.response().await;
    assert_eq!((response.status, response.text("/code").as_str()), (408, "body_timeout"));
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn server_serves_many_requests_on_one_connection() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let headers = format!("authorization: bearer {KEY}\r\n");
    for _ in 0..20 {
        let response = connection.request("POST", "/v1/schedules", &headers, body("").as_bytes()).await;
        assert_eq!(response.status, 201, "{}", response.body);
    }
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn server_accepts_body_that_arrives_in_many_chunks() {
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
    assert_eq!(connection.response().await.status, 201);
    drop(connection);
    world.stop().await;
}

#[tokio::test]
async fn stopping_server_completes_the_request_in_progress() {
    let world = World::start().await;
    let mut connection = world.connect().await;
    let body = body("");
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    connection.write(head.as_bytes()).await;
    // The response `100 Continue` shows that a handler of the server is reading the body.
    assert_eq!(connection.response().await.status, 100);
    world.begin_stop();
    connection.write(body.as_bytes()).await;
    assert_eq!(connection.response().await.status, 201);
    assert!(connection.is_closed().await);
    world.stop().await;
}

#[tokio::test]
async fn server_stops_without_waiting_for_idle_connections() {
    let world = World::start().await;
    let mut idle = world.connect().await;
    let served = idle.request("GET", "/healthz", "", b"").await;
    assert_eq!(served.status, 200);
    world.stop().await;
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn stopping_server_closes_a_busy_connection_after_a_timeout() {
    let world = World::start_with(Options { drain_timeout: Duration::from_millis(50), ..Options::default() }).await;
    let mut connection = world.connect().await;
    let head = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    );
    connection.write(head.as_bytes()).await;
    assert_eq!(connection.response().await.status, 100);
    world.stop().await;
    assert!(connection.is_closed().await);
}

#[tokio::test]
async fn connection_above_the_limit_waits_until_another_one_closes() {
    let world = World::start_with(Options { connections_max: 1, ..Options::default() }).await;
    let mut first = world.connect().await;
    assert_eq!(first.status_with_key().await, 200);
    let mut second = world.connect().await;
    second.write(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await;
    // The server still serves the first connection. The second connection waits until the client closes the first
    // connection.
    assert_eq!(first.request("GET", "/healthz", "", b"").await.status, 200);
    drop(first);
    assert_eq!(second.response().await.status, 200);
    drop(second);
    world.stop().await;
}

#[tokio::test]
async fn server_at_its_limit_closes_idle_connections_without_a_key() {
    let proxies = ["127.0.0.0/8".parse().unwrap()];
    for trusted_proxies in [proxies.to_vec(), Vec::new()] {
        let world = World::start_with(Options { connections_max: 50, trusted_proxies, ..Options::default() }).await;
        let mut strangers = Vec::new();
        let mut client = None;
        for at in 0..150_u8 {
            let mut stranger = world.connect_from([127, 0, 0, 2 + at % 3]).await;
            assert_eq!(stranger.request("GET", "/healthz", "", b"").await.status, 200);
            strangers.push(stranger);
            if at == 49 {
                client = Some(world.connect_from([127, 0, 0, 9]).await);
                assert_eq!(client.as_mut().unwrap().status_with_key().await, 200);
            }
        }
        assert_eq!(client.unwrap().status_with_key().await, 200, "a client with a key keeps its connection");
        let last = strangers.last_mut().unwrap();
        assert_eq!(last.request("GET", "/healthz", "", b"").await.status, 200);
        assert!(strangers[0].is_closed().await, "the connection that was idle longest is closed");
        let metrics = world.send("GET", "/metrics", "").await.body;
        assert!(metrics.contains("reveille_http_connections_replaced_total 10"), "{metrics}");
        drop(strangers);
        world.stop().await;
    }
}

#[tokio::test]
async fn server_gives_one_client_address_at_most_half_of_the_connections() {
    let trusted_proxies = vec!["127.0.0.3".parse().unwrap()];
    let world = World::start_with(Options { connections_max: 4, trusted_proxies, ..Options::default() }).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut connection = world.connect_from([127, 0, 0, 2]).await;
        assert_eq!(connection.status_with_key().await, 200);
        open.push(connection);
    }
    let mut third = world.connect_from([127, 0, 0, 2]).await;
    assert!(third.is_closed().await, "the address has its share");
    for _ in 0..2 {
        let mut connection = world.connect_from([127, 0, 0, 3]).await;
        assert_eq!(connection.status_with_key().await, 200);
        open.push(connection);
    }
    drop(open);
    let mut proxied = Vec::new();
    for _ in 0..4 {
        let mut connection = world.connect_from([127, 0, 0, 3]).await;
        assert_eq!(connection.status_with_key().await, 200, "a proxy may have all connections");
        proxied.push(connection);
    }
    drop(proxied);
    world.stop().await;
}

#[tokio::test]
async fn http1_and_http2_work_on_the_same_port() {
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
    let created = response.into_body().collect().await.unwrap().to_bytes();
    assert!(created.starts_with(b"{\"id\":"));
    drop(sender);
    connection.end.await;
    world.stop().await;
}

#[tokio::test]
async fn server_disconnects_client_that_does_not_read_its_batch_results() {
    // The limit of the files is so small that the unread results of the batch reach it.
    let options = Options { idle_timeout: Duration::from_secs(1), batch_files_max: 4 << 20, ..Options::default() };
    let world = World::start_with(options).await;
    let connection = world.connect().await;
    // Each line has a long result with many errors, so that all results exceed the buffers of the sockets.
    let fields: Vec<String> = (0..32).map(|number| format!(r#""unknown{number}":0"#)).collect();
    let batch = format!("{{{}}}\n", fields.join(",")).repeat(8_000);
    let head = format!(
        "POST /v1/schedules:batch HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {KEY}\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n",
        batch.len()
    );
    let request = [head.as_bytes(), batch.as_bytes()].concat();
    let (mut from_server, mut to_server) = connection.http.stream.into_split();
    // This write may fail, because the server may reset the connection before it has read the whole request.
    let sending = world.runtime.spawn("client", async move { drop(to_server.write_all(&request).await) });
    let left = async {
        while !world.send("GET", "/metrics", "").await.body.contains("connections_idle_closed_total 1") {
            // The server still serves other clients.
            assert_eq!(world.send("POST", "/v1/schedules", &body("")).await.status, 201);
        }
    };
    world.runtime.timeout(Duration::from_secs(60), left).await.expect("the server closes the idle connection");
    sending.end.await;
    let mut unread = Vec::new();
    drop(from_server.read_to_end(&mut unread).await);
    assert!(!unread.ends_with(b"0\r\n\r\n"), "the results are visibly incomplete");
    assert!(world.send("GET", "/metrics", "").await.body.contains("reveille_http_batches_broken_off_total 1"));
    world.stop().await;
}
