//! Client for the part of ZooKeeper's protocol that the port needs.
//!
//! One task owns the session: it connects, sends the requests in their order, receives responses and events, and
//! reconnects until the session has ended. The server answers requests in order, so a queue of the requests under way
//! assigns each response to its request.
//!
//! Every response moves the deadline of the session ([`Session::answered`]). If the task has sent nothing for a sixth
//! of the timeout, it sends a ping. If it waits for a response and receives none for this time, it reports a
//! suspension, and after twice this time it connects to another server. While it has no connection, it tries all
//! servers in turn, with short waits between two rounds. Each connection authenticates the user of the URL and the
//! session's credentials before it carries other requests.
//!
//! docs/decisions/0222-speak-zookeepers-protocol.md and
//! docs/decisions/0224-encrypt-zookeeper-connections-by-the-url.md give the reasons for the design.

mod connection;
mod jute;
mod link;
pub(crate) mod protocol;
mod sasl;
mod tls;
mod watches;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::TreeError;
use coordination::tree::session::Session;
use instants::Monotonic;
use runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use connection::Connection;
pub(crate) use connection::Server;
pub(crate) use jute::{Malformed, Reader};
use link::Link;
pub(crate) use link::{OPEN_MAX, Settings, below_root};
use protocol::{Request, code, take_header, xid};
pub(crate) use sasl::User;
pub(crate) use tls::{FileError, Identity, Tls};
use watches::Watches;
pub(crate) use watches::{Receiver, WatchKind};

/// Longest time that the task waits for the server's confirmation that it closed the session.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Part of the session's timeout after which an idle client sends a ping.
const PINGS_PER_TIMEOUT: u32 = 6;
/// Largest number of requests without a response, and of bytes that wait for the connection. Further requests wait.
const UNDER_WAY_MAX: usize = 1_024;
const QUEUED_BYTES_MAX: usize = 4 << 20;

/// Handle of a session. A drop of the handle ends the session.
pub(crate) struct Client {
    runtime: Runtime,
    session: Session,
    commands: mpsc::UnboundedSender<Command>,
    /// True after the server has confirmed that it closed the session.
    is_closed: Arc<AtomicBool>,
}

/// Response to a request.
pub(crate) struct Response {
    /// Error number, or [`code::OK`].
    pub(crate) code: i32,
    pub(crate) body: Bytes,
    /// Receiver of the watch that the request has set, and its guard, which must be dropped after the receiver.
    pub(crate) watch: Option<(Receiver, Watched)>,
}

enum Command {
    Send(Sending),
    /// A receiver of a watch of this path was dropped.
    Dropped(String),
}

struct Sending {
    request: Request,
    watch: Option<(String, WatchKind)>,
    response: oneshot::Sender<Result<Response, TreeError>>,
}

impl Client {
    /// Opens a session, and starts its task. The task ends when the session has ended. It then tries to close the
    /// session on the server.
    pub(crate) async fn open(runtime: &Runtime, settings: Settings) -> Result<Self, TreeError> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let is_closed = Arc::new(AtomicBool::new(false));
        let mut link = Link::new(runtime.clone(), settings);
        let (connection, session) = link.open().await?;
        let now = runtime.monotonic();
        let task = Task {
            link,
            session: session.clone(),
            commands: receiver,
            own_commands: commands.downgrade(),
            under_way: VecDeque::new(),
            ping: None,
            last_sent: now,
            last_received: now,
            is_closed: is_closed.clone(),
        };
        drop(runtime.spawn("zookeeper session", task.run(connection)));
        Ok(Client { runtime: runtime.clone(), session, commands, is_closed })
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Sends a request and returns its response, which may report an error. If `watch` is set, the request sets a watch
    /// of this kind at this path.
    pub(crate) async fn send(
        &self,
        request: Request,
        watch: Option<(String, WatchKind)>,
    ) -> Result<Response, TreeError> {
        if !self.session.is_valid(self.runtime.monotonic()) {
            return Err(TreeError::SessionLost);
        }
        let (response, receiver) = oneshot::channel();
        let sent = self.commands.send(Command::Send(Sending { request, watch, response }));
        sent.map_err(|_| TreeError::SessionLost)?;
        tokio::select! {
            biased;
            () = self.session.lost() => Err(TreeError::SessionLost),
            response = receiver => response.unwrap_or(Err(TreeError::SessionLost)),
        }
    }

    /// Ends the session, and waits until the server has closed it.
    ///
    /// # Errors
    /// Returns [`TreeError::Disconnected`] if the server does not confirm this in time. The session then ends after its
    /// timeout.
    pub(crate) async fn close(&self) -> Result<(), TreeError> {
        let had_ended = !self.session.is_valid(self.runtime.monotonic());
        self.session.lose();
        // The task ends after the server's response, or without it.
        let has_ended = self.runtime.timeout(CLOSE_MAX, self.commands.closed()).await.is_some();
        if had_ended || (has_ended && self.is_closed.load(Ordering::Acquire)) {
            return Ok(());
        }
        Err(TreeError::Disconnected(
            "the ZooKeeper server did not confirm that it closed the session; the session expires after its timeout"
                .to_owned(),
        ))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.session.lose();
    }
}

/// Guard of the receiver of a watch. Its drop tells the task that the receiver no longer exists.
pub(crate) struct Watched {
    commands: mpsc::WeakUnboundedSender<Command>,
    path: String,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.upgrade() {
            let _session_has_ended = commands.send(Command::Dropped(std::mem::take(&mut self.path)));
        }
    }
}

/// Task of one session.
struct Task {
    link: Link,
    session: Session,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Requests without a response, in the order in which the client sent them.
    under_way: VecDeque<UnderWay>,
    /// Sending half for the guards of watches.
    own_commands: mpsc::WeakUnboundedSender<Command>,
    /// Instant at which the client sent a ping that has no response yet.
    ping: Option<Monotonic>,
    /// Instants at which the task last sent a request or a ping, and last received a response.
    last_sent: Monotonic,
    last_received: Monotonic,
    is_closed: Arc<AtomicBool>,
}

struct UnderWay {
    xid: i32,
    sent: Monotonic,
    watch: Option<(String, WatchKind)>,
    /// `None` if no caller waits for the response.
    response: Option<oneshot::Sender<Result<Response, TreeError>>>,
}

/// Reason why the task stops to use a connection.
enum End {
    Lost(String),
    /// The server has ended the session.
    Expired,
    /// The session has ended in this process.
    Closed,
}

impl Task {
    async fn run(mut self, mut connection: Connection) {
        let session = self.session.clone();
        loop {
            let end = tokio::select! {
                biased;
                () = session.lost() => End::Closed,
                end = self.serve(&mut connection) => end,
            };
            let cause = match end {
                End::Lost(cause) => cause,
                End::Expired => break,
                End::Closed => {
                    session.lose();
                    // The receivers of watches learn the end of the session before the server's response.
                    self.link.watches = Watches::default();
                    self.close(&mut connection).await;
                    break;
                }
            };
            self.session.suspend();
            tracing::warn!(session = %session.id(), cause, "lost the connection to ZooKeeper; reconnecting");
            self.fail_all(&cause);
            let runtime = self.link.runtime.clone();
            let reconnected = tokio::select! {
                biased;
                () = session.lost() => None,
                () = session.deadline_passed(&runtime) => None,
                connection = self.link.reconnect(&session) => connection,
            };
            let Some(next) = reconnected else { break };
            tracing::info!(session = %session.id(), "connected to ZooKeeper again");
            connection = next;
        }
        session.lose();
    }

    /// Exchanges messages on a connection until it is lost or the session has ended.
    async fn serve(&mut self, connection: &mut Connection) -> End {
        let runtime = self.link.runtime.clone();
        let period = self.session.timeout() / PINGS_PER_TIMEOUT;
        // After a reconnect, a ping renews the session at once.
        self.send_ping(connection);
        self.last_received = self.last_sent;
        loop {
            let now = runtime.monotonic();
            if !self.session.is_valid(now) {
                return End::Closed;
            }
            let oldest = self.under_way.front().map(|first| first.sent).into_iter().chain(self.ping).min();
            // A server that responds is slow, but not silent.
            let oldest = oldest.map(|oldest| oldest.max(self.last_received));
            if oldest.is_some_and(|oldest| now >= oldest + period * 2) {
                return End::Lost(format!("the server did not respond within {:?}", period * 2));
            }
            if oldest.is_some_and(|oldest| now >= oldest + period) {
                self.session.suspend();
            }
            if now >= self.last_sent + period {
                self.send_ping(connection);
            }
            let idle_until = self.last_sent + period;
            let late = oldest.map(|oldest| if now < oldest + period { oldest + period } else { oldest + period * 2 });
            let wake = [Some(idle_until), late, Some(self.session.deadline())].into_iter().flatten().min();
            let accepts = self.under_way.len() < UNDER_WAY_MAX && connection.queued_bytes() < QUEUED_BYTES_MAX;
            tokio::select! {
                biased;
                message = connection.exchange() => {
                    let message = message.map_err(|error| error.to_string());
                    let handled = message.and_then(|message| self.receive(connection, message));
                    match handled {
                        Ok(true) => {}
                        Ok(false) => return End::Expired,
                        Err(cause) => return End::Lost(cause),
                    }
                }
                command = self.commands.recv(), if accepts => {
                    let Some(command) = command else { return End::Closed };
                    self.command(connection, command);
                }
                () = runtime.sleep_until(wake.unwrap_or(idle_until)) => {}
            }
        }
    }

    fn send_ping(&mut self, connection: &mut Connection) {
        self.last_sent = self.link.runtime.monotonic();
        if self.ping.is_none() {
            self.ping = Some(self.last_sent);
            connection.queue(&Request::ping().message(xid::PING));
        }
    }

    fn command(&mut self, connection: &mut Connection, command: Command) {
        match command {
            Command::Send(Sending { request, watch, response }) => {
                if let Some((path, _)) = &watch {
                    self.link.watches.requested(path);
                }
                self.send(connection, &request, watch, Some(response));
            }
            Command::Dropped(path) => {
                if let Some(request) = self.link.watches.dropped(&path) {
                    self.send(connection, &request, None, None);
                }
            }
        }
    }

    fn send(
        &mut self,
        connection: &mut Connection,
        request: &Request,
        watch: Option<(String, WatchKind)>,
        response: Option<oneshot::Sender<Result<Response, TreeError>>>,
    ) {
        let xid = self.link.next_xid();
        connection.queue(&request.message(xid));
        self.last_sent = self.link.runtime.monotonic();
        self.under_way.push_back(UnderWay { xid, sent: self.last_sent, watch, response });
    }

    /// Handles a message of the server. Returns false if the server has ended the session.
    fn receive(&mut self, connection: &mut Connection, message: Bytes) -> Result<bool, String> {
        let malformed = |error: Malformed| error.to_string();
        let mut reader = Reader::new(message);
        let header = take_header(&mut reader).map_err(malformed)?;
        if header.xid == xid::EVENT {
            self.link.report(&mut reader, Watches::report).map_err(malformed)?;
            return Ok(true);
        }
        self.link.connect.zxid = self.link.connect.zxid.max(header.zxid);
        if matches!(header.code, code::SESSION_EXPIRED | code::SESSION_MOVED) {
            return Ok(false);
        }
        let now = self.link.runtime.monotonic();
        self.last_received = now;
        if header.xid == xid::PING {
            self.link.rounds = 0;
            if let Some(sent) = self.ping.take() {
                self.session.answered(now, sent);
            }
            return Ok(true);
        }
        let Some(UnderWay { xid, sent, watch, response }) = self.under_way.pop_front() else {
            return Err("the server responded to a request that this client has not sent".to_owned());
        };
        if xid != header.xid {
            return Err(format!("the server responded to request {} before request {xid}", header.xid));
        }
        self.session.answered(now, sent);
        let mut receiver = None;
        if let Some((path, kind)) = watch {
            let (watch, removal) = self.link.watches.answered(&path, set_by(kind, header.code));
            // If the caller is gone, the drop of the guard removes the watch.
            receiver = watch.map(|watch| (watch, Watched { commands: self.own_commands.clone(), path }));
            if let Some(request) = removal {
                self.send(connection, &request, None, None);
            }
        }
        if let Some(response) = response {
            let _caller_is_gone =
                response.send(Ok(Response { code: header.code, body: reader.rest(), watch: receiver }));
        }
        Ok(true)
    }

    /// Fails all requests under way: the server may have executed them, or may still execute them.
    fn fail_all(&mut self, cause: &str) {
        self.ping = None;
        for UnderWay { response, .. } in self.under_way.drain(..) {
            if let Some(response) = response {
                let _caller_is_gone = response.send(Err(TreeError::Disconnected(cause.to_owned())));
            }
        }
    }

    /// Closes the session on the server, which then deletes its ephemeral nodes at once.
    async fn close(&mut self, connection: &mut Connection) {
        let xid = self.link.next_xid();
        connection.queue(&Request::close().message(xid));
        let confirmed = async {
            loop {
                let message = connection.exchange().await.ok()?;
                let header = take_header(&mut Reader::new(message)).ok()?;
                if header.xid == xid {
                    return Some(());
                }
            }
        };
        let confirmed = self.link.runtime.timeout(CLOSE_MAX, confirmed).await.flatten();
        self.is_closed.store(confirmed.is_some(), Ordering::Release);
    }
}

/// Returns the kind of watch that a response has set.
fn set_by(requested: WatchKind, number: i32) -> Option<WatchKind> {
    match (requested, number) {
        // The server watches a missing node for its creation.
        (WatchKind::Exists, code::NO_NODE) => Some(WatchKind::Exists),
        (WatchKind::Exists, code::OK) => Some(WatchKind::Data),
        (kind, code::OK) => Some(kind),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
