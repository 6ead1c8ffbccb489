//! Measures the requests per second from a client to a member over loopback, and the latency of a request. For
//! comparison, the same run measures requests to a bare hyper echo server.
//!
//! Run the example with `cargo run --profile dist -p peers --example rate`. The client and the server share the cores
//! of one machine. The echo server uses no TLS.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use hdrhistogram::Histogram;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioIo;
use membership::{Member, MemberId};
use peers::{Authority, HttpPeers, Identity, Listener, ListenerOptions, PeersOptions};
use runtime::Runtime;
use scheduler::Peers;
use tokio::net::TcpListener;

const TIME: Duration = Duration::from_secs(3);

/// Function that sends one request and waits for its response.
type Once = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

#[tokio::main]
async fn main() {
    let runtime = Runtime::real();
    let identity = Identity::new(&runtime, Authority::generate().unwrap(), &[]).unwrap();
    let to = start_member(&runtime, identity.clone()).await;
    let echo = echo(&runtime).await;
    let peers = Arc::new(HttpPeers::new(&runtime, identity.clone(), "rate", PeersOptions::default()));
    let sent = |bytes: usize| -> Once {
        let (peers, to, body) = (peers.clone(), to.clone(), Bytes::from(vec![b'x'; bytes]));
        Arc::new(move || {
            let requesting = peers.request(&to, "operation", body.clone());
            Box::pin(async move { drop(requesting.await.unwrap()) })
        })
    };
    let client = Client::builder(Executor(runtime.clone())).build_http::<Full<Bytes>>();
    let bare = |bytes: usize| -> Once {
        let (client, body) = (client.clone(), Bytes::from(vec![b'x'; bytes]));
        Arc::new(move || {
            let request = Request::post(format!("http://{echo}/")).body(Full::new(body.clone())).unwrap();
            let response = client.request(request);
            Box::pin(async move { drop(response.await.unwrap().into_body().collect().await.unwrap()) })
        })
    };
    println!("| case | tasks | requests per second | mean duration | p50 | p99 |\n|---|---|---|---|---|---|");
    for tasks in [1, 16, 64] {
        measure(&runtime, "bare echo, 3 bytes", tasks, &bare(3)).await;
        measure(&runtime, "request, 3 bytes", tasks, &sent(3)).await;
        measure(&runtime, "bare echo, 1 KB", tasks, &bare(1_150)).await;
        measure(&runtime, "request, 1 KB", tasks, &sent(1_150)).await;
    }
}

async fn measure(runtime: &Runtime, what: &str, tasks: usize, once: &Once) {
    let end = runtime.monotonic() + TIME;
    let clients = (0..tasks).map(|_| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (runtime, once) = (runtime.clone(), once.clone());
        drop(runtime.clone().spawn("client", async move {
            let mut micros = histogram();
            while runtime.monotonic() < end {
                let begin = runtime.monotonic();
                once().await;
                micros.record(u64::try_from(runtime.monotonic().since(begin).as_micros()).unwrap().max(1)).unwrap();
            }
            sender.send(micros).unwrap();
        }));
        receiver
    });
    let mut all = histogram();
    for micros in join_all(clients.collect::<Vec<_>>()).await {
        all.add(micros.unwrap()).unwrap();
    }
    let (p50, p99) = (all.value_at_quantile(0.5), all.value_at_quantile(0.99));
    let a_second = all.len() / TIME.as_secs();
    println!("| {what} | {tasks} | {a_second} | {:.0} us | {p50} us | {p99} us |", all.mean());
}

/// Returns an empty histogram of request durations in microseconds. It accepts durations of up to one minute. In each
/// printed line, the requests per second times the mean duration in seconds must be about the number of tasks, by
/// Little's law.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap()
}

async fn start_member(runtime: &Runtime, identity: Identity) -> Member {
    let options = ListenerOptions::default();
    let listener = Listener::bind(runtime, "127.0.0.1:0".parse().unwrap(), options).await.unwrap();
    let member = Member {
        id: MemberId(1),
        name: "member".to_owned(),
        address: listener.local_addr().to_string(),
        owns: true,
        build: String::new(),
    };
    let handler: peers::Handler = Arc::new(|_, _| Box::pin(async { Ok(Bytes::from_static(b"abc")) }));
    let stop = std::future::pending::<()>();
    drop(runtime.spawn("listener", listener.serve_until(identity, Arc::new(|_| true), handler, stop)));
    member
}

async fn echo(runtime: &Runtime) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = runtime.clone();
    let serving = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let service = hyper::service::service_fn(|request: Request<Incoming>| async {
                let _body = request.into_body().collect().await.unwrap();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"abc"))))
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            drop(tasks.spawn("echo", async move { drop(connection.await) }));
        }
    };
    drop(runtime.spawn("echo", serving));
    address
}

#[derive(Clone)]
struct Executor(Runtime);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        drop(self.0.spawn("connection", future));
    }
}
