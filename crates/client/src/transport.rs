//! Sends requests over HTTP and reads the responses. The module `retry` decides when the client sends a failed request
//! again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{PROBLEM_CONTENT_TYPE, Problem, Time};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, ETAG, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as SendError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;

use crate::retry::{self, Repeat};
use crate::{Error, Options, Rejection, SetupError, Tag, clock};

pub(crate) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Longest time for which the client retains an idle connection. The server closes a connection after 30 s without a
/// request. The client closes the connection earlier, so that it sends no request on a closed connection.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Maximum number of characters that an error quotes from a response that is not from the API.
const FOREIGN_CHARS_MAX: usize = 200;

pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    /// Base URL of the server, without a slash at its end.
    url: String,
    authorization: HeaderValue,
    pub(crate) options: Options,
}

/// A request that the client can send more than once.
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path of the request, which begins with `/v1`.
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) repeat: Repeat,
}

impl Call {
    pub(crate) fn get(path: String) -> Self {
        Call { method: Method::GET, path, body: None, headers: Vec::new(), repeat: Repeat::Always }
    }

    pub(crate) fn delete(path: String) -> Self {
        Call { method: Method::DELETE, ..Call::get(path) }
    }

    pub(crate) fn with_body(method: Method, path: String, repeat: Repeat, body: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("every map in the wire types has string keys, as JSON requires");
        Call { method, body: Some(body.into()), repeat, ..Call::get(path) }
    }
}

/// A response with a success status.
pub(crate) struct SuccessResponse {
    pub(crate) status: StatusCode,
    pub(crate) tag: Option<Tag>,
    /// True if the server repeats the response to an earlier request with the same idempotency key.
    pub(crate) is_replay: bool,
    /// Server's time in whole seconds, rounded down.
    pub(crate) date: Option<Time>,
    body: Bytes,
}

impl SuccessResponse {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|source| Error::Unreadable { source })
    }

    /// Returns the body as text. Invalid UTF-8 becomes U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses a value that borrows from the body, and converts it to an owned value.
    pub(crate) fn read_with<'a, T: serde::Deserialize<'a>, U>(&'a self, owned: fn(T) -> U) -> Result<U, Error> {
        serde_json::from_slice(&self.body).map(owned).map_err(|source| Error::Unreadable { source })
    }
}

impl Transport {
    pub(crate) fn new(url: &str, key: &str, options: Options) -> Result<Self, SetupError> {
        let url = checked(url)?;
        let key = key.trim();
        let is_key = key.contains('.') && key.bytes().all(|byte| byte.is_ascii_graphic());
        let mut authorization = match is_key {
            true => HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| SetupError::Key)?,
            false => return Err(SetupError::Key),
        };
        authorization.set_sensitive(true);
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(options.connect_timeout));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls_config(&options)?);
        let connector = builder.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(options.idle_connections_max)
            .build(connector);
        Ok(Transport { client, url, authorization, options })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends the request repeatedly until an attempt succeeds, an error excludes a further attempt, or the call reaches
    /// a limit of [`Options`].
    ///
    /// If the last attempt certainly had no effect and an earlier attempt has an unknown outcome, this function returns
    /// the error of the earlier attempt.
    pub(crate) async fn call(&self, call: &Call) -> Result<SuccessResponse, Error> {
        let start = clock::monotonic();
        let mut attempt = 1;
        let mut unknown = None;
        loop {
            let left = self.options.deadline.saturating_sub(start.elapsed());
            let error = match self.attempt(call, left.min(self.options.attempt_timeout)).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let left = self.options.deadline.saturating_sub(start.elapsed());
            let wait = retry::wait(&error, call.repeat, attempt, left, &self.options, clock::random());
            let Some(wait) = wait else {
                let is_known = error.is_retryable() && !error.is_outcome_unknown();
                return Err(unknown.filter(|_| is_known).unwrap_or(error));
            };
            if let Some(on_retry) = self.options.on_retry {
                on_retry(&error, wait);
            }
            if error.is_outcome_unknown() {
                unknown.get_or_insert(error);
            }
            clock::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, call: &Call, limit: Duration) -> Result<SuccessResponse, Error> {
        let mut request = self.request(call.method.clone(), &call.path)?;
        for (name, value) in &call.headers {
            request.headers_mut().insert(name, value.clone());
        }
        if let Some(body) = &call.body {
            request.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            *request.body_mut() = Full::new(body.clone()).boxed_unsync();
        }
        let exchange = async { self.whole(self.respond(request).await?).await };
        clock::timeout(limit, exchange).await.unwrap_or(Err(Error::TimedOut { limit }))
    }

    /// Returns a request without a body, with the headers that the client sends in every request.
    pub(crate) fn request(&self, method: Method, path: &str) -> Result<Request<Body>, Error> {
        let uri = format!("{}{path}", self.url);
        let request = Request::builder()
            .method(method)
            .uri(&uri)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("reveille-client/", env!("CARGO_PKG_VERSION")));
        // The client percent-encodes ids, so the URL is invalid only if an id makes it too long.
        request
            .body(Full::default().boxed_unsync())
            .map_err(|source| Error::Unreachable { url: uri, source: source.into() })
    }

    /// Sends one request, and returns the head of the response.
    pub(crate) async fn respond(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        self.client.request(request).await.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: SendError) -> Error {
        if error.is_connect() {
            return Error::Unreachable { url: self.url.clone(), source: error.into() };
        }
        Error::Broken { source: error.into() }
    }

    /// Reads the whole response. Returns an error if the status is not a success status.
    pub(crate) async fn whole(&self, response: Response<Incoming>) -> Result<SuccessResponse, Error> {
        let (head, body) = response.into_parts();
        let bytes_max = self.options.answer_bytes_max;
        let body = match Limited::new(body, bytes_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(Error::TooLarge { bytes_max }),
            Err(source) => return Err(Error::Broken { source }),
        };
        match head.status.is_success() {
            true => Ok(SuccessResponse {
                status: head.status,
                tag: head.headers.get(ETAG).and_then(Tag::of),
                date: head.headers.get(DATE).and_then(|value| date_of(value.to_str().ok()?)),
                is_replay: head.headers.get("idempotent-replayed").is_some_and(|value| value == "true"),
                body,
            }),
            false => Err(rejection(head.status, &head.headers, &body)),
        }
    }
}

fn rejection(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    let is_problem = headers.get(CONTENT_TYPE).is_some_and(|media| media.as_bytes() == PROBLEM_CONTENT_TYPE.as_bytes());
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if is_problem => {
            let retry_after = headers.get(RETRY_AFTER).and_then(|value| wait_of(value.to_str().ok()?));
            Error::Rejected(Box::new(Rejection { problem, retry_after }))
        }
        Ok(_) | Err(_) => {
            let text = String::from_utf8_lossy(body).chars().take(FOREIGN_CHARS_MAX).collect();
            Error::Foreign { status: status.as_u16(), text }
        }
    }
}

/// Parses the header `Retry-After` (RFC 9110, 10.2.3). Its value is a number of seconds, or a date that a proxy may
/// have set.
fn wait_of(text: &str) -> Option<Duration> {
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(clock::wall()).unwrap_or_default()),
    }
}

/// Parses the header `Date` (RFC 9110, 6.6.1).
fn date_of(text: &str) -> Option<Time> {
    let since = httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Time(i64::try_from(since.as_millis()).ok()?))
}

/// Checks the URL, and returns it without a slash at its end.
fn checked(url: &str) -> Result<String, SetupError> {
    let invalid = |reason| SetupError::Url { url: without_user(url), reason };
    let uri: Uri = url.trim().parse().map_err(|_| invalid("not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(invalid("the scheme is missing or unknown; start the URL with http:// or https://"));
    }
    let authority = uri.authority().filter(|authority| !authority.host().is_empty());
    match authority {
        None => Err(invalid("the URL has no host; write a URL such as https://reveille.example")),
        Some(authority) if authority.as_str().contains('@') => {
            Err(invalid("the URL contains a user name; remove the user name and the password"))
        }
        Some(_) if uri.query().is_some() => {
            Err(invalid("the URL contains a query; remove the `?` and the text after it"))
        }
        Some(_) => Ok(url.trim().trim_end_matches('/').to_owned()),
    }
}

/// Removes the part of the URL before its last `@`, because this part may contain a password.
fn without_user(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => url.to_owned(),
    }
}

fn tls_config(options: &Options) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for (number, root) in options.extra_roots.iter().enumerate() {
        roots.add(root.clone()).map_err(|source| SetupError::Root { number, source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config
        .expect("the crypto library `ring` supports TLS 1.2 and TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth())
}
