//! State of one member's disk: the cached contents and the durable contents. This module also defines the effect of a
//! loss of power.
//!
//! The volume loses more data than most file systems: it may lose any data that the contract of [`runtime::Disk`]
//! permits a disk to lose. After a loss of power, each sector of an unsynced write survives or vanishes independently
//! of other sectors, of other writes and of the order of the writes. Unsynced names of files and folders also survive
//! or vanish independently. A sync of a file does not make its name durable.
//!
//! docs/decisions/0021-simulate-every-allowed-crash-result.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::disk::contents::Contents;
use crate::faults::Incident;
use crate::random::Random;

/// Size in bytes of a sector, which a disk writes completely or not at all.
pub(crate) const SECTOR: u64 = 512;

pub(crate) type InodeId = u64;

pub(crate) struct Volume {
    random: Random,
    inodes: BTreeMap<InodeId, Inode>,
    last_inode: InodeId,
    folders: BTreeMap<PathBuf, Folder>,
    name_changes: Vec<NameChange>,
    /// Locked folders.
    locks: BTreeSet<PathBuf>,
    pub(crate) capacity: u64,
    /// Number of disk operations since the start of the simulation.
    pub(crate) operations: u64,
    /// Number of the disk operation in which the power fails, counted from the start of the simulation. `None` if the
    /// scenario has not requested a loss of power in an operation.
    pub(crate) crash_at: Option<u64>,
}

#[derive(Default)]
struct Inode {
    /// Contents of the file in the page cache. Reads return these contents.
    cached: Contents,
    durable: Contents,
    unsynced: Vec<(u64, Write)>,
    last_write: u64,
    handles: u32,
}

enum Write {
    Bytes { offset: u64, bytes: Vec<u8> },
    Length(u64),
}

#[derive(Default)]
struct Folder {
    durable: bool,
    names: BTreeMap<String, InodeId>,
    durable_names: BTreeMap<String, InodeId>,
}

/// Change of a name in a folder. A sync of `folder` makes the change durable.
struct NameChange {
    folder: PathBuf,
    kind: Naming,
}

enum Naming {
    MakeFolder(PathBuf),
    Link { name: String, inode: InodeId },
    Unlink { name: String },
    Rename { from_folder: PathBuf, from: String, to: String, inode: InodeId },
}

impl Volume {
    pub(crate) fn new(random: Random) -> Self {
        let root = |path: &str| (PathBuf::from(path), Folder { durable: true, ..Folder::default() });
        Volume {
            random,
            inodes: BTreeMap::new(),
            last_inode: 0,
            folders: BTreeMap::from([root("/"), root("")]),
            name_changes: Vec::new(),
            locks: BTreeSet::new(),
            capacity: u64::MAX,
            operations: 0,
            crash_at: None,
        }
    }

    // Names.

    pub(crate) fn make_folders(&mut self, path: &Path) -> Result<()> {
        let missing: Vec<_> = path.ancestors().take_while(|folder| !self.folders.contains_key(*folder)).collect();
        for folder in missing.into_iter().rev() {
            if self.find(folder).is_ok() {
                return Err(Error::new(ErrorKind::AlreadyExists, format!("{} is a file", folder.display())));
            }
            self.folders.insert(folder.to_owned(), Folder::default());
            let parent = folder.parent().unwrap_or(Path::new("")).to_owned();
            self.name_changes.push(NameChange { folder: parent, kind: Naming::MakeFolder(folder.to_owned()) });
        }
        Ok(())
    }

    pub(crate) fn find(&self, path: &Path) -> Result<InodeId> {
        let (folder, name) = split_path(path)?;
        let inode = self.folders.get(folder).and_then(|folder| folder.names.get(name));
        inode.copied().ok_or_else(|| not_found(path))
    }

    pub(crate) fn create(&mut self, path: &Path) -> Result<InodeId> {
        let (folder, name) = split_path(path)?;
        if self.folders.contains_key(path) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} is a folder", path.display())));
        }
        let names = &mut self.folders.get_mut(folder).ok_or_else(|| not_found(folder))?.names;
        if names.contains_key(name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        self.last_inode += 1;
        let inode = self.last_inode;
        names.insert(name.to_owned(), inode);
        self.inodes.insert(inode, Inode::default());
        let kind = Naming::Link { name: name.to_owned(), inode };
        self.name_changes.push(NameChange { folder: folder.to_owned(), kind });
        Ok(inode)
    }

    pub(crate) fn list(&self, path: &Path) -> Result<Vec<String>> {
        let folder = self.folders.get(path).ok_or_else(|| not_found(path))?;
        Ok(folder.names.keys().cloned().collect())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        let inode = self.find(from)?;
        let ((from_folder, from), (to_folder, to)) = (split_path(from)?, split_path(to)?);
        let target = self.folders.get_mut(to_folder).ok_or_else(|| not_found(to_folder))?;
        target.names.insert(to.to_owned(), inode);
        if (from_folder, from) != (to_folder, to) {
            self.folders.get_mut(from_folder).expect("the folder of an existing file exists").names.remove(from);
        }
        let (from_folder, from, to) = (from_folder.to_owned(), from.to_owned(), to.to_owned());
        let kind = Naming::Rename { from_folder, from, to, inode };
        self.name_changes.push(NameChange { folder: to_folder.to_owned(), kind });
        self.forget_unreachable();
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> Result<()> {
        self.find(path)?;
        let (folder, name) = split_path(path)?;
        self.folders.get_mut(folder).expect("the folder of an existing file exists").names.remove(name);
        let kind = Naming::Unlink { name: name.to_owned() };
        self.name_changes.push(NameChange { folder: folder.to_owned(), kind });
        self.forget_unreachable();
        Ok(())
    }

    pub(crate) fn sync_folder(&mut self, path: &Path) -> Result<()> {
        if !self.folders.contains_key(path) {
            return Err(not_found(path));
        }
        let (synced, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.name_changes).into_iter().partition(|change| change.folder == path);
        self.name_changes = rest;
        for change in synced {
            self.make_durable(change);
        }
        self.forget_unreachable();
        Ok(())
    }

    fn make_durable(&mut self, change: NameChange) {
        let NameChange { folder, kind } = change;
        match kind {
            Naming::MakeFolder(path) => {
                self.folders.entry(path).or_default().durable = true;
            }
            Naming::Link { name, inode } => {
                self.folders.entry(folder).or_default().durable_names.insert(name, inode);
            }
            Naming::Unlink { name } => {
                self.folders.entry(folder).or_default().durable_names.remove(&name);
            }
            Naming::Rename { from_folder, from, to, inode } => {
                let source = &mut self.folders.entry(from_folder).or_default().durable_names;
                // The old name may already refer to another file. In this case, that file must retain the name.
                if source.get(&from) == Some(&inode) {
                    source.remove(&from);
                }
                self.folders.entry(folder).or_default().durable_names.insert(to, inode);
            }
        }
    }

    /// Locks the folder. Returns false if the folder is already locked.
    pub(crate) fn lock(&mut self, folder: &Path) -> bool {
        self.locks.insert(folder.to_owned())
    }

    pub(crate) fn unlock(&mut self, folder: &Path) {
        self.locks.remove(folder);
    }

    // Bytes.

    pub(crate) fn add_handle(&mut self, inode: InodeId) {
        self.inode(inode).handles += 1;
    }

    pub(crate) fn remove_handle(&mut self, inode: InodeId) {
        let handles = &mut self.inode(inode).handles;
        *handles -= 1;
        if *handles == 0 {
            self.forget_unreachable();
        }
    }

    pub(crate) fn len(&self, inode: InodeId) -> u64 {
        self.inodes.get(&inode).map_or(0, |inode| inode.cached.len())
    }

    pub(crate) fn read(&self, inode: InodeId, offset: u64, into: &mut [u8]) -> Result<()> {
        let whole = self.inodes.get(&inode).is_some_and(|inode| inode.cached.read(offset, into));
        if whole {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::UnexpectedEof, "the requested range ends after the end of the file"))
        }
    }

    /// Writes bytes. If the disk is full, writes some of the bytes and returns an error.
    pub(crate) fn write(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or_else(|| Error::from(ErrorKind::FileTooLarge))?;
        let len = self.len(inode);
        // Most writes overwrite allocated space, so the volume computes the free space only if the file grows.
        let free = if end > len { self.free_bytes() } else { 0 };
        let file = self.inode(inode);
        let fits = end.saturating_sub(len) <= free;
        let written = if fits {
            bytes
        } else {
            let most = (len + free).saturating_sub(offset);
            &bytes[..usize::try_from(most).unwrap_or(0).min(bytes.len())]
        };
        if !written.is_empty() {
            file.write(Write::Bytes { offset, bytes: written.to_vec() });
        }
        if fits { Ok(()) } else { Err(full()) }
    }

    /// Writes a random number of bytes from the start of `bytes`, to simulate a write that fails.
    pub(crate) fn write_some(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> Result<()> {
        let some = self.random.index(bytes.len() + 1);
        self.write(inode, offset, &bytes[..some])
    }

    pub(crate) fn allocate(&mut self, inode: InodeId, len: u64) -> Result<()> {
        let free = self.free_bytes();
        let present = self.len(inode);
        if len.saturating_sub(present) > free {
            // A real `fallocate` that returns an error may have allocated a part of the space.
            let allocated = present + self.random.below(free + 1);
            self.inode(inode).write(Write::Length(allocated));
            return Err(full());
        }
        self.inode(inode).write(Write::Length(len));
        Ok(())
    }

    /// Returns the number of the last write. A sync that starts now covers all writes up to this number.
    pub(crate) fn last_write(&self, inode: InodeId) -> u64 {
        self.inodes.get(&inode).map_or(0, |inode| inode.last_write)
    }

    pub(crate) fn sync(&mut self, inode: InodeId, until: u64) {
        let file = self.inode(inode);
        for write in file.take_unsynced(until) {
            write.apply(&mut file.durable);
        }
    }

    /// Simulates a failed sync of all writes up to `until`. As in a real kernel, any part of these writes may be lost,
    /// and a later sync does not write them again. A read may return the written bytes or the bytes on the disk.
    pub(crate) fn fail_sync(&mut self, inode: InodeId, until: u64) -> Vec<(Incident, String)> {
        let mut random = self.random.fork();
        let file = self.inode(inode);
        let mut losses = Vec::new();
        for write in file.take_unsynced(until) {
            losses.extend(write.survive(&mut file.durable, &mut random));
        }
        if random.coin() {
            file.cached = file.durable.clone();
            for (_, write) in &file.unsynced {
                write.apply(&mut file.cached);
            }
        }
        losses
    }

    /// Flips one bit of the byte at `offset`. Returns false if the file ends before this byte.
    pub(crate) fn flip_bit(&mut self, inode: InodeId, offset: u64, bit: u32) -> bool {
        let file = self.inode(inode);
        let mut flipped = false;
        for contents in [&mut file.cached, &mut file.durable] {
            let mut byte = [0];
            if contents.read(offset, &mut byte) {
                contents.write(offset, &[byte[0] ^ 1 << (bit % 8)]);
                flipped = true;
            }
        }
        flipped
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let named: BTreeSet<_> = self.folders.values().flat_map(|folder| folder.names.values()).collect();
        let used = self.inodes.iter().filter(|(id, inode)| inode.handles > 0 || named.contains(id));
        self.capacity.saturating_sub(used.map(|(_, inode)| inode.cached.len()).sum())
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.capacity - self.free_bytes()
    }

    // Functions for the end of a process and for a loss of power.

    pub(crate) fn forget_handles(&mut self) {
        self.locks.clear();
        self.crash_at = None;
        self.inodes.values_mut().for_each(|inode| inode.handles = 0);
        self.forget_unreachable();
    }

    /// Simulates a loss of power. Unsynced data survives completely, partly or not at all.
    pub(crate) fn lose_power(&mut self) -> Vec<(Incident, String)> {
        let mut random = self.random.fork();
        let mut losses = self.lose_names(&mut random);
        for inode in self.inodes.values_mut() {
            for (_, write) in std::mem::take(&mut inode.unsynced) {
                losses.extend(write.survive(&mut inode.durable, &mut random));
            }
            inode.cached = inode.durable.clone();
        }
        self.forget_handles();
        losses
    }

    fn lose_names(&mut self, random: &mut Random) -> Vec<(Incident, String)> {
        let mut losses = Vec::new();
        for change in std::mem::take(&mut self.name_changes) {
            if random.coin() {
                self.make_durable(change);
            } else {
                losses.push((Incident::LostName, change.to_string()));
            }
        }
        let lost: Vec<_> =
            self.folders.iter().filter(|(_, folder)| !folder.durable).map(|(path, _)| path.clone()).collect();
        self.folders.retain(|path, _| !path.ancestors().any(|folder| lost.iter().any(|lost| lost == folder)));
        for folder in self.folders.values_mut() {
            folder.names = folder.durable_names.clone();
        }
        losses
    }

    fn forget_unreachable(&mut self) {
        let mut named: BTreeSet<InodeId> = BTreeSet::new();
        for folder in self.folders.values() {
            named.extend(folder.names.values().chain(folder.durable_names.values()));
        }
        for change in &self.name_changes {
            match &change.kind {
                Naming::Link { inode, .. } | Naming::Rename { inode, .. } => {
                    named.insert(*inode);
                }
                Naming::MakeFolder(_) | Naming::Unlink { .. } => {}
            }
        }
        self.inodes.retain(|id, inode| inode.handles > 0 || named.contains(id));
    }

    fn inode(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("the volume keeps an inode that has a name or a handle")
    }
}

impl Inode {
    fn write(&mut self, write: Write) {
        write.apply(&mut self.cached);
        self.last_write += 1;
        self.unsynced.push((self.last_write, write));
    }

    fn take_unsynced(&mut self, until: u64) -> Vec<Write> {
        let covered = self.unsynced.partition_point(|(number, _)| *number <= until);
        self.unsynced.drain(..covered).map(|(_, write)| write).collect()
    }
}

impl Write {
    fn apply(&self, contents: &mut Contents) {
        match self {
            Write::Bytes { offset, bytes } => contents.write(*offset, bytes),
            Write::Length(len) => contents.set_len(*len),
        }
    }

    /// Applies the part of an unsynced write that survives: the whole write, some sectors, or nothing.
    fn survive(&self, contents: &mut Contents, random: &mut Random) -> Option<(Incident, String)> {
        match (random.below(3), self) {
            (0, write) => {
                write.apply(contents);
                None
            }
            (1, Write::Bytes { offset, bytes }) if bytes.len() as u64 > SECTOR - offset % SECTOR => {
                let survived = tear(*offset, bytes, contents, random);
                Some((Incident::TornWrite, format!("{survived} of {} bytes at {offset}", bytes.len())))
            }
            (_, Write::Bytes { offset, bytes }) => {
                Some((Incident::LostWrite, format!("{} bytes at {offset}", bytes.len())))
            }
            (_, Write::Length(len)) => Some((Incident::LostWrite, format!("the length {len}"))),
        }
    }
}

/// Writes only some sectors of the bytes, and returns the number of bytes written.
fn tear(offset: u64, bytes: &[u8], contents: &mut Contents, random: &mut Random) -> usize {
    let in_order = random.coin();
    let sectors = sectors(offset, bytes.len());
    let first_lost = random.index(sectors.len());
    let mut survived = 0;
    for (number, range) in sectors.into_iter().enumerate() {
        // Either only the first sectors survive, or a random set of sectors survives, because a disk may write queued
        // sectors in any order.
        let survives = if in_order { number < first_lost } else { number != first_lost && random.coin() };
        if survives {
            contents.write(offset + range.start as u64, &bytes[range.clone()]);
            survived += range.len();
        }
    }
    // The length of the file may become durable before the bytes. A read of these bytes then returns zeros.
    if random.coin() {
        contents.set_len(contents.len().max(offset + bytes.len() as u64));
    }
    survived
}

fn sectors(offset: u64, len: usize) -> Vec<std::ops::Range<usize>> {
    let mut sectors = Vec::new();
    let mut start = 0;
    while start < len {
        let left_in_sector = SECTOR - (offset + start as u64) % SECTOR;
        let end = usize::try_from(left_in_sector).map_or(len, |left| (start + left).min(len));
        sectors.push(start..end);
        start = end;
    }
    sectors
}

impl std::fmt::Display for NameChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let folder = self.folder.display();
        match &self.kind {
            Naming::MakeFolder(path) => write!(f, "the new folder {}", path.display()),
            Naming::Link { name, .. } => write!(f, "the new file {name} in {folder}"),
            Naming::Unlink { name } => write!(f, "the removal of {name} in {folder}"),
            Naming::Rename { from, to, .. } => write!(f, "the renaming of {from} to {to} in {folder}"),
        }
    }
}

fn split_path(path: &Path) -> Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Error::new(ErrorKind::InvalidInput, format!("{} has no UTF-8 file name", path.display())))?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

fn not_found(path: &Path) -> Error {
    Error::new(ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

fn full() -> Error {
    Error::new(ErrorKind::StorageFull, "the simulated disk has no free space")
}
