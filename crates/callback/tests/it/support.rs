//! Deliveries for the tests, and targets that send exactly the bytes that a test specifies.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callback::{HttpDeliver, Options};
use domain::egress::Class;
use domain::retry::RetryPolicy;
use domain::{
    Egress, HttpTarget, Incarnation, Occurrence, PollerId, Revision, Schedule, ScheduleId, SigningSecret, Spec, Status,
    Target, Tenant, TenantId, Term, When,
};
use runtime::Runtime;
use scheduler::{Deliver, Delivered, Delivery};
use test_servers::http::{AsyncConnection, Message};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn deliverer(options: Options) -> HttpDeliver {
    HttpDeliver::new(&Runtime::real(), options).unwrap()
}

pub(crate) fn target(url: String) -> HttpTarget {
    HttpTarget { url, method: "POST".to_owned(), headers: Vec::new(), timeout: Duration::from_secs(20) }
}

pub(crate) fn secret() -> Vec<u8> {
    (0..32).collect()
}

/// Egress policy that allows the loopback targets of these tests.
pub(crate) fn loopback() -> Egress {
    Egress { allow: [Class::Loopback].into(), ..Egress::default() }
}

/// Makes an attempt and returns its result. The deadline of the delivery must not have passed.
pub(crate) async fn sent(deliverer: &HttpDeliver, delivery: Delivery) -> Delivered {
    deliverer.deliver(delivery).await.expect("the deadline of the callback has not passed")
}

/// Returns the first attempt of a run that was due 25 ms ago.
pub(crate) fn delivery(target: HttpTarget, payload: &[u8]) -> Delivery {
    let started_at = Runtime::real().now();
    let incarnation = Incarnation::new(started_at, 11);
    let id = ScheduleId::new("nightly_report").unwrap();
    let tenant = TenantId(1);
    let secret = SigningSecret::first(secret(), started_at);
    let nominal = started_at - Duration::from_millis(25);
    let retry = RetryPolicy { attempts_max: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) };
    let schedule = Schedule {
        tenant,
        poller: PollerId::of(tenant, 0, 1, &id),
        id,
        incarnation,
        revision: Revision(2),
        status: Status::Active,
        created_at: nominal,
        updated_at: nominal,
        next: Some(nominal),
        spec: Spec {
            when: When::At(nominal),
            target: Target::Http(target),
            payload: Bytes::copy_from_slice(payload),
            labels: BTreeMap::new(),
            retry,
        },
    };
    Delivery {
        tenant: Arc::new(Tenant { egress: loopback(), ..Tenant::new(tenant, "default", 1, secret) }),
        schedule: Arc::new(schedule),
        occurrence: Occurrence { incarnation, nominal, revision: Revision(2), replay: 0 },
        attempt: 1,
        term: Term(42),
        started_at,
        deadline: Runtime::real().monotonic() + Duration::from_secs(60),
    }
}

/// Returns the delivery with the tenant `id` instead of its own tenant.
pub(crate) fn of_tenant(id: u32, delivery: Delivery) -> Delivery {
    let tenant = Tenant { id: TenantId(id), ..(*delivery.tenant).clone() };
    Delivery { tenant: Arc::new(tenant), ..delivery }
}

/// A listening target.
pub(crate) struct Listening(TcpListener);

impl Listening {
    pub(crate) async fn start() -> Self {
        Listening(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?of=test", self.port())
    }

    pub(crate) async fn accept(&self) -> Peer {
        Peer::new(self.0.accept().await.unwrap().0)
    }

    pub(crate) async fn accept_stream(&self) -> tokio::net::TcpStream {
        self.0.accept().await.unwrap().0
    }

    /// Accepts one connection, responds to one request on it, and returns the connection and the request.
    pub(crate) async fn serve(&self, answer: &[u8]) -> (Peer, Received) {
        let mut peer = self.accept().await;
        let received = peer.request().await;
        peer.send(answer).await;
        (peer, received)
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// Target's end of a connection.
pub(crate) struct Peer(AsyncConnection<Box<dyn Socket>>);

/// A received request.
#[derive(Debug)]
pub(crate) struct Received(pub(crate) Message);

impl Deref for Received {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0
    }
}

impl Received {
    /// Returns the value of a header that must not occur twice.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.0.headers.iter().filter(|(present, _)| present == name);
        let value = values.next()?;
        assert!(values.next().is_none(), "the header {name} occurs twice");
        Some(&value.1)
    }
}

impl Peer {
    pub(crate) fn new(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Peer(AsyncConnection::new(Box::new(socket)))
    }

    pub(crate) async fn request(&mut self) -> Received {
        Received(self.0.read().await.expect("a request arrives before the connection closes"))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write(bytes).await.unwrap();
        self.0.stream.flush().await.unwrap();
    }

    /// Sends `bytes` repeatedly until the client closes the connection.
    pub(crate) async fn send_for_ever(&mut self, bytes: &[u8]) {
        while self.0.write(bytes).await.is_ok() {}
    }

    /// Waits until the client closes the connection. The test fails if the client sends any bytes before it closes the
    /// connection.
    pub(crate) async fn closed(&mut self) {
        let rest = self.0.read_to_end().await.unwrap_or_default();
        assert!(rest.is_empty(), "received an unexpected request: {:?}", String::from_utf8_lossy(&rest));
    }
}
