//! Encoding of the system group's records and of its snapshots.
//!
//! The first byte of an encoding is its version. In a record, the second byte is the kind of the record. All numbers
//! use the encoding LEB128: seven bits per byte, with the lowest bits first. The length of a list precedes its items.
//! Each value has exactly one encoding, and the decoder rejects all other bytes. Before the decoder reads the bytes,
//! the journal or the connection between nodes verifies their checksum. Therefore bytes that the decoder rejects come
//! from another build or from an unrelated program.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Fence, Group, Node, Preparation, Record, Scheme, Step, System, Take, Token};
use crate::ids::{BEYOND_COUNT, Epoch, GroupId, Instant, NodeId, Slot};

/// Version of the encoding. It is the first byte of each encoded record and snapshot.
const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    /// Encoding version of another build. This build must not interpret the bytes after the version.
    #[error("unknown version {0}")]
    Version(u8),
    #[error("unknown {what} {number}")]
    Unknown { what: &'static str, number: u64 },
    #[error("truncated: the bytes end before the end of the value")]
    Short,
    #[error("a number is too large for its field")]
    Range,
    /// The bytes continue after the value, encode a number in more bytes than necessary, or contain an unsorted list.
    #[error("the bytes are not the canonical encoding of the value")]
    Form,
}

impl Record {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(vec![VERSION]);
        match self {
            Record::Node { node, capacity } => writer.kind(1).node(*node).number(u64::from(*capacity)),
            Record::Drain { node, draining } => writer.kind(2).node(*node).number(u64::from(*draining)),
            Record::Group { group, replicas } => writer.kind(3).number(u64::from(group.0)).nodes(replicas),
            Record::Weigh { weights } => writer.kind(4).list(weights, |writer, (group, weight)| {
                writer.number(u64::from(group.0)).number(*weight);
            }),
            Record::Join { node, liveness, incarnation, stamp } => {
                writer.kind(5).node(*node).number(*liveness).number(*incarnation).number(stamp.0)
            }
            Record::Alive { node, liveness, last, stamp } => {
                writer.kind(6).node(*node).number(*liveness).number(last.0).number(stamp.0)
            }
            Record::Expire { node, liveness, last } => writer.kind(7).node(*node).number(*liveness).number(last.0),
            Record::TokenTake(take) => {
                let Take { precondition: (fence, slot), holder, liveness, group, from, to, epoch, stamp } = take;
                writer.kind(8).number(fence.0).number(slot.0).node(*holder).number(*liveness);
                writer.number(u64::from(group.0)).node(*from).node(*to).number(epoch.0).number(stamp.0)
            }
            Record::TokenStep { fence, step, stamp } => {
                writer.kind(9).number(fence.0).number(step_number(*step)).number(stamp.0)
            }
            Record::TokenEnd { fence } => writer.kind(10).number(fence.0),
        };
        writer.0
    }

    /// Returns a prefix of this record's encoding. Records with the same prefix differ at most in their stamps. After
    /// the system group has decided one of these records, the other records with this prefix are stale or redundant.
    /// Returns `None` for all kinds of records except `Join`, `Alive`, `Expire` and `Group`.
    pub(crate) fn rivals(&self) -> Option<Vec<u8>> {
        let mut writer = Writer(vec![VERSION]);
        match self {
            Record::Join { node, liveness, incarnation, .. } => {
                writer.kind(5).node(*node).number(*liveness).number(*incarnation)
            }
            Record::Alive { node, liveness, last, .. } => writer.kind(6).node(*node).number(*liveness).number(last.0),
            Record::Expire { .. } | Record::Group { .. } => return Some(self.encode()),
            _ => return None,
        };
        Some(writer.0)
    }

    /// # Errors
    /// Returns an error if the bytes are not an output of this version's [`Record::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let record = match reader.number()? {
            1 => Record::Node { node: reader.node()?, capacity: reader.small()? },
            2 => Record::Drain { node: reader.node()?, draining: reader.flag()? },
            3 => Record::Group { group: reader.group()?, replicas: reader.list(Reader::node)? },
            4 => Record::Weigh { weights: reader.list(|reader| Ok((reader.group()?, reader.number()?)))? },
            5 => Record::Join {
                node: reader.node()?,
                liveness: reader.number()?,
                incarnation: reader.number()?,
                stamp: Instant(reader.number()?),
            },
            6 => Record::Alive {
                node: reader.node()?,
                liveness: reader.number()?,
                last: Slot(reader.number()?),
                stamp: Instant(reader.number()?),
            },
            7 => Record::Expire { node: reader.node()?, liveness: reader.number()?, last: Slot(reader.number()?) },
            8 => Record::TokenTake(Take {
                precondition: (Fence(reader.number()?), Slot(reader.number()?)),
                holder: reader.node()?,
                liveness: reader.number()?,
                group: reader.group()?,
                from: reader.node()?,
                to: reader.node()?,
                epoch: Epoch(reader.number()?),
                stamp: Instant(reader.number()?),
            }),
            9 => Record::TokenStep {
                fence: Fence(reader.number()?),
                step: reader.step()?,
                stamp: Instant(reader.number()?),
            },
            10 => Record::TokenEnd { fence: Fence(reader.number()?) },
            number => return Err(DecodeError::Unknown { what: "record", number }),
        };
        if record.encode() == bytes { Ok(record) } else { Err(DecodeError::Form) }
    }
}

impl System {
    /// Returns the encoded state of the system group. [`System::restore`] decodes it.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut writer = Writer(vec![VERSION]);
        writer.number(self.applied.0).number(self.fence.0);
        writer.list(&self.nodes, |writer, (id, node)| {
            writer.node(*id).number(u64::from(node.capacity)).number(u64::from(node.draining)).number(node.liveness);
            // Slot 0 encodes `None`, because the first record is at slot 1.
            writer.number(node.incarnation).number(node.stamp.0).number(node.alive.map_or(0, |slot| slot.0));
        });
        writer.list(&self.groups, |writer, (id, group)| {
            writer.number(u64::from(id.0)).number(group.weight).nodes(&group.replicas);
        });
        writer.list(&self.token, |writer, token| {
            writer.number(token.fence.0).node(token.holder).number(token.liveness).number(u64::from(token.group.0));
            writer.node(token.from).node(token.to).number(token.epoch.0).number(step_number(token.step));
            writer.number(token.stamp.0).number(token.last.0);
        });
        writer.0
    }

    /// # Errors
    /// Returns an error if the bytes are not an output of this version's [`System::snapshot`].
    pub fn restore(bytes: &[u8]) -> Result<System, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let system = System {
            applied: Slot(reader.count()?),
            fence: Fence(reader.count()?),
            nodes: BTreeMap::from_iter(reader.list(|reader| Ok((reader.node()?, reader.known_node()?)))?),
            groups: BTreeMap::from_iter(reader.list(|reader| {
                let id = reader.group()?;
                Ok((id, Group { weight: reader.number()?, replicas: reader.list(Reader::node)? }))
            })?),
            token: reader.list(Reader::token)?.pop(),
        };
        if system.snapshot() == bytes { Ok(system) } else { Err(DecodeError::Form) }
    }
}

fn step_number(step: Step) -> u64 {
    match step {
        Step::Prepare(Preparation::SyncOffsets) => 1,
        Step::Prepare(Preparation::NotifyProducers) => 2,
        Step::Handover(Scheme::Wait) => 3,
        Step::Handover(Scheme::Shorten) => 4,
        Step::Handover(Scheme::Consent) => 5,
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn kind(&mut self, kind: u64) -> &mut Writer {
        self.number(kind)
    }

    fn number(&mut self, mut number: u64) -> &mut Writer {
        loop {
            let low = u8::try_from(number & 0x7f).expect("seven bits fit into a byte");
            number >>= 7;
            if number == 0 {
                self.0.push(low);
                return self;
            }
            self.0.push(low | 0x80);
        }
    }

    fn node(&mut self, node: NodeId) -> &mut Writer {
        self.number(u64::from(node.0))
    }

    fn nodes(&mut self, nodes: &[NodeId]) -> &mut Writer {
        self.list(nodes, |writer, node| {
            writer.node(*node);
        })
    }

    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T, IntoIter: Clone>,
        write: impl Fn(&mut Writer, T),
    ) -> &mut Writer {
        let items = items.into_iter();
        self.number(u64::try_from(items.clone().count()).expect("the length of a list in memory fits into 64 bits"));
        items.for_each(|item| write(self, item));
        self
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Reader<'a>, DecodeError> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Reader(rest)),
            Some((version, _)) => Err(DecodeError::Version(*version)),
            None => Err(DecodeError::Short),
        }
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError::Short)?;
            self.0 = rest;
            let low = u64::from(byte & 0x7f);
            if low << shift >> shift != low {
                return Err(DecodeError::Range);
            }
            number |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Range)
    }

    /// Reads a number that must be below [`BEYOND_COUNT`], because the state machine increments it later.
    fn count(&mut self) -> Result<u64, DecodeError> {
        Some(self.number()?).filter(|number| *number < BEYOND_COUNT).ok_or(DecodeError::Range)
    }

    fn small(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.number()?).map_err(|_| DecodeError::Range)
    }

    fn node(&mut self) -> Result<NodeId, DecodeError> {
        self.small().map(NodeId)
    }

    fn group(&mut self) -> Result<GroupId, DecodeError> {
        self.small().map(GroupId)
    }

    fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Range),
        }
    }

    fn step(&mut self) -> Result<Step, DecodeError> {
        match self.number()? {
            1 => Ok(Step::Prepare(Preparation::SyncOffsets)),
            2 => Ok(Step::Prepare(Preparation::NotifyProducers)),
            3 => Ok(Step::Handover(Scheme::Wait)),
            4 => Ok(Step::Handover(Scheme::Shorten)),
            5 => Ok(Step::Handover(Scheme::Consent)),
            number => Err(DecodeError::Unknown { what: "step", number }),
        }
    }

    fn known_node(&mut self) -> Result<Node, DecodeError> {
        Ok(Node {
            capacity: self.small()?,
            draining: self.flag()?,
            liveness: self.count()?,
            incarnation: self.number()?,
            stamp: Instant(self.number()?),
            alive: Some(Slot(self.count()?)).filter(|slot| *slot > Slot(0)),
        })
    }

    fn token(&mut self) -> Result<Token, DecodeError> {
        Ok(Token {
            fence: Fence(self.count()?),
            holder: self.node()?,
            liveness: self.number()?,
            group: self.group()?,
            from: self.node()?,
            to: self.node()?,
            epoch: Epoch(self.number()?),
            step: self.step()?,
            stamp: Instant(self.number()?),
            last: Slot(self.count()?),
        })
    }

    fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>) -> Result<Vec<T>, DecodeError> {
        // Each item takes at least one byte. Therefore the decoder rejects a list whose length exceeds the number of
        // remaining bytes, before it allocates memory for the list.
        let length = usize::try_from(self.number()?).map_err(|_| DecodeError::Range)?;
        if length > self.0.len() {
            return Err(DecodeError::Short);
        }
        (0..length).map(|_| read(self)).collect()
    }
}
