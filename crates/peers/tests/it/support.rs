//! Support for the tests: a member that responds, a client, and functions that send and receive raw bytes over TLS.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::future::BoxFuture;
use membership::{Member, MemberId};
use peers::{Authority, Handler, HttpPeers, Identity, Listener, ListenerOptions, PeersOptions, server_name};
use runtime::{Disk, Monotonic, Place, Runtime, TaskHandle, World};
use rustls::pki_types::ServerName;
use scheduler::{InvalidRequest, PeerError, Peers};
use test_servers::http::AsyncConnection;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::sync::CancellationToken;

/// Keys of two authorities. The first one is the authority of the tests' cluster.
pub(crate) static KEYS: LazyLock<[Vec<u8>; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Authority::generate().unwrap().key().to_vec()));

pub(crate) fn authority(number: usize) -> Authority {
    Authority::from_key(&KEYS[number]).unwrap()
}

/// Returns the identity of a member of the tests' cluster.
pub(crate) fn identity() -> Identity {
    identity_of(&Runtime::real(), 0, &[])
}

/// Returns an identity whose certificates are from the authority `issuer`. It also trusts the authorities `others`.
pub(crate) fn identity_of(runtime: &Runtime, issuer: usize, others: &[usize]) -> Identity {
    let others: Vec<Authority> = others.iter().map(|number| authority(*number)).collect();
    Identity::new(runtime, authority(issuer), &others).unwrap()
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
    pub(crate) identity: Identity,
    pub(crate) options: ListenerOptions,
}

impl Default for Setup {
    fn default() -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        Setup { runtime: Runtime::real(), address, identity: identity(), options: ListenerOptions::default() }
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
        let is_me: peers::IsCurrentSession = Arc::new(move |id| id == me);
        let serving = listener.serve_until(setup.identity, is_me, handler, stop.clone().cancelled_owned());
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
    client_of(identity())
}

pub(crate) fn client_of(identity: Identity) -> HttpPeers {
    HttpPeers::new(&Runtime::real(), identity, "sender", PeersOptions::default())
}

pub(crate) fn client_with_timeout(request_timeout: Duration) -> HttpPeers {
    let options = PeersOptions { request_timeout, ..PeersOptions::default() };
    HttpPeers::new(&Runtime::real(), identity(), "sender", options)
}

pub(crate) fn reason(answer: Result<Bytes, PeerError>) -> String {
    match answer {
        Err(PeerError::Unreachable { member, reason }) => {
            assert_eq!(member, "receiver");
            reason
        }
        other => panic!("unexpected response: {other:?}"),
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

/// Head of a request for the operation [`NUDGE`], without its end.
pub(crate) const HEAD: &str = "POST /peer/v3/request HTTP/1.1\r\nhost: a\r\nreveille-peer-operation: nudge\r\n";

/// Accepts one connection as a member of the cluster. The member accepts every session id.
pub(crate) async fn accepted(listener: &TcpListener) -> TlsStream<TcpStream> {
    let (stream, _) = listener.accept().await.unwrap();
    TlsAcceptor::from(identity().server_config(Arc::new(|_| true))).accept(stream).await.unwrap().into()
}

/// Connects as a member of the cluster.
pub(crate) async fn connected(address: SocketAddr) -> TlsStream<TcpStream> {
    let name = ServerName::try_from(server_name(member(address).id)).unwrap();
    let connector = TlsConnector::from(identity().client_config().unwrap());
    connector.connect(name, TcpStream::connect(address).await.unwrap()).await.unwrap().into()
}

/// Accepts one connection as a member, reads one whole request, responds with `answer`, and closes the connection.
pub(crate) async fn answer_once(listener: &TcpListener, answer: &[u8]) {
    let mut stream = accepted(listener).await;
    read_message(&mut stream).await;
    // The client may close the connection before it has read the whole response.
    let _may_fail = stream.write_all(answer).await;
    let _may_fail = stream.shutdown().await;
}

/// Reads a head and a body of the declared length. Returns fewer bytes if the other end closes the connection.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Vec<u8> {
    AsyncConnection::new(stream).read_bytes().await
}

/// Sends the given bytes as a member of the cluster, and returns the response as text.
pub(crate) async fn sent_raw(address: SocketAddr, request: &str) -> String {
    let mut stream = connected(address).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    String::from_utf8_lossy(&read_message(&mut stream).await).into_owned()
}

/// Returns a runtime whose wall clock is `millis` milliseconds ahead of the real clock.
pub(crate) fn with_clock_off(millis: i64) -> Runtime {
    with_clock(&Arc::new(AtomicI64::new(millis)))
}

/// Returns a runtime whose wall clock is ahead of the real clock by a number of milliseconds that the test may change.
pub(crate) fn with_clock(millis: &Arc<AtomicI64>) -> Runtime {
    Runtime::new(Arc::new(Off { world: Runtime::real().world().clone(), millis: millis.clone() }))
}

struct Off {
    world: Arc<dyn World>,
    millis: Arc<AtomicI64>,
}

impl World for Off {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.world.now().as_millis() + self.millis.load(Ordering::SeqCst))
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
