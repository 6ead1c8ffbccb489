//! Who may do what with a node.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::TreeError;

/// What a node's creator says of it; it holds for the node alone, not for those below.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Acl {
    /// Everybody may do everything: ZooKeeper's `world:anyone:cdrwa`, and Petting Zoo's layout.
    Open,
    /// Its creator, known by the name and password that its session gave, may do everything, and all others nothing: ZooKeeper's
    /// `auth`. A session that gave none is refused.
    Creator,
    /// Everybody may read; its creator may do everything.
    CreatorReadable,
    /// Not empty.
    Grants(Vec<Grant>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    pub to: Identity,
    pub permissions: Permissions,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Identity {
    Anyone,
    /// As [`Credentials::identity`] makes it: a name, `:`, and Base64 of SHA-1 of `name:password`, as ZooKeeper's scheme `digest`
    /// has it.
    Digest(String),
}

/// A set of what may be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(u8);

impl Permissions {
    pub const READ: Permissions = Permissions(1);
    pub const WRITE: Permissions = Permissions(2);
    /// Of children.
    pub const CREATE: Permissions = Permissions(4);
    /// Of children.
    pub const DELETE: Permissions = Permissions(8);
    /// To change the list itself.
    pub const ADMIN: Permissions = Permissions(16);
    pub const ALL: Permissions = Permissions(31);

    #[must_use]
    pub const fn and(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }

    #[must_use]
    pub const fn has(self, wanted: Permissions) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// As ZooKeeper numbers them.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Bits that mean nothing are passed over.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Permissions {
        Permissions(bits & Self::ALL.0)
    }
}

/// As ZooKeeper's tools write it: `cdrwa`.
impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters =
            [(Self::CREATE, 'c'), (Self::DELETE, 'd'), (Self::READ, 'r'), (Self::WRITE, 'w'), (Self::ADMIN, 'a')];
        letters.iter().filter(|(permission, _)| self.has(*permission)).try_for_each(|(_, letter)| write!(f, "{letter}"))
    }
}

/// What a session says of itself, to the engine alone. A password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    pub password: String,
}

impl Credentials {
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
    /// What it says when it was made by one who is known as `creator`.
    ///
    /// # Errors
    /// [`TreeError::InvalidAcl`] if nobody would be granted anything, or that is nobody and matters.
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

/// Whether one who is known as `identities` may do `wanted`.
#[must_use]
pub fn allows(grants: &[Grant], identities: &[Identity], wanted: Permissions) -> bool {
    let is_meant = |to: &Identity| *to == Identity::Anyone || identities.contains(to);
    grants.iter().any(|grant| grant.permissions.has(wanted) && is_meant(&grant.to))
}

/// For engines: a node's list as it is told to who is known as `identities`.
///
/// # Errors
/// [`TreeError::Forbidden`] if they may neither read the node nor change its list.
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

    /// From ZooKeeper's own documentation of `DigestAuthenticationProvider`.
    #[test]
    fn a_digest_is_zookeepers() {
        let credentials = Credentials { name: "super".to_owned(), password: "admin".to_owned() };
        assert_eq!(credentials.identity(), Identity::Digest("super:xQJmxLMiHGwaqBvst5y6rkB6HQs=".to_owned()));
        assert!(!format!("{credentials:?}").contains("admin"));
    }

    #[test]
    fn nobody_has_nothing_of_their_own() {
        assert_eq!(Acl::Creator.grants(&[]), Err(TreeError::InvalidAcl));
        assert_eq!(Acl::CreatorReadable.grants(&[]), Err(TreeError::InvalidAcl));
        assert_eq!(Acl::Grants(Vec::new()).grants(&[]), Err(TreeError::InvalidAcl));
    }

    #[test]
    fn who_is_granted_what_may_do_that() {
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
