//! Requests and responses of ZooKeeper's protocol, from version 3.6 on.

use bytes::Bytes;
use coordination::tree::{CreateMode, SessionId, Stat, TreeError, Zxid};
use instants::Timestamp;

use super::jute::{Malformed, Reader, Writer};

/// Numbers of the requests (`ZooDefs.OpCode`).
pub(crate) mod op {
    pub(crate) const CREATE: i32 = 1;
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const GET_ACL: i32 = 6;
    pub(crate) const SET_ACL: i32 = 7;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN_AND_STAT: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE_AND_STAT: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const SET_AUTH: i32 = 100;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const GET_EPHEMERALS: i32 = 103;
    pub(crate) const SET_WATCHES: i32 = 105;
    pub(crate) const ADD_WATCH: i32 = 106;
    pub(crate) const CLOSE: i32 = -11;
    pub(crate) const ERROR: i32 = -1;
}

/// Message numbers that do not count requests.
pub(crate) mod xid {
    pub(crate) const EVENT: i32 = -1;
    pub(crate) const PING: i32 = -2;
    pub(crate) const AUTH: i32 = -4;
    pub(crate) const SET_WATCHES: i32 = -8;
    pub(crate) const SASL: i32 = 0;
}

/// Numbers of the errors (`KeeperException.Code`).
pub(crate) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const RUNTIME_INCONSISTENCY: i32 = -2;
    pub(crate) const MARSHALLING: i32 = -5;
    pub(crate) const UNIMPLEMENTED: i32 = -6;
    pub(crate) const BAD_ARGUMENTS: i32 = -8;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const NOT_EMPTY: i32 = -111;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const INVALID_ACL: i32 = -114;
    pub(crate) const AUTH_FAILED: i32 = -115;
    pub(crate) const SESSION_MOVED: i32 = -118;
    pub(crate) const AUTHENTICATION_REQUIRED: i32 = -124;
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
}

/// Recursive mode of [`op::ADD_WATCH`].
const PERSISTENT_RECURSIVE: i32 = 1;
/// Type of [`op::REMOVE_WATCHES`] that removes all watches of this session on a path.
const ANY_WATCH: i32 = 3;

/// Request with its number and its encoded body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) op: i32,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(op: i32, body: Writer) -> Self {
        Request { op, body: body.finish() }
    }

    pub(crate) fn ping() -> Self {
        Request::new(op::PING, Writer::default())
    }

    pub(crate) fn close() -> Self {
        Request::new(op::CLOSE, Writer::default())
    }

    /// Request whose body is a path.
    pub(crate) fn path(op: i32, path: &str) -> Self {
        Request::new(op, Writer::default().text(path))
    }

    /// Request that reads the node at `path`, and sets a watch if `watch` is true.
    pub(crate) fn read(op: i32, path: &str, watch: bool) -> Self {
        Request::new(op, Writer::default().text(path).bool(watch))
    }

    pub(crate) fn create(path: &str, data: &[u8], mode: CreateMode, acl: &[WireAcl]) -> Self {
        let (op, flags) = match mode {
            CreateMode::Persistent => (op::CREATE_AND_STAT, 0),
            CreateMode::Ephemeral => (op::CREATE_AND_STAT, 1),
            CreateMode::PersistentSequential => (op::CREATE_AND_STAT, 2),
            CreateMode::EphemeralSequential => (op::CREATE_AND_STAT, 3),
            CreateMode::Container => (op::CREATE_CONTAINER, 4),
        };
        Request::new(op, with_acl(Writer::default().text(path).buffer(data), acl).int(flags))
    }

    pub(crate) fn set(path: &str, data: &[u8], version: i32) -> Self {
        Request::new(op::SET_DATA, Writer::default().text(path).buffer(data).int(version))
    }

    /// Request for a delete or a check of a version.
    pub(crate) fn versioned(op: i32, path: &str, version: i32) -> Self {
        Request::new(op, Writer::default().text(path).int(version))
    }

    pub(crate) fn set_acl(path: &str, acl: &[WireAcl]) -> Self {
        Request::new(op::SET_ACL, with_acl(Writer::default().text(path), acl).int(ANY_VERSION))
    }

    pub(crate) fn watch_all(path: &str) -> Self {
        Request::new(op::ADD_WATCH, Writer::default().text(path).int(PERSISTENT_RECURSIVE))
    }

    pub(crate) fn remove_watches(path: &str) -> Self {
        Request::new(op::REMOVE_WATCHES, Writer::default().text(path).int(ANY_WATCH))
    }

    pub(crate) fn auth(scheme: &str, secret: &[u8]) -> Self {
        Request::new(op::SET_AUTH, Writer::default().int(0).text(scheme).buffer(secret))
    }

    pub(crate) fn sasl(token: &[u8]) -> Self {
        Request::new(op::SASL, Writer::default().buffer(token))
    }

    pub(crate) fn multi(steps: &[Request]) -> Self {
        let header = |body: Writer, op, is_end| body.int(op).bool(is_end).int(-1);
        let body = steps.iter().fold(Writer::default(), |body, step| header(body, step.op, false).raw(&step.body));
        Request::new(op::MULTI, header(body, -1, true))
    }

    /// Returns the message of this request.
    pub(crate) fn message(&self, xid: i32) -> Vec<u8> {
        Writer::default().int(xid).int(self.op).raw(&self.body).finish()
    }
}

/// Version that matches every version of a node.
pub(crate) const ANY_VERSION: i32 = -1;

/// Entry of an access list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WireAcl {
    pub(crate) permissions: i32,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

fn with_acl(body: Writer, acl: &[WireAcl]) -> Writer {
    let entry = |body: Writer, entry: &WireAcl| body.int(entry.permissions).text(&entry.scheme).text(&entry.id);
    acl.iter().fold(body.count(acl.len()), entry)
}

pub(crate) fn take_acl(reader: &mut Reader) -> Result<Vec<WireAcl>, Malformed> {
    reader.list(|reader| Ok(WireAcl { permissions: reader.int()?, scheme: reader.text()?, id: reader.text()? }))
}

/// Takes the versions, times and sizes of a node.
pub(crate) fn take_stat(reader: &mut Reader) -> Result<Stat, Malformed> {
    let (created, modified) = (Zxid(reader.long()?), Zxid(reader.long()?));
    let (created_at, modified_at) = (reader.long()?, reader.long()?);
    let (version, children_version, acl_version) = (reader.int()?, reader.int()?, reader.int()?);
    let owner = owner_of(reader.long()?);
    let (data_bytes, children) = (count_of(reader.int()?), count_of(reader.int()?));
    Ok(Stat {
        created,
        modified,
        children_modified: Zxid(reader.long()?),
        version,
        children_version,
        acl_version,
        owner,
        data_bytes,
        children,
        created_at: Timestamp::from_millis(created_at),
        modified_at: Timestamp::from_millis(modified_at),
    })
}

/// Converts the owner field of a stat. For a container, and for a node with a time to live, this field contains a
/// special value (`EphemeralType` in ZooKeeper).
fn owner_of(field: i64) -> Option<SessionId> {
    const CONTAINER: i64 = i64::MIN;
    const TIME_TO_LIVE: u8 = 0xff;
    let is_session = field != 0 && field != CONTAINER && field.to_be_bytes()[0] != TIME_TO_LIVE;
    is_session.then_some(SessionId(field))
}

fn count_of(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Number of bytes of an encoded stat.
const STAT_BYTES: usize = 68;

/// Request for a session. `id` is 0 and `password` is empty for a new session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connect {
    pub(crate) zxid: i64,
    pub(crate) timeout_millis: i32,
    pub(crate) id: i64,
    pub(crate) password: Bytes,
}

impl Connect {
    pub(crate) fn message(&self) -> Vec<u8> {
        let body = Writer::default().int(0).long(self.zxid).int(self.timeout_millis).long(self.id);
        body.buffer(&self.password).bool(false).finish()
    }
}

/// Response to [`Connect`].
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    /// 0 if the session has expired.
    pub(crate) timeout_millis: i32,
    pub(crate) id: i64,
    pub(crate) password: Bytes,
}

impl Connected {
    pub(crate) fn decode(message: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(message);
        let _protocol = reader.int()?;
        Ok(Connected { timeout_millis: reader.int()?, id: reader.long()?, password: reader.buffer()? })
    }
}

/// Header of every message of a server after [`Connected`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) code: i32,
}

pub(crate) fn take_header(reader: &mut Reader) -> Result<Header, Malformed> {
    Ok(Header { xid: reader.int()?, zxid: reader.long()?, code: reader.int()? })
}

/// Kind of a watch event (`Watcher.Event.EventType`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventKind {
    Created,
    Deleted,
    Changed,
    ChildrenChanged,
}

/// Decodes a watch event. Returns `None` for an event that is not about a node.
pub(crate) fn take_event(reader: &mut Reader) -> Result<Option<(EventKind, String)>, Malformed> {
    let kind = match reader.int()? {
        1 => EventKind::Created,
        2 => EventKind::Deleted,
        3 => EventKind::Changed,
        4 => EventKind::ChildrenChanged,
        _ => return Ok(None),
    };
    let _state = reader.int()?;
    Ok(Some((kind, reader.text()?)))
}

/// Result of one step of a multi.
pub(crate) enum Step {
    Check,
    Delete,
    Set(Stat),
    Create(String, Stat),
    /// Error of this step. If its number is [`code::OK`] or [`code::RUNTIME_INCONSISTENCY`], another step has failed.
    Error(i32),
}

pub(crate) fn take_steps(reader: &mut Reader) -> Result<Vec<Step>, Malformed> {
    let mut steps = Vec::new();
    loop {
        let (op, is_end, _code) = (reader.int()?, reader.bool()?, reader.int()?);
        if is_end {
            return Ok(steps);
        }
        steps.push(match op {
            op::CHECK => Step::Check,
            op::DELETE => Step::Delete,
            op::SET_DATA => Step::Set(take_stat(reader)?),
            // Servers before 3.9 return no stat for the nodes that a multi created.
            op::CREATE => {
                let path = reader.text()?;
                Step::Create(path, take_stat(&mut Reader::new(Bytes::from_static(&[0; STAT_BYTES])))?)
            }
            op::CREATE_AND_STAT | op::CREATE_CONTAINER => Step::Create(reader.text()?, take_stat(reader)?),
            op::ERROR => Step::Error(reader.int()?),
            _ => return Err(Malformed),
        });
    }
}

/// Returns the error for an error number of a server.
pub(crate) fn error_of(number: i32) -> TreeError {
    match number {
        code::NO_NODE => TreeError::NoNode,
        code::NODE_EXISTS => TreeError::NodeExists,
        code::BAD_VERSION => TreeError::BadVersion,
        code::NOT_EMPTY => TreeError::NotEmpty,
        code::NO_CHILDREN_FOR_EPHEMERALS => TreeError::NoChildrenForEphemerals,
        code::NO_AUTH => TreeError::Forbidden,
        code::INVALID_ACL => TreeError::InvalidAcl,
        code::SESSION_EXPIRED | code::SESSION_MOVED => TreeError::SessionLost,
        code::QUOTA_EXCEEDED => {
            TreeError::Invalid("the request exceeds a quota of the ZooKeeper server; increase the quota".to_owned())
        }
        code::BAD_ARGUMENTS | code::MARSHALLING => {
            TreeError::Invalid(format!("the ZooKeeper server rejected the arguments of the request (error {number})"))
        }
        code::UNIMPLEMENTED => TreeError::Invalid(TOO_OLD.to_owned()),
        code::AUTH_FAILED => TreeError::Invalid(
            "the ZooKeeper server rejected the credentials; check the credentials file and the server's authentication"
                .to_owned(),
        ),
        code::AUTHENTICATION_REQUIRED => TreeError::Invalid(
            "the ZooKeeper server requires authentication; add a user to the URL (zookeeper+tls://USER@HOST), and give \
             its password"
                .to_owned(),
        ),
        number => TreeError::Disconnected(format!("the ZooKeeper server responded with error {number}")),
    }
}

/// Error text for a server that does not know a request of this client.
pub(crate) const TOO_OLD: &str =
    "the ZooKeeper server is older than version 3.6, which Reveille needs; upgrade the server";
