//! Support for the tests: a member that responds, a client, and functions that intercept and resend the client's
//! requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::future::BoxFuture;
use membership::{Member, MemberId};
use peers::{ClusterSecret, Handler, HttpPeers, Listener, ListenerOptions, PeersOptions};
use runtime::{Disk, Monotonic, Place, Runtime, TaskHandle, World};
use scheduler::{InvalidRequest, PeerError, Peers};
use test_servers::http::AsyncConnection;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) const SECRET: [u8; 32] = [7; 32];

pub(crate) fn secret() -> ClusterSecret {
    ClusterSecret::new(&SECRET)
}

pub(crate) fn member(address: SocketAddr) -> Member {
    Member {
        id: MemberId(u128::from(address.port())),
        name: "receiver".to_owned(),
        address: address.to_string(),
        owns: true,
        build: "test".to_owned(),
    }
}

/// Member that responds to requests. Its id is its port, so a restarted member with the same port has the same id.
pub(crate) struct TestMember {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    /// Number of requests that reached the handler.
    pub(crate) handled: Arc<AtomicUsize>,
    ended: BoxFuture<'static, runtime::TaskEnd>,
}

pub(crate) struct Setup {
    pub(crate) runtime: Runtime,
    pub(crate) address: SocketAddr,
    pub(crate) secret: [u8; 32],
    pub(crate) options: ListenerOptions,
}

impl Default for Setup {
    fn default() -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        Setup { runtime: Runtime::real(), address, secret: SECRET, options: ListenerOptions::default() }
    }
}

impl TestMember {
    pub(crate) async fn start(
        setup: Setup,
        handler: impl Fn(String, Bytes) -> Handling + Send + Sync + 'static,
    ) -> Self {
        let listener = Listener::bind(&setup.runtime, setup.address, setup.options).await.unwrap();
        let address = listener.local_addr();
        let me = member(address).id;
        let (stop, handled) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let count = handled.clone();
        let handler: Handler = Arc::new(move |operation, request| {
            count.fetch_add(1, Ordering::SeqCst);
            handler(operation, request)
        });
        let secret = ClusterSecret::new(&setup.secret);
        let serving =
            listener.serve_until(secret, Arc::new(move |id| id == me), handler, stop.clone().cancelled_owned());
        let ended = Runtime::real().spawn("listener", serving).end;
        TestMember { address, stop, handled, ended }
    }

    /// Starts a member that handles every request with [`echo`].
    pub(crate) async fn echoing() -> Self {
        Self::start(Setup::default(), echo).await
    }

    pub(crate) fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    /// Returns true if the listener ends within `limit`.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> bool {
        let end = Runtime::real().timeout(limit, &mut self.ended).await;
        assert!(end.is_none_or(|end| end == runtime::TaskEnd::Finished), "the listener ended with {end:?}");
        end.is_some()
    }

    pub(crate) async fn ended(mut self) {
        assert!(self.ends_within(Duration::from_secs(5)).await, "the listener does not end in time");
    }
}

pub(crate) fn client() -> HttpPeers {
    HttpPeers::new(&Runtime::real(), secret(), "sender", PeersOptions::default())
}

pub(crate) fn client_with_timeout(request_timeout: Duration) -> HttpPeers {
    let options = PeersOptions { request_timeout, ..PeersOptions::default() };
    HttpPeers::new(&Runtime::real(), secret(), "sender", options)
}

pub(crate) fn reason(answer: Result<Bytes, PeerError>) -> String {
    match answer {
        Err(PeerError::Unreachable { member, reason }) => {
            assert_eq!(member, "receiver");
            reason
        }
        Ok(response) => panic!("unexpected response: {response:?}"),
    }
}

/// Name of the operation that most tests request.
pub(crate) const NUDGE: &str = "nudge";

/// Sends a request for the operation [`NUDGE`] with a body of three bytes.
pub(crate) fn nudge(peers: &HttpPeers, to: &Member) -> BoxFuture<'static, Result<Bytes, PeerError>> {
    peers.request(to, NUDGE, Bytes::from_static(b"now"))
}

/// Response of [`echo`] to [`nudge`].
pub(crate) fn nudged() -> Result<Bytes, PeerError> {
    Ok(echo_of(NUDGE, b"now"))
}

pub(crate) fn echo_of(operation: &str, request: &[u8]) -> Bytes {
    [operation.as_bytes(), b":", request].concat().into()
}

/// Future that a handler returns.
pub(crate) type Handling = BoxFuture<'static, Result<Bytes, InvalidRequest>>;

/// Handler that responds with the operation and the bytes that it received.
pub(crate) fn echo(operation: String, request: Bytes) -> Handling {
    Box::pin(async move { Ok(echo_of(&operation, &request)) })
}

/// Accepts one connection, reads one whole request, responds with `answer`, and closes the connection. Returns the
/// request's bytes.
pub(crate) async fn answer_once(listener: &TcpListener, answer: &[u8]) -> Vec<u8> {
    let (mut stream, _) = listener.accept().await.unwrap();
    let request = read_message(&mut stream).await;
    // The client may close the connection before it has read the whole response.
    let _may_fail = stream.write_all(answer).await;
    request
}

/// Reads a head and a body of the declared length. Returns fewer bytes if the other end closes the connection.
pub(crate) async fn read_message(stream: &mut TcpStream) -> Vec<u8> {
    AsyncConnection::new(stream).read_bytes().await
}

/// Sends the given bytes and returns the response as text.
pub(crate) async fn sent_raw(address: SocketAddr, request: &[u8]) -> String {
    String::from_utf8_lossy(&sent_raw_bytes(address, request).await).into_owned()
}

pub(crate) async fn sent_raw_bytes(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    read_message(&mut stream).await
}

/// Returns the bytes of a genuine request for the member `to`. The request does not reach this member.
pub(crate) async fn intercepted(peers: &HttpPeers, to: &Member) -> Vec<u8> {
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let detour = Member { address: between.local_addr().unwrap().to_string(), ..to.clone() };
    let (request, answer) =
        tokio::join!(answer_once(&between, b"HTTP/1.1 502 Bad Gateway\r\n\r\n"), nudge(peers, &detour));
    assert!(reason(answer).contains("502"));
    request
}

/// Returns a runtime whose wall clock is `millis` milliseconds ahead of the real clock.
pub(crate) fn with_clock_off(millis: i64) -> Runtime {
    Runtime::new(Arc::new(Off { world: Runtime::real().world().clone(), millis }))
}

struct Off {
    world: Arc<dyn World>,
    millis: i64,
}

impl World for Off {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.world.now().as_millis() + self.millis)
    }

    fn monotonic(&self) -> Monotonic {
        self.world.monotonic()
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.world.sleep_until(at)
    }

    fn random(&self) -> u64 {
        self.world.random()
    }

    fn spawn(&self, name: &'static str, place: Place, future: BoxFuture<'static, ()>) -> TaskHandle {
        self.world.spawn(name, place, future)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.world.disk()
    }

    fn halt(&self, reason: &str) {
        self.world.halt(reason);
    }
}
