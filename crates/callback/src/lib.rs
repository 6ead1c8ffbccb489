//! The HTTP side of [`scheduler::Deliver`]: one callback goes out, signed, and what the target said comes back.
//!
//! It does not decide whether, when or how often a callback is made; it makes exactly the one attempt that it was
//! asked for. Nothing is ever sent twice in one attempt: a request is given to another connection only when its first
//! one was closed before a byte of it was handed over.
//!
//! Always true here: the body's bytes are those of the schedule's payload; a redirect is an answer like any other;
//! every attempt ends within its target's timeout; what is kept per target, per tenant and per connection is bounded;
//! no proxy and no environment variable is asked; no connection goes, or has gone when it is used again, to an address
//! that the policy of the tenant does not allow, as it is when the attempt starts.

mod answer;
mod cache;
mod connect;
mod failure;
mod guard;
mod headers;
mod http1;
mod http2;
mod metrics;
mod pool;
mod sign;
mod spans;
mod target;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use domain::{AttemptResult, HttpTarget, NOT_OPENED, Secret, Target};
use futures_util::future::BoxFuture;
use http::{Request, Version, header};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use runtime::{Runtime, TaskSet};
use rustls::pki_types::CertificateDer;
use scheduler::{Deliver, Delivered, Delivery};
use store::Seal;
use store::seal::{OpenError, Place};
use tracing::Instrument;

use crate::answer::Answer;
use crate::failure::Failure;
use crate::headers::{Signers, Stamper};
use crate::metrics::OfPool;
use crate::pool::{Channel, Pool};
use crate::target::{Prepared, Targets};

pub use connect::RootError;
pub use headers::trace_id;
pub use sign::{SIGNATURE_LEN, Signer, sign};

/// The limits of callbacks. Each has a default that suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much of an answer's body is read, so that its connection can serve again; beyond it the connection is
    /// closed, and the status still counts. Default 64 KiB. Too small costs a connection for each chatty answer, too
    /// large costs time and traffic.
    pub answer_bytes_max: usize,
    /// A connection is closed after this long without a callback. Default 30 s. Too short costs a handshake for each
    /// callback of a slow rhythm; too long runs into targets that close first, which fails an attempt now and then.
    pub idle_timeout: Duration,
    /// Connections kept open between callbacks, over all targets. Default 4,096; each takes a file descriptor.
    pub idle_connections_max: usize,
    /// Callbacks in flight to one scheme, host and port under one policy of egress; further ones wait, their timeout running. Over HTTP/1.1 it is
    /// the number of connections. Default 1,024: the scheduler's own limit is meant to be the lower one.
    pub in_flight_per_authority_max: usize,
    /// For one address of the target to take the connection. Default 5 s; the attempt's own timeout holds, too.
    pub connect_timeout: Duration,
    /// Certificate authorities to trust beside those of the Mozilla list.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Opens the headers and signing secrets that the store keeps sealed. Default: none, which opens those in plain.
    pub seal: Arc<Seal>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            answer_bytes_max: 64 * 1024,
            idle_timeout: Duration::from_secs(30),
            idle_connections_max: 4_096,
            in_flight_per_authority_max: 1_024,
            connect_timeout: Duration::from_secs(5),
            extra_roots: Vec::new(),
            seal: Arc::new(Seal::NONE),
        }
    }
}

/// Makes attempts over HTTP/1.1 and, where a TLS target speaks it, HTTP/2.
pub struct HttpDeliver {
    client: Arc<Client>,
    /// The sweep of idle connections; it ends with this value.
    _tasks: TaskSet,
}

/// What the pool did, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// Since the start.
    pub opened: u64,
    /// Open now, with no callback on it.
    pub idle: usize,
}

impl HttpDeliver {
    /// # Errors
    /// If one of [`Options::extra_roots`] is not a certificate.
    pub fn new(runtime: &Runtime, options: Options) -> Result<Self, RootError> {
        let pool = Pool::new(runtime, &options)?;
        let client = Arc::new(Client {
            runtime: runtime.clone(),
            stamper: Stamper::new(runtime.random(), options.seal.clone()),
            seal: options.seal,
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
                client.pool.sweep();
            }
        });
        Ok(HttpDeliver { client, _tasks: tasks })
    }

    /// Adds what is counted here to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(OfPool(self.client.clone())));
    }

    #[must_use]
    pub fn connections(&self) -> Connections {
        self.client.pool.connections()
    }
}

impl Deliver for HttpDeliver {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let client = self.client.clone();
        let span = spans::attempt(&delivery);
        Box::pin(
            async move {
                let delivered = client.attempt(&delivery).await;
                spans::ended(delivered.as_ref());
                delivered
            }
            .instrument(span),
        )
    }
}

type Body = Full<bytes::Bytes>;

/// A target, and what signs for its tenant.
struct Ready {
    prepared: Arc<Prepared>,
    signers: Arc<Signers>,
}

struct Client {
    runtime: Runtime,
    seal: Arc<Seal>,
    stamper: Stamper,
    targets: Targets,
    answer_bytes_max: usize,
    pool: Pool,
}

impl Client {
    async fn attempt(&self, delivery: &Delivery) -> Option<Delivered> {
        let Target::Http(target) = &delivery.schedule.spec.target;
        let ready = match self.prepare(delivery, target) {
            Ok(ready) => ready,
            Err(reason) => return Some(failed(AttemptResult::Unreachable(reason))),
        };
        // Pinned here, because `timeout` would hold it twice: as its argument, and pinned.
        let exchange = pin!(self.exchange(delivery, &ready));
        match self.runtime.timeout(target.timeout, exchange).await {
            Some(Ok(answer)) => Some(self.delivered(&answer)),
            Some(Err(Failure::Broken(reason))) => Some(failed(AttemptResult::Unreachable(reason))),
            Some(Err(Failure::TimedOut)) | None => Some(failed(AttemptResult::TimedOut)),
            Some(Err(Failure::NotSent)) => None,
        }
    }

    /// What this attempt needs beside the delivery; its secrets are opened here, and nowhere before.
    fn prepare(&self, delivery: &Delivery, target: &HttpTarget) -> Result<Ready, String> {
        let sealed = |what: &str, error: OpenError| {
            let schedule = delivery.schedule.id.as_str();
            tracing::error!(schedule, tenant = delivery.tenant.id.0, %error, "a callback cannot go out: {what} cannot be opened");
            format!("{NOT_OPENED}: {what} cannot be opened: {error}")
        };
        let opened = self.open(delivery, target).map_err(|error| sealed("a header of its target", error))?;
        let prepared = self.targets.prepare(&opened, &delivery.tenant.egress, &self.pool);
        let signers =
            self.stamper.signers(&delivery.tenant).map_err(|error| sealed("the tenant's signing secret", error))?;
        Ok(Ready { prepared: prepared.map_err(|problem| problem.to_string())?, signers })
    }

    /// The target with its headers in plain.
    fn open<'a>(&self, delivery: &Delivery, target: &'a HttpTarget) -> Result<Cow<'a, HttpTarget>, OpenError> {
        if !target.headers.iter().any(|(_, value)| value.is_sealed()) {
            return Ok(Cow::Borrowed(target));
        }
        let mut opened = target.clone();
        for (name, value) in &mut opened.headers {
            let place = Place::Header { tenant: delivery.schedule.tenant, schedule: &delivery.schedule.id, name };
            *value = Secret::Plain(self.seal.open(place, value)?);
        }
        Ok(Cow::Owned(opened))
    }

    /// Sends the callback on a pooled connection, or on a new one, and reads the answer.
    async fn exchange(&self, delivery: &Delivery, ready: &Ready) -> Result<Answer, Failure> {
        let authority = &ready.prepared.authority;
        let _slot = authority.slots.acquire().await.expect("the semaphore is never closed");
        loop {
            let (channel, reused) = self.pool.channel(authority).await?;
            if self.runtime.monotonic() >= delivery.deadline {
                return Err(Failure::NotSent);
            }
            let outcome = match channel {
                Channel::Http1(mut connection) => {
                    let request = self.request(delivery, ready, Version::HTTP_11);
                    let outcome = connection.exchange(request, self.answer_bytes_max).await;
                    if outcome.is_ok() {
                        self.pool.give_back(authority, connection).await;
                    }
                    outcome
                }
                Channel::Http2(mut sender) => {
                    let request = self.request(delivery, ready, Version::HTTP_2);
                    let outcome = Box::pin(http2::exchange(&mut sender, request, self.answer_bytes_max)).await;
                    if outcome.as_ref().is_err_and(|refused| refused.is_unsent) {
                        authority.forget(&sender);
                    }
                    outcome
                }
            };
            match outcome {
                Ok(answer) => return Ok(answer),
                Err(refused) if refused.is_unsent && reused => {}
                Err(refused) => return Err(failure::describe(&refused.error)),
            }
        }
    }

    fn request(&self, delivery: &Delivery, ready: &Ready, version: Version) -> Request<Body> {
        let Ready { prepared, signers } = ready;
        let mut request = Request::new(Full::new(delivery.schedule.spec.payload.clone()));
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

    fn delivered(&self, answer: &Answer) -> Delivered {
        let result = AttemptResult::Answered(answer.status.as_u16());
        let retry_after = if result.is_success() { None } else { answer.retry_after(|| self.runtime.now()) };
        Delivered { result, retry_after }
    }
}

fn failed(result: AttemptResult) -> Delivered {
    Delivered { result, retry_after: None }
}
