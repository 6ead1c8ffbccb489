//! Opens a session, and connects it again after a lost connection.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::session::{Session, SessionId};
use coordination::tree::{Credentials, NodePath, SessionOptions, TreeError};
use runtime::Runtime;

use super::connection::{Connection, Server};
use super::jute::{Malformed, Reader};
use super::protocol::{self, Connect, Connected, EventKind, Header, Request, code, take_event, take_header, xid};
use super::sasl::{self, User};
use super::tls::{Tls, TlsError};
use super::watches::Watches;

/// Longest time for one attempt to connect to a server, including the response to the request for a session. In a
/// reconnect, the servers share half of the session's remaining time equally, but each has at least [`CONNECT_MIN`].
const CONNECT_MAX: Duration = Duration::from_secs(3);
const CONNECT_MIN: Duration = Duration::from_millis(200);
/// Longest time to open a new session.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(30);
/// Wait after the first round of attempts in which no server accepted the session. The wait doubles after each round.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between two rounds. A session whose timeout is shorter than 40 s waits for at most 1 / 50 of it.
const RETRY_MAX: Duration = Duration::from_millis(800);
const RETRIES_PER_TIMEOUT: u32 = 50;
const RETRY_MIN: Duration = Duration::from_millis(10);
/// Largest number of rounds of attempts to open a new session.
const OPEN_ROUNDS: u64 = 3;

/// Settings of a session.
pub(crate) struct Settings {
    pub(crate) servers: Vec<Server>,
    pub(crate) root: Option<NodePath>,
    /// TLS of the connections. `None` for connections without TLS.
    pub(crate) tls: Option<Tls>,
    /// User that each connection authenticates with SASL.
    pub(crate) user: Option<User>,
    pub(crate) options: SessionOptions,
}

/// Data that a reconnect needs.
pub(super) struct Link {
    pub(super) runtime: Runtime,
    settings: Settings,
    /// Number of the server to which the next attempt connects.
    next: usize,
    pub(super) connect: Connect,
    pub(super) watches: Watches,
    xid: i32,
    /// Number of rounds of attempts since the last connection on which the server answered a ping.
    pub(super) rounds: u32,
}

/// Reason why an attempt to connect failed.
enum Failed {
    /// Another attempt may succeed.
    Unreachable(String),
    /// This server and the client do not accept each other's certificate or user until an operator acts. Another server
    /// may accept the session.
    Insecure(String),
    /// The ensemble rejected the session for good.
    Rejected(TreeError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Unreachable(error.to_string())
    }
}

impl From<TlsError> for Failed {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Io(error) => error.into(),
            TlsError::Lasting(cause) => Failed::Insecure(cause),
        }
    }
}

impl From<Malformed> for Failed {
    fn from(error: Malformed) -> Self {
        Failed::Unreachable(error.to_string())
    }
}

impl Link {
    pub(super) fn new(runtime: Runtime, settings: Settings) -> Self {
        let millis = i32::try_from(settings.options.timeout.as_millis()).unwrap_or(i32::MAX);
        let connect = Connect { timeout_millis: millis, ..Connect::default() };
        let next = usize::try_from(runtime.random() % settings.servers.len().max(1) as u64).unwrap_or(0);
        Link { runtime, settings, next, connect, watches: Watches::default(), xid: 0, rounds: 0 }
    }

    /// Opens a new session on the first server that accepts it.
    pub(super) async fn open(&mut self) -> Result<(Connection, Session), TreeError> {
        let new = self.connect.clone();
        let mut causes = Vec::new();
        // The rounds fit into `OPEN_MAX` even if no server responds.
        let rounds =
            (OPEN_MAX.as_secs() / (CONNECT_MAX.as_secs() * u64::from(self.server_count()))).clamp(1, OPEN_ROUNDS);
        for round in 0..u32::try_from(rounds).unwrap_or(1) {
            if round > 0 {
                self.wait_after(round, self.settings.options.timeout).await;
            }
            causes.clear();
            let mut may_succeed = false;
            for _ in 0..self.server_count() {
                let sent = self.runtime.monotonic();
                let server = self.next_server();
                self.connect = new.clone();
                match self.attempt(&server, None).await {
                    Ok(connection) => {
                        let timeout = Duration::from_millis(u64::try_from(self.connect.timeout_millis).unwrap_or(0));
                        return Ok((connection, Session::new(SessionId(self.connect.id), timeout, sent)));
                    }
                    Err(Failed::Rejected(error)) => return Err(error),
                    Err(Failed::Unreachable(cause)) => {
                        may_succeed = true;
                        causes.push(format!("{server}: {cause}"));
                    }
                    Err(Failed::Insecure(cause)) => causes.push(format!("{server}: {cause}")),
                }
            }
            if !may_succeed {
                return Err(TreeError::Invalid(format!("cannot open a session on ZooKeeper: {}", causes.join("; "))));
            }
        }
        Err(TreeError::Disconnected(format!(
            "cannot open a session on ZooKeeper: {}; check the URL, and that the servers run",
            causes.join("; ")
        )))
    }

    fn server_count(&self) -> u32 {
        u32::try_from(self.settings.servers.len()).unwrap_or(u32::MAX).max(1)
    }

    fn next_server(&mut self) -> Server {
        let server = self.settings.servers[self.next % self.settings.servers.len()].clone();
        self.next = self.next.wrapping_add(1);
        server
    }

    /// Connects to a server, opens or continues the session, and sets its watches again.
    async fn attempt(&mut self, server: &Server, session: Option<&Session>) -> Result<Connection, Failed> {
        let (runtime, sent) = (self.runtime.clone(), self.runtime.monotonic());
        let limit = session.map_or(CONNECT_MAX, |session| {
            (session.deadline().since(sent) / 2 / self.server_count()).clamp(CONNECT_MIN, CONNECT_MAX)
        });
        let connecting = async {
            let tls = self.settings.tls.as_ref();
            let mut connection = Connection::open(&runtime, server, tls, limit).await?;
            connection.queue(&self.connect.message());
            let response = connection.exchange().await.map_err(|error| match tls {
                Some(tls) => tls.explain(error).into(),
                None if error.kind() == io::ErrorKind::UnexpectedEof => Failed::Unreachable(format!(
                    "{error} without a response; if the port is for TLS, use a URL that starts with zookeeper+tls://"
                )),
                None => error.into(),
            });
            Ok::<_, Failed>((Connected::decode(response?)?, connection))
        };
        let connected = runtime.timeout(limit, connecting).await;
        let no_response = || Failed::Unreachable(format!("no response within {limit:?}"));
        let (Connected { timeout_millis, id, password }, mut connection) = connected.ok_or_else(no_response)??;
        let timeout = Duration::from_millis(u64::try_from(timeout_millis).unwrap_or(0));
        // If a server shortens the timeout, it may end the session before the deadline in this process.
        let is_known = session.is_none_or(|session| id == session.id().0 && timeout >= session.timeout());
        if timeout.is_zero() || id == 0 || !is_known {
            return Err(Failed::Rejected(TreeError::SessionLost));
        }
        if let Some(session) = session {
            session.renewed(runtime.monotonic(), sent);
        }
        self.connect = Connect { timeout_millis, id, password, ..self.connect };
        self.prepare(&mut connection, timeout / 3).await?;
        Ok(connection)
    }

    /// Authenticates the user, sends the credentials and then the watches, and waits for the response to each step. A
    /// server that rejects a user or credentials closes the connection, so its response could be lost if the client
    /// sent more.
    async fn prepare(&mut self, connection: &mut Connection, silence_max: Duration) -> Result<(), Failed> {
        if let Some(user) = self.settings.user.clone() {
            self.authenticate(connection, &user, silence_max).await?;
        }
        let credentials = self.settings.options.credentials.iter().map(|Credentials { name, password }| {
            Request::auth("digest", format!("{name}:{password}").as_bytes()).message(xid::AUTH)
        });
        let credentials: Vec<_> = credentials.collect();
        self.confirm(connection, &credentials, silence_max).await?;
        let watches = self.watches.set_again(self.connect.zxid);
        let watches: Vec<_> = watches.iter().map(|request| request.message(xid::SET_WATCHES)).collect();
        self.confirm(connection, &watches, silence_max).await?;
        self.watches.report_gap();
        Ok(())
    }

    /// Authenticates the user with SASL.
    async fn authenticate(
        &mut self,
        connection: &mut Connection,
        user: &User,
        silence_max: Duration,
    ) -> Result<(), Failed> {
        let rejected = |reason: &str| Failed::Insecure(reason.to_owned());
        let nonce = format!("{:032x}", self.runtime.random_u128());
        let challenge = self.sasl(connection, &[], silence_max).await?;
        let response = sasl::respond(&challenge, user, &nonce).ok_or_else(|| rejected(NO_SASL))?;
        let proof = self.sasl(connection, &response.message, silence_max).await?;
        // A server that keeps clients in spite of a wrong password responds with an empty message
        // (`zookeeper.allowSaslFailedClients`).
        match &proof[..] {
            proof if *proof == *response.expected_proof.as_bytes() => Ok(()),
            [] => Err(rejected(WRONG_PASSWORD)),
            _ => Err(rejected(NO_PROOF)),
        }
    }

    /// Sends a message of SASL and returns the server's message.
    async fn sasl(
        &mut self,
        connection: &mut Connection,
        token: &[u8],
        silence_max: Duration,
    ) -> Result<Bytes, Failed> {
        connection.queue(&Request::sasl(token).message(xid::SASL));
        let (header, mut reader) = self.response(connection, silence_max).await?;
        match header.code {
            code::OK => Ok(reader.buffer()?),
            code::AUTH_FAILED | code::AUTHENTICATION_REQUIRED => Err(Failed::Insecure(WRONG_PASSWORD.to_owned())),
            code => Err(failed(code)),
        }
    }

    /// Sends the messages and waits for the responses.
    async fn confirm(
        &mut self,
        connection: &mut Connection,
        messages: &[Vec<u8>],
        silence_max: Duration,
    ) -> Result<(), Failed> {
        messages.iter().for_each(|message| connection.queue(message));
        for _ in messages {
            let (header, _) = self.response(connection, silence_max).await?;
            if header.code != code::OK {
                return Err(failed(header.code));
            }
        }
        Ok(())
    }

    /// Waits for the next response. Fails if no message arrives for `silence_max`.
    async fn response(
        &mut self,
        connection: &mut Connection,
        silence_max: Duration,
    ) -> Result<(Header, Reader), Failed> {
        loop {
            let message = self.runtime.timeout(silence_max, connection.exchange()).await;
            let no_response = || Failed::Unreachable(format!("no response within {silence_max:?}"));
            let mut reader = Reader::new(message.ok_or_else(no_response)??);
            let header = take_header(&mut reader)?;
            if header.xid != xid::EVENT {
                return Ok((header, reader));
            }
            // The streams get a gap afterwards, so they get none of the events before it.
            self.report(&mut reader, Watches::fire)?;
        }
    }

    /// Passes a watch event on to `report`. The change that caused the event may cause further events, so the number of
    /// the change does not count as seen.
    pub(super) fn report(
        &mut self,
        reader: &mut Reader,
        report: impl FnOnce(&mut Watches, EventKind, &str, &NodePath),
    ) -> Result<(), Malformed> {
        if let Some((kind, path)) = take_event(reader)? {
            // A path that the port cannot express belongs to another program.
            if let Some(seen) = below_root(self.settings.root.as_ref(), &path) {
                report(&mut self.watches, kind, &path, &seen);
            }
        }
        Ok(())
    }

    /// Waits after a number of rounds without a connection. A random part prevents that many clients connect at the
    /// same moment.
    async fn wait_after(&self, rounds: u32, timeout: Duration) {
        let longest = (timeout / RETRIES_PER_TIMEOUT).clamp(RETRY_MIN, RETRY_MAX);
        let wait = RETRY_FIRST.saturating_mul(1 << rounds.saturating_sub(1).min(10)).min(longest);
        let percent = u32::try_from(50 + self.runtime.random() % 51).unwrap_or(100);
        self.runtime.sleep(wait * percent / 100).await;
    }

    pub(super) fn next_xid(&mut self) -> i32 {
        self.xid = self.xid.checked_add(1).unwrap_or(1);
        self.xid
    }

    /// Tries all servers in turn until one of them continues the session. Returns `None` if the session has ended.
    pub(super) async fn reconnect(&mut self, session: &Session) -> Option<Connection> {
        loop {
            if self.rounds > 0 {
                self.wait_after(self.rounds, session.timeout()).await;
            }
            self.rounds += 1;
            for _ in 0..self.server_count() {
                let server = self.next_server();
                match self.attempt(&server, Some(session)).await {
                    Ok(connection) => return Some(connection),
                    Err(Failed::Rejected(error)) => {
                        tracing::warn!(%server, %error, "ZooKeeper has ended the session");
                        return None;
                    }
                    Err(Failed::Unreachable(cause) | Failed::Insecure(cause)) => {
                        tracing::debug!(%server, cause, "cannot connect to ZooKeeper");
                    }
                }
            }
        }
    }
}

/// Returns the reason for an error number of a server that does not accept the session.
fn failed(number: i32) -> Failed {
    match number {
        code::AUTH_FAILED | code::AUTHENTICATION_REQUIRED | code::UNIMPLEMENTED | code::SESSION_EXPIRED => {
            Failed::Rejected(protocol::error_of(number))
        }
        number => Failed::Unreachable(format!("the server responded with error {number}")),
    }
}

const NO_SASL: &str = "the ZooKeeper server does not authenticate users with DIGEST-MD5; remove the user from the URL, or \
                       configure the server's JAAS file with DigestLoginModule";
const WRONG_PASSWORD: &str = "the ZooKeeper server rejected the user in the URL or its password; check both, and the \
                              section `Server` of the server's JAAS file";
const NO_PROOF: &str = "the ZooKeeper server did not prove that it knows the user's password; check that the URL names \
                        the right server";

/// Converts a path of the server to a path below the root of the session. Returns `None` if the path is not valid.
pub(crate) fn below_root(root: Option<&NodePath>, path: &str) -> Option<NodePath> {
    let below = root.map_or(Some(path), |root| path.strip_prefix(root.as_str()))?;
    NodePath::new(if below.is_empty() { "/" } else { below }).ok()
}
