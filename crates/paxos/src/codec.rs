//! Bytes of records and of messages: a version, the paxos group, a kind, and the fields in the order in which they are listed here.
//!
//! Whole numbers are LEB128, durations are whole nanoseconds, and lists and bytes come after their length. What was decoded
//! shares the bytes it came from: entries are not copied.
//!
//! What it does not do: find out whether bytes were damaged, or where a record ends. That is for the journal and for the
//! connection between peers, which frame and checksum them. Always true here: bytes of any kind give a value or an error, and
//! take memory in proportion to their own length.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::agreed::{Agreed, Mastership, Shortened};
use crate::effects::Record;
use crate::entry::{BeMaster, Claim, Entry, Position, Shorten, Value};
use crate::ids::{Ballot, Epoch, GroupId, Instant, NodeId, Slot, Tenure};
use crate::message::{Message, Orders, Over, Report, Serving, Snapshot, SnapshotHead};
use crate::mover::Move;
use crate::system::{Fence, Preparation, Scheme, Step};

/// Of what is written. Older ones stay readable for as long as there may be such bytes.
const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// A newer program wrote it.
    #[error("the format has version {0}, and only {VERSION} is known")]
    Version(u8),
    /// No such one is in this version.
    #[error("kind {0} is not known")]
    Kind(u8),
    /// It ends before what it says that it has.
    #[error("it is too short for what it says that it has")]
    Short,
    /// More follows than it says that it has.
    #[error("{0} bytes follow its end")]
    Excess(usize),
    /// A number does not fit into its type.
    #[error("a number is too large for what it counts")]
    TooLarge,
    /// Members are not in order, or one is there twice.
    #[error("members are not in order")]
    Order,
}

impl Record {
    /// Appends it. Each entry is copied once.
    pub fn encode(&self, group: GroupId, out: &mut Vec<u8>) {
        out.reserve(match self {
            Record::Promise(_) | Record::Decided(_) => FIXED_BYTES,
            Record::Entries { entries, .. } => FIXED_BYTES + size(entries),
            Record::Snapshot(snapshot) => 2 * FIXED_BYTES + snapshot.application.len(),
        });
        encode(self, group, out);
    }

    /// # Errors
    /// Every one of [`DecodeError`]; none of them goes away by trying again.
    pub fn decode(bytes: Bytes) -> Result<(GroupId, Record), DecodeError> {
        decode(bytes)
    }
}

impl Message {
    /// Appends it. Each entry is copied once.
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
    /// Every one of [`DecodeError`]; none of them goes away by trying again.
    pub fn decode(bytes: Bytes) -> Result<(GroupId, Message), DecodeError> {
        decode(bytes)
    }
}

/// About what a record or message takes beside its entries.
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

/// What is read, and how far.
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

    /// A length of what follows, each of which takes a byte at least.
    fn len(&mut self) -> Result<usize, DecodeError> {
        let len = usize::try_from(u64::take(self)?).map_err(|_| DecodeError::Short)?;
        if len > self.left() { Err(DecodeError::Short) } else { Ok(len) }
    }
}

/// What has bytes. `take` reads what `put` wrote.
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
    /// More than 584 years become those.
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

/// For so many, room is made at once.
const LIST_ITEMS: usize = 256;

fn take_list<T: Coded>(from: &mut Reader) -> Result<Vec<T>, DecodeError> {
    let len = from.len()?;
    // What is there may be much less than it says, and items are larger in memory than here.
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

/// A batch.
impl Coded for Arc<[Bytes]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }

    fn take(from: &mut Reader) -> Result<Arc<[Bytes]>, DecodeError> {
        take_list(from).map(Arc::from)
    }
}

/// Members, who are looked up by their order.
impl Coded for Arc<[NodeId]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }

    fn take(from: &mut Reader) -> Result<Arc<[NodeId]>, DecodeError> {
        let members: Vec<NodeId> = take_list(from)?;
        if members.is_sorted_by(|one, next| one < next) { Ok(members.into()) } else { Err(DecodeError::Order) }
    }
}

/// The fields, one after the other.
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

/// A byte that says which, and what that one has. No such number is ever given to another.
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
    1 => Prepare { ballot, trial, over },
    2 => Promise { ballot, trial, last, idle },
    3 => Refuse { ballot, promised },
    4 => Pull { ballot, after, offset },
    5 => Pulled { ballot, after, entries },
    6 => Accept { ballot, after, entries, decided },
    7 => Accepted { ballot, slot, decided },
    8 => Gap { ballot, slot },
    9 => Snapshot { ballot, head, offset, part },
    10 => Received { ballot, slot, offset },
    11 => Ask { tenure },
    12 => Consent { tenure, taker },
    13 => Decline { tenure },
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
    2 => TellProducers,
});

coded_enum!(Scheme {
    1 => Consent,
    2 => Shorten,
    3 => Wait,
});

coded_enum!(Over {
    1 => Waited { tenure },
    2 => Expired { tenure, node, liveness },
    3 => Consent { tenure },
});

coded_enum!(Value {
    1 => Noop,
    2 => Data(batch),
    3 => BeMaster(wish),
    4 => Shorten(shorten),
    5 => Members(members),
});

coded_enum!(Claim {
    1 => Waited { tenure, lease_slot },
    2 => Own { tenure },
    3 => Consent { tenure },
});

coded_struct!(NodeId { 0 });
coded_struct!(Instant { 0 });
coded_struct!(Fence { 0 });
coded_struct!(GroupId { 0 });
coded_struct!(Slot { 0 });
coded_struct!(Epoch { 0 });
coded_struct!(Ballot { round, node });
coded_struct!(Tenure { epoch, ballot });
coded_struct!(Position { ballot, slot });
coded_struct!(Entry { ballot, value });
coded_struct!(BeMaster { node, liveness, claim, members });
coded_struct!(Shorten { tenure, to, remaining });
coded_struct!(Snapshot { position, agreed, application });
coded_struct!(SnapshotHead { position, agreed, len });
coded_struct!(Agreed { mastership, members });
coded_struct!(Mastership { tenure, node, liveness, lease_slot, shortened });
coded_struct!(Shortened { to, remaining });
coded_struct!(Report { process, stamp, serves, prepared, refused });
coded_struct!(Serving { group, epoch, members });
coded_struct!(Orders { process, stamp, of, step, within });
coded_struct!(Move { fence, group, from, to, epoch });
