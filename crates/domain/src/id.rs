//! Identifiers. Each kind of identifier has its own type, so that the compiler rejects an id of the wrong kind.

use std::fmt;

/// Number of a tenant in one store. The store maps tenant names to these numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub u32);

/// Partition of a tenant's due rows.
///
/// A generation is the set of pollers that a tenant received at its creation or after an increase of its quota.
/// `generation` is the number of this set. A schedule keeps its poller for its whole life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PollerId {
    pub tenant: TenantId,
    pub generation: u16,
    pub number: u16,
}

/// Unit of ownership. At most one member owns a shard at a time. The number of shards never changes after the operator
/// creates the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

/// Number of shards in a cluster.
pub const SHARDS: u16 = 256;

/// Fencing number of an ownership, which the store assigns. Callers compare terms but do not calculate with them.
///
/// The high bits of a term are the epoch of the store. A store starts an epoch whenever it may have lost terms, for
/// example after a restore. A term of the new epoch is higher than every term that the store assigned before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Term(pub u64);

impl Term {
    /// Number of low bits, which count the changes of ownership in one epoch. In one epoch, owners take a shard fewer
    /// than 2^20 times. An epoch is a time in seconds, so terms stay below 2^53 until the year 2242, and every JSON
    /// reader can represent them.
    const COUNT_BITS: u32 = 20;

    /// Returns the term that is lower than all terms of the epoch and higher than all terms of earlier epochs.
    #[must_use]
    pub const fn before_epoch(epoch: u64) -> Term {
        Term(epoch << Term::COUNT_BITS)
    }

    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> Term::COUNT_BITS
    }
}

/// Returns the number of a new epoch: the time `now` in seconds since 1970, or the first epoch after `earlier` if that
/// is higher. The clock separates epochs that do not know of each other, for example of two restores of one backup.
#[must_use]
pub fn new_epoch(now: crate::Timestamp, earlier: u64) -> u64 {
    u64::try_from(now.as_millis() / 1000).unwrap_or(0).max(earlier + 1)
}

/// Counter of the changes that users made to a schedule. A due row of an older revision is void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u32);

/// Id of a schedule's life from creation to deletion. It consists of 48 bits of milliseconds and 80 random bits, so
/// that incarnations sort by time. If a user deletes a schedule and creates it again under the same id, it has a new
/// incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Creates an incarnation from `now` and the low 80 bits of `random`.
    #[must_use]
    pub fn new(now: crate::Timestamp, random: u128) -> Self {
        let millis = u128::try_from(now.as_millis()).unwrap_or(0) & ((1 << 48) - 1);
        Incarnation(millis << 80 | (random & ((1 << 80) - 1)))
    }

    /// Creates an incarnation like [`Incarnation::new`], but with `fingerprint` as the last 32 bits. The creator can
    /// then recognize a repeated request. The remaining 48 random bits distinguish incarnations with the same
    /// millisecond and fingerprint.
    #[must_use]
    pub fn with_fingerprint(now: crate::Timestamp, random: u128, fingerprint: u32) -> Self {
        let Incarnation(drawn) = Incarnation::new(now, random);
        Incarnation(drawn >> 32 << 32 | u128::from(fingerprint))
    }

    /// Returns the fingerprint given to [`Incarnation::with_fingerprint`], or 32 random bits for any other incarnation.
    #[must_use]
    pub fn fingerprint(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).expect("the masked fingerprint fits into 32 bits")
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Key under which the scheduler applies limits and fairness to a callback's target. It is a hash of scheme, host and
/// port, or of a bus topic. Two targets may have the same key. They then share one limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TargetKey(pub u32);

/// Key in the index of schedules by label. It is a hash of the label's name and value. Two labels may have the same
/// key, so a reader of the index must also compare the label itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LabelKey(pub u64);

impl LabelKey {
    /// Returns the 64-bit FNV-1a hash of the name, a byte that no text contains, and the value. Stores retain the hash,
    /// so this function must never change.
    #[must_use]
    pub fn of(name: &str, value: &str) -> Self {
        let bytes = name.bytes().chain([0xff]).chain(value.bytes());
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        LabelKey(bytes.fold(0xcbf2_9ce4_8422_2325, hash))
    }
}

/// Id of a schedule, unique within its tenant: `[A-Za-z0-9_-]{1,128}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ScheduleId(Box<str>);

impl ScheduleId {
    pub const LEN_MAX: usize = 128;

    /// Checks and copies the text of an id.
    ///
    /// # Errors
    /// Returns an error if `text` does not match `[A-Za-z0-9_-]{1,128}`.
    pub fn new(text: &str) -> Result<Self, ScheduleIdError> {
        if text.is_empty() || text.len() > Self::LEN_MAX {
            return Err(ScheduleIdError::Length(text.len()));
        }
        match text.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || *c == '_' || *c == '-')) {
            Some((at, found)) => Err(ScheduleIdError::Character { at, found }),
            None => Ok(ScheduleId(text.into())),
        }
    }

    /// Returns the id of a schedule for which the user gave no id: `s` and the 26 lower-case Crockford digits of the
    /// incarnation.
    #[must_use]
    pub fn from_incarnation(incarnation: Incarnation) -> Self {
        ScheduleId::with_prefix('s', incarnation.0)
    }

    /// Returns the id of a schedule whose request has an idempotency key. It consists of `i` and the 26 lower-case
    /// Crockford digits of `digest`, a hash of the key.
    #[must_use]
    pub fn from_digest(digest: u128) -> Self {
        ScheduleId::with_prefix('i', digest)
    }

    /// Returns the id that earlier builds derived from a digest. It starts with `k`, like the id of an API key.
    #[must_use]
    pub fn from_digest_old(digest: u128) -> Self {
        ScheduleId::with_prefix('k', digest)
    }

    fn with_prefix(prefix: char, number: u128) -> Self {
        let mut text = String::with_capacity(27);
        text.push(prefix);
        base32(number, &mut text);
        ScheduleId(text.into_boxed_str())
    }

    /// Returns the incarnation in a server-generated id, or `None` if the text has another form.
    #[must_use]
    pub fn to_incarnation(&self) -> Option<Incarnation> {
        let digits = self.0.strip_prefix('s').filter(|rest| rest.len() == 26)?;
        parse_base32(digits).map(Incarnation)
    }

    /// Returns the greatest incarnation whose server-generated id is at or before this id in byte order. Returns `None`
    /// if every server-generated id is after this id.
    #[must_use]
    pub fn last_incarnation_up_to(&self) -> Option<Incarnation> {
        // The byte order of server-generated ids is the order of their incarnations. The loop can therefore find the
        // bits of the result one after another, from the highest bit to the lowest.
        let is_up_to = |number| ScheduleId::from_incarnation(Incarnation(number)) <= *self;
        let mut last = 0;
        for bit in (0..u128::BITS).rev() {
            if is_up_to(last | 1 << bit) {
                last |= 1 << bit;
            }
        }
        is_up_to(last).then_some(Incarnation(last))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleIdError {
    #[error("id has {0} characters, but must have 1 to 128")]
    Length(usize),
    #[error("id contains {found:?} at byte {at}, but may contain only A-Z, a-z, 0-9, _ and -")]
    Character { at: usize, found: char },
}

const CROCKFORD: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Appends the 26 Crockford base-32 digits of `value`, most significant first.
pub(crate) fn base32(value: u128, out: &mut String) {
    for digit in (0..26).rev() {
        let bits = (value >> (digit * 5)) & 31;
        out.push(char::from(CROCKFORD[usize::try_from(bits).unwrap_or(0)]));
    }
}

/// Parses 26 lower-case Crockford digits, or returns `None` for any text that [`base32`] never writes.
pub(crate) fn parse_base32(text: &str) -> Option<u128> {
    if text.len() != 26 {
        return None;
    }
    let mut value: u128 = 0;
    for (at, byte) in text.bytes().enumerate() {
        let digit = CROCKFORD.iter().position(|c| *c == byte)?;
        if at == 0 && digit > 7 {
            return None; // A value has 128 bits and 26 digits have 130 bits, so the first digit has only three bits.
        }
        value = value << 5 | u128::try_from(digit).ok()?;
    }
    Some(value)
}

/// Returns the 32-bit FNV-1a hash. Placement needs a hash that is the same in all versions and on all machines. It does
/// not need a fast hash.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

impl PollerId {
    /// Returns the poller of the schedule `id`. A hash of this id selects one of the pollers in `generation`, the
    /// tenant's newest generation. `pollers` is their number.
    ///
    /// # Panics
    /// Panics if `pollers` is zero.
    #[must_use]
    pub fn of(tenant: TenantId, generation: u16, pollers: u16, id: &ScheduleId) -> Self {
        assert!(pollers > 0, "every tenant has at least one poller");
        let number = mix(fnv1a(id.as_str().as_bytes())) % u32::from(pollers);
        PollerId { tenant, generation, number: u16::try_from(number).unwrap_or(0) }
    }

    /// Returns the shard of this poller. The shard of a poller never changes.
    #[must_use]
    pub fn shard(self) -> ShardId {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.tenant.0.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.generation.to_be_bytes());
        bytes[6..].copy_from_slice(&self.number.to_be_bytes());
        ShardId(u16::try_from(mix(fnv1a(&bytes)) % u32::from(SHARDS)).unwrap_or(0))
    }
}

/// Mixes the bits of a hash with the 32-bit finalizer of MurmurHash3. Every input bit then affects the low bits, which
/// select the shard or the poller.
fn mix(mut hash: u32) -> u32 {
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}
