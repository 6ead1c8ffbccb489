//! Log storage of raft-rs, and the records from which a node rebuilds the storage after a crash.

use bytes::{Buf, BufMut, Bytes};
use paxos::GroupId;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// Index of the entry that represents the first members. A node that joins does not know the first members, so it needs
/// a snapshot of them. raft-rs sends a snapshot only if the log of the leader does not begin at 1.
pub(crate) const FOUNDED: u64 = 1;

/// Log with all appended entries, including entries that are not durable yet. raft-rs itself tracks which entries are
/// durable.
pub(crate) struct LogStorage {
    pub(crate) hard_state: HardState,
    /// Snapshot of all entries before the start of the log.
    pub(crate) base: Snapshot,
    entries: Vec<Entry>,
    /// Newest snapshot, which the leader sends to members that are behind.
    pub(crate) newest: Snapshot,
}

impl LogStorage {
    /// Returns the log of a node at its first start.
    pub(crate) fn new(founders: &[u64]) -> Self {
        let (mut hard_state, mut base) = (HardState::default(), Snapshot::default());
        if !founders.is_empty() {
            base = snapshot(FOUNDED, 1, ConfState::from((founders.to_vec(), Vec::new())), 0);
            (hard_state.term, hard_state.commit) = (1, FOUNDED);
        }
        LogStorage { hard_state, newest: base.clone(), base, entries: Vec::new() }
    }

    pub(crate) fn apply(&mut self, part: Part) {
        match part {
            Part::HardState(hard_state) => self.hard_state = hard_state,
            Part::Entries(entries) => {
                let Some(first) = entries.first() else { return };
                let kept = first.index.checked_sub(self.begin()).expect("entries in a snapshot are not written again");
                self.entries.truncate(usize::try_from(kept).expect("logs are short"));
                self.entries.extend(entries);
            }
            Part::Installed(snapshot) => {
                self.entries.clear();
                (self.newest, self.base) = (snapshot.clone(), snapshot);
            }
            Part::Trimmed(snapshot) => {
                let gone = snapshot.get_metadata().index + 1 - self.begin();
                self.entries.drain(..usize::try_from(gone).expect("logs are short"));
                // After a crash, the node knows only snapshots from its records, so this snapshot may be the newest.
                if self.newest.get_metadata().index < snapshot.get_metadata().index {
                    self.newest = snapshot.clone();
                }
                self.base = snapshot;
            }
        }
    }

    pub(crate) fn entry(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.begin())?;
        self.entries.get(usize::try_from(offset).expect("logs are short"))
    }

    pub(crate) fn entries_after(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.index > index)
    }

    /// Returns the index of the first entry in the log, or of the next entry if the log is empty.
    fn begin(&self) -> u64 {
        self.base.get_metadata().index + 1
    }
}

impl Storage for LogStorage {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.base.get_metadata().get_conf_state().clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.begin() {
            return Err(StorageError::Compacted.into());
        }
        let mut entries: Vec<_> = self.entries_after(low - 1).take_while(|entry| entry.index < high).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let base = self.base.get_metadata();
        match self.entry(index) {
            Some(entry) => Ok(entry.term),
            None if index == base.index => Ok(base.term),
            None if index < base.index => Err(StorageError::Compacted.into()),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.begin())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.entries.last().map_or(self.base.get_metadata().index, |entry| entry.index))
    }

    fn snapshot(&self, least: u64, _: u64) -> raft::Result<Snapshot> {
        match self.newest.get_metadata().index < least {
            true => Err(StorageError::SnapshotTemporarilyUnavailable.into()),
            false => Ok(self.newest.clone()),
        }
    }
}

/// Returns a snapshot of all entries up to `index`. `chain` is the state of the application after these entries.
pub(crate) fn snapshot(index: u64, term: u64, members: ConfState, chain: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.mut_metadata().set_conf_state(members);
    (snapshot.mut_metadata().index, snapshot.mut_metadata().term) = (index, term);
    snapshot.data = Bytes::copy_from_slice(&chain.to_le_bytes());
    snapshot
}

/// Returns the state of the application that a snapshot contains.
pub(crate) fn chain_of(snapshot: &Snapshot) -> u64 {
    snapshot.data.as_ref().try_get_u64_le().unwrap_or_default()
}

/// Part of a record. A record contains all parts of one `Ready` state, so that a crash cannot separate its entries from
/// its term.
pub(crate) enum Part {
    HardState(HardState),
    Entries(Vec<Entry>),
    /// Snapshot that another node sent. The snapshot replaces the whole log.
    Installed(Snapshot),
    /// Snapshot that this node created. The snapshot replaces the beginning of the log.
    Trimmed(Snapshot),
}

pub(crate) fn encode(group: GroupId, parts: &[Part]) -> Vec<u8> {
    let mut record = group.0.to_le_bytes().to_vec();
    let mut put = |kind: u8, message: &dyn protobuf::Message| {
        let bytes = message.write_to_bytes().expect("all fields are set");
        record.put_u8(kind);
        record.put_u32_le(u32::try_from(bytes.len()).expect("records are small"));
        record.extend(bytes);
    };
    for part in parts {
        match part {
            Part::HardState(hard_state) => put(0, hard_state),
            Part::Entries(entries) => entries.iter().for_each(|entry| put(1, entry)),
            Part::Installed(snapshot) => put(2, snapshot),
            Part::Trimmed(snapshot) => put(3, snapshot),
        }
    }
    record
}

pub(crate) fn decode(mut record: Bytes) -> (GroupId, Vec<Part>) {
    let group = GroupId(record.get_u32_le());
    let mut parts = Vec::new();
    while !record.is_empty() {
        let kind = record.get_u8();
        let length = usize::try_from(record.get_u32_le()).expect("records are small");
        let bytes = record.split_to(length);
        match (kind, parts.last_mut()) {
            (0, _) => parts.push(Part::HardState(parse(&bytes))),
            (1, Some(Part::Entries(entries))) => entries.push(parse(&bytes)),
            (1, _) => parts.push(Part::Entries(vec![parse(&bytes)])),
            (2, _) => parts.push(Part::Installed(parse(&bytes))),
            (3, _) => parts.push(Part::Trimmed(parse(&bytes))),
            _ => unreachable!("records on the disk are valid"),
        }
    }
    (group, parts)
}

pub(crate) fn parse<M: protobuf::Message>(bytes: &[u8]) -> M {
    let mut message = M::new();
    message.merge_from_bytes(bytes).expect("the bytes are an encoded message");
    message
}
