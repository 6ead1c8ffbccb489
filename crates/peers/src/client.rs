//! The asking side: [`HttpPeers`].

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use membership::Member;
use runtime::Runtime;
use scheduler::{PeerError, Peers, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
use tokio::sync::Semaphore;

use crate::proof::{self, Head, PATH, Sender};
use crate::secret::{ClusterSecret, sha256};
use crate::{Executor, HEAD_BYTES_MAX};

/// How much of a refusal's reason is told.
const REASON_CHARS_MAX: usize = 300;

/// The limits of asking. Each has a default that suits most.
#[derive(Clone, Debug)]
pub struct PeersOptions {
    /// For a member to take a connection. Default 1 s: members are near. Too short fails asks while a network is slow,
    /// too long makes requests wait for a dead machine.
    pub connect_timeout: Duration,
    /// From the ask to the end of its reply, connecting included; of a create that is sent in parts, for each part.
    /// Default 5 s. Whoever asks has a limit of their own, too.
    pub request_timeout: Duration,
    /// A connection is closed after this long without an ask. Default 30 s; it is to be below the listener's own.
    pub idle_timeout: Duration,
    /// Asks in flight to one address, and so connections; further ones wait, their time running. Default 128, which is
    /// to be below the listener's `asks_max`, so that two members cannot keep a third one to themselves.
    pub in_flight_per_address_max: usize,
}

impl Default for PeersOptions {
    fn default() -> Self {
        PeersOptions {
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            in_flight_per_address_max: 128,
        }
    }
}

/// Asks other members over HTTP. Must be made, and used, inside a tokio runtime.
pub struct HttpPeers {
    client: Arc<Client>,
}

impl HttpPeers {
    /// `name` tells the other members' logs who asks.
    #[must_use]
    pub fn new(runtime: &Runtime, secret: ClusterSecret, name: &str, options: PeersOptions) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(options.connect_timeout));
        connector.set_nodelay(true);
        let pool = Pool::builder(Executor(runtime.clone()))
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle_timeout)
            .pool_max_idle_per_host(options.in_flight_per_address_max)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        let client = Client {
            runtime: runtime.clone(),
            secret,
            from: Sender::new(name),
            pool,
            slots: Mutex::new(HashMap::new()),
            options,
        };
        HttpPeers { client: Arc::new(client) }
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
            response.map_err(|reason| PeerError::Unreachable { member: to.name, reason })
        })
    }
}

struct Client {
    runtime: Runtime,
    secret: ClusterSecret,
    from: Sender,
    pool: Pool<HttpConnector, Full<Bytes>>,
    /// By address; those that nobody holds are forgotten when another is made.
    slots: Mutex<HashMap<String, Weak<Semaphore>>>,
    options: PeersOptions,
}

/// Why there is no answer, for people.
type Reason = String;

impl Client {
    async fn exchange(&self, to: &Member, operation: &str, body: Bytes) -> Result<Bytes, Reason> {
        if body.len() > REQUEST_BYTES_MAX {
            return Err(format!("the ask has {} bytes, at most {REQUEST_BYTES_MAX} are sent", body.len()));
        }
        let uri = uri(&to.address)?;
        let sending = Box::pin(async {
            let slots = self.slots(&to.address);
            let _slot = slots.acquire().await.expect("the semaphore is never closed");
            self.send(to, uri, operation, body).await
        });
        self.runtime
            .timeout(self.options.request_timeout, sending)
            .await
            .unwrap_or_else(|| Err(format!("no answer within {:?}", self.options.request_timeout)))
    }

    async fn send(&self, to: &Member, uri: Uri, operation: &str, body: Bytes) -> Result<Bytes, Reason> {
        let head = Head {
            operation: operation.to_owned(),
            from: self.from.clone(),
            to: to.id,
            nonce: self.runtime.random_u128(),
            sent_at: self.runtime.now(),
            body: sha256(&body),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        head.write(&self.secret, request.headers_mut());
        let response = self.pool.request(request).await.map_err(|error| describe(&error))?;
        self.read(head.nonce, response).await
    }

    /// Believes nothing that the secret does not vouch for.
    async fn read(&self, nonce: u128, response: Response<Incoming>) -> Result<Bytes, Reason> {
        let (head, body) = response.into_parts();
        let status = head.status;
        let Some(mac) = proof::answer_mac(&head.headers) else { return Err(unproved(status)) };
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return format!("its answer has more than {RESPONSE_BYTES_MAX} bytes");
            }
            describe(&*error)
        })?;
        let body = body.to_bytes();
        if !proof::is_answer_proved(&self.secret, nonce, status, &sha256(&body), &mac) {
            return Err("its answer is not proved by this cluster's secret".to_owned());
        }
        if status != StatusCode::OK {
            return Err(format!("it refuses ({}): {}", status.as_u16(), shortened(&body)));
        }
        Ok(body)
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

fn uri(address: &str) -> Result<Uri, Reason> {
    let authority: Option<Authority> = address.parse().ok();
    let authority = authority.filter(|found| found.port_u16().is_some() && !address.contains('@'));
    let authority = authority.ok_or_else(|| "its address for peers is not host:port".to_owned())?;
    Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(PATH)
        .build()
        .map_err(|_| "its address for peers cannot be called".to_owned())
}

/// A hint for people: anybody can have made this answer.
fn unproved(status: StatusCode) -> Reason {
    if status == StatusCode::UNAUTHORIZED {
        return "it does not accept this cluster's secret (401): is it a member of another cluster?".to_owned();
    }
    format!("something that does not prove to be a member of this cluster answers there ({})", status.as_u16())
}

fn shortened(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The first cause that people know by name.
fn describe(error: &(dyn Error + 'static)) -> Reason {
    let mut cause = Some(error);
    let mut last = error;
    while let Some(error) = cause {
        let named =
            error.downcast_ref::<io::Error>().and_then(name_io).or_else(|| error.downcast_ref().and_then(name_hyper));
        if let Some(name) = named {
            return name.to_owned();
        }
        last = error;
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    shortened(last.to_string().as_bytes())
}

const BROKEN_OFF: &str = "connection closed before the answer was complete";

fn name_io(error: &io::Error) -> Option<&'static str> {
    // ENFILE and EMFILE, which have no kind of their own.
    if let Some(23 | 24) = error.raw_os_error() {
        return Some("no file descriptor is free: raise the limit on open files (ulimit -n)");
    }
    Some(match error.kind() {
        io::ErrorKind::TimedOut => "it does not take a connection in time",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::BrokenPipe => "connection closed while the ask was being sent",
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::UnexpectedEof => BROKEN_OFF,
        _ => return None,
    })
}

fn name_hyper(error: &hyper::Error) -> Option<&'static str> {
    if error.is_incomplete_message() {
        return Some(BROKEN_OFF);
    }
    if error.is_parse_too_large() {
        return Some("the head of its answer is too large");
    }
    error.is_parse().then_some("its answer is not HTTP")
}
