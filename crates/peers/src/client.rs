//! Client for requests to other members: [`HttpPeers`].

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioTimer;
use membership::Member;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use runtime::Runtime;
use rustls::AlertDescription;
use scheduler::{PeerError, Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::sync::Semaphore;

use crate::connector::{Connector, Session};
use crate::identity::{Identity, Rejection};
use crate::{CHECK, Executor, FROM, HEAD_BYTES_MAX, OPERATION, PATH, causes};

/// Maximum number of characters that the client copies from the reason of a rejection into its error.
const REASON_CHARS_MAX: usize = 300;

/// Limits of requests. Each default suits most clusters.
#[derive(Clone, Debug)]
pub struct PeersOptions {
    /// Time limit for connecting to a member, including the TLS handshake. Default 1 s, because the network latency between members is low. If the
    /// limit is too short, requests fail while the network is slow. If it is too long, requests to a dead machine fail
    /// late.
    pub connect_timeout: Duration,
    /// Time limit of a request, from the call to the end of the response, including the time to connect. Default 5 s.
    /// If the caller splits a create request into several requests, this limit applies to each of them. A caller may
    /// also apply its own time limit.
    pub request_timeout: Duration,
    /// Longest time for which the client keeps an unused connection open. Default 30 s. The value should be less than
    /// the idle timeout of the listener (`ListenerOptions::idle_timeout`).
    pub idle_timeout: Duration,
    /// Longest time for which the client uses a connection. Default 1 h. The members then open a new connection, and
    /// check each other's certificates again.
    pub connection_age_max: Duration,
    /// Maximum number of requests in flight to one address, which is also the maximum number of connections. Further
    /// requests wait, and the wait counts towards their `request_timeout`. Default 128. The value should be less than
    /// the listener's `requests_max`, so that one member cannot use up all request permits of another member.
    pub in_flight_per_address_max: usize,
}

impl Default for PeersOptions {
    fn default() -> Self {
        PeersOptions {
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            connection_age_max: Duration::from_secs(3_600),
            in_flight_per_address_max: 128,
        }
    }
}

/// Client that sends requests to other members over HTTP. The caller must create and use the client inside a tokio
/// runtime.
pub struct HttpPeers {
    client: Arc<Client>,
}

impl HttpPeers {
    /// Creates a client. `name` identifies the sender in the other members' logs.
    #[must_use]
    pub fn new(runtime: &Runtime, identity: Identity, name: &str, options: PeersOptions) -> Self {
        let connector = Connector::new(runtime, identity.clone(), options.connect_timeout);
        let pool = Pool::builder(Executor(runtime.clone()))
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle_timeout)
            .pool_max_idle_per_host(options.in_flight_per_address_max)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        let client = Client {
            runtime: runtime.clone(),
            identity,
            from: HeaderValue::from_str(&utf8_percent_encode(name, NON_ALPHANUMERIC).to_string())
                .expect("percent-encoded text is a valid header value"),
            pool,
            slots: Mutex::new(HashMap::new()),
            options,
        };
        HttpPeers { client: Arc::new(client) }
    }

    /// Checks that the member `to` responds, and that both sides trust each other's certificates.
    ///
    /// # Errors
    /// Returns an error if the member does not respond, or if one side rejects the other.
    pub async fn check(&self, to: &Member) -> Result<(), PeerError> {
        self.request(to, CHECK, Bytes::new()).await.map(|_| ())
    }
}

impl Peers for HttpPeers {
    fn request(
        &self,
        to: &Member,
        operation: &'static str,
        request: Bytes,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        let (client, to) = (self.client.clone(), to.clone());
        Box::pin(async move {
            let response = client.exchange(&to, operation, request).await;
            response.map_err(|failure| match failure {
                Failure::UnknownOperation => PeerError::UnknownOperation { member: to.name },
                Failure::Unreachable(reason) => PeerError::Unreachable { member: to.name, reason },
            })
        })
    }
}

struct Client {
    runtime: Runtime,
    /// Percent-encoded name of this member.
    from: HeaderValue,
    identity: Identity,
    /// Connections to other members. The user part of a URI is a [`Session`], and the pool uses a connection only for
    /// URIs with the same address and user part.
    pool: Pool<Connector, Full<Bytes>>,
    /// Semaphores that limit the requests in flight to an address. The key is the address of a member. When the client
    /// creates a semaphore, it removes the unused semaphores.
    slots: Mutex<HashMap<String, Weak<Semaphore>>>,
    options: PeersOptions,
}

/// Reason why a request failed, as text for operators.
type Reason = String;

enum Failure {
    UnknownOperation,
    Unreachable(Reason),
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Failure::Unreachable(reason)
    }
}

impl Client {
    async fn exchange(&self, to: &Member, operation: &'static str, body: Bytes) -> Result<Bytes, Failure> {
        if body.len() > REQUEST_BYTES_MAX {
            return Err(format!("the request has {} bytes; the limit is {REQUEST_BYTES_MAX}", body.len()).into());
        }
        let user = Session { id: to.id, generation: self.identity.generation(), period: self.period() };
        let uri = uri(&user.to_string(), &to.address)?;
        let sending = Box::pin(async {
            let slots = self.slots(&to.address);
            let _slot = slots.acquire().await.expect("the semaphore is never closed");
            self.send(uri, operation, body).await
        });
        self.runtime
            .timeout(self.options.request_timeout, sending)
            .await
            .unwrap_or_else(|| Err(format!("no response within {:?}", self.options.request_timeout).into()))
    }

    async fn send(&self, uri: Uri, operation: &'static str, body: Bytes) -> Result<Bytes, Failure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        request.headers_mut().insert(OPERATION, HeaderValue::from_static(operation));
        request.headers_mut().insert(FROM, self.from.clone());
        let response = self.pool.request(request).await.map_err(|error| describe(&error))?;
        read(response).await
    }

    /// Returns the number of the current period. The client uses a connection only in the period in which it opened.
    fn period(&self) -> u128 {
        self.runtime.monotonic().since_start().as_nanos() / self.options.connection_age_max.as_nanos().max(1)
    }

    fn slots(&self, address: &str) -> Arc<Semaphore> {
        let mut all = self.slots.lock().expect("no holder of this lock panics");
        if let Some(slots) = all.get(address).and_then(Weak::upgrade) {
            return slots;
        }
        all.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Semaphore::new(self.options.in_flight_per_address_max.clamp(1, Semaphore::MAX_PERMITS)));
        all.insert(address.to_owned(), Arc::downgrade(&slots));
        slots
    }
}

/// Reads the response and returns its body.
async fn read(response: Response<Incoming>) -> Result<Bytes, Failure> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            return format!("the response exceeds the limit of {RESPONSE_BYTES_MAX} bytes");
        }
        describe(&*error)
    })?;
    let body = body.to_bytes();
    if head.status == StatusCode::NOT_FOUND {
        return Err(Failure::UnknownOperation);
    }
    if head.status != StatusCode::OK {
        return Err(format!("the member rejected the request ({}): {}", head.status.as_u16(), shortened(&body)).into());
    }
    Ok(body)
}

fn uri(user: &str, address: &str) -> Result<Uri, Reason> {
    let authority: Option<Authority> = address.parse().ok();
    let authority = authority.filter(|found| found.port_u16().is_some() && !address.contains('@'));
    let authority =
        authority.ok_or_else(|| format!("the member's peer address {address:?} does not have the form HOST:PORT"))?;
    Uri::builder()
        .scheme("https")
        .authority(format!("{user}@{authority}"))
        .path_and_query(PATH)
        .build()
        .map_err(|_| format!("the member's peer address {address:?} is invalid"))
}

fn shortened(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns a text for the first known cause in the error's chain of sources.
fn describe(error: &(dyn Error + 'static)) -> Reason {
    let name = |cause: &(dyn Error + 'static)| {
        let known = cause.downcast_ref().and_then(name_io).or_else(|| cause.downcast_ref().and_then(name_hyper));
        known.map(str::to_owned).or_else(|| cause.downcast_ref().map(describe_tls))
    };
    let last = || causes(error).last().unwrap_or(error).to_string();
    causes(error).find_map(name).unwrap_or_else(|| shortened(last().as_bytes()))
}

fn describe_tls(error: &rustls::Error) -> Reason {
    if let Some(rejection) = Rejection::of(error) {
        return rejection.text().to_owned();
    }
    match error {
        rustls::Error::AlertReceived(AlertDescription::AccessDenied) => {
            "the member at this address has another session, because it restarted or lost its session".to_owned()
        }
        rustls::Error::InvalidMessage(_) => {
            "the process at this address does not use TLS; check the member's peer address".to_owned()
        }
        other => shortened(other.to_string().as_bytes()),
    }
}

const INCOMPLETE_RESPONSE: &str = "connection closed before the response was complete";

fn name_io(error: &io::Error) -> Option<&'static str> {
    // `ErrorKind` has no variants for the error numbers 23 (ENFILE) and 24 (EMFILE).
    if let Some(23 | 24) = error.raw_os_error() {
        return Some("no file descriptor is free: raise the limit on open files (ulimit -n)");
    }
    Some(match error.kind() {
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::BrokenPipe => "connection closed before the request was complete",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::UnexpectedEof => INCOMPLETE_RESPONSE,
        _ => return None,
    })
}

fn name_hyper(error: &hyper::Error) -> Option<&'static str> {
    if error.is_incomplete_message() {
        return Some(INCOMPLETE_RESPONSE);
    }
    if error.is_parse_too_large() {
        return Some("the response's head is too large");
    }
    error.is_parse().then_some("the response is not HTTP; check the member's peer address")
}
