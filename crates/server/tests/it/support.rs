//! Server for the tests, and a client that sends exactly the given bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::egress::Class;
use domain::limits::Limits;
use domain::{ApiKey, AttemptResult, Audit, Egress, Role, SigningSecret, Target, Tenant, TenantId, Timestamp};
use futures_util::future::{BoxFuture, FutureExt, ready};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery, Scheduler};
use serde_json::Value;
use server::{Options, Readiness, Server};
use sha2::{Digest, Sha256};
use store::Store;
use store::memory::{MemoryOptions, MemoryStore};
use test_servers::http::{self, AsyncConnection};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) const KEY: &str = "ours.secret-of-ours";
pub(crate) const OPERATOR_KEY: &str = "operators.secret-of-operators";
pub(crate) const FOREIGN_KEY: &str = "theirs.secret-of-theirs";
/// Timeout of every wait in these tests, so that a hanging test fails.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) address: SocketAddr,
    pub(crate) metrics_address: Option<SocketAddr>,
    pub(crate) readiness: Readiness,
    scheduler: Scheduler,
    stop: CancellationToken,
    serving: BoxFuture<'static, ()>,
}

impl World {
    pub(crate) async fn start() -> World {
        World::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> World {
        World::start_on(Runtime::real(), Arc::new(DeliverByPath), options).await
    }

    /// Starts a server with a message bus. The policy of the tenant `tenant-1` lists `topics`.
    pub(crate) async fn start_with_bus(topics: &[&str]) -> World {
        let limits = Limits { has_bus: true, ..Limits::default() };
        let world = World::start_with(Options { limits, ..Options::default() }).await;
        let patch = serde_json::json!({ "egress": { "allow_topics": topics } }).to_string();
        let patched = world.send_as(OPERATOR_KEY, "PATCH", "/v1/tenants/tenant-1", &patch).await;
        assert_eq!(patched.status, 200, "{}", patched.body);
        world
    }

    pub(crate) async fn start_on(runtime: Runtime, deliver: Arc<dyn Deliver>, options: Options) -> World {
        World::start_wrapped(runtime, deliver, options, |store| store).await
    }

    /// Starts a server on the store that `wrap` returns.
    pub(crate) async fn start_wrapped(
        runtime: Runtime,
        deliver: Arc<dyn Deliver>,
        options: Options,
        wrap: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>,
    ) -> World {
        let store = Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
        for tenant in [operators(), tenant(1, KEY), tenant(2, FOREIGN_KEY)] {
            let entry = Audit::of(&tenant, runtime.now(), "test", "tenant.create", "");
            store.put_tenant(tenant, entry).await.unwrap().unwrap();
        }
        let scheduler = Scheduler::start(
            &runtime,
            wrap(store.clone()),
            deliver,
            scheduler::Options::default(),
            scheduler::Registry::default(),
        )
        .await
        .unwrap();
        let options = Options { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..options };
        let server = Server::bind(runtime.clone(), scheduler.clone(), options).await.unwrap();
        let (address, metrics_address, readiness) = (server.local_addr(), server.metrics_addr(), server.readiness());
        let stop = CancellationToken::new();
        let serving = runtime.spawn("server", server.serve_until(stop.clone().cancelled_owned())).end;
        World {
            runtime,
            store,
            address,
            metrics_address,
            readiness,
            scheduler,
            stop,
            serving: serving.map(drop).boxed(),
        }
    }

    /// Stops the server in an orderly way, and checks that the server closes all connections within the timeout.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.runtime.timeout(TIMEOUT, self.serving).await.expect("the server drains within the timeout");
        self.scheduler.stop().await;
    }

    pub(crate) fn begin_stop(&self) {
        self.stop.cancel();
    }

    pub(crate) async fn connect(&self) -> Connection {
        self.connect_to(self.address).await
    }

    pub(crate) async fn connect_to(&self, address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        Connection { runtime: self.runtime.clone(), http: AsyncConnection::new(stream) }
    }

    /// Connects to the server from `address`, which is a local address of this machine.
    pub(crate) async fn connect_from(&self, address: [u8; 4]) -> Connection {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        Connection { runtime: self.runtime.clone(), http: AsyncConnection::new(stream) }
    }

    /// Sends one request with the tenant's key on a new connection.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Response {
        self.send_as(KEY, method, path, body).await
    }

    /// Sends one request with additional headers, which may include the media type.
    pub(crate) async fn send_if(&self, method: &str, path: &str, more: &[(&str, &str)], body: &str) -> Response {
        let mut headers = format!("authorization: Bearer {KEY}\r\n");
        if !more.iter().any(|(name, _)| *name == "content-type") {
            headers += "content-type: application/json\r\n";
        }
        headers.extend(more.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        self.connect().await.request(method, path, &headers, body.as_bytes()).await
    }

    pub(crate) async fn send_as(&self, key: &str, method: &str, path: &str, body: &str) -> Response {
        let media = if path.ends_with(":batch") { "application/x-ndjson" } else { "application/json" };
        let headers = format!("authorization: Bearer {key}\r\ncontent-type: {media}\r\n");
        self.connect().await.request(method, path, &headers, body.as_bytes()).await
    }
}

fn admin(key: &str) -> ApiKey {
    let (id, secret) = key.split_once('.').unwrap();
    ApiKey::admin(id, Sha256::digest(secret.as_bytes()).into(), Timestamp::MIN)
}

fn operators() -> Tenant {
    let secret = SigningSecret::first(Vec::new(), Timestamp::MIN);
    Tenant {
        generations: Vec::new(),
        signing_secrets: Vec::new(),
        keys: vec![ApiKey { role: Role::Operator, ..admin(OPERATOR_KEY) }],
        ..Tenant::new(Tenant::OPERATOR, "operator", 1, secret)
    }
}

fn tenant(number: u32, key: &str) -> Tenant {
    let secret = SigningSecret::first(vec![7; 32], Timestamp::MIN);
    let egress = Egress { allow: [Class::Loopback].into(), ..Egress::default() };
    Tenant { keys: vec![admin(key)], egress, ..Tenant::new(TenantId(number), &format!("tenant-{number}"), 4, secret) }
}

/// Test double for targets. A URL responds with the status that the last segment of its path contains. A topic stores
/// every record in the same position.
pub(crate) struct DeliverByPath;

impl Deliver for DeliverByPath {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'static, Option<Delivered>> {
        let result = match &delivery.schedule.spec.target {
            Target::Http(http) => {
                AttemptResult::Answered(http.url.rsplit('/').next().and_then(|part| part.parse().ok()).unwrap_or(200))
            }
            Target::Bus(_) => AttemptResult::Stored { partition: 2, offset: 41 },
        };
        ready(Some(Delivered { result, retry_after: None, excerpt: None })).boxed()
    }
}

pub(crate) struct Connection {
    runtime: Runtime,
    pub(crate) http: AsyncConnection<TcpStream>,
}

impl Connection {
    pub(crate) async fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        self.write(&http::request(method, path, headers, body)).await;
        self.response().await
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.http.write(bytes).await.unwrap();
    }

    /// Reads the next response and decodes its body.
    pub(crate) async fn response(&mut self) -> Response {
        let response =
            self.runtime.timeout(TIMEOUT, self.http.read()).await.expect("the server responds within the timeout");
        let response = response.expect("the server responds before it closes the connection");
        let status = response.status().unwrap();
        Response { status, headers: response.headers, body: String::from_utf8(response.body).unwrap() }
    }

    /// Sends a request that needs a key, and returns the status of the response.
    pub(crate) async fn status_with_key(&mut self) -> u16 {
        let headers = format!("authorization: Bearer {KEY}\r\n");
        self.request("GET", "/v1/schedules:count", &headers, b"").await.status
    }

    /// Returns true if the server closes this connection without further bytes.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let rest = self.runtime.timeout(TIMEOUT, self.http.read_to_end());
        rest.await.expect("the server closes the connection within the timeout").is_ok_and(|rest| rest.is_empty())
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn text(&self, pointer: &str) -> String {
        let json = self.json();
        let value = json.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in {json}"));
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Returns the status, the important headers, and the body without the values that differ between test runs.
    pub(crate) fn shown(&self) -> String {
        let mut shown = format!("{}\n", self.status);
        for name in ["allow", "location", "retry-after", "www-authenticate", "content-type"] {
            if let Some(value) = self.header(name) {
                shown += &format!("{name}: {}\n", normalized(value));
            }
        }
        let body = match serde_json::from_str::<Value>(&self.body) {
            Ok(json) => serde_json::to_string_pretty(&json).unwrap(),
            Err(_) => self.body.clone(),
        };
        shown + &normalized(&body) + "\n"
    }

    /// Returns the pointer and the code of each error in the response body.
    pub(crate) fn errors(&self) -> Vec<(String, String)> {
        let errors = self.json()["errors"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        errors.iter().map(|error| (text(&error["pointer"]), text(&error["code"]))).collect()
    }
}

/// Replaces instants, request ids and generated ids with `TIME`, `REQUEST` and `ID`.
pub(crate) fn normalized(text: &str) -> String {
    let is_instant = |word: &str| word.len() == 24 && word.ends_with('Z') && word.as_bytes()[10] == b'T';
    let is_request = |word: &str| {
        let parts = word.split_once('-');
        parts.is_some_and(|(start, count)| {
            start.len() == 8 && !count.is_empty() && word.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-')
        })
    };
    let is_id =
        |word: &str| word.len() == 27 && word.starts_with('s') && word.bytes().all(|c| c.is_ascii_alphanumeric());
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ':' || c == '.';
    let mut normalized = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, tail) = rest.split_at(end);
        normalized += match word {
            word if is_instant(word) => "TIME",
            word if is_request(word) => "REQUEST",
            word if is_id(word) => "ID",
            word => word,
        };
        rest = tail;
    }
    normalized
}

/// Returns a valid body with the additional fields `more`.
pub(crate) fn body(more: &str) -> String {
    format!(r#"{{"at":"2035-01-02T03:04:05Z","target":{{"http":{{"url":"http://127.0.0.1:9/hook"}}}}{more}}}"#)
}
