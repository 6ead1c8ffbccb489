//! Small files with a checksum. A write replaces the whole file in one atomic step.

use std::io;
use std::path::Path;

use runtime::{OpenMode, Runtime};

const MAGIC: [u8; 8] = *b"REVEILLE";
const HEADER_LEN: usize = 8 + 8 + 4;

/// Returns a header followed by `body`. The header contains the magic bytes, the length of `body` and its CRC32C.
pub(crate) fn envelope(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    out.extend_from_slice(body);
    out
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum EnvelopeError {
    #[error("the file does not start with a Reveille header")]
    Header,
    #[error("the length of the file differs from the length in its header")]
    Length,
    #[error("the checksum of the file does not match its header")]
    Checksum,
}

/// Checks the header that [`envelope`] wrote, and returns the body.
pub(crate) fn open_envelope(bytes: &[u8]) -> Result<&[u8], EnvelopeError> {
    let (body, rest) = split_envelope(bytes)?;
    if rest.is_empty() { Ok(body) } else { Err(EnvelopeError::Length) }
}

/// Checks the header that [`envelope`] wrote, and returns the body and the bytes after it.
pub(crate) fn split_envelope(bytes: &[u8]) -> Result<(&[u8], &[u8]), EnvelopeError> {
    let (magic, bytes) = bytes.split_first_chunk().ok_or(EnvelopeError::Header)?;
    let (len, bytes) = bytes.split_first_chunk().ok_or(EnvelopeError::Header)?;
    let (checksum, bytes) = bytes.split_first_chunk().ok_or(EnvelopeError::Header)?;
    if *magic != MAGIC {
        return Err(EnvelopeError::Header);
    }
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| EnvelopeError::Length)?;
    let (body, rest) = bytes.split_at_checked(len).ok_or(EnvelopeError::Length)?;
    if *checksum != crc32c::crc32c(body).to_le_bytes() {
        return Err(EnvelopeError::Checksum);
    }
    Ok((body, rest))
}

/// Replaces the content of the file `path` with `bytes`. After a crash, the file contains either the new or the old
/// content.
pub(crate) async fn replace(runtime: &Runtime, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let disk = runtime.disk();
    let new = path.with_extension("new");
    if let Err(error) = disk.remove(&new).await
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = disk.open(&new, OpenMode::CreateNew).await?;
    file.write_at(0, bytes).await?;
    file.sync_data().await?;
    disk.rename(&new, path).await?;
    match path.parent() {
        Some(dir) => disk.sync_dir(dir).await,
        None => Ok(()),
    }
}

/// Returns the bytes of a file, or `None` if the file does not exist.
pub(crate) async fn read_whole(runtime: &Runtime, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match runtime.disk().open(path, OpenMode::Read).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = usize::try_from(file.len().await?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes).await?;
    Ok(Some(bytes))
}
