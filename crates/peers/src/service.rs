//! Handles one request of a member: checks that it is for this member's current session, runs the operation and
//! responds.
//!
//! The service first checks the head of the request. Then it reads the body up to a limit, and passes the body to the
//! handler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use listener::Shutdown;
use membership::MemberId;
use runtime::Runtime;
use scheduler::{InvalidRequest, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::identity::{Identity, IsCurrentSession};
use crate::metrics::RequestCounter;
use crate::{CHECK, FROM, OPERATION, PATH};

/// Function that handles a request for an operation, such as `Scheduler::handle`. The operation continues if the peer
/// stops waiting for the response.
pub type Handler = Arc<dyn Fn(String, Bytes) -> BoxFuture<'static, Result<Bytes, InvalidRequest>> + Send + Sync>;

/// Limits of the listener. Each default suits most clusters.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Maximum number of connections. Further connections wait in the kernel. Default 1,024.
    pub connections_max: usize,
    /// Maximum number of requests that the service reads or handles at the same time. Further requests wait for at most
    /// `read_timeout`. Default 256. Each request may occupy [`scheduler::REQUEST_BYTES_MAX`] bytes of memory, and about
    /// twice as much while the handler decodes it.
    pub requests_max: usize,
    /// Time limit of the TLS handshake, of the body of a request, and of the first head on a new connection. Default 5 s.
    pub read_timeout: Duration,
    /// Time limit of the handler. Default 30 s, which exceeds the timeout of every client. Without the limit, a hanging
    /// store would block requests forever. After the timeout, parts of the operation may have taken effect.
    pub handler_timeout: Duration,
    /// Time without a request after which the listener closes a connection. Default 60 s. The value should exceed the
    /// idle timeout of the client (`PeersOptions::idle_timeout`), so that the listener does not close a connection
    /// while a request is in transit.
    pub idle_timeout: Duration,
    /// Longest time for which the listener uses a connection. Default 1 h. The members then open a new connection, and
    /// check each other's certificates again.
    pub connection_age_max: Duration,
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
            connection_age_max: Duration::from_secs(3_600),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Values that the caller passes to a new [`Service`].
pub(crate) struct Parts {
    pub(crate) runtime: Runtime,
    pub(crate) identity: Identity,
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
        let request_permits = Arc::new(Semaphore::new(parts.options.requests_max.clamp(1, 1 << 20)));
        Service { parts, request_permits }
    }

    /// Returns the response to a request from a member, which the member sent to the session `to`.
    pub(crate) async fn respond(self: &Arc<Self>, to: MemberId, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let from = request.headers().get(FROM).cloned();
        let (status, body): (_, Bytes) = match self.process(to, request).await {
            Ok(response_body) => (StatusCode::OK, response_body),
            Err(Rejected { status, reason }) => {
                tracing::debug!(?from, status = status.as_u16(), reason, "request rejected");
                (status, reason.into())
            }
        };
        self.response(status, body)
    }

    /// Returns the response to a request of a caller whose certificate this member no longer trusts.
    pub(crate) fn reject_untrusted(&self) -> Response<Full<Bytes>> {
        self.response(StatusCode::FORBIDDEN, "this member no longer trusts the caller's certificate".into())
    }

    fn response(&self, status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
        self.parts.request_counter.count(status);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    async fn process(self: &Arc<Self>, to: MemberId, request: Request<Incoming>) -> Result<Bytes, Rejected> {
        let operation = operation(&request)?;
        if !(self.parts.is_me)(to) {
            return Err(rejected(
                StatusCode::MISDIRECTED_REQUEST,
                "the request is for an earlier session of this member",
            ));
        }
        if operation == CHECK {
            return Ok(Bytes::new());
        }
        let permit = self.permit(request.headers().get(header::CONTENT_LENGTH)).await?;
        let body = self.body(request).await?;
        let response_body = self.handle(operation, body, permit).await?.map_err(|error| {
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
}

/// Returns the operation that the head of a request names.
fn operation(request: &Request<Incoming>) -> Result<String, Rejected> {
    if request.uri().path() != PATH || request.uri().query().is_some() {
        return Err(rejected(StatusCode::NOT_FOUND, "unknown path; the members have different builds"));
    }
    if request.method() != Method::POST {
        return Err(rejected(StatusCode::METHOD_NOT_ALLOWED, "the method is not POST"));
    }
    let operation = request.headers().get(OPERATION).and_then(|operation| operation.to_str().ok());
    let missing = || rejected(StatusCode::BAD_REQUEST, "the request names no operation");
    operation.map(str::to_owned).ok_or_else(missing)
}

fn too_large() -> Rejected {
    let reason = format!("the request's body exceeds the limit of {REQUEST_BYTES_MAX} bytes");
    rejected(StatusCode::PAYLOAD_TOO_LARGE, reason)
}
