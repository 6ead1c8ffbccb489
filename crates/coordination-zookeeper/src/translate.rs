//! Conversions between the types of the port and those of ZooKeeper's protocol.

use coordination::tree::{
    Acl, Created, Done, Expected, Grant, Identity, NodePath, Permissions, SessionOptions, Stat, TreeError,
};

use crate::client::below_root;
use crate::client::protocol::{ANY_VERSION, Step, WireAcl, error_of};

pub(crate) fn version_of(expected: Expected) -> i32 {
    match expected {
        Expected::Any => ANY_VERSION,
        Expected::Version(version) => version,
    }
}

/// Returns the entries that stand for the creator of a node in an access list. There are none if the session has no
/// credentials.
///
/// ZooKeeper's scheme `auth` stands for all identities of the connection. If the server also knows the client by a user
/// or a certificate, this function lists the credentials instead, because other groups may use the same user or
/// certificate. Otherwise the scheme `auth` also works with servers that have another digest than SHA-1
/// (`DigestAuthenticationProvider.digestAlg`).
pub(crate) fn creator_acl(options: &SessionOptions, identifies_client: bool) -> Vec<WireAcl> {
    match &options.credentials[..] {
        [] => Vec::new(),
        credentials if identifies_client => {
            credentials.iter().map(|each| entry(&each.identity(), Permissions::ALL)).collect()
        }
        _ => vec![WireAcl { permissions: bits_of(Permissions::ALL), scheme: "auth".to_owned(), id: String::new() }],
    }
}

/// Converts an access list of the port to an access list of ZooKeeper. `creator` is the value of [`creator_acl`]. The
/// result is empty if the list grants nothing, or if it needs the creator's identities and the creator has none. The
/// server rejects an empty list, after it has checked the earlier steps of the same multi.
pub(crate) fn acls_of(acl: &Acl, creator: &[WireAcl]) -> Vec<WireAcl> {
    match acl {
        Acl::Open => vec![entry(&Identity::Anyone, Permissions::ALL)],
        Acl::Creator | Acl::CreatorReadable if creator.is_empty() => Vec::new(),
        Acl::Creator => creator.to_vec(),
        Acl::CreatorReadable => [creator, &[entry(&Identity::Anyone, Permissions::READ)]].concat(),
        Acl::Grants(grants) => grants.iter().map(|grant| entry(&grant.to, grant.permissions)).collect(),
    }
}

fn entry(to: &Identity, permissions: Permissions) -> WireAcl {
    let (scheme, id) = match to {
        Identity::Anyone => ("world", "anyone"),
        Identity::Digest(id) => ("digest", id.as_str()),
    };
    WireAcl { permissions: bits_of(permissions), scheme: scheme.to_owned(), id: id.to_owned() }
}

/// Permissions of the port and their bits in ZooKeeper's protocol (`ZooDefs.Perms`).
const PERMISSIONS: [(Permissions, i32); 5] = [
    (Permissions::READ, 1),
    (Permissions::WRITE, 1 << 1),
    (Permissions::CREATE, 1 << 2),
    (Permissions::DELETE, 1 << 3),
    (Permissions::ADMIN, 1 << 4),
];

fn bits_of(permissions: Permissions) -> i32 {
    PERMISSIONS.iter().filter(|(ours, _)| permissions.has(*ours)).fold(0, |all, (_, bit)| all | bit)
}

/// Converts an access list of ZooKeeper to grants of the port. Drops the entries whose authentication scheme the port
/// does not support.
pub(crate) fn grants_of(acls: &[WireAcl]) -> Vec<Grant> {
    let permissions = |acl: &WireAcl| {
        let granted = PERMISSIONS.iter().filter(|(_, bit)| acl.permissions & bit != 0);
        granted.fold(Permissions::from_bits(0), |all, (ours, _)| all.and(*ours))
    };
    let identity = |acl: &WireAcl| match (acl.scheme.as_str(), acl.id.as_str()) {
        ("world", "anyone") => Some(Identity::Anyone),
        ("digest", id) => Some(Identity::Digest(id.to_owned())),
        _ => None,
    };
    acls.iter().filter_map(|acl| Some(Grant { to: identity(acl)?, permissions: permissions(acl) })).collect()
}

/// Returns the node that the server has created at `path`, as a session with this root sees it.
///
/// # Errors
/// Returns an error if the port cannot express the path.
pub(crate) fn created_of(root: Option<&NodePath>, path: &str, stat: Stat) -> Result<Created, TreeError> {
    let path = below_root(root, path).ok_or_else(|| {
        TreeError::Invalid(format!("the server created the node {path}, whose path is not valid or is too long"))
    })?;
    Ok(Created { path, stat })
}

/// Converts the result of a step of a multi.
pub(crate) fn done_of(root: Option<&NodePath>, step: Step) -> Result<Done, TreeError> {
    Ok(match step {
        Step::Check => Done::Check,
        Step::Delete => Done::Delete,
        Step::Set(stat) => Done::Set(stat),
        Step::Create(path, stat) => Done::Create(created_of(root, &path, stat)?),
        Step::Error(number) => return Err(error_of(number)),
    })
}
