//! Checkpoint file of a store. It names the last entry that is durable in the index, and the journal that contains the
//! later entries.

use std::io;
use std::path::Path;

use domain::Timestamp;
use runtime::Runtime;
use stored::{Malformed, Put, Take};

use crate::file::{self, EnvelopeError};
use crate::options::IndexKind;

pub(crate) const FILE: &str = "CHECKPOINT";
const VERSION: u8 = 4;
/// Version of the checkpoint files of earlier builds. Such a build does not count runs.
const VERSION_UNCOUNTED: u8 = 3;
/// Version of the checkpoint files of still earlier builds. The index of such a build does not list runs by time.
const VERSION_WITHOUT_RUNS: u8 = 2;
/// Version of the checkpoint files of still earlier builds. The index of such a build contains no listings.
const VERSION_UNLISTED: u8 = 1;

/// Checkpoint of a store. The store replaces the file in one atomic step after each flush. The index contains all
/// entries up to `synced`, and may contain later entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checkpoint {
    pub index: IndexKind,
    /// Epoch of the store. The high bits of every term are the epoch. Every restore and every import raises the epoch.
    pub epoch: u64,
    /// Id of the journal ([`journal::Journal::id`]); `None` if the journal does not exist yet.
    pub journal_id: Option<u128>,
    /// Number of the store's last entry before the first entry of this journal. The value is not zero after a restore,
    /// because a restored store starts a new journal.
    pub base: u64,
    /// Number of the last entry up to which the index contains all entries. The numbers continue from one journal to
    /// the next.
    pub synced: u64,
    /// True if the listings contain every schedule of the index. False if an earlier build wrote the index and this
    /// build has not opened the index yet.
    pub is_listed: bool,
    pub run_index: RunIndex,
    /// Instant from which on the store counts each final run. [`Timestamp::MIN`] if the store has counted them since
    /// its creation. `None` if an earlier build wrote the index, and this build has not opened the index yet.
    pub counted_from: Option<Timestamp>,
}

/// State of the rows that list runs by time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunIndex {
    /// An earlier build wrote the index, and this build has not opened the index yet.
    Missing,
    /// This build has opened the index of an earlier build. A row of the index stores the progress.
    Building,
    /// The store lists each run since its creation.
    Complete,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("{FILE} is damaged: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error("{FILE} is damaged: {0}")]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Checkpoint {
    pub(crate) async fn read(runtime: &Runtime, dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let Some(bytes) = file::read_whole(runtime, &dir.join(FILE)).await? else { return Ok(None) };
        Ok(Some(Self::decode(file::open_envelope(&bytes)?)?))
    }

    pub(crate) async fn write(&self, runtime: &Runtime, dir: &Path) -> io::Result<()> {
        file::replace(runtime, &dir.join(FILE), &file::envelope(&self.encode())).await
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let version = match (self.is_listed, self.run_index, self.counted_from) {
            (false, ..) => VERSION_UNLISTED,
            (true, RunIndex::Missing, _) => VERSION_WITHOUT_RUNS,
            (true, RunIndex::Building | RunIndex::Complete, None) => VERSION_UNCOUNTED,
            (true, RunIndex::Building | RunIndex::Complete, Some(_)) => VERSION,
        };
        out.u8(version);
        out.u8(match self.index {
            IndexKind::Lsm => 0,
            IndexKind::Map => 1,
        });
        out.u64(self.epoch);
        out.u8(u8::from(self.journal_id.is_some()));
        out.u128(self.journal_id.unwrap_or_default());
        out.u64(self.base);
        out.u64(self.synced);
        if version >= VERSION_UNCOUNTED {
            out.u8(u8::from(self.run_index == RunIndex::Complete));
        }
        if let Some(counted_from) = self.counted_from.filter(|_| version == VERSION) {
            out.timestamp(counted_from);
        }
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut take = Take::new("a checkpoint", body);
        let version = take.u8()?;
        let (is_listed, lists_runs) = match version {
            VERSION | VERSION_UNCOUNTED => (true, true),
            VERSION_WITHOUT_RUNS => (true, false),
            VERSION_UNLISTED => (false, false),
            _ => return Err(take.malformed()),
        };
        let index = match take.u8()? {
            0 => IndexKind::Lsm,
            1 => IndexKind::Map,
            _ => return Err(take.malformed()),
        };
        let epoch = take.u64()?;
        let has_journal = take.u8()? == 1;
        let journal_id = has_journal.then_some(take.u128()?);
        let (base, synced) = (take.u64()?, take.u64()?);
        let run_index = match lists_runs {
            false => RunIndex::Missing,
            true if take.u8()? == 1 => RunIndex::Complete,
            true => RunIndex::Building,
        };
        let counted_from = if version == VERSION { Some(take.timestamp()?) } else { None };
        take.end()?;
        Ok(Checkpoint { index, epoch, journal_id, base, synced, is_listed, run_index, counted_from })
    }
}
