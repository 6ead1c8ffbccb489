//! Tests with clients that send requests and do not read the responses.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::{Request, Response};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use server::Options;
use tokio::net::TcpStream;

use crate::support::{FOREIGN_KEY, KEY, World, body};

const PAGES: usize = 24;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Client on one HTTP/2 connection that lets the server send only the first 16 KiB of each unread response.
struct SlowClient {
    world: String,
    sender: SendRequest<Empty<Bytes>>,
}

impl SlowClient {
    async fn connect(world: &World) -> SlowClient {
        let stream = TcpStream::connect(world.address).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(16 << 10).initial_connection_window_size(1 << 20);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        drop(world.runtime.spawn("client", async move { drop(connection.await) }));
        SlowClient { world: world.address.to_string(), sender }
    }

    fn get(&mut self, path: &str) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        self.get_as(KEY, path)
    }

    fn get_as(&mut self, key: &str, path: &str) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        let request = Request::get(format!("http://{}{path}", self.world));
        let request = request.header("authorization", format!("Bearer {key}")).body(Empty::new()).unwrap();
        self.sender.send_request(request)
    }
}

/// Creates schedules whose listing has about 1 MiB.
async fn create_page(world: &World) -> usize {
    let payload = "x".repeat(60_000);
    for _ in 0..16 {
        let created = world.send("POST", "/v1/schedules", &body(&format!(r#","payload":"{payload}""#))).await;
        assert_eq!(created.status, 201, "{}", created.body);
    }
    world.send("GET", "/v1/schedules", "").await.body.len()
}

#[tokio::test]
async fn server_limits_the_bytes_of_unread_responses_on_one_connection() {
    let world = World::start().await;
    let page_bytes = create_page(&world).await;
    let mut client = SlowClient::connect(&world).await;
    let mut sent: FuturesUnordered<_> = (0..PAGES).map(|_| client.get("/v1/schedules")).collect();
    let mut unread = vec![sent.next().await.unwrap().unwrap()];
    // During these small requests, the server also runs every page handler that finds enough free bytes in the budget.
    for _ in 0..200 {
        assert_eq!(client.get("/healthz").await.unwrap().status(), 200, "small responses do not wait");
        assert_eq!(world.send("GET", "/v1/schedules?limit=1", "").await.status, 200, "other connections do not wait");
        while let Some(Some(response)) = futures_util::FutureExt::now_or_never(sent.next()) {
            unread.push(response.unwrap());
        }
    }
    let bytes_max = Options::default().response_bytes_per_connection_max;
    assert!(unread.len() * page_bytes <= bytes_max, "{} pages of {page_bytes} bytes are unread", unread.len());

    // A client that reads its responses receives all of them.
    let read = async {
        let mut read = 0;
        loop {
            for page in join_all(unread.drain(..).map(|response| response.into_body().collect())).await {
                assert_eq!(page.unwrap().to_bytes().len(), page_bytes);
                read += 1;
            }
            match sent.next().await {
                Some(response) => unread.push(response.unwrap()),
                None => return read,
            }
        }
    };
    assert_eq!(world.runtime.timeout(TIMEOUT, read).await, Some(PAGES));
    drop(client);
    world.stop().await;
}

#[tokio::test]
async fn tenant_with_unread_responses_does_not_block_other_tenants() {
    // Each tenant has a budget of 1 MiB, and each page of this tenant has about 1 MiB.
    let world = World::start_with(Options { response_bytes_max: 4 << 20, ..Options::default() }).await;
    let _bytes = create_page(&world).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(SlowClient::connect(&world).await);
    }
    let unread = clients[0].get("/v1/schedules").await.unwrap();
    for client in &mut clients[1..] {
        assert_eq!(client.get("/v1/schedules").await.unwrap().status(), 503, "the tenant has used up its part");
    }
    let other = clients[2].get_as(FOREIGN_KEY, "/v1/schedules").await.unwrap();
    assert_eq!(other.status(), 200, "another tenant has its own part");
    drop((unread, clients));
    world.stop().await;
}

#[tokio::test]
async fn server_rejects_large_reads_while_too_many_bytes_are_unread() {
    let world = World::start_with(Options { response_bytes_max: 1 << 20, ..Options::default() }).await;
    let _bytes = create_page(&world).await;
    let mut client = SlowClient::connect(&world).await;
    let unread = client.get("/v1/schedules").await.unwrap();
    let rejected = world.send("GET", "/v1/schedules", "").await;
    assert_eq!(rejected.status, 503);
    assert_eq!(rejected.text("/code"), "overloaded");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(world.send("POST", "/v1/schedules", &body("")).await.status, 201, "small responses do not wait");
    drop(unread);
    let freed = async { while world.send("GET", "/v1/schedules", "").await.status != 200 {} };
    world.runtime.timeout(TIMEOUT, freed).await.expect("a dropped response frees the budget");
    drop(client);
    world.stop().await;
}

#[tokio::test]
async fn new_requests_do_not_extend_the_time_to_read_a_response() {
    let options = Options { idle_timeout: Duration::from_millis(200), ..Options::default() };
    let world = World::start_with(options).await;
    let _bytes = create_page(&world).await;
    let mut client = SlowClient::connect(&world).await;
    let _unread = client.get("/v1/schedules").await.unwrap();
    let closed = async {
        while client.get("/healthz").await.is_ok() {
            world.runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    world.runtime.timeout(TIMEOUT, closed).await.expect("the server closes the connection with an unread response");
    world.stop().await;
}

#[tokio::test]
async fn server_renders_metrics_at_most_once_per_second() {
    let world = World::start().await;
    let started = world.runtime.monotonic();
    let mut texts = BTreeSet::new();
    for _ in 0..50 {
        texts.insert(world.send("GET", "/metrics", "").await.body);
    }
    let seconds = world.runtime.monotonic().since(started).as_secs();
    assert!(texts.len() as u64 <= seconds + 1, "{} texts in {seconds} s", texts.len());
    world.stop().await;
}

#[tokio::test]
async fn server_serves_metrics_only_at_the_metrics_address() {
    let options = Options { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..Options::default() };
    let world = World::start_with(options).await;
    assert_eq!(world.send("GET", "/metrics", "").await.status, 404);
    let document = world.send("GET", "/openapi.json", "").await.json();
    assert!(document["paths"]["/healthz"].is_object() && document["paths"]["/metrics"].is_null());
    let mut metrics = world.connect_to(world.metrics_address.unwrap()).await;
    let response = metrics.request("GET", "/metrics", "", b"").await;
    assert!(response.status == 200 && response.body.contains("reveille_http_connections"), "{response:?}");
    for path in ["/healthz", "/v1/schedules"] {
        assert_eq!(metrics.request("GET", path, "", b"").await.status, 404);
    }
    drop(metrics);
    world.stop().await;
}
