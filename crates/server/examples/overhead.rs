//! Benchmark of this crate's overhead per create request. It measures two rates alternately in one process, both in
//! requests per second. The first is the rate of a bare handler that only parses the JSON of the request. The second is
//! the rate of `POST /v1/schedules` on the in-memory engine.
//!
//! `cargo run --profile dist -p server --example overhead`

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use domain::{ApiKey, AttemptResult, Audit, SigningSecret, Tenant, TenantId};
use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery, Scheduler};
use server::{Options, Server};
use sha2::{Digest, Sha256};
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 32;
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 5;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "the program prints its results")]
async fn main() {
    let runtime = Runtime::real();
    let bare = serve_bare(&runtime).await;
    let full = serve_full(&runtime).await;
    for turn in 1..=TURNS {
        let bare_rate = rate(&runtime, bare).await;
        let full_rate = rate(&runtime, full).await;
        println!(
            "turn {turn}: bare server {bare_rate:.0} requests/s, full server {full_rate:.0} requests/s; ratio {:.2}",
            full_rate / bare_rate
        );
    }
}

async fn serve_bare(runtime: &Runtime) -> SocketAddr {
    let handler = |body: Bytes| async move {
        let request: api::ScheduleRequest = serde_json::from_slice(&body).expect("the benchmark sends valid bodies");
        (StatusCode::CREATED, [("content-type", "application/json")], format!("{{\"at\":{:?}}}", request.at))
    };
    let router = axum::Router::new().route("/v1/schedules", axum::routing::post(handler));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a local port is free");
    let address = listener.local_addr().expect("the listener has a local address");
    let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
    let spawner = runtime.clone();
    drop(runtime.spawn("bare server", async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).expect("the connection is open");
            let (builder, service) = (builder.clone(), hyper_util::service::TowerToHyperService::new(router.clone()));
            drop(spawner.spawn("bare connection", async move {
                drop(builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await);
            }));
        }
    }));
    address
}

async fn serve_full(runtime: &Runtime) -> SocketAddr {
    let store = Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
    let key = ApiKey::admin("key", Sha256::digest(b"secret").into(), runtime.now());
    let mut tenant = Tenant::new(TenantId(1), "default", 64, SigningSecret::first(vec![7; 32], runtime.now()));
    tenant.keys.push(key);
    let entry = Audit::of(&tenant, runtime.now(), "example", "tenant.create", "");
    store.put_tenant(tenant, entry).await.expect("the in-memory store returns no error").expect("the store is empty");
    let scheduler = Scheduler::start(
        runtime,
        store,
        Arc::new(Nowhere),
        scheduler::Options::default(),
        scheduler::Registry::default(),
    );
    let scheduler = scheduler.await.expect("the in-memory store returns no error");
    let options = Options { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..Options::default() };
    let server = Server::bind(runtime.clone(), scheduler, options).await.expect("a local port is free");
    let address = server.local_addr();
    drop(runtime.spawn("server", server.serve_until(std::future::pending())));
    address
}

struct Nowhere;

impl Deliver for Nowhere {
    fn deliver(&self, _: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        ready(Some(Delivered { result: AttemptResult::TimedOut, retry_after: None, excerpt: None })).boxed()
    }
}

async fn rate(runtime: &Runtime, address: SocketAddr) -> f64 {
    let (is_over, responses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = join_all((0..CONNECTIONS).map(|_| send_requests(address, is_over.clone(), responses.clone())));
    let load = runtime.spawn("load", load.map(drop));
    let start = runtime.monotonic();
    runtime.sleep(TURN).await;
    is_over.store(true, Ordering::Relaxed);
    let took = runtime.monotonic().since(start);
    load.end.await;
    #[expect(clippy::cast_precision_loss, reason = "an approximate rate is sufficient for the output")]
    let responses = responses.load(Ordering::Relaxed) as f64;
    responses / took.as_secs_f64()
}

async fn send_requests(address: SocketAddr, is_over: Arc<AtomicBool>, responses: Arc<AtomicU64>) {
    let body = format!(
        r#"{{"at":"2035-01-02T03:04:05Z","target":{{"http":{{"url":"http://127.0.0.1:9/hook"}}}},"payload":"{}"}}"#,
        "x".repeat(1_000)
    );
    let request = format!(
        "POST /v1/schedules HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer key.secret\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("the server is listening");
    stream.set_nodelay(true).expect("the connection is open");
    let mut response = vec![0; 4_096];
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(request.as_bytes()).await.expect("the server keeps the connection open");
        let length = stream.read(&mut response).await.expect("the server responds");
        assert!(response[..length].starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&response[..length]));
        responses.fetch_add(1, Ordering::Relaxed);
    }
}
