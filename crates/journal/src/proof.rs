//! File that proves which entries were durable. If the disk replaces the last records of a segment by zeros, the segment
//! alone looks as if the journal had never written these records.
//!
//! The file has two blocks. The keeper writes them in turn, so a torn write leaves one proof intact. A missing or damaged
//! proof is not an error: recovery then relies on the segments alone.
//!
//! docs/decisions/0215-prove-the-end-of-the-journal.md gives the reasons for the design.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::{Disk, DiskFile, OpenMode};

use crate::error::is_full;
use crate::format::{BLOCK, HEADER_BYTES, Proof, to_usize};

const FILE: &str = "durable";
const BLOCKS: u64 = 2;

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Reads the proof with the highest index of each journal that the file names.
pub(crate) async fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<Proof>> {
    let file = match disk.open(&path(dir), OpenMode::Read).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(read_blocks(&*file).await?.into_iter().flatten().collect())
}

async fn read_blocks(file: &dyn DiskFile) -> io::Result<[Option<Proof>; 2]> {
    let length = file.len().await?;
    let mut proofs = [None; 2];
    for (number, proof) in (0..BLOCKS).zip(&mut proofs) {
        let mut bytes = [0; HEADER_BYTES];
        if (number + 1) * BLOCK <= length {
            file.read_at(number * BLOCK, &mut bytes).await?;
            *proof = Proof::decode(&bytes);
        }
    }
    Ok(proofs)
}

/// Writer of the file.
pub(crate) struct ProofFile {
    file: Arc<dyn DiskFile>,
    journal_id: u128,
    /// Number of the block that the next proof overwrites.
    block: u64,
    /// Index of the last durable proof.
    synced_below: u64,
}

impl ProofFile {
    /// Opens the file, or creates it. Returns `None` if the disk has no space for the file.
    pub(crate) async fn open(disk: &dyn Disk, dir: &Path, journal_id: u128) -> io::Result<Option<Self>> {
        let file = match disk.open(&path(dir), OpenMode::ReadWrite).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.open(&path(dir), OpenMode::CreateNew).await,
            opened => opened,
        };
        let opened = async {
            let file = file?;
            if file.len().await? < BLOCKS * BLOCK {
                file.allocate(BLOCKS * BLOCK).await?;
                file.sync_data().await?;
                disk.sync_dir(dir).await?;
            }
            Ok(file)
        };
        let file = match opened.await {
            Ok(file) => file,
            Err(error) if is_full(&error) => {
                tracing::warn!(dir = %dir.display(), "the disk is full; the journal cannot prove its end until a restart");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let own = read_blocks(&*file)
            .await?
            .map(|proof| proof.filter(|proof| proof.journal_id == journal_id).map_or(0, |proof| proof.synced_below));
        // The next proof overwrites the block with the lower index.
        let block = u64::from(own[1] < own[0]);
        Ok(Some(ProofFile { file, journal_id, block, synced_below: own[0].max(own[1]) }))
    }

    /// Writes a proof that all entries below `synced_below` are durable, unless the file contains it already.
    pub(crate) async fn write(&mut self, synced_below: u64) -> io::Result<()> {
        if synced_below <= self.synced_below {
            return Ok(());
        }
        let mut block = vec![0; to_usize(BLOCK)];
        block[..HEADER_BYTES].copy_from_slice(&Proof { journal_id: self.journal_id, synced_below }.encode());
        self.file.write_at(self.block * BLOCK, &block).await?;
        self.file.sync_data().await?;
        self.synced_below = synced_below;
        self.block = (self.block + 1) % BLOCKS;
        Ok(())
    }
}
