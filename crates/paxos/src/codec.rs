//! Encoding of records and messages: a version, the id of the paxos group, a kind, and the fields in the order of this
//! file.
//!
//! Integers are LEB128, and durations are whole nanoseconds. The length of a list or byte string precedes its content.
//! Decoded values share the input bytes: the decoder does not copy entries.
//!
//! Non-goals: the codec does not detect damaged bytes, and does not find the end of a record. The journal and the
//! connections between peers use frames and checksums for these purposes. Invariant: for all input bytes, the decoder
//! returns a value or an error. The memory that the decoder uses is in proportion to the length of the input.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::effects::Record;
use crate::entry::{BeMaster, Claim, Entry, Position, Shorten, Value};
use crate::ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Term};
use crate::message::{MastershipEnd, Message, Orders, Report, Serving, Snapshot, SnapshotHead};
use crate::mover::Move;
use crate::state::{GroupState, Mastership, Shortened};
use crate::system::{Fence, Preparation, Scheme, Step};

/// Version of the encoding that the encoder writes. The decoder must read each older version for as long as bytes in
/// that older version may exist.
const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Encoding version of another build. This build cannot read this version.
    #[error("unknown format version {0}: this build reads version {VERSION}")]
    Version(u8),
    /// Kind byte that this version of the encoding does not define.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// Input that ends before the value is complete.
    #[error("truncated: the declared length exceeds the bytes that remain")]
    Short,
    /// Input that continues after the end of the value.
    #[error("{0} bytes follow the end of the value")]
    Excess(usize),
    /// Number that does not fit into its type.
    #[error("a number is too large for its type")]
    TooLarge,
    /// List of members that is unsorted or contains a duplicate.
    #[error("the members are not in ascending order")]
    Order,
}

impl Record {
    /// Appends the encoding of the record to `out`. Copies each entry once.
    pub fn encode(&self, group: GroupId, out: &mut Vec<u8>) {
        out.reserve(match self {
            Record::Promise(_) | Record::Decided(_) => FIXED_BYTES,
            Record::Entries { entries, .. } => FIXED_BYTES + size(entries),
            Record::Snapshot(snapshot) => 2 * FIXED_BYTES + snapshot.application.len(),
        });
        encode(self, group, out);
    }

    /// # Errors
    /// Returns a [`DecodeError`] if the bytes are not the encoding of a record. A retry fails in the same way.
    pub fn decode(bytes: Bytes) -> Result<(GroupId, Record), DecodeError> {
        decode(bytes)
    }
}

impl Message {
    /// Appends the encoding of the message to `out`. Copies each entry once.
    pub fn encode(&self, group: GroupId, out: &mut Vec<u8>) {
        out.reserve(match self {
            Message::Accept { entries, .. } | Message::Pulled { entries, .. } => FIXED_BYTES + size(entries),
            Message::Snapshot { part, .. } => 2 * FIXED_BYTES + part.len(),
            Message::Forward { entry } => FIXED_BYTES + entry.len(),
            Message::Report(report) => FIXED_BYTES * (1 + report.serves.len()),
            _ => FIXED_BYTES,
        });
        encode(self, group, out);
    }

    /// # Errors
    /// Returns a [`DecodeError`] if the bytes are not the encoding of a message. A retry fails in the same way.
    pub fn decode(bytes: Bytes) -> Result<(GroupId, Message), DecodeError> {
        decode(bytes)
    }
}

/// Approximate size, in bytes, of an encoded record or message without its entries.
const FIXED_BYTES: usize = 64;

fn size(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| entry.value.size()).sum()
}

fn encode(value: &impl Coded, group: GroupId, out: &mut Vec<u8>) {
    out.push(VERSION);
    group.put(out);
    value.put(out);
}

fn decode<T: Coded>(bytes: Bytes) -> Result<(GroupId, T), DecodeError> {
    let mut from = Reader { bytes, at: 0 };
    match from.byte()? {
        VERSION => {}
        version => return Err(DecodeError::Version(version)),
    }
    let decoded = (GroupId::take(&mut from)?, T::take(&mut from)?);
    match from.left() {
        0 => Ok(decoded),
        left => Err(DecodeError::Excess(left)),
    }
}

/// Reader of the input bytes. `at` is the index of the next byte.
struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads the length of a list whose items take at least one byte each.
    fn len(&mut self) -> Result<usize, DecodeError> {
        let len = usize::try_from(u64::take(self)?).map_err(|_| DecodeError::Short)?;
        if len > self.left() { Err(DecodeError::Short) } else { Ok(len) }
    }
}

/// Type with an encoding. `take` reads the bytes that `put` wrote.
trait Coded: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut Reader) -> Result<Self, DecodeError>;
}

impl Coded for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        out.push(rest.to_le_bytes()[0]);
    }

    fn take(from: &mut Reader) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = from.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(DecodeError::TooLarge);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DecodeError::TooLarge)
    }
}

impl Coded for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(from: &mut Reader) -> Result<u32, DecodeError> {
        u32::try_from(u64::take(from)?).map_err(|_| DecodeError::TooLarge)
    }
}

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut Reader) -> Result<bool, DecodeError> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            kind => Err(DecodeError::Kind(kind)),
        }
    }
}

impl Coded for Duration {
    /// Writes the duration in nanoseconds. Writes the greatest `u64` for a duration of more than 584 years.
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).put(out);
    }

    fn take(from: &mut Reader) -> Result<Duration, DecodeError> {
        u64::take(from).map(Duration::from_nanos)
    }
}

impl Coded for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut Reader) -> Result<Bytes, DecodeError> {
        let len = from.len()?;
        let begin = from.at;
        from.at += len;
        Ok(from.bytes.slice(begin..from.at))
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader) -> Result<Option<T>, DecodeError> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

fn put_list<T: Coded>(list: &[T], out: &mut Vec<u8>) {
    (list.len() as u64).put(out);
    for item in list {
        item.put(out);
    }
}

/// Maximum number of items for which the decoder reserves memory before it has read them.
const LIST_ITEMS: usize = 256;

fn take_list<T: Coded>(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
    let len = from.len()?;
    // The decoder limits the memory that it reserves: the input may contain fewer items than it declares, and an item
    // takes more bytes in memory than in the input.
    let mut list = Vec::with_capacity(len.min(LIST_ITEMS));
    for _ in 0..len {
        list.push(T::take(from)?);
    }
    Ok(list)
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }

    fn take(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
        take_list(from)
    }
}

impl<T: Coded, U: Coded> Coded for (T, U) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut Reader) -> Result<(T, U), DecodeError> {
        Ok((T::take(from)?, U::take(from)?))
    }
}

/// Batch of entries.
impl Coded for Arc<[Bytes]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }

    fn take(from: &mut Reader) -> Result<Arc<[Bytes]>, DecodeError> {
        take_list(from).map(Arc::from)
    }
}

/// List of members. The decoder rejects a list that is not in ascending order, because lookups require this order.
impl Coded for Arc<[NodeId]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }

    fn take(from: &mut Reader) -> Result<Arc<[NodeId]>, DecodeError> {
        let members: Vec<NodeId> = take_list(from)?;
        if members.is_sorted_by(|one, next| one < next) { Ok(members.into()) } else { Err(DecodeError::Order) }
    }
}

/// Implements the encoding of a struct: the encodings of its fields, one after the other.
macro_rules! coded_struct {
    ($type:ident { $($field:tt),* }) => {
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut Reader) -> Result<$type, DecodeError> {
                Ok($type { $($field: Coded::take(from)?),* })
            }
        }
    };
}

/// Implements the encoding of an enum: a kind byte, and the fields of the variant. A developer must never reuse the
/// number of a kind for another kind.
macro_rules! coded_enum {
    ($type:ident { $($kind:literal => $variant:ident $(($item:ident))? $({ $($field:ident),* })?),* $(,)? }) => {
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(($item))? $({ $($field),* })? => {
                        out.push($kind);
                        $($item.put(out);)?
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn take(from: &mut Reader) -> Result<$type, DecodeError> {
                match from.byte()? {
                    $($kind => {
                        $(let $item = Coded::take(from)?;)?
                        $($(let $field = Coded::take(from)?;)*)?
                        Ok($type::$variant $(($item))? $({ $($field),* })?)
                    })*
                    kind => Err(DecodeError::Kind(kind)),
                }
            }
        }
    };
}

coded_enum!(Record {
    1 => Promise(ballot),
    2 => Entries { after, entries },
    3 => Decided(slot),
    4 => Snapshot(snapshot),
});

coded_enum!(Message {
    1 => Prepare { ballot, pre_vote, over },
    2 => Promise { ballot, pre_vote, last, idle },
    3 => Reject { ballot, promised },
    4 => Pull { ballot, after, offset },
    5 => Pulled { ballot, after, entries },
    6 => Accept { ballot, after, entries, decided },
    7 => Accepted { ballot, slot, decided },
    8 => Gap { ballot, slot },
    9 => Snapshot { ballot, head, offset, part },
    10 => Received { ballot, slot, offset },
    11 => RequestConsent { term },
    12 => Consent { term, taker },
    13 => Decline { term },
    14 => Forward { entry },
    15 => Report(report),
    16 => Orders(orders),
});

coded_enum!(Step {
    1 => Prepare(what),
    2 => Handover(scheme),
});

coded_enum!(Preparation {
    1 => SyncOffsets,
    2 => NotifyProducers,
});

coded_enum!(Scheme {
    1 => Consent,
    2 => Shorten,
    3 => Wait,
});

coded_enum!(MastershipEnd {
    1 => Waited { term },
    2 => Expired { term, node, liveness },
    3 => Consent { term },
});

coded_enum!(Value {
    1 => Noop,
    2 => Data(batch),
    3 => BeMaster(be_master),
    4 => Shorten(shorten),
    5 => Members(members),
});

coded_enum!(Claim {
    1 => Waited { term, lease_slot },
    2 => Own { term },
    3 => Consent { term },
});

coded_struct!(NodeId { 0 });
coded_struct!(Instant { 0 });
coded_struct!(Fence { 0 });
coded_struct!(GroupId { 0 });
coded_struct!(Slot { 0 });
coded_struct!(Epoch { 0 });
coded_struct!(Ballot { round, node });
coded_struct!(Term { epoch, ballot });
coded_struct!(Position { ballot, slot });
coded_struct!(Entry { ballot, value });
coded_struct!(BeMaster { node, liveness, claim, members });
coded_struct!(Shorten { term, to, remaining });
coded_struct!(Snapshot { position, state, application });
coded_struct!(SnapshotHead { position, state, len });
coded_struct!(GroupState { mastership, members });
coded_struct!(Mastership { term, node, liveness, lease_slot, shortened });
coded_struct!(Shortened { to, remaining });
coded_struct!(Report { process, stamp, serves, prepared, rejected });
coded_struct!(Serving { group, epoch, members });
coded_struct!(Orders { process, stamp, of, step, within });
coded_struct!(Move { fence, group, from, to, epoch });
