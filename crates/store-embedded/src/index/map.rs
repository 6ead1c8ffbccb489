//! Index in memory for simulations and small stores. A flush writes the whole index to disk, one file for each family.
//!
//! A file starts with a table of contents in an [`file::envelope`]. The blocks of rows follow. The table contains the
//! checksum and the keys of each block, so damage in a block of due rows affects only the rows of this block.
//!
//! The index accesses the disk only through [`runtime::Disk`]. A simulated crash therefore has the effects of a real
//! crash: the index loses rows that it has not flushed, and the flushes of the families may have happened at different
//! times.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use stored::{Malformed, Put, Take};

use super::{Family, Index, IndexError, Pressure, ScanRange, Sequence, Unreadable, Verified, Visit, VisitVersion};
use crate::file;
use crate::read::{hex, just_after};

const VERSION: u8 = 2;
/// Number of versions of rows in one block.
const BLOCK_LEN: usize = 16;

/// Kinds of entries in the table of contents of a file.
mod entry {
    pub(super) const END: u8 = 0;
    pub(super) const BLOCK: u8 = 1;
    pub(super) const UNREADABLE: u8 = 2;
}

/// Versions of a row, the oldest first. `None` is a removal.
type Versions = Vec<(Sequence, Option<Bytes>)>;
type Rows = BTreeMap<Bytes, Versions>;

pub(crate) struct MapIndex {
    runtime: Runtime,
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    families: [Rows; 3],
    /// Ranges of due rows that were in damaged blocks.
    unreadable: Vec<Unreadable>,
    newest: Option<Sequence>,
    /// Last sequence (inclusive) of the rows that the next flush writes, for each family.
    sealed: [Option<Sequence>; 3],
    unsealed_bytes: [u64; 3],
    flushed_to: Option<Sequence>,
}

impl MapIndex {
    /// Opens the index in `dir`. If `hides_damage` is true, the index skips damaged due rows and does not report them.
    pub(crate) async fn open(runtime: &Runtime, dir: &Path, hides_damage: bool) -> Result<Self, IndexError> {
        runtime.disk().create_dir_all(dir).await?;
        let mut state = State::default();
        for family in Family::ALL {
            if let Some(bytes) = file::read_whole(runtime, &path(dir, family)).await? {
                let Decoded { rows, newest, unreadable } = decode(family, &bytes)?;
                match (family, unreadable.first()) {
                    (Family::Rows | Family::Points, Some(range)) => return Err(of_range(family, range)),
                    (Family::Due, Some(_)) if !hides_damage => state.unreadable = unreadable,
                    _ => {}
                }
                state.flushed_to = state.flushed_to.max(newest);
                state.families[family as usize] = rows;
            } else {
                // The first flush writes a file even if there are no rows, so that an empty index differs from a
                // missing index.
                state.sealed[family as usize] = Some(Sequence::new(0, 0));
            }
        }
        Ok(MapIndex { runtime: runtime.clone(), dir: dir.to_owned(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn write(&self, family: Family, key: &[u8], value: Option<&[u8]>, at: Sequence) {
        let mut state = self.state();
        state.newest = Some(at);
        state.unsealed_bytes[family as usize] += (key.len() + value.map_or(0, <[u8]>::len)) as u64;
        let value = value.map(Bytes::copy_from_slice);
        let rows = &mut state.families[family as usize];
        match rows.get_mut(key) {
            Some(versions) => match versions.binary_search_by_key(&at, |(at, _)| *at) {
                Ok(same) => versions[same].1 = value,
                Err(place) => versions.insert(place, (at, value)),
            },
            None => {
                rows.insert(Bytes::copy_from_slice(key), vec![(at, value)]);
            }
        }
    }

    async fn flush_family(&self, family: Family, keep_from: Sequence) -> Result<(), IndexError> {
        let (bytes, sealed) = {
            let mut state = self.state();
            let Some(sealed) = state.sealed[family as usize] else { return Ok(()) };
            forget(&mut state.families[family as usize], keep_from);
            let unreadable = if family == Family::Due { &state.unreadable[..] } else { &[] };
            (encode(&state.families[family as usize], unreadable, sealed), sealed)
        };
        let path = path(&self.dir, family);
        file::replace(&self.runtime, &path, &bytes).await?;
        let read_back = file::read_whole(&self.runtime, &path).await?;
        if read_back.as_deref() != Some(&bytes[..]) {
            return Err(damaged(family, "the bytes of the file differ from the bytes that the flush wrote".to_owned()));
        }
        let mut state = self.state();
        state.flushed_to = state.flushed_to.max(Some(sealed));
        // If the writer sealed the family again during the flush, the newer seal stays for the next flush.
        if state.sealed[family as usize] == Some(sealed) {
            state.sealed[family as usize] = None;
        }
        Ok(())
    }
}

/// Copies the files of an index that no process has open.
pub(crate) async fn copy_files(runtime: &Runtime, from: &Path, to: &Path) -> std::io::Result<()> {
    runtime.disk().create_dir_all(to).await?;
    for family in Family::ALL {
        if let Some(bytes) = file::read_whole(runtime, &path(from, family)).await? {
            file::replace(runtime, &path(to, family), &bytes).await?;
        }
    }
    Ok(())
}

pub(crate) fn path(dir: &Path, family: Family) -> PathBuf {
    dir.join(format!("{}.map", family.name()))
}

fn damaged(family: Family, reason: String) -> IndexError {
    IndexError::Damaged { family: family.name(), range: "all rows".to_owned(), reason }
}

fn of_range(family: Family, Unreadable { from, to }: &Unreadable) -> IndexError {
    let range = format!("from {} to {}", hex(from), hex(to));
    IndexError::Damaged { family: family.name(), range, reason: "the checksum of the block does not match".to_owned() }
}

fn between<'a>(from: &'a [u8], to: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(from), Bound::Excluded(to))
}

/// Returns the newest version before the sequence `before`.
fn version(versions: &Versions, before: Sequence) -> Option<&Bytes> {
    let newer = versions.partition_point(|(at, _)| *at < before);
    versions[..newer].last().and_then(|(_, value)| value.as_ref())
}

/// Calls `visit` for the `rows` in order, until `visit` returns `Break`. `visit` receives the newest version of each
/// row before the sequence `before`.
fn visit_rows<'a>(rows: impl Iterator<Item = (&'a Bytes, &'a Versions)>, before: Sequence, visit: VisitVersion<'_>) {
    for (key, versions) in rows {
        if visit(key, version(versions, before)) == ControlFlow::Break(()) {
            break;
        }
    }
}

/// Drops the versions that no read at or after `keep_from` observes.
fn forget(rows: &mut Rows, keep_from: Sequence) {
    rows.retain(|_, versions| {
        let older = versions.partition_point(|(at, _)| *at < keep_from);
        versions.drain(..older.saturating_sub(1));
        !(versions.len() == 1 && versions[0].0 < keep_from && versions[0].1.is_none())
    });
}

fn encode(rows: &Rows, unreadable: &[Unreadable], sealed: Sequence) -> Vec<u8> {
    let versions = rows.iter().flat_map(|(key, versions)| versions.iter().map(move |(at, value)| (key, *at, value)));
    let flushed: Vec<_> = versions.filter(|(_, at, _)| *at <= sealed).collect();
    let (mut contents, mut blocks) = (Vec::new(), Vec::new());
    contents.u8(VERSION);
    contents.u64(flushed.iter().map(|(_, at, _)| at.as_u64()).max().unwrap_or_default());
    for versions in flushed.chunks(BLOCK_LEN) {
        let start = blocks.len();
        for (key, at, value) in versions {
            blocks.u8(1);
            blocks.blob(key);
            blocks.u64(at.as_u64());
            blocks.u8(u8::from(value.is_some()));
            blocks.blob(value.as_deref().unwrap_or_default());
        }
        blocks.u8(0);
        contents.u8(entry::BLOCK);
        contents.count(blocks.len() - start);
        contents.u32(crc32c::crc32c(&blocks[start..]));
        contents.blob(versions[0].0);
        contents.blob(&just_after(versions[versions.len() - 1].0));
    }
    for Unreadable { from, to } in unreadable {
        contents.u8(entry::UNREADABLE);
        contents.blob(from);
        contents.blob(to);
    }
    contents.u8(entry::END);
    let mut file = file::envelope(&contents);
    file.extend_from_slice(&blocks);
    file
}

#[derive(Default)]
struct Decoded {
    rows: Rows,
    /// Latest sequence of all flushed rows, also of the rows in damaged blocks.
    newest: Option<Sequence>,
    unreadable: Vec<Unreadable>,
}

fn decode(family: Family, file: &[u8]) -> Result<Decoded, IndexError> {
    let (contents, blocks) = file::split_envelope(file).map_err(|error| damaged(family, error.to_string()))?;
    decode_blocks(contents, blocks).map_err(|error| damaged(family, error.to_string()))
}

fn decode_blocks(contents: &[u8], mut blocks: &[u8]) -> Result<Decoded, Malformed> {
    let mut take = Take::new("a table of contents", contents);
    take.version(VERSION)?;
    let newest = Some(take.u64()?).filter(|newest| *newest > 0).map(Sequence::from_u64);
    let mut decoded = Decoded { newest, ..Decoded::default() };
    loop {
        match take.u8()? {
            entry::BLOCK => {
                let (len, checksum) = (take.u32()?, take.u32()?);
                let (from, to) = (take.blob()?.to_vec(), take.blob()?.to_vec());
                let split = blocks.split_at_checked(usize::try_from(len).unwrap_or(usize::MAX));
                let (block, rest) = split.ok_or(Malformed { what: "a block", at: 0 })?;
                blocks = rest;
                if checksum == crc32c::crc32c(block) {
                    decode_block(block, &mut decoded.rows)?;
                } else {
                    decoded.unreadable.push(Unreadable { from, to });
                }
            }
            entry::UNREADABLE => {
                let (from, to) = (take.blob()?.to_vec(), take.blob()?.to_vec());
                decoded.unreadable.push(Unreadable { from, to });
            }
            entry::END => break,
            _ => return Err(take.malformed()),
        }
    }
    take.end()?;
    Ok(decoded)
}

fn decode_block(block: &[u8], rows: &mut Rows) -> Result<(), Malformed> {
    let mut take = Take::new("a block", block);
    while take.u8()? == 1 {
        let key = Bytes::copy_from_slice(take.blob()?);
        let at = Sequence::from_u64(take.u64()?);
        let present = take.u8()? == 1;
        let value = Bytes::copy_from_slice(take.blob()?);
        rows.entry(key).or_default().push((at, present.then_some(value)));
    }
    take.end()
}

/// Returns the positions of the bytes in a file with due rows that belong to blocks of rows.
#[must_use]
pub fn block_bytes(file: &[u8]) -> Range<usize> {
    let blocks = file::split_envelope(file).map_or(0, |(_, blocks)| blocks.len());
    file.len() - blocks..file.len()
}

impl Index for MapIndex {
    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, IndexError> {
        let state = self.state();
        Ok(state.families[family as usize].get(key).and_then(|versions| version(versions, before)).cloned())
    }

    fn scan_versions(&self, family: Family, range: ScanRange<'_>, visit: VisitVersion<'_>) -> Result<(), IndexError> {
        let ScanRange { from, to, before, is_back } = range;
        if from >= to {
            return Ok(());
        }
        let state = self.state();
        let rows = state.families[family as usize].range::<[u8], _>(between(from, to));
        if is_back {
            visit_rows(rows.rev(), before, visit)
        } else {
            visit_rows(rows, before, visit)
        }
        Ok(())
    }

    fn scan_readable_due(
        &self,
        from: &[u8],
        to: &[u8],
        skipped: &mut Vec<Unreadable>,
        visit: Visit<'_>,
    ) -> Result<(), IndexError> {
        let state = self.state();
        let parts = state
            .unreadable
            .iter()
            .map(|range| Unreadable { from: from.max(&range.from).to_vec(), to: to.min(&range.to).to_vec() });
        skipped.extend(parts.filter(|part| part.from < part.to));
        drop(state);
        self.scan(Family::Due, from, to, Sequence::LATEST, visit)
    }

    fn unreadable_due(&self) -> Result<Vec<Unreadable>, IndexError> {
        Ok(self.state().unreadable.clone())
    }

    fn drop_unreadable_due(&self, is_rebuilt: &dyn Fn(&Unreadable) -> bool) -> Result<(), IndexError> {
        self.state().unreadable.retain(|range| !is_rebuilt(range));
        Ok(())
    }

    fn put(&self, family: Family, key: &[u8], value: &[u8], at: Sequence) {
        self.write(family, key, Some(value), at);
    }

    fn written(&self, key: &[u8], before: Sequence) -> Result<Option<Sequence>, IndexError> {
        let state = self.state();
        let versions = state.families[Family::Points as usize].get(key);
        let newest = versions.and_then(|versions| versions[..versions.partition_point(|(at, _)| *at < before)].last());
        Ok(newest.filter(|(_, value)| value.is_some()).map(|(at, _)| *at))
    }

    fn remove(&self, family: Family, key: &[u8], at: Sequence) {
        self.write(family, key, None, at);
    }

    fn retire(&self, poller: [u8; 8], to: &[u8]) {
        let mut state = self.state();
        let rows = &mut state.families[Family::Due as usize];
        let retired: Vec<Bytes> = rows.range::<[u8], _>(between(&poller, to)).map(|(key, _)| key.clone()).collect();
        for key in retired {
            rows.remove(&key);
        }
    }

    fn seal(&self, family: Family) {
        let mut state = self.state();
        state.sealed[family as usize] = state.newest.or(state.sealed[family as usize]);
        state.unsealed_bytes[family as usize] = 0;
    }

    fn unsealed_bytes(&self, family: Family) -> u64 {
        self.state().unsealed_bytes[family as usize]
    }

    fn flush(&self, keep_from: Sequence) -> BoxFuture<'_, Result<(), IndexError>> {
        Box::pin(async move {
            for family in Family::ALL {
                self.flush_family(family, keep_from).await?;
            }
            Ok(())
        })
    }

    fn merge_step(&self, _keep_from: Sequence) -> Result<bool, IndexError> {
        Ok(false)
    }

    fn pressure(&self) -> Pressure {
        Pressure::default()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Verified, IndexError>> {
        Box::pin(async move {
            let mut verified = Verified::default();
            for family in Family::ALL {
                let rows = &self.state().families[family as usize];
                let live = rows.values().filter(|versions| version(versions, Sequence::LATEST).is_some()).count();
                verified.rows[family as usize] = live as u64;
            }
            for family in Family::ALL {
                let Some(bytes) = file::read_whole(&self.runtime, &path(&self.dir, family)).await? else { continue };
                verified.files += 1;
                verified.bytes += bytes.len() as u64;
                match decode(family, &bytes) {
                    Ok(decoded) => {
                        let damages = decoded.unreadable.iter().map(|range| of_range(family, range).to_string());
                        verified.damages.extend(damages);
                    }
                    Err(error) => verified.damages.push(error.to_string()),
                }
            }
            Ok(verified)
        })
    }

    fn flushed_to(&self) -> Option<Sequence> {
        self.state().flushed_to
    }

    fn copy_to<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, Result<(), IndexError>> {
        Box::pin(async move { Ok(copy_files(&self.runtime, &self.dir, dir).await?) })
    }
}
