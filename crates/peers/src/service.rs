//! Handles one request: verifies its sender, runs the operation and responds.
//!
//! The service first checks the head of the request: its MAC, its receiver, its time and its nonce, in this order. Then
//! the service reads the body up to a limit, compares the hash of the body with the hash in the head, and passes the
//! body to the handler. Invariants: For a request without a valid MAC, the service decodes no body, stores nothing and
//! waits for nothing. Every response to a request with a valid MAC also has a MAC.

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

use crate::metrics::RequestCounter;
use crate::nonces::{Nonces, Noted};
use crate::proof::{self, Head, PATH};
use crate::secret::{ClusterSecret, sha256};

/// Minimum interval between two warnings that processes outside the cluster can cause.
const WARNING_PERIOD: Duration = Duration::from_secs(5);

/// Function that handles a request for an operation, such as `Scheduler::handle`. The operation continues if the peer
/// stops waiting for the response.
pub type Handler = Arc<dyn Fn(String, Bytes) -> BoxFuture<'static, Result<Bytes, InvalidRequest>> + Send + Sync>;

/// Function that returns true if this member's current session has the given id. The service rejects requests for other
/// sessions.
pub type IsCurrentSession = Arc<dyn Fn(MemberId) -> bool + Send + Sync>;

/// Limits of the listener. Each default suits most clusters.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Maximum number of connections. Further connections wait in the kernel. Default 1,024.
    pub connections_max: usize,
    /// Maximum number of requests that the service reads or handles at the same time. Further requests wait for at most
    /// `read_timeout`. Default 256. Each request may occupy [`scheduler::REQUEST_BYTES_MAX`] bytes of memory, and about
    /// twice as much while the handler decodes it.
    pub requests_max: usize,
    /// Time within which the service must receive the body of a request, or the first head on a new connection. Default
    /// 5 s.
    pub read_timeout: Duration,
    /// Time limit of the handler. Default 30 s, which exceeds the timeout of every client. Without the limit, a hanging
    /// store would block requests forever. After the timeout, parts of the operation may have taken effect.
    pub handler_timeout: Duration,
    /// Time without a request after which the listener closes a connection. Default 60 s. The value should exceed the
    /// idle timeout of the client (`PeersOptions::idle_timeout`), so that the listener does not close a connection
    /// while a request is in transit.
    pub idle_timeout: Duration,
    /// Largest difference between this member's clock and a sender's clock that the service accepts, in either
    /// direction. Default 30 s. The listener remembers each nonce for about this time.
    pub clock_offset_max: Duration,
    /// Maximum number of remembered nonces. The service rejects requests beyond this number. Default 1,048,576. With
    /// the default `clock_offset_max`, this number allows 35,000 requests per second and takes about 70 MB of memory.
    pub nonces_max: usize,
    /// Longest time for which a stopping listener waits for the requests in progress. Default 10 s.
    pub drain_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions {
            connections_max: 1_024,
            requests_max: 256,
            read_timeout: Duration::from_secs(5),
            handler_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            clock_offset_max: Duration::from_secs(30),
            nonces_max: 1 << 20,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Values that the caller passes to a new [`Service`].
pub(crate) struct Parts {
    pub(crate) runtime: Runtime,
    pub(crate) secret: ClusterSecret,
    pub(crate) is_me: IsCurrentSession,
    pub(crate) handler: Handler,
    pub(crate) options: ListenerOptions,
    pub(crate) request_counter: Arc<RequestCounter>,
    /// Signals that stop the listener's connections, and the tasks that must end before the listener has stopped. The
    /// signal `kill` drops the handlers that still run.
    pub(crate) shutdown: Shutdown,
}

pub(crate) struct Service {
    pub(crate) parts: Parts,
    /// Permits for requests. The service needs one permit while it reads or handles a request.
    request_permits: Arc<Semaphore>,
    nonces: Mutex<Nonces>,
    /// Time of the last line that [`Service::warn`] logged, in milliseconds of the monotonic clock; 0 if it logged no
    /// line.
    warned_millis: AtomicU64,
}

/// Status and reason of a rejected request.
struct Rejected {
    status: StatusCode,
    reason: String,
}

fn rejected(status: StatusCode, reason: impl Into<String>) -> Rejected {
    Rejected { status, reason: reason.into() }
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Self {
        let nonces = Mutex::new(Nonces::new(parts.options.nonces_max));
        let request_permits = Arc::new(Semaphore::new(parts.options.requests_max.clamp(1, 1 << 20)));
        Service { parts, request_permits, nonces, warned_millis: AtomicU64::new(0) }
    }

    /// Returns the response, and true if the request's sender knows the secret.
    pub(crate) async fn respond(self: &Arc<Self>, request: Request<Incoming>) -> (Response<Full<Bytes>>, bool) {
        let head = match self.authenticate(&request) {
            Ok(head) => head,
            Err(status) => return (self.response(status, Bytes::new()), false),
        };
        let (status, body): (_, Bytes) = match self.process(&head, request).await {
            Ok(response_body) => (StatusCode::OK, response_body),
            Err(Rejected { status, reason }) => {
                tracing::debug!(from = head.from.as_str(), status = status.as_u16(), reason, "request rejected");
                (status, reason.into())
            }
        };
        let hash = sha256(&body);
        let mut response = self.response(status, body);
        proof::sign_response(&self.parts.secret, head.nonce, status, &hash, response.headers_mut());
        (response, true)
    }

    fn response(&self, status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
        self.parts.request_counter.count(status);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    /// Returns the head if the request's sender knows the secret. Otherwise returns the status of the response, which
    /// has no body.
    fn authenticate(&self, request: &Request<Incoming>) -> Result<Head, StatusCode> {
        if request.uri().path() != PATH || request.uri().query().is_some() {
            return Err(StatusCode::NOT_FOUND);
        }
        if request.method() != Method::POST {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let Some(unverified) = Head::read(request.headers()) else {
            tracing::debug!("request without complete authentication headers rejected");
            return Err(StatusCode::UNAUTHORIZED);
        };
        unverified.verified(&self.parts.secret).ok_or_else(|| {
            self.warn(|| {
                tracing::warn!(
                    "request with an invalid MAC rejected; check whether its sender uses another cluster's secret or \
                     database"
                );
            });
            StatusCode::UNAUTHORIZED
        })
    }

    async fn process(self: &Arc<Self>, head: &Head, request: Request<Incoming>) -> Result<Bytes, Rejected> {
        self.check(head)?;
        let permit = self.permit(request.headers().get(header::CONTENT_LENGTH)).await?;
        let body = self.body(request).await?;
        if sha256(&body) != head.body {
            return Err(rejected(StatusCode::BAD_REQUEST, "the request's body does not match the hash in its headers"));
        }
        let response_body = self.handle(head.operation.clone(), body, permit).await?.map_err(|error| {
            let status = match error {
                InvalidRequest::UnknownOperation => StatusCode::NOT_FOUND,
                InvalidRequest::Malformed(_) => StatusCode::BAD_REQUEST,
            };
            rejected(status, error.to_string())
        })?;
        if response_body.len() > RESPONSE_BYTES_MAX {
            let reason = format!(
                "the operation succeeded, but its response of {} bytes exceeds the limit of {RESPONSE_BYTES_MAX}",
                response_body.len()
            );
            return Err(rejected(StatusCode::INTERNAL_SERVER_ERROR, reason));
        }
        Ok(response_body)
    }

    fn check(&self, head: &Head) -> Result<(), Rejected> {
        if !(self.parts.is_me)(head.to) {
            return Err(rejected(
                StatusCode::MISDIRECTED_REQUEST,
                "the request is for another member or for an earlier session of this member",
            ));
        }
        let now = self.parts.runtime.now();
        let limit = self.parts.options.clock_offset_max;
        if head.sent_at.since(now) > limit || now.since(head.sent_at) > limit {
            let (from, sent_at) = (head.from.as_str(), head.sent_at);
            self.warn(|| {
                tracing::warn!(
                    from, %sent_at, %now,
                    "request rejected because the clocks of its sender and this member differ; synchronize them"
                );
            });
            return Err(rejected(StatusCode::FORBIDDEN, clocks_differ(sent_at, now, limit)));
        }
        // The listener remembers the nonce for an extra millisecond, because the age check still accepts a request
        // whose age equals the limit.
        let left = (head.sent_at + limit).since(now) + Duration::from_millis(1);
        self.note(head, left)
    }

    /// Rejects a repeated request. For this check, the listener remembers the nonce for the duration `left`. After this
    /// time, the age check rejects the request.
    fn note(&self, head: &Head, left: Duration) -> Result<(), Rejected> {
        let now = self.parts.runtime.monotonic();
        let noted = self.nonces.lock().expect("no holder of this lock panics").note(head.nonce, now, now + left);
        match noted {
            Noted::New => Ok(()),
            Noted::Precondition => {
                let from = head.from.as_str();
                self.warn(|| {
                    tracing::warn!(from, "repeated request rejected; another process may have recorded and resent it")
                });
                Err(rejected(StatusCode::CONFLICT, "this member already received this request"))
            }
            Noted::Full => Err(rejected(
                StatusCode::SERVICE_UNAVAILABLE,
                "this member received too many requests in a short time; try again later",
            )),
        }
    }

    async fn permit(&self, content_length: Option<&http::HeaderValue>) -> Result<OwnedSemaphorePermit, Rejected> {
        let length = content_length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > REQUEST_BYTES_MAX as u64) {
            return Err(too_large());
        }
        let permit = self.request_permits.clone().acquire_owned();
        match self.parts.runtime.timeout(self.parts.options.read_timeout, permit).await {
            Some(permit) => Ok(permit.expect("the semaphore is never closed")),
            None => Err(rejected(
                StatusCode::SERVICE_UNAVAILABLE,
                "this member has too many concurrent requests; try again later",
            )),
        }
    }

    async fn body(&self, request: Request<Incoming>) -> Result<Bytes, Rejected> {
        let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
        match self.parts.runtime.timeout(self.parts.options.read_timeout, body).await {
            Some(Ok(body)) => Ok(body.to_bytes()),
            Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Some(Err(_)) => Err(rejected(StatusCode::BAD_REQUEST, "the request's body is incomplete")),
            None => {
                let limit = self.parts.options.read_timeout;
                Err(rejected(
                    StatusCode::REQUEST_TIMEOUT,
                    format!("the request's body did not arrive within {limit:?}"),
                ))
            }
        }
    }

    /// Runs the handler in its own task, so that a disconnect of the client does not drop a half-complete operation.
    async fn handle(
        self: &Arc<Self>,
        operation: String,
        body: Bytes,
        permit: OwnedSemaphorePermit,
    ) -> Result<Result<Bytes, InvalidRequest>, Rejected> {
        let (sender, receiver) = oneshot::channel();
        let service = self.clone();
        let token = self.parts.shutdown.tasks.token();
        // A stopping listener waits until the task drops this token.
        drop(self.parts.runtime.spawn("peer request", async move {
            let _held = (permit, token);
            let handling = (service.parts.handler)(operation, body);
            let handled = service.parts.runtime.timeout(service.parts.options.handler_timeout, handling);
            if let Some(response_body) = service.parts.shutdown.kill.run_until_cancelled(handled).await {
                let _client_is_gone = sender.send(response_body);
            }
        }));
        match receiver.await {
            Ok(Some(response_body)) => Ok(response_body),
            Ok(None) => {
                Err(rejected(StatusCode::GATEWAY_TIMEOUT, "the operation timed out; parts of it may have taken effect"))
            }
            Err(_) => Err(rejected(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the operation failed; parts of it may have taken effect",
            )),
        }
    }

    /// Logs a line at most once per [`WARNING_PERIOD`], because any process on the network can cause such a line.
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

fn too_large() -> Rejected {
    let reason = format!("the request's body exceeds the limit of {REQUEST_BYTES_MAX} bytes");
    rejected(StatusCode::PAYLOAD_TOO_LARGE, reason)
}

fn clocks_differ(sent_at: Timestamp, now: Timestamp, limit: Duration) -> String {
    format!(
        "the sender's clock showed {sent_at}, and this member's clock shows {now}; the largest allowed difference is \
         {limit:?}; synchronize the clocks"
    )
}
