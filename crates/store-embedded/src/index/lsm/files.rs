//! Verification and copies of the library's files.
//!
//! The file `current` contains the number and the checksum of the manifest. The manifest's file name is `v` followed by
//! the number. A manifest contains the names and checksums of the tables. Each checksum is a 128-bit XXH3 of a whole
//! file. When the library opens a tree, it does not verify `current`, the manifest or the tables.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lsm_tree::Table;
use xxhash_rust::xxh3::Xxh3Default;

use super::super::{Family, IndexError};

const CURRENT: &str = "current";
const TABLES: &str = "tables";
/// Length in bytes of the file `current`: the manifest's number, its checksum, and the kind of the checksum.
const CURRENT_LEN: usize = 8 + 16 + 1;

/// Returns the folder of a tree's tables. A table's file name is its number.
pub(super) fn tables(dir: &Path) -> PathBuf {
    dir.join(TABLES)
}

pub(super) fn exists(dir: &Path) -> bool {
    dir.join(CURRENT).exists()
}

#[derive(PartialEq, Eq)]
struct Current {
    manifest: String,
    checksum: u128,
}

fn read_current(family: Family, dir: &Path) -> Result<Option<Current>, IndexError> {
    let path = dir.join(CURRENT);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let fields: [u8; CURRENT_LEN] =
        bytes.try_into().map_err(|_| damaged(family, &path, "the file has the wrong length"))?;
    let (number, rest) = fields.split_first_chunk::<8>().expect("the array has enough bytes for all fields");
    let (checksum, kind) = rest.split_first_chunk::<16>().expect("the array has enough bytes for all fields");
    if kind != [0] {
        return Err(damaged(family, &path, "the file specifies an unknown kind of checksum"));
    }
    let manifest = format!("v{}", u64::from_le_bytes(*number));
    Ok(Some(Current { manifest, checksum: u128::from_le_bytes(*checksum) }))
}

/// Verifies the manifest with the checksum in the file `current`, if `current` exists. Returns the number of verified
/// bytes.
pub(super) fn check_manifest(family: Family, dir: &Path) -> Result<u64, IndexError> {
    match read_current(family, dir)? {
        Some(current) => match check(family, &dir.join(&current.manifest), current.checksum) {
            Ok(bytes) => Ok(bytes + CURRENT_LEN as u64),
            // A flush or merge replaced the manifest during the check, so this function checks the new manifest.
            Err(_) if read_current(family, dir)?.is_some_and(|next| next != current) => check_manifest(family, dir),
            Err(error) => Err(error),
        },
        None if dir.join(TABLES).exists() && fs::read_dir(dir.join(TABLES))?.next().is_some() => {
            Err(damaged(family, &dir.join(CURRENT), "the file is missing"))
        }
        None => Ok(0),
    }
}

/// Verifies the checksum of a whole file. Returns the number of verified bytes.
pub(super) fn check(family: Family, path: &Path, expected: u128) -> Result<u64, IndexError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged(family, path, "the file is missing"));
        }
        Err(error) => return Err(error.into()),
    };
    let mut hasher = Xxh3Default::new();
    let mut chunk = vec![0; 1 << 18];
    let mut bytes = 0;
    loop {
        let len = file.read(&mut chunk)?;
        if len == 0 {
            break;
        }
        hasher.update(&chunk[..len]);
        bytes += len as u64;
    }
    if hasher.digest128() == expected {
        Ok(bytes)
    } else {
        Err(damaged(family, path, "the checksum of the file differs from the expected checksum"))
    }
}

fn damaged(family: Family, path: &Path, reason: &str) -> IndexError {
    IndexError::Damaged { family: family.name(), range: path.display().to_string(), reason: reason.to_owned() }
}

/// Copies the files of a tree to another folder. Tables never change, so the copy hard-links them if both folders are
/// on the same file system.
pub(super) fn copy(from: &Path, to: &Path, tables: &[Table]) -> Result<(), IndexError> {
    let tables_dir = to.join(TABLES);
    fs::create_dir_all(&tables_dir)?;
    for table in tables {
        let path: &PathBuf = &table.path;
        if let Some(name) = path.file_name() {
            copy_file(path, &tables_dir.join(name))?;
        }
    }
    // This function copies the manifest instead of hard-linking it. The manifest is small, and the library removes it
    // when it writes the next manifest.
    for name in [CURRENT.to_owned(), manifest_name(from)?] {
        fs::copy(from.join(&name), to.join(&name))?;
        File::open(to.join(&name))?.sync_all()?;
    }
    for dir in [&tables_dir, to] {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn manifest_name(dir: &Path) -> Result<String, IndexError> {
    let bytes = fs::read(dir.join(CURRENT))?;
    let number = bytes.first_chunk::<8>().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok(format!("v{}", u64::from_le_bytes(*number)))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    File::open(to)?.sync_all()
}

/// Copies a folder with its content. Hard-links the tables if the file system allows hard links.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if from.ends_with(TABLES) {
            copy_file(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
            File::open(&target)?.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}

/// Returns the paths of all files and folders below a folder. Does not follow symbolic links.
pub(crate) fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let (path, kind) = {
            let entry = entry?;
            (entry.path(), entry.file_type()?)
        };
        if kind.is_dir() {
            paths.extend(files_below(&path)?);
        }
        if !kind.is_symlink() {
            paths.push(path);
        }
    }
    Ok(paths)
}
