//! One request: who sends it, whether it may be answered, and its answer.
//!
//! The order of the checks: the MAC over the head; whom it is for; its time; its nonce; only then is the body read, up
//! to a limit, compared with its hash, and decoded. Always true here: nothing is decoded, kept or waited for that the
//! secret does not vouch for; after the MAC was right, every answer is proved, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use listener::Shutdown;
use membership::MemberId;
use runtime::Runtime;
use scheduler::{InvalidRequest, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::metrics::Answered;
use crate::nonces::{Nonces, Noted};
use crate::proof::{self, Head, PATH};
use crate::secret::{ClusterSecret, sha256};

/// Of lines that somebody outside the cluster can cause, one is logged in this time.
const WARNING_PERIOD: Duration = Duration::from_secs(5);

/// Handles a request for an operation: `Scheduler::handle`. It continues if the peer does not wait for the response.
pub type Handler = Arc<dyn Fn(String, Bytes) -> BoxFuture<'static, Result<Bytes, InvalidRequest>> + Send + Sync>;

/// Whether this member's present session has this id: requests for any other are not answered.
pub type IsMe = Arc<dyn Fn(MemberId) -> bool + Send + Sync>;

/// The limits of answering. Each has a default that suits most.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Further ones wait in the kernel. Default 1,024.
    pub connections_max: usize,
    /// Asks being read or answered at once; further ones wait, for `read_timeout` at most. Default 256. Each may hold
    /// [`scheduler::REQUEST_BYTES_MAX`] bytes of its body, and about twice as much while it is decoded.
    pub asks_max: usize,
    /// From the head of an ask to the end of its body; and for a new connection to send its first head. Default 5 s.
    pub read_timeout: Duration,
    /// For the handler. Default 30 s, longer than anybody waits: it is there so that a store that hangs does not hold
    /// on to asks for ever. After it what was asked may be half-done.
    pub answer_timeout: Duration,
    /// A connection is closed after this long without a request. Default 60 s; it is to be above the asking side's
    /// own, so that it is not closed while an ask is on its way.
    pub idle_timeout: Duration,
    /// How far a sender's clock may be off, either way. Default 30 s; each request is remembered for about as long.
    pub clock_offset_max: Duration,
    /// Requests that are remembered, so that none is answered twice; beyond it asks are refused. Default 1,048,576:
    /// with the default offset, 35,000 asks a second, in about 70 MB.
    pub nonces_max: usize,
    /// How long asks under way have when the listener stops. Default 10 s.
    pub drain_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions {
            connections_max: 1_024,
            asks_max: 256,
            read_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            clock_offset_max: Duration::from_secs(30),
            nonces_max: 1 << 20,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// What a service is made of.
pub(crate) struct Parts {
    pub(crate) runtime: Runtime,
    pub(crate) secret: ClusterSecret,
    pub(crate) is_me: IsMe,
    pub(crate) handler: Handler,
    pub(crate) options: ListenerOptions,
    pub(crate) answered: Arc<Answered>,
    /// Its `kill` drops the handlers that still run.
    pub(crate) shutdown: Shutdown,
}

pub(crate) struct Service {
    pub(crate) parts: Parts,
    /// One permit for each ask that is being read or answered.
    asks: Arc<Semaphore>,
    nonces: Mutex<Nonces>,
    /// When a line of [`Service::warn`] was last logged, in milliseconds; 0 if never.
    warned_millis: AtomicU64,
}

/// Why a request has no reply.
struct Refused {
    status: StatusCode,
    reason: String,
}

fn refused(status: StatusCode, reason: impl Into<String>) -> Refused {
    Refused { status, reason: reason.into() }
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Self {
        let nonces = Mutex::new(Nonces::new(parts.options.nonces_max));
        let asks = Arc::new(Semaphore::new(parts.options.asks_max.clamp(1, 1 << 20)));
        Service { parts, asks, nonces, warned_millis: AtomicU64::new(0) }
    }

    /// The answer, and whether it goes to one who knows the secret.
    pub(crate) async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> (Response<Full<Bytes>>, bool) {
        let head = match self.admit(&request) {
            Ok(head) => head,
            Err(status) => return (self.response(status, Bytes::new()), false),
        };
        let (status, body): (_, Bytes) = match self.reply(&head, request).await {
            Ok(reply) => (StatusCode::OK, reply),
            Err(Refused { status, reason }) => {
                tracing::debug!(from = head.from.as_str(), status = status.as_u16(), reason, "an ask is refused");
                (status, reason.into())
            }
        };
        let hash = sha256(&body);
        let mut response = self.response(status, body);
        proof::prove_answer(&self.parts.secret, head.nonce, status, &hash, response.headers_mut());
        (response, true)
    }

    fn response(&self, status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
        self.parts.answered.count(status);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    /// The head of a request that one who knows the secret has made. What is said to others tells nothing.
    fn admit(&self, request: &Request<Incoming>) -> Result<Head, StatusCode> {
        if request.uri().path() != PATH || request.uri().query().is_some() {
            return Err(StatusCode::NOT_FOUND);
        }
        if request.method() != Method::POST {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let Some(claimed) = Head::read(request.headers()) else {
            tracing::debug!("something that is no member sends requests to the address for peers");
            return Err(StatusCode::UNAUTHORIZED);
        };
        claimed.proved(&self.parts.secret).ok_or_else(|| {
            self.warn(|| {
                tracing::warn!(
                    "a member with another cluster's secret, or something that poses as one, asks here: check its \
                     address and its database"
                );
            });
            StatusCode::UNAUTHORIZED
        })
    }

    async fn reply(self: &Arc<Self>, head: &Head, request: Request<Incoming>) -> Result<Bytes, Refused> {
        self.check(head)?;
        let permit = self.permit(request.headers().get(header::CONTENT_LENGTH)).await?;
        let body = self.body(request).await?;
        if sha256(&body) != head.body {
            return Err(refused(StatusCode::BAD_REQUEST, "the body is not the one that was sent"));
        }
        let reply = self.handle(head.operation.clone(), body, permit).await?.map_err(|error| {
            let status = match error {
                InvalidRequest::UnknownOperation => StatusCode::NOT_FOUND,
                InvalidRequest::Malformed(_) => StatusCode::BAD_REQUEST,
            };
            refused(status, error.to_string())
        })?;
        if reply.len() > RESPONSE_BYTES_MAX {
            let reason = format!("it was done, but its reply has {} bytes, over {RESPONSE_BYTES_MAX}", reply.len());
            return Err(refused(StatusCode::INTERNAL_SERVER_ERROR, reason));
        }
        Ok(reply)
    }

    fn check(&self, head: &Head) -> Result<(), Refused> {
        if !(self.parts.is_me)(head.to) {
            return Err(refused(StatusCode::MISDIRECTED_REQUEST, "another member is here, or a later session of it"));
        }
        let now = self.parts.runtime.now();
        let limit = self.parts.options.clock_offset_max;
        if head.sent_at.since(now) > limit || now.since(head.sent_at) > limit {
            let (from, sent_at) = (head.from.as_str(), head.sent_at);
            self.warn(|| tracing::warn!(from, %sent_at, %now, "an ask is refused: its clock and the one here differ"));
            return Err(refused(StatusCode::FORBIDDEN, clocks_differ(sent_at, now, limit)));
        }
        // One more millisecond: at the limit itself it would still be taken.
        let left = (head.sent_at + limit).since(now) + Duration::from_millis(1);
        self.note(head, left)
    }

    /// Refuses a request that was here before; `left` from now it is refused for its age.
    fn note(&self, head: &Head, left: Duration) -> Result<(), Refused> {
        let now = self.parts.runtime.monotonic();
        let noted = self.nonces.lock().expect("no holder of this lock panics").note(head.nonce, now, now + left);
        match noted {
            Noted::New => Ok(()),
            Noted::Seen => {
                let from = head.from.as_str();
                self.warn(|| tracing::warn!(from, "a repeated request is refused: somebody listens on the network"));
                Err(refused(StatusCode::CONFLICT, "this request was made before"))
            }
            Noted::Full => Err(refused(StatusCode::SERVICE_UNAVAILABLE, "too many requests in too short a time")),
        }
    }

    async fn permit(&self, content_length: Option<&http::HeaderValue>) -> Result<OwnedSemaphorePermit, Refused> {
        let length = content_length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > REQUEST_BYTES_MAX as u64) {
            return Err(too_large());
        }
        let permit = self.asks.clone().acquire_owned();
        match self.parts.runtime.timeout(self.parts.options.read_timeout, permit).await {
            Some(permit) => Ok(permit.expect("nobody closes the semaphore")),
            None => Err(refused(StatusCode::SERVICE_UNAVAILABLE, "too many asks at once")),
        }
    }

    async fn body(&self, request: Request<Incoming>) -> Result<Bytes, Refused> {
        let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
        match self.parts.runtime.timeout(self.parts.options.read_timeout, body).await {
            Some(Ok(body)) => Ok(body.to_bytes()),
            Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Some(Err(_)) => Err(refused(StatusCode::BAD_REQUEST, "the body broke off")),
            None => Err(refused(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
        }
    }

    /// In a task of its own: what was begun is not dropped half-way because its asker went away.
    async fn handle(
        self: &Arc<Self>,
        operation: String,
        body: Bytes,
        permit: OwnedSemaphorePermit,
    ) -> Result<Result<Bytes, InvalidRequest>, Refused> {
        let (tell, told) = oneshot::channel();
        let service = self.clone();
        let token = self.parts.shutdown.tasks.token();
        // The token is what the listener waits for at the end.
        drop(self.parts.runtime.spawn("peer ask", async move {
            let _held = (permit, token);
            let handling = (service.parts.handler)(operation, body);
            let handled = service.parts.runtime.timeout(service.parts.options.answer_timeout, handling);
            if let Some(reply) = service.parts.shutdown.kill.run_until_cancelled(handled).await {
                let _nobody_waits = tell.send(reply);
            }
        }));
        match told.await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(refused(StatusCode::GATEWAY_TIMEOUT, "it took too long, and may be half-done")),
            Err(_) => Err(refused(StatusCode::INTERNAL_SERVER_ERROR, "it failed, and may be half-done")),
        }
    }

    /// Logs what anybody on the network can cause, but not as often as they do.
    fn warn(&self, log: impl FnOnce()) {
        let now = u64::try_from(self.parts.runtime.monotonic().since_start().as_millis()).unwrap_or(u64::MAX);
        let last = self.warned_millis.load(Ordering::Relaxed);
        let period = u64::try_from(WARNING_PERIOD.as_millis()).unwrap_or(u64::MAX);
        let is_due = last == 0 || now.saturating_sub(last) >= period;
        if is_due && self.warned_millis.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            log();
        }
    }
}

fn too_large() -> Refused {
    refused(StatusCode::PAYLOAD_TOO_LARGE, format!("an ask has at most {REQUEST_BYTES_MAX} bytes"))
}

fn clocks_differ(sent_at: Timestamp, now: Timestamp, limit: Duration) -> String {
    format!(
        "it was sent at {sent_at} by its sender's clock, and it is {now} here; at most {limit:?} between them are \
         taken: set the clocks"
    )
}
