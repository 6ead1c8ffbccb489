//! Implementations of [`scheduler::Deliver`]: [`HttpDeliver`] sends one signed callback over HTTP and returns the target's
//! response, [`BusDeliver`] sends one signed record to a topic of a message bus, and [`Route`] selects one of them by the
//! kind of the target. The rest of this page describes HTTP.
//!
//! The scheduler decides whether, when and how often it sends a callback. For each request of the scheduler, this crate
//! makes exactly one attempt. An attempt never sends a request twice. It sends a request on another connection only if
//! the first connection closed before it accepted any byte of the request.
//!
//! An attempt that finds no free connection opens one. If the target may support HTTP/2, only one attempt at a time
//! connects to it, because all callbacks to the target may fit on one connection. The other attempts wait. Their
//! timeouts start when they have a connection or begin to connect
//! (docs/decisions/0195-wait-for-a-connection-before-the-timeout-starts.md).
//!
//! Invariants: The body consists of the payload's bytes, unchanged. The client follows no redirects. Every attempt ends
//! when its timeout expires, or earlier. The client keeps bounded state per target, tenant and connection. The client
//! ignores proxy settings and environment variables. An excerpt of a response (docs/decisions/0242) changes neither the
//! result of an attempt nor the bytes that the client reads. An attempt uses a new or reused connection only if the
//! tenant's egress policy at the start of the attempt allows the address of the connection.

mod bus;
mod cache;
mod connect;
mod failure;
mod guard;
mod headers;
mod http1;
mod http2;
mod metrics;
mod pool;
mod resolver;
mod response;
mod route;
mod secrets;
mod share;
mod sign;
mod spans;
mod target;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{AttemptResult, HttpTarget, Target};
use futures_util::future::BoxFuture;
use http::{Request, Version, header};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use runtime::{Runtime, TaskSet};
use rustls::pki_types::CertificateDer;
use scheduler::{Deliver, Delivered, Delivery};
use store::Keyring;

use crate::failure::Failure;
use crate::headers::{Signers, Stamper};
use crate::metrics::PoolCollector;
use crate::pool::{Channel, Pool, Slot};
use crate::response::{Excerpt, TargetResponse};
use crate::target::{Prepared, Targets};

pub use bus::{BusDeliver, BusOptions};
pub use connect::RootError;
pub use headers::trace_id;
pub use route::Route;
pub use sign::{SIGNATURE_LEN, Signer, sign};

/// Limits and settings of the HTTP client for callbacks. Each default suits most installations.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum size of a response's body, in bytes. If the body is longer, the client uses the status of the response,
    /// but closes the connection (over HTTP/2, only the stream). Default 64 KiB. If the value is too small, the client
    /// must open a new connection after each longer response. If it is too large, the client spends time and traffic on
    /// long bodies.
    pub answer_bytes_max: usize,
    /// Longest time for which the client keeps an unused connection open. Default 30 s. If the value is too small, each
    /// infrequent callback needs a new connection. If the value exceeds the idle timeout of a target, an attempt
    /// occasionally fails, because the target has just closed the connection.
    pub idle_timeout: Duration,
    /// Maximum number of idle connections of all tenants to all targets together. At most about half of them belong to
    /// one tenant. Default 4,096. Each connection uses a file descriptor.
    pub idle_connections_max: usize,
    /// DNS servers that resolve the host names of targets, with their ports. Default: empty, which selects the servers
    /// of `/etc/resolv.conf`.
    pub name_servers: Vec<SocketAddr>,
    /// Time limit for connecting to one address of the target. Default 5 s. The timeout of the attempt also applies.
    pub connect_timeout: Duration,
    /// Certificate authorities to trust in addition to the Mozilla list.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Keys that decrypt the headers and signing secrets that the store keeps encrypted. Default: no keys. Without
    /// keys, the client can read only values that are not encrypted.
    pub keyring: Arc<Keyring>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            answer_bytes_max: 64 * 1024,
            idle_timeout: Duration::from_secs(30),
            idle_connections_max: 4_096,
            name_servers: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            extra_roots: Vec::new(),
            keyring: Arc::new(Keyring::NONE),
        }
    }
}

/// Client that sends callbacks over HTTP/1.1, or over HTTP/2 if a TLS target supports it.
pub struct HttpDeliver {
    client: Arc<Client>,
    /// Task that closes idle connections. The task ends when its owner drops this value.
    _tasks: TaskSet,
}

/// Connection counts of the pool, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// Number of connections that the pool has opened since its creation.
    pub opened: u64,
    /// Number of idle HTTP/1.1 connections, plus the number of HTTP/2 connections that the pool keeps, idle or in use.
    pub idle: usize,
}

impl HttpDeliver {
    /// Creates a client without connections, and starts the task that closes idle connections.
    ///
    /// # Errors
    /// Returns [`RootError`] if one of [`Options::extra_roots`] is not a certificate.
    pub fn new(runtime: &Runtime, options: Options) -> Result<Self, RootError> {
        let pool = Pool::new(runtime, &options)?;
        let client = Arc::new(Client {
            runtime: runtime.clone(),
            stamper: Stamper::new(runtime.random(), options.keyring.clone()),
            keyring: options.keyring,
            targets: Targets::new(),
            answer_bytes_max: options.answer_bytes_max,
            pool,
        });
        let tasks = TaskSet::new(runtime);
        let swept = Arc::downgrade(&client);
        let clock = runtime.clone();
        let period = pool::sweep_period(options.idle_timeout);
        tasks.spawn("callback-idle", async move {
            loop {
                clock.sleep(period).await;
                let Some(client) = swept.upgrade() else { return };
                client.pool.sweep().await;
            }
        });
        Ok(HttpDeliver { client, _tasks: tasks })
    }

    /// Registers the metrics of the connection pool.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(PoolCollector(self.client.clone())));
    }

    #[must_use]
    pub fn connections(&self) -> Connections {
        self.client.pool.connections()
    }
}

impl Deliver for HttpDeliver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let client = self.client.clone();
        spans::traced(spans::attempt(&delivery), async move { client.attempt(&delivery).await })
    }
}

type Body = Full<bytes::Bytes>;

/// Prepared target, and the signers of the schedule's tenant.
struct Ready {
    prepared: Arc<Prepared>,
    signers: Arc<Signers>,
}

struct Client {
    runtime: Runtime,
    keyring: Arc<Keyring>,
    stamper: Stamper,
    targets: Targets,
    answer_bytes_max: usize,
    pool: Pool,
}

impl Client {
    async fn attempt(&self, delivery: &Delivery) -> Option<Delivered> {
        let Target::Http(target) = &delivery.schedule.spec.target else {
            return Some(failed(AttemptResult::Unreachable("the target is not an HTTP target".to_owned())));
        };
        let ready = match self.prepare(delivery, target) {
            Ok(ready) => ready,
            Err(reason) => return Some(failed(AttemptResult::Unreachable(reason))),
        };
        let slot = self.pool.slot(&ready.prepared.authority).await;
        let mut excerpt = Excerpt::new(delivery.tenant.excerpts);
        let exchanged = {
            // `timeout` receives a pinned reference to the future. If it received the future itself, it would store the
            // future twice: as its argument and as a pinned local variable.
            let exchange = pin!(self.exchange(delivery, &ready, slot, &mut excerpt));
            self.runtime.timeout(target.timeout, exchange).await
        };
        let delivered = match exchanged {
            Some(Ok(response)) => self.delivered(&response),
            Some(Err(Failure::Broken(reason))) => failed(AttemptResult::Unreachable(reason)),
            Some(Err(Failure::TimedOut)) | None => failed(AttemptResult::TimedOut),
            Some(Err(Failure::NotSent)) => return None,
        };
        Some(Delivered { excerpt: excerpt.into_secret(), ..delivered })
    }

    /// Returns the prepared target and the signers for an attempt. The client decrypts secrets only in this function.
    fn prepare(&self, delivery: &Delivery, target: &HttpTarget) -> Result<Ready, String> {
        let decrypted = match secrets::decrypted_headers(&self.keyring, delivery)? {
            Some(headers) => Cow::Owned(HttpTarget { headers, ..target.clone() }),
            None => Cow::Borrowed(target),
        };
        let prepared = self.targets.prepare(&decrypted, delivery.tenant.id, &delivery.tenant.egress, &self.pool);
        let signers = self.stamper.signers(&delivery.tenant);
        let signers =
            signers.map_err(|error| secrets::not_decrypted(delivery, "the tenant's signing secret", error))?;
        Ok(Ready { prepared: prepared.map_err(|problem| problem.to_string())?, signers })
    }

    /// Sends the callback on a pooled or new connection, and reads the response. Copies the start of the response's
    /// body to `excerpt`, also if the response is incomplete.
    async fn exchange<'a>(
        &self,
        delivery: &Delivery,
        ready: &'a Ready,
        mut slot: Slot<'a>,
        excerpt: &mut Excerpt,
    ) -> Result<TargetResponse, Failure> {
        let authority = &ready.prepared.authority;
        loop {
            let (channel, is_reused) = match slot {
                Slot::Open(channel) => (channel, true),
                // The code boxes the future of `connect`, because its large state would enlarge every attempt's future,
                // although attempts rarely connect.
                Slot::Connect(turn) => (Box::pin(self.pool.connect(turn)).await?, false),
            };
            if self.runtime.monotonic() >= delivery.deadline {
                return Err(Failure::NotSent);
            }
            let outcome = match channel {
                Channel::Http1(mut connection) => {
                    let body = Full::new(delivery.schedule.spec.payload.clone());
                    let request = self.head(delivery, ready, Version::HTTP_11).map(|()| body);
                    let outcome = connection.exchange(request, self.answer_bytes_max, excerpt).await;
                    if outcome.is_ok() {
                        self.pool.release(authority, connection).await;
                    }
                    outcome
                }
                Channel::Http2(mut permit) => {
                    let head = self.head(delivery, ready, Version::HTTP_2);
                    let body = delivery.schedule.spec.payload.clone();
                    Box::pin(http2::exchange(&mut permit, head, body, self.answer_bytes_max, excerpt)).await
                }
            };
            match outcome {
                Ok(response) => return Ok(response),
                Err(failed) if failed.is_unsent && is_reused => slot = self.pool.slot(authority).await,
                Err(failed) => return Err(failure::describe(&*failed.error)),
            }
        }
    }

    /// Returns the request without its body.
    fn head(&self, delivery: &Delivery, ready: &Ready, version: Version) -> Request<()> {
        let Ready { prepared, signers } = ready;
        let mut request = Request::new(());
        *request.method_mut() = prepared.method.clone();
        *request.headers_mut() = self.stamper.headers(delivery, prepared, signers);
        if version == Version::HTTP_2 {
            *request.uri_mut() = prepared.uri.clone();
        } else {
            *request.uri_mut() = prepared.path.clone();
            request.headers_mut().insert(header::HOST, prepared.host.clone());
        }
        *request.version_mut() = version;
        request
    }

    fn delivered(&self, response: &TargetResponse) -> Delivered {
        let result = AttemptResult::Answered(response.status.as_u16());
        let retry_after = if result.is_success() { None } else { response.retry_after(|| self.runtime.now()) };
        Delivered { result, retry_after, excerpt: None }
    }
}

fn failed(result: AttemptResult) -> Delivered {
    Delivered { result, retry_after: None, excerpt: None }
}
