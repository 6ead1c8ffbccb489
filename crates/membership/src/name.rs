//! Names of members and of claims.

use std::fmt;

use domain::ShardId;
use runtime::Runtime;

/// Id of a member. A process uses a new id for every session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u128);

impl MemberId {
    #[must_use]
    pub fn random(runtime: &Runtime) -> Self {
        MemberId(runtime.random_u128())
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name of a claim, for example "shard/17" or "leader": `[A-Za-z0-9_./-]{1,128}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimName(Box<str>);

impl ClaimName {
    pub const LEN_MAX: usize = 128;

    /// Creates a name from `text`.
    ///
    /// # Errors
    /// Returns [`ClaimNameError`] if `text` does not match `[A-Za-z0-9_./-]{1,128}`.
    pub fn new(text: &str) -> Result<Self, ClaimNameError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
        if text.is_empty() || text.len() > Self::LEN_MAX {
            return Err(ClaimNameError::Length(text.len()));
        }
        match text.char_indices().find(|(_, c)| !is_allowed(*c)) {
            Some((at, found)) => Err(ClaimNameError::Character { at, found }),
            None => Ok(ClaimName(text.into())),
        }
    }

    /// Returns the name of a shard's claim, for example "shard/17" for shard 17.
    #[must_use]
    pub fn shard(shard: ShardId) -> Self {
        ClaimName(format!("shard/{}", shard.0).into_boxed_str())
    }

    /// Returns the name "leader". The member that holds this claim performs cluster-wide tasks.
    #[must_use]
    pub fn leader() -> Self {
        ClaimName("leader".into())
    }

    /// Returns the shard whose claim has this name. Returns `None` if no shard's claim has this name.
    #[must_use]
    pub fn to_shard(&self) -> Option<ShardId> {
        let shard = ShardId(self.0.strip_prefix("shard/")?.parse().ok()?);
        (ClaimName::shard(shard) == *self).then_some(shard)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClaimNameError {
    #[error("invalid claim name: expected 1 to 128 bytes, found {0} bytes")]
    Length(usize),
    #[error("invalid claim name: found {found:?} at byte {at}; use only A-Z, a-z, 0-9 and the characters _ . / -")]
    Character { at: usize, found: char },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_name_parser_accepts_only_canonical_shard_numbers() {
        for number in [0, 9, 17, 255, u16::MAX] {
            assert_eq!(ClaimName::shard(ShardId(number)).to_shard(), Some(ShardId(number)));
        }
        for other in ["shard/017", "shard/+7", "shard/", "shard/65536", "shards/1", "leader"] {
            assert_eq!(ClaimName::new(other).ok().and_then(|name| name.to_shard()), None, "{other}");
        }
    }

    #[test]
    fn claim_name_rejects_empty_text_long_text_and_special_characters() {
        assert!(ClaimName::new("a/B-9_.").is_ok() && ClaimName::new(&"a".repeat(128)).is_ok());
        assert_eq!(ClaimName::new(""), Err(ClaimNameError::Length(0)));
        assert_eq!(ClaimName::new(&"a".repeat(129)), Err(ClaimNameError::Length(129)));
        assert_eq!(ClaimName::new("a b"), Err(ClaimNameError::Character { at: 1, found: ' ' }));
    }
}
