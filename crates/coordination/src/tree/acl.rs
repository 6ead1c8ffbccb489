//! Access lists of nodes.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::TreeError;

/// Access list that the creator of a node requests. It applies only to the node, and not to the nodes below it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Acl {
    /// Grants every permission to every session, like ZooKeeper's `world:anyone:cdrwa`. The library Petting Zoo uses
    /// this list.
    Open,
    /// Grants every permission to sessions with the creator's credentials and none to other sessions, like ZooKeeper's
    /// `auth`. The engine rejects this list if the creator's session has no credentials.
    Creator,
    /// Grants every permission to sessions with the creator's credentials. All other sessions get only the permission
    /// to read.
    CreatorReadable,
    /// Grants the listed permissions. The list must not be empty.
    Grants(Vec<Grant>),
}

/// Entry of an access list. It gives permissions on one node to one identity.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// Identity that receives the permissions.
    pub to: Identity,
    /// Permissions that the identity receives on the node.
    pub permissions: Permissions,
}

/// Identity to which an access list grants permissions. Several sessions may have the same identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Identity {
    /// Identity of every session, including sessions without credentials.
    Anyone,
    /// Identity from [`Credentials::identity`]. Its text is `name:digest`, as in ZooKeeper's scheme `digest`. The
    /// digest is the SHA-1 hash of `name:password` in Base64.
    Digest(String),
}

/// Set of permissions on a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(u8);

impl Permissions {
    /// Permission to read the data, the list of children, and the access list without digests.
    pub const READ: Permissions = Permissions(1);
    /// Permission to replace the data.
    pub const WRITE: Permissions = Permissions(2);
    /// Permission to create children.
    pub const CREATE: Permissions = Permissions(4);
    /// Permission to delete children.
    pub const DELETE: Permissions = Permissions(8);
    /// Permission to change the access list.
    pub const ADMIN: Permissions = Permissions(16);
    /// All five permissions.
    pub const ALL: Permissions = Permissions(31);

    /// Returns the union of this set and `other`.
    #[must_use]
    pub const fn and(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }

    /// Returns true if this set contains all `wanted` permissions.
    #[must_use]
    pub const fn has(self, wanted: Permissions) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns the set as a bit mask. Each permission has the same bit as in ZooKeeper.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Creates a set from a bit mask. Each permission has the same bit as in ZooKeeper. Ignores unknown bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Permissions {
        Permissions(bits & Self::ALL.0)
    }
}

/// Formats the set like ZooKeeper's tools, for example as `cdrwa`.
impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters =
            [(Self::CREATE, 'c'), (Self::DELETE, 'd'), (Self::READ, 'r'), (Self::WRITE, 'w'), (Self::ADMIN, 'a')];
        letters.iter().filter(|(permission, _)| self.has(*permission)).try_for_each(|(_, letter)| write!(f, "{letter}"))
    }
}

/// Name and password that a session gives to the engine. The debug text does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the identity. It is visible in the access lists that contain the identity.
    pub name: String,
    /// Password. An access list contains only a digest of the name and the password.
    pub password: String,
}

impl Credentials {
    /// Returns the identity of a session with these credentials. A [`Grant`] can contain this identity.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let digest = Sha1::digest(format!("{}:{}", self.name, self.password));
        Identity::Digest(format!("{}:{}", self.name, STANDARD.encode(digest)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Acl {
    /// Returns the grants of this access list for a creator with the identities `creator`.
    ///
    /// # Errors
    /// Returns [`TreeError::InvalidAcl`] if the list grants nothing, or if it needs the creator's identities and the
    /// creator has none.
    pub fn grants(&self, creator: &[Identity]) -> Result<Vec<Grant>, TreeError> {
        let anyone = |permissions| Grant { to: Identity::Anyone, permissions };
        let own = || creator.iter().map(|to| Grant { to: to.clone(), permissions: Permissions::ALL });
        match self {
            Acl::Open => Ok(vec![anyone(Permissions::ALL)]),
            Acl::Creator | Acl::CreatorReadable if creator.is_empty() => Err(TreeError::InvalidAcl),
            Acl::Creator => Ok(own().collect()),
            Acl::CreatorReadable => Ok(own().chain([anyone(Permissions::READ)]).collect()),
            Acl::Grants(grants) if grants.is_empty() => Err(TreeError::InvalidAcl),
            Acl::Grants(grants) => Ok(grants.clone()),
        }
    }
}

/// Returns true if one of the `grants` gives all `wanted` permissions to a session with these `identities`.
#[must_use]
pub fn allows(grants: &[Grant], identities: &[Identity], wanted: Permissions) -> bool {
    let applies = |to: &Identity| *to == Identity::Anyone || identities.contains(to);
    grants.iter().any(|grant| grant.permissions.has(wanted) && applies(&grant.to))
}

/// Returns the access list of a node in the form that a session with these `identities` may see. Engines call this
/// function.
///
/// # Errors
/// Returns [`TreeError::Forbidden`] if the session may neither read the node nor change its access list.
pub fn shown(mut grants: Vec<Grant>, identities: &[Identity]) -> Result<Vec<Grant>, TreeError> {
    if allows(&grants, identities, Permissions::ADMIN) {
        return Ok(grants);
    }
    if !allows(&grants, identities, Permissions::READ) {
        return Err(TreeError::Forbidden);
    }
    for grant in &mut grants {
        if let Identity::Digest(digest) = &mut grant.to {
            let name = digest.split(':').next().unwrap_or_default();
            *digest = format!("{name}:x");
        }
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected digest is from ZooKeeper's documentation of `DigestAuthenticationProvider`.
    #[test]
    fn password_digest_equals_the_digest_that_zookeeper_computes() {
        let credentials = Credentials { name: "super".to_owned(), password: "admin".to_owned() };
        assert_eq!(credentials.identity(), Identity::Digest("super:xQJmxLMiHGwaqBvst5y6rkB6HQs=".to_owned()));
        assert!(!format!("{credentials:?}").contains("admin"));
    }

    #[test]
    fn creator_access_list_is_invalid_if_the_client_has_no_credentials() {
        assert_eq!(Acl::Creator.grants(&[]), Err(TreeError::InvalidAcl));
        assert_eq!(Acl::CreatorReadable.grants(&[]), Err(TreeError::InvalidAcl));
        assert_eq!(Acl::Grants(Vec::new()).grants(&[]), Err(TreeError::InvalidAcl));
    }

    #[test]
    fn access_list_lets_the_creator_do_everything_and_others_only_read() {
        let (a, b) = (Identity::Digest("a:x".to_owned()), Identity::Digest("b:y".to_owned()));
        let grants = Acl::CreatorReadable.grants(std::slice::from_ref(&a)).unwrap();
        assert!(allows(&grants, &[a], Permissions::ALL));
        assert!(
            allows(&grants, std::slice::from_ref(&b), Permissions::READ) && allows(&grants, &[], Permissions::READ)
        );
        assert!(!allows(&grants, &[b], Permissions::READ.and(Permissions::WRITE)));
        assert_eq!(format!("{:?}", Permissions::ALL), "cdrwa");
        assert_eq!(Permissions::from_bits(0xff), Permissions::ALL);
    }
}
