//! Conversions between the types of the port and those of the client library.

use coordination::tree::{
    Acl, CreateMode, Created, Done, Event, Expected, Grant, Identity, NodePath, Permissions, SessionId, Stat,
    TreeError, Zxid,
};
use instants::Timestamp;
use zookeeper_client as zk;

pub(crate) fn mode_of(mode: CreateMode) -> zk::CreateMode {
    match mode {
        CreateMode::Persistent => zk::CreateMode::Persistent,
        CreateMode::PersistentSequential => zk::CreateMode::PersistentSequential,
        CreateMode::Ephemeral => zk::CreateMode::Ephemeral,
        CreateMode::EphemeralSequential => zk::CreateMode::EphemeralSequential,
        CreateMode::Container => zk::CreateMode::Container,
    }
}

pub(crate) fn version_of(expected: Expected) -> Option<i32> {
    match expected {
        Expected::Any => None,
        Expected::Version(version) => Some(version),
    }
}

pub(crate) fn stat_of(stat: &zk::Stat) -> Stat {
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    Stat {
        created: Zxid(stat.czxid),
        modified: Zxid(stat.mzxid),
        children_modified: Zxid(stat.pzxid),
        version: stat.version,
        children_version: stat.cversion,
        acl_version: stat.aversion,
        owner: owner_of(stat.ephemeral_owner),
        data_bytes: count(stat.data_length),
        children: count(stat.num_children),
        created_at: Timestamp::from_millis(stat.ctime),
        modified_at: Timestamp::from_millis(stat.mtime),
    }
}

/// Converts the owner field of a stat. For a container, and for a node with a time to live, this field contains a
/// special value (`EphemeralType` in ZooKeeper).
fn owner_of(field: i64) -> Option<SessionId> {
    const CONTAINER: i64 = i64::MIN;
    (field != 0 && field != CONTAINER).then_some(SessionId(field))
}

/// Converts an access list of the port to an access list of ZooKeeper.
///
/// # Errors
/// Returns [`TreeError::InvalidAcl`] if the list grants nothing.
pub(crate) fn acls_of(acl: &Acl) -> Result<Vec<zk::Acl>, TreeError> {
    let creator = || zk::Acl::new(zk::Permission::ALL, zk::AuthId::new("auth", ""));
    let anyone = |permission| zk::Acl::new(permission, zk::AuthId::new("world", "anyone"));
    Ok(match acl {
        Acl::Open => vec![anyone(zk::Permission::ALL)],
        Acl::Creator => vec![creator()],
        Acl::CreatorReadable => vec![creator(), anyone(zk::Permission::READ)],
        Acl::Grants(grants) if grants.is_empty() => return Err(TreeError::InvalidAcl),
        Acl::Grants(grants) => grants
            .iter()
            .map(|Grant { to, permissions }| {
                let permission = permission_of(*permissions);
                match to {
                    Identity::Anyone => anyone(permission),
                    Identity::Digest(id) => zk::Acl::new(permission, zk::AuthId::new("digest", id)),
                }
            })
            .collect(),
    })
}

const PERMISSIONS: [(Permissions, zk::Permission); 5] = [
    (Permissions::READ, zk::Permission::READ),
    (Permissions::WRITE, zk::Permission::WRITE),
    (Permissions::CREATE, zk::Permission::CREATE),
    (Permissions::DELETE, zk::Permission::DELETE),
    (Permissions::ADMIN, zk::Permission::ADMIN),
];

fn permission_of(permissions: Permissions) -> zk::Permission {
    let granted = PERMISSIONS.iter().filter(|(ours, _)| permissions.has(*ours));
    granted.fold(zk::Permission::NONE, |all, (_, theirs)| all | *theirs)
}

/// Converts an access list of ZooKeeper to grants of the port. Drops the entries whose authentication scheme the port
/// does not support.
pub(crate) fn grants_of(acls: &[zk::Acl]) -> Vec<Grant> {
    let permissions = |acl: &zk::Acl| {
        let granted = PERMISSIONS.iter().filter(|(_, theirs)| acl.permission().has(*theirs));
        granted.fold(Permissions::from_bits(0), |all, (ours, _)| all.and(*ours))
    };
    let identity = |acl: &zk::Acl| match (acl.scheme(), acl.id()) {
        ("world", "anyone") => Some(Identity::Anyone),
        ("digest", id) => Some(Identity::Digest(id.to_owned())),
        _ => None,
    };
    acls.iter().filter_map(|acl| Some(Grant { to: identity(acl)?, permissions: permissions(acl) })).collect()
}

/// Converts a watch event of ZooKeeper to an event of the port. Returns `None` for events about the session and for
/// invalid paths.
pub(crate) fn event_of(event: &zk::WatchedEvent) -> Option<Event> {
    let path = NodePath::new(&event.path).ok();
    Some(match event.event_type {
        zk::EventType::Session => return None,
        zk::EventType::NodeCreated => Event::Created(path?),
        zk::EventType::NodeDeleted => Event::Deleted(path?),
        zk::EventType::NodeDataChanged => Event::Changed(path?),
        zk::EventType::NodeChildrenChanged => Event::ChildrenChanged(path?),
    })
}

pub(crate) fn done_of(done: zk::MultiWriteResult) -> Result<Done, TreeError> {
    Ok(match done {
        zk::MultiWriteResult::Check => Done::Check,
        zk::MultiWriteResult::Delete => Done::Delete,
        zk::MultiWriteResult::SetData { stat } => Done::Set(stat_of(&stat)),
        zk::MultiWriteResult::Create { path, stat } => {
            let path = NodePath::new(&path).map_err(|error| TreeError::Invalid(error.to_string()))?;
            Done::Create(Created { path, stat: stat_of(&stat) })
        }
        other => {
            return Err(TreeError::Disconnected(format!(
                "unexpected result of a multi from the ZooKeeper library: {other:?}"
            )));
        }
    })
}

pub(crate) fn error_of(error: zk::Error) -> TreeError {
    match error {
        zk::Error::NoNode => TreeError::NoNode,
        zk::Error::NodeExists => TreeError::NodeExists,
        zk::Error::BadVersion => TreeError::BadVersion,
        zk::Error::NotEmpty => TreeError::NotEmpty,
        zk::Error::NoChildrenForEphemerals => TreeError::NoChildrenForEphemerals,
        zk::Error::NoAuth => TreeError::Forbidden,
        zk::Error::InvalidAcl => TreeError::InvalidAcl,
        zk::Error::BadArguments(reason) => TreeError::Invalid((*reason).to_owned()),
        zk::Error::QuotaExceeded => {
            TreeError::Invalid("the request exceeds a quota of the ZooKeeper server; increase the quota".to_owned())
        }
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed | zk::Error::AuthFailed => {
            TreeError::SessionLost
        }
        other => TreeError::Disconnected(other.to_string()),
    }
}
