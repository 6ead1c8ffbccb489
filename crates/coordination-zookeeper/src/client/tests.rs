//! Tests against a server that follows a script. They cover responses that a real server gives only rarely.

use std::time::Duration;

use bytes::Bytes;
use coordination::tree::session::SessionState;
use coordination::tree::{Credentials, SessionOptions, TreeError};
use runtime::Runtime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::jute::Writer;
use super::protocol::op;
use super::*;

/// Timeout of the sessions. The client sends a ping after 500 ms without a request.
const TIMEOUT: Duration = Duration::from_secs(3);
const PERIOD: Duration = Duration::from_millis(500);

/// Server that accepts connections and follows the script of a test.
struct Script {
    listener: TcpListener,
    settings: Settings,
}

/// Connection of the client.
struct Peer(TcpStream);

/// Message of the client, after the request for a session.
struct Message {
    xid: i32,
    op: i32,
    body: Reader,
}

impl Script {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let servers = vec![Server { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() }];
        let options = SessionOptions { timeout: TIMEOUT, credentials: Vec::new() };
        Script { listener, settings: Settings { servers, root: None, tls: None, user: None, options } }
    }

    /// Opens a session of a client on this server.
    async fn open(self) -> (Client, Peer, TcpListener) {
        let Script { listener, settings } = self;
        let accept = async {
            let mut peer = Peer::accept(&listener, TIMEOUT).await.0;
            peer.confirm_watches().await;
            peer
        };
        let (client, peer) = tokio::join!(open(settings), accept);
        (client.unwrap(), peer, listener)
    }
}

impl Peer {
    /// Accepts a connection and its session. Also returns the last change that the client has seen.
    async fn accept(listener: &TcpListener, timeout: Duration) -> (Self, i64) {
        let mut peer = Peer(listener.accept().await.unwrap().0);
        let mut connect = Reader::new(peer.bytes().await.unwrap());
        let _version = connect.int();
        let seen = connect.long().unwrap();
        let millis = i32::try_from(timeout.as_millis()).unwrap();
        peer.send(Writer::default().int(0).int(millis).long(7).buffer(&[1; 16]).bool(false)).await;
        (peer, seen)
    }

    async fn bytes(&mut self) -> Option<Bytes> {
        let length = self.0.read_u32().await.ok()?;
        let mut message = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut message).await.ok()?;
        Some(message.into())
    }

    async fn send(&mut self, message: Writer) {
        let message = message.finish();
        self.0.write_u32(u32::try_from(message.len()).unwrap()).await.unwrap();
        self.0.write_all(&message).await.unwrap();
    }

    /// Returns the next message, also if it is a ping.
    async fn next(&mut self) -> Message {
        let mut body = Reader::new(self.bytes().await.unwrap());
        Message { xid: body.int().unwrap(), op: body.int().unwrap(), body }
    }

    /// Returns the next message that is not a ping. Responds to pings.
    async fn request(&mut self) -> Message {
        loop {
            match self.next().await {
                Message { xid: xid::PING, .. } => self.respond(xid::PING, 0, code::OK).await,
                message => return message,
            }
        }
    }

    /// Sends a response without a body.
    async fn respond(&mut self, xid: i32, zxid: i64, code: i32) {
        self.send(Writer::default().int(xid).long(zxid).int(code)).await;
    }

    async fn send_event(&mut self, zxid: i64, kind: i32, path: &str) {
        const CONNECTED: i32 = 3;
        let header = Writer::default().int(xid::EVENT).long(zxid).int(code::OK);
        self.send(header.int(kind).int(CONNECTED).text(path)).await;
    }

    /// Confirms the request for the watches of a new connection. Returns the last change that this request names.
    async fn confirm_watches(&mut self) -> i64 {
        let mut message = self.request().await;
        assert_eq!((message.xid, message.op), (xid::SET_WATCHES, op::SET_WATCHES));
        self.respond(xid::SET_WATCHES, 0, code::OK).await;
        message.body.long().unwrap()
    }
}

fn read(path: &str, watch: Option<WatchKind>) -> (Request, Option<(String, WatchKind)>) {
    (Request::read(op::GET_DATA, path, watch.is_some()), watch.map(|kind| (path.to_owned(), kind)))
}

async fn open(settings: Settings) -> Result<Client, TreeError> {
    Client::open(&Runtime::real(), settings).await
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    Runtime::real().timeout(limit, future).await
}

#[tokio::test]
async fn server_that_is_too_old_is_named_in_the_error() {
    let Script { listener, settings } = Script::new().await;
    let server = async {
        let mut peer = Peer::accept(&listener, TIMEOUT).await.0;
        assert_eq!(peer.request().await.op, op::SET_WATCHES);
        peer.respond(xid::SET_WATCHES, 0, code::UNIMPLEMENTED).await;
        peer
    };
    let (client, _peer) = tokio::join!(open(settings), server);
    let error = client.err().expect("the server rejects the session").to_string();
    assert!(error.contains("older than version 3.6"), "{error}");
}

#[tokio::test]
async fn client_sends_nothing_after_its_credentials_until_the_server_accepts_them() {
    let Script { listener, mut settings } = Script::new().await;
    settings.options.credentials = vec![Credentials { name: "a".to_owned(), password: "b".to_owned() }];
    let server = async {
        let mut peer = Peer::accept(&listener, TIMEOUT).await.0;
        assert_eq!(peer.request().await.op, op::SET_AUTH);
        let more = within(Duration::from_millis(200), peer.next()).await;
        assert!(
            more.is_none(),
            "a server that rejects the credentials closes the connection, and its response is lost"
        );
        peer.respond(xid::AUTH, 0, code::AUTH_FAILED).await;
    };
    let (client, ()) = tokio::join!(open(settings), server);
    let error = client.err().expect("the server rejects the credentials").to_string();
    assert!(error.contains("rejected the credentials"), "{error}");
}

#[tokio::test]
async fn client_sends_nothing_until_the_server_has_proved_that_it_knows_the_password() {
    let Script { listener, mut settings } = Script::new().await;
    settings.user = Some(User { name: "ann".to_owned(), password: "secret".to_owned() });
    settings.options.credentials = vec![Credentials { name: "a".to_owned(), password: "b".to_owned() }];
    let server = async {
        let mut peer = Peer::accept(&listener, TIMEOUT).await.0;
        for message in [&b"nonce=\"a\",algorithm=md5-sess,charset=utf-8"[..], b"rspauth=0123456789abcdef"] {
            assert_eq!(peer.request().await.op, op::SASL);
            assert!(within(Duration::from_millis(100), peer.next()).await.is_none(), "the server has not responded");
            peer.send(Writer::default().int(xid::SASL).long(0).int(code::OK).buffer(message)).await;
        }
        assert!(peer.bytes().await.is_none(), "the client sent its credentials");
    };
    let (client, ()) = tokio::join!(open(settings), server);
    let error = client.err().expect("the proof is wrong").to_string();
    assert!(error.contains("did not prove"), "{error}");
}

#[tokio::test]
async fn session_is_lost_if_a_server_shortens_its_timeout() {
    let (client, peer, listener) = Script::new().await.open().await;
    drop(peer);
    let (_peer, _) = Peer::accept(&listener, TIMEOUT / 2).await;
    within(TIMEOUT / 4, client.session().lost()).await.expect("the server may end this session too early");
}

#[tokio::test]
async fn reconnect_names_the_last_response_and_not_the_last_event() {
    let (client, mut peer, listener) = Script::new().await.open().await;
    let (request, watch) = read("/a", Some(WatchKind::Data));
    let server = async {
        let message = peer.request().await;
        peer.respond(message.xid, 5, code::OK).await;
        peer
    };
    let (response, mut peer) = tokio::join!(client.send(request, watch), server);
    let Some((Receiver::Once(watch), _guard)) = response.unwrap().watch else { panic!("the request set a watch") };
    peer.send_event(9, 3, "/a").await;
    watch.await.unwrap();
    drop(peer);
    let (mut peer, seen) = Peer::accept(&listener, TIMEOUT).await;
    // The change 9 may have caused further events, which the connection lost.
    assert_eq!((seen, peer.confirm_watches().await), (5, 5));
}

#[tokio::test]
async fn slow_server_is_not_silent() {
    let (client, mut peer, listener) = Script::new().await.open().await;
    let send = || {
        let (request, watch) = read("/a", None);
        client.send(request, watch)
    };
    let server = async {
        let xids = [peer.request().await.xid, peer.request().await.xid];
        for xid in xids {
            Runtime::real().sleep(PERIOD * 3 / 2).await;
            peer.respond(xid, 1, code::OK).await;
        }
        peer
    };
    let (first, second, _peer) = tokio::join!(send(), send(), server);
    assert!(first.is_ok() && second.is_ok(), "the second response came after 1.5 s");
    assert!(within(Duration::from_millis(50), listener.accept()).await.is_none(), "the client connected again");
}

#[tokio::test]
async fn silent_server_is_replaced_while_the_session_is_valid() {
    let (client, peer, listener) = Script::new().await.open().await;
    let mut state = client.session().state();
    let began = tokio::time::Instant::now();
    state.wait_for(|state| *state == SessionState::Suspended).await.unwrap();
    let suspended = began.elapsed();
    let (mut next, _) = Peer::accept(&listener, TIMEOUT).await;
    assert!(suspended < TIMEOUT / 2 && began.elapsed() < TIMEOUT * 4 / 5, "{suspended:?} {:?}", began.elapsed());
    next.confirm_watches().await;
    assert_eq!(next.next().await.xid, xid::PING);
    next.respond(xid::PING, 0, code::OK).await;
    state.wait_for(|state| *state == SessionState::Connected).await.unwrap();
    drop(peer);
}

#[tokio::test]
async fn idle_client_sends_pings_and_a_dropped_watch_leaves_the_server() {
    let (client, mut peer, _listener) = Script::new().await.open().await;
    assert_eq!(peer.next().await.xid, xid::PING, "the first ping renews the session");
    peer.respond(xid::PING, 0, code::OK).await;
    let began = tokio::time::Instant::now();
    assert_eq!(peer.next().await.xid, xid::PING);
    assert!(began.elapsed() > PERIOD / 2 && began.elapsed() < PERIOD * 2, "{:?}", began.elapsed());
    peer.respond(xid::PING, 0, code::OK).await;

    let (request, watch) = read("/a", Some(WatchKind::Data));
    let server = async {
        let message = peer.request().await;
        peer.respond(message.xid, 1, code::OK).await;
    };
    let (response, ()) = tokio::join!(client.send(request, watch), server);
    drop(response.unwrap());
    let mut removal = peer.request().await;
    assert_eq!((removal.op, removal.body.text()), (op::REMOVE_WATCHES, Ok("/a".to_owned())));
}

#[tokio::test]
async fn close_waits_for_the_server_and_ends_all_requests() {
    let (client, mut peer, _listener) = Script::new().await.open().await;
    let (request, watch) = read("/a", None);
    let server = async {
        let read = peer.request().await;
        assert_eq!(read.op, op::GET_DATA);
        let close = peer.request().await;
        assert_eq!(close.op, op::CLOSE);
        peer.respond(close.xid, 1, code::OK).await;
    };
    let close = async {
        Runtime::real().sleep(Duration::from_millis(50)).await;
        client.close().await
    };
    let (read, closed, ()) = tokio::join!(client.send(request, watch), close, server);
    assert!(matches!(read, Err(TreeError::SessionLost)));
    closed.unwrap();
    assert!(matches!(client.send(Request::ping(), None).await, Err(TreeError::SessionLost)));
}
