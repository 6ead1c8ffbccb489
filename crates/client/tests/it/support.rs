//! Support for the SDK's tests: a real server with an in-memory store, faulty proxies, and servers with scripted
//! responses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use callback::HttpDeliver;
use domain::egress::Class;
use domain::limits::Limits;
use domain::{ApiKey, Audit, Egress, Role, SigningSecret, Tenant, TenantId, Timestamp};
use futures_util::future::{BoxFuture, FutureExt as _};
use reveille_client::{Client, Options, ScheduleRequest};
use runtime::Runtime;
use scheduler::{Registry, Scheduler};
use server::Server;
use sha2::{Digest as _, Sha256};
use store::Store as _;
use store::memory::{MemoryOptions, MemoryStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) const ADMIN_KEY: &str = "admins.secret-of-admins";
pub(crate) const OPERATOR_KEY: &str = "operators.secret-of-operators";
/// Time limit of a test step. A normal step takes less time, so a step reaches this limit only if it hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn on_real(test: impl AsyncFnOnce(Runtime)) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await });
}

/// A running server. [`World::stop`] shuts the server down gracefully.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    scheduler: Scheduler,
    stop: CancellationToken,
    serving: BoxFuture<'static, ()>,
}

impl World {
    pub(crate) async fn start(runtime: &Runtime) -> World {
        let store = Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
        for tenant in [operators(), tenant()] {
            let entry = Audit::of(&tenant, runtime.now(), "test", "tenant.create", "");
            store.put_tenant(tenant, entry).await.unwrap().unwrap();
        }
        let deliver = Arc::new(HttpDeliver::new(runtime, callback::Options::default()).unwrap());
        let started = Scheduler::start(runtime, store, deliver, scheduler::Options::default(), Registry::default());
        let scheduler = started.await.unwrap();
        let (listen, limits) = (SocketAddr::from(([127, 0, 0, 1], 0)), Limits { has_bus: true, ..Limits::default() });
        let options = server::Options { listen, limits, ..server::Options::default() };
        let server = Server::bind(runtime.clone(), scheduler.clone(), options).await.unwrap();
        let address = server.local_addr();
        let stop = CancellationToken::new();
        let serving = runtime.spawn("server", server.serve_until(stop.clone().cancelled_owned())).end;
        World { address, scheduler, stop, serving: serving.map(drop).boxed() }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_as(ADMIN_KEY)
    }

    pub(crate) fn client_as(&self, key: &str) -> Client {
        client(self.address, key)
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.serving.await;
        self.scheduler.stop().await;
    }
}

pub(crate) fn client(address: SocketAddr, key: &str) -> Client {
    Client::new(&format!("http://{address}"), key, Options::default()).unwrap()
}

fn admin(key: &str) -> ApiKey {
    let (id, secret) = key.split_once('.').unwrap();
    ApiKey::admin(id, Sha256::digest(secret.as_bytes()).into(), Timestamp::MIN)
}

fn operators() -> Tenant {
    let secret = SigningSecret::first(vec![7; 32], Timestamp::MIN);
    Tenant {
        generations: Vec::new(),
        signing_secrets: Vec::new(),
        keys: vec![ApiKey { role: Role::Operator, ..admin(OPERATOR_KEY) }],
        ..Tenant::new(Tenant::OPERATOR, "operator", 1, secret)
    }
}

fn tenant() -> Tenant {
    let secret = SigningSecret::first(vec![7; 32], Timestamp::MIN);
    let allow_topics = vec!["orders*".parse().unwrap()];
    let egress = Egress { allow: [Class::Loopback].into(), allow_topics, ..Egress::default() };
    Tenant { keys: vec![admin(ADMIN_KEY)], egress, ..Tenant::new(TenantId(1), "shop", 4, secret) }
}

/// Returns a request for a schedule in the far future.
pub(crate) fn later() -> ScheduleRequest {
    ScheduleRequest::at("2035-01-02T03:04:05Z", "https://example.org/hook")
}

/// Starts a proxy for the server at `to`. The proxy drops the first `lost` responses. The server carries out all
/// requests, but the client does not receive the dropped responses.
pub(crate) async fn losing(runtime: &Runtime, to: SocketAddr, lost: u32) -> SocketAddr {
    let left = Arc::new(AtomicU32::new(lost));
    listen(runtime, move |mut client| {
        let left = left.clone();
        async move {
            let mut server = TcpStream::connect(to).await.unwrap();
            let (mut up, mut down) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
            loop {
                tokio::select! {
                    biased;
                    read = server.read(&mut down) => {
                        let lose = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                        match read {
                            Ok(length @ 1..) if lose.is_err() => client.write_all(&down[..length]).await.unwrap(),
                            _ => return,
                        }
                    }
                    read = client.read(&mut up) => match read {
                        Ok(length @ 1..) => server.write_all(&up[..length]).await.unwrap(),
                        _ => return,
                    },
                }
            }
        }
    })
    .await
}

/// Starts a server that responds to each request with the next element of `answers` and then closes the connection.
/// After the last element, the server does not respond to further requests.
pub(crate) async fn scripted(runtime: &Runtime, answers: &[&str]) -> (SocketAddr, Arc<AtomicU32>) {
    let answers: Arc<Vec<String>> = Arc::new(answers.iter().map(|answer| (*answer).to_owned()).collect());
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    let address = listen(runtime, move |mut client| {
        let (answers, counter) = (answers.clone(), counter.clone());
        async move {
            let mut request = vec![0; 64 * 1024];
            let _length = client.read(&mut request).await.unwrap();
            let number = usize::try_from(counter.fetch_add(1, Ordering::Relaxed)).unwrap();
            match answers.get(number) {
                Some(answer) => client.write_all(answer.as_bytes()).await.unwrap(),
                None => std::future::pending().await,
            }
        }
    })
    .await;
    (address, asked)
}

/// Starts a server that reads one request and stops without a response. Later connections to its address fail.
pub(crate) async fn once_and_gone(runtime: &Runtime) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn("once", async move {
        let (mut client, _) = listener.accept().await.unwrap();
        drop(listener);
        let _length = client.read(&mut vec![0; 64 * 1024]).await.unwrap();
    });
    address
}

async fn listen<F>(runtime: &Runtime, serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let spawner = runtime.clone();
    runtime.spawn("listener", async move {
        while let Ok((client, _)) = listener.accept().await {
            spawner.spawn("connection", serve(client));
        }
    });
    address
}
