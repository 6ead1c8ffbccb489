//! Compares the cost of a signed callback with the cost of a plain request through three hyper clients with pooled
//! connections; docs/decisions/0070 shows the results.
//!
//! `cargo run --profile dist -p callback --example clients [seconds] [in flight] [name] [address]` runs each client
//! whose name contains `name`. The clients call the receiver at `address`; without `address`, they call a receiver that
//! the example starts in a separate process. The example prints callbacks per second and the client's own CPU time per
//! callback.

#![expect(clippy::print_stdout, reason = "the example prints its results")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use callback::{HttpDeliver, Options};
use domain::egress::Class;
use domain::retry::RetryPolicy;
use domain::{
    HttpTarget, Incarnation, Occurrence, PollerId, Revision, Schedule, ScheduleId, SigningSecret, Spec, Status, Target,
    Tenant, TenantId, Term, Timestamp, When,
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use runtime::{Runtime, TaskSet};
use scheduler::{Deliver, Delivery};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = Runtime::real();
    if arguments.first().is_some_and(|first| first == "receive") {
        return receive(&runtime).await;
    }
    let seconds = arguments.first().map_or(Ok(4), |text| text.parse())?;
    let in_flight: usize = arguments.get(1).map_or(Ok(128), |text| text.parse())?;
    let only = arguments.get(2).map_or("", String::as_str);
    let mut receiver = Command::new(std::env::current_exe()?).arg("receive").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let output = receiver.stdout.take().ok_or("the receiver's standard output is not captured")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    let address: SocketAddr = arguments.get(3).map_or(line.trim(), String::as_str).parse()?;

    let clients: Vec<(&str, Arc<dyn Caller>)> = vec![
        ("hyper-util legacy client", Arc::new(Legacy::new(address))),
        ("hyper, a task per connection", Arc::new(Tasks::new(&runtime, address))),
        ("hyper, driven by the caller", Arc::new(Driven::new(address))),
        ("callback, signed", Arc::new(Callback::new(&runtime, address)?)),
    ];
    for _ in 0..3 {
        for (name, client) in clients.iter().filter(|(name, _)| name.contains(only)) {
            measure(&runtime, name, client, in_flight, Duration::from_secs(seconds)).await?;
        }
    }
    receiver.kill()?;
    receiver.wait()?;
    Ok(())
}

trait Caller: Send + Sync {
    fn call(&self) -> futures_util::future::BoxFuture<'static, ()>;
}

async fn measure(
    runtime: &Runtime,
    name: &str,
    client: &Arc<dyn Caller>,
    in_flight: usize,
    duration: Duration,
) -> Result<(), Failure> {
    let created = Arc::new(AtomicU64::new(0));
    let start = runtime.monotonic();
    let cpu_before = cpu_ticks()?;
    let tasks = TaskSet::new(runtime);
    for _ in 0..in_flight {
        let (runtime, client, created) = (runtime.clone(), client.clone(), created.clone());
        tasks.spawn("caller", async move {
            while runtime.monotonic().since(start) < duration {
                // As in the scheduler, each call runs in its own task.
                let _end = runtime.spawn("callback", client.call()).end.await;
                created.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks.join().await;
    let created = created.load(Ordering::Relaxed);
    let elapsed = runtime.monotonic().since(start).as_secs_f64();
    let cpu_us = (cpu_ticks()? - cpu_before) as f64 * 10_000.0 / created as f64;
    let rate = created as f64 / elapsed;
    println!("{name:32} {rate:9.0} callbacks/s {cpu_us:6.2} us of CPU time per callback");
    Ok(())
}

/// Returns the user and system time of this process, in hundredths of a second.
fn cpu_ticks() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

async fn receive(runtime: &Runtime) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async {
            drop(request.into_body().collect().await);
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        });
        drop(runtime.spawn("connection", async move {
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        }));
    }
}

fn payload() -> Bytes {
    Bytes::from(vec![b'x'; 1024])
}

struct Legacy {
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    payload: Bytes,
}

impl Legacy {
    fn new(address: SocketAddr) -> Self {
        let mut connector = hyper_util::client::legacy::connect::HttpConnector::new();
        connector.set_nodelay(true);
        Legacy { client: Client::builder(TokioExecutor::new()).build(connector), address, payload: payload() }
    }
}

impl Caller for Legacy {
    fn call(&self) -> futures_util::future::BoxFuture<'static, ()> {
        let uri = format!("http://{}/hook", self.address);
        let request = Request::post(uri).body(Full::new(self.payload.clone())).expect("the request is valid");
        let answer = self.client.request(request);
        Box::pin(async move {
            let answer = answer.await.expect("the receiver responds");
            answer.into_body().collect().await.expect("the response is complete");
        })
    }
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

struct Tasks {
    runtime: Runtime,
    address: SocketAddr,
    idle: Arc<std::sync::Mutex<Vec<Sender>>>,
    payload: Bytes,
}

impl Tasks {
    fn new(runtime: &Runtime, address: SocketAddr) -> Self {
        Tasks { runtime: runtime.clone(), address, idle: Arc::default(), payload: payload() }
    }
}

impl Caller for Tasks {
    fn call(&self) -> futures_util::future::BoxFuture<'static, ()> {
        let (idle, runtime, address) = (self.idle.clone(), self.runtime.clone(), self.address);
        let request = Request::post("/hook").header("host", "receiver").body(Full::new(self.payload.clone()));
        Box::pin(async move {
            let pooled = idle.lock().expect("no holder of this lock panics").pop();
            let mut sender = match pooled {
                Some(sender) => sender,
                None => {
                    let stream = TcpStream::connect(address).await.expect("the receiver listens");
                    stream.set_nodelay(true).expect("the stream is open");
                    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                        .await
                        .expect("the handshake succeeds");
                    drop(runtime.spawn("connection", async move { drop(connection.await) }));
                    sender
                }
            };
            let request = request.expect("the request is valid");
            let answer = sender.send_request(request).await.expect("the receiver responds");
            answer.into_body().collect().await.expect("the response is complete");
            poll_fn(|context| sender.poll_ready(context)).await.expect("the receiver keeps the connection open");
            idle.lock().expect("no holder of this lock panics").push(sender);
        })
    }
}

type Driver = (Sender, hyper::client::conn::http1::Connection<TokioIo<TcpStream>, Full<Bytes>>);

struct Driven {
    address: SocketAddr,
    #[expect(clippy::vec_box, reason = "a `Driver` is large, and each call moves it out of the vector and back")]
    idle: Arc<std::sync::Mutex<Vec<Box<Driver>>>>,
    payload: Bytes,
}

impl Driven {
    fn new(address: SocketAddr) -> Self {
        Driven { address, idle: Arc::default(), payload: payload() }
    }
}

impl Caller for Driven {
    fn call(&self) -> futures_util::future::BoxFuture<'static, ()> {
        let (idle, address) = (self.idle.clone(), self.address);
        let request = Request::post("/hook").header("host", "receiver").body(Full::new(self.payload.clone()));
        Box::pin(async move {
            let pooled = idle.lock().expect("no holder of this lock panics").pop();
            let mut driver = match pooled {
                Some(driver) => driver,
                None => {
                    let stream = TcpStream::connect(address).await.expect("the receiver listens");
                    stream.set_nodelay(true).expect("the stream is open");
                    Box::new(
                        hyper::client::conn::http1::handshake(TokioIo::new(stream))
                            .await
                            .expect("the handshake succeeds"),
                    )
                }
            };
            let (sender, connection) = &mut *driver;
            let mut answer = std::pin::pin!(sender.send_request(request.expect("the request is valid")));
            let answer = poll_fn(|context| {
                assert!(
                    std::pin::Pin::new(&mut *connection).poll(context).is_pending(),
                    "the receiver keeps the connection open"
                );
                answer.as_mut().poll(context)
            });
            let answer = answer.await.expect("the receiver responds");
            assert!(hyper::body::Body::is_end_stream(answer.body()), "the response is empty");
            poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *connection).poll(context).is_pending()))
                .await;
            idle.lock().expect("no holder of this lock panics").push(driver);
        })
    }
}

struct Callback {
    deliver: HttpDeliver,
    runtime: Runtime,
    tenant: Arc<Tenant>,
    schedule: Arc<Schedule>,
    created: AtomicU64,
}

impl Callback {
    fn new(runtime: &Runtime, address: SocketAddr) -> Result<Self, Failure> {
        let now = runtime.now();
        let id = ScheduleId::from_incarnation(Incarnation::new(now, 7));
        let mut tenant = Tenant::new(TenantId(1), "default", 1, SigningSecret::first(vec![7; 32], now));
        tenant.egress.allow.insert(Class::Loopback);
        let target = HttpTarget {
            url: format!("http://{address}/hook"),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        };
        let retry =
            RetryPolicy { attempts_max: 1, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(1) };
        let schedule = Schedule {
            tenant: tenant.id,
            poller: PollerId::of(tenant.id, 0, 1, &id),
            id,
            incarnation: Incarnation::new(now, 7),
            revision: Revision(0),
            status: Status::Active,
            created_at: now,
            updated_at: now,
            next: Some(now),
            spec: Spec {
                when: When::At(now),
                target: Target::Http(target),
                payload: payload(),
                labels: BTreeMap::new(),
                retry,
            },
        };
        Ok(Callback {
            deliver: HttpDeliver::new(runtime, Options::default())?,
            runtime: runtime.clone(),
            tenant: Arc::new(tenant),
            schedule: Arc::new(schedule),
            created: AtomicU64::new(0),
        })
    }
}

impl Caller for Callback {
    fn call(&self) -> futures_util::future::BoxFuture<'static, ()> {
        let started_at = self.runtime.now();
        let number = i64::try_from(self.created.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let delivered = self.deliver.deliver(Delivery {
            tenant: self.tenant.clone(),
            schedule: self.schedule.clone(),
            occurrence: Occurrence {
                incarnation: self.schedule.incarnation,
                nominal: Timestamp::from_millis(started_at.as_millis() - number % 1000),
                revision: Revision(0),
                replay: 0,
            },
            attempt: 1,
            term: Term(1),
            started_at,
            deadline: self.runtime.monotonic() + Duration::from_secs(60),
        });
        Box::pin(async move {
            let delivered = delivered.await.expect("the deadline of the callback has not passed");
            assert!(delivered.result.is_success(), "{delivered:?}");
        })
    }
}
